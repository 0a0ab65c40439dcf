"""The Transformer that Xiong et al. 2020 prove things about, to measure what they prove (section 3.3).

    attention   W_Q = W_K = 0, so uniform: the mean over positions of x W_V, the same for every position
    FFN         ReLU(x W_1) W_2
    matrices    d×d, entries N(0, 1/d) (Xavier), no biases
    LN          without gain, bias and ε
    loss        cross-entropy of the last states times an embedding matrix N(0, 1/d), with random labels

Its inputs are standard Gaussian. Shapes: N positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.diagnose.record import Record

PlacementName = Literal["post_ln", "pre_ln"]

# Measured here besides those of leadline.diagnose.record.
QUANTITIES = {
    "squared_norm": "squared norm over d, mean over positions: what the lemmas speak of",
    "stream_grad_norm": "Frobenius norm of the gradient that arrives at the stream, all positions together",
}


class Simplified(nn.Module):
    """Called with x_ND, returns logits_NV. The paper's names: x enters a layer, x5 is its Post-LN sum after the FFN."""

    def __init__(self, placement: PlacementName, layers: int, dim: int, vocab: int, generator: torch.Generator) -> None:
        super().__init__()
        if placement not in ("post_ln", "pre_ln"):
            raise ValueError(f"placement is {placement!r}, but the choices are post_ln and pre_ln")
        self.placement = placement

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, dim, generator=generator) * dim**-0.5)

        self.v = nn.ParameterList(matrix(dim) for _ in range(layers))
        self.w1 = nn.ParameterList(matrix(dim) for _ in range(layers))
        self.w2 = nn.ParameterList(matrix(dim) for _ in range(layers))
        self.embed = matrix(vocab)

    def forward(self, x_ND: Tensor, seen: list[tuple[str, int, Tensor]] | None = None) -> Tensor:
        """`seen` gets (name, layer, tensor) of the states x and x5 and of the input of every LN."""
        seen = [] if seen is None else seen

        def note(name: str, layer: int, state_ND: Tensor) -> Tensor:
            seen.append((name, layer, state_ND))
            return state_ND

        def norm(name: str, layer: int, state_ND: Tensor) -> Tensor:
            return layer_norm(note(name, layer, state_ND))

        x = x_ND
        layers = zip(self.v, self.w1, self.w2, strict=True)
        for layer, (v, w1, w2) in enumerate(layers):
            note("x", layer, x)
            if self.placement == "post_ln":
                x = norm("attn_norm", layer, x + x.mean(0) @ v)
                x = note("x5", layer, x + F.relu(x @ w1) @ w2)
                x = norm("ffn_norm", layer, x)
            else:
                x = x + norm("attn_norm", layer, x).mean(0) @ v
                x = x + F.relu(norm("ffn_norm", layer, x) @ w1) @ w2
        note("x", len(self.v), x)
        if self.placement == "pre_ln":
            x = norm("final_norm", len(self.v), x)
        return x @ self.embed.T


def layer_norm(x_ND: Tensor) -> Tensor:
    return F.layer_norm(x_ND, x_ND.shape[-1:], eps=0.0)


def jacobian_norm(x_ND: Tensor) -> Tensor:
    """Spectral norm of the Jacobian of LN at each row, by power iteration through autograd: no closed form."""
    x_ND = x_ND.detach().requires_grad_()
    out_ND = layer_norm(x_ND)
    # The second step has converged: the singular values are two zeros and d−2 equal ones.
    vector_ND = torch.linspace(-1, 1, x_ND.shape[-1], dtype=x_ND.dtype).cos().expand_as(x_ND)
    for _ in range(2):
        vector_ND = F.normalize(vector_ND, dim=-1)
        (vector_ND,) = torch.autograd.grad(out_ND, x_ND, vector_ND, retain_graph=True)
    return vector_ND.norm(dim=-1)


def measure(
    placement: PlacementName, layers: int, dim: int, seed: int, positions: int = 32, vocab: int = 1000
) -> list[Record]:
    """One model, one sequence, one loss. `position` is the layer, from 0; x at L has passed all L layers."""
    generator = torch.Generator().manual_seed(seed)
    model = Simplified(placement, layers, dim, vocab, generator)
    x_ND = torch.randn(positions, dim, generator=generator).requires_grad_()
    labels_N = torch.randint(vocab, (positions,), generator=generator)

    seen: list[tuple[str, int, Tensor]] = []
    loss = F.cross_entropy(model(x_ND, seen), labels_N)
    stream = [state_ND for name, _, state_ND in seen if name == "x"]
    gradients = torch.autograd.grad(loss, [*stream, *model.w2])

    found: list[tuple[str, str, int, Tensor]] = []
    for name, layer, state_ND in seen:
        norm_N = state_ND.detach().norm(dim=-1)
        if name.endswith("_norm"):
            found.append(("norm_input", name, layer, norm_N.mean() / dim**0.5))
            found.append(("norm_jacobian", name, layer, jacobian_norm(state_ND).mean()))
        else:
            found.append(("squared_norm", name, layer, norm_N.square().mean() / dim))
            found.append(("hidden_norm", name, layer, norm_N.mean()))
    for layer, gradient_ND in enumerate(gradients[: layers + 1]):
        found.append(("stream_grad_norm", "x", layer, gradient_ND.norm()))
    for layer, gradient_DD in enumerate(gradients[layers + 1 :]):
        found.append(("grad_norm_of_mean", "w2", layer, gradient_DD.norm()))
    return [Record(quantity, float(value), where, layer, seed=seed) for quantity, where, layer, value in found]
