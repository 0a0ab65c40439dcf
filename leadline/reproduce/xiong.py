"""The figures of Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from leadline import recipes
from leadline.config import Config
from leadline.report.page import Chart, Section, Series
from leadline.reproduce.claims import BIG, Claim, Numbers
from leadline.reproduce.figure import (
    Figure,
    Run,
    Runs,
    Variant,
    Variants,
    band,
    by_depth,
    curves,
    differences,
    nll,
    of,
    reached,
    slope,
    translation,
)

MATRIX = "watch/second_matrix/decoder."
AFTER = "after warm-up: post_ln"


def _rates(scale: str) -> tuple[float, float, tuple[int, int]]:
    """The lower and the higher rate of Adam, and the short and the long warm-up."""
    return (3e-3, 6e-3, (15, 40)) if scale == "tiny" else (5e-4, 1e-3, (500, 4000))


def _post(base: Config, name: str, lr: float, warmup: int) -> Config:
    schedule = {"name": name, "lr": lr, "schedule": "inverse_sqrt", "warmup": warmup}
    return base.set(model={"placement": "post_ln"}, optim=schedule | ({"momentum": 0.0} if name == "sgd" else {}))


def _fig2(scale: str, base: Config) -> Variants:
    low, high, (short, long) = _rates(scale)
    found: Variants = {}
    for name, rates in (("adam", (low, high)), ("sgd", (5e-3, 1e-3))):
        for lr in rates:
            for what, warmup in (("no", 1), ("short", short), ("long", long)):
                label = f"{name}, {'lower' if lr == min(rates) else 'higher'} rate, {what} warm-up"
                found[label] = Variant(_post(base, name, lr, warmup))
    return found


def _fig2_numbers(runs: Runs) -> Numbers:
    def gap(left: str, right: str) -> list[float]:
        return differences(of(runs, left, nll), of(runs, right, nll))

    return {
        "none - long, higher": gap("adam, higher rate, no warm-up", "adam, higher rate, long warm-up"),
        "none - long, lower": gap("adam, lower rate, no warm-up", "adam, lower rate, long warm-up"),
        "short: higher - lower": gap("adam, higher rate, short warm-up", "adam, lower rate, short warm-up"),
        "sgd none - adam long": gap("sgd, higher rate, no warm-up", "adam, higher rate, long warm-up"),
    }


def losses_and_bleu(runs: Runs, what: str = "") -> list[Section]:
    return [
        Chart(f"Validation loss{what}", "update", "nats a token", curves(runs, "valid_nll")),
        Chart(f"BLEU{what}", "update", "BLEU", curves(runs, "valid_bleu")),
    ]


def _fig2_charts(runs: Runs) -> list[Section]:
    """A chart an optimizer: twelve lines in one cannot be told apart."""
    return [
        chart
        for name, title in (("adam", ", Adam"), ("sgd", ", SGD"))
        for chart in losses_and_bleu({k: v for k, v in runs.items() if k.startswith(name)}, title)
    ]


FIG2 = Figure(
    title="Xiong Figure 2: Post-LN needs warm-up, whatever the optimizer",
    paper="Xiong et al. 2020, Figure 2",
    variants=_fig2,
    numbers=_fig2_numbers,
    charts=_fig2_charts,
    claims=(
        Claim(
            "Adam at the higher rate ends worse without warm-up than with the long one, in nats a token",
            "BLEU 8.45 without, about 34 with 4,000 updates of it",
            "none - long, higher",
            at_least=0.5,
        ),
        Claim(
            "so does Adam at the lower rate",
            "BLEU 8.45 without, about 34 with",
            "none - long, lower",
            at_least=0.5,
            scales=BIG,
        ),
        Claim(
            "with the short warm-up the higher rate ends worse than the lower",
            "BLEU 2.77 at 1e-3, 31.16 at 5e-4",
            "short: higher - lower",
            at_least=0.2,
            scales=BIG,
        ),
        Claim(
            "SGD without warm-up ends worse than Adam with it",
            "BLEU about 0 in 15 epochs",
            "sgd none - adam long",
            at_least=0.5,
        ),
    ),
)


def _fig3(scale: str, base: Config) -> Variants:
    """The norm of the mean gradient over eight mini-batches at the beginning, by depth; and Post-LN after warm-up."""
    depths, seeds = ((3, 4, 6), 0) if scale == "tiny" else ((6, 8, 10, 12, 14), 10)
    once = {"updates": 1, "epochs": 0, "accumulate": 8, "step": "eager", "bleu_sentences": 0, "eval_every": 0}
    found: Variants = {}
    for placement in ("post_ln", "pre_ln"):
        for depth in depths:
            model = {"placement": placement, "encoder_layers": depth, "decoder_layers": depth, "dropout": 0.0}
            config = base.set(model=model, train=once, optim={"lr": 1e-9})
            found[f"{placement} {depth}-{depth}"] = Variant(config, watch=1, seeds=seeds)
    _, high, (_, long) = _rates(scale)
    warm = {"updates": long, "epochs": 0, "bleu_sentences": 0, "eval_every": long}
    return found | {AFTER: Variant(_post(base, "adam", high, long).set(train=warm), long)}


def layer_gradients(run: Run, look: int = -1) -> list[float]:
    """Of the second feed-forward matrix of the decoder's layers, from the first to the last; at the last look."""
    rows = [row for row in run.rows if any(key.startswith(MATRIX) for key in row)]
    found = {key: value for key, value in rows[look].items() if key.startswith(MATRIX)}
    return [found[key] for key in sorted(found, key=lambda key: int(key.removeprefix(MATRIX)))]


def _fig3_numbers(runs: Runs) -> Numbers:
    numbers: dict[str, list[float]] = {}
    for placement in ("post_ln", "pre_ln"):
        depths = by_depth(runs, placement)
        seeds = min((len(members) for members in depths.values()), default=0)
        last = [[layer_gradients(members[s])[-1] for members in depths.values()] for s in range(seeds)]
        if len(depths) > 1:
            numbers[f"{placement} slope"] = [slope(list(depths), values) for values in last]
        if depths:
            shallow = depths[min(depths)]
            numbers[f"{placement} last/first"] = [g[-1] / g[0] for g in map(layer_gradients, shallow)]
    after = runs.get(AFTER, ())
    return numbers | {"after/before": [layer_gradients(run)[-1] / layer_gradients(run, 0)[-1] for run in after]}


def gradients(runs: Runs, placements: Sequence[str], shown: Callable[[Iterable[int]], int]) -> tuple[Chart, Chart]:
    """By layer, of the depth that `shown` picks; and of the last layer by depth."""
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
    after = [layer_gradients(run) for run in runs.get(AFTER, ())]
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


def _fig4(scale: str, base: Config) -> Variants:
    _, high, (_, long) = _rates(scale)
    # How long RAdam holds itself back depends on β2: with its own 0.999 twenty times as long as with Adam's 0.98 here.
    radam = {"name": "radam", "schedule": "linear", "warmup": 0}
    post = base.set(model={"placement": "post_ln"}, optim=radam)
    return {
        "pre_ln, adam, no warm-up": Variant(base),
        "post_ln, adam, warm-up": Variant(_post(base, "adam", high, long)),
        "post_ln, radam, no warm-up": Variant(post),
        "post_ln, radam (β2 0.999), no warm-up": Variant(post.set(optim={"betas": (0.9, 0.999)})),
        "pre_ln, radam, no warm-up": Variant(base.set(optim=radam)),
    }


def _fig4_numbers(runs: Runs) -> Numbers:
    pre, post = (runs.get(label, ()) for label in ("pre_ln, adam, no warm-up", "post_ln, adam, warm-up"))
    return {
        "pre - post": differences([nll(r) for r in pre], [nll(r) for r in post]),
        "share": [reached(a, nll(b)) for a, b in zip(pre, post, strict=False)],
        "radam pre - adam pre": differences(of(runs, "pre_ln, radam, no warm-up", nll), [nll(r) for r in pre]),
        "radam post - adam post": differences(of(runs, "post_ln, radam, no warm-up", nll), [nll(r) for r in post]),
        "radam 0.999 post - adam post": differences(
            of(runs, "post_ln, radam (β2 0.999), no warm-up", nll), [nll(r) for r in post]
        ),
    }


FIG4 = Figure(
    title="Xiong Figure 4: Pre-LN without warm-up against Post-LN with it",
    paper="Xiong et al. 2020, Figure 4",
    variants=_fig4,
    numbers=_fig4_numbers,
    charts=losses_and_bleu,
    claims=(
        Claim("Pre-LN without warm-up ends no worse than Post-LN with it", "both about 34", "pre - post", at_most=0.1),
        Claim(
            "it reaches Post-LN's final loss in less of the updates",
            "its 9th checkpoint is as good as Post-LN's 15th: 0.6",
            "share",
            at_most=0.8,
        ),
        Claim(
            "RAdam trains Post-LN without warm-up about as well as Adam with it",
            "trains",
            "radam post - adam post",
            at_most=0.3,
            scales=BIG,
        ),
        Claim(
            "so does RAdam with its usual β2 of 0.999",
            "trains",
            "radam 0.999 post - adam post",
            at_most=0.3,
            scales=BIG,
        ),
        Claim(
            "RAdam changes little for Pre-LN", "little", "radam pre - adam pre", at_least=-0.3, at_most=0.3, scales=BIG
        ),
    ),
)


def _wmt(scale: str) -> Config:
    """Transformer base, English to German; small: a corpus of half a million pairs on one GPU."""
    if scale == "tiny":
        return translation(scale).set(data={"source_lang": "en", "target_lang": "de"})
    shared = {"step": "graph", "log_every": 50, "keep": 1}
    if scale == "paper":
        return recipes.wmt14_pre_ln().set(train=shared | {"bleu_sentences": -1})
    shorter = {"epochs": 0, "updates": 6000, "accumulate": 1, "eval_every": 1000, "bleu_sentences": 1000}
    return recipes.wmt14_pre_ln().set(data={"vocab_size": 16000}, optim={"hold": 3000}, train=shared | shorter)


def _fig4_wmt(scale: str, base: Config) -> Variants:
    rates = _rates(scale)[:2] if scale == "tiny" else (7e-4, 1.5e-3)
    warmup = {"tiny": 40, "small": 1000, "paper": 4000}[scale]
    found: Variants = {}
    for what, lr in zip(("lower", "higher"), rates, strict=True):
        found[f"pre_ln, {what} rate, no warm-up"] = Variant(base.set(optim={"lr": lr}))
        found[f"post_ln, {what} rate, warm-up"] = Variant(_post(base, "adam", lr, warmup))
    return found


def _fig4_wmt_numbers(runs: Runs) -> Numbers:
    gaps, shares = list[float](), list[float]()
    for what in ("lower", "higher"):
        pre, post = (
            runs.get(label, ()) for label in (f"pre_ln, {what} rate, no warm-up", f"post_ln, {what} rate, warm-up")
        )
        gaps += differences([nll(run) for run in pre], [nll(run) for run in post])
        shares += [reached(a, nll(b)) for a, b in zip(pre, post, strict=False)]
    return {"pre - post": gaps, "share": shares}


FIG4_WMT = Figure(
    title="Xiong Figure 4, WMT14: Pre-LN without warm-up against Post-LN with it, English to German",
    paper="Xiong et al. 2020, Figure 4 (c) and (d)",
    variants=_fig4_wmt,
    numbers=_fig4_wmt_numbers,
    charts=losses_and_bleu,
    claims=(
        Claim(
            "at the same rate, Pre-LN without warm-up ends no worse than Post-LN with it, in nats a token",
            "competitive",
            "pre - post",
            at_most=0.1,
        ),
        Claim(
            "it reaches Post-LN's final loss in less of the updates", "converges faster, as De-En", "share", at_most=0.8
        ),
    ),
    base=_wmt,
)


def _fig6(scale: str, base: Config) -> Variants:
    low = {"lr": 6e-4 if scale == "tiny" else 1e-4, "schedule": "constant", "warmup": 0}
    return {
        "post_ln, small fixed rate": Variant(base.set(model={"placement": "post_ln"}, optim=low)),
        "pre_ln, adam, no warm-up": Variant(base),
    }


FIG6 = Figure(
    title="Xiong Figure 6: Post-LN at a small fixed rate",
    paper="Xiong et al. 2020, Figure 6",
    variants=_fig6,
    numbers=lambda runs: {
        "final": of(runs, "post_ln, small fixed rate", lambda run: run.curve("valid_nll")[1][0] - nll(run)),
        "fixed - pre": differences(
            of(runs, "post_ln, small fixed rate", nll), of(runs, "pre_ln, adam, no warm-up", nll)
        ),
    },
    charts=losses_and_bleu,
    claims=(
        Claim(
            "without warm-up, a small fixed rate trains Post-LN: its loss falls by so many nats",
            "from above 8 to about 4.3 in 27 epochs",
            "final",
            at_least=0.5,
        ),
        Claim("it stays behind Pre-LN at the usual rate", "4.3 against 4", "fixed - pre", at_least=0.05),
    ),
)
