"""Commands that look at models and runs."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.app import AllowCode, Device, Json, Set, app, number, print_json, tell_of
from leadline.cli.terminal import answer, counting, table
from leadline.diagnose.inspection import Inspection
from leadline.errors import Unfit, UserError

What = Annotated[
    str,
    typer.Argument(help="A recipe, a config.toml, a run, a Hugging Face folder (config.json) or module:function."),
]
Rate = Annotated[float | None, typer.Option(help="The learning rate to judge; the config's if not given.")]
Warmup = Annotated[int | None, typer.Option(help="Warm-up updates to judge; the config's if not given.")]
Seeds = Annotated[int, typer.Option(help="Number of random initialisations to inspect.")]


def _inspected(
    what: str,
    lr: float | None,
    warmup: int | None,
    seeds: int,
    assignments: list[str] | None,
    allow_code: bool,
    deeper: bool = False,
) -> Inspection:
    """`deeper`: a config also at half and twice its depth."""
    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"--lr must be above 0 and finite, not {lr:g}")
    if seeds < 1 or (warmup or 0) < 0:
        raise UserError("--seeds must be at least 1 and --warmup 0 or more")
    from leadline.cli import subjects
    from leadline.diagnose.inspect import inspect_seeds

    with counting() as progress, subjects.importing_here():
        make, config = subjects.find(what, lr, assignments or [], progress, allow_code)
        updates = warmup if warmup is not None else config.optim.known_warmup if config else 0
        first = config.train.seed if config else 1
        inspected = inspect_seeds(make, range(first, first + seeds), what, lr, updates if updates > 1 else 0, progress)
        return subjects.with_depths(inspected, config, progress) if deeper and config else inspected


@app.command("inspect")
def inspect_command(
    what: What,
    lr: Rate = None,
    warmup: Warmup = None,
    seeds: Seeds = 1,
    assignments: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder for inspection.json and records.jsonl.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page; figures as PNG and CSV go beside it.")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Say before training whether a model will train, in which layer trouble starts and what to change."""
    from leadline.report import inspections, page

    figures = page.beside(html) if html else None
    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: give a folder for inspection.json and records.jsonl")
    inspected = _inspected(what, lr, warmup, seeds, assignments, allow_code, deeper=bool(html))
    if out:
        inspected.save(out)
    if html:
        page.write(f"leadline inspect {what}", inspections.sections_of(inspected), html, figures)
    if as_json:
        print_json({"name": inspected.name, "verdict": asdict(inspected.verdict), "facts": inspected.facts,
                     "findings": [asdict(f) for f in inspected.findings],
                     "connections": [asdict(c) for c in inspected.connections]})  # fmt: skip
        return
    answer.print(str(inspected))
    if html:
        answer.print(f"page: {html}")


@app.command("certify")
def certify_command(
    what: What,
    lr: Rate = None,
    warmup: Warmup = None,
    seeds: Seeds = 1,
    assignments: Set = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Check a model in CI: placement found, no mistakes, trains at the given rate. Exit code 1: not certified."""
    from leadline.diagnose import certify

    try:
        certified = certify.certificate(_inspected(what, lr, warmup, seeds, assignments, allow_code))
    except Unfit as error:
        certified = certify.Certificate(what, False, [str(error)])
    if as_json:
        print_json(asdict(certified))
    else:
        answer.print("\n".join(certify.lines(certified)))
    if not certified.certified:
        raise typer.Exit(1)


@app.command("advise")
def advise_command(
    layers: Annotated[int, typer.Option(help="Layers of each stack.")],
    dim: Annotated[int, typer.Option(help="Width of the model.")] = 512,
    arch: Annotated[str, typer.Option(help="encoder-decoder, encoder or decoder.")] = "encoder-decoder",
    batch_tokens: Annotated[int, typer.Option(help="Tokens per batch.")] = 4096,
    warmup: Annotated[int, typer.Option(help="Warm-up updates you are willing to spend.")] = 0,
    as_json: Json = False,
) -> None:
    """Recommend a placement and a learning rate before there is a model, from a measured table."""
    from leadline.diagnose.advise import advise

    entries = advise(layers, dim, arch, batch_tokens, warmup)  # type: ignore[arg-type]
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    rows = [
        [entry.placement, f"{entry.rate:.1e}" if entry.rate else "does not train",
         f"{entry.highest_rate:.1e}" if entry.rate else "", f"{entry.output_change:.2f}" if entry.rate else ""]
        for entry in entries
    ]  # fmt: skip
    title = f"{arch}, {layers} layers, d {dim}, warm-up {warmup}: best first"
    table(title, ["placement", "use lr", "highest lr", "‖ΔF‖ of the first step"], rows)
    for entry in entries:
        if entry.constants:
            named = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in entry.constants.items())
            answer.print(f"{entry.placement}: {named}")
    for line in entries[0].beyond:
        answer.print(f"note: {line}")


@app.command("explain")
def explain_command(
    run: Annotated[Path, typer.Argument(help="A run folder, or one that leadline.Watch has written.")],
    html: Annotated[Path | None, typer.Option(help="Write a page; figures as PNG and CSV go beside it.")] = None,
    as_json: Json = False,
) -> None:
    """Say what went wrong in a training, where, since which update, and what to do; or that it is healthy."""
    from leadline.diagnose.explain import explain
    from leadline.report import explanations, page

    figures = page.beside(html) if html else None
    explanation = explain(run)
    if html:
        page.write(f"leadline explain {explanation.name}", explanations.sections_of(explanation), html, figures)
    if as_json:
        print_json(
            {
                "name": explanation.name,
                "verdict": explanation.verdict,
                "healthy": explanation.healthy,
                "causes": [asdict(cause) for cause in explanation.causes],
                "facts": explanation.facts,
            }
        )
        return
    answer.print(str(explanation))
    if html:
        answer.print(f"page: {html}")


@app.command("replay")
def replay_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    update: Annotated[int, typer.Argument(help="The update to run again.")],
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Run one update of a training again from the checkpoint before it and record everything. Changes nothing."""
    from leadline.diagnose.watch import Watch
    from leadline.training.replay import replay

    tell_of(run)
    with counting() as progress:
        replayed = replay(run, update, Watch(every=1), device, allow_code, progress)
    if as_json:
        print_json(replayed)
        return
    for key, value in replayed.items():
        shown = (
            ", ".join(map(str, value[:8])) + (f" and {len(value) - 8} more" if len(value) > 8 else "")
            if isinstance(value, list)
            else number(value, 5)
        )
        answer.print(f"{key:<44}{shown}")


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders written by leadline inspect --out.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write, report.html if not given; figures as PNG and CSV go beside it."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on this machine and keep it up to date until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port for --live; 8765 or the next free one if not given, 0: any.", min=0, max=65535),
    ] = None,
) -> None:
    """Write one self-contained page about runs and inspections, or follow trainings with --live."""
    from leadline.diagnose import inspection
    from leadline.report import inspections, page
    from leadline.report import runs as reports

    inspected = [folder for folder in runs if (folder / "inspection.json").exists()]
    trained = [folder for folder in runs if folder not in inspected or (folder / "metrics.jsonl").exists()]
    if live:
        if out:
            raise UserError("--out writes a page and --live serves one: choose one of them")
        from leadline.report.live import Followed, open_server

        followed = Followed(trained, [inspection.load(folder) for folder in inspected])
        with open_server(followed, 8765 if port is None else port) as server:
            answer.print(f"live at {server.url} (Ctrl-C ends it)")
            return server.serve_forever()
    if port is not None:
        raise UserError("--port means nothing without --live")
    out = out or Path("report.html")
    figures = page.beside(out)
    sections = reports.sections_of(trained) if trained else []
    for folder in inspected:
        sections += inspections.sections_of(inspection.load(folder))
    page.write("Report of " + ", ".join(folder.resolve().name for folder in runs), sections, out, figures)
    answer.print(f"page: {out}")
