"""docs/post-mortems.md: what the command says of some trainings, word by word, and its pages as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.injected.faults import Case


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
    for fault, training, words in GALLERY:
        case = Case(training, fault, 1)
        put = (folder / case.name / "truth.txt").read_text()
        where = f" (`{put}`)" if put else ""
        add(words.format(training=TITLES[training]), case.name, f"Injected before update {case.at}{where}.")
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
HEAD = """# Post-mortems

Verbatim output of `leadline explain` for small trainings: first two that failed by themselves, then some into which a
fault was injected. Those have two or three layers of width 16 (GPT-2: 2 layers of width 32 from transformers, in a
plain loop) and run for 85 to 120 updates.
[How often it is right, and on what](watch.md#how-often-it-is-right).

`python -m bench.injected make FOLDER --seed 1` and `python -m bench.injected gallery FOLDER` write this page.
With `--html page.html`, `leadline explain` also plots the curves: [here are those of all post-mortems on one
page](results/post-mortems.html) (on GitHub, download it and open it in a browser). GPT-2 with shuffled labels:

![What went wrong, in words; curves of loss, gradients and rate; norms by layer](results/post-mortem.png)
"""
