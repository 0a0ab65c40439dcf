"""Commands about placements, and the papers' figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline import config as configuration
from leadline import recipes
from leadline.cli.app import Json, Set, app, number, print_json
from leadline.cli.terminal import TrainingView, answer, counting, definitions, table
from leadline.config import Config, ModelConfig
from leadline.errors import UserError, nearest
from leadline.files import Facts


@app.command()
def placements(
    layers: Annotated[tuple[int, int], typer.Option(help="Layers of encoder and decoder; 0: no such stack.")] = (6, 6),
    dim: Annotated[int | None, typer.Option(help="Width of the model; 512 if not given.")] = None,
    ffn_dim: Annotated[int | None, typer.Option(help="Width of the feed-forward layer; 1024 if not given.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Measure small untrained models instead: growth, gradients, first step.")
    ] = False,
    lr: Annotated[float | None, typer.Option(help="--compare: rate of the first steps; 4e-3 if not given.")] = None,
    as_json: Json = False,
) -> None:
    """List the placements: their constants and the initial std of every weight role."""
    from leadline.model.init import table as rows_of
    from leadline.placement import PLACEMENTS, ROLES

    if compare and (dim, ffn_dim) != (None, None):
        raise UserError("--dim and --ffn-dim mean nothing with --compare, which measures models of one small width")
    if lr is not None and not compare:
        raise UserError("--lr means nothing without --compare: constants do not depend on it")
    dim, ffn_dim = 512 if dim is None else dim, 1024 if ffn_dim is None else ffn_dim
    sizes: Any = {"encoder_layers": layers[0], "decoder_layers": layers[1], "dim": dim, "ffn_dim": ffn_dim, "heads": 1}
    architecture = ModelConfig(**sizes).architecture
    defined = [name for name, each in PLACEMENTS.items() if architecture in each.architectures]
    if compare:
        _compare(defined, layers, 4e-3 if lr is None else lr, as_json)
        return
    rows = [row for name in defined for row in rows_of(ModelConfig(placement=name, **sizes))]
    if as_json:
        print_json(rows)
        return
    roles = [role for role in ROLES if any(f"std_{role}" in row for row in rows)]
    letters = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "lambda": "λ", "scale": "scale"}
    shown = [
        [
            str(row["placement"]),
            str(row["stack"])[:3],
            " ".join(f"{letter} {number(row[key], 3)}" for key, letter in letters.items() if key in row),
            *(number(row.get(f"std_{role}", ""), 3) for role in roles),
        ]
        for row in rows
    ]
    table(
        f"{layers[0]}-{layers[1]} layers, d {dim}, FFN {ffn_dim}: constants and initial std, last layer",
        ["placement", "of", "constants", *roles],
        shown,
    )


def _compare(names: list[str], layers: tuple[int, int], lr: float, as_json: bool) -> None:
    if not lr > 0:
        raise UserError(f"--lr must be above 0, not {lr:g}")
    if not all(layers):
        raise UserError("--compare translates number words, which needs an encoder and a decoder: give both layers")
    from leadline.cli import subjects
    from leadline.diagnose.compare import measure

    base = recipes.numerals().set(model={"encoder_layers": layers[0], "decoder_layers": layers[1]}, optim={"lr": lr})
    rows = []
    with counting("placements") as progress:
        for name in names:
            progress("measuring", 1)
            rows.append(measure(subjects.of_config(base.set(model={"placement": name})), lr))
    if as_json:
        print_json([asdict(row) | {"needs_warmup": row.needs_warmup} for row in rows])
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
        "a guess, fitted on trainings of post_ln, pre_ln and deepnorm and untested on the others"
    )


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="The name of a figure, or all; list shows the names.")] = "list",
    scale: Annotated[
        str, typer.Option(help="tiny (two cores, minutes), small (one GPU, about an hour), paper.")
    ] = "tiny",
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--data", help="text:FOLDER, prepared:FOLDER, … as in data.source; with all, also documents for xiong-fig5."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Runs of each kind, with seeds 1, 2, …; if not given, 1 at tiny, else as many as the claims need."
        ),
    ] = None,
    depths: Annotated[
        list[int] | None, typer.Option("--depth", help="Only runs with this many layers per stack; may be repeated.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only runs whose names start with this; may be repeated.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option("--jobs", help="Trainings at a time; 2 if not given. A cluster decides by itself.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables; finished runs in it are reused.")] = Path(
        "reproduced"
    ),
    on: Annotated[
        str, typer.Option(help="ray or ray://HOST:PORT: run on a cluster, as many at once as it has room for.")
    ] = "",
    processes: Annotated[
        int | None, typer.Option(help="With --on: processes that share each run, each with a GPU if there are any.")
    ] = None,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Reproduce the papers' figures and tables by name, on your data. Run it again to resume."""
    from leadline import reproduce as figures
    from leadline.jobs.cluster import runner
    from leadline.reproduce.figure import Chosen
    from leadline.reproduce.showing import overview

    known = list(figures.FIGURES)
    if what == "list" and any((sources, seeds, depths, only, at_once, on, processes, assignments)):
        raise UserError("reproduce list takes no options but --json: name a figure, or all")
    if what == "list":
        return _list({name: figure.title for name, figure in figures.FIGURES.items()}, as_json)
    if what not in [*known, "all"]:
        raise UserError(f"there is nothing called {what!r} to reproduce: {nearest(what, [*known, 'list', 'all'])}")
    chosen = Chosen(tuple(only or ()), tuple(depths or ()))
    if what == "all" and (only or depths):
        raise UserError("--only and --depth choose among the runs of one figure: name it instead of all")
    _require_usable(scale, [seeds, at_once, processes, *(depths or [])], bool(on and at_once))
    if processes and not on:
        raise UserError("--processes needs --on ray: on this machine, give a training several with torchrun")
    execute = runner(on, processes or 1)
    answers = {}
    for name in known if what == "all" else [what]:
        base = _with_data(figures.FIGURES[name].base(scale), sources or [], several=what == "all")
        base = configuration.override(base, assignments or [])
        if base.train.eval_every < 0:
            raise UserError("--set train.eval_every=-1: figures and tables are made of evaluations; leave it as it is")
        wanted = seeds or (1 if scale == "tiny" else figures.FIGURES[name].seeds)
        answers[name] = _figure(name, scale, base, wanted, chosen, at_once or 2, out, as_json, execute)
    page = overview(out, figures.FIGURES) if what == "all" else None
    if as_json:
        print_json(answers if what == "all" else answers[what])
    elif page:
        answer.print(f"all claims: {page}")


def _require_usable(scale: str, counts: list[int | None], cluster_with_jobs: bool) -> None:
    from leadline.reproduce import SCALES

    if scale not in SCALES:
        raise UserError(f"--scale cannot be {scale!r}: {nearest(scale, SCALES)}")
    if min(1 if count is None else count for count in counts) < 1:
        raise UserError("--seeds, --jobs, --processes and --depth must be at least 1")
    if cluster_with_jobs:
        raise UserError("--jobs means nothing with --on: a cluster runs as many at once as it has room for")


def _list(titles: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "title": title} for name, title in titles.items()])
    else:
        definitions(list(titles.items()))


def _figure(
    name: str, scale: str, base: Config, seeds: int, chosen: Any, at_once: int, out: Path, quiet: bool, execute: Any
) -> list[Facts]:
    from leadline.reproduce import FIGURES
    from leadline.reproduce.making import reproduce as run

    figure = FIGURES[name]
    with counting("texts") as progress, TrainingView() as view:
        judged = run(name, figure, scale, base, seeds, at_once, out, view.show, progress, execute, chosen)
    if not quiet:
        answer.print(figure.title)
        for j in judged:
            answer.print(f"  {j.verdict}: {j.claim.text}")
            answer.print(f"    measured {j.measured}, wanted {j.claim.wanted}; the paper: {j.claim.paper}")
        answer.print(f"page: {out / name}.html")
    return [{"claim": j.claim.text, "verdict": j.verdict, "values": list(j.values)} for j in judged]


def _with_data(base: Config, sources: list[str], several: bool) -> Config:
    """With the one of the sources that holds what it trains on; where all figures are made, perhaps none does."""
    from leadline.data.store import holds, of_many

    many = of_many(base.data.source) or bool(base.data.directions)
    fitting = [s for s in sources if holds(s) == holds(base.data.source) and of_many(s) == many]
    if sources and not (fitting or several):
        given, needed = (
            f"{holds(source)} of many languages" if of else holds(source)
            for source, of in ((sources[0], of_many(sources[0])), (base.data.source, many))
        )
        raise UserError(f"--data {sources[0]} holds {given}: this needs {needed}")
    return base.set(data={"source": fitting[-1], "directions": []}) if fitting else base
