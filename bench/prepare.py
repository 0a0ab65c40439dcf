"""From text to token shards: `leadline data prepare` beside the bare libraries that learn and apply a BPE.

All read the same files, learn one joint vocabulary of the same size on both languages of train, and encode every
split. Ours also cleans and pairs the lines and writes shards, text and hashes; the peers keep their tokens in memory.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.measure import Contestants, Row, Setting, Work, compete, installed
from leadline.config import DataConfig
from leadline.data import numerals, store
from leadline.data.pairs import Pairs
from leadline.data.sources import open_source


@dataclass(frozen=True)
class Size:
    name: str
    pairs: int  # generated where no --text is given
    vocab: int


SIZES = {
    "numerals": Size("numerals", 20_000, 1000),
    "numerals-tiny": Size("numerals-tiny", 500, 300),
    "text": Size("text", 0, 10_000),
}


def generate(folder: Path, size: Size, languages: tuple[str, str]) -> None:
    for split, count in (("train", size.pairs), ("valid", 500), ("test", 500)):
        sides = zip(*numerals.pairs(*languages, split, count), strict=True)
        for language, lines in zip(languages, sides, strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def leadline(config: DataConfig, pairs: int) -> Work:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store.prepare(config, Path(folder) / "prepared")

    return Work(run, pairs, "pairs")


def plain_tokenizers(config: DataConfig, source: Pairs, pairs: int) -> Work:
    """With the split into words that is its usual one."""
    from tokenizers import SentencePieceBPETokenizer

    def run() -> None:
        bpe = SentencePieceBPETokenizer()
        bpe.train_from_iterator(_lines(source, "train"), vocab_size=config.vocab_size, show_progress=False)
        for split in source.splits():
            lines = _lines(source, split)
            for begin in range(0, len(lines), 10_000):
                for encoding in bpe.encode_batch(lines[begin : begin + 10_000]):
                    encoding.ids  # noqa: B018 (made when it is asked for)

    return Work(run, pairs, "pairs")


def plain_sentencepiece(config: DataConfig, source: Pairs, pairs: int) -> Work:
    import io

    import sentencepiece

    def run() -> None:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_lines(source, "train")), model_writer=model, vocab_size=config.vocab_size,
            model_type="bpe", minloglevel=2,
        )  # fmt: skip
        bpe = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for split in source.splits():
            bpe.encode(_lines(source, split))

    return Work(run, pairs, "pairs")


def _lines(source: Pairs, split: str) -> list[str]:
    return [line for pair in source.pairs(split) for line in pair]


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    languages = (arguments.languages[0], arguments.languages[1])
    with tempfile.TemporaryDirectory() as generated:
        if not arguments.text:
            generate(Path(generated), size, languages)
        folder = arguments.text or Path(generated)
        config = DataConfig(
            source=f"text:{folder}", source_lang=languages[0], target_lang=languages[1], vocab_size=size.vocab
        )
        source = open_source(config)
        pairs = sum(1 for split in source.splits() for _ in source.pairs(split))
        contestants: Contestants = {
            "leadline data prepare": partial(leadline, config, pairs),
            "tokenizers, learn and encode": partial(plain_tokenizers, config, source, pairs),
        }
        if installed("sentencepiece"):
            contestants["sentencepiece, learn and encode"] = partial(plain_sentencepiece, config, source, pairs)
        return compete(contestants, setting)
