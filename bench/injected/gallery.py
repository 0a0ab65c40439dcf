"""docs/post-mortems.md: what the command says of some trainings, word by word."""

from __future__ import annotations

from pathlib import Path

from bench.injected.faults import Case


def gallery(folder: Path) -> None:
    """docs/post-mortems.md: what was put into some trainings, and what the command says of them, word by word."""
    from leadline.diagnose.explain import explain

    said = [HEAD]
    for fault, training, words in GALLERY:
        case = Case(training, fault, 1)
        place = folder / case.name
        put = (place / "truth.txt").read_text()
        where = f" (`{put}`)" if put else ""
        said += [f"## {words.format(training=TITLES[training])}", "", f"Injected before update {case.at}{where}.", ""]
        text = "\n".join(line.rstrip() for line in str(explain(place)).splitlines())
        said += ["```text", text.replace(case.name, "runs/it"), "```", ""]
    (Path(__file__).parents[2] / "docs" / "post-mortems.md").write_text(
        "\n".join(said).rstrip() + "\n", encoding="utf-8"
    )


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

Verbatim output of `leadline explain` for small trainings into which a fault was injected. They have two or three
layers of width 16 (GPT-2: 2 layers of width 32 from transformers, in a plain loop) and run for 85 to 120 updates.
[How often it is right, and on what](watch.md#how-often-it-is-right).

`python -m bench.injected make FOLDER` and `python -m bench.injected gallery FOLDER` write this page.
With `--html page.html`, `leadline explain` also plots the curves.
"""
