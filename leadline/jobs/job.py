"""A job is a config and a name: what tells it from others, its folder, and its result.

Its folder is named after a hash of the config, the data and the number of the numerics, so figures that need the same
run share it, and what other code computed is not taken for it. `result.json` says that it is finished, and which code
made it; checkpoints that nobody asked to keep are then deleted, metrics and config stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.config import Config, settings, to_toml
from leadline.errors import UserError
from leadline.files import Facts, facts_in, write_json
from leadline.provenance import NUMERICS
from leadline.training.events import Event

JobResult = Facts  # of result.json
OnEvent = Callable[[str, Event], None]
LAST = "last"  # for Job.keep: the newest checkpoint, whatever its number


@dataclass(frozen=True)
class Job:
    name: str  # for people
    config: Config
    data_key: str  # of the prepared data: see leadline.data.store
    watch: int = 0  # every so many updates, layers and output are looked at (leadline.diagnose); 0: never
    start: str = ""  # what tells the weights it starts from from others, where train.start names a run
    keep: tuple[str, ...] = ()  # checkpoints that stay when it is finished: their numbers, or LAST
    group: str = ""  # what it is made for: a job of the same group and name takes the place of an earlier one
    score: int = 0  # of a translation: so many test sentences are translated and scored at its end
    samples: tuple[str, ...] = ()  # of a translation: sentences whose translations the result holds
    place: str = ""  # the name of its folder; "": after its placement and key

    @property
    def key(self) -> str:
        """Of everything that makes a difference to the result, which is not where the run is computed."""
        values = settings(self.config) | {"task": self.config.task, "data": self.data_key, "numerics": NUMERICS}
        for name in ("watch", "start", "score", "samples"):
            values |= {name: getattr(self, name)} if getattr(self, name) else {}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def start_folder(self) -> Path:
        return Path(self.config.train.start) / "checkpoints" / self.config.train.start_checkpoint

    def folder(self, root: Path) -> Path:
        return root / (self.place or f"{self.config.model.placement.rpartition(':')[2]}-{self.key}")


def finished(job: Job, root: Path) -> JobResult | None:
    """What a job has left, if it is finished and has kept what it should."""
    folder = job.folder(root)
    result = facts_in(folder / "result.json")
    if result is None or (job.place and (facts_in(folder / "job.json") or {}).get("key") != job.key):
        return None
    there = {path.name for path in (folder / "checkpoints").glob("[0-9]*")}
    kept = all(there if name == LAST else name in there for name in job.keep)
    return result if kept or result["diverged"] else None


def unfinished(jobs: Sequence[Job], root: Path) -> list[Job]:
    different = {job.key: job for job in reversed(jobs)}  # of equal ones the first
    return [job for job in reversed(different.values()) if finished(job, root) is None]


def stale(jobs: Sequence[Job], root: Path) -> Iterator[tuple[str, str]]:
    """(name, why) of earlier results that had the place of these jobs and cannot be used."""
    waiting = {(job.group, job.name): job for job in unfinished(jobs, root)}
    ours = {job.folder(root) for job in jobs}
    for path in sorted(root.glob("*/result.json")) if waiting else []:
        if path.parent in ours:
            continue
        result, before = facts_in(path) or {}, facts_in(path.with_name("job.json")) or {}
        group = before.get("group")
        matching = [job for job in waiting.values() if job.name == result.get("name") and group in (None, job.group)]
        for job in matching:
            yield job.name, f"the result in {path.parent} is not used: {_why(result, before, job)}"


def _why(result: JobResult, facts: Facts, job: Job) -> str:
    if result.get("numerics") != NUMERICS:
        return f"it was computed by numerics {result.get('numerics', 1)}, and this is {NUMERICS}"
    before, now = result.get("settings", {}), json.loads(json.dumps(settings(job.config)))
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    texts = [f"{key} was {before.get(key, 'not there')} and is {now.get(key, 'not there')}" for key in changed]
    if facts.get("start") != job.start:
        texts.append("it started from other weights")
    if facts.get("watch") != job.watch:
        texts.append(f"it was watched every {facts.get('watch')} updates, and this one is every {job.watch}")
    if facts.get("data") != job.data_key:
        texts.append("it is of other data")
    return ", ".join(texts)


def tell_stale(jobs: Sequence[Job], root: Path, on_event: OnEvent) -> None:
    for name, why in stale(jobs, root):
        on_event(name, Event("message", 0, 0, {}, why))


def lay_out(job: Job, root: Path, threads: int = 1) -> Path:
    """The folder of a job, with what its worker reads.

    A run that has begun keeps its number of threads: sums are rounded otherwise with another.
    """
    folder = job.folder(root)
    before = facts_in(folder / "job.json") or {}
    if (folder / "config.toml").exists():
        if job.place and before.get("key") != job.key:
            raise UserError(f"{folder} holds another run: choose another folder with --out")
        threads = before.get("threads", threads)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)  # one that is done again is not finished until it is
    (folder / "job.toml").write_text(to_toml(job.config), encoding="utf-8")
    facts = {"name": job.name, "group": job.group, "key": job.key, "data": job.data_key, "start": job.start}
    asked = {"watch": job.watch, "keep": job.keep, "score": job.score, "samples": job.samples, "threads": threads}
    write_json(folder / "job.json", facts | asked)
    return folder


def last_words(folder: Path) -> str:
    """The end of its log, for people."""
    log = folder / "log.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return f"{lines[-1] if lines else 'it was killed'} ({log})"
