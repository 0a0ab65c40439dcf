"""Whether DeepNorm's α and β are those that the depth asks for: its mistakes as (name, where, message). No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from leadline.diagnose import theory
from leadline.diagnose.connection import Connection, by_stack, layers_of

TOLERANCE = 0.01  # of α
SCATTER = 0.2  # of a weight's std, as small matrices scatter
KNOWN_STARTS = (1, 0.5**0.5, 3**-0.5)  # × Xavier: its own, of three matrices drawn as one, torch's for a linear layer

Fault = tuple[str, str, str]


@dataclass(frozen=True)
class Size:
    """Of one weight: its shape and how widely its values spread."""

    shape: tuple[int, ...]
    std: float
    bias_std: float | None = None  # of the bias beside it, if there is one
    parts: tuple[float, ...] = ()  # the spread of queries, keys and values that share one matrix

    @property
    def to_xavier(self) -> float:
        return self.std / (2 / (self.shape[0] + self.shape[1])) ** 0.5

    @property
    def bias_to_default(self) -> float | None:
        """Against PyTorch's own initialisation of a bias, U(±1/√inputs)."""
        return None if self.bias_std is None else self.bias_std * (3 * self.shape[1]) ** 0.5


def expected(connections: Sequence[Connection]) -> dict[str, tuple[float, float]]:
    """α and β of each stack in which DeepNorm was found, from the number of its layers."""
    layers = layers_of(connections)
    decoders = {c.stack for c in connections if c.sublayer == "cross-attention"}
    encoders = [s for s in layers if s not in decoders]
    result: dict[str, tuple[float, float]] = {}
    for stack in dict.fromkeys(c.stack for c in connections if c.placement == "DeepNorm"):
        if decoders and encoders:
            constants = theory.deepnet_constants(layers[encoders[0]], layers[min(decoders)])
            side = "decoder" if stack in decoders else "encoder"
        else:
            constants, side = theory.deepnet_constants(layers[stack], 0), "encoder"
        result[stack] = (constants[f"{side}_alpha"], constants[f"{side}_beta"])
    return result


def wrong_alpha(connections: Sequence[Connection]) -> Iterator[Fault]:
    for stack, (alpha, _) in expected(connections).items():
        every = by_stack(connections)[stack]
        members, admin = [c for c in every if c.placement == "DeepNorm"], theory.admin_constant(len(every))
        wrong = [c for c in members if min(_error(c.skip_scale, known) for known in (alpha, admin)) > TOLERANCE]
        if wrong:
            given = wrong[0].skip_scale
            yield (
                "deepnorm_constants",
                wrong[0].where if len(wrong) < len(members) else stack,
                f"α is {given:.4g}, but DeepNorm at this depth asks for {alpha:.4g} "
                f"({given:.4g} would suit about {layers_of(connections)[stack] * (given / alpha) ** 4:.0f} layers)",
            )


def wrong_weights(connections: Sequence[Connection], sizes: Mapping[str, Size]) -> Iterator[Fault]:
    """β multiplies Xavier's std of the out and feed-forward matrices, and nothing else."""
    constants = expected(connections)
    for c in connections:
        alpha, beta = constants.get(c.stack, (0.0, 0.0))
        if c.placement != "DeepNorm" or _error(c.skip_scale, alpha) > TOLERANCE:
            continue  # the latter is said already
        yield from _attention_weights(c, sizes, beta)
        scaled = c.weights if c.sublayer == "feed-forward" else (*_alone(c.values, c.queries), *c.weights[-1:])
        for name in dict.fromkeys(scaled):
            size = sizes.get(name)
            if size is None or len(size.shape) != 2:
                continue
            yield from _to_beta(name, size.to_xavier, beta)
            bias = size.bias_to_default
            if bias and _error(bias, beta) < SCATTER:
                yield "beta_on_biases", name, f"β was also applied to the bias beside {name}: scale the matrix only"


def _error(value: float, right: float) -> float:
    return abs(value / right - 1)


def _to_beta(name: str, ratio: float, beta: float) -> Iterator[Fault]:
    if _error(ratio, beta) > SCATTER:
        plain = _error(ratio, 1) < SCATTER
        key = "beta_missing" if plain else "beta_wrong"
        what = "is not scaled by β" if plain else f"starts at {ratio:.3g} × Xavier's std"
        yield key, name, f"{name} {what}, but DeepNorm asks for β = {beta:.3g} × Xavier"


def _alone(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]


def _attention_weights(c: Connection, sizes: Mapping[str, Size], beta: float) -> Iterator[Fault]:
    """Queries and keys are not scaled, be they matrices of their own or rows of one with the values."""
    for name in _alone(c.queries, c.values):
        if name in sizes and _is_beta(sizes[name].to_xavier, beta):
            yield _on_queries(name)
    for name in (n for n in c.queries if n in c.values and n in sizes and sizes[n].parts):
        width = sizes[name].shape[1]
        q, k, v = (part * width**0.5 for part in sizes[name].parts)  # of a square matrix
        if _is_beta(q, beta) or _is_beta(k, beta):
            yield _on_queries(name)
        elif q and _error(v, q) < 0.1 and beta < 0.8:
            yield "beta_missing", name, f"{name} does not scale its values by β, but DeepNorm asks for {beta:.3g}"


def _is_beta(ratio: float, beta: float) -> bool:
    """Scaled by β, and not as they are drawn without it."""
    return _error(ratio, beta) < SCATTER and min(_error(ratio, start) for start in KNOWN_STARTS) > 0.1


def _on_queries(name: str) -> Fault:
    message = f"β was also applied to queries or keys in {name}: scale values, out and feed-forward only"
    return "beta_on_queries", name, message
