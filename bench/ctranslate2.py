"""Beam search on a CPU: Leadline beside CTranslate2 with the same weights, as leadline export writes them.

With --run FOLDER --text FILE --reference FILE a trained translator, from text to text, in fp32 and with int8 matrices.
Without, a random model in fp32: CTranslate2 takes one length for all sentences of a call, so sentences come in groups
of one length; the lengths and how many there are of each follow TED talks. Needs `pip install ctranslate2`. On a
machine that is not idle set OMP_WAIT_POLICY=passive, or torch's threads wait for each other by spinning and the result
is noise.

    python -m bench ctranslate2 [--sentences 100]
    python -m bench ctranslate2 --run runs/ted --text test.de --reference test.en --sentences 1000
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from bench.measure import Row, Setting, Work, compete
from bench.workload import BOS, EOS, SIZES, Size
from leadline.config import DecodeConfig
from leadline.errors import UserError
from leadline.exchange import ctranslate2 as exported
from leadline.exchange import translators
from leadline.exchange.export import export
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.model.decode import beam_search
from leadline.tasks.metrics import corpus_scores
from leadline.training.trained import Trained, load

__all__ = ["SIZES", "run"]

BEAM = 5
# Output length and share of the sentences: nine parts of TED's test set, each at its middle.
LENGTHS = {5: 0.1, 9: 0.15, 13: 0.15, 18: 0.15, 24: 0.15, 32: 0.15, 45: 0.1, 70: 0.04, 120: 0.01}


def random_model(size: Size) -> Transformer:
    """Pre-LN; </s> is so unlikely that it comes only where nothing else may."""
    sizes = {"encoder_layers": size.layers, "decoder_layers": size.layers, "dim": size.dim, "ffn_dim": size.ffn_dim}
    model = Transformer(
        size.vocab, seed=0, placement="pre_ln", heads=size.heads, embeddings="separate", dropout=0.0, **sizes
    )
    with torch.no_grad():
        model.decoder.final.bias[0] = 10  # type: ignore[index, operator]
        model.output.weight[:, 0] = 0
        model.output.weight[EOS, 0] = -3
    return model.eval()


def sentences(size: Size, count: int) -> list[list[np.ndarray]]:
    """Groups of sentences of one length, with </s>."""
    rng = np.random.default_rng(0)
    return [
        [np.append(rng.integers(4, size.vocab, length - 1), EOS) for _ in range(round(share * count))]
        for length, share in LENGTHS.items()
        if round(share * count)
    ]


def by_leadline(
    model: Transformer, groups: list[list[np.ndarray]], batch_tokens: int, beam: int = BEAM
) -> list[list[int]]:
    translations: list[list[int]] = []
    for group in groups:
        length = len(group[0])
        many = max(1, batch_tokens // length)
        for begin in range(0, len(group), many):
            batch = group[begin : begin + many]
            limits = torch.full((len(batch),), length)
            hypotheses = beam_search(model, pack_one(batch), limits, BOS, EOS, beam, 1.0, best=1)
            translations += [best.tokens for (best,) in hypotheses]
    return translations


def by_ctranslate2(
    translator: Any, groups: list[list[np.ndarray]], batch_tokens: int, beam: int = BEAM
) -> list[list[int]]:
    translations: list[list[int]] = []
    for group in groups:
        length = len(group[0])
        results = translator.translate_batch(
            [[str(token) for token in sentence] for sentence in group],
            beam_size=beam,
            max_batch_size=batch_tokens,
            batch_type="tokens",
            min_decoding_length=length - 1,
            max_decoding_length=length - 1,
        )
        translations += [[int(token) for token in result.hypotheses[0]] for result in results]
    return translations


def converted(model: Transformer, threads: int) -> Any:
    """The same model, run by CTranslate2."""
    import ctranslate2

    spec = exported.specification(translators.as_plain(model))
    names = [str(token) for token in range(model.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = str(BOS), str(EOS), "3"
    spec.config.decoder_start_token = str(BOS)
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        return ctranslate2.Translator(
            folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )


def run(
    size: Size, setting: Setting, peak: float, arguments: argparse.Namespace
) -> list[Row] | tuple[list[Row], list[str]]:
    """Each has the batch its authors chose: theirs is 2048 tokens in their examples."""
    if arguments.run:
        return of_run(arguments.run, arguments.text, arguments.reference, arguments.sentences, setting)
    model, groups = random_model(size), sentences(size, arguments.sentences or 100)
    theirs, ours = converted(model, torch.get_num_threads()), DecodeConfig().batch_tokens
    # With several beams they may differ: at the last position we count the </s> that must come, they do not.
    if by_leadline(model, groups[:2], ours, beam=1) != by_ctranslate2(theirs, groups[:2], 2048, beam=1):
        raise RuntimeError("the two run different models: they differ without a beam")
    ways: dict[str, Callable[[], Any]] = {
        "leadline": lambda: by_leadline(model, groups, ours),
        "CTranslate2": lambda: by_ctranslate2(theirs, groups, 2048),
    }
    count = sum(map(len, groups))
    return compete({name: partial(Work, way, count, "sentences") for name, way in ways.items()}, setting)


def of_run(run: Path, text: Path, reference: Path | None, count: int, setting: Setting) -> tuple[list[Row], list[str]]:
    """A trained translator, from text to text; BLEU where there are references; how busy the machine was."""
    trained, before = load(run, device="cpu"), os.getloadavg()[0]
    lines = text.read_text(encoding="utf-8").splitlines()[: count or None]
    expected = reference.read_text(encoding="utf-8").splitlines()[: len(lines)] if reference else []
    if reference and len(expected) != len(lines):
        raise UserError(f"{reference} has {len(expected)} lines, and {text} {len(lines)}: give a translation of each")
    outputs: dict[str, list[str]] = {}

    def ours() -> None:
        outputs["leadline"] = trained.translator().translate_tokenized(lines)

    ways: dict[str, Callable[[], None]] = {"leadline": ours}
    with tempfile.TemporaryDirectory() as folder:
        for quantization in exported.QUANTIZATIONS:
            name, out = f"CTranslate2, {quantization}", Path(folder) / quantization
            export(run, trained, out, "ctranslate2", quantization)
            ways[name] = _by_card(trained, out, lines, outputs, name)
        rows = compete({name: partial(Work, way, len(lines), "sentences") for name, way in ways.items()}, setting)
    for row in rows:
        if "seconds" in row:
            row["best_sentences_per_second"] = len(lines) / min(row["seconds"])
        if written := outputs.get(row["contestant"]):
            row["same_output"] = sum(map(str.__eq__, written, outputs.get("leadline", written))) / len(lines)
            if expected:
                row |= corpus_scores(written, expected, trained.tokenizer, trained.tokenizer.config.target_lang)
    busy = f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} threads"
    signatures = {row["bleu_signature"] for row in rows if "bleu_signature" in row}
    return rows, [busy, *(f"BLEU: {signature}" for signature in signatures)]


def _by_card(
    trained: Trained, folder: Path, lines: list[str], outputs: dict[str, list[str]], name: str
) -> Callable[[], None]:
    """As the model card says, in batches of the size of their examples."""
    import ctranslate2

    threads, decode = torch.get_num_threads(), trained.config.decode
    translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation(trained.model.config.max_length)  # CTranslate2 raises at what is longer
    number: Any = tokenizer.token_to_id

    def run() -> None:
        results = translator.translate_batch(
            [encoding.tokens for encoding in tokenizer.encode_batch(lines)],
            beam_size=decode.beam,
            length_penalty=decode.length_penalty,
            min_decoding_length=0,
            max_decoding_length=trained.model.config.max_length - 1,
            max_batch_size=2048,
            batch_type="tokens",
        )
        written = tokenizer.decode_batch([[number(piece) for piece in result.hypotheses[0]] for result in results])
        outputs[name] = [" ".join(line.split()) for line in written]

    return run
