"""The command that continues a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leadline.cli.app import AllowCode, Device, Json, RunFolder, Which, app, load_run, stdin_lines
from leadline.cli.terminal import tell
from leadline.errors import UserError
from leadline.files import to_json

if TYPE_CHECKING:
    from leadline.tasks.generator import Generator


@app.command()
def generate(
    run: RunFolder,
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue; lines of stdin if not given.")] = None,
    source: Annotated[Path | None, typer.Option("--input", "-i", help="A file of prompts, one per line.")] = None,
    tokens: Annotated[int | None, typer.Option(help="At most this many new tokens (generate.tokens).")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the most likely token.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Divides the logits (generate.temperature).")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many of the likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that together have this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for sampling (generate.seed).")] = None,
    which: Which = "best",
    device: Device = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Continue prompts, given as arguments, in a file or on stdin. A single prompt is continued token by token."""
    if greedy and temperature:
        raise UserError("--greedy is --temperature 0: leave one of them out")
    if prompts and source:
        raise UserError("give prompts as arguments or in a file, not both")
    given = {"tokens": tokens, "temperature": 0.0 if greedy else temperature, "top_k": top_k, "top_p": top_p}
    chosen = {key: value for key, value in (given | {"seed": seed}).items() if value is not None}
    generator = load_run(run, which, device, None, allow_code).generator(**chosen)
    for some in _prompts(prompts, source):
        _answer(generator, some, as_json)
    if generator.cut:
        limit = f"model.max_length={generator.model.config.max_length}"
        tell([f"{generator.cut} of the texts ended where the model does, at {limit} tokens with the prompt"])


def _prompts(prompts: list[str] | None, source: Path | None) -> Iterator[list[str]]:
    """All at once, except stdin's, which are yielded as they arrive."""
    from leadline.data.text import lines_of

    if prompts or source:
        yield prompts or list(lines_of(source))  # type: ignore[arg-type]
    else:
        yield from stdin_lines()


def _answer(generator: Generator, prompts: list[str], as_json: bool) -> None:
    if len(prompts) == 1 and not as_json:
        generator.tokens(prompts)  # what cannot be gone on with is not shown either
        print(prompts[0], end="", flush=True)
        generator.generate(prompts, lambda text: print(text, end="", flush=True))
        print(flush=True)
        return
    for prompt, text in zip(prompts, generator.generate(prompts), strict=True):
        print(to_json({"prompt": prompt, "text": text}) if as_json else f"{prompt}{text}\n", flush=True)
