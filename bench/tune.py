"""The fused kernels by themselves, cut into tiles and programs in other ways than leadline cuts them. CUDA only.

A row is a kernel and a way to cut it; "as it is" is leadline's. `--only norm` takes one operation alone. What a program
holds, in registers and shared memory, can be had without a GPU (tests/kernels/ahead.py); how long it takes cannot.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bench.measure import Row, Setting, wait
from leadline.errors import UserError
from leadline.kernels.pack import pack_one

PASSES = 10


@dataclass(frozen=True)
class Size:
    name: str
    sequences: int
    length: int
    dim: int
    ffn_dim: int
    heads: int
    vocab: int
    labels: int  # tokens whose logits there are
    activation: str
    causal: bool
    dropout: float


SIZES = {
    "iwslt14": Size("iwslt14", 160, 26, 512, 2048, 8, 10_000, 4096, "relu", True, 0.3),
    "bert-base": Size("bert-base", 64, 512, 768, 3072, 12, 30_522, 4915, "gelu", False, 0.1),
    "gpt2-124m": Size("gpt2-124m", 32, 1024, 768, 3072, 12, 50_257, 32_768, "gelu_tanh", True, 0.0),
    "llama-124m": Size("llama-124m", 32, 1024, 768, 2048, 12, 50_257, 32_768, "swiglu", True, 0.0),
    "tiny": Size("tiny", 2, 8, 32, 64, 2, 50, 16, "gelu", True, 0.1),
}


def cuts() -> dict[tuple[str, str], list[tuple[Any, dict[str, Any]]]]:
    """Operation and kernel -> where leadline says how it is cut, and what it could say instead."""
    from leadline.kernels.fused import attention, cross_entropy, linear, residual

    def says(place: Any, name: str, values: Iterable[Any]) -> list[tuple[Any, dict[str, Any]]]:
        return [(place, {name: lambda *given, value=value: value}) for value in values]

    forward = [(64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 3)]
    backward = [(64, 32, 4, 1), (64, 32, 4, 2), (32, 64, 4, 1), (64, 64, 4, 1), (128, 32, 8, 1)]
    norm = [(1, 4), (1, 8), (2, 4), (2, 8)]
    norm_backward = [(1, 4, 528, 2), (1, 4, 528, 3), (1, 4, 1056, 1), (1, 4, 1056, 3), (1, 8, 528, 1), (1, 8, 528, 2)]
    norm_backward += [(1, 8, 528, 3), (1, 8, 1056, 1), (1, 8, 1056, 2), (2, 4, 396, 1)]
    tiles = [(64, 64, 8), (32, 64, 4), (32, 128, 4), (64, 32, 4)]
    logits = [(4096, 8, 2), (2048, 8, 1), (2048, 8, 2), (2048, 4, 2), (8192, 16, 1), (8192, 16, 2)]
    return {
        ("attention", "_attend"): says(attention, "_forward_tiles", (attention.Tiles(*cut) for cut in forward)),
        ("attention", "_attend_backward"): says(
            attention, "_backward_tiles", (attention.Tiles(*cut) for cut in backward)
        ),
        ("norm", "_add_norm"): says(residual, "_forward_launch", (residual.Launch(*cut) for cut in norm)),
        ("norm", "_add_norm_backward"): says(
            residual, "_backward_launch", (residual.Launch(*cut) for cut in norm_backward)
        ),
        ("activation", "_activate"): [
            (linear, dict(zip(("TOKENS", "COLUMNS", "WARPS"), cut, strict=True))) for cut in tiles
        ],
        ("cross entropy", "_cross_entropy"): [
            (cross_entropy, dict(zip(("COLUMNS", "WARPS", "STAGES"), cut, strict=True))) for cut in logits
        ],
    }


@contextmanager
def patched(place: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(place, name) for name in values}
    try:
        for name, value in values.items():
            setattr(place, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(place, name, value)


def microseconds(run: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """By kernel of ours, a launch."""
    from torch.profiler import ProfilerActivity, profile

    run()
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PASSES):
            run()
        wait(device)
    events = [event for event in seen.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    return {event.key: event.self_device_time_total / event.count for event in events if event.count}


def operations(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], list[Tensor]]]:
    """Forward and backward of each, on random numbers."""
    from leadline.kernels.fused import attention, cross_entropy, linear, residual
    from leadline.kernels.fused.runtime import Runtime

    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=device))
    tokens, D = size.sequences * size.length, size.dim
    pack = pack_one([np.zeros(size.length, dtype=np.int64)] * size.sequences).to(device)

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype).requires_grad_()

    def with_gradient(parameter: nn.Parameter) -> nn.Parameter:
        parameter.grad = torch.zeros_like(parameter)
        return parameter

    norm = nn.LayerNorm(D, device=device)
    for parameter in norm.parameters():
        with_gradient(parameter)
    bias = with_gradient(nn.Parameter(torch.zeros(D, device=device)))
    qkv, x, y = random(tokens, 3 * D), random(tokens, D, dtype=torch.float32), random(tokens, D)
    rows = size.ffn_dim * (2 if size.activation == "swiglu" else 1)
    weights = [with_gradient(nn.Parameter(torch.randn(*shape, device=device))) for shape in ((rows, D), (rows,))]
    layer = SimpleNamespace(weight=weights[0], bias=weights[1], compute=tuple(w.detach().to(dtype) for w in weights))
    words = cross_entropy.filled(torch.randn(size.vocab, D, device=device).to(dtype))
    onto = cross_entropy.Projection(
        size.vocab, SimpleNamespace(grad=torch.zeros_like(words, dtype=torch.float32)), words
    )
    labels = torch.randint(0, size.vocab, (size.labels,), device=device)
    heads, drops = attention.Heads(size.heads, size.heads, D // size.heads), runtime.dropout(size.dropout, 1)
    ones = torch.ones(1, device=device)

    def with_gradients(outs: Sequence[Tensor], inputs: Sequence[Tensor], *learned: Tensor) -> list[Tensor]:
        """The results, the gradients of the inputs, and those of the parameters, whose kernels add to what is there."""
        gradients = torch.autograd.grad(outs, inputs, [torch.ones_like(out) for out in outs])
        own = [each.grad.clone() for each in learned if each.grad is not None]
        for each in learned:
            each.grad = torch.zeros_like(each)
        return [*outs, *gradients, *own]

    def attend() -> list[Tensor]:
        out = attention.attention(qkv, None, pack, pack, heads, size.causal, runtime, dropout=drops)
        return with_gradients([out], [qkv])

    def join() -> list[Tensor]:
        joined = residual.add_norm(x, y, norm, runtime, y_bias=bias, dropout=drops)
        return with_gradients([joined.s, cast(Tensor, joined.h)], [x, y], norm.weight, norm.bias, bias)

    def expand() -> list[Tensor]:
        return with_gradients([linear.expand(y, layer, size.activation, drops, runtime)], [y], *weights)

    def lose() -> list[Tensor]:
        some = y[: size.labels]
        losses = cross_entropy.linear_cross_entropy(some, onto, labels, 0.1, -1, ones, runtime)
        return [losses[1], *with_gradients(losses[:1], [y])]

    return {"attention": attend, "norm": join, "activation": expand, "cross entropy": lose}


def ways() -> Iterator[tuple[str, str, str, AbstractContextManager[None]]]:
    """Operation, its kernel, how it is cut, and a context in which it is cut so."""
    for (operation, kernel), places in cuts().items():
        for place, values in places:
            told = [value() if callable(value) else value for value in values.values()]
            cut = told[0] if len(told) == 1 else tuple(told)
            yield operation, kernel, str(tuple(cut)), patched(place, **values)


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    if setting.device.type != "cuda":
        raise UserError("tune times kernels of a GPU: give --device cuda")
    dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
    todo, rows = operations(size, setting.device, dtype), list[Row]()

    def measure(operation: str, kernel: str, cut: str) -> None:
        for name, time in microseconds(todo[operation], setting.device).items():
            if name.startswith("_") and (not kernel or name in (kernel, f"{kernel}_backward")):
                rows.append({"contestant": f"{name} {cut}", "microseconds": time})
        setting.keep(rows)

    wanted = [name for name in todo if not setting.only or any(word in name for word in setting.only)]
    for operation in wanted:
        measure(operation, "", "as it is")
    for operation, kernel, cut, context in (way for way in ways() if way[0] in wanted):
        with context:
            try:
                measure(operation, kernel, cut)
            except Exception as error:  # too large for this chip
                print(f"{kernel} {cut}: {type(error).__name__}: {str(error)[:80]}", flush=True)
    return sorted(rows, key=lambda row: (row["contestant"].split()[0], row["microseconds"]))
