"""The only place a weight gets a value: N(0, std²), with the std of a base initialisation times the placement's gain.

    base          q, k, v        out     FFN                        biases
    xavier        Xavier         Xavier  Xavier                     0
    fairseq_2019  Xavier / √2    Xavier  Xavier                     0
    fairseq_2020  Xavier / √2    Xavier  variance 1/(3·inputs)      q, k, v and FFN: variance 1/(3·inputs); out: 0

Xavier's variance is 2/(inputs + outputs) of a role's own matrix, also where several roles share one product. `xavier`
is what the papers say (Xiong et al. 2020, section 3.2; Wang et al. 2022, Figure 2). `fairseq_2019` is what fairseq did
until October 2019, and torch.nn.MultiheadAttention still does: q, k and v are one matrix of three times the outputs.
`fairseq_2020` is what fairseq has done since March 2020: the same on purpose, and nn.Linear's default elsewhere.
DeepNet's Post-LN started so, as far as its Figure 4 tells (docs/results.md, "How DeepNet's Post-LN started").

A placement whose gains are defined on a base names it; any other starts from fairseq_2019, from which Post-LN trains
as in the papers. `model.init` chooses another base; the first line of the training then says that it is a variant.

    embeddings  N(0, 1/D), times the gain for "embed"
    gate        of a gated FFN: as its first matrix; placements that scale whole layers scale it, the others do not
    heads       Xavier: they are no part of the residual stream, so no placement scales them
    layer-norm gains 1; gains of a placement are for matrices, never for biases
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.model.block import Block, site_of
from leadline.model.layers import Embedding, Linear, OutputBias, VocabularyHead
from leadline.placement import Base, Role, Site, find

USUAL: Base = "fairseq_2019"


def base_of(config: ModelConfig) -> Base:
    """The base initialisation that `model.init` means."""
    return (find(config.placement).base or USUAL) if config.init == "auto" else config.init


def start_of(config: ModelConfig) -> str:
    """The placement and its base, for people; where its constants are defined on another base, that too."""
    own, base = find(config.placement).base, base_of(config)
    variant = f" (a variant: its constants are defined on {own})" if own and own != base else ""
    return f"{config.placement} started from {base}{variant}"


@dataclass(frozen=True)
class Weight:
    """A matrix or a bias of one role, and the standard deviation it starts with."""

    role: Role
    site: Site
    std: float
    tensor: Tensor


def base_std(role: Role, shape: tuple[int, ...], base: Base) -> float:
    if role == "embed":
        return shape[-1] ** -0.5
    outputs, inputs = shape
    if base == "fairseq_2020" and role in ("ffn_in", "ffn_gate", "ffn_out"):
        return (3 * inputs) ** -0.5
    smaller = base != "xavier" and role in ("q", "k", "v")
    return (2 / (outputs + inputs)) ** 0.5 * (0.5**0.5 if smaller else 1.0)


def bias_std(role: Role, inputs: int, base: Base) -> float:
    return (3 * inputs) ** -0.5 if base == "fairseq_2020" and role not in ("out", "head") else 0.0


def weights(model: nn.Module, config: ModelConfig) -> Iterator[Weight]:
    """Every matrix of the model with the std its placement asks for, in a fixed order; then every bias but zeros."""
    placement, base = find(config.placement), base_of(config)
    biases: list[Weight] = []
    for module in model.modules():
        if isinstance(module, Embedding):
            site = foot(config)
            std = base_std("embed", module.weight.shape, base) * placement.gain("embed", site)
            yield Weight("embed", site, std, module.weight)
        elif isinstance(module, Linear) and module.roles == ("head",):
            yield Weight("head", foot(config), base_std("head", module.weight.shape, base), module.weight)
        elif isinstance(module, Block):
            for connection, sublayer in module.connections():
                site = connection.site
                for linear in sublayer.modules():
                    if isinstance(linear, Linear):
                        for role, matrix, bias in linear.parts():
                            std = base_std(role, matrix.shape, base) * connection.gain(role, site)
                            yield Weight(role, site, std, matrix)
                            if bias is not None:
                                biases.append(Weight(role, site, bias_std(role, linear.in_features, base), bias))
    yield from (bias for bias in biases if bias.std)


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
        if isinstance(module, Linear | OutputBias | VocabularyHead) and module.bias is not None:
            module.bias.zero_()

    def draw(number: int, weight: Weight) -> None:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)
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
        base = base_of(config)
        embed = base_std("embed", (1, config.dim), base) * find(config.placement).gain("embed", site)
        # Of self-attention and cross-attention the former.
        matrices = reversed([weight for weight in weights(block, config) if weight.tensor.ndim == 2])
        stds = {f"std_{weight.role}": weight.std for weight in matrices} | {"std_embed": embed}
        facts: dict[str, float | str] = {"placement": config.placement, "stack": stack, "layers": layers, "init": base}
        rows.append({**facts, **block.ffn_residual.describe(), **stds})
    return rows
