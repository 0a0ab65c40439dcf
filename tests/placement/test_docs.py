"""docs/placements.md: its table is the table, and the placement it writes from scratch trains from the command line."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from leadline import history
from leadline.cli import main
from leadline.placement import PLACEMENTS
from leadline.placement.base import Placement
from leadline.training.run import load_config

PAGE = (Path(__file__).parents[2] / "docs" / "placements.md").read_text(encoding="utf-8")


def test_the_page_lists_every_placement_and_no_other() -> None:
    listed = PAGE.partition("## Write one")[0]
    assert re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE) == list(PLACEMENTS)


def test_the_page_explains_the_whole_contract() -> None:
    named = set(re.findall(r"`(\w+)\(", PAGE)) | {"architectures", "base", "norms"}
    assert {name for name in vars(Placement) if not name.startswith("_")} <= named | {"forward", "describe"}


@pytest.mark.slow
def test_the_placement_written_there_trains_and_is_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "gated.py").write_text(code, encoding="utf-8")
    sizes = {"model.dim": 16, "model.ffn_dim": 32, "train.batch_tokens": 128, "data.size": 500, "data.vocab_size": 200}
    small = "".join(f" --set {key}={value}" for key, value in sizes.items())
    for command in commands.strip().splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(command + small * ("train" in command)))
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
    assert load_config(tmp_path / "runs" / "gated", allow_code=True).model.placement == "gated:Gated"
    losses = [row["loss"] for row in history.read(tmp_path / "runs" / "gated").rows if "loss" in row]
    assert losses[-1] < losses[0]
    assert "Pre-LN" in capsys.readouterr().out  # what inspect finds it to be
