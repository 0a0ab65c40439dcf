"""How many lines the corpora have that papers report on, and whether prepared data has as many."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.config import DataConfig
from leadline.data.sources import parse
from leadline.files import Facts


@dataclass(frozen=True)
class Corpus:
    name: str
    metric: str  # what is reported on it
    lines: dict[str, tuple[int, ...]]  # by split; several where papers use several versions


IWSLT14 = Corpus("fairseq's IWSLT14", "BLEU", {"train": (160_239,), "valid": (7_283,), "test": (6_750,)})
# Of newstest2014 there is a filtered version too. The training text differs from paper to paper.
WMT14 = Corpus("WMT14 (newstest2013, newstest2014)", "BLEU", {"valid": (3_000,), "test": (3_003, 2_737)})
MRPC = Corpus("GLUE's MRPC", "accuracy", {"train": (3_668,), "valid": (408,), "test": (1_725,)})
RTE = Corpus("GLUE's RTE", "accuracy", {"train": (2_490,), "valid": (277,), "test": (3_000,)})


def corpus_of(data: DataConfig) -> Corpus | None:
    """Which of them the data is meant to be; None where nothing says so, as for people's own text.

    The folder says it by its name: it is called MRPC or RTE, or it has iwslt14 or wmt14 in its name and the languages
    are German and English. Whatever the name, tokenised German to English with 10,000 tokens is meant to be IWSLT14:
    that is what the iwslt14 recipes ask for, and no other.
    """
    source = parse(data.source)
    name = source.path.name.lower()
    if source.kind == "table":
        return {"mrpc": MRPC, "msrparaphrasecorpus": MRPC, "rte": RTE}.get(name)
    if source.kind != "text" or {data.source_lang, data.target_lang} != {"de", "en"}:
        return None
    if "wmt14" in name:
        return WMT14
    as_recipe = (data.text, data.source_lang, data.vocab_size) == ("tokenized", "de", 10_000)
    return IWSLT14 if as_recipe or "iwslt14" in name else None


def compared(data: DataConfig, splits: Facts) -> list[str]:
    """One sentence, if the data is meant to be a published corpus: as many lines, or which split has not."""
    corpus = corpus_of(data)
    if corpus is None:
        return []
    lines = {s: splits[s]["rows"] + splits[s]["empty_left_out"] for s in splits if s in corpus.lines}
    differing = [split for split in lines if lines[split] not in corpus.lines[split]]
    if not differing:
        counts = ", ".join(f"{split} {count:,}" for split, count in lines.items())
        return [f"the line counts are those published for {corpus.name}: {counts}"]
    unit = "pairs" if corpus.metric == "BLEU" else "examples"
    counts = " and ".join(f"{split} has {lines[split]:,} {unit}" for split in differing)
    published = " and ".join(" or ".join(f"{count:,}" for count in corpus.lines[split]) for split in differing)
    where = "" if "train" in differing else f" on {' and '.join(differing)}"
    return [f"{counts}; {corpus.name} has {published}: {corpus.metric}{where} is not comparable with published figures"]
