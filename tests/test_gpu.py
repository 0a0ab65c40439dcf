"""What only a GPU shows: the step that is really captured, in 16 bits, beside the eager one.

Its kernels, interpreted and in float32: tests/training/test_graph.py. Several processes: tests/test_torchrun.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import history, load
from leadline.config import Config
from leadline.diagnose.watch import Watch
from leadline.training import loop
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.setup import Setup, set_up

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # the eager step's RMS norm of heads
]

UPDATES = 12
CLOSE = 3e-3  # bf16 and fp32 on a CPU end up to 5e-4 apart
GPU: dict[str, Any] = {"device": "cuda", "precision": "bf16", "step": "auto", "updates": UPDATES, "eval_every": -1}


@pytest.fixture(scope="module")
def config(tiny: Config) -> Config:
    """With a vocabulary that is no multiple of 8."""
    model = {"encoder_layers": 2, "decoder_layers": 2, "dim": 64, "ffn_dim": 128, "heads": 2}
    return tiny.set(model=model, data={"vocab_size": 203}, optim={"lr": 1e-3}, train=GPU)


def losses(run: Path) -> list[float]:
    return list(history.read(run).points("loss")[1])


def chosen(run: Path) -> dict[str, str]:
    return json.loads((run / "run.json").read_text())["chosen"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/{UPDATES:08d}/model.safetensors")


def same(one: Path, other: Path) -> bool:
    return losses(one) == losses(other) and all(
        torch.equal(w, weights(other)[name]) for name, w in weights(one).items()
    )


def captured_beside_eager(config: Config, folder: Path) -> Path:
    """The captured run, which must have learnt what the eager one has."""
    run, eager = train(config, folder / "captured"), train(config.set(train={"step": "eager"}), folder / "eager")
    assert (chosen(run)["step"], chosen(run).get("not_captured")) == ("graph", None)
    assert len(losses(run)) == config.train.updates
    assert losses(run) == pytest.approx(losses(eager), rel=CLOSE)
    return run


MODERN = {"norm": "rms_norm", "positions": "rotary", "activation": "swiglu", "qk_norm": "head", "bias": False}
MODELS: list[dict[str, Any]] = [
    {"placement": "pre_ln", "embeddings": "separate"},
    {"placement": "post_ln", "head": "bias", "activation": "gelu"},
    {"placement": "deepnorm", "activation": "silu"},
    {"placement": "dlcl"},
    {"placement": "resi_dual"},
    {"placement": "normformer", "activation": "gelu_tanh"},
    MODERN | {"kv_heads": 1},
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_translator(model: dict[str, Any], config: Config, tmp_path: Path) -> None:
    run = captured_beside_eager(config.set(model=model), tmp_path)
    translations = load(run, "last").translate(["zwölf", "", "drei Tage " * 9])
    assert len(translations) == 3
    assert translations == load(run, "last").translate(["zwölf", "", "drei Tage " * 9])  # captured a second time


@pytest.mark.parametrize(
    "optim",
    [
        {"name": "adamw", "weight_decay": 0.1, "clip": 0.1},
        {"name": "sgd", "momentum": 0.9, "lr": 0.05},
        {"name": "radam"},
        {"name": "muon", "weight_decay": 0.1, "clip": 0.5},
    ],
    ids=lambda optim: optim["name"],
)
def test_optimizers_and_accumulation(optim: dict[str, Any], config: Config, tmp_path: Path) -> None:
    captured_beside_eager(config.set(optim=optim, train={"accumulate": 2}), tmp_path)


@pytest.mark.parametrize("change", [{}, {"classes": 2, "embed_norm": False}], ids=str)
def test_a_masked_language_model(change: dict[str, Any], masked: Config, tmp_path: Path) -> None:
    captured_beside_eager(masked.set(model=change, train=GPU), tmp_path)


@pytest.mark.parametrize("model", [{}, MODERN], ids=str)
def test_a_language_model(model: dict[str, Any], written: Config, tmp_path: Path) -> None:
    run = load(captured_beside_eager(written.set(model=model, train=GPU), tmp_path), "last")
    prompts = ["", "abc de fgh abc", "a"]  # the first is one token
    texts = run.generate(prompts, tokens=9, temperature=0.0)
    assert len(texts) == 3
    assert texts == run.generate(prompts, tokens=9, temperature=0.0)
    assert run.generate(prompts, tokens=9, top_k=5, seed=2) == run.generate(prompts, tokens=9, top_k=5, seed=2)


def test_resumed_watched_and_again_it_has_the_same_bits(config: Config, tmp_path: Path) -> None:
    drops = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    config = config.set(model=drops, train={"save_every": 4})

    def stop(event: Event) -> None:
        if event.kind == "update" and event.update == 6:
            raise RuntimeError("on purpose")

    once, again, watched = (
        train(config, tmp_path / name, [*on]) for name, on in (("a", []), ("b", []), ("c", [Watch(every=4)]))
    )
    assert same(once, again)
    assert all(torch.equal(weight, weights(watched)[name]) for name, weight in weights(once).items())
    with pytest.raises(RuntimeError, match="on purpose"):
        train(config, tmp_path / "d", [stop])
    assert same(once, resume(tmp_path / "d"))


def test_recomputed_it_is_about_the_same(config: Config, tmp_path: Path) -> None:
    config = config.set(model={"dropout": 0.3})
    runs = [train(config.set(train={"recompute": each}), tmp_path / str(each)) for each in (False, True)]
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=CLOSE)


def test_a_rollback_frees_the_captured_step_before_the_next(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def built(*arguments: Any) -> Setup:
        used.append(torch.cuda.memory_allocated())
        setup = set_up(*arguments)
        if len(used) == 1:
            torch.nn.init.constant_(next(setup.model.parameters()), float("nan"))
        return setup

    monkeypatch.setattr(loop, "set_up", built)
    large = config.set(model={"dim": 1024, "ffn_dim": 4096, "heads": 16}, train={"on_spike": "rollback"})
    run = train(large, tmp_path / "run")
    assert len(json.loads((run / "run.json").read_text())["spikes"]) == 1
    assert used[1] < used[0] + (512 << 20)  # its weights and their moments are a gibibyte, workspaces of products less


def test_what_cannot_be_captured_says_why_and_trains(config: Config, tmp_path: Path) -> None:
    run = train(config.set(train={"on_spike": "skip"}), tmp_path / "run")
    assert (chosen(run)["step"], "on_spike=skip" in chosen(run)["not_captured"]) == ("eager", True)


def test_the_command_line_chooses_a_rate_and_evaluates(leadline: Callable[..., Any], tmp_path: Path) -> None:
    settings = ["optim.lr=auto", "optim.warmup=auto", "data.size=600", "train.updates=60", "train.precision=bf16"]
    settings += ["model.encoder_layers=1", "model.decoder_layers=1", "data.vocab_size=203"]
    done = leadline("train", "numerals", "--out", tmp_path / "run", *[w for s in settings for w in ("--set", s)])
    assert done.code == 0, done.err
    assert "step graph" in done.err
    for words in (["evaluate", tmp_path / "run"], ["inspect", tmp_path / "run"], ["replay", tmp_path / "run", 59]):
        answer = leadline(*words)
        assert answer.code == 0, answer.err
