"""A run folder of an earlier version, as it was left at update 6 of 12: it goes on to the weights of then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import history
from leadline.provenance import FORMAT, NUMERICS, code
from leadline.training import checkpoint
from leadline.training.loop import resume
from leadline.training.run import load_config
from leadline.training.trained import load

OLD = Path(__file__).parent / "old_run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    config = tmp_path / "old" / "run" / "config.toml"
    config.write_text(config.read_text().replace("prepared:/tmp/old/data", f"prepared:{tmp_path / 'old' / 'data'}"))
    return tmp_path / "old" / "run"


def test_it_goes_on_and_says_what_has_changed(run: Path) -> None:
    heard: list[Any] = []
    assert load_config(run).model.init == "xavier"  # the key had another name
    resume(run, [heard.append])
    assert checkpoint.names(run)[-1] == "00000012"
    found = load_file(run / "checkpoints" / "00000012" / "model.safetensors")
    for name, weight in load_file(OLD / "after_12.safetensors").items():
        if not name.endswith(("kv.bias", "q.bias")):  # keys' biases have no gradient but rounding, which Adam enlarges
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5)
    before = [json.loads(line) for line in (OLD / "run" / "metrics.jsonl").read_text().splitlines()]
    after = [row["valid_nll"] for row in history.read(run).rows if "valid_nll" in row]
    assert after == pytest.approx([row["valid_nll"] for row in before if "valid_nll" in row], abs=1e-5)
    messages = [event.message for event in heard if event.kind == "message"]
    assert messages[0].startswith(f"this run began with numerics 1 and goes on with {NUMERICS}")
    facts = json.loads((run / "run.json").read_text())
    assert (facts["format"], facts["numerics"], facts["code"]) == (FORMAT, NUMERICS, code())
    assert facts["began"] == {"numerics": 1, "code": None}
    again: list[Any] = []
    resume(run, [again.append])
    assert messages[0] in [event.message for event in again]
    assert facts["chosen"]["init"] == facts["config"]["model"]["init"] == "xavier"


def test_it_translates(run: Path) -> None:
    assert len(load(run).translate(["neunhundert", "zwei"])) == 2
