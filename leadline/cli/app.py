"""What all commands share: the application, options that several have, and how answers are printed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline import config as configuration
from leadline import recipes
from leadline.config import Config
from leadline.errors import UserError
from leadline.files import to_json

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


def config_of(what: str, assignments: list[str] | None) -> Config:
    path = Path(what)
    found = configuration.load(path) if path.suffix == ".toml" or path.is_file() else recipes.find(what)
    return configuration.override(found, assignments or [])


def counted(config: Config) -> str:
    """What the preparation of its data counts."""
    from leadline.data.store import holds

    return holds(config.data.source)


def print_json(value: Any) -> None:
    print(to_json(value, indent=1))


def number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def load_run(run: Path, which: str, device: str | None, assignments: list[str] | None) -> Any:
    from leadline.training.trained import load

    trained = load(run, which, device)
    if bad := [a for a in assignments or [] if not a.startswith("decode.")]:
        raise UserError(f"--set {bad[0]}: a trained run can only change decode.* keys, such as decode.beam=5")
    return dataclasses.replace(trained, config=configuration.override(trained.config, assignments or []))
