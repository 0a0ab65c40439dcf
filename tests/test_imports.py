"""Dependencies point one way, and what needs no torch does not load it."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import leadline

PACKAGE = Path(leadline.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# A part of the package, and the parts it must not know of.
MUST_NOT_IMPORT = {
    "placement": {"model", "data", "tasks", "training", "diagnose"},
    "kernels": {"model", "data", "tasks", "training", "diagnose"},
    "model": {"data", "tasks", "training", "diagnose"},
    "data": {"model", "tasks", "training", "diagnose"},
    "tasks": {"training", "diagnose"},
    "training": {"diagnose", "exchange", "jobs", "reproduce", "cli", "report"},
    "diagnose": {"training", "jobs", "reproduce", "cli", "report", "recipes"},
    "report": {"model", "data", "tasks", "training", "kernels", "placement"},
}


def imported(path: Path) -> set[str]:
    """Full names of all modules a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def parts(names: set[str]) -> set[str]:
    """leadline.model.block.Block -> model"""
    return {name.split(".")[1] for name in names if name.startswith("leadline.")}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_by(part: str) -> set[str]:
    files = [path for path in FILES if part_of(path) == part]
    assert files, f"leadline has no {part}"
    return set().union(*(imported(path) for path in files))


def test_config_options_and_errors_stand_on_nothing() -> None:
    assert parts(imported_by("errors")) == set()
    assert parts(imported_by("options")) == {"errors"}
    assert parts(imported_by("config")) == {"errors", "options"}


@pytest.mark.parametrize("part", MUST_NOT_IMPORT)
def test_a_part_does_not_know_of_those_above_it(part: str) -> None:
    assert parts(imported_by(part)) & MUST_NOT_IMPORT[part] == set()


def test_no_part_depends_on_itself_through_others() -> None:
    all_parts = {part_of(path) for path in FILES} - {"__init__"}
    graph = {part: parts(imported_by(part)) - {part} for part in all_parts}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_reports_name_no_torch() -> None:
    assert not any(name.split(".")[0] == "torch" for name in imported_by("report"))


def test_a_prediction_shares_no_code_with_what_it_judges() -> None:
    assert parts(imported(PACKAGE / "diagnose" / "theory.py")) == set()


@pytest.mark.parametrize(
    "name",
    ["record", "theory", "connection", "structure", "faults", "fitted", "verdict", "inspection", "certify", "advise"],
)
def test_what_a_report_is_rebuilt_from_names_no_torch(name: str) -> None:
    found = imported(PACKAGE / "diagnose" / f"{name}.py")
    assert not any(module.split(".")[0] in ("torch", "numpy") for module in found)


@pytest.mark.parametrize(
    ("modules", "spared"),
    [
        (
            "leadline.report.figures, leadline.report.runs, leadline.report.inspections, leadline.cli",
            ("torch", "numpy"),
        ),
        ("leadline.diagnose.explain, leadline.alarm", ("torch",)),
        ("leadline.model, leadline.training.loop", ("torch._dynamo",)),  # torch's compiler, more than a second
    ],
)
def test_what_is_seldom_needed_is_not_loaded(modules: str, spared: tuple[str, ...]) -> None:
    program = f"import sys, {modules}; print([name for name in {spared} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_updates_do_not_load_the_compiler() -> None:
    """Which takes a third of the time to the first one; and they are the updates of torch's own optimizers."""
    program = """
import sys, torch
from leadline.config import OptimConfig
from leadline.training import optim

theirs = {"adam": (torch.optim.Adam, {"fused": True}), "adamw": (torch.optim.AdamW, {"fused": True}),
          "sgd": (torch.optim.SGD, {}), "radam": (torch.optim.RAdam, {"decoupled_weight_decay": True})}
results = {}
for light in (True, False):
    for name, (kind, more) in theirs.items():
        config, model = OptimConfig(name=name, lr=0.1), torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.ones_(model.weight)
        adam = {} if name == "sgd" else {"betas": config.betas, "eps": config.eps}
        their = kind(model.parameters(), lr=0.1, weight_decay=0, **adam, **more) if not light else None
        own = their or optim.optimizer(config, model)
        assert isinstance(own, kind)
        for _ in range(3):
            model(torch.ones(1, 2)).sin().sum().backward()
            own.step()
            own.zero_grad()
        assert results.setdefault(name, model.weight.tolist()) == model.weight.tolist()
    print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "False"
