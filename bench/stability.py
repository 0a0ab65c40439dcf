"""Which short trainings learn: the labelled grid that the verdict is tuned and scored on.

    python -m bench.stability train     bench/results/stability.csv: which runs learnt
    python -m bench.stability probe     bench/results/stability_probes.csv: what the verdict measures before training
    python -m bench.stability fit       leadline/diagnose/calibration.json, fitted on width 64, scored on the others

A cell is (placement, layers, width, warm-up, seed); each is trained at every rate of a ladder on `builtin:numerals`,
with a constant rate after the warm-up. A run stops as soon as it has learnt, and never trains longer than UPDATES.
The file grows a row a run, so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

UPDATES = 400
EVERY = 50
LEARNT = 1.5  # nats a token. Without looking at the source a model gets to about 2.0
STUCK = 4.3  # nats a token: no better than the frequencies of the tokens (4.4) after half the updates
RATES = [5e-4 * 2**k for k in range(8)]
RUN = ["placement", "layers", "dim", "warmup", "seed", "lr"]
COLUMNS = [*RUN, "learnt", "diverged", "updates", "nll", "curve", "seconds"]


PROBE_COLUMNS = [*RUN, "collapse", "first", "change"]


class Cell(NamedTuple):
    placement: str
    layers: int  # of the encoder, and as many of the decoder
    dim: int
    warmup: int
    seed: int
    budget: int = UPDATES  # updates it may take to learn


class _Decided(Exception):
    pass


def config_of(cell: Cell, lr: float) -> Any:
    from leadline import recipes

    return recipes.numerals().set(
        model={
            "placement": cell.placement, "encoder_layers": cell.layers, "decoder_layers": cell.layers,
            "dim": cell.dim, "ffn_dim": 2 * cell.dim, "heads": 2,
        },
        optim={"lr": lr, "warmup": cell.warmup, "schedule": "constant"},
        train={
            "updates": cell.budget + max(cell.warmup - 100, 0), "batch_tokens": 512, "eval_every": EVERY, "keep": 1,
            "seed": cell.seed, "device": "cpu",
        },
    )  # fmt: skip


def train_one(job: tuple[Cell, float]) -> dict[str, Any]:
    import torch

    import leadline

    torch.set_num_threads(1)
    cell, lr = job
    curve: list[float] = []
    started, update, diverged = time.perf_counter(), 0, False

    def watch(event: Any) -> None:
        nonlocal update
        update = event.update
        if event.kind == "evaluation":
            curve.append(event.row["valid_nll"])
            learnt = curve[-1] < LEARNT and update > cell.warmup  # at the full rate
            if learnt or (curve[-1] > STUCK and update >= cell.budget // 2 + cell.warmup):
                raise _Decided

    folder = Path(tempfile.mkdtemp())
    try:
        leadline.train(config_of(cell, lr), folder / "run", [watch], progress=False)
    except _Decided:
        pass
    except leadline.Diverged:
        diverged = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = cell._asdict()
    facts.pop("budget")
    return facts | {
        "lr": lr,
        "learnt": int(bool(curve) and not diverged and curve[-1] < LEARNT),
        "diverged": int(diverged),
        "updates": update,
        "nll": f"{curve[-1]:.4f}" if curve else "",
        "curve": " ".join(f"{value:.3f}" for value in curve),
        "seconds": f"{time.perf_counter() - started:.1f}",
    }


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["placement"],
        *(str(int(row[name])) for name in ("layers", "dim", "warmup", "seed")),
        f"{float(row['lr']):g}",
    )


def train_grid(jobs: list[tuple[Cell, float]], out: Path, workers: int, minutes: float) -> None:
    done = set()
    if out.exists():
        with out.open() as file:
            done = {key(row) for row in csv.DictReader(file)}
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(",".join(COLUMNS) + "\n")
    jobs = [(cell, lr) for cell, lr in jobs if key(cell._asdict() | {"lr": lr}) not in done]
    deadline = time.monotonic() + 60 * minutes
    with multiprocessing.get_context("spawn").Pool(workers) as pool, out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        results = pool.imap_unordered(train_one, jobs)
        for count in range(len(jobs)):
            try:
                row = results.next(timeout=max(deadline - time.monotonic(), 0.01))  # type: ignore[attr-defined]
            except multiprocessing.TimeoutError:
                print(f"{len(jobs) - count} runs are left", flush=True)
                for child in multiprocessing.active_children():
                    child.kill()  # a training that is asked to end saves first, and its worker then waits for ever
                return
            writer.writerow(row)
            file.flush()
            print(count + 1, len(jobs), *(f"{name}={row[name]}" for name in COLUMNS), flush=True)


def probe_one(cell: Cell) -> list[dict[str, Any]]:
    """What the verdict sees of a cell: the first steps at every rate, of a model drawn with another seed."""
    import torch

    from leadline.cli.subjects import of_config
    from leadline.diagnose import probe
    from leadline.diagnose.verdict import STEPS, features

    torch.set_num_threads(1)
    subject = of_config(config_of(cell, RATES[0]))
    start = probe.look(subject, subject.batches[-1])
    before = probe.at_start(subject, start)
    rows = []
    for lr in RATES:
        records = probe.rollout(subject, lr, STEPS, start=start)
        facts = {"lr": lr} | {name: f"{value:.5f}" for name, value in features(before, records)._asdict().items()}
        rows.append({key: value for key, value in (cell._asdict() | facts).items() if key in PROBE_COLUMNS})
    return rows


def probe_grid(grid: Path, out: Path, workers: int, seed: int) -> None:
    cells = sorted({(r["placement"], int(r["layers"]), int(r["dim"])) for r in read(grid)}, key=lambda c: -c[1])
    done = {(r["placement"], int(r["layers"]), int(r["dim"])) for r in read(out)} if out.exists() else set()
    jobs = [Cell(*cell, 0, seed) for cell in cells if cell not in done]
    with multiprocessing.get_context("spawn").Pool(workers) as pool, out.open("a", newline="") as file:
        writer = csv.DictWriter(file, PROBE_COLUMNS, lineterminator="\n")
        if not done:
            writer.writeheader()
        for count, rows in enumerate(pool.imap_unordered(probe_one, jobs), 1):
            writer.writerows(rows)
            file.flush()
            print(count, len(jobs), *rows[0].values(), flush=True)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stability")
    parser.add_argument("what", choices=["train", "probe", "fit"])
    parser.add_argument("--grid", type=Path, default=Path("bench/results/stability.csv"))
    parser.add_argument("--probes", type=Path, default=Path("bench/results/stability_probes.csv"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--placements", nargs="+", default=["post_ln", "pre_ln", "deepnorm"])
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2, 3, 6, 12, 24])
    parser.add_argument("--dims", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--warmups", nargs="+", type=int, default=[0, 100])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--updates", type=int, default=UPDATES, help="for runs that were still on their way at 400")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    a = parser.parse_args()
    if a.what == "probe":
        probe_grid(a.grid, a.probes, a.workers, seed=11)
    elif a.what == "fit":
        from bench import calibrate

        calibrate.run(read(a.grid), read(a.probes))
    else:
        jobs = [
            (Cell(placement, layers, dim, warmup, seed, a.updates), lr)
            for layers in sorted(a.layers, reverse=True) for dim in a.dims for seed in a.seeds for warmup in a.warmups
            for placement in a.placements for lr in a.rates
        ]  # fmt: skip
        train_grid(jobs, a.grid, a.workers, a.minutes)


if __name__ == "__main__":
    main()
