"""Adam and AdamW over one flat vector of weights, which also refresh the copy that matrix products read.

    m <- β₁m + (1-β₁)g      v <- β₂v + (1-β₂)g²      w <- w - lr·(m/(1-β₁ᵗ)) / (√(v/(1-β₂ᵗ)) + ε)

g is scaled by min(1, clip/norm) first. Weight decay applies up to element `decayed`: to g (Adam) or to w (AdamW).
Where nothing is clipped, nothing waits for the norm: the squares are added up on the same pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _adam(  # type: ignore[no-untyped-def]
    weights, gradients, first, second, copy, control, norm, squares, beta1, beta2, eps, decay, clip, decayed, size,
    CLIPS: tl.constexpr, DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, COPIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    rate, unbias1, unbias2 = tl.load(control), tl.load(control + 1), tl.load(control + 2)
    g = tl.load(gradients + at, mask=inside, other=0.0)
    w = tl.load(weights + at, mask=inside, other=0.0)
    if CLIPS:
        g *= tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0)
    else:
        tl.store(squares + tl.program_id(0), tl.sum(g * g, 0))
    if DECAYS:
        own_decay = tl.where(at < decayed, decay, 0.0)
        if DECOUPLED:
            w -= rate * own_decay * w
        else:
            g += own_decay * w
    m = beta1 * tl.load(first + at, mask=inside, other=0.0) + (1 - beta1) * g
    v = beta2 * tl.load(second + at, mask=inside, other=0.0) + (1 - beta2) * g * g
    w -= rate * unbias1 * m / (tl.sqrt(v) * unbias2 + eps)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    tl.store(weights + at, w, mask=inside)
    if COPIES:
        tl.store(copy + at, w.to(copy.dtype.element_ty), mask=inside)


def adam(
    weights: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    copy: Tensor | None,
    control: Tensor,
    norm: Tensor,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    decayed: int,
    clip: float,
    norm_is_known: bool = False,
    launch: bool = True,
) -> None:
    """`control` holds lr, 1/(1-β₁ᵗ) and 1/√(1-β₂ᵗ): on the device, so that a captured step reads new ones.

    Writes the norm of the gradients into `norm`, unless it is there already: that of more than these gradients.
    Without `launch` the kernel is only compiled.
    """
    size = weights.numel()
    squares = torch.empty(triton.cdiv(size, BLOCK), device=weights.device)
    if clip and not norm_is_known:
        norm.copy_(torch.linalg.vector_norm(gradients))
    _adam[(len(squares) if launch else 0,)](
        weights, gradients, first, second, copy, control, norm, squares, *betas, eps, weight_decay, clip, decayed, size,
        CLIPS=clip > 0, DECAYS=weight_decay > 0, DECOUPLED=decoupled, COPIES=copy is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    if not clip and not norm_is_known:
        norm.copy_(squares.sum().sqrt())


def reference(
    weights: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    copy: Tensor | None,
    control: Tensor,
    norm: Tensor,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    decayed: int,
    clip: float,
) -> None:
    rate, unbias1, unbias2 = control.unbind()
    norm.copy_(torch.linalg.vector_norm(gradients))
    g = gradients * (clip / (norm + 1e-6)).clamp(max=1.0) if clip else gradients.clone()
    if decoupled:
        weights[:decayed] -= rate * weight_decay * weights[:decayed]
    else:
        g[:decayed] += weight_decay * weights[:decayed]
    first.lerp_(g, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    weights -= rate * unbias1 * first / (second.sqrt() * unbias2 + eps)
    if copy is not None:
        copy.copy_(weights)
