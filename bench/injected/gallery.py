"""docs/post-mortems.md: what the command says of some trainings, word by word, and its pages as one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.injected.faults import Case
from bench.injected.others import AT, WAYS, break_off


def gallery(folder: Path) -> None:
    """What was put into some trainings, and what the command says of them."""
    from leadline.diagnose.explain import explain
    from leadline.report import explanations, page

    docs = Path(__file__).parents[2] / "docs"
    said, pages = [HEAD], []

    def add(title: str, name: str, origin: str) -> None:
        explanation = explain(folder / name)
        pages.extend(explanations.sections_of(explanation))
        text = "\n".join(line.rstrip() for line in str(explanation).splitlines())
        said.extend([f"## {title}", "", origin, "", "```text", text.replace(name, "it"), "```", ""])

    for name, (title, options) in BY_ITSELF.items():
        if not (folder / name / "run.json").exists():
            _train(options, folder / name)
        add(title, name, f"Nothing was injected: `leadline train {options}`, one seed.")
    for way, title in OTHERS.items():
        name = f"gpt2-{way}"
        if not (folder / name / "metrics.jsonl").exists():
            break_off(way, folder / name)
        add(title, name, f"{WAYS[way].capitalize()} from update {AT} on, in a plain loop.")
    for fault, training, words in GALLERY:
        case = Case(training, fault, 1)
        put = (folder / case.name / "truth.txt").read_text()
        where = f" (`{put}`)" if put else ""
        add(words.format(training=TITLES[training]), case.name, f"Injected before update {case.at}{where}.")
    said[1:1] = _signs(said)
    page.write("Post-mortems", pages, docs / "results" / "post-mortems.html")
    (docs / "post-mortems.md").write_text("\n".join(said).rstrip() + "\n", encoding="utf-8")


def _train(options: str, out: Path) -> None:
    subprocess.run([sys.executable, "-m", "leadline", "train", *options.split(), "--out", str(out)], check=False)


# Trainings that fail by themselves.
BY_ITSELF = {
    "post-ln-without-warm-up": (
        "Post-LN without warm-up",
        "numerals --set model.placement=post_ln --set optim.lr=1e-2 --set optim.warmup=0 "
        "--set train.updates=120 --watch 25",
    ),
    "rate-too-high": (
        "Pre-LN at a rate that is far too high, by SGD",
        "numerals --set optim.name=sgd --set optim.lr=100 --set train.updates=120 --watch 25",
    ),
}


# Loops that do something else (`python -m bench.injected others`).
OTHERS = {
    "kept": "Gradients that are never set to zero, in GPT-2",
    "stuck": "A loader that gives the same batch for ever, in GPT-2",
    "leak": "A causal mask that is lost, in GPT-2",
}


TITLES = {"translation": "a translator", "masked_lm": "a masked LM", "causal_lm": "a language model", "gpt2": "GPT-2"}
GALLERY = [
    ("bad_batch", "masked_lm", "One batch of noise, in {training}"),
    ("labels", "gpt2", "Labels shuffled from one update on, in {training}"),
    ("data", "gpt2", "Another alphabet from one update on, in {training}"),
    ("rate", "translation", "Ten times the learning rate, in {training}"),
    ("weights", "causal_lm", "One matrix multiplied by 8, in {training}"),
    ("embedding", "translation", "One row of the embedding overwritten, in {training}"),
    ("loss_scale", "masked_lm", "Gradients 64 times too large, in {training}"),
    ("precision", "causal_lm", "Weights rounded to bf16 before every update of {training}"),
    ("moments", "gpt2", "Adam's moments set to zero in {training}"),
    ("norm", "translation", "A norm removed from {training}"),
    ("labels", "masked_lm", "Not found: shuffled labels in {training} that had learnt only token frequencies"),
]
# What one sees first, and the faults that look so: a word for each, and the beginning of its title.
SIGNS = {
    "never falls far, or rises to where it began": {"a model that has collapsed": "Post-LN"},
    "becomes infinite or NaN": {"a rate that is too high": "Pre-LN"},
    "jumps once": {"a bad batch": "One batch", "an embedding overwritten": "One row"},
    "jumps, and falls again": {"other data": "Another alphabet"},
    "jumps, and stays": {"labels": "Labels shuffled"},
    "falls as never before": {"the same batch": "A loader"},
    "looks as ever, and the model is worse than it should be": {
        "gradients kept": "Gradients that", "scaled": "Gradients 64", "rounded weights": "Weights rounded",
        "lost moments": "Adam", "another rate": "Ten times", "a matrix overwritten": "One matrix",
        "a norm removed": "A norm", "a lost mask": "A causal mask",
    },
}  # fmt: skip


def _signs(said: Sequence[str]) -> list[str]:
    """A table of links to the sections."""
    titles = [line.removeprefix("## ") for line in said if line.startswith("## ")]
    rows = ["| your loss | look at |", "|---|---|"]
    for sign, faults in SIGNS.items():
        links = []
        for words, start in faults.items():
            title = next(title for title in titles if title.startswith(start))
            anchor = "".join(c for c in title.lower() if c.isalnum() or c in " -").replace(" ", "-")
            links.append(f"[{words}](#{anchor})")
        rows.append(f"| {sign} | {', '.join(links)} |")
    return [*rows, ""]


HEAD = """# Post-mortems

Verbatim output of `leadline explain` for small trainings: first two that failed by themselves, then three loops that
were broken (GPT-2 from transformers, 4 layers of width 64, 220 updates), then some into which a fault was injected.
Those have two or three layers of width 16 (GPT-2: 2 layers of width 32, in a plain loop) and run for 85 to 120 updates.
[How often it is right, and on what](watch.md#how-often-it-is-right).

`python -m bench.injected make FOLDER --seed 1` and `python -m bench.injected gallery FOLDER` write this page.
With `--html page.html`, `leadline explain` also plots the curves: [here are those of all post-mortems on one
page](results/post-mortems.html) (on GitHub, download it and open it in a browser). GPT-2 with shuffled labels:

![What went wrong, in words; curves of loss, gradients and rate; norms by layer](results/post-mortem.png)
"""
