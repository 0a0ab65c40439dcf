"""The package as others get it: a wheel with everything in it, that runs away from its sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import leadline

ROOT = Path(__file__).parent.parent


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", leadline.__version__)
    assert f"version: {leadline.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {leadline.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# The demo's two runs that the paper's claim is about, in one process, which loads torch once.
DEMO = """
import sys
from leadline import cli, machine
from leadline.reproduce import demo
every, machine.cores = demo.configs, lambda: 1
demo.configs = lambda quick: {name: config for name, config in every(quick).items() if "no warm-up" in name}
cli.main()
"""


@pytest.mark.slow
def test_a_wheel_runs_the_demo_away_from_its_sources(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("needs uv, as make test installs it")
    source = tmp_path / "source"  # building leaves files beside the sources
    shutil.copytree(ROOT / "leadline", source / "leadline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = subprocess.run([uv, "build", "-q", "--wheel", "-o", tmp_path, source], capture_output=True, text=True)
    if built.returncode and "http" in built.stderr.lower():
        pytest.skip("building needs setuptools, which cannot be fetched")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
        file.extractall(tmp_path / "site")
    assert {str(path.relative_to(source)) for path in (source / "leadline").rglob("*") if path.is_file()} <= inside
    there = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1", "LEADLINE_CACHE": str(tmp_path / "cache")}
    call = [sys.executable, "-c", DEMO, "demo", "--quick", "--out", "demo", "--json"]
    done = subprocess.run(call, cwd=tmp_path, env=os.environ | there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site" / "leadline") in subprocess.run(
        [sys.executable, "-c", "import leadline; print(leadline.__file__)"],
        cwd=tmp_path, env=os.environ | there, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    runs = {(run["placement"], run["warmup"] > 0): run for run in json.loads(done.stdout)["runs"]}
    assert len(runs) == 2
    # The claim of the paper: without warm-up Post-LN stays behind Pre-LN, here by more than a nat.
    assert runs["post_ln", False]["valid_loss"] > runs["pre_ln", False]["valid_loss"] + 1
