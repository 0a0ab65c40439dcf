"""bench.atlas: the design, its labels, one tiny training of every kind of cell, and the judge on made-up rows."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from bench.atlas import choices, data, design, judge, rules, second, trainings
from bench.atlas.design import Cell
from bench.atlas.rows import Rows, cell_of, jobs
from leadline.data.python_docs import PythonDocs


@pytest.fixture(autouse=True)
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "WORDS", 60)
    monkeypatch.setattr(PythonDocs, "_texts", lambda self: ["the same few words and some others again\n\n" * 200])


CELL = Cell("digits", "torch", "pre_ln", "own", 32, 2, "adam", 64, 0)


def test_the_design_is_what_was_committed() -> None:
    cells = design.design()
    assert cells == design.design()
    assert len({cell.name for cell in cells}) == len(cells) > 150
    assert not any(cell.wide for cell in cells)
    assert all(cell.wide for cell in design.design(wide=True))
    assert all(cell_of(cell.name) == cell for cell in cells)
    others = design.held_out(), design.second()
    assert len({*cells, *others[0], *others[1]}) == len(cells) + sum(map(len, others))
    first = cells[:17]  # one round has every task with every architecture
    assert {(c.task, c.arch) for c in first} == {(task, arch) for task, archs in design.TASKS.items() for arch in archs}


def test_rates_are_trained_coarsely_then_around_the_best_and_the_edge() -> None:
    ladder, ends = CELL.ladder, dict[float, float]()
    assert design.rates_left(CELL, ends, 3.0) == ladder[1::2]
    ends = dict.fromkeys(ladder[1::2], 1.0) | {ladder[3]: 0.5, ladder[7]: 2.9, ladder[9]: math.inf}
    assert design.rates_left(CELL, ends, 3.0) == [ladder[2], ladder[4], ladder[6]]
    assert design.edge(ends, 3.0) == ladder[5]
    ends |= {ladder[2]: 0.55, ladder[4]: 0.62, ladder[6]: 1.5}
    assert design.edge(ends, 3.0) == ladder[6]
    assert design.rates_left(CELL, ends, 3.0) == []
    assert design.rates_left(CELL, ends | {1e-9: 0.4}, 3.0) == []  # what optim.lr=auto chose beyond the ladder
    assert design.good(ends) == (ladder[2], ladder[3])
    assert design.edge(ends, 0.55) == 0  # nothing was learnt: no training ends below the frequencies


@pytest.mark.parametrize(("task", "arch"), [(task, arch) for task, archs in design.TASKS.items() for arch in archs])
def test_every_kind_of_cell_has_a_loss_that_a_step_lowers(task: str, arch: str) -> None:
    if task == "digits":
        pytest.importorskip("sklearn")
    start = "small" if "small" in design.STARTS[arch] else "own"
    cell = Cell(task, arch, design.PLACEMENTS[arch][-1], start, 32, 1, "adam", 64, 0)
    subject = trainings.Subject(cell, 1)
    before = subject.judged([subject.batch(0)])[0]
    assert before == pytest.approx(math.log(subject.data.outputs), rel=0.4)
    first = subject.update(0, 1e-3)
    assert first == pytest.approx(before, rel=1e-4)
    for _ in range(3):
        subject.update(0, 1e-3)
    assert subject.judged([subject.batch(0)])[0] < before
    assert 1 < subject.data.frequencies < 4


def test_a_row_is_the_same_twice_and_a_stopped_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(design, "UPDATES", 4)
    monkeypatch.setattr(trainings, "SHOWN", (2, 4))
    monkeypatch.setattr(trainings, "PROBE_STEPS", (1, 2))
    rows = Rows(tmp_path)
    for count, (kind, make) in enumerate(jobs([CELL], rows, ("train", "probe"), "", "cpu")):
        made, again = make(), make()
        for row in (*made, *again):
            row.pop("seconds", None)
        assert made == again
        rows.add(kind, made)
        if count == 2:
            break
    path = tmp_path / "atlas.jsonl"
    path.write_text(path.read_text() + '{"cell": "cut off')
    known = Rows(tmp_path)
    assert known.ends == rows.ends
    assert len(known.left(CELL)) == len(CELL.ladder[1::2]) - 3


def test_what_auto_chooses_is_taken_from_recorded_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(design, "UPDATES", 4)
    monkeypatch.setattr(trainings, "SHOWN", (2, 4))
    row = trainings.train(CELL, CELL.ladder[4], 1)
    assert [update for update, *_ in row["looks"]] == [1, 2, 4]
    looks = {update: (loss, spread) for update, loss, spread in row["looks"]}
    trained = trainings.choose(CELL, {})
    same = next(t for t in trained["tried"] if t[:2] == [CELL.ladder[4], 4])
    assert same[2:] == [round(looks[4][0], 4), looks[4][1]]

    def refused(*arguments: object) -> float:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(trainings.Subject, "update", refused)
    known = {rate: {4: (2 + abs(at - 6), 1.0)} for at, rate in enumerate(CELL.ladder)}
    assert trainings.choose(CELL, known)["rate"] == CELL.ladder[6]


def test_choices_are_judged_by_where_the_trainings_end(tmp_path: Path) -> None:
    cell = next(cell for cell in design.held_out() if not cell.warmup and cell.optimizer == "adam")
    rows = Rows(tmp_path)
    ends = {rate: 1 + 0.3 * abs(at - 3) if at < 7 else 2.9 for at, rate in enumerate(cell.ladder)}
    for rate, end in ends.items():
        looks = [[cell.updates // 2, 5 - rate, 1.0], [cell.updates, end, 1.0]]
        rows.add("train", [{"cell": cell.name, "seed": 1, "rate": rate, "loss": end, "frequencies": 3, "looks": looks}])
    for rate, said in ((cell.ladder[3], "| 1 | 1 | 1 | 1 | 0 |"), (cell.ladder[8], "| 1 | 0 | 0 | 0 | 1 |")):
        rows.add("auto", [{"cell": cell.name, "rate": rate, "updates": 700}])
        text = "\n".join(choices.autos(rows))
        assert f"held out {said} 700 |" in text
        assert (f"{cell.name}: {rate:g} ends 1.90 above the best" in text) == (rate > cell.ladder[3])
        assert "| all of the updates | 1 | 1 | 1 | 1 | 0 |" in text
        assert "| 1/2 of the updates | 1 | 0 | 0 | 0 | 1 |" in text  # the highest rate looked best there


def made_up(noise: float) -> list[judge.Case]:
    """Cells whose edge is 8 times the rate with the lowest loss after the look, on two tasks and in two families."""
    cases = []
    for number in range(24):
        arch, task = ("ours", "vit")[number % 2], ("causal_lm", "digits")[number // 2 % 2]
        cell = dataclasses.replace(CELL, arch=arch, task=task)
        best = 2 + (number * 7) % 4
        ends = {r: 1 + 0.3 * abs(at - best) if at <= best + 3 else 3.0 for at, r in enumerate(cell.ladder)}
        probes = [
            {
                "rate": rate, "start": 3.0, "spread": 0.5, "losses": [3.0, 2.9, 2.8, 2.7, 2.2 + 0.1 * abs(at - best)],
                "diversities": [0.5, 0.5, 0.5 if at <= best + 3 else noise], "moved": [rate * 10],
            }
            for at, rate in enumerate(cell.ladder)
        ]  # fmt: skip
        cases.append(judge.case(cell, ends, cell.ladder[best + 3], probes, 0.0))
    return cases


def test_the_judge_tells_a_good_answer_from_a_bad_one() -> None:
    table = {(row["question"], row["left out"], row["by"]): row for row in judge.judged(made_up(1e-3))}
    for split in judge.GROUPS:
        assert table["edge", split, "look"]["within 2"] == 1.0
        assert table["edge", split, "lowest loss × constant"]["within 2"] == 1.0
        assert table["best", split, "look"]["within 2"] == 1.0
        assert table["edge", split, "kind"]["within 2"] < 0.8  # the cells are all of one kind
        assert table["edge", split, "verdict today"]["abstains"] == 24
        assert table["edge", split, "kind"]["wrong"]


def test_it_withholds_an_answer_where_the_look_says_nothing() -> None:
    case = made_up(1e-3)[0]
    assert not case.known
    flat = [
        {"rate": r, "start": 3.0, "spread": 0.5, "losses": [3.0] * 5, "diversities": [0.5], "moved": [0.1]}
        for r in CELL.ladder
    ]
    assert judge.case(CELL, case.ends, case.edge, flat, 0.0).known == "no rate lowers the loss"
    falling = [row | {"losses": [2 - at / 10] * 5} for at, row in enumerate(flat)]
    assert judge.case(CELL, case.ends, case.edge, falling, 0.0).known.startswith("the lowest loss is at an end")


def test_a_variant_finds_what_decides_and_answers_for_cells_that_it_did_not_see(tmp_path: Path) -> None:
    """Edges of 8 times the rate with the lowest loss, of cells that are all of one kind."""
    cells, rows = [], Rows(tmp_path)
    for number, case in enumerate(made_up(1e-3)):
        name = f"{case.cell.name.rpartition('/')[0]}/{number}"  # by warm-up
        cells.append(case._replace(cell=cell_of(name)))
        probes = [
            {
                "cell": name, "rate": rate, "start": 3.0, "spread": 0.5, "ratio": rate, "most": rate,
                "losses": [3.0, 2.9, 2.8, 2.7, 2.2 + abs(math.log2(rate / case.lowest)) / 10],
                "diversities": [0.5] * 5, "moved": [rate * 10] * 5,
            }
            for rate in case.rates
        ]  # fmt: skip
        rows.add("probe", probes)
    table = second.Table(cells, rows)
    asked = table.groups("task") == "digits"
    for seen, right in (("lowest", 1.0), ("around", 1.0), ("nothing", 0.5)):
        said = table.answers(second.Variant(seen, 0, False, 0.3), "edge", ~asked, asked)
        errors = table.errors(said, "edge", asked)
        assert (errors < 0.5).mean() == pytest.approx(right, abs=0.25), seen
    assert table.chosen("edge", table.groups("task"), asked | ~asked).seen != "nothing"
    constant = table.errors(table.constant("lowest", "edge", ~asked, asked), "edge", asked)
    assert constant.max() < 1e-6
    assert all(math.isnan(error) for error in table.errors(table.today("edge", ~asked, asked), "edge", asked))


def test_a_rule_takes_the_lowest_loss_below_what_has_failed() -> None:
    cell = choices.Ladder(
        CELL, {rate: 1 + 0.3 * abs(at - 2) for at, rate in enumerate(CELL.ladder)}, CELL.ladder[8], True
    )
    seen: dict[float, dict[int, tuple[float | None, float]]] = {
        rate: {12: (2.9, 1.0), 25: (2 + 0.2 * abs(at - 4), 1.0 if at < 7 else 0.005)}
        for at, rate in enumerate(CELL.ladder)
    }
    assert rules.Rule(4)(cell, seen) == CELL.ladder[4]
    assert rules.Rule(4, halved=1)(cell, seen) == CELL.ladder[3]
    assert rules.Rule(4, slack=0.2)(cell, seen) == CELL.ladder[3]
    seen[CELL.ladder[9]][25] = (0.1, 0.005)
    assert rules.Rule(4)(cell, seen) == CELL.ladder[4]  # its tokens have become alike
    seen[CELL.ladder[3]][25] = (2.95, 1.0)
    assert rules.Rule(4, rising=True)(cell, seen) == CELL.ladder[2]
    seen[CELL.ladder[0]][25] = (None, 0.0)
    assert rules.Rule(4)(cell, seen) == CELL.ladder[0]  # all have failed
    assert rules.nearest(cell, CELL.ladder[3] * 1.3) == CELL.ladder[3]
    assert rules.badness(rules.Rule(4), [(cell, seen)]) == pytest.approx(0.6)


def test_the_document_says_what_the_files_say() -> None:
    docs, rows = Path("docs/inspect.md").read_text(encoding="utf-8"), Rows(Path("bench/results"))
    assert judge.written(docs, "judge", judge.page(rows)) == docs
    assert judge.written(docs, "second", second.page(rows)) == docs
