"""Do exported models write what ours does? Sentence by sentence, in fp32, and for each that differs why.

A translator is exported to transformers and to CTranslate2, and both translate as their model cards say. A difference
has one of these causes, each shown by doing it again:

    limit        `leadline translate` ends a translation at decode.max_ratio times its source; without, it is the same
    end          at model.max_length tokens ours scores </s>, transformers forces it for free, CTranslate2 leaves it out
    tie          ours, in float64 and with noise of 1e-5 on each log p, as rounding in fp32, writes the same
    unexplained  none of these

Of many languages the second of --languages is written. Language models and encoders: see bench/exports_alone.py.

    python -m bench exports --run runs/ted --text test.de [--sentences 250]
    python -m bench exports --run runs/many --text test.de --languages de fr
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bench import exports_alone
from bench.measure import Row, Setting
from leadline.data.tokenizer import BOS, EOS
from leadline.errors import UserError
from leadline.exchange.export import export
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.model.decode import Stepper
from leadline.tasks.translator import marks
from leadline.training.trained import Trained, load

__all__ = ["SIZES", "run"]

SIZES: dict[str, dict[str, int]] = {"trained": {}}
CAUSES = ("limit", "end", "tie", "unexplained")
ROUNDING, TRIES = 1e-5, 20
BATCH = 25
SENTENCES = 250
Tokens = list[int]


def run(size: object, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    if not arguments.run:
        raise UserError("exports needs --run FOLDER, a trained model")
    trained, count = load(arguments.run, device="cpu"), arguments.sentences or SENTENCES
    if trained.model.config.architecture != "encoder-decoder":
        return exports_alone.run(arguments.run, trained, arguments.text, count)
    if trained.tokenizer.config.directions:
        trained = trained.into(arguments.languages[1])
    lines, sources, skipped = fitting(trained, arguments.text, count)
    starts = [start(trained)] * len(sources)
    ours = trained.translator()._search(sources, lambda done: None, starts)
    unlimited = trained.config.set(decode={"max_ratio": 1000.0})
    lifted = Trained(unlimited, trained.model, trained.tokenizer, trained.checkpoint).translator()
    without = lifted._search(sources, lambda done: None, starts)
    exact = copy.deepcopy(trained.model).double()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for tool, (to, translate) in TOOLS.items():
            out = Path(folder) / to
            title, _ = export(arguments.run, trained, out, to)
            theirs = translate(trained, out, lines)
            causes = {
                i: cause(exact, trained, tool, sources[i], without[i], theirs[i])
                for i in range(len(lines))
                if theirs[i] != ours[i]
            }
            into = f", into {trained.config.data.target_lang}" if trained.tokenizer.config.directions else ""
            row: Row = {"contestant": f"{tool} ({title}){into}", "sentences": len(lines), "too_long": skipped}
            row |= {"same": len(lines) - len(causes), "same_unlimited": sum(map(list.__eq__, without, theirs))}
            row |= {f"by_{kind}": sum(each == kind for each in causes.values()) for kind in CAUSES}
            rows.append(row | {"differences": causes})
            setting.keep(rows)
    return rows


def before(trained: Trained) -> list[int]:
    """What stands before a source: of many languages it may be the tag of the one to write."""
    return marks(trained.tokenizer, trained.config.data, trained.config.data.target_lang)[0]


def start(trained: Trained) -> int:
    """What a target begins with."""
    return marks(trained.tokenizer, trained.config.data, trained.config.data.target_lang)[1]


def fitting(trained: Trained, text: Path, count: int) -> tuple[list[str], list[Tokens], int]:
    """The first lines that the model takes whole, their tokens, and how many were too long among them."""
    read = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
    tagged = before(trained)
    encoded = [tagged + own for own in trained.tokenizer.encode(read, trained.tokenizer.config.source_lang)]
    pairs = list(zip(read, encoded, strict=True))
    fits = [i for i, (_, tokens) in enumerate(pairs) if len(tokens) < trained.model.config.max_length][:count]
    return [pairs[i][0] for i in fits], [pairs[i][1] for i in fits], fits[-1] + 1 - len(fits)


def by_transformers(trained: Trained, folder: Path, lines: list[str]) -> list[Tokens]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    lines = [*map(asking(trained), lines)]
    first = {"decoder_start_token_id": start(trained)} if start(trained) != BOS else {}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    order = sorted(range(len(lines)), key=lambda i: len(tokenizer(lines[i])["input_ids"]))
    written: dict[int, Tokens] = {}
    for begin in range(0, len(order), BATCH):
        chosen = order[begin : begin + BATCH]
        batch = tokenizer([lines[i] for i in chosen], return_tensors="pt", padding=True)
        with torch.inference_mode():
            rows = model.generate(**batch, **first)[:, 1:].tolist()
        written |= dict(zip(chosen, (row[: row.index(EOS)] if EOS in row else row for row in rows), strict=True))
    return [written[i] for i in range(len(lines))]


def asking(trained: Trained) -> Callable[[str], str]:
    """A text with the tag that asks for the language, where that is text."""
    tagged = "".join(f"{trained.tokenizer.piece(number)} " for number in before(trained))
    return lambda line: tagged + line


def by_ctranslate2(trained: Trained, folder: Path, lines: list[str]) -> list[Tokens]:
    import ctranslate2
    from tokenizers import Tokenizer

    decode = trained.config.decode
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = not before(trained)
    first = [] if start(trained) == BOS else [trained.tokenizer.piece(start(trained))]
    results = translator.translate_batch(
        [encoding.tokens for encoding in tokenizer.encode_batch([*map(asking(trained), lines)])],
        target_prefix=[first] * len(lines) if first else None,
        beam_size=decode.beam,
        length_penalty=decode.length_penalty,
        min_decoding_length=0,
        max_decoding_length=trained.model.config.max_length - 1,
        max_batch_size=BATCH,
    )
    ids = tokenizer.get_vocab()
    return [[ids[piece] for piece in result.hypotheses[0]] for result in results]


def cause(exact: Transformer, trained: Trained, tool: str, source: Tokens, ours: Tokens, theirs: Tokens) -> str:
    """Why `theirs` is not what `leadline translate` writes, which without its own limit is `ours`."""
    if ours == theirs:
        return "limit"
    if search(exact, trained, source, "leadline") == ours and search(exact, trained, source, tool) == theirs:
        return "end"
    rounded = (search(exact, trained, source, tool, seed) for seed in range(1, 1 + TRIES))
    return "tie" if theirs in rounded else "unexplained"


@torch.inference_mode()
def search(model: Transformer, trained: Trained, source: Tokens, tool: str, seed: int = 0) -> Tokens:
    """Beam search as it reads, in float64, that ends as this tool's; `seed`: with rounding."""
    decode, longest = trained.config.decode, model.config.max_length
    beam, generator = decode.beam, torch.Generator().manual_seed(seed)
    step = Stepper(model, pack_one([np.array([*source, EOS])]), beam, longest)
    last, running = [start(trained)], [(0.0, list[int]())]
    finished: list[tuple[float, Tokens]] = []
    for length in range(1, longest + 1):
        spare = beam - len(running)  # places in the cache that nothing goes on from
        log_p = step(torch.tensor(last + last[:1] * spare))[: len(running)].log_softmax(-1)
        if seed:
            log_p += ROUNDING * torch.randn(log_p.shape, generator=generator, dtype=log_p.dtype)
        if length == longest:
            log_p[:, :EOS] = log_p[:, EOS + 1 :] = float("-inf")
            log_p[:, EOS] *= tool == "leadline"
        total = log_p + torch.tensor([score for score, _ in running], dtype=log_p.dtype)[:, None]
        best = total.flatten().topk(2 * beam)
        rows = [
            (score, place // log_p.shape[1], [*running[place // log_p.shape[1]][1], place % log_p.shape[1]])
            for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if score > float("-inf")
        ]
        cut = tool == "CTranslate2" and length == longest - 1  # whatever is there is taken as it is
        ended = [(score, tokens) for score, _, tokens in rows[:beam] if tokens[-1] == EOS or cut]
        finished += [(score / length**decode.length_penalty, tokens) for score, tokens in ended]
        rows = [] if cut else [row for row in rows if row[2][-1] != EOS][:beam]
        if len(finished) >= beam or not rows:
            break
        running, parents = [(score, tokens) for score, _, tokens in rows], [parent for _, parent, _ in rows]
        last = [tokens[-1] for _, tokens in running]
        step.reorder(torch.tensor([parents + [0] * (beam - len(parents))]))
    tokens = max(finished)[1]
    return tokens[:-1] if tokens[-1] == EOS else tokens


TOOLS: dict[str, tuple[str, Callable[[Trained, Path, list[str]], list[Tokens]]]] = {
    "transformers": ("huggingface", by_transformers),
    "CTranslate2": ("ctranslate2", by_ctranslate2),
}
