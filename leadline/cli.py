"""The command line. Answers go to stdout (`--json` for programs), progress to stderr, errors are one sentence."""

from __future__ import annotations

import os

# Read when torch loads: without it, waiting threads spin and a busy machine slows training down twentyfold.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline import config as configuration
from leadline import recipes
from leadline.config import Config, ModelConfig
from leadline.errors import Diverged, Interrupted, UserError, nearest
from leadline.files import to_json
from leadline.terminal import TrainingView, answer, counting, screen, sentences_bar, table

app = typer.Typer(
    name="leadline",
    help="Train deep Transformers without the warm-up lottery.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Prepare text for training, and look at it.", no_args_is_help=True)
app.add_typer(data, name="data")

What = Annotated[str, typer.Argument(help=f"A recipe ({', '.join(recipes.RECIPES)}) or the path of a config.toml.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a key of the config: --set optim.lr=1e-3")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.")]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last, average:K or a checkpoint's number.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1.")]


def _config(what: str, assignments: list[str] | None) -> Config:
    path = Path(what)
    found = configuration.load(path) if path.suffix == ".toml" or path.is_file() else recipes.find(what)
    return configuration.override(found, assignments or [])


def _unit(config: Config) -> str:
    """What the preparation of its data counts."""
    from leadline.data.documents import holds_documents
    from leadline.data.tables import holds_examples

    source = config.data.source
    return "documents" if holds_documents(source) else "examples" if holds_examples(source) else "pairs"


def _print_json(value: Any) -> None:
    print(to_json(value, indent=1))


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the runs and the figure.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the time; the effect still shows.")] = False,
    as_json: Json = False,
) -> None:
    """Watch Post-LN fail without warm-up and Pre-LN succeed, in two or three minutes on two cores."""
    from leadline import demo as demonstration
    from leadline.training import run as runs

    started = time.perf_counter()
    folder = out or runs.default_folder("demo")
    with counting("pairs") as progress, TrainingView() as view:
        results = demonstration.demo(folder, quick, progress, view.show)
    winner = demonstration.best(results)
    translations = list(zip(demonstration.SENTENCES, winner.translations, strict=True))
    if as_json:
        _print_json(
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
        answer.print(f"  {source}  →  {translation}", soft_wrap=True)
    answer.print(f"\nCurves: {folder / 'curves.png'} and {folder / 'curves.csv'}", soft_wrap=True)


@app.command()
def train(
    what: Annotated[
        str | None, typer.Argument(help=f"A recipe ({', '.join(recipes.RECIPES)}) or a config.toml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/RECIPE-DATE if not given.")] = None,
    assignments: Set = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run.")] = None,
    watch: Annotated[int, typer.Option(help="Log every layer's norms each K updates, with an alarm; 0: do not.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a model into a run folder, or go on with one: leadline train --resume RUN."""
    from leadline.data.store import prepare
    from leadline.diagnose.watch import Watch
    from leadline.placement import find
    from leadline.training import checkpoint, loop
    from leadline.training import run as runs

    if (what is None) == (resume is None):
        raise UserError("say what to train: a recipe or a config.toml, or --resume RUN")
    if resume and (assignments or out):
        raise UserError("--resume goes on with the run as it was: --set and --out cannot change it")
    folder = resume or out or runs.default_folder(Path(what or "").stem)
    config = _config(what, assignments) if what else runs.load_config(folder)
    find(config.model.placement)  # mistakes come to light before the data is prepared
    if not resume:
        runs.require_new(folder)
    with counting(_unit(config)) as progress:
        prepare(config.data, progress=progress)  # before the bar of the training
    with TrainingView() as view:
        on_step: list[Any] = [view, Watch(watch)] if watch else [view]
        loop.resume(folder, on_step) if resume else loop.train(config, folder, on_step)
    rows = runs.read_metrics(folder)
    last = next((row for row in reversed(rows) if "valid_nll" in row), {})
    best = checkpoint.best(folder)
    if as_json:
        _print_json({"run": str(folder), "best_checkpoint": best, **last})
    else:
        unit = "an example" if config.task == "classification" else "a token"
        answer.print(
            f"{folder}: valid loss {last.get('valid_nll', float('nan')):.4f} nats {unit}, best checkpoint {best}",
            soft_wrap=True,
            markup=False,
        )
        uses = f", or echo … | leadline translate {folder}" if config.task == "translation" else ""
        answer.print(f"next: leadline evaluate {folder}{uses}", soft_wrap=True)


@app.command()
def evaluate(
    run: RunFolder,
    split: Annotated[str | None, typer.Option(help="valid or test; test if not given, where there is one.")] = None,
    which: Which = "best",
    assignments: Set = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What a run has learnt: its loss, and of a translation sacreBLEU and chrF with the signatures to compare by."""
    from leadline.tasks import Translation

    trained = _load(run, which, device, assignments)
    with counting(_unit(trained.config)) as progress:
        task = trained.task(progress)
    split = split or ("test" if "test" in task.store.manifest["splits"] else "valid")
    found = task.evaluate(trained.model, split)
    if isinstance(task, Translation):
        with sentences_bar(len(task.store.sentences(split)) if split != "train" else 0) as advance:
            found |= task.score(trained.model, split, on_translated=advance)
    found = {"run": str(run), "split": split, "checkpoint": trained.checkpoint} | found
    if as_json:
        _print_json(found)
    else:
        for key, value in found.items():
            answer.print(f"{key:<26}{_number(value, 4)}", soft_wrap=True)


@app.command()
def translate(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file of sentences; stdin if not given.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; stdout if not given.")] = None,
    which: Which = "best",
    assignments: Set = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Translate line by line: stdin to stdout as it comes, or a file."""
    from leadline.text import lines_of, lines_ready

    translator = _load(run, which, device, assignments).translator()
    if source:
        lines = list(lines_of(source))
        with sentences_bar(len(lines)) as advance:
            chunks: Iterator[tuple[list[str], list[str]]] = iter([(lines, translator.translate(lines, advance))])
    else:
        chunks = ((chunk, translator.translate(chunk)) for chunk in lines_ready(sys.stdin.buffer))
    out = target.open("w", encoding="utf-8") if target else sys.stdout
    try:
        for asked, translated in chunks:
            for left, right in zip(asked, translated, strict=True):
                print(to_json({"source": left, "translation": right}) if as_json else right, file=out)
            out.flush()
    finally:
        if target:
            out.close()
    if translator.split_up:
        screen.print(f"{translator.split_up} lines were longer than the model's limit and translated in pieces")


def _load(run: Path, which: str, device: str | None, assignments: list[str] | None) -> Any:
    import dataclasses

    from leadline.trained import load

    trained = load(run, which, device)
    if bad := [a for a in assignments or [] if not a.startswith("decode.")]:
        raise UserError(f"--set {bad[0]}: a trained run can only change decode.* keys, such as decode.beam=5")
    return dataclasses.replace(trained, config=configuration.override(trained.config, assignments or []))


@app.command("finetune")
def finetune_command(
    run: RunFolder,
    task: Annotated[
        str, typer.Option(help="same_meaning, mrpc, rte, or a file or folder with columns (--set data.first=…).")
    ] = "same_meaning",
    source: Annotated[
        str, typer.Option("--data", help="Where the files of mrpc or rte are; data/TASK if not given.")
    ] = "",
    which: Which = "best",
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Examples in a batch; may be repeated.")] = None,
    rates: Annotated[list[float] | None, typer.Option("--lr", help="A rate to try; may be repeated.")] = None,
    epochs: Annotated[list[int] | None, typer.Option("--epochs", help="How long; may be repeated.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's grid where nothing else is said: 30 settings.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Runs of each setting, with seeds 1, 2, …")] = 6,
    metric: Annotated[str, typer.Option(help="accuracy, f1 or matthews.")] = "accuracy",
    at_once: Annotated[int, typer.Option("--jobs", help="Trainings side by side.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables; what is there already is used.")] = Path(
        "finetuned"
    ),
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a pre-trained run to classify: mean and 95 % interval over seeds; start it again to go on with it."""
    from leadline import finetune as tuning

    if metric not in tuning.METRICS:
        raise UserError(f"--metric cannot be {metric!r}: {nearest(metric, tuning.METRICS)}")
    if min(seeds, at_once) < 1:
        raise UserError("--seeds and --jobs must be at least 1")
    usual = tuning.FULL if full else tuning.USUAL
    grid = tuning.grid(batches or usual[0], rates or usual[1], epochs or usual[2])
    base = tuning.configure(run, task, source, assignments or [], which)
    folder = out / f"{Path(task).stem}-{run.resolve().name}-{which.replace(':', '')}"
    with counting("examples") as progress, TrainingView() as view:
        found = tuning.finetune(base, grid, seeds, at_once, folder, metric, view.show, progress)
    if as_json:
        shown = [asdict(each) | {"mean": each.mean, "interval": each.interval} for each in found.settings]
        _print_json({"metric": metric, "best": asdict(found.best.setting) | {"mean": found.best.mean,
                     "interval": found.best.interval}, "settings": shown, "cut": found.cut,
                     "folder": str(folder), "run": str(found.run)})  # fmt: skip
        return
    rows = [[str(e.setting.batch), f"{e.setting.lr:g}", str(e.setting.epochs), str(len(e.scores)), str(e)]
            for e in found.settings]  # fmt: skip
    answer.print(f"{metric} on the validation split in %: mean over seeds ± half of its 95 % confidence interval")
    table("", ["batch", "lr", "epochs", "runs", metric], rows)
    if len(rows) > 1:
        best = found.best.setting
        answer.print(f"best: batch {best.batch}, lr {best.lr:g}, {best.epochs} epochs: {found.best}", soft_wrap=True)
    for split, count in found.cut.items():
        if count:
            limit = f"model.max_length={base.model.max_length}"
            answer.print(f"{count} examples of {split} are longer than {limit} and cut", soft_wrap=True)
    answer.print(f"runs, results.csv and table.json: {folder}", soft_wrap=True)
    answer.print(f"next: leadline train {found.run}/config.toml --out runs/mine, for a model to keep", soft_wrap=True)


@app.command("export")
def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    which: Which = "best",
) -> None:
    """Write a run as a folder that Hugging Face's transformers opens: BERT, or RoBERTa-PreLayerNorm for Pre-LN."""
    from leadline.exchange import huggingface
    from leadline.training.run import labels_of

    trained = _load(run, which, "cpu", None)
    notes = huggingface.save(trained, out, labels_of(run))
    answer.print(f"{out}: checkpoint {trained.checkpoint} of {run} as {huggingface.architecture(out)}", soft_wrap=True)
    for note in notes:
        screen.print(note, soft_wrap=True)


@app.command("import")
def import_command(
    folder: Annotated[Path, typer.Argument(help="A folder saved by transformers: BERT or RoBERTa-PreLayerNorm.")],
    out: Annotated[Path, typer.Argument(help="The run folder to make.")],
) -> None:
    """Make a run of a Hugging Face folder (config.json, model.safetensors and a tokenizer), to fine-tune it."""
    from leadline.exchange import huggingface

    notes = huggingface.load(folder, out)
    answer.print(f"{out}: a run of {huggingface.architecture(folder)}", soft_wrap=True)
    for note in notes:
        screen.print(note, soft_wrap=True)
    answer.print(f"next: leadline finetune {out} --task FILE", soft_wrap=True)


@app.command("inspect")
def inspect_command(
    what: Annotated[
        str,
        typer.Argument(help="A recipe, a config.toml, a run, a Hugging Face folder (config.json) or module:function."),
    ],
    lr: Annotated[float | None, typer.Option(help="The rate to judge; the config's if not given.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Warm-up updates to judge; the config's if not given.")] = None,
    seeds: Annotated[int, typer.Option(help="How many times to draw the weights.")] = 1,
    assignments: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for inspection.json and records.jsonl.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page; figures as PNG and CSV go beside it.")] = None,
    as_json: Json = False,
) -> None:
    """Say before training whether a model will train, which layer is the trouble and what to change."""
    if lr is not None and not lr > 0:
        raise UserError(f"--lr must be above 0, not {lr:g}")
    if seeds < 1 or (warmup or 0) < 0:
        raise UserError("--seeds must be at least 1 and --warmup 0 or more")
    from leadline import subjects
    from leadline.diagnose.inspect import inspect_seeds

    with counting("steps") as progress:
        make, config = subjects.find(what, lr, assignments or [], progress)
        updates = warmup if warmup is not None else config.optim.warmup if config else 0
        first = config.train.seed if config else 1
        found = inspect_seeds(make, range(first, first + seeds), what, lr, updates if updates > 1 else 0, progress)
        if html and config:
            found = subjects.with_depths(found, config, progress)
    if out:
        found.save(out)
    if html:
        from leadline.report import inspections, page

        page.write(f"leadline inspect {what}", inspections.sections_of(found), html, html.with_suffix(""))
    if as_json:
        _print_json({"name": found.name, "verdict": asdict(found.verdict), "facts": found.facts,
                     "findings": [asdict(f) for f in found.findings],
                     "connections": [asdict(c) for c in found.connections]})  # fmt: skip
        return
    answer.print(str(found), soft_wrap=True)
    if html:
        answer.print(f"page: {html}", soft_wrap=True)


@app.command("advise")
def advise_command(
    layers: Annotated[int, typer.Option(help="Layers of each stack.")],
    dim: Annotated[int, typer.Option(help="Width of the model.")] = 512,
    arch: Annotated[str, typer.Option(help="encoder-decoder, encoder or decoder.")] = "encoder-decoder",
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 4096,
    warmup: Annotated[int, typer.Option(help="Warm-up updates you are willing to spend.")] = 0,
    as_json: Json = False,
) -> None:
    """Placement, α and β, rate and expected update for a model not built yet, from a measured table."""
    from leadline.diagnose.advise import advise

    found = advise(layers, dim, arch, batch_tokens, warmup)  # type: ignore[arg-type]
    if as_json:
        _print_json([asdict(entry) for entry in found])
        return
    rows = [
        [entry.placement, f"{entry.rate:.1e}" if entry.rate else "does not train",
         f"{entry.highest_rate:.1e}" if entry.rate else "", f"{entry.output_change:.2f}" if entry.rate else ""]
        for entry in found
    ]  # fmt: skip
    title = f"{arch}, {layers} layers, d {dim}, warm-up {warmup}: best first"
    table(title, ["placement", "use lr", "highest lr", "‖ΔF‖ of the first step"], rows)
    for entry in found:
        if entry.constants:
            named = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in entry.constants.items())
            answer.print(f"{entry.placement}: {named}", soft_wrap=True)
    for line in found[0].beyond:
        answer.print(f"note: {line}", soft_wrap=True)


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, and folders written by leadline inspect --out.")],
    out: Annotated[Path, typer.Option(help="The page to write; figures as PNG and CSV go beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """One self-contained page about runs and inspections: curves, layers, verdicts, configurations."""
    from leadline.diagnose import inspection
    from leadline.report import inspections, page
    from leadline.report import runs as reports

    inspected = [folder for folder in runs if (folder / "inspection.json").exists()]
    trained = [folder for folder in runs if folder not in inspected]
    sections = reports.sections_of(trained) if trained else []
    for folder in inspected:
        sections += inspections.sections_of(inspection.load(folder))
    page.write("Report of " + ", ".join(folder.name for folder in runs), sections, out, out.with_suffix(""))
    answer.print(f"page: {out}", soft_wrap=True)


@app.command()
def placements(
    layers: Annotated[tuple[int, int], typer.Option(help="Encoder and decoder layers; 0: no such stack.")] = (6, 6),
    dim: Annotated[int, typer.Option(help="Width of the model.")] = 512,
    ffn_dim: Annotated[int, typer.Option(help="Width of the feed-forward layer.")] = 1024,
    compare: Annotated[
        bool, typer.Option("--compare", help="Measure small fresh models instead: growth, gradients, first step.")
    ] = False,
    lr: Annotated[float, typer.Option(help="--compare: the rate of the first steps.")] = 4e-3,
    as_json: Json = False,
) -> None:
    """Constants and the initial std of every weight role, for each placement, from the code itself."""
    from leadline.model.init import table as rows_of
    from leadline.placement import PLACEMENTS, ROLES

    sizes: Any = {"encoder_layers": layers[0], "decoder_layers": layers[1], "dim": dim, "ffn_dim": ffn_dim, "heads": 1}
    architecture = ModelConfig(**sizes).architecture
    defined = [name for name, found in PLACEMENTS.items() if architecture in found.architectures]
    if compare:
        _compare(defined, layers, lr, as_json)
        return
    rows = [row for name in defined for row in rows_of(ModelConfig(placement=name, **sizes))]
    if as_json:
        _print_json(rows)
        return
    stds = [f"std_{role}" for role in ROLES]
    letters = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "scale": "1/√l"}
    shown = [
        [
            str(row["placement"]),
            str(row["stack"])[:3],
            " ".join(f"{letter} {_number(row[key], 3)}" for key, letter in letters.items() if key in row),
            *(_number(row.get(key, ""), 3) for key in stds),
        ]
        for row in rows
    ]
    table(
        f"{layers[0]}-{layers[1]} layers, d {dim}, FFN {ffn_dim}: constants and initial std, last layer",
        ["placement", "of", "constants", *ROLES],
        shown,
    )


def _compare(names: list[str], layers: tuple[int, int], lr: float, as_json: bool) -> None:
    if not lr > 0:
        raise UserError(f"--lr must be above 0, not {lr:g}")
    if not all(layers):
        raise UserError("--compare translates number words, which needs an encoder and a decoder: give both layers")
    from leadline import subjects
    from leadline.diagnose.compare import measure

    base = recipes.numerals().set(model={"encoder_layers": layers[0], "decoder_layers": layers[1]}, optim={"lr": lr})
    rows = []
    with counting("placements") as progress:
        for name in names:
            progress("measuring", 1)
            rows.append(measure(subjects.of_config(base.set(model={"placement": name})), lr))
    if as_json:
        _print_json([asdict(row) | {"needs_warmup": row.needs_warmup} for row in rows])
        return
    shown = [
        [r.placement, f"{r.growth:.2f}", f"{r.first_gradient:.4f}", f"{r.last_gradient:.4f}", f"{r.change:.3f}",
         "yes" if r.needs_warmup else "no"]
        for r in rows
    ]  # fmt: skip
    table(
        f"{layers[0]}-{layers[1]} layers, d {base.model.dim}, German to English number words, before training",
        ["placement", "growth", "grad first", "grad last", f"‖ΔF‖ at {lr:g}", f"warm-up at {lr:g}"],
        shown,
    )
    answer.print(
        "growth: of the decoder's stream from its first to its last residual connection; grad: of the feed-forward "
        "layer's second matrix, first and last decoder layer; ‖ΔF‖: change of the output in one step of Adam; warm-up: "
        "a guess, fitted on trainings of post_ln, pre_ln and deepnorm and untested on the others",
        soft_wrap=True,
    )


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="A figure's name, or all; list shows what there is.")] = "list",
    scale: Annotated[
        str, typer.Option(help="tiny (two cores, minutes), small (one GPU, about an hour), paper.")
    ] = "tiny",
    source: Annotated[str, typer.Option("--data", help="text:FOLDER, prepared:FOLDER, … as in data.source.")] = "",
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each kind, with seeds 1, 2, …; as many as its claims need if not given.")
    ] = None,
    depths: Annotated[list[int] | None, typer.Option("--depth", help="Layers of each stack; may be repeated.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A placement; may be repeated.")] = None,
    at_once: Annotated[int, typer.Option("--jobs", help="Trainings side by side.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables; what is there already is used.")] = Path(
        "reproduced"
    ),
    on: Annotated[
        str, typer.Option(help="ray or ray://HOST:PORT: a cluster, with as many runs at once as it has room for.")
    ] = "",
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """The papers' figures and tables by name, on your data; stop it at any time and start it again to go on."""
    from leadline import reproduce as figures
    from leadline.jobs.cluster import runner
    from leadline.reproduce import depth as ladder
    from leadline.reproduce.figure import overview

    known = [*figures.FIGURES, "deepnet-depth"]
    if what == "list":
        titles = {name: figure.title for name, figure in figures.FIGURES.items()} | {"deepnet-depth": ladder.TITLE}
        for name, title in titles.items():
            answer.print(f"{name:14} {title}", soft_wrap=True)
        return
    if what not in [*known, "all"]:
        raise UserError(f"there is nothing called {what!r} to reproduce: {nearest(what, [*known, 'list', 'all'])}")
    if scale not in figures.SCALES:
        raise UserError(f"--scale cannot be {scale!r}: {nearest(scale, figures.SCALES)}")
    if min(1 if seeds is None else seeds, at_once, *(depths or [1])) < 1:
        raise UserError("--seeds, --jobs and --depth must be at least 1")
    execute = runner(on)
    answers = {}
    for name in known if what == "all" else [what]:
        base = ladder.SCALES[scale].config if name == "deepnet-depth" else figures.FIGURES[name].base(scale)
        base = base.set(data={"source": source}) if source else base
        base = configuration.override(base, assignments or [])
        if name == "deepnet-depth":
            layers = depths or ladder.SCALES[scale].depths
            answers[name] = _ladder(base, layers, only or [], seeds or 1, at_once, out, execute)
        else:
            wanted = seeds or figures.FIGURES[name].seeds
            answers[name] = _figure(name, scale, base, wanted, at_once, out, as_json, execute)
    page = overview(out) if what == "all" else None
    if as_json:
        _print_json(answers if what == "all" else answers[what])
    elif page:
        answer.print(f"all claims: {page}", soft_wrap=True)


def _figure(name: str, scale: str, base: Config, seeds: int, at_once: int, out: Path, quiet: bool, execute: Any) -> Any:
    from leadline.reproduce import FIGURES
    from leadline.reproduce.figure import reproduce as run

    figure = FIGURES[name]
    with counting("texts") as progress, TrainingView() as view:
        judged = run(name, figure, scale, base, seeds, at_once, out, view.show, progress, execute)
    if not quiet:
        answer.print(figure.title, soft_wrap=True)
        for j in judged:
            answer.print(f"  {j.verdict}: {j.claim.text}", soft_wrap=True)
            answer.print(
                f"    measured {j.measured}, wanted {j.claim.wanted}; the paper: {j.claim.paper}", soft_wrap=True
            )
        answer.print(f"page: {out / name}.html", soft_wrap=True)
    return [{"claim": j.claim.text, "verdict": j.verdict, "values": list(j.values)} for j in judged]


def _ladder(base: Config, depths: Any, only: list[str], seeds: int, at_once: int, out: Path, execute: Any) -> Any:
    from leadline.reproduce import depth as ladder

    with counting("pairs") as progress, TrainingView() as view:
        rows = ladder.reproduce(base, depths, only, seeds, at_once, out, view.show, progress, execute)
    columns = list(rows[0])
    table(f"{ladder.TITLE} (validation loss in nats a token)", columns, [[row[c] for c in columns] for row in rows])
    answer.print(f"results.csv and table.json: {out / 'deepnet-depth'}; runs: {out / 'runs'}", soft_wrap=True)
    return rows


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


@data.command("prepare")
def data_prepare(
    what: What = "numerals",
    assignments: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; a shared cache if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Text to tokens, once: reused when nothing changed."""
    from leadline.data.store import Store, prepare

    config = _config(what, assignments)
    with counting(_unit(config)) as progress:
        folder = prepare(config.data, out, progress)
    facts = {"folder": str(folder), "vocab_size": Store(folder).manifest["vocab_size"]}
    splits = Store(folder).manifest["splits"]
    if as_json:
        _print_json(facts | {"splits": splits})
        return
    answer.print(f"{folder}, vocabulary {facts['vocab_size']}", soft_wrap=True)
    for split, counts in splits.items():
        left_out = f", {counts['empty_left_out']:,} empty ones left out" if counts["empty_left_out"] else ""
        holds = Store(folder).holds
        if holds == "documents":
            size = f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens"
        else:
            size = f"{counts['rows']:,} {holds}, {counts['tokens'][0]:,} + {counts['tokens'][1]:,} tokens"
        answer.print(f"  {split}: {size}{left_out}")


@data.command("show")
def data_show(
    what: What = "numerals",
    assignments: Set = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    count: Annotated[int, typer.Option("-n", help="How many pairs or documents.")] = 5,
    as_json: Json = False,
) -> None:
    """Pairs, examples, or the sentences of documents, as the model sees them: text and tokens."""
    from leadline.data.store import Store, prepare

    config = _config(what, assignments)
    with counting(_unit(config)) as progress:
        store = Store(prepare(config.data, progress=progress))
    shown = store.first(split, count)
    name = store.tokenizer.piece
    texts = [store.tokenizer.decode([side.tolist() for side in pair]) for pair in shown]
    tokens = [[[name(int(token)) for token in side] for side in pair] for pair in shown]
    if as_json:
        _print_json([{"text": text, "tokens": names} for text, names in zip(texts, tokens, strict=True)])
        return
    for text, names in zip(texts, tokens, strict=True):
        for line, pieces in zip(text, names, strict=True):
            answer.print(line, soft_wrap=True)
            answer.print("    " + " ".join(pieces), style="dim", soft_wrap=True)
        answer.print()


def main() -> None:
    try:
        code = app(standalone_mode=False)
        if code == 128 + signal.SIGINT:  # typer has caught a KeyboardInterrupt
            _leave("stopped", code)
        sys.exit(code)
    except UserError as error:
        _leave(str(error), 2)
    except Diverged as error:
        _leave(str(error), 3)
    except Interrupted as stop:
        _leave(str(stop), 128 + stop.number)
    except (KeyboardInterrupt, typer.Abort):  # older versions of typer
        _leave("stopped", 128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read stdout has left
        sys.exit(1)
    except OSError as error:
        _leave(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's; not imported here
            _leave("the device is out of memory: lower train.batch_tokens, or decode.batch_tokens to translate", 2)
        if not hasattr(error, "show"):
            raise
        error.show()  # an option or argument that does not exist
        sys.exit(2)


def _leave(message: str, code: int) -> None:
    print(f"leadline: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
