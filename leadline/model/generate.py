"""A decoder alone goes on with prompts, a token at a time, with a key/value cache.

Shapes: N prompts, V vocabulary, L tokens of a prompt with its continuation at most, P tokens that all prompts have
before their last. Those P are read at once. From there on all rows are at the same position: one that is still in its
prompt is fed the next token of that, the others what was chosen for them.

On a GPU with Triton a step is captured once and replayed, with the keys and values of leadline.model.slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.config import GenerateConfig
from leadline.kernels.attention import for_each_head
from leadline.model import slots
from leadline.model.layers import Ancestry, Cache
from leadline.model.slots import SlotCache
from leadline.model.transformer import Transformer

EVERY = 8  # steps that a GPU takes between two looks at what it has written

OnTokens = Callable[[list[list[int]]], None]  # the new tokens of each row, as they come


def choose(logits_NV: Tensor, uniform_N: Tensor, how: GenerateConfig) -> Tensor:
    """The next token of each row: the most likely, or one drawn with a number from 0 to 1.

    The tokens lie side by side in that interval, each as wide as it is probable; where some are left out, the most
    likely first. Of the `top_k` most likely, only those count that begin below `top_p`.
    """
    if how.temperature == 0:
        return logits_NV.argmax(-1)
    logits_NV, vocabulary = logits_NV.float(), logits_NV.shape[1]
    # 0 and less: what overflows has no probability. A temperature that single precision does not have is the least.
    below_NV = logits_NV - logits_NV.amax(-1, keepdim=True)
    logits_NV = below_NV / max(how.temperature, torch.finfo(torch.float32).tiny)
    if not how.top_k and how.top_p == 1:  # nothing need be sorted
        return _drawn(logits_NV.softmax(-1), uniform_N)[:, 0]
    values, tokens = logits_NV.topk(min(how.top_k or vocabulary, vocabulary))
    p = values.softmax(-1)
    return tokens.gather(1, _drawn(p * (p.cumsum(-1) - p < how.top_p), uniform_N))[:, 0]


def _drawn(p: Tensor, uniform_N: Tensor) -> Tensor:
    """[N, 1] in whose part of the interval each number falls; rounding never leads to one of probability 0."""
    ends = p.cumsum(-1)
    whole = ends[:, -1:]
    return (ends <= uniform_N[:, None] * whole).sum(-1, keepdim=True).minimum((ends < whole).sum(-1, keepdim=True))


@torch.inference_mode()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    uniform: Tensor,
    end: int,
    how: GenerateConfig,
    on_tokens: OnTokens = lambda tokens: None,
) -> list[list[int]]:
    """What follows each prompt, at most how.tokens and as many as the model has positions for, without its `end`.

    `uniform` [N, how.tokens] are the numbers to draw with. No prompt may be longer than the model's max_length.
    """
    device = next(model.parameters()).device
    rows = Rows(model, prompts, uniform.to(device), how)
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    if slots.usable(device):
        from leadline.model.fused import to_infer

        with to_infer(model, dtype):
            return rows.run(slots.captured(rows.in_slots(dtype)), EVERY, rows.read + 1, end, on_tokens)
    return rows.run(rows.plainly(dtype), 1, rows.read, end, on_tokens)


@dataclass
class Reading:
    """In place of a cache while the prompts are read: keeps keys and values of all their tokens."""

    keys: Tensor  # [N, P, G, d] of the cache
    values: Tensor

    def attend(self, qkv_TE: Tensor) -> Tensor:
        """[N·P, E] -> [N·P, H, d]"""
        N, P, groups, width = self.keys.shape
        heads = qkv_TE.view(N, P, -1, width)
        q, k, v = heads.split([heads.shape[2] - 2 * groups, groups, groups], 2)
        self.keys.copy_(k)
        self.values.copy_(v)
        q, k, v = (for_each_head(x, q.shape[2], 2).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)


class Rows:
    """Prompts, what was written behind them, and where the work stands; all of it on the device."""

    def __init__(
        self, model: Transformer, prompts: Sequence[Sequence[int]], uniform: Tensor, how: GenerateConfig
    ) -> None:
        self.model, self.uniform, self.how = model, uniform, how
        self.begins = [len(prompt) for prompt in prompts]
        self.ends = [min(begin + how.tokens, model.config.max_length + 1) for begin in self.begins]
        self.longest, self.read = max(self.ends), min(self.begins) - 1
        given = torch.zeros(len(prompts), self.longest, dtype=torch.long)
        for row, prompt in zip(given, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        self.given = given.to(uniform.device)  # [N, L]
        self.lengths = torch.tensor(self.begins, device=uniform.device)  # [N] of the prompts
        self.positions = torch.zeros_like(self.lengths)  # [N] of the token to be fed, the same for all

    def step(self, layers: Sequence[tuple[Any, Any, None]]) -> None:
        """Feeds a token of each row, and writes the one that follows where the prompt has none."""
        here, lengths = self.positions[:, None], self.lengths[:, None]
        logits_NV = self.model.step(self.given.gather(1, here)[:, 0], self.positions, layers)
        drawn = self.uniform.gather(1, (here + 1 - lengths).clamp(0, self.uniform.shape[1] - 1))
        chosen = choose(logits_NV, drawn[:, 0], self.how)[:, None]
        known = self.given.gather(1, here + 1)
        self.given.scatter_(1, here + 1, torch.where(here + 1 < lengths, known, chosen))
        self.positions += 1

    def plainly(self, dtype: torch.dtype) -> Callable[[], None]:
        """A step on torch's operations."""
        config, ancestry = self.model.config, Ancestry(self.given.new_zeros(len(self.given), 1, self.longest))
        layers = []
        for block in self.model.decoder.blocks:
            keys = self._empty(config.groups, self.longest, config.head_width, dtype=dtype)
            layers.append((block, Cache(keys, torch.empty_like(keys), ancestry), None))
        self._read([(block, cache.keys.transpose(1, 2), cache.values.transpose(1, 2)) for block, cache, _ in layers])
        ancestry.length = self.read

        def step() -> None:
            ancestry.grow()
            self.step(layers)

        return step

    def in_slots(self, dtype: torch.dtype) -> Callable[[], None]:
        """A step that can be captured."""
        config, own = self.model.config, torch.arange(len(self.given), dtype=torch.int32, device=self.given.device)
        table = own[:, None].expand(-1, self.longest).contiguous()  # nobody changes places
        state: Any = SimpleNamespace(table=table, positions=self.positions)
        layers = []
        for block in self.model.decoder.blocks:
            keys = self._empty(self.longest, config.groups, config.head_width, dtype=dtype)
            layers.append((block, SlotCache(keys, torch.empty_like(keys), state), None))
        self._read([(block, cache.keys, cache.values) for block, cache, _ in layers])
        return lambda: self.step(layers)

    def _read(self, layers: Sequence[tuple[Any, Tensor, Tensor]]) -> None:
        """The tokens that all prompts have before their last; a block comes with its keys and values [N, L, G, d]."""
        if self.read:
            tokens, positions = self.given[:, : self.read], torch.arange(self.read, device=self.given.device)
            first = [(block, Reading(*(x[:, : self.read] for x in kept)), None) for block, *kept in layers]
            self.model.advance(tokens.flatten(), positions.repeat(len(tokens)), first)
            self.positions += self.read

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(len(self.given), *shape, dtype=dtype, device=self.given.device)

    def run(self, step: Callable[[], None], every: int, done: int, end: int, on_tokens: OnTokens) -> list[list[int]]:
        """Steps until all rows have ended, `done` of which are done; the rows are looked at after `every` few."""
        written: list[list[int]] = [[] for _ in self.begins]
        going = set(range(len(written)))
        while going:
            steps = min(every, self.longest - 1 - done)
            for _ in range(steps):
                step()
            seen, done = done + 1, done + steps
            first = min(seen, *(self.begins[row] + len(written[row]) for row in going))
            columns = self.given[:, first : done + 1].tolist()
            news: list[list[int]] = [[] for _ in written]
            for row in sorted(going):
                known = self.begins[row] + len(written[row])
                news[row] = columns[row][known - first : self.ends[row] - first]
                ended = end in news[row]
                if ended:
                    news[row] = news[row][: news[row].index(end)]
                written[row] += news[row]
                if ended or self.begins[row] + len(written[row]) == self.ends[row]:
                    going.remove(row)
            on_tokens(news)
        return written
