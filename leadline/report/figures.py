"""Training curves as a picture and as a table, from the rows of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.files import write_csv

Rows = Sequence[Mapping[str, float]]

# Okabe and Ito's colours, which the colour-blind can tell apart; each run also has its own line style.
STYLES = [("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#E69F00", "-"), ("#56B4E9", "--")]


def write_curves(runs: Mapping[str, Rows], picture: Path, table: Path, title: str) -> None:
    """Validation loss (points) over training loss (lines) by update, one colour a run."""
    keys = ("update", "loss", "valid_nll", "lr", "grad_norm")
    measured = ([name, *(row.get(key, "") for key in keys)] for name, rows in runs.items() for row in rows)
    write_csv(table, ["run", "update", "train_loss", "valid_nll", "lr", "grad_norm"], measured)

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, rows), (colour, line) in zip(runs.items(), STYLES * len(runs), strict=False):
        train = [(row["update"], row["loss"]) for row in rows if "loss" in row]
        valid = [(row["update"], row["valid_nll"]) for row in rows if "valid_nll" in row]
        axes.plot(*zip(*train, strict=True), color=colour, linestyle=line, linewidth=1.5, alpha=0.7)
        axes.plot(*zip(*valid, strict=True), color=colour, linestyle=line, marker="o", markersize=4, label=name)
    axes.set(title=title, xlabel="update", ylabel="loss (nats a token)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(title="points: validation, lines: training", fontsize=9, title_fontsize=8)
    figure.savefig(picture, dpi=130)
    plt.close(figure)
