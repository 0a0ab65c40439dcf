"""Going on with prompts: the cache changes nothing, a batch is each alone, and what is drawn has its probability."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from leadline.config import GenerateConfig
from leadline.kernels.pack import pack_one
from leadline.model import Transformer, generate, slots
from leadline.placement import PLACEMENTS

VOCAB, END, LONGEST = 13, 0, 24
PROMPTS = [[END, 4, 5, 3, 6], [END], [END, 7, 7, 1, 2, 9, 3, 3, 11], [END, 12, 1]]
GREEDY = GenerateConfig(tokens=10, temperature=0.0)
DRAWN = GenerateConfig(tokens=10, temperature=0.8, top_k=9, top_p=0.95)


def tiny(placement: str = "pre_ln", **options: Any) -> Transformer:
    sizes = {"encoder_layers": 0, "decoder_layers": 2, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": LONGEST}
    model = Transformer(VOCAB, placement=placement, **sizes | {"embeddings": "separate"} | options)
    with torch.no_grad():
        model.output.weight *= 3  # peaked distributions: tokens differ clearly
    return model.eval()


def uniform(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 10, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def uncached(model: Transformer, prompt: list[int], numbers: torch.Tensor, how: GenerateConfig) -> list[int]:
    """The whole text again for every token."""
    tokens = list(prompt)
    for number in numbers[: how.tokens]:
        logits = model.logits(model(pack_one([np.array(tokens)], LONGEST)))[-1:]
        tokens.append(int(generate.choose(logits, number[None], how)))
        if tokens[-1] == END:
            return tokens[len(prompt) : -1]
        if len(tokens) > LONGEST:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("how", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("placement", [n for n, kind in PLACEMENTS.items() if "decoder-only" in kind.architectures])
def test_cached_is_uncached_and_a_batch_is_each_alone(placement: str, how: GenerateConfig) -> None:
    model = tiny(placement)
    prompts = [*PROMPTS, [END, *[5] * (LONGEST - 1)], [END, *[5] * (LONGEST - 4)]]  # room for one token, and for four
    numbers = uniform(len(prompts))
    found = generate.generate(model, prompts, numbers, END, how)
    assert found == [uncached(model, prompt, row, how) for prompt, row in zip(prompts, numbers, strict=True)]
    alone = [generate.generate(model, [p], numbers[i : i + 1], END, how)[0] for i, p in enumerate(prompts)]
    assert found == alone
    assert any(found)


MODERN = {"activation": "swiglu", "positions": "rotary", "kv_heads": 1, "qk_norm": "head", "bias": False}


def test_a_modern_block_is_gone_on_with_in_the_same_way() -> None:
    model, numbers = tiny(**MODERN), uniform(len(PROMPTS))
    expected = [uncached(model, prompt, row, DRAWN) for prompt, row in zip(PROMPTS, numbers, strict=True)]
    assert generate.generate(model, PROMPTS, numbers, END, DRAWN) == expected
    assert generate.generate(model, PROMPTS[2:], numbers[2:], END, DRAWN) == expected[2:]  # two tokens read at once


IN_SLOTS = pytest.mark.parametrize(
    ("how", "options", "prompts"), [(GREEDY, {}, PROMPTS), (DRAWN, MODERN, PROMPTS[2:])], ids=["greedy", "drawn"]
)


@IN_SLOTS
@pytest.mark.usefixtures("interpreted")
def test_in_slots_is_the_same(
    how: GenerateConfig, options: dict, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but for the capture: several steps between two looks, one of them done while it is captured."""
    model, numbers = tiny(**options), uniform(len(prompts))
    expected = generate.generate(model, prompts, numbers, END, how)

    def captured(step: Any) -> Any:
        step()
        return step

    monkeypatch.setattr(slots, "usable", lambda device: True)
    monkeypatch.setattr(slots, "captured", captured)
    pieces: list[list[int]] = [[] for _ in prompts]

    def on_tokens(new: list[list[int]]) -> None:
        for piece, tokens in zip(pieces, new, strict=True):
            piece.extend(tokens)

    assert generate.generate(model, prompts, numbers, END, how, on_tokens) == expected == pieces


@IN_SLOTS
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_on_a_gpu_is_the_same(
    how: GenerateConfig, options: dict, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, numbers = tiny(**options).cuda(), uniform(len(prompts))
    found = [generate.generate(model, prompts, numbers, END, how) for _ in range(2)]
    alone = [generate.generate(model, [p], numbers[i : i + 1], END, how)[0] for i, p in enumerate(prompts)]
    monkeypatch.setattr(slots, "usable", lambda device: False)
    assert found == 2 * [generate.generate(model, prompts, numbers, END, how)]
    assert found[0] == alone


def test_a_captured_step_keeps_what_it_was_captured_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and values: a graph knows their addresses and does not hold them."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    for name in ("current_stream", "current_device"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(slots, "_aside", MagicMock())
    keys = torch.zeros(3)
    replay, kept = slots.captured(keys.sum), weakref.ref(keys)
    del keys
    assert kept() is not None
    replay()


def test_tokens_come_one_by_one() -> None:
    seen: list[list[int]] = []
    (whole,) = generate.generate(tiny(), [[END, 4, 5]], uniform(1), END, GREEDY, lambda new: seen.append(new[0]))
    assert [token for new in seen for token in new] == whole
    assert all(len(new) <= 1 for new in seen)


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-45, 1e-300])
@pytest.mark.parametrize("how", [{}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_the_lowest_temperature_is_greedy(how: dict[str, Any], temperature: float) -> None:
    logits = torch.tensor([[40.0, 80.0, -3.0], [-50.0, -20.0, -90.0]])
    for number in (0.0, 0.5, 1.0):
        chosen = generate.choose(logits, torch.full((2,), number), GenerateConfig(temperature=temperature, **how))
        assert chosen.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({}, 5), ({"top_k": 2}, 2), ({"top_p": 0.7}, 2), ({"top_p": 0.5}, 1), ({"top_k": 3, "top_p": 0.99}, 3),
        ({"temperature": 0.5}, 5), ({"top_p": 1e-9}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_drawn_has_its_probability(how: dict[str, Any], allowed: int) -> None:
    p = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
    config = GenerateConfig(**how)
    expected = p ** (1 / config.temperature)
    expected[expected.argsort(descending=True, stable=True)[allowed:]] = 0
    expected /= expected.sum()
    numbers = (torch.arange(20_000) + 0.5) / 20_000
    found = generate.choose(p.log().expand(len(numbers), -1), numbers, config).bincount(minlength=5) / len(numbers)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    edges = generate.choose(p.log().expand(2, -1), torch.tensor([0.0, 1.0]), config)
    assert (expected[edges] > 0).all()
