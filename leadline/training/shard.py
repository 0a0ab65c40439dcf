"""The slice of a flat vector of weights that one process updates, and what its optimizer keeps of it (ZeRO, stage 1).

Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054. Optimizers work element by element, so that what several
processes compute is what one would. A checkpoint has the state of all of them, weight by weight: their number leaves no
trace in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from leadline.config import OptimConfig
from leadline.kernels.cross_entropy import MULTIPLE
from leadline.training import optim
from leadline.world import World

ALIGN = 64  # elements: every weight begins at a multiple of 128 bytes in 16 bits, as matrix products like it


def lay_out(parameters: Iterable[nn.Parameter], begin: int = 0) -> tuple[dict[Tensor, slice], int]:
    """Where each lies in a flat vector from `begin` on, and where they end."""
    spans: dict[Tensor, slice] = {}
    for p in parameters:
        spans[p] = slice(begin, begin + p.numel())
        begin += -(-room(p) // ALIGN) * ALIGN
    return spans, begin


def room(p: Tensor) -> int:
    """Elements of a weight, filled up to rows that matrix products like; those behind it stay 0."""
    rows = p.shape[0] if p.ndim else 1
    return p.numel() // rows * (-(-rows // MULTIPLE) * MULTIPLE)


def padded(size: int, world: World) -> int:
    """With room for slices of equal size that begin as weights do."""
    return -(-size // (ALIGN * world.size)) * ALIGN * world.size


@dataclass(frozen=True)
class Piece:
    """What of a weight lies in the slice."""

    of: Tensor
    place: slice  # in the flat vector
    own: nn.Parameter  # what the optimizer updates: the same memory

    def cut(self, value: Tensor, span: slice) -> Tensor:
        """The same part of something of the weight's shape."""
        return value.flatten()[self.place.start - span.start : self.place.stop - span.start]


class Shard:
    """A slice of every region of the vector; by default that is all one."""

    def __init__(
        self, weights: Tensor, spans: Mapping[Tensor, slice], world: World, regions: Sequence[slice] = ()
    ) -> None:
        self.spans, self.world, self.regions = spans, world, regions or [slice(0, len(weights))]
        self.places: list[slice] = []
        self.pieces: list[Piece] = []
        for region in self.regions:
            each = (region.stop - region.start) // world.size
            place = slice(region.start + world.rank * each, region.start + (world.rank + 1) * each)
            self.places.append(place)
            for p, span in spans.items():
                begin, end = max(span.start, place.start), min(span.stop, place.stop)
                if begin < end:
                    self.pieces.append(Piece(p, slice(begin, end), nn.Parameter(weights[begin:end])))

    def optimizer(self, config: OptimConfig, spared: Set[nn.Parameter]) -> torch.optim.Optimizer:
        """Torch's, of the pieces; those of weights that are `spared` do not decay."""
        decayed = [piece.own for piece in self.pieces if piece.of not in spared]
        return optim.optimizer_of(config, decayed, [piece.own for piece in self.pieces if piece.of in spared])

    def gathered(self, optimizer: torch.optim.Optimizer) -> SimpleNamespace:
        """Something that has the optimizer's `state` of all weights, in the process that leads."""
        states = [optimizer.state[piece.own] for piece in self.pieces]
        tensors = [{key: value for key, value in state.items() if isinstance(value, Tensor)} for state in states]
        whole: dict[Tensor, dict[str, Tensor]] = {p: {} for p in self.spans}
        for key in self.world.gather(sorted(tensors[0]) if tensors else [])[0]:  # the first process has a piece
            if key == "step":
                for state in whole.values():
                    state[key] = tensors[0][key] if tensors else torch.zeros(())
                continue
            vector = torch.zeros(self.regions[-1].stop)
            for piece, state in zip(self.pieces, tensors, strict=True):
                vector[piece.place] = state[key].cpu()
            for region, place in zip(self.regions, self.places, strict=True):
                self.world.bring(vector[place], vector[region])
            for p, span in self.spans.items():
                whole[p][key] = vector[span].view(p.shape)
        return SimpleNamespace(state=whole)

    def restore(self, optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """From the state of all weights, as a checkpoint has it."""
        names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        for piece in self.pieces:
            state = optimizer.state[piece.own]
            for full_name, value in tensors.items():
                name, _, key = full_name.rpartition("/")
                if name != names[piece.of]:
                    continue
                mine = value if key == "step" else piece.cut(value, self.spans[piece.of])
                if key in state:
                    state[key].copy_(mine)
                else:
                    on_host = key == "step" and not optimizer.param_groups[0].get("fused")
                    state[key] = mine.clone().to("cpu" if on_host else piece.own.device)
