"""Which weights move the output in a first step, and how that grows with depth: what DeepNet's theorem covers and not.

With α = (3M)^¼ and β = (12M)^-¼, M layers of a decoder: a matrix moves the output by Δθ·β/α, its bias by Δθ/α,
and a norm's gain or bias by Δθ, since it is on the stream itself. Where Δθ is the rate times a gradient of that size
(SGD), the sums over 3M sublayers go as M^0, M^½ and M; where Δθ is the rate (Adam's first step), as M^½, M^¾ and M.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_simplified import slope
from torch import nn

from leadline.kernels.pack import pack_one
from leadline.model import Transformer

PREDICTED = {
    "sgd": {"matrices": 0.0, "biases": 0.5, "norm gains": 1.0, "norm biases": 1.0},
    "adam": {"matrices": 0.5, "biases": 0.75, "norm gains": 1.0, "norm biases": 1.0},
}
RATES = {"sgd": 1e-3, "adam": 1e-6}  # so small that the output changes in proportion


def kinds(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    found: dict[str, list[nn.Parameter]] = {name: [] for name in [*PREDICTED["sgd"], "embeddings"]}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if "Norm" in type(module).__name__:
                kind = "norm gains" if name == "weight" else "norm biases"
            elif isinstance(module, nn.Embedding):
                kind = "embeddings"
            else:
                kind = "biases" if parameter.ndim == 1 else "matrices"
            found[kind].append(parameter)
    return found | {"all": list(model.parameters())}


def changes(placement: str, layers: int, seed: int) -> dict[tuple[str, str], float]:
    """‖ΔF‖/√d in one step of an optimizer that moves only one kind of weights; d 64, FFN 128, random text."""
    draw = np.random.default_rng(seed)
    shape = {"encoder_layers": layers, "decoder_layers": layers, "dim": 64, "ffn_dim": 128, "heads": 2}
    model = Transformer(500, seed=seed, placement=placement, init="xavier", max_length=16, dropout=0.0, **shape)
    source, target = (pack_one([draw.integers(4, 500, 16) for _ in range(8)]) for _ in range(2))
    hidden = model(source, target)
    F.cross_entropy(model.logits(hidden), torch.from_numpy(draw.integers(4, 500, 128))).backward()
    found = {}
    with torch.no_grad():
        for optimizer, rate in RATES.items():
            for kind, parameters in kinds(model).items():
                before = [parameter.clone() for parameter in parameters]
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter -= rate * (parameter.grad if optimizer == "sgd" else parameter.grad.sign())
                change = (model(source, target) - hidden).norm(dim=-1).mean() / 64**0.5
                found[optimizer, kind] = change.item()
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)
    return found


def growth(placement: str, depths: list[int], seeds: int) -> dict[tuple[str, str], float]:
    """The slope of ‖ΔF‖ against depth in log-log, of means over seeds."""
    by_depth = [[changes(placement, layers, seed) for seed in range(seeds)] for layers in depths]
    means = [{key: statistics.fmean(run[key] for run in runs) for key in runs[0]} for runs in by_depth]
    return {key: slope(depths, [mean[key] for mean in means]) for key in means[0]}


def test_deepnorm_bounds_what_its_matrices_do_in_a_step_of_sgd_and_nothing_else() -> None:
    found = growth("deepnorm", [6, 24], 2)
    for optimizer, predicted in PREDICTED.items():
        assert {kind: found[optimizer, kind] for kind in predicted} == pytest.approx(predicted, abs=0.15)


def test_with_post_ln_the_matrices_move_the_output_more_in_deeper_models() -> None:
    found = growth("post_ln", [6, 24], 1)
    assert min(found["sgd", "matrices"], found["adam", "matrices"]) > 0.5
