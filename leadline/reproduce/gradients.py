"""Figure 3 of Xiong et al. 2020: gradients by layer and by depth, before a training and after warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from leadline.config import Config
from leadline.report.page import Chart, Section, Series
from leadline.reproduce.claims import Claim, Numbers
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants
from leadline.reproduce.reading import band, by_depth, slopes
from leadline.reproduce.xiong import post_ln, rates_and_warmups

MATRIX = "watch/second_matrix/decoder."
AFTER = "after warm-up: post_ln"


def _fig3(scale: str, base: Config) -> Variants:
    """The norm of the mean gradient over eight mini-batches at the beginning, by depth; and Post-LN after warm-up."""
    depths, seeds = ((3, 4, 6), 0) if scale == "tiny" else ((6, 8, 10, 12, 14), 10)
    once = {"updates": 1, "epochs": 0, "accumulate": 8, "step": "eager", "eval_every": -1}
    variants: Variants = {}
    for placement in ("post_ln", "pre_ln"):
        for depth in depths:
            model = {"placement": placement, "encoder_layers": depth, "decoder_layers": depth, "dropout": 0.0}
            config = base.set(model=model, train=once, optim={"lr": 1e-9})
            variants[f"{placement} {depth}-{depth}"] = Variant(config, watch=1, seeds=seeds)
    _, high, (_, long) = rates_and_warmups(scale)
    warm = {"updates": long, "epochs": 0, "eval_every": -1}
    return variants | {AFTER: Variant(post_ln(base, "adam", high, long).set(train=warm), long)}


def layer_gradients(run: FinishedRun, look: int = -1) -> list[float]:
    """Of the second feed-forward matrix of the decoder's layers, from the first to the last; at the last look."""
    rows = [row for row in run.history.rows if any(key.startswith(MATRIX) for key in row)]
    norms = {key: value for key, value in rows[look].items() if key.startswith(MATRIX)}
    return [norms[key] for key in sorted(norms, key=lambda key: int(key.removeprefix(MATRIX)))]


def looked_into(runs: Runs) -> Runs:
    """Without those that diverged before anything was seen."""
    kept = {
        label: [run for run in each if any(f"{MATRIX}1" in row for row in run.history.rows)]
        for label, each in runs.items()
    }
    return {label: members for label, members in kept.items() if members}


def _fig3_numbers(runs: Runs) -> Numbers:
    runs = looked_into(runs)
    numbers: dict[str, list[float]] = {}
    for placement in ("post_ln", "pre_ln"):
        depths = by_depth(runs, placement)
        slopes_by_seed = slopes(runs, placement, lambda run: layer_gradients(run)[-1])
        numbers[f"{placement} slope"] = list(slopes_by_seed.values())
        shallow = depths[min(depths)] if depths else ()
        numbers[f"{placement} last/first"] = [g[-1] / g[0] for g in map(layer_gradients, shallow)]
    after = runs.get(AFTER, ())
    return numbers | {"after/before": [layer_gradients(run)[-1] / layer_gradients(run, 0)[-1] for run in after]}


def gradients(runs: Runs, placements: Sequence[str], shown: Callable[[Iterable[int]], int]) -> tuple[Chart, Chart]:
    """By layer, of the depth that `shown` picks; and of the last layer by depth."""
    runs = looked_into(runs)
    by_layer, against_depth = [], []
    for placement in placements:
        if depths := by_depth(runs, placement):
            one = [layer_gradients(run) for run in depths[shown(depths)]]
            by_layer.append(band(placement, range(1, len(one[0]) + 1), list(zip(*one, strict=True))))
            last = [[layer_gradients(run)[-1] for run in members] for members in depths.values()]
            against_depth.append(band(placement, list(depths), last))
    title, norm = "Gradient of the {} feed-forward matrix by {}", "norm of the gradient"
    return (
        Chart(title.format("second", "layer"), "decoder layer", norm, by_layer),
        Chart(title.format("last", "depth"), "layers of each stack", norm, against_depth),
    )


def _fig3_charts(runs: Runs) -> list[Section]:
    by_layer, against_depth = gradients(runs, ("post_ln", "pre_ln"), min)
    theory = []
    for series in against_depth.series:
        power, name = (0, "constant") if series.name == "post_ln" else (-0.5, "L^-½")
        line = [(series.y[0] or 0) * (depth / series.x[0]) ** power for depth in series.x]
        theory.append(Series(f"{series.name}, theory: {name}", series.x, line, style="dashes"))
    after = [layer_gradients(run) for run in looked_into(runs).get(AFTER, ())]
    late = [band(AFTER, range(1, len(after[0]) + 1), list(zip(*after, strict=True)))] if after else []
    return [
        replace(by_layer, series=[*by_layer.series, *late]),
        replace(against_depth, series=[*against_depth.series, *theory]),
    ]


FIG3 = Figure(
    title="Xiong Figure 3: gradients at initialisation",
    paper="Xiong et al. 2020, Figure 3",
    variants=_fig3,
    numbers=_fig3_numbers,
    charts=_fig3_charts,
    claims=(
        Claim(
            "Post-LN's last gradient does not fall with depth (slope in log-log)",
            "flat, about 1.6 from 6-6 to 14-14",
            "post_ln slope",
            at_least=-0.25,
        ),
        Claim("Pre-LN's falls, as L^-½", "Theorem 1: slope −½", "pre_ln slope", at_least=-0.9, at_most=-0.25),
        Claim("Post-LN's gradients grow from the first layer to the last", "grow", "post_ln last/first", at_least=1.2),
        Claim("Pre-LN's are about the same in all layers", "flat", "pre_ln last/first", at_least=0.3, at_most=1.2),
        Claim(
            "after warm-up Post-LN's last gradient is smaller than before, times", "small", "after/before", at_most=0.9
        ),
    ),
    seeds=3,
)
