"""How large a model is, from its config alone: what cannot fit is refused before anything is built."""

from __future__ import annotations

from leadline import machine
from leadline.config import Config, ModelConfig
from leadline.errors import UserError

GIB = 2**30
BLOCK = 10_000  # bytes that the objects of a block take at least, however narrow it is
DEEPEST = 10_000  # layers; ten times what anybody has trained, and ten seconds to build
COPIES = 6  # of the weights while a model is inspected: they, gradients, Adam's moments, what is put back (twice)


def weights(model: ModelConfig, vocabulary: int) -> int:
    """Numbers in its matrices; biases, norms and what a placement adds are a few hundredths more."""
    dim, stacks = model.dim, (model.encoder_layers > 0) + (model.decoder_layers > 0)
    attention = 2 * dim * (model.heads + model.groups) * model.head_width
    ffn = (3 if model.activation == "swiglu" else 2) * dim * model.ffn_dim
    blocks = model.encoder_layers * (attention + ffn) + model.decoder_layers * (stacks * attention + ffn)
    tables = (1 if model.embeddings == "tied" else stacks) + (model.embeddings == "separate")
    positions = model.max_length if model.positions == "learned" else 0
    heads = (dim if model.head == "bert" else 0) + (dim + model.classes if model.classes or model.pooler else 0)
    return blocks + dim * (tables * vocabulary + stacks * (positions + model.segments) + heads)


def require_room(model: ModelConfig, vocabulary: int) -> None:
    """For the weights as they are built, in the memory of this machine."""
    layers = model.encoder_layers + model.decoder_layers
    needed = 4 * (weights(model, vocabulary) + model.max_length * model.dim) + BLOCK * layers
    _require(needed, machine.memory(), "this machine", f"building {_told(model, vocabulary)}")
    require_depth("model.encoder_layers + model.decoder_layers", layers)


def require_depth(name: str, layers: int) -> None:
    if layers > DEEPEST:
        raise UserError(f"{name} = {layers}: at most {DEEPEST:,} layers can be built")


def require_room_to_inspect(name: str, count: int) -> None:
    needed = 4 * COPIES * count
    _require(needed, machine.memory(), "this machine", f"inspecting {name} with its {count:.3g} weights", "model")


def require_room_to_train(config: Config, vocabulary: int, available: float, where: str, processes: int = 1) -> None:
    """For weights, gradients and what the optimizer keeps, and for what a batch leaves for the backward pass.

    Of what the optimizer keeps each of several processes has its part.
    """
    model, train = config.model, config.train
    state = {"sgd": 1 if config.optim.momentum else 0, "muon": 1}.get(config.optim.name, 2)  # numbers a weight
    tokens = train.batch_tokens
    if train.batch_sequences:
        tokens = min(tokens, train.batch_sequences * model.max_length)
    block = model.dim if train.recompute else 4 * model.dim + model.ffn_dim  # numbers a token, at least
    layers, size = model.decoder_layers or model.encoder_layers, 2 if train.precision == "bf16" else 4
    needed = int(4 * (2 + state / processes) * weights(model, vocabulary)) + tokens * block * layers * size
    batch = f"batches of train.batch_tokens={train.batch_tokens}"
    _require(needed, available, where, f"training {_told(model, vocabulary)} on {batch}")


def _told(model: ModelConfig, vocabulary: int) -> str:
    keys = ("encoder_layers", "decoder_layers", "dim", "ffn_dim", "max_length")
    sizes = ", ".join(f"model.{key}={getattr(model, key)}" for key in keys)
    return f"{weights(model, vocabulary):.3g} weights ({sizes}, {vocabulary} tokens in the vocabulary)"


def _require(needed: int, available: float, where: str, what: str, cause: str = "model or the batch") -> None:
    if needed > available:
        raise UserError(
            f"{what} needs at least {needed / GIB:.3g} GiB of memory, and {where} has {available / GIB:.3g}: make the "
            f"{cause} smaller"
        )
