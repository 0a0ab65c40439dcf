"""Do exported language models and encoders compute what ours do, in transformers? In fp32, part of `bench exports`.

A language model goes on with the first WORDS words of each line, always with the most likely token. Where the two
differ, the model in float64 says how far apart the two tokens are that they chose: within ROUNDING nats it is a tie.
Of an encoder the largest difference of any number that it gives for a line, and the largest number.

    python -m bench exports --run runs/lm --text prompts.txt [--sentences 250]
    python -m bench exports --run runs/bert --text test.en
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.measure import Row
from leadline.exchange.export import export
from leadline.kernels.pack import pack_one
from leadline.training.trained import Trained

WORDS, TOKENS = 8, 48
ROUNDING = 1e-5
BATCH = 50


def run(folder: Path, trained: Trained, text: Path, count: int) -> list[Row]:
    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as place:
        title, _ = export(folder, trained, Path(place) / "out")
        compared = continuations if trained.model.config.architecture == "decoder-only" else outputs
        return [{"contestant": f"transformers ({title})"} | compared(trained, Path(place) / "out", lines, count)]


def opened(folder: Path) -> tuple[Any, Any]:
    import transformers

    (name,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


@torch.inference_mode()
def continuations(trained: Trained, folder: Path, lines: list[str], count: int) -> Row:
    """Of `count` different prompts, those of equal length together: nothing is padded."""
    starts = [*dict.fromkeys(" ".join(line.split()[:WORDS]) for line in lines)]
    room = trained.model.config.max_length - TOKENS - 1
    lengths = map(len, trained.tokenizer.encode(starts, trained.config.data.source_lang))
    prompts = [prompt for prompt, length in zip(starts, lengths, strict=True) if length <= room][:count]
    generator = trained.generator(temperature=0.0, tokens=TOKENS)
    tokenizer, model = opened(folder)
    tokens = generator.tokens(prompts)
    encoded = tokenizer([tokenizer.bos_token + prompt for prompt in prompts])["input_ids"]
    ours: dict[int, list[int]] = {}
    theirs: dict[int, list[int]] = {}
    for some in together(tokens):
        ours |= dict(zip(some, generator._continued([tokens[i] for i in some], None), strict=True))
        batch = torch.tensor([encoded[i] for i in some])
        rows = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=TOKENS,
            pad_token_id=generator.end,
        )[:, batch.shape[1] :].tolist()
        theirs |= {i: row[: row.index(generator.end)] if generator.end in row else row
                   for i, row in zip(some, rows, strict=True)}  # fmt: skip
    exact = replace(trained, model=copy.deepcopy(trained.model).double())
    gaps = {i: gap(exact, tokens[i], ours[i], theirs[i]) for i in ours if ours[i] != theirs[i]}
    ties = sum(each <= ROUNDING for each in gaps.values())
    return {
        "sentences": len(prompts), "same_prompt": sum(map(list.__eq__, encoded, tokens)),
        "same": len(prompts) - len(gaps), "by_tie": ties, "by_unexplained": len(gaps) - ties,
        "written": sum(map(len, ours.values())), "gaps": gaps,
    }  # fmt: skip


def together(tokens: list[list[int]]) -> list[list[int]]:
    """Those of one length, at most BATCH at a time."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, own in enumerate(tokens):
        by_length[len(own)].append(i)
    return [some[begin : begin + BATCH] for some in by_length.values() for begin in range(0, len(some), BATCH)]


@torch.inference_mode()
def gap(exact: Trained, prompt: list[int], ours: list[int], theirs: list[int]) -> float:
    """Nats between the first two tokens that differ, where an end is one."""
    end = exact.tokenizer.end_of_text
    pairs = zip([*ours, end], [*theirs, end], strict=False)
    place, (one, other) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    log_p = next_token(exact, [*prompt, *ours[:place]])
    return abs(float(log_p[one] - log_p[other]))


@torch.inference_mode()
def next_token(exact: Trained, tokens: list[int]) -> Tensor:
    hidden = exact.model(pack_one([np.array(tokens)]))
    return exact.model.logits(hidden[-1:])[0].log_softmax(-1)


@torch.inference_mode()
def outputs(trained: Trained, folder: Path, lines: list[str], count: int) -> Row:
    """Line by line, without padding: logits of words or of classes, or hidden states where there is no head."""
    tokenizer, model = opened(folder)
    longest = trained.model.config.max_length
    chosen = [line for line in lines if len(tokenizer(line)["input_ids"]) <= longest][:count]
    numbers, apart, largest, same = 0, 0.0, 0.0, 0
    bare = trained.model.config.head == "linear" and not trained.model.config.classes
    for line in chosen:
        encoded = trained.encode([line])
        (ours,) = trained.hidden(encoded) if bare else trained.logits(encoded)
        theirs = model(**tokenizer(line, return_tensors="pt"))[0][0]
        assert theirs.shape == ours.shape, f"{tuple(theirs.shape)} is not {tuple(ours.shape)}"
        numbers += ours.numel()
        apart, largest = max(apart, float((ours - theirs).abs().max())), max(largest, float(ours.abs().max()))
        same += bool((ours.argmax(-1) == theirs.argmax(-1)).all())
    return {"sentences": len(chosen), "same": same, "numbers": numbers, "apart": apart, "largest_number": largest}
