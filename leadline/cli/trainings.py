"""Commands that train a model and use it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leadline import config as configuration
from leadline import evaluations, history, options
from leadline.cli.app import (
    AllowCode,
    Device,
    Json,
    RunFolder,
    Set,
    SetDecode,
    Which,
    app,
    config_of,
    load_run,
    number,
    open_store,
    print_json,
    stdin_lines,
)
from leadline.cli.terminal import TrainingView, answer, counting, sentences_bar, table, tell
from leadline.cli.translations import print_by_direction
from leadline.config import Config
from leadline.data.directions import targets
from leadline.errors import UserError
from leadline.files import Facts, checksum, to_json, written
from leadline.training.events import OnStep
from leadline.world import join, restarted

if TYPE_CHECKING:
    from leadline.tasks.translator import Translator


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the runs and the figure.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke test: too short for DeepNorm and for good translations.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch Post-LN fail without warm-up and Pre-LN train without it, in two or three minutes on two cores."""
    from leadline.reproduce import demo as demonstration
    from leadline.training import run as runs

    started = time.perf_counter()
    folder = out or runs.default_folder("demo")
    with counting("pairs") as progress, TrainingView() as view:
        results = demonstration.demo(folder, quick, progress, view.show)
    winner = demonstration.best(results)
    translations = list(zip(demonstration.SENTENCES, winner.translations, strict=True))
    if as_json:
        print_json(
            {
                "runs": [asdict(result) for result in results],
                "best": winner.run,
                "translations": translations,
                "figure": str(folder / "curves.png"),
                "table": str(folder / "curves.csv"),
                "seconds": time.perf_counter() - started,
            }
        )
        return
    columns = ["placement", "warm-up", "lr", "valid loss", "BLEU", "exact", "seconds", "tok/s"]
    rows = [
        [r.placement, str(r.warmup), f"{r.lr:g}", f"{r.valid_loss:.3f}" + (" diverged" if r.diverged else ""),
         f"{r.bleu:.1f}", f"{r.exact_match:.2f}", f"{r.seconds:.0f}", f"{r.tokens_per_second:,.0f}"]
        for r in results
    ]  # fmt: skip
    table("German to English number words, same data, rate and updates", columns, rows)
    answer.print(f"\nThe best ({winner.placement}, warm-up {winner.warmup}) translates:")
    for source, translation in translations:
        answer.print(f"  {source}  →  {translation}")
    if quick:
        updates = next(iter(demonstration.configs(quick).values())).train.updates
        answer.print(
            f"\nA smoke test: after {updates} updates only the losses of Post-LN and Pre-LN are meaningful; "
            "leadline demo trains all four to the end."
        )
    answer.print(f"\nCurves: {folder / 'curves.png'} and {folder / 'curves.csv'}")


def _asked(what: str, assignments: list[str], allow_code: bool = False) -> tuple[Config, list[str]]:
    """The config of a new run, with what the run it starts from and this machine decide, and what to say of that."""
    from leadline.training.device import find_device
    from leadline.training.start import adopt

    config, notes = config_of(what, assignments, allow_code), []
    asked = {assignment.partition("=")[0].strip() for assignment in assignments}
    if Path(what).is_file():
        asked |= options.flat(options.read_toml(Path(what))).keys()
    if config.train.start:
        config = adopt(config, asked, allow_code)
        notes.append(f"model and vocabulary are those of {config.train.start}")
    bf16 = config.train.precision == "bf16" and "train.precision" not in asked
    if bf16 and find_device(config.train.device).type == "cpu":
        config = config.set(train={"precision": "fp32"})
        notes.append(f"{what} says bf16, which is slower on a CPU: fp32 it is (--set train.precision=bf16 asks for it)")
    return config, notes


def _going_on(folder: Path, assignments: list[str], allow_code: bool) -> Config:
    """The config of a run that goes on, with what is to change."""
    from leadline.training import run as runs

    before = runs.load_config(folder, allow_code)
    config = configuration.override(before, assignments)
    runs.require_changeable(folder, before, config)
    asked, had = (config.optim.lr, config.optim.warmup), (before.optim.lr, before.optim.warmup)
    if asked.count("auto") > had.count("auto"):
        raise UserError(
            "--set optim.lr=auto: a rate and a warm-up are chosen before a training begins; give a number, or begin "
            f"another run from these weights with --set train.start={folder}"
        )
    return config


@app.command()
def train(
    what: Annotated[
        str | None, typer.Argument(help="A recipe (see leadline recipes) or the path of a config.toml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/RECIPE-DATE if not given.")] = None,
    assignments: Set = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this run.")] = None,
    watch: Annotated[
        int | None, typer.Option(help="Log every layer's norms every K updates and raise alarms; 0: off.")
    ] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Train a model into a run folder, or resume a run: leadline train --resume RUN [--set train.updates=…]."""
    from leadline import tasks
    from leadline.diagnose.watch import Watch
    from leadline.placement import find
    from leadline.training import checkpoint, loop
    from leadline.training import run as runs
    from leadline.training.device import find_device

    if watch is not None and watch < 0:
        raise UserError(f"--watch must be 0 (off) or the number of updates between two looks, not {watch}")
    world = join()
    if what and resume:
        raise UserError(f"say what to train: {what}, or --resume {resume}, but not both")
    if not what and not resume:
        raise UserError("say what to train: a recipe or a config.toml, or --resume RUN")
    if resume and out:
        raise UserError("--resume goes on in the folder of the run: leave --out out")
    if out and restarted() and runs.is_run(out):
        what, assignments, resume = None, None, out  # torchrun has started it again: it goes on
    folder = resume or out or runs.default_folder(Path(what or "").stem)
    given = assignments or []
    config, notes = _asked(what, given, allow_code) if what else (_going_on(folder, given, allow_code), [])
    find(config.model.placement)  # mistakes come to light before the data is prepared
    tasks.require(config)
    find_device(config.train.device)
    if not resume:
        runs.require_new(folder)
    elif watch is None and (watch := runs.number_of(folder, "watch")):
        notes.append(f"its layers are looked at every {watch} updates, as before (--watch 0: not)")
    tell(notes)
    store = open_store(config)  # before the bar of the training
    with TrainingView() as view:
        on_step: list[OnStep] = [view, Watch(every=watch)] if watch else [view]
        if resume:
            loop.resume(folder, on_step, config=config, allow_code=allow_code)
        else:
            loop.train(config, folder, on_step)
    world.leave()
    if not world.leads:
        return
    rows = history.read(folder).rows
    last: Facts = next((row for row in reversed(rows) if "valid_nll" in row), {})
    best = checkpoint.best(folder)
    if as_json:
        print_json({"run": str(folder), "best_checkpoint": best, **last})
    else:
        task = tasks.find(config.task)
        loss = f"{last['valid_nll']:.4f} nats {task.unit}" if last else ""
        told = f"valid loss {loss}, best checkpoint {best}" if last else "not evaluated"
        answer.print(f"{folder}: {told}")
        to = " --to LANGUAGE" if len(targets(store.data.directions)) > 1 else ""
        uses = "".join(f", or echo … | leadline {command} {folder}{to}" for command in task.commands)
        answer.print(f"next: leadline evaluate {folder}{uses}")


@app.command()
def evaluate(
    run: RunFolder,
    split: Annotated[
        str | None,
        typer.Option(help="valid or test; with many languages also zero or flores. By default test, if there is one."),
    ] = None,
    directions: Annotated[
        str | None, typer.Option(help="With many languages: X-en, en-X, zero (not trained), or several: de-en,en-fr.")
    ] = None,
    which: Which = "best",
    assignments: SetDecode = None,
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Evaluate a run: its loss and, for a translator, sacreBLEU and chrF with their signatures.

    The numbers are kept in RUN/evaluations. With --directions, --checkpoint or
    --set they get a file of their own there. With many languages they are a table
    by direction, without a loss if --directions selects some.
    """
    from leadline.data.store import holds

    world = join()
    trained = load_run(run, which, device, assignments, allow_code, ("decode", "data"))
    if directions and not trained.tokenizer.config.directions:
        raise UserError(f"--directions is for a run of many languages, and {run} is not one: leave it out")
    with counting(holds(trained.config.data.source)) as progress:
        task = trained.task(progress)
    if world.grouped:
        world.require_alike(trained.own(data=task.store.manifest["sha256"], split=split, directions=directions))
    tell(task.store.notes)
    split = split or ("test" if "test" in task.store.manifest["splits"] else "valid")
    wanted = directions.split(",") if directions else []
    sentences = task.scored(split, wanted)
    has_loss = not wanted and (split in task.store.manifest["splits"] or not sentences)
    scores: Facts = {}
    if has_loss:
        with counting("batches") as progress:
            scores |= task.evaluate(
                trained.model, split, world=world, on_batch=partial(progress, f"loss on {split}", 1)
            )
    if sentences:
        with sentences_bar(-(-sentences // world.size)) as advance:
            scores |= task.scores(trained.model, split, on_done=advance, directions=wanted, world=world)
    world.leave()
    if not world.leads:
        return
    facts = {"run": str(run), "split": split, "checkpoint": trained.checkpoint} | scores
    other = [] if which == "best" else ["checkpoint", which]
    tell(evaluations.write(run, facts, ["+".join(wanted)] * bool(wanted) + other + (assignments or [])))
    if "by_direction" in facts and not as_json:
        print_by_direction(facts)
        facts = {key: value for key, value in facts.items() if key not in ("by_direction", "by_origin", "signatures")}
    _print_facts(facts, as_json)


@app.command()
def translate(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file of sentences, one per line; stdin if not given.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; stdout if not given.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="With many languages: the one to translate into.")] = None,
    which: Which = "best",
    assignments: SetDecode = None,
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Translate a file or stdin, line by line. Started by torchrun, the processes share the file."""
    from leadline.data.text import lines_of

    world = join()
    if world.size > 1 and not source:
        raise UserError("several processes share a file: give it with --input, or translate stdin without torchrun")
    trained = load_run(run, which, device, assignments, allow_code)
    translator = (trained.into(to) if to else trained).translator(world)
    lines = list(lines_of(source)) if source else None
    if world.grouped:
        world.require_alike(trained.own(to=to, text=checksum(lines)))
    with written(target) if target and world.leads else contextlib.nullcontext(sys.stdout) as out:
        for asked, translated in _translations(translator, lines):
            for left, right in zip(asked, translated, strict=True):
                if world.leads:
                    print(to_json({"source": left, "translation": right}) if as_json else right, file=out)
            out.flush()
    world.leave()
    if translator.split_up:
        tell([f"lines longer than the model's limit, translated in pieces: {translator.split_up}"])


def _translations(translator: Translator, lines: list[str] | None) -> Iterator[tuple[list[str], list[str]]]:
    """Lines and their translations: a file's all at once, those of stdin (None) as they come."""
    if lines is not None:
        with sentences_bar(-(-len(lines) // translator.world.size)) as advance:
            yield lines, translator.translate(lines, advance)
    else:
        for chunk in stdin_lines():
            yield chunk, translator.translate(chunk)


@app.command()
def score(
    hypotheses: Annotated[Path, typer.Argument(metavar="HYP", help="Translations, one per line; - is stdin.")],
    references: Annotated[Path, typer.Argument(metavar="REF", help="References, one per line.")],
    language: Annotated[
        str, typer.Option("--lang", help="The language of both files; zh, ja and ko have their own tokenizers.")
    ] = "",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    as_json: Json = False,
) -> None:
    """Score translations against references: sacreBLEU and chrF, with their signatures."""
    from leadline.data.text import lines_of
    from leadline.scores import bleu_and_chrf

    outputs = (
        [line for chunk in stdin_lines() for line in chunk] if str(hypotheses) == "-" else list(lines_of(hypotheses))
    )
    expected = list(lines_of(references))
    if len(outputs) != len(expected):
        counts = f"{hypotheses} has {len(outputs):,} lines and {references} {len(expected):,}"
        raise UserError(f"{counts}: they are compared line by line, so give files of the same length")
    if not outputs:
        raise UserError(f"{hypotheses} and {references} are empty: there is nothing to score")
    _print_facts({"sentences": len(outputs)} | bleu_and_chrf(outputs, expected, lowercase, language), as_json)


def _print_facts(facts: Facts, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        answer.print(f"{key:<26}{number(value, 0 if key == 'skipped' else 4)}")
