"""A figure of a paper: the runs it needs, what is read from them, what the paper claims, and the charts.

A run is known by its label ("post_ln, warm-up 500") and its seed; figures that ask for the same config share it. What a
figure reads of its runs is kept in NAME/runs.jsonl, from which the figure can be made again without training anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leadline import recipes
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.errors import UserError, nearest
from leadline.files import to_json, write_json
from leadline.jobs.engine import Execute, Job, OnEvent, execute, finished, read_rows, tell_stale
from leadline.provenance import NUMERICS, code
from leadline.report import page
from leadline.report.page import Chart, Section, Series, Table, Words
from leadline.reproduce.claims import Claim, Judged, Numbers, Verdict, judge

MARKS: dict[Verdict, str] = {
    "holds": "✓ holds",
    "does not hold": "✗ does not hold",
    "undecided": "? undecided",
    "not tested at this scale": "– not tested at this scale",
    "not measured": "– not measured",
}


@dataclass(frozen=True)
class Variant:
    """A run to be made, once a seed."""

    config: Config
    watch: int = 0  # every how many updates it is looked into; 0: not
    start: str = ""  # the label of the run whose weights it starts from,
    checkpoint: int = 0  # as they are after so many updates
    seeds: int = 0  # at least so many, whatever is asked for
    once: bool = False  # one seed is enough: no claim depends on it


Variants = dict[str, Variant]  # by label


@dataclass(frozen=True)
class Run:
    """One that is finished."""

    label: str
    seed: int
    result: dict[str, Any]
    rows: list[dict[str, Any]]  # of metrics.jsonl

    def curve(self, key: str, by: str = "update") -> tuple[list[float], list[float]]:
        found = [row for row in self.rows if row.get(key) is not None]
        return [row[by] for row in found], [row[key] for row in found]

    def first(self, key: str) -> float:
        """NaN where it was never measured."""
        return next((row[key] for row in self.rows if row.get(key) is not None), math.nan)

    def last(self, key: str) -> float:
        """NaN where it was never measured; a loss that diverged is infinite."""
        if key == "valid_nll" and self.result["diverged"]:
            return math.inf
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), math.nan)


Runs = Mapping[str, Sequence[Run]]  # by label, one a seed


def translation(scale: str) -> Config:
    """The IWSLT14 model of section 4.1; tiny: number words in a minute on a core."""
    if scale == "tiny":
        small = {"updates": 120, "batch_tokens": 512, "eval_every": 20, "bleu_sentences": 40, "keep": 1}
        return recipes.numerals().set(data={"size": 8000, "vocab_size": 500}, train=small)
    return recipes.iwslt14_pre_ln().set(
        train={
            "epochs": 12 if scale == "small" else 15,
            "step": "graph",
            "log_every": 50,
            "bleu_sentences": 1000 if scale == "small" else -1,
            "keep": 1,
        }
    )


@dataclass(frozen=True)
class Figure:
    title: str
    paper: str  # where it is
    variants: Callable[[str, Config], Variants]  # of a scale, from its base
    numbers: Callable[[Runs], Numbers]
    charts: Callable[[Runs], list[Section]]
    claims: tuple[Claim, ...]
    seeds: int = 1  # at least, for its claims
    base: Callable[[str], Config] = translation  # what its runs vary, at a scale


@dataclass(frozen=True)
class Chosen:
    """Some of a figure's runs."""

    only: tuple[str, ...] = ()  # labels that begin so
    depths: tuple[int, ...] = ()  # layers of each stack

    def among(self, variants: Variants, name: str) -> Variants:
        """Those chosen, and those they start from."""
        for prefix in self.only:
            if not any(label.startswith(prefix) for label in variants):
                raise UserError(f"{name} has no run that begins with {prefix!r}: {nearest(prefix, variants)}")
        there = sorted({variant.config.model.encoder_layers for variant in variants.values()})
        for depth in self.depths:
            if depth not in there:
                raise UserError(f"{name} has no run of {depth} layers: it has {', '.join(map(str, there))}")
        found = {
            label: variant
            for label, variant in variants.items()
            if (not self.only or label.startswith(self.only))
            and (not self.depths or variant.config.model.encoder_layers in self.depths)
        }
        needed = {variant.start for variant in found.values()} - {""}
        return {label: variant for label, variant in variants.items() if label in found or label in needed}


ALL = Chosen()
Planned = dict[tuple[str, int], Job]  # by label and seed
Kept = tuple[dict[str, Any], list[dict[str, Any]]]  # the result of a run and those of its rows that figures read
# What figures read of a run's rows.
READ = ("valid_", "watch/drift", "watch/change", "watch/norm_input/", "watch/second_matrix/")


def read_kept(path: Path) -> dict[str, Kept]:
    """By key: what earlier commands, perhaps on other machines, have measured for this figure."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {line["key"]: (line["result"], line["rows"]) for line in lines}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}; remove it to train its runs again") from None


def write_kept(path: Path, kept: Mapping[str, Kept]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, (result, rows) in kept.items():
        short = [{k: v for k, v in row.items() if k in ("update", "epoch") or k.startswith(READ)} for row in rows]
        told = [row for row in short if len(row) > ("epoch" in row) + 1]
        lines.append(to_json({"key": key, "result": result, "rows": told}) + "\n")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


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
        runs: dict[str, list[Run]] = {}
        for (label, seed), job in planned.items():
            if result := finished(job, root):
                kept[job.key] = result, read_rows(job, root)
            if job.key in kept:
                runs.setdefault(label, []).append(Run(label, seed, *kept[job.key]))
        write_kept(archive, kept)
        judged = [judge(claim, scale, figure.numbers(runs)) for claim in figure.claims]
        facts = {"figure": name, "title": figure.title, "scale": scale, "seeds": seeds, "data": base.data.source}
        facts |= {"numerics": NUMERICS, "code": code(), "claims": [_row(j) for j in judged]}
        facts |= {"runs": [_facts(run, planned[run.label, run.seed].key) for each in runs.values() for run in each]}
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"{name}.json", facts)
        done = sections(figure, scale, base.data.source, runs, len(planned), judged)
        for kind in ("png", "csv"):  # of charts that may be gone, or have another title now
            for picture in (out / name).glob(f"[0-9][0-9]-*.{kind}"):
                with contextlib.suppress(OSError):  # a folder that cannot be written: the page says so in a sentence
                    picture.unlink()
        page.write(figure.title, done, out / f"{name}.html", out / name)
    return judged


def _facts(run: Run, key: str) -> dict[str, Any]:
    """What tells the result of a run from others, and which code made it."""
    kept = ("placement", "init", "layers", "updates", "seconds", "diverged", "valid_nll", "valid_bleu", "code")
    return {"label": run.label, "seed": run.seed, "key": key} | {k: run.result[k] for k in kept if k in run.result}


def _row(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    return {
        "claim": claim.text,
        "paper": claim.paper,
        "wanted": claim.wanted,
        "measured": judged.measured,
        "values": list(judged.values),
        "verdict": judged.verdict,
    }


def overview(out: Path, names: Iterable[str]) -> Path:
    """A page with the claims of those figures that were made in a folder."""
    paths = [path for name in names if (path := out / f"{name}.json").exists()]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    tables = [_claims(f"{f['title']} ({f['figure']}.html, scale {f['scale']})", f["claims"]) for f in found]
    counts = Counter(claim["verdict"] for each in found for claim in each["claims"])
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    words = Words("All figures", [f"{counts.total()} claims of {len(found)} figures: {verdicts}"])
    page.write("What the papers claim, and what was measured", [words, *tables], out / "index.html")
    return out / "index.html"


def _claims(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    columns = {"claim": "claim", "measured": "measured", "wanted": "wanted", "paper": "the paper"}
    shown = [[MARKS[row["verdict"]], *(row[key] for key in columns)] for row in rows]
    return Table(title, ["", *columns.values()], shown)


def sections(
    figure: Figure, scale: str, source: str, runs: Runs, wanted: int, judged: Sequence[Judged]
) -> list[Section]:
    """Of `wanted` runs those that are there."""
    table = [
        [run.label, run.result.get("init", ""), run.seed, run.result["updates"], run.last("valid_nll"),
         run.last("valid_bleu"), "diverged" if run.result["diverged"] else "", run.result["seconds"]]
        for members in runs.values() for run in members
    ]  # fmt: skip
    names = ["run", "started from", "seed", "updates", "valid loss (nats a token)", "BLEU", "", "seconds"]
    count = sum(map(len, runs.values()))
    all_or_some = f"{count} in all" if count == wanted else f"of {wanted} runs only {count} are finished"
    charts = [section for section in figure.charts(runs) if not isinstance(section, Chart) or section.series]
    return [
        Words(
            "What this is",
            [
                f"{figure.paper}, at scale “{scale}”: {len(runs)} kinds of runs, {all_or_some}. Data: {source}.",
                "Measured: the mean over runs, from three on with its 95 % confidence interval, and the lowest and "
                "highest. Undecided: the interval lies on both sides of what is wanted.",
            ],
        ),
        _claims("Claims", [_row(j) for j in judged]),
        *charts,
        Table("Runs", names, table, folded=True),
    ]


def curves(runs: Runs, key: str, by: str = "update") -> list[Series]:
    """A line a label: the mean over its seeds, in a band from the lowest to the highest."""
    found = []
    for label, members in runs.items():
        points: dict[float, list[float]] = {}
        for run in members:
            for x, y in zip(*run.curve(key, by), strict=True):
                points.setdefault(x, []).append(y)
        if points:
            xs = sorted(points)
            mean = [sum(points[x]) / len(points[x]) for x in xs]
            band = len(members) > 1
            low, high = ([pick(points[x]) for x in xs] if band else None for pick in (min, max))
            found.append(Series(label, xs, mean, low, high))
    return found


def of(runs: Runs, label: str, read: Callable[[Run], float]) -> list[float]:
    """A number of each seed of a label; nothing where it was not run."""
    return [read(run) for run in runs.get(label, ())]


def nll(run: Run) -> float:
    return run.last("valid_nll")


def pairs(left: Sequence[Run], right: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Those with the same seed."""
    others = {run.seed: run for run in right}
    return [(run, others[run.seed]) for run in left if run.seed in others]


def gaps(runs: Runs, left: str, right: str, read: Callable[[Run], float] = nll) -> list[float]:
    """How much more the first label has than the second, seed by seed; where both are infinite that is not a number."""
    return [read(a) - read(b) for a, b in pairs(runs.get(left, ()), runs.get(right, ()))]


def reached(run: Run, loss: float) -> float:
    """The share of the updates after which the validation loss is at most `loss`; infinite if never."""
    updates, losses = run.curve("valid_nll")
    return next((u / updates[-1] for u, value in zip(updates, losses, strict=True) if value <= loss), math.inf)


def shares(runs: Runs, fast: str, slow: str) -> list[float]:
    """After how much of its updates the first label has the second's final loss, seed by seed."""
    return [reached(a, nll(b)) for a, b in pairs(runs.get(fast, ()), runs.get(slow, ()))]


def by_depth(runs: Runs, placement: str) -> dict[int, Sequence[Run]]:
    """Of labels such as "post_ln 6-6"."""
    found = {int(label.split()[1].split("-")[0]): runs[label] for label in runs if label.startswith(placement + " ")}
    return dict(sorted(found.items()))


def slope(depths: Sequence[int], values: Sequence[float]) -> float:
    """Of log value against log depth, by least squares."""
    xs, ys = [math.log(depth) for depth in depths], [math.log(value) for value in values]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def slopes(runs: Runs, kind: str, read: Callable[[Run], float]) -> dict[int, float]:
    """Of a number against depth, by seed, where a seed has every depth."""
    depths = by_depth(runs, kind)
    values: dict[int, list[float]] = {}
    for members in depths.values():
        for run in members:
            values.setdefault(run.seed, []).append(read(run))
    return {seed: slope(list(depths), each) for seed, each in values.items() if len(each) == len(depths) > 1}


def band(name: str, xs: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    """The means of several values at each x, in a band from the lowest to the highest."""
    several = len(values[0]) > 1
    low, high = ([pick(each) for each in values] if several else None for pick in (min, max))
    return Series(name, list(xs), [sum(each) / len(each) for each in values], low, high)
