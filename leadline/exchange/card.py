"""README.md of an exported folder: what the model is, on what and how it was trained, its scores, and how to use it.

Front matter is what hubs read. The licence is left open: whose text it was trained on decides what may be chosen.
"""

from __future__ import annotations

import inspect
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import leadline
from leadline import evaluations, history
from leadline.config import Config
from leadline.data.directions import arrow, sources, targets
from leadline.data.sources import parse
from leadline.diagnose import explain, inspection
from leadline.errors import UserError
from leadline.exchange import usage
from leadline.files import Facts, to_json, write_text
from leadline.placement import find
from leadline.provenance import facts_of
from leadline.training.checkpoint import is_imported
from leadline.training.trained import Trained

OPEN = "# yours to fill in: Leadline does not choose a licence, and that of the training data may bind you"
KINDS: dict[str, tuple[str, str]] = {  # for people, and in the words of a hub
    "encoder-decoder": ("translator", "translation"),
    "decoder-only": ("language model", "text-generation"),
    "encoder-only": ("encoder", "fill-mask"),
}


def write(run: Path, trained: Trained, out: Path, to: str, title: str, notes: Sequence[str]) -> None:
    model = trained.model.config
    classifies = model.classes and model.head == "linear"
    kind, pipeline = ("classifier", "text-classification") if classifies else KINDS[model.architecture]
    head = ["---", f"license:  {OPEN}", f"library_name: {'transformers' if to == 'huggingface' else 'ctranslate2'}"]
    head += [f"pipeline_tag: {pipeline}"]
    head += ["language:", *(f"- {to_json(language)}" for language in _languages(trained))]
    head += ["tags:", "- leadline", "---"]
    parts = [
        "\n".join(head),
        f"# {_plain(run.resolve().name)}",
        _what(trained, kind, title),
        "## How to use it",
        f"```python\n{usage.code(trained, to)}```",
        "\n".join(f"- {note}" for note in [*usage.limits(trained), *notes]),
        "## Data",
        _data(run, trained),
        "## Training",
        _training(run, trained),
        "## Verdict",
        _verdict(run),
        "## Scores",
        _scores(run, trained.checkpoint),
        "## Licence",
        "Not chosen yet: fill in `license` at the top. What the training data allows is for you to find out.",
    ]
    write_text(out / "README.md", "\n\n".join(part for part in parts if part) + "\n")


def _plain(text: object) -> str:
    """Text of users in Markdown: on one line, and nothing in it is markup."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(str(text).split()))


def _languages(trained: Trained) -> list[str]:
    data = trained.tokenizer.config
    if data.directions:
        return sorted({*sources(data.directions), *targets(data.directions)})
    translates = trained.model.config.architecture == "encoder-decoder"
    return [data.source_lang, data.target_lang] if translates else [data.source_lang]


def _what(trained: Trained, kind: str, title: str) -> str:
    model, data = trained.model.config, trained.tokenizer.config
    layers = "-".join(str(count) for count in (model.encoder_layers, model.decoder_layers) if count)
    weights = sum(parameter.numel() for parameter in trained.model.parameters())
    between = ""
    if model.architecture == "encoder-decoder":
        between = f" from {_plain(data.source_lang)} into {_plain(data.target_lang)}"
        if data.directions:
            between = f" between languages: {_plain(', '.join(map(arrow, data.directions)))}"
    placement = find(model.placement)
    equation = _plain((inspect.getdoc(sys.modules[placement.__module__]) or "").partition("\n")[0].rstrip("."))
    return (
        f"A {kind}{between}: a Transformer of {layers} layers, {model.dim} wide, with {weights:,} weights and a "
        f"vocabulary of {trained.model.vocab_size:,}, trained with Leadline {leadline.__version__}.\n\n"
        f"Its residual connections are {_plain(model.placement)} ({equation}). "
        f"In this folder it is {title}, which computes the same."
    )


def _data(run: Path, trained: Trained) -> str:
    data, facts = trained.tokenizer.config, facts_of(run)
    source = parse(trained.config.data.source)
    name = f"{source.kind}:…/{Path(source.place).name}" if source.place else str(source)  # where it lies is not told
    lines = [f"- source: {_plain(name)}", f"- text: {data.text}{', in lower case' if data.lowercase else ''}"]
    splits = facts.get("data", {}).get("splits", {}) if isinstance(facts.get("data"), dict) else {}
    lines += [f"- {_plain(split)}: {told['rows']:,} rows" for split, told in splits.items() if "rows" in told]
    return "\n".join(lines)


TOLD = {
    "optim": ("name", "lr", "schedule", "warmup", "betas", "weight_decay", "clip"),
    "train": ("updates", "epochs", "batch_tokens", "label_smoothing", "precision", "seed"),
    "model": ("dropout", "attention_dropout", "init"),
}
SEARCH = ("beam", "length_penalty", "max_ratio")  # with which a translator is scored


def _training(run: Path, trained: Trained) -> str:
    config: Config = trained.config
    code = facts_of(run).get("code") or {}
    commit = f", commit {code['commit'][:12]}" if isinstance(code.get("commit"), str) else ""
    told = TOLD | ({"decode": SEARCH} if config.model.architecture == "encoder-decoder" else {})
    lines = [f"| `{section}.{key}` | {_plain(getattr(getattr(config, section), key))} |"
             for section, keys in told.items() for key in keys]  # fmt: skip
    begun = f"Checkpoint {trained.checkpoint} of the run{commit}. All keys are in the run's config.toml; the main ones:"
    return "\n".join([begun, "", "| key | value |", "|---|---|", *lines])


def _verdict(run: Path) -> str:
    """What `leadline inspect` said, where it was told to save that in the run; then how the training went."""
    said: list[str] = []
    if (run / "inspection.json").exists():
        try:
            saved = replace(inspection.load(run), name=run.resolve().name)  # not where it lies
            said += ["`leadline inspect` said:", "", *_quoted(inspection.lines(saved)), ""]
        except UserError:
            said += ["The run has an inspection that cannot be read.", ""]
    measured = history.read(run)
    losses = measured.points("loss")[1]
    if not losses and is_imported(run):
        return "\n".join([*said, "Leadline has not trained it: it was imported."])
    diverged = any(measured.curve(key)[1][-1:] == [None] for key in ("loss", "grad_norm", "valid_nll"))
    if diverged or losses:
        said.append(f"The training {'diverged: its last numbers are not finite' if diverged else 'did not diverge'}.")
    if last := losses[-10:]:
        said.append(
            f"Its loss began at {losses[0]:.3f} and ended at {statistics.median(last):.3f} (median of the last "
            f"{len(last)} logged)."
        )
    else:
        said.append("It ended before a loss was logged.")
    updates, valid = measured.points("valid_nll")
    if valid:
        best = min(range(len(valid)), key=valid.__getitem__)
        said.append(f"The validation loss was lowest at update {updates[best]:.0f}: {valid[best]:.4f} nats.")
    try:
        explained = explain.explain(run)
        words = 3 if explained.causes else 1 if explained.healthy else 2  # the rest are other causes and the curve
        said += ["`leadline explain` says:", "", *_quoted(explain.lines(explained)[:words])]
    except UserError:
        pass
    return "\n".join(said)


def _quoted(lines: Sequence[str]) -> list[str]:
    return [f"- {_plain(line)}" for line in lines]


def _scores(run: Path, checkpoint: str) -> str:
    """What was measured of this checkpoint: by leadline evaluate, and the evaluation when it was written."""
    parts = []
    tables = {facts["name"]: _table(facts) for facts in evaluations.read(run) if facts.get("checkpoint") == checkpoint}
    for facts in evaluations.every(run):
        if facts.get("checkpoint") == checkpoint and ("by_direction" not in facts or facts["name"] in tables):
            told = tables.get(facts["name"]) or "\n".join(_told(facts))
            name = re.sub(r"(data\.\w+=).*", r"\1…", facts["name"])  # where other data lie is not told
            parts.append(f"`leadline evaluate`, {_plain(name)}:\n\n{told}")
    known = [row for row in history.read(run).rows if "valid_nll" in row]
    if known := [row for row in known if f"{row['update']:08d}" == checkpoint]:
        named = {name.removeprefix("valid_"): value for name, value in known[-1].items() if name.startswith("valid_")}
        parts.append("\n".join(["On the validation split, while it was trained:", "", *_told(named)]))
    return "\n\n".join(parts) or "None were measured of this checkpoint."


def _table(facts: Facts) -> str:
    rows = [
        f"| {_plain(arrow(row['direction']))} | {row['bleu']:.1f} | {row['chrf']:.1f} |"
        for row in facts["by_direction"]
        if isinstance(row.get("chrf"), int | float)
    ]
    signatures = facts.get("signatures")
    told = signatures.items() if isinstance(signatures, dict) else []
    lines = [f"- {_plain(signature)}: {_plain(names)}" for signature, names in told]
    heads = ["| direction | BLEU | chrF |", "|---|---|---|"]
    return "\n".join([*heads, *rows, "", *lines])


def _told(row: Facts) -> list[str]:
    numbers = {name: f"{value:,}" for name, value in row.items() if type(value) is int}
    numbers |= {name: f"{value:.4g}" for name, value in row.items() if isinstance(value, float)}
    signatures = {name: _plain(value) for name, value in row.items() if name.endswith("_signature")}
    return [f"- {_plain(name.replace('_', ' '))}: {value}" for name, value in (numbers | signatures).items()]
