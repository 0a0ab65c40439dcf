"""Label-smoothed cross entropy as sums, so that packed and accumulated batches can be divided by their count.

smoothed = Σ_t (1 - ε)·(-log p(y_t)) + ε·mean_v(-log p(v))         (Szegedy et al. 2016; ε/V on every word)

Its gradient by the logits is p(v) - (1 - ε)·[v = y] - ε/V, which takes half the passes over [tokens, vocabulary] that
autograd makes of the reference.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 128
MULTIPLE = 8  # of words: matrix products of other sizes take several times as long on a GPU


def reference(logits_TV: Tensor, labels_T: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """(smoothed sum, plain sum) over the positions whose label is not `ignore`, in float32."""
    log_p_TV = logits_TV.float().log_softmax(-1)
    plain = F.nll_loss(log_p_TV, labels_T, ignore_index=ignore, reduction="sum")
    if not smoothing:
        return plain, plain.detach()
    uniform = -log_p_TV.mean(-1).masked_fill(labels_T == ignore, 0).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain.detach()


def _log_mass(logits_TV: Tensor) -> Tensor:
    """log Σ_v exp(logit). On a CPU some rows at a time, whose exponentials stay in its cache."""
    if logits_TV.device.type != "cpu" or len(logits_TV) <= ROWS:
        return logits_TV.logsumexp(-1)
    return torch.cat([some.logsumexp(-1) for some in logits_TV.split(ROWS)])


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, labels_T: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
        logits_TV = logits_TV.float()
        log_mass_T = _log_mass(logits_TV)
        counts_T = labels_T != ignore
        labels_T = labels_T.where(counts_T, 0)
        plain_T = log_mass_T - logits_TV.gather(1, labels_T[:, None])[:, 0]
        smoothed_T = plain_T.lerp(log_mass_T - logits_TV.mean(-1), smoothing) if smoothing else plain_T
        ctx.save_for_backward(logits_TV, log_mass_T, labels_T, counts_T)
        ctx.smoothing = smoothing
        sums = [each.masked_fill(~counts_T, 0).sum() for each in (smoothed_T, plain_T)]
        ctx.mark_non_differentiable(sums[1])
        return sums[0], sums[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        logits_TV, log_mass_T, labels_T, counts_T = ctx.saved_tensors
        d_logits_TV = torch.sub(logits_TV, log_mass_T[:, None]).exp_()
        if ctx.smoothing:
            d_logits_TV.sub_(ctx.smoothing / logits_TV.shape[1])
        d_logits_TV.scatter_add_(1, labels_T[:, None], torch.full_like(log_mass_T, ctx.smoothing - 1)[:, None])
        return d_logits_TV.mul_((gradient * counts_T)[:, None]), None, None, None


def cross_entropy(logits_TV: Tensor, labels_T: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """The same as the reference; the gradient is that of the smoothed sum."""
    return _CrossEntropy.apply(logits_TV, labels_T, smoothing, ignore)
