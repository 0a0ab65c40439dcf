"""The runs of a figure: which they are, training those that are not there, and the files they end in.

What a figure reads of its runs is kept in NAME/runs.jsonl, from which it can be made again without training anything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from leadline import history
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.errors import UserError
from leadline.files import Facts, to_json, write_json, write_text
from leadline.history import History
from leadline.jobs.engine import Execute, execute
from leadline.jobs.job import Job, OnEvent, finished, tell_stale
from leadline.provenance import NUMERICS, code
from leadline.reproduce.claims import Judged, judge
from leadline.reproduce.figure import ALL, Chosen, Figure, FinishedRun, Variants
from leadline.reproduce.showing import facts_of_claim, sections, write_page

Planned = dict[tuple[str, int], Job]  # by label and seed
Kept = tuple[Facts, History]  # the result of a run, and what figures read of its measurements
# What figures read of a run's rows.
READ = ("valid_", "watch/drift", "watch/change", "watch/norm_input/", "watch/second_matrix/")


def read_kept(path: Path) -> dict[str, Kept]:
    """By key: what earlier commands, perhaps on other machines, have measured for this figure."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {line["key"]: (line["result"], History(line["rows"])) for line in lines}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}; remove it to train its runs again") from None


def write_kept(path: Path, kept: Mapping[str, Kept]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, (result, measured) in kept.items():
        some = [
            {k: v for k, v in row.items() if k in ("update", "epoch") or k.startswith(READ)} for row in measured.rows
        ]
        told = [row for row in some if len(row) > ("epoch" in row) + 1]
        lines.append(to_json({"key": key, "result": result, "rows": told}) + "\n")
    write_text(path, "".join(lines))


def plan(
    variants: Variants, seeds: int, root: Path, progress: Progress = lambda what, done: None, group: str = ""
) -> Planned:
    """Each after the one it starts from, and every label with its first seed before any has its second.

    So a command that is stopped has something to say of every claim.
    """
    keys = {variant.config.data: "" for variant in variants.values()}
    for data in keys:
        keys[data] = Store(prepare(data, progress=progress)).manifest["key"]
    many = {label: 1 if variant.once else max(seeds, variant.seeds) for label, variant in variants.items()}
    wanted = [(label, v, seed) for label, v in variants.items() for seed in range(1, many[label] + 1)]
    planned: Planned = {}
    for label, variant, seed in sorted(wanted, key=lambda each: (bool(each[1].start), each[2])):
        config, start = variant.config.set(train={"seed": seed}), ""
        if variant.start:  # from the same seed, or the first where that was not run
            before = planned.get((variant.start, seed)) or planned[variant.start, 1]
            place = {"start": str(before.folder(root).resolve()), "start_checkpoint": f"{variant.checkpoint:08d}"}
            config, start = config.set(train=place), f"{before.key} after {variant.checkpoint}"
        name = f"{label}, seed {seed}"
        planned[label, seed] = Job(name, config, keys[config.data], variant.watch, start, group=group)
    return planned


def train(
    planned: Planned,
    root: Path,
    at_once: int,
    on_event: OnEvent,
    execute: Execute = execute,
    kept: Mapping[str, Kept] = MappingProxyType({}),
) -> None:
    """What is not there yet. A run that others start from keeps the checkpoints they need until they are there."""
    later = [job for job in planned.values() if job.start and job.key not in kept]
    needed: dict[str, set[str]] = {}
    for job in later:
        if finished(job, root) is None:
            needed.setdefault(job.config.train.start, set()).add(job.config.train.start_checkpoint)
    first = [
        replace(job, keep=tuple(sorted(needed.get(str(job.folder(root).resolve()), ()))))
        for job in planned.values()
        if not job.start
    ]
    execute([job for job in first if job.keep or job.key not in kept], root, at_once, on_event)
    # Of a run that diverged before, there is no such checkpoint, and nothing to start from.
    execute([job for job in later if job.start_folder.exists()], root, at_once, on_event)
    for job in first:
        shutil.rmtree(job.folder(root) / "checkpoints", ignore_errors=True)


def reproduce(
    name: str,
    figure: Figure,
    scale: str,
    base: Config,
    seeds: int,
    at_once: int,
    out: Path,
    on_event: OnEvent = lambda name, event: None,
    progress: Progress = lambda what, done: None,
    execute: Execute = execute,
    chosen: Chosen = ALL,
) -> list[Judged]:
    """Train what is not there yet; writes NAME.json and the page, also of a command that is stopped."""
    root = out / "runs"
    variants = chosen.among(figure.variants(scale, base), name)
    planned = plan(variants, seeds, root, progress, f"{name}, {scale}")
    archive = out / name / "runs.jsonl"
    kept = read_kept(archive)
    tell_stale([job for job in planned.values() if job.key not in kept], root, on_event)
    try:
        train(planned, root, at_once, on_event, execute, kept)
    finally:
        runs: dict[str, list[FinishedRun]] = {}
        for (label, seed), job in planned.items():
            if result := finished(job, root):
                kept[job.key] = result, history.read(job.folder(root))
            if job.key in kept:
                runs.setdefault(label, []).append(FinishedRun(label, seed, *kept[job.key]))
        write_kept(archive, kept)
        numbers = figure.numbers(runs)
        judged = [judge(claim, scale, numbers) for claim in figure.claims]
        facts = {"figure": name, "title": figure.title, "scale": scale, "seeds": seeds, "data": base.data.source}
        facts |= {"numerics": NUMERICS, "code": code(), "claims": [facts_of_claim(j) for j in judged]}
        facts |= {"runs": [_facts(run, planned[run.label, run.seed].key) for each in runs.values() for run in each]}
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"{name}.json", facts)
        write_page(figure, out, name, sections(figure, scale, base.data.source, runs, len(planned), judged))
    return judged


def _facts(run: FinishedRun, key: str) -> Facts:
    """What tells the result of a run from others, and which code made it."""
    kept = ("placement", "init", "layers", "updates", "seconds", "diverged", "valid_nll", "valid_bleu", "code")
    return {"label": run.label, "seed": run.seed, "key": key} | {k: run.result[k] for k in kept if k in run.result}
