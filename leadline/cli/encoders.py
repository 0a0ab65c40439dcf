"""Commands about encoders: fine-tuning, and labelling text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.app import AllowCode, Device, Json, RunFolder, Set, Which, app, load_run, print_json, stdin_lines
from leadline.cli.terminal import TrainingView, answer, counting, table, tell
from leadline.errors import UserError, nearest
from leadline.files import to_json


@app.command("finetune")
def finetune_command(
    run: RunFolder,
    task: Annotated[
        str, typer.Option(help="same_meaning, mrpc, rte, or a file or folder with columns (--set data.first=…).")
    ] = "same_meaning",
    source: Annotated[
        str, typer.Option("--data", help="Folder with the files of mrpc or rte; data/TASK if not given.")
    ] = "",
    which: Which = "best",
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Examples per batch; may be repeated.")] = None,
    rates: Annotated[list[float] | None, typer.Option("--lr", help="A learning rate to try; may be repeated.")] = None,
    epochs: Annotated[list[int] | None, typer.Option("--epochs", help="Number of epochs; may be repeated.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's grid (30 settings) for whatever is not given.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Runs of each setting, with seeds 1, 2, …")] = 6,
    metric: Annotated[str, typer.Option(help="accuracy, f1 or matthews.")] = "accuracy",
    at_once: Annotated[int, typer.Option("--jobs", help="Trainings at a time.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables; finished runs in it are reused.")] = Path(
        "finetuned"
    ),
    assignments: Set = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pre-trained run to classify text: mean and 95 % interval over seeds. Run it again to resume."""
    from leadline.jobs import finetune as tuning
    from leadline.jobs.grid import settings_of

    if metric not in tuning.METRICS:
        raise UserError(f"--metric cannot be {metric!r}: {nearest(metric, tuning.METRICS)}")
    if source and task.replace("-", "_") not in tuning.KNOWN_FILES:
        raise UserError(f"--data is where the files of mrpc or rte are: --task {task} needs none")
    if min(seeds, at_once) < 1:
        raise UserError("--seeds and --jobs must be at least 1")
    usual = tuning.FULL if full else tuning.USUAL
    grid = settings_of(batches or usual[0], rates or usual[1], epochs or usual[2])
    base = tuning.configure(run, task, source, assignments or [], which, allow_code)
    folder = out / f"{Path(task).stem}-{run.resolve().name}-{which.replace(':', '')}"
    with counting("examples") as progress, TrainingView() as view:
        tuned = tuning.finetune(base, grid, seeds, at_once, folder, metric, view.show, progress)
    if as_json:
        shown = [asdict(each) | {"mean": each.mean, "interval": each.interval} for each in tuned.settings]
        print_json({"metric": metric, "best": asdict(tuned.best.setting) | {"mean": tuned.best.mean,
                     "interval": tuned.best.interval}, "settings": shown, "cut": tuned.cut,
                     "folder": str(folder), "run": str(tuned.run)})  # fmt: skip
        return
    rows = [[str(e.setting.batch), f"{e.setting.lr:g}", str(e.setting.epochs), str(len(e.scores)), str(e)]
            for e in tuned.settings]  # fmt: skip
    answer.print(f"{metric} on the validation split in %: mean over seeds ± half of its 95 % confidence interval")
    table("", ["batch", "lr", "epochs", "runs", metric], rows)
    if len(rows) > 1:
        best = tuned.best.setting
        answer.print(f"best: batch {best.batch}, lr {best.lr:g}, {best.epochs} epochs: {tuned.best}")
    for split, count in tuned.cut.items():
        if count:
            limit = f"model.max_length={base.model.max_length}"
            answer.print(f"{count} examples of {split} are longer than {limit} and cut")
    answer.print(f"runs, results.csv and table.json: {folder}")
    answer.print(f"next: leadline evaluate {tuned.run}, or echo … | leadline classify {tuned.run}")


@app.command()
def classify(
    run: Annotated[Path, typer.Argument(help="A fine-tuned run, or the folder that finetune wrote: its best run.")],
    source: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file of texts, one per line; stdin if not given.")
    ] = None,
    which: Which = "best",
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Label new text with a fine-tuned run, line by line; separate two texts by a tab."""
    from leadline.data.text import lines_of
    from leadline.jobs.finetune import best_in
    from leadline.tasks.classifier import Classifier
    from leadline.training.run import labels_of

    run = best_in(run)
    trained, labels = load_run(run, which, device, None, allow_code), labels_of(run)
    if not labels:
        raise UserError(f"{run} has no labels: it was trained for {trained.config.task} and cannot classify")
    classifier = Classifier(trained.model, trained.tokenizer, trained.config, labels)
    if source is None and sys.stdin is None:
        raise UserError("stdin is closed: pipe texts into leadline classify, or name a file with --input")
    for lines in [list(lines_of(source))] if source else stdin_lines():
        for line, shares in zip(lines, classifier.probabilities([*map(classifier.split, lines)]), strict=True):
            label = max(shares, key=shares.__getitem__)
            print(to_json({"text": line, "label": label, "probabilities": shares}) if as_json else label)
        sys.stdout.flush()
    if classifier.cut:
        limit = f"model.max_length={trained.config.model.max_length}"
        tell([f"lines longer than {limit}, which were cut: {classifier.cut}"])
