"""How far training has moved what a model computes: an on_step function that watches the output on one batch.

    drift       ‖F(x, θ_i) − F(x, θ_0)‖, a token's mean over √d: DeepNet's accumulated update (section 3)
    change      ‖F(x, θ_i) − F(x, θ_{i−1})‖ of the watched update alone: DeepNet's ‖ΔF‖
    norm_input  ‖what enters a norm of the residual stream‖ over √d, mean over the self-attention, cross-attention and
                feed-forward connections of each stack, in the update's own forward pass, dropout included: where it is
                large, the norm's Jacobian is small (Xiong, Lemma 3)
    second_matrix  ‖∂L/∂W‖ of the feed-forward layer's second matrix, layer by layer: Xiong's Figure 3

F is what leaves the last stack, x the first batch that was watched. Logged as watch/drift, watch/change,
watch/norm_input/STACK.KIND and watch/second_matrix/STACK.LAYER.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose.stream import Norms, Reader
from leadline.errors import UserError
from leadline.model.block import Block
from leadline.model.operations import PLAIN
from leadline.model.precision import autocast, evaluating


class Drift:
    """An on_step function that also reads the model: see leadline.training.events.Watcher."""

    def __init__(self, every: int = 1, precision: str = "fp32") -> None:
        if every < 1:
            raise UserError(f"Drift(every): every must be at least 1, not {every}")
        self.every, self.precision = every, precision
        self.model: Any = None
        self.batch: tuple[Any, ...] = ()
        self.start: Tensor | None = None
        self.before: Tensor | None = None
        self.reader = Reader()
        self.inputs: Norms = {}
        self.matrices: dict[str, float] = {}

    def __call__(self, event: object) -> None:
        """Events say nothing it needs."""

    def due(self, update: int) -> bool:
        return update == 1 or update % self.every == 0

    def begin(self, model: nn.Module) -> None:
        self.model = model
        self.inputs = self.reader.norm_inputs(model)
        if not self.batch:
            self.reader.before(model, self._keep)

    def _keep(self, model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not self.batch:
            self.batch = (args, keywords)

    def seen(self) -> None:
        self.reader.close()

    def gradients(self) -> None:
        """Before the optimizer's step: where it starts from."""
        self.matrices = {
            f"watch/second_matrix/{block.ffn_residual.site.stack}.{block.ffn_residual.site.layer}": float(
                block.ffn.contract.weight.grad.norm()
            )
            for block in self.model.modules()
            if isinstance(block, Block) and block.ffn.contract.weight.grad is not None
        }
        self.before = self._output()
        self.start = self.before if self.start is None else self.start

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        assert self.start is not None
        assert self.before is not None
        after = self._output()
        row = {"watch/drift": _size(after - self.start), "watch/change": _size(after - self.before)}
        root = math.sqrt(self.model.config.dim)
        row |= {f"watch/norm_input/{k}": float((torch.stack(v) / root).mean()) for k, v in self.inputs.items()}
        return row | self.matrices, ""

    @torch.no_grad()
    def _output(self) -> Tensor:
        model, (args, keywords) = self.model, self.batch
        with evaluating(model), model.using(PLAIN), autocast(next(model.parameters()).device, self.precision):
            return model(*args, **keywords).float()


def _size(x: Tensor) -> float:
    return float(x.norm(dim=-1).mean()) / math.sqrt(x.shape[-1])
