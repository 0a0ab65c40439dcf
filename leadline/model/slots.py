"""Beam search on a GPU: a step is captured once and replayed, and everything it decides stays on the device.

Each of B slots works on one sentence. When that is done, the step itself puts the next one in its place, at position
0 while its neighbours are further, so that no slot waits for the longest of a batch. The host replays the step and
looks now and then, without making the device wait, whether all sentences are done.

The kernels and the state are in leadline.kernels.fused.search; leadline.model.decode has the same search without
them, which this one must equal. Shapes as there.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leadline.kernels.pack import Pack

if TYPE_CHECKING:
    from leadline.kernels.fused.search import State
    from leadline.model.transformer import Transformer

SLOTS = 768  # enough for matrix products to be efficient; more, and the last sentences run beside empty slots
STEPS = 4  # between two looks at whether all is done
SHARE = 0.5  # of the free memory that keys and values may take


@dataclass
class SlotCache:
    """Keys and values of one decoder layer, in the cells of leadline.kernels.fused.search."""

    keys: Tensor  # [N, longest, G, d]
    values: Tensor
    state: State

    def attend(self, qkv_NE: Tensor) -> Tensor:
        from leadline.kernels.fused.search import self_attention

        return self_attention(qkv_NE, self.keys, self.values, self.state.table, self.state.positions)


@dataclass
class SlotMemory:
    """Keys and values of the encoder's output, packed as they are."""

    kv_SE: Tensor  # [S, 2·G·d]
    width: int  # of a head
    state: State

    def attend(self, q_ND: Tensor) -> Tensor:
        from leadline.kernels.fused.search import cross_attention

        return cross_attention(q_ND, self.kv_SE, self.state.sentence, self.state.starts, self.width)


def usable(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def search(
    model: Transformer,
    source: Pack,
    max_lengths: Tensor,
    bos: int,
    eos: int,
    beam: int,
    length_penalty: float,
    slots: int = SLOTS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Finished hypotheses of each sentence in no order: scores [M, 2K] (-inf: none), lengths [M, 2K], tokens."""
    from leadline.kernels.fused.search import State, advance
    from leadline.model.fused import to_infer

    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32
    with to_infer(model, dtype):
        longest = int(max_lengths.max())
        memory_SD = model.encode(source)
        blocks = model.decoder.blocks
        kvs = [block.cross.read(memory_SD) for block in blocks]  # type: ignore[union-attr, operator]
        config = model.config
        shape = (beam, longest, config.groups, config.head_width)  # of a slot
        slots = min(slots, len(max_lengths), _slots_in_memory(kvs[0], 2 * len(blocks) * math.prod(shape)))
        state = State.begin(source.starts, max_lengths, slots, beam, longest, bos, eos, length_penalty)
        layers: list[Any] = []
        for block, kv in zip(blocks, kvs, strict=True):
            keys = kv.new_empty(slots * beam, *shape[1:])
            layers.append(
                (block, SlotCache(keys, torch.empty_like(keys), state), SlotMemory(kv, config.head_width, state))
            )

        def step() -> None:
            advance(state, model.step(state.tokens, state.positions, layers))

        _repeat(captured(step) if memory_SD.is_cuda else step, state.closed, len(max_lengths))
        return state.done_scores, state.done_lengths, state.done_tokens


def _slots_in_memory(like: Tensor, numbers: int) -> int:
    """How many slots of so many numbers fit; at least one is tried."""
    if not like.is_cuda:
        return len(like)
    torch.cuda.empty_cache()  # what is still reserved then may belong to a captured step
    free, _ = torch.cuda.mem_get_info(like.device)
    return max(1, int(free * SHARE) // (numbers * like.element_size()))


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Runs `step` once, and returns what runs everything it launched again, without the host's share of it."""
    graph, main, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), _aside(torch.cuda.current_device())
    aside.wait_stream(main)
    with torch.cuda.stream(aside):
        step()  # the first time compiles kernels and makes what is made once, which cannot be captured
        graph.capture_begin(capture_error_mode="thread_local")  # other threads may go on using the device
        try:
            step()
        finally:
            graph.capture_end()
    main.wait_stream(aside)

    def replay(of: Callable[[], None] = step) -> None:  # which holds the memory that the graph reads
        graph.replay()

    return replay


@functools.cache
def _aside(device: int) -> torch.cuda.Stream:
    """One for all captures: matrix products keep a workspace for every stream they have run on."""
    return torch.cuda.Stream(device)


def _repeat(step: Callable[[], None], closed: Tensor, count: int) -> None:
    """Until `closed`, on the device, is `count`. The device always has the next steps queued while the host waits."""
    cuda = closed.is_cuda
    seen = [torch.zeros(1, dtype=closed.dtype, pin_memory=cuda) for _ in range(2)]
    copied: list[torch.cuda.Event | None] = [None, None]
    now = 0
    while True:
        for _ in range(STEPS):
            step()
        seen[now].copy_(closed, non_blocking=True)
        if cuda:
            copied[now] = torch.cuda.Event()
            copied[now].record()  # type: ignore[union-attr]
        now = 1 - now
        if (event := copied[now]) is not None:
            event.synchronize()
        if int(seen[now]) >= count:
            return
