"""What all commands share: the application, options that several have, and how answers are printed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leadline import __version__, recipes
from leadline import config as configuration
from leadline.cli import keys
from leadline.cli.terminal import counting, tell
from leadline.config import Config
from leadline.errors import UserError
from leadline.files import to_json
from leadline.world import started

if TYPE_CHECKING:
    from leadline.data.store import Store
    from leadline.training.trained import Trained


def require_values(arguments: list[str]) -> None:
    """Refuse `--out ""`: an empty path would mean the current folder. Only a prompt may be empty."""
    for number, (before, argument) in enumerate(itertools.pairwise(["", *arguments])):
        if argument == "" and arguments[0] == "generate" and number > 1 and not before.startswith("-"):
            continue
        if argument == "" or (argument.startswith("--") and argument.find("=") == len(argument) - 1):
            name = argument.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise UserError(f"{name} is empty: leave it out or give it a value, such as . for the current folder")


def unusable(error: Exception) -> str:
    """What typer says of an option, argument or command that does not exist or cannot be so, in a sentence."""
    if not hasattr(error, "format_message"):
        return ""
    context = getattr(error, "ctx", None)
    said = error.format_message().rstrip(".") or "name a command"  # without one, typer shows the help and says nothing
    if hasattr(error, "option_name") and context and any(p.name == "assignments" for p in context.command.params):
        said = keys.instead_of(error.option_name) or said
    return f"{said} (see {context.command_path if context else 'leadline'} --help)"


OF_A_RUN = ("run.json", "checkpoints", "tokenizer.json", "metrics.jsonl")  # what lies beside a config that is a run's
TOGETHER = ("train", "evaluate", "translate")  # commands that several processes of torchrun's share

app = typer.Typer(
    name="leadline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Prepare, show and check the text to train on.", no_args_is_help=True)
app.add_typer(data, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"leadline {__version__}")
        raise typer.Exit


@app.callback()
def leadline(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Train deep Transformers without the warm-up lottery."""
    command = context.invoked_subcommand
    if command not in TOGETHER and started() and int(os.environ["WORLD_SIZE"]) > 1:
        several = ", ".join(TOGETHER[:-1]) + f" and {TOGETHER[-1]}"
        raise UserError(
            f"torchrun starts leadline {several}; leadline {command} is one process: start it without torchrun"
        )


What = Annotated[str, typer.Argument(help="A recipe (see leadline recipes) or the path of a config.toml.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key (see leadline keys), as in --set optim.lr=1e-3."),
]
SetDecode = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change how it translates, as in --set decode.beam=5."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
RunFolder = Annotated[Path, typer.Argument(help="A run folder.")]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last, average:K (of the last K) or an update.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Allow importing code that the run names (its placement).")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1.")]


def config_of(what: str, assignments: list[str] | None, allow_code: bool) -> Config:
    """A recipe or a file; that of a run names code to import only where that is allowed, or where none is imported."""
    path = Path(what)
    if path.suffix in (".yaml", ".yml", ".json") and path.exists():
        raise UserError(
            f"{what} is not TOML: a config is a file such as config.toml in a run folder, with lines like lr = 1e-3 "
            "under [optim]; leadline keys lists them"
        )
    if path.suffix != ".toml" and not path.is_file():
        require_no_path(what)
        config = recipes.find(what)
    else:
        config = configuration.load(path)
        if any((path.parent / name).exists() for name in OF_A_RUN):  # not the user's own file but a run's
            from leadline.training.run import require_permission

            require_permission(config, path, allow_code)
        elif config.data.size != configuration.DataConfig().size and not _generates(config.data.source):
            tell([f"data.size={config.data.size} is not used: {config.data.source} is used whole"])
    config = configuration.override(config, assignments or [])
    asked = [assignment.partition("=")[0].strip() for assignment in assignments or []]
    if "data.size" in asked and not _generates(config.data.source):
        raise UserError(
            f"--set data.size: it says how much a builtin source generates, and {config.data.source} is used whole: "
            "give a shorter text (head -n) for less"
        )
    _require_as_prepared(config, asked)
    if why := keys.unused(config, asked):
        raise UserError(f"--set {why}: leave it out")
    return config


def _generates(source: str) -> bool:
    from leadline.data.sources import parse

    return not parse(source).place


def _require_as_prepared(config: Config, asked: list[str]) -> None:
    """Prepared data is used as it is: what else was asked for would be ignored."""
    from leadline.data import manifest
    from leadline.data.sources import parse

    names = [key.removeprefix("data.") for key in asked if key.startswith("data.") and key != "data.source"]
    if not names or (source := parse(config.data.source)).kind != "prepared":
        return
    before = configuration.from_dict(manifest.read(source.path)["data"], configuration.DataConfig, "data.")
    for name in names:
        if (was := getattr(before, name)) != getattr(config.data, name):
            shown = ",".join(was) if isinstance(was, tuple) else was
            raise UserError(
                f"--set data.{name}: {config.data.source} was prepared with {shown!r} and is used so: leave it out, or "
                "prepare the text again"
            )


def require_no_path(what: str) -> None:
    """What looks like a path is no name of a recipe, and a folder is none either."""
    if what not in recipes.RECIPES and Path(what).is_dir():
        if not (Path(what) / "config.toml").exists():
            raise UserError(
                f"{what} is a folder and neither a run nor a recipe: text is named with --set data.source=text:{what}"
            )
        raise UserError(
            f"{what} is a folder: a run goes on with leadline train --resume {what}; {what}/config.toml is its config"
        )
    if Path(what).suffix in (".yaml", ".yml", ".json"):
        raise UserError(f"{what} does not exist: check the path")
    if "/" in what or os.sep in what or what.startswith(("~", ".")):
        raise UserError(f"{what} does not exist: check the path, or name a recipe (leadline recipes lists them)")


def open_store(config: Config, out: Path | None = None) -> Store:
    """Its data, prepared if need be, with progress; and what is to be known of it, on stderr."""
    from leadline.data.store import Store, holds, prepare

    with counting(holds(config.data.source)) as progress:
        store = Store(prepare(config.data, out, progress), config.data)
    tell(store.notes)
    return store


def print_json(value: object) -> None:
    print(to_json(value, indent=1))


def number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def load_run(
    run: Path,
    which: str,
    device: str | None,
    assignments: list[str] | None,
    allow_code: bool,
    sections: tuple[str, ...] = ("decode",),
) -> Trained:
    """A run, ready to use; --set may change keys of `sections`."""
    from leadline.training.trained import load

    tell_of(run)
    trained = load(run, which, device, allow_code)
    if bad := [a for a in assignments or [] if a.partition(".")[0] not in sections]:
        keys = " and ".join(f"{section}.*" for section in sections)
        raise UserError(f"--set {bad[0]}: a trained run can only change {keys} keys, such as decode.beam=5")
    return dataclasses.replace(trained, config=override_run(trained.config, run, assignments or []))


def tell_of(run: Path) -> None:
    """What is to be said of a run that is used: whether its config had to be restored."""
    from leadline.training.run import read_config

    tell(filter(None, [read_config(run)[1]]))


def override_run(config: Config, run: Path, assignments: list[str]) -> Config:
    """With other data its vocabulary stays: text is read with the run's tokenizer.json."""
    changed = configuration.override(config, assignments)
    keys = {assignment.partition("=")[0].strip() for assignment in assignments}
    if any(key.startswith("data.") for key in keys - {"data.vocabulary"}) and "data.vocabulary" not in keys:
        changed = changed.set(data={"vocabulary": str(run / "tokenizer.json")})
    return changed


def stdin_lines() -> Iterator[list[str]]:
    """The lines of stdin as they come."""
    from leadline.data.text import lines_ready

    if sys.stdin is None:
        raise UserError("stdin is closed: pipe lines into this command, or name a file")
    if sys.stdin.isatty():
        tell(["type a line and press Enter; Ctrl-D ends"])
    return lines_ready(sys.stdin.buffer)  # type: ignore[arg-type]  # has read1, which its type does not say
