"""How a training stands: from its folder alone, which another process may be writing, moving or deleting."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from leadline import machine
from leadline.errors import UserError
from leadline.history import number
from leadline.report.page import Tone, Words
from leadline.report.runs import ReportedRun, read_one

SILENT = 15.0  # seconds without a line, or three times what a line usually takes: then nothing trains there
WORST_FIRST: list[Tone] = ["bad", "warning", "plain", "good"]
REMEMBERED = 20  # lines of metrics that the time left is told from


@dataclass(frozen=True)
class Standing:
    words: str
    tone: Tone = "plain"
    run: ReportedRun | None = None  # where it has measured something

    @property
    def done(self) -> float | None:
        total = total_of(self.run) if self.run else 0
        return min(1.0, self.run.history.rows[-1]["update"] / total) if self.run and total else None


def standing(folder: Path, name: str) -> Standing:
    if not folder.is_dir():
        return Standing(f"{name}: there is no folder {folder}. Waiting for it.", "warning")
    held = machine.lock_is_held(folder / ".lock")
    try:
        run = read_one(folder, name)
        written = (folder / "metrics.jsonl").stat().st_mtime if run.history.rows else 0.0
    except (UserError, OSError) as error:  # an OSError: it is being deleted
        if held:
            return Standing(f"{name}: preparing its data.")
        return Standing(f"{name}: {error}.", "warning")
    if not run.history.rows:
        if held:
            return Standing(f"{name}: training begins; nothing is measured yet.")
        return Standing(f"{name}: nothing is measured yet. Begin with leadline train --resume {folder}", "warning")
    ended, silent = run.ended, time.time() - written
    if ended == "diverged" and not held:
        where = f"diverged at update {run.history.rows[-1]['update']:,}"
        return Standing(f"{name}: {where}. Its last loss or gradient is not finite.", "bad", run)
    if ended.startswith("complete") and not held:
        return Standing(f"{name}: {ended}, {_progress(run)}. {_losses(run)}", "good", run)
    if held or silent < max(SILENT, 3 * _seconds_a_line(run)):
        words = f"{name}: training, {_progress(run)}{_left(run)}. {_losses(run)}"
        return Standing(words, run=replace(run, trains=True))
    going_on = f"nothing for {duration(silent)}; go on with leadline train --resume {folder}"
    return Standing(f"{name}: stopped, {_progress(run)}, {going_on}", "warning", run)


def section(standings: list[Standing]) -> Words:
    tone = min((each.tone for each in standings), key=WORST_FIRST.index)
    return Words("Now", [each.words for each in standings], tone, [each.done for each in standings])


def total_of(run: ReportedRun) -> int:
    """Updates that it is expected to take; 0 where that is not known."""
    updates, epochs = (number(run.config.get(f"train.{key}")) or 0 for key in ("updates", "epochs"))
    limits = [updates, epochs * (number(run.facts.get("updates_per_epoch")) or 0)]
    return int(min((limit for limit in limits if limit), default=0))


def _progress(run: ReportedRun) -> str:
    update, total = run.history.rows[-1]["update"], total_of(run)
    return f"update {update:,} of {total:,} ({update / total:.0%})" if total else f"update {update:,}"


def _losses(run: ReportedRun) -> str:
    loss = number(run.history.last("loss"))
    said = [f"Loss {loss:.4g}"] if loss is not None else []
    if run.evaluations:
        best, at = min(run.evaluations)
        said.append(f"validation {run.evaluations[-1][0]:.4g} {run.unit}, at best {best:.4g} at update {at:,}")
    return "; ".join(said) + "." if said else ""


def _pace(run: ReportedRun) -> list[tuple[float, float]]:
    """(update, seconds of training) of the last lines; seconds do not count evaluations."""
    return list(zip(*run.history.points("seconds"), strict=True))[-REMEMBERED:]


def _seconds_a_line(run: ReportedRun) -> float:
    pace = _pace(run)
    return (pace[-1][1] - pace[0][1]) / (len(pace) - 1) if len(pace) > 1 else 0.0


def _left(run: ReportedRun) -> str:
    pace, updates = _pace(run), total_of(run) - run.history.rows[-1]["update"]
    if len(pace) < 2 or updates <= 0 or pace[-1][0] <= pace[0][0]:
        return ""
    seconds = (pace[-1][1] - pace[0][1]) / (pace[-1][0] - pace[0][0]) * updates
    return f", about {duration(seconds)} of training left" if seconds >= 0 else ""


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
