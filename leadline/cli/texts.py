"""Commands about data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.app import Json, Set, What, config_of, data, open_store, print_json
from leadline.cli.terminal import answer


@data.command("prepare")
def data_prepare(
    what: What = "numerals",
    assignments: Set = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; the shared cache if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Tokenise text ahead of training. Text that has not changed is not prepared again."""
    config = config_of(what, assignments, allow_code=True)
    store = open_store(config, out)
    facts = {"folder": str(store.folder), "vocab_size": store.manifest["vocab_size"]}
    splits = store.manifest["splits"]
    if as_json:
        print_json(facts | {"splits": splits})
        return
    answer.print(f"{store.folder}, vocabulary {facts['vocab_size']}")
    for split, counts in splits.items():
        left_out = f", {counts['empty_left_out']:,} empty ones left out" if counts["empty_left_out"] else ""
        if store.holds == "documents":
            size = f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens"
        else:
            size = f"{counts['rows']:,} {store.holds}, {counts['tokens'][0]:,} + {counts['tokens'][1]:,} tokens"
        answer.print(f"  {split}: {size}{left_out}")


@data.command("show")
def data_show(
    what: What = "numerals",
    assignments: Set = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    count: Annotated[int, typer.Option("-n", help="Number of pairs or documents.", min=1)] = 5,
    as_json: Json = False,
) -> None:
    """Show pairs, labelled examples or documents as the model sees them: text and tokens."""
    config = config_of(what, assignments, allow_code=True)
    store = open_store(config)
    shown = store.first(split, count)
    name = store.tokenizer.piece
    texts = [store.tokenizer.decode([side.tolist() for side in pair]) for pair in shown]
    tokens = [[[name(int(token)) for token in side] for side in pair] for pair in shown]
    if as_json:
        print_json([{"text": text, "tokens": names} for text, names in zip(texts, tokens, strict=True)])
        return
    for text, names in zip(texts, tokens, strict=True):
        for line, pieces in zip(text, names, strict=True):
            answer.print(line)
            answer.print("    " + " ".join(pieces), style="dim")
        answer.print()


@data.command("check")
def data_check(folder: Annotated[Path, typer.Argument(help="Folder of prepared data.")], as_json: Json = False) -> None:
    """Compare every file of prepared data with its hash. Exit code 2: one is damaged."""
    from leadline.data import manifest

    facts = manifest.read(folder)
    manifest.check(folder, facts, again=True)
    files = len(facts["sha256"])
    if as_json:
        print_json({"folder": str(folder), "files": files, "whole": True})
    else:
        answer.print(f"{folder}: {files} files, all unchanged since they were prepared")
