"""Commands that list the choices: recipes, and the keys of a config."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from leadline import recipes as every_recipe
from leadline.cli import keys as every_key
from leadline.cli.app import Json, app, print_json
from leadline.cli.terminal import answer, definitions
from leadline.config import Config
from leadline.errors import UserError
from leadline.files import Facts, to_json


@app.command()
def recipes(as_json: Json = False) -> None:
    """List the recipes: what each trains and how large it is."""
    rows = []
    for name, recipe in every_recipe.RECIPES.items():
        config = recipe()
        (purpose, *_) = (recipe.__doc__ or "").strip().split("\n\n")
        rows.append({"recipe": name, "task": config.task, "purpose": " ".join(purpose.split())} | _size(config))
    if as_json:
        print_json(rows)
        return
    definitions([(row["recipe"], f"{row['purpose']} {_sized(row)}") for row in rows])
    answer.print("\nnext: leadline train RECIPE --set KEY=VALUE …; leadline keys lists the keys")


def _size(config: Config) -> Facts:
    """Layers, width, and how many weights that makes."""
    model, vocabulary = config.model, config.data.vocab_size
    dim, ffn_dim, stacks = model.dim, model.ffn_dim, bool(model.encoder_layers) + bool(model.decoder_layers)
    queries, keys = model.heads * model.head_width, model.groups * model.head_width
    gates = 2 if model.activation == "swiglu" else 1
    attention = 2 * dim * (queries + keys) + model.bias * (queries + 2 * keys + dim)
    feed_forward = (1 + gates) * dim * ffn_dim + model.bias * (dim + gates * ffn_dim)
    attentions = model.encoder_layers + stacks * model.decoder_layers  # a decoder reads an encoder, if there is one
    blocks = attentions * attention + (model.encoder_layers + model.decoder_layers) * feed_forward
    each = 2 * dim if model.norm == "layer_norm" and model.bias else dim
    norms = each * (attentions + model.encoder_layers + model.decoder_layers + stacks)
    tables = {"tied": 1, "output_tied": stacks, "separate": stacks + 1}[model.embeddings] * vocabulary * dim
    positions = stacks * model.max_length * dim if model.positions == "learned" else 0
    heads = dim * dim * ((model.head == "bert") + bool(model.classes or model.pooler))
    return {
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "dim": dim,
        "parameters": blocks + norms + tables + positions + heads,
    }


def _sized(row: Facts) -> str:
    layers = "-".join(str(row[f"{stack}_layers"]) for stack in ("encoder", "decoder") if row[f"{stack}_layers"])
    millions = row["parameters"] / 1e6
    return f"({layers} layers, d {row['dim']}, {millions:,.{0 if millions >= 10 else 1}f} M parameters)"


@app.command()
def keys(
    word: Annotated[str, typer.Argument(help="Only keys with this word in their name or meaning.")] = "",
    as_json: Json = False,
) -> None:
    """List the keys of a config (for config.toml and --set KEY=VALUE): default, choices and meaning."""
    chosen = every_key.matching(word)
    if not chosen:
        raise UserError(f"no key has {word!r} in its name or meaning: leadline keys lists them all")
    if as_json:
        print_json([asdict(key) for key in chosen])
        return
    definitions([(f"{key.key} = {to_json(key.default)}", _described(key)) for key in chosen])


def _described(key: every_key.Key) -> str:
    return f"{key.meaning} [{' | '.join(key.choices)}]" if key.choices else key.meaning
