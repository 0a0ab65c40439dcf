"""The size of a model is known before it is built, and what cannot fit is refused in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leadline import machine, recipes
from leadline.config import Config, ModelConfig
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.size import require_room_to_train, weights
from leadline.options import to_dict
from leadline.training.loop import train

SMALL = {"dim": 128, "ffn_dim": 256, "heads": 4}
BILLION = 1_000_000_000


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_layers": 2, "decoder_layers": 3},
        {"encoder_layers": 2, "decoder_layers": 3, "embeddings": "output_tied", "positions": "learned"},
        {"encoder_layers": 2, "decoder_layers": 3, "embeddings": "separate", "segments": 2},
        {"encoder_layers": 0, "decoder_layers": 3, "embeddings": "output_tied"},
        {"encoder_layers": 3, "decoder_layers": 0, "embeddings": "separate", "head": "bert", "classes": 900},
        {"encoder_layers": 3, "decoder_layers": 0, "pooler": True, "max_length": 2000, "positions": "learned"},
    ],
)
def test_the_formula_counts_what_is_built(options: dict) -> None:
    config = ModelConfig(**SMALL, **options)
    built = sum(p.numel() for p in Transformer(777, **to_dict(config)).parameters())
    assert 0.97 * built < weights(config, 777) < built


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_layers": BILLION},
        {"decoder_layers": BILLION, "dim": 2, "ffn_dim": 1, "heads": 1},
        {"dim": BILLION, "heads": BILLION},
        {"ffn_dim": BILLION},
        {"max_length": BILLION},
        {"segments": BILLION},
        {"classes": BILLION},
    ],
)
def test_a_model_that_cannot_fit_is_not_built(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 64 * 2**30)
    with pytest.raises(UserError, match=r"weights \(.*\) needs at least .* GiB .* this machine has 64: make") as said:
        Transformer(1000, **SMALL | options)
    for key in options.keys() & {"encoder_layers", "dim", "ffn_dim", "max_length"}:
        assert f"model.{key}={options[key]}" in str(said.value)


def test_a_vocabulary_or_a_batch_that_cannot_fit_is_refused(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 64 * 2**30)
    with pytest.raises(UserError, match="1000000000 tokens in the vocabulary"):
        Transformer(BILLION, **SMALL)
    with pytest.raises(UserError, match=r"batches of train\.batch_tokens=1000000000 needs at least [0-9.]+ GiB"):
        train(tiny.set(train={"batch_tokens": BILLION}), tmp_path / "run")


def test_a_model_is_no_deeper_than_can_be_built_in_seconds() -> None:
    with pytest.raises(UserError, match=r"encoder_layers \+ model\.decoder_layers = 10001: at most 10,000 layers"):
        Transformer(10, **SMALL | {"encoder_layers": 10_000, "decoder_layers": 1, "dim": 2, "ffn_dim": 1, "heads": 1})


def test_recipes_fit_where_they_were_trained() -> None:
    """Also the largest, on a GPU; the estimate is what is needed at least."""
    classifier = recipes.mrpc().set(train={"batch_tokens": BILLION})  # the most that 32 sequences may take
    for config in [*(recipe() for recipe in recipes.RECIPES.values()), classifier]:
        vocabulary = config.data.vocab_size
        require_room_to_train(config, vocabulary, 80 * 2**30, "the GPU")
        with pytest.raises(UserError, match="the GPU has"):  # the weights alone, as they are saved
            require_room_to_train(config, vocabulary, 4 * weights(config.model, vocabulary), "the GPU")


def test_the_memory_of_this_machine_is_known() -> None:
    total = int(re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    assert 2**28 < machine.memory() <= total
