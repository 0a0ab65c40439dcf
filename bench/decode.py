"""Beam search over the same sentences with the same weights: Leadline beside Hugging Face's generate.

Without --run the model is random and Post-LN, and </s> is so unlikely that it comes only where nothing else may: at
source length + 3 tokens, for both alike, so both write the same number of tokens. With --run FOLDER --text FILE a
trained model translates real sentences and ends them itself; both have the translator's own limit on the length.

Hugging Face gets sentences sorted by length, weights in bf16 where that is the precision, and stops a sentence when
`beam` hypotheses have finished, as ours does. Each batch size is a contestant; the best one counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from bench import convert
from bench.measure import Contestants, Row, Setting, Work, compete
from bench.ours import config_of
from bench.workload import EOS, PAD, SIZES, Size
from leadline.config import Config
from leadline.kernels import attention
from leadline.model import Transformer
from leadline.model.precision import DTYPES
from leadline.tasks import translator
from leadline.training import trained

__all__ = ["SIZES", "run"]

BEAM = 5
MARGIN = 3  # tokens a random model writes beyond the length of its source
BATCHES = {"cuda": (128, 256, 512), "cpu": (16, 64)}
SENTENCES = {"cuda": 6750, "cpu": 64}
Outputs = dict[str, list[list[int]]]


class Problem(NamedTuple):
    make_model: Callable[[], Transformer]
    config: Config
    sources: list[list[int]]  # without </s>
    margin: int

    def limit(self, source: list[int]) -> int:
        """Tokens of a translation, </s> included: the translator's rule."""
        return min(self.config.model.max_length, int(len(source) * self.config.decode.max_ratio) + self.margin)


def random_problem(size: Size, setting: Setting, count: int) -> Problem:
    """Lengths as in TED talks. The weights of the output are three times larger, so that beams differ."""
    config = config_of(size, setting, "eager").set(model={"placement": "post_ln"}, decode={"max_ratio": 1.0})
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(2.95, 0.6, count)), 1, config.model.max_length - MARGIN - 1).astype(int)

    def model() -> Transformer:
        model = Transformer(size.vocab, seed=0, placement="post_ln", **_sizes(size))
        last: Any = model.decoder.blocks[-1]
        with torch.no_grad():
            model.output.weight *= 3
            last.ffn_residual.norm.bias[0] = 10
            model.output.weight[:, 0] = 0
            model.output.weight[EOS, 0] = -5
        return model

    return Problem(model, config, [rng.integers(4, size.vocab, n).tolist() for n in lengths], MARGIN)


def _sizes(size: Size) -> dict[str, Any]:
    return {
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "dim": size.dim,
        "ffn_dim": size.ffn_dim,
        "heads": size.heads,
    }


def trained_problem(run: Path, text: Path, setting: Setting, count: int) -> Problem:
    run_ = trained.load(run, device="cpu")
    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()][: count or None]
    sources = run_.tokenizer.encode(lines, run_.tokenizer.config.source_lang)
    config = run_.config.set(train={"precision": setting.precision})
    fitting = [tokens for tokens in sources if 0 < len(tokens) < config.model.max_length]
    return Problem(lambda: trained.load(run, device="cpu").model, config, fitting, translator.MARGIN)


def leadline(problem: Problem, setting: Setting, outputs: Outputs) -> Work:
    model = problem.make_model().to(setting.device).eval()
    model.use_attention(attention.choose(setting.device, setting.precision, model.config.head_width, 0.0))
    config = problem.config.set(decode={"beam": BEAM}, train={"precision": setting.precision})
    search = translator.Translator(model, None, config)._search  # type: ignore[arg-type]

    def run() -> None:
        with mock.patch.object(translator, "MARGIN", problem.margin):
            outputs["leadline"] = search(problem.sources, lambda done: None)

    return Work(run, len(problem.sources), "sentences")


class Limits:
    """</s> and nothing else where a sentence has reached its limit: what generate has for whole batches only."""

    def __init__(self, limits: list[int], device: torch.device) -> None:
        self.limits = torch.tensor(limits, device=device).repeat_interleave(BEAM)

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        at_limit = tokens.shape[1] >= self.limits  # <s> is among the tokens
        others = torch.arange(scores.shape[1], device=scores.device) != EOS
        return scores.masked_fill(at_limit[:, None] & others, float("-inf"))


def huggingface(problem: Problem, setting: Setting, outputs: Outputs, name: str, batch: int) -> Work:
    from transformers import LogitsProcessorList

    device = setting.device
    model = convert.translator(problem.make_model()).to(device, DTYPES[setting.precision])
    order = sorted(range(len(problem.sources)), key=lambda i: len(problem.sources[i]))

    @torch.inference_mode()
    def run() -> None:
        translations: list[list[int]] = [[] for _ in order]
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch]
            ids = [torch.tensor([*problem.sources[i], EOS]) for i in rows]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD).to(device)
            lengths = torch.tensor([len(row) for row in ids], device=device)
            limits = [problem.limit(problem.sources[i]) for i in rows]
            tokens = model.generate(
                input_ids=padded,
                attention_mask=(torch.arange(padded.shape[1], device=device) < lengths[:, None]).long(),
                num_beams=BEAM,
                do_sample=False,
                early_stopping=True,
                length_penalty=problem.config.decode.length_penalty,
                max_new_tokens=max(limits),
                logits_processor=LogitsProcessorList([Limits(limits, device)]),
            ).tolist()
            for i, row in zip(rows, tokens, strict=True):
                words = row[1:]
                translations[i] = words[: words.index(EOS)] if EOS in words else words
        outputs[name] = translations

    return Work(run, len(order), "sentences")


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    kind = setting.device.type
    if arguments.run:
        problem = trained_problem(arguments.run, arguments.text, setting, arguments.sentences)
    else:
        problem = random_problem(size, setting, arguments.sentences or SENTENCES[kind])
    outputs: Outputs = {}
    contestants: Contestants = {"leadline": partial(leadline, problem, setting, outputs)}
    for batch in BATCHES[kind]:
        name = f"Hugging Face generate, batches of {batch}"
        contestants[name] = partial(huggingface, problem, setting, outputs, name, batch)
    rows = compete(contestants, setting)
    for row in rows:
        translations = outputs.get(row["contestant"])
        if "seconds" in row and translations:
            row["output_tokens"] = sum(len(tokens) + 1 for tokens in translations)
            row["output_tokens_per_second"] = row["output_tokens"] * row["sentences_per_second"] / len(problem.sources)
            if "leadline" in outputs:
                same = [a == b for a, b in zip(translations, outputs["leadline"], strict=True)]
                row["same_output"] = sum(same) / len(same)
    return rows
