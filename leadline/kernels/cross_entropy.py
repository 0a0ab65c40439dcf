"""Label-smoothed cross entropy as sums, so that packed and accumulated batches can be divided by their count.

smoothed = Σ_t (1 - ε)·(-log p(y_t)) + ε·mean_v(-log p(v))         (Szegedy et al. 2016; ε/V on every word)
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits_TV: Tensor, labels_T: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """(smoothed sum, plain sum) over the positions whose label is not `ignore`, in float32."""
    log_p_TV = logits_TV.float().log_softmax(-1)
    plain = F.nll_loss(log_p_TV, labels_T, ignore_index=ignore, reduction="sum")
    if not smoothing:
        return plain, plain.detach()
    uniform = -log_p_TV.mean(-1).masked_fill(labels_T == ignore, 0).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain.detach()
