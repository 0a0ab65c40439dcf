"""Run folders to the sections of a report: what was measured, how the runs differ, what they stand on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline import evaluations, history
from leadline.errors import UserError, not_a_run
from leadline.files import Facts, read_json
from leadline.history import History, number
from leadline.options import flat, read_toml
from leadline.provenance import facts_of
from leadline.report.heat import Heat
from leadline.report.page import Chart, Section, Series, Style, Table, Tone, Words

# key of a row, title, label with the unit, log y
CURVES = [
    ("lr", "Learning rate", "learning rate", False),
    ("grad_norm", "Gradient norm", "norm of the gradient", True),
    ("tokens_per_second", "Speed", "tokens a second", False),
    ("wait_share", "Waiting for the host", "share of the time that the device waits", False),
]
# In the first chart, or the same all the time.
ELSEWHERE = {"valid_loss", "valid_nll", "valid_skipped", "valid_trigram_nll", "valid_trigram_bits_per_byte"}
MEANS = {"bleu": "all", "bleu_to_en": "into English", "bleu_from_en": "out of English", "bleu_zero_shot": "zero-shot"}
WATCHED = "watch.json"  # of a training that is not ours
LAYERS_SHOWN = 12  # lines of a chart that are selected at first
ALARMS_SHOWN = 10


@dataclass(frozen=True)
class ReportedRun:
    """What a run folder says. Keys of the config are flat, such as "optim.lr"."""

    name: str
    config: Facts
    facts: Facts
    history: History
    by_direction: list[Facts] = field(default_factory=list)  # of many languages: what evaluate has written
    trains: bool = False  # right now, as far as is known

    @property
    def compares_with(self) -> tuple[str, str]:
        """Its task and its data: losses of runs that differ in these say nothing about each other."""
        data = self.facts.get("data")
        key = data.get("key") if isinstance(data, dict) else None
        return str(self.config.get("task", "translation")), str(key or self.config.get("data.source"))

    @property
    def unit(self) -> str:
        """What a loss is a mean over."""
        tasks = {"classification": "an example", "masked_lm": "a masked token"}
        return f"nats {tasks.get(self.compares_with[0], 'a token')}"

    @property
    def evaluations(self) -> list[tuple[float, float]]:
        """(validation loss, update) wherever it was a number."""
        updates, losses = self.history.points("valid_nll")
        return list(zip(losses, updates, strict=True))

    @property
    def ended(self) -> str:
        if self.trains:
            return "still training"
        last = [self.history.curve(key)[1][-1:] for key in ("loss", "grad_norm", "valid_nll")]
        if [None] in last:
            return "diverged"
        row = self.history.rows[-1]
        updates, epochs, patience = (
            number(self.config.get(f"train.{key}")) for key in ("updates", "epochs", "patience")
        )
        if (updates and row["update"] >= updates) or (epochs and row.get("epoch", 0) >= epochs):
            return "complete"
        if patience and self.evaluations and self._stale >= patience:
            return f"complete at update {row['update']}: no better in {self._stale} evaluations"
        return f"stopped at update {row['update']}"

    @property
    def _stale(self) -> int:
        """Evaluations since the best."""
        losses = [loss for loss, _ in self.evaluations]
        return len(losses) - 1 - losses.index(min(losses))


def sections_of(folders: Sequence[Path]) -> list[Section]:
    """One report of one run, or of several; those of the same task and data are compared."""
    return compared(read(folders))


def compared(runs: list[ReportedRun]) -> list[Section]:
    """The sections about runs that have measured something."""
    kinds = kinds_of(runs)
    if len(kinds) == 1:
        return [_summary(runs), *_alarms(runs), *_compared(runs), *_stood_on(runs)]
    shown: list[Section] = [
        Words("In short", ["These runs differ in task or data, so their losses are not compared.", *_told(runs)]),
        *_alarms(runs),
    ]
    for (task, _), members in kinds.items():
        heading = f"{task.replace('_', ' ').capitalize()}: {', '.join(run.name for run in members)}"
        shown += [replace(_summary(members), title=heading), *_compared(members)]
    return [*shown, *_stood_on(runs)]


def kinds_of(runs: list[ReportedRun]) -> dict[tuple[str, str], list[ReportedRun]]:
    """Those that can be compared with each other."""
    kinds: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in runs:
        kinds.setdefault(run.compares_with, []).append(run)
    return kinds


def _compared(runs: list[ReportedRun]) -> list[Section]:
    return [loss_of(runs), *_directions(runs), *_curves(runs), *_layers(runs), overview(runs), *differences(runs)]


def _stood_on(runs: list[ReportedRun]) -> list[Section]:
    return [
        _side_by_side("Configuration", runs, lambda run: run.config),
        _side_by_side("Versions, device and data", runs, _stands_on),
    ]


def read(folders: Sequence[Path]) -> list[ReportedRun]:
    if not folders:
        raise UserError("there is nothing to report: name one run folder or more")
    runs = []
    for folder, name in named(folders).items():
        runs.append(read_one(folder, name))
        _require_measured(folder, runs[-1])
    return runs


def named(folders: Sequence[Path]) -> dict[Path, str]:
    """Each folder once, with the name that tells it from the others."""
    paths = list(dict.fromkeys(folder.expanduser().resolve() for folder in folders))
    short = [path.name for path in paths]
    return dict(zip(paths, short if len(set(short)) == len(short) else map(str, paths), strict=True))


def read_one(folder: Path, name: str) -> ReportedRun:
    """A run as it is now, perhaps before it has measured anything."""
    if (folder / WATCHED).is_file():
        return _watched(folder, name)
    facts = facts_of(folder)
    if not (folder / "config.toml").is_file() and "seal" not in facts:
        raise not_a_run(folder)
    if (folder / "run.json").exists() and not facts:
        raise UserError(f"{folder / 'run.json'} is damaged: leadline train --resume {folder} writes it again")
    # What it was trained with, also where config.toml has been torn or changed; earlier versions have that alone.
    config = facts["config"] if "seal" in facts else read_toml(folder / "config.toml")
    return ReportedRun(name, flat(config), facts, history.read(folder), list(evaluations.read(folder)))


def _watched(folder: Path, name: str) -> ReportedRun:
    """What leadline.Watch has written in a loop that is not ours."""
    try:
        facts = read_json(folder / WATCHED)
        placements = {place["placement"] for place in facts["connections"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / WATCHED} is damaged: watch again, in another folder") from None
    config = {"task": str(facts.get("model")), "model.placement": ", ".join(sorted(map(str, placements)))}
    return ReportedRun(name, config, facts, history.read(folder))


def _require_measured(folder: Path, run: ReportedRun) -> None:
    if run.history.rows:
        return
    if not (folder / "metrics.jsonl").exists():
        raise UserError(f"{folder} has no metrics.jsonl: train it first, with leadline train --resume {folder}")
    raise UserError(f"{folder} holds no measurement yet: wait for one, or leadline train --resume {folder}")


def _summary(runs: list[ReportedRun]) -> Words:
    diverged = [run.name for run in runs if run.ended == "diverged"]
    scored = [(*min(run.evaluations), run.name) for run in runs if run.evaluations]
    paragraphs = ["Nothing has been validated yet."]
    if scored:
        loss, update, name = min(scored)
        paragraphs = [f"The lowest validation loss is {loss:.4g} {runs[0].unit}, of {name} at update {update}."]
    if diverged:
        paragraphs.append(f"Diverged: {', '.join(diverged)}. The last values are not finite.")
    tone: Tone = "plain" if not diverged else "bad" if len(diverged) == len(runs) else "warning"
    return Words("In short", [*paragraphs, *_told(runs)], tone)


def _told(runs: list[ReportedRun]) -> list[str]:
    damaged = [run for run in runs if run.history.damaged]
    return [f"{run.history.damaged} damaged lines of {run.name}'s metrics.jsonl are left out." for run in damaged]


def _alarms(runs: list[ReportedRun]) -> list[Section]:
    """What --watch has said, the latest first."""
    said = [(row["update"], f"{run.name}, update {row['update']:,}: {row['alarm']}.")
            for run in runs for row in run.history.rows if "alarm" in row]  # fmt: skip
    shown = [text for _, text in sorted(said, key=lambda each: -each[0])]
    more = [f"And {len(shown) - ALARMS_SHOWN} before."] if len(shown) > ALARMS_SHOWN else []
    return [Words("Alarms of --watch", [*shown[:ALARMS_SHOWN], *more], "warning")] if shown else []


def loss_of(runs: list[ReportedRun]) -> Chart:
    series = []
    for run in runs:
        series.append(Series("training", *run.history.curve("loss"), group=run.name))
        series.append(Series("validation", *run.history.curve("valid_nll"), style="points", group=run.name))
    caption = "Lines: training, with label smoothing where the run has it. Points: validation, without."
    return Chart("Loss", "update", f"loss ({runs[0].unit})", series, caption=caption)


def _directions(runs: list[ReportedRun]) -> Iterable[Heat]:
    """Of many languages: BLEU from every language into every other."""
    for run in runs:
        for facts in run.by_direction:
            bleu = {row["direction"]: float(row["bleu"]) for row in facts["by_direction"]}
            ends = [direction.split("-") for direction in bleu]
            sources, targets = (sorted({each[side] for each in ends}) for side in (0, -1))
            values = [[bleu.get(f"{source}-{target}", math.nan) for target in targets] for source in sources]
            off = number(facts.get("off_target")) or 0.0
            means = ", ".join(
                f"{words} {facts[key]:.1f}" for key, words in MEANS.items() if number(facts.get(key)) is not None
            )
            caption = f"Means: {means}. Off-target (in another language than asked for): {off:.1%} of the outputs."
            where = f" of {run.name}" if len(runs) > 1 else ""
            yield Heat(f"BLEU by direction, {facts['name']}{where}", "into", "from", targets, sources, values, caption)


def _curves(runs: list[ReportedRun]) -> Iterable[Chart]:
    scores = sorted(
        {key for run in runs for row in run.history.rows for key in row if key.startswith("valid_")} - ELSEWHERE
    )
    for key in scores:
        name = key.removeprefix("valid_").replace("_", " ")
        yield _curve(runs, key, f"Validation {name}", name, False, "points")
    for key, title, label, log_y in CURVES:
        if any(key in row for run in runs for row in run.history.rows):
            yield _curve(runs, key, title, label, log_y, "line")


def _curve(runs: list[ReportedRun], key: str, title: str, label: str, log_y: bool, style: Style) -> Chart:
    # A run without values keeps its place, and so its colour.
    series = [Series(run.name, *run.history.curve(key), style=style) for run in runs]
    return Chart(title, "update", label, series, log_y=log_y)


def _layers(runs: list[ReportedRun]) -> Iterable[Chart]:
    """watch/<quantity>/<name>: a chart for each quantity, a line for each name."""
    keys = list(
        dict.fromkeys(key for run in runs for row in run.history.rows for key in row if key.startswith("watch/"))
    )
    quantities = list(dict.fromkeys(key.split("/")[1] for key in keys))
    for quantity in quantities:
        start = f"watch/{quantity}/"
        series = []
        for run in runs:
            own = [key for key in keys if key.startswith(start) and any(key in row for row in run.history.rows)]
            chosen = set(_evenly(own, max(1, LAYERS_SHOWN // len(runs))))
            for key in own:
                name = key.removeprefix(start)
                full = f"{run.name}: {name}" if len(runs) > 1 else name
                series.append(Series(full, *run.history.curve(key), selected=key in chosen))
        words = quantity.replace("_", " ")
        yield Chart(f"{words.capitalize()} by layer", "update", words, series, log_y=True)


def _evenly(items: list[str], count: int) -> list[str]:
    """At most `count` of them, the first and the last included."""
    if len(items) <= count or count == 1:
        return items[-count:]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def overview(runs: list[ReportedRun]) -> Table:
    columns = ["run", "placement", "started from", "layers", "dim", "lr", "warm-up", "updates"]
    columns += ["last valid loss", "best valid loss", "best at", "seconds", "waited", "ended"]
    rows = []
    for run in runs:
        get = run.config.get
        stacks = [get(f"model.{stack}_layers", "–") for stack in ("encoder", "decoder")]
        layers = "-".join(str(count) for count in stacks if count != 0)
        start = flat(run.facts).get("chosen.init")
        asked = [run.name, get("model.placement"), start, layers]
        asked += [get("model.dim"), get("optim.lr"), get("optim.warmup")]
        last, (best, at) = (run.evaluations[-1][0], min(run.evaluations)) if run.evaluations else (None, (None, None))
        seconds = [value for value in run.history.curve("seconds")[1] if value is not None]
        waited = run.history.points("wait_seconds")[1]
        measured = [run.history.rows[-1]["update"], last, best, at, round(seconds[-1]) if seconds else None]
        measured += [round(sum(waited), 1) if waited else None, run.ended]
        rows.append([*asked, *measured])
    return Table("Runs", columns, rows)


def differences(runs: list[ReportedRun]) -> Iterable[Section]:
    if len(runs) == 1:
        return
    keys = dict.fromkeys(key for run in runs for key in run.config)
    differing = [key for key in keys if any(run.config.get(key) != runs[0].config.get(key) for run in runs)]
    title = "What differs between the runs"
    if differing:
        rows = [[key, *(_shown(run.config.get(key)) for run in runs)] for key in differing]
        yield Table(title, ["key", *(run.name for run in runs)], rows)
    else:
        yield Words(title, ["Nothing: their configurations are the same."])


def _side_by_side(title: str, runs: list[ReportedRun], values: Callable[[ReportedRun], Facts]) -> Table:
    columns = [values(run) for run in runs]
    keys = dict.fromkeys(key for each in columns for key in each)
    rows = [[key, *(_shown(each.get(key)) for each in columns)] for key in keys]
    return Table(title, ["key", *(run.name for run in runs)], rows, folded=True)


def _shown(value: object) -> str:
    """As it was written, not rounded: these are settings."""
    if isinstance(value, str):
        return value
    return "–" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _stands_on(run: ReportedRun) -> Facts:
    known = ("device", "chosen", "numerics", "code", "began", "versions", "data")
    facts = flat({key: run.facts.get(key, {}) for key in known})
    return {key: value for key, value in facts.items() if value != {} and not key.startswith("data.sha256.")}
