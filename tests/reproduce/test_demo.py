"""The demo compares like with like, and leaves its results as files."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.config import Config, to_dict
from leadline.jobs.engine import Pool
from leadline.reproduce import demo


def flat(config: Config) -> dict[str, Any]:
    values = to_dict(config)
    return {f"{s}.{k}": v for s, entries in values.items() if isinstance(entries, dict) for k, v in entries.items()}


def differing(configs: list[Config]) -> set[str]:
    every = [flat(config) for config in configs]
    return {key for key in every[0] if any(values[key] != every[0][key] for values in every)}


@pytest.mark.parametrize("quick", [False, True])
def test_the_runs_differ_in_placement_and_warmup_only(quick: bool) -> None:
    configs = demo.configs(quick)
    assert differing(list(configs.values())) == {"model.placement", "optim.warmup"}
    assert {config.model.placement for config in configs.values()} == {"post_ln", "pre_ln", "deepnorm"}
    for name, config in configs.items():
        assert name.startswith(config.model.placement)
        assert ("no warm-up" in name) == (config.optim.warmup == 0)


def test_the_claim_can_be_seen_in_the_runs() -> None:
    """Post-LN with and without warm-up, Pre-LN without."""
    found = {(config.model.placement, config.optim.warmup > 0) for config in demo.configs(False).values()}
    assert found >= {("post_ln", False), ("post_ln", True), ("pre_ln", False)}


def test_quick_differs_in_size_only() -> None:
    for full, quick in zip(demo.configs(False).values(), demo.configs(True).values(), strict=True):
        sizes = {"data.size", "train.updates", "train.batch_tokens", "train.eval_every", "optim.warmup"}
        assert differing([full, quick]) <= sizes
        assert quick.train.updates < full.train.updates


def test_the_demo_trains_and_writes_its_results(
    tiny: Config, in_process: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its processes: tests/test_package.py."""
    base = tiny.set(train={"updates": 4, "eval_every": 2})
    chosen = {
        "post_ln, no warm-up": base.set(model={"placement": "post_ln"}),
        "pre_ln, warm-up 2": base.set(optim={"warmup": 2}),
    }
    monkeypatch.setattr(demo, "configs", lambda quick: chosen)
    monkeypatch.setattr(Pool, "warm", lambda pool: pool)
    monkeypatch.setattr(Pool, "run", lambda pool, jobs, root, on_event: in_process(jobs, root, 1, on_event))
    events: list[tuple[str, str, int]] = []

    out = tmp_path / "demo"
    results = demo.demo(out, on_event=lambda name, event: events.append((name, event.kind, event.update)))

    assert [(r.placement, r.warmup, r.lr) for r in results] == [
        ("post_ln", 0, base.optim.lr),
        ("pre_ln", 2, base.optim.lr),
    ]
    for result in results:
        assert 0 < result.valid_loss < 10
        assert 0 <= result.bleu <= 100
        assert 0 <= result.exact_match <= 1
        assert result.seconds > 0
        assert result.tokens_per_second > 0
        assert not result.diverged
        assert len(result.translations) == len(demo.SENTENCES)
        assert Path(result.run).parent == out
        assert (Path(result.run) / "config.toml").exists()
    assert demo.best(results) in results

    assert json.loads((out / "results.json").read_text()) == [dataclasses.asdict(result) for result in results]
    with (out / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == set(chosen)
    assert [row["update"] for row in rows if row["run"] == "pre_ln, warm-up 2" and row["train_loss"]] == list("1234")
    assert [row["update"] for row in rows if row["run"] == "pre_ln, warm-up 2" and row["valid_nll"]] == list("24")
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")

    assert {len(json.loads((Path(r.run) / "result.json").read_text())["translations"]) for r in results} == {5}
    again = demo.demo(out, on_event=lambda name, event: events.append(("again", event.kind, 0)))
    assert again == results  # what is finished is not done again
    assert ("again", "start", 0) not in events
    for name in chosen:
        updates = [update for run, kind, update in events if run == name and kind == "update"]
        assert updates == [1, 2, 3, 4]


def result_of(**changes: Any) -> demo.Outcome:
    values = {
        "placement": "pre_ln", "warmup": 0, "lr": 1e-3, "valid_loss": 1.0, "bleu": 0.0, "exact_match": 0.0,
        "seconds": 1.0, "tokens_per_second": 1.0, "diverged": False, "run": "run", "translations": [],
    }  # fmt: skip
    return demo.Outcome(**(values | changes))


def test_the_best_result_has_the_lowest_loss_among_those_that_did_not_diverge() -> None:
    low, high = result_of(valid_loss=0.5), result_of(valid_loss=2.0)
    assert demo.best([high, low, result_of(valid_loss=0.1, diverged=True)]) is low


@pytest.mark.parametrize("valid_loss", [2.0, float("inf")])
def test_the_command_gives_its_results_as_json(
    valid_loss: float, leadline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that diverges before it is evaluated has an infinite loss, for which JSON has no number."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    translations = ["one"] * len(demo.SENTENCES)
    results = [result_of(valid_loss=valid_loss, diverged=True), result_of(run="good", translations=translations)]
    monkeypatch.setattr(demo, "demo", lambda *_: results)
    answer = leadline("demo", "--out", tmp_path, "--json")
    found = json.loads(answer.out, parse_constant=refuse)
    assert found.keys() == {"runs", "best", "translations", "figure", "table", "seconds"}
    assert (found["best"], len(found["runs"])) == ("good", 2)
    assert found["translations"][0] == [demo.SENTENCES[0], "one"]
    assert found["figure"] == str(tmp_path / "curves.png")


def test_the_command_marks_the_run_that_diverged(
    leadline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [result_of(placement="post_ln", diverged=True), result_of(translations=["one"] * len(demo.SENTENCES))]
    monkeypatch.setattr(demo, "demo", lambda *_: results)
    lines = leadline("demo", "--out", tmp_path).out.splitlines()
    assert [line.split()[0] for line in lines if "diverged" in line] == ["post_ln"]
    assert f"  {demo.SENTENCES[0]}  →  one" in lines


def test_curves_can_be_drawn_where_a_run_diverged_at_once(tmp_path: Path) -> None:
    from leadline.report.figures import write_curves

    rows = {"fine": [{"update": 1, "loss": 2.0}, {"update": 1, "valid_nll": 2.0}], "diverged": []}
    write_curves(rows, tmp_path / "curves.png", tmp_path / "curves.csv", "a title")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert (tmp_path / "curves.csv").read_text().splitlines()[1:] == ["fine,1,2.0,,,", "fine,1,,2.0,,"]
