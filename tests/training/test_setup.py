"""Which way of a step a training takes when it is left open, what is said of it, and that it stays so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline.config import Config, TrainConfig, load
from leadline.errors import UserError
from leadline.model.block import Block
from leadline.training import setup
from leadline.training.device import telling_of_memory
from leadline.training.events import Event
from leadline.training.loop import resume, train

CUDA = torch.device("cuda")


@pytest.fixture
def open_(tiny: Config) -> Config:
    small = {"dropout": 0.0, "max_length": 8}
    return tiny.set(model=small, train={"updates": 1, "batch_tokens": 16, "eval_every": -1, "step": "auto"})


def trained(config: Config, folder: Path) -> tuple[dict[str, Any], str]:
    """What run.json says was chosen, and the first line."""
    heard: list[Event] = []
    run = train(config, folder, [heard.append])
    return json.loads((run / "run.json").read_text())["chosen"], heard[0].message


def test_left_open_a_cpu_takes_the_eager_step_and_says_why(open_: Config, tmp_path: Path) -> None:
    assert TrainConfig(epochs=1).step == "auto"
    chosen, line = trained(open_, tmp_path / "run")
    assert chosen["step"] == "eager"
    assert chosen["not_captured"] == "the captured one needs an NVIDIA GPU"
    assert "on cpu in fp32, step eager (the captured one needs an NVIDIA GPU)" in line
    assert load(tmp_path / "run" / "config.toml").train.step == "eager"
    chosen, line = trained(open_.set(train={"step": "eager"}), tmp_path / "asked")
    assert "not_captured" not in chosen
    assert "on cpu in fp32, step eager," in line


@pytest.mark.parametrize(
    ("capability", "precision", "why"),
    [
        ((7, 5), "bf16", "the captured one needs compute capability 8.0, and this GPU has 7.5"),
        ((9, 0), "fp32", "the captured one is tuned for bf16, and this is fp32"),
        ((9, 0), "bf16", ""),
    ],
)
def test_the_gpu_and_the_precision_decide(
    capability: tuple[int, int], precision: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert setup.not_capturable(CUDA, precision) == why


def test_without_triton_or_with_another_maker_s_gpu_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(__import__("sys").modules, "triton", None)
    assert setup.not_capturable(CUDA, "bf16") == "the captured one needs triton, which is not installed"
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert setup.not_capturable(CUDA, "bf16") == "the captured one needs an NVIDIA GPU"


@pytest.fixture
def usable(captured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "not_capturable", lambda device, precision: "")


@pytest.mark.usefixtures("usable")
def test_where_it_can_be_used_it_is_and_a_run_goes_on_with_it(open_: Config, tmp_path: Path) -> None:
    """The batch that was tried leaves nothing behind: losses are those of a run that asks for the captured step."""
    chosen, line = trained(open_, tmp_path / "run")
    assert (chosen["step"], chosen["attention"]) == ("graph", "fused")
    assert "not_captured" not in chosen
    assert "on cpu in fp32, step graph," in line
    asked = train(open_.set(train={"step": "graph"}), tmp_path / "asked")
    for name in ("model", "optimizer"):
        one, other = (run / "checkpoints" / "00000001" / f"{name}.safetensors" for run in (tmp_path / "run", asked))
        assert one.read_bytes() == other.read_bytes()
    config = load(tmp_path / "run" / "config.toml")
    assert config.train.step == "graph"
    resume(tmp_path / "run", config=config.set(train={"updates": 2}))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["chosen"]["step"] == "graph"


@pytest.mark.usefixtures("usable")
def test_what_fails_in_it_falls_back_to_the_eager_step_with_a_sentence(
    open_: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train(open_.set(train={"step": "eager"}), tmp_path / "straight")
    forward = Block.forward

    def too_large(block: Block, *arguments: Any) -> Any:
        if block.ops.draws:
            return forward(block, *arguments)
        raise RuntimeError("out of resource: shared memory, Required: 200000, Hardware limit: 101376\nand so on")

    monkeypatch.setattr(Block, "forward", too_large)
    chosen, line = trained(open_, tmp_path / "run")
    assert (chosen["step"], chosen["attention"]) == ("eager", "padded")
    why = "the captured one failed on the first batch: RuntimeError: out of resource: shared memory, Required: 200000, "
    assert chosen["not_captured"] == why + "Hardware limit: 101376"
    assert f"step eager ({why}" in line
    weights = [run / "checkpoints" / "00000001" / "model.safetensors" for run in (straight, tmp_path / "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    with pytest.raises(RuntimeError, match="out of resource"):
        train(open_.set(train={"step": "graph"}), tmp_path / "asked")


@pytest.mark.usefixtures("usable")
def test_a_gpu_that_is_too_small_is_told_and_not_tried_again(
    open_: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Block, "forward", full)
    with pytest.raises(UserError, match=r"too little memory for batches of 16 tokens"):
        train(open_, tmp_path / "run")
    with pytest.raises(UserError, match=r"too little memory"), telling_of_memory(open_):
        full()
