"""The flat vectors of a captured step, of which several processes each update a slice.

By NCCL the collectives are captured with the update; between hosts they happen before and after it. What only matrix
products read goes round as the 16-bit copies that they read: of its full precision each process then has its own slice,
and `settle` brings the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leadline.training.flat import Flat
from leadline.training.shard import Shard
from leadline.world import World


class Shared:
    def __init__(self, flat: Flat, world: World) -> None:
        self.flat, self.world = flat, world
        self.shard = Shard(flat.weights, flat.spans, world, flat.regions)
        self.begun = False

    def begin(self) -> None:
        """Equal weights, the first time. Each collective is done once: none is set up while a graph is captured."""
        if not self.begun:
            self.begun = True
            self.world.broadcast(self.flat.weights, 0)
            self.flat.refresh()
            self.reduce(torch.zeros(2, device=self.flat.weights.device))
            self.collect()

    def reduce(self, numbers: Tensor) -> None:
        """Gradients: the own slice becomes the sum over all. Numbers: the loss becomes that of all, then their norm."""
        for region in self.flat.regions:
            self.world.add_up_slice(self.flat.gradients[region])
        norms = [torch.linalg.vector_norm(self.flat.gradients[place]) for place in self.shard.places]
        numbers[1] = torch.stack(norms).square().sum()
        self.world.add(numbers)
        numbers[1:].sqrt_()

    def collect(self) -> None:
        """After the own slice was updated: all of what the next forward pass reads."""
        flat, (products, others) = self.flat, self.flat.regions
        self.world.collect(flat.weights[others])
        if flat.copy is None:
            self.world.collect(flat.weights[products])
        else:
            flat.copy[others] = flat.weights[others]
            self.world.collect(flat.copy[products])

    def settle(self) -> None:
        if self.flat.copy is not None:
            self.world.collect(self.flat.weights[self.flat.regions[0]])

    def refresh_own(self) -> None:
        """The copies of the own slice, after anything but FlatAdam has updated its weights."""
        for place in self.shard.places if self.flat.copy is not None else ():
            self.flat.copy[place] = self.flat.weights[place]  # type: ignore[index]
