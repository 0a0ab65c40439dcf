"""What explain says of every training, and the shares of what is right."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.injected.faults import KINDS, TABLES, Case, case_of
from bench.injected.gallery import TITLES
from bench.injected.trainings import WATCHED
from leadline.files import write_text

RESULTS = Path(__file__).parents[1] / "results"
DOCS = Path(__file__).parents[2] / "docs" / "watch.md"
BEGIN, END = "<!-- python -m bench.injected tell -->\n", "<!-- end -->\n"
COLUMNS = [
    "table", "training", "fault", "seed", "at", "put", "named", "where", "since", "right", "alarm", "shown", "others",
]  # fmt: skip
FITTED = "thresholds chosen on it"
TODAY = 47  # the first seed that today's rules have not seen
ROLES = {
    FITTED: (4,),
    "a rule was mended after": (5, 7, 9),
    "rules were mended after, and say the same of it": (11, 13, 17),
    "judged before rules were mended": (19, 23, 29),
    "no rule has changed since": (TODAY,),
}
TITLES_OF_NOISE = {
    "healthy": "with small batches, dropout or high rates",
    "label_noise": "with 30 % wrong labels",
    "bursts": "with one batch in twelve of another alphabet",
    "tiny": "with the smallest batches",
    "restarts": "with a rate that restarts",
}
ABOUT = 20  # updates by which the first of a slow fault may be told wrongly


def judge(folder: Path) -> None:
    """What explain says of every training in a folder, beside those of other folders."""
    rows = {(row["training"], row["fault"], row["seed"]): row for row in _rows()}
    for truth in sorted(folder.glob("*/truth.txt")):
        row = _judged(case_of(truth.parent.name), truth.parent)
        rows[row["training"], row["fault"], row["seed"]] = row
    with (RESULTS / "injected.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(sorted(rows.values(), key=_order))
    tell()


def _rows() -> list[dict[str, str]]:
    return list(csv.DictReader((RESULTS / "injected.csv").open(encoding="utf-8")))


def _order(row: Mapping[str, str]) -> tuple[int, str, str, str]:
    return int(row["seed"]), row["table"], row["fault"], row["training"]


def _judged(case: Case, folder: Path) -> dict[str, str]:
    from leadline import alarm, flight, history
    from leadline.diagnose.explain import explain

    put, measured = (folder / "truth.txt").read_text(), flight.read(folder)
    causes = explain(folder).causes
    first = causes[0] if causes else None
    seer = alarm.Seer()
    alarms = [row["update"] for row in measured if "loss" in row and seer.see(row)]
    alarms += [cause.update + _until_look(cause.update) for cause in causes if cause.kind == "norm"]
    if case.healthy:  # and what our loop has told besides
        alarms += [row["update"] for row in history.read(folder).rows if row.get("alarm")]
    # Where a sudden fault begins, every update counts; a norm is only looked at every WATCHED updates.
    reach = ABOUT if case.table == "slow" else WATCHED if case.fault == "norm" else 1
    right = (
        first is not None
        and first.kind == case.kind
        and abs(first.update - case.at) <= reach
        and _is_place(first.where, "embeddings" if case.fault in ("embedding", "decay") else put)
    )
    after = [update for update in alarms if not case.healthy and update >= case.at]
    shown = "" if case.healthy else _shown(history.read(folder).points("valid_nll"), case.at)
    values = [
        case.table, case.training, case.fault, case.seed, "" if case.healthy else case.at, put,
        first.kind if first else "", first.where if first else "", first.update if first else "",
        int(not first) if case.healthy else int(right),
        min(alarms if case.healthy else after, default=""), shown, len(causes) - 1 if causes else 0,
    ]  # fmt: skip
    return dict(zip(COLUMNS, map(str, values), strict=True))


def _until_look(update: int) -> int:
    return -update % WATCHED


def _is_place(where: str, put: str) -> bool:
    """`put` is the name of a weight or a norm: of the sublayer, of its residual connection, or of its block."""
    if not put or ("norm" not in put and "ln_" not in put):
        return not put or (bool(where) and put.startswith(where))
    names = {"ln_1": "attn", "ln_2": "mlp", "attn_residual": "attn", "cross_residual": "cross", "ffn_residual": "ffn"}
    home, parts = [], put.split(".")
    for part in parts:
        home.append(names.get(part, part))
    return where == ".".join(home[: home.index(home[-1])] if home[-1] == "norm" else home)


def _shown(points: tuple[list[float], list[float]], at: int) -> Any:
    """The first validation after a fault that is worse than the best before it."""
    updates, losses = points
    best = min((loss for update, loss in zip(updates, losses, strict=True) if update < at), default=0.0)
    return next((int(u) for u, loss in zip(updates, losses, strict=True) if u >= at and loss > best + 0.02), "")


def tell() -> None:
    """The table of docs/watch.md, from the file."""
    text = table(_rows())
    print(text)
    write_text(DOCS, written(DOCS.read_text(encoding="utf-8"), text))
    _tell_saved()


def table(rows: list[dict[str, str]]) -> str:
    """What was named and when an alarm came, by what a seed is for."""
    lines = [
        "| faults | seeds | trainings | of the right kind | with place and update | shown by the validation loss | an "
        "alarm came before or with it |",
        "|---|---|---|---|---|---|---|",
    ]
    wrong = []
    for name in TABLES:
        for role, of in ROLES.items():
            some = [row for row in rows if row["table"] == name and int(row["seed"]) in of]
            shown = [row for row in some if row["shown"]]
            early = sum(bool(row["alarm"]) and int(row["alarm"]) <= int(row["shown"]) for row in shown)
            seeds = ", ".join(map(str, of))
            kinds = sum(row["named"] == KINDS.get(row["fault"], row["fault"]) for row in some)
            right = sum(int(row["right"]) for row in some)
            lines.append(f"| {name}, {role} | {seeds} | {len(some)} | {kinds} | {right} | {len(shown)} | {early} |")
            wrong += [row for row in some if role != FITTED and row["right"] == "0"]
    missed = Counter(f"`{row['fault']}` in {TITLES[row['training']]}" for row in wrong)
    lines += [
        "",
        "Without a fault: how many are of each kind, in how many `explain` found one, and how many had an alarm.",
        f"Seeds before {TODAY}, judged by the rules of their time: {_noises(rows, range(TODAY))}.",
        f"Seeds from {TODAY} on, judged by those of today: {_noises(rows, range(TODAY, TODAY + 5))}.",
        "",
        "Wrong or not found on the seeds that judge: "
        f"{', '.join(f'{of} ({count})' for of, count in sorted(missed.items()))}.",
    ]
    return "\n".join(lines)


def _noises(rows: list[dict[str, str]], seeds: range) -> str:
    there = [row for row in rows if row["table"] in ("noisy", "healthy") and int(row["seed"]) in seeds]
    said = []
    for kind, title in TITLES_OF_NOISE.items():
        of = [row for row in there if (row["fault"] or "healthy") == kind]
        said.append(f"{len(of)} {title}: {sum(bool(r['named']) for r in of)} and {sum(bool(r['alarm']) for r in of)}")
    return "; ".join(said)


def written(page: str, text: str) -> str:
    """The page with this table in it."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{text}\n{END}{rest.partition(END)[2]}"


def _tell_saved() -> None:
    """How far from the undisturbed training each bad batch left its own, rolled back and not."""
    rows = list(csv.DictReader((RESULTS / "rollback.csv").open(encoding="utf-8")))
    ends = {(row["training"], row["seed"], row["how"]): float(row["valid_nll"]) for row in rows}
    for how in ("ignore", "rollback"):
        apart = [loss - ends[t, seed, "undisturbed"] for (t, seed, done), loss in ends.items() if done == how]
        near = sum(abs(nats) <= 0.02 for nats in apart)
        print(f"{how}: {near} of {len(apart)} within 0.02 nats of the undisturbed training, {max(apart):.4f} at most")
