"""The only place a weight gets a value.

    matrices    N(0, 2/(inputs + outputs)) (Xavier), times the placement's gain for the weight's role
    embeddings  N(0, 1/D), times the gain for "embed"
    heads       Xavier: they are no part of the residual stream, so no placement scales them
    biases 0, layer-norm gains 1 (Xiong et al. 2020, section 3.2)

A role's std is Xavier's for its own matrix, also where several roles share one product (q, k and v). torch.nn takes
those three for one matrix, of three times the outputs, which makes them 1/√2 of that; fairseq multiplies each by it:
`model.attention_init = "packed"`. The papers' equations do not, but Post-LN trains far better so (docs/results.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.errors import UserError
from leadline.model.block import Block, site_of
from leadline.model.layers import Embedding, Linear, VocabularyHead
from leadline.placement import Role, Site, find


@dataclass(frozen=True)
class Weight:
    """One matrix of one role, and the standard deviation it starts with."""

    role: Role
    site: Site
    std: float
    tensor: Tensor


def base_std(role: Role, shape: tuple[int, ...], packed: bool = False) -> float:
    if role == "embed":
        return shape[-1] ** -0.5
    outputs = shape[0] * (3 if packed and role in ("q", "k", "v") else 1)
    return (2 / (outputs + shape[1])) ** 0.5


def weights(model: nn.Module, config: ModelConfig) -> Iterator[Weight]:
    """Every matrix of the model with the std its placement asks for, in a fixed order."""
    placement = find(config.placement)
    packed = config.attention_init == "packed"
    for module in model.modules():
        if isinstance(module, Embedding):
            site = foot(config)
            std = base_std("embed", module.weight.shape) * placement.gain("embed", site)
            yield Weight("embed", site, std, module.weight)
        elif isinstance(module, Linear) and module.roles == ("head",):
            yield Weight("head", foot(config), base_std("head", module.weight.shape), module.weight)
        elif isinstance(module, Block):
            for connection, sublayer in module.connections():
                for linear in sublayer.modules():
                    if isinstance(linear, Linear):
                        for role, part in linear.parts():
                            gain = connection.gain(role, connection.site)
                            if packed and role == "v" and gain != 1:
                                raise UserError(
                                    f"{config.placement} says itself how small the values of attention start, so "
                                    f"model.attention_init cannot be packed: --set model.attention_init=xavier"
                                )
                            yield Weight(role, connection.site, base_std(role, part.shape, packed) * gain, part)


def foot(config: ModelConfig) -> Site:
    """Where the embeddings enter: the first residual connection of the model."""
    stack = "encoder" if config.encoder_layers else "decoder"
    return site_of(config, stack, 0)  # type: ignore[arg-type]


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Drawn on the CPU whatever the model's device, so that a seed gives the same model everywhere.

    Each matrix has its own generator, so that a thousand layers are drawn by all cores.
    """
    for module in model.modules():
        if isinstance(module, Linear | VocabularyHead):
            module.bias.zero_()

    def draw(number: int, weight: Weight) -> None:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        with torch.no_grad():  # each thread has its own mode
            weight.tensor.copy_(torch.randn(weight.tensor.shape, generator=generator).mul_(weight.std))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for done in [threads.submit(draw, *job) for job in enumerate(weights(model, config))]:
            done.result()


def table(config: ModelConfig) -> list[dict[str, float | str]]:
    """A row a stack: the placement's constants and the std of every role in its last layer, from the code itself."""
    rows: list[dict[str, float | str]] = []
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if not layers:
            continue
        with torch.device("meta"):  # no memory: only shapes matter
            block = Block(config, stack, layers - 1)  # type: ignore[arg-type]
        site = foot(config)
        embed = base_std("embed", (1, config.dim)) * find(config.placement).gain("embed", site)
        found = reversed(list(weights(block, config)))  # of self-attention and cross-attention the former
        stds = {f"std_{weight.role}": weight.std for weight in found} | {"std_embed": embed}
        rows.append(
            {"placement": config.placement, "stack": stack, "layers": layers, **block.ffn_residual.describe(), **stds}
        )
    return rows
