"""Commands that take models out and in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.app import AllowCode, RunFolder, Which, app, load_run
from leadline.cli.terminal import answer, tell


@app.command("export")
def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    to: Annotated[str, typer.Option(help="huggingface, or ctranslate2 for a translator.")] = "huggingface",
    quantization: Annotated[str, typer.Option(help="ctranslate2: float32 or int8 matrices.")] = "float32",
    which: Which = "best",
    allow_code: AllowCode = False,
) -> None:
    """Export a run to a folder for transformers or CTranslate2, with its tokenizer and a model card (README.md)."""
    from leadline.exchange.export import export

    trained = load_run(run, which, "cpu", None, allow_code)
    title, notes = export(run, trained, out, to, quantization)
    answer.print(f"{out}: checkpoint {trained.checkpoint} of {run} as {title}")
    tell(notes)


@app.command("import")
def import_command(
    folder: Annotated[
        Path, typer.Argument(help="Saved by transformers: Marian, Pegasus, BERT, GPT-2, OPT, Llama, Qwen3, OLMo 2.")
    ],
    out: Annotated[Path, typer.Argument(help="The run folder to make.")],
) -> None:
    """Turn a Hugging Face folder (config.json, model.safetensors, a tokenizer) into a run, to use or train further."""
    from leadline.exchange import huggingface

    notes = huggingface.load(folder, out)
    answer.print(f"{out}: a run of {huggingface.architecture(folder)}")
    tell(notes)
    answer.print(f"next: {huggingface.next_command(folder, out)}")
