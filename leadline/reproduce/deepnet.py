"""Figures 3 to 5 of Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers" (arXiv 2203.00555).

Model, schedule and start are those of its IWSLT-14 trainings: see leadline.reproduce.depths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from leadline.config import Config
from leadline.report.page import Chart, Section
from leadline.reproduce.claims import Claim, Numbers, big
from leadline.reproduce.depths import iwslt14, of_paper
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants
from leadline.reproduce.gradients import gradients, layer_gradients, looked_into
from leadline.reproduce.reading import band, by_depth, curves, gaps, loss_chart, pairs, slopes

# Set after a look: figure 5's bound on the difference of slopes (at the tiny scale), its step of SGD and its last claim
# (at the small scale). All other bounds were set before any.
FIG5_RATES = {"adam": 1e-4, "sgd": 1e-2}
FIG5_KINDS = [f"{placement}/{name}" for name in FIG5_RATES for placement in ("post_ln", "deepnorm")]
UPDATES = {"tiny": 6, "small": 30, "paper": 30}  # of the accumulated update, as in the paper
NO_WARMUP = "post_ln, no warm-up"


def _fig3(scale: str, base: Config) -> Variants:
    """Gradients before the first update, by depth, and whether the model then learns."""
    depths = (2, 4, 6) if scale == "tiny" else (6, 12, 18, 24)
    once = {"updates": 1, "epochs": 0, "step": "eager", "eval_every": -1}
    deep = 6 if scale == "tiny" else 18
    trained = {} if scale == "paper" else {"updates": 100 if scale == "tiny" else 3000, "bleu_sentences": 0}
    variants: Variants = {}
    for placement in ("post_ln", "post_ln_init"):
        for depth in depths:
            config = of_paper(base, placement, depth).set(model={"dropout": 0.0}, train=once, optim={"lr": 1e-9})
            variants[f"{placement} {depth}-{depth}"] = Variant(config, 1)
        variants[f"trained: {placement}"] = Variant(of_paper(base, placement, deep).set(train=trained))
    return variants


def _fig3_numbers(runs: Runs) -> Numbers:
    looked = looked_into(runs)
    post, init = (by_depth(looked, placement) for placement in ("post_ln", "post_ln_init"))
    larger = [
        layer_gradients(b)[-1] / layer_gradients(a)[-1]
        for depth in post
        if depth in init
        for a, b in pairs(post[depth], init[depth])
    ]
    return {"init/post": larger, "post - init": gaps(runs, "trained: post_ln", "trained: post_ln_init")}


def _fig3_charts(runs: Runs) -> list[Section]:
    by_layer, against_depth = gradients(runs, ("post_ln", "post_ln_init"), max)
    trained = {label: members for label, members in runs.items() if label.startswith("trained: ")}
    return [replace(by_layer, log_y=True), against_depth, loss_chart(trained)]


FIG3 = Figure(
    title="DeepNet Figure 3: large gradients are not what keeps Post-LN from learning",
    paper="Wang et al. 2022, section 3",
    variants=_fig3,
    numbers=_fig3_numbers,
    charts=_fig3_charts,
    claims=(
        Claim("Post-LN-init's last gradient is larger than Post-LN's, times", "larger", "init/post", at_least=1.0),
        big(
            "yet it learns: Post-LN ends with a higher loss, by so many nats",
            "Post-LN diverges, Post-LN-init converges",
            "post - init",
            at_least=0.5,
        ),
    ),
    seeds=3,
    base=iwslt14,
)


def _fig4(scale: str, base: Config) -> Variants:
    """The first updates at depth 18-18, watched, with the rates that a training begins with, and without warm-up."""
    depth = 6 if scale == "tiny" else 18
    steps = {"updates": UPDATES[scale], "epochs": 0, "step": "eager", "eval_every": -1}
    steps |= {"precision": "fp32"}  # the first updates are smaller than what bf16 rounds away
    placements = ("post_ln", "post_ln_init", "pre_ln", "deepnorm", "admin")
    variants = {each: Variant(of_paper(base, each, depth).set(train=steps), 1) for each in placements}
    at_once = variants["post_ln"].config.set(optim={"schedule": "hold_inverse_sqrt", "warmup": 0})
    return {NO_WARMUP: Variant(at_once, 1), **variants}


def _drift(run: FinishedRun) -> float:
    return run.last("watch/drift")


def _early(run: FinishedRun) -> float:
    """After two updates."""
    return dict(zip(*run.history.points("watch/drift"), strict=True)).get(2, math.nan)


def _norm_input(kind: str) -> Callable[[FinishedRun], float]:
    """‖x‖ of what enters the decoder's norms at the first update, at d 512."""
    return lambda run: run.first(f"watch/norm_input/decoder.{kind}") * math.sqrt(512)


def _fig4_numbers(runs: Runs) -> Numbers:
    def ratio(left: str, right: str, read: Callable[[FinishedRun], float]) -> list[float]:
        return [read(a) / read(b) for a, b in pairs(runs.get(left, ()), runs.get(right, ()))]

    def first(run: FinishedRun) -> float:
        return run.first("watch/change")

    return {
        "post/deepnorm first": ratio("post_ln", "deepnorm", first),
        "post/init first": ratio("post_ln", "post_ln_init", first),
        "post/deepnorm drift": ratio("post_ln", "deepnorm", _drift),
        "init/post drift": ratio("post_ln_init", "post_ln", _drift),
        "without/with warm-up": ratio(NO_WARMUP, "post_ln", _early),
        "from the ffn": [_norm_input("ffn")(run) for run in runs.get("post_ln", ())],
        "from self-attention": [_norm_input("self")(run) for run in runs.get("post_ln", ())],
    }


def _fig4_charts(runs: Runs) -> list[Section]:
    return [
        Chart("Accumulated update of the model", "update", "‖F(θ_i) − F(θ_0)‖ / √d", curves(runs, "watch/drift")),
        Chart("Update of the model", "update", "‖ΔF‖ / √d", curves(runs, "watch/change")),
        Chart(
            "What enters the norms of the decoder's feed-forward layers",
            "update",
            "‖x‖ / √d",
            curves(runs, "watch/norm_input/decoder.ffn"),
        ),
    ]


FIG4 = Figure(
    title="DeepNet Figure 4: the model's update in its first steps",
    paper="Wang et al. 2022, section 3",
    variants=_fig4,
    numbers=_fig4_numbers,
    charts=_fig4_charts,
    claims=(
        Claim(
            "Post-LN's first update is larger than DeepNorm's, times",
            "explodes, DeepNorm's is bounded",
            "post/deepnorm first",
            at_least=1.5,
        ),
        Claim("and than that of Post-LN-init, times", "larger", "post/init first", at_least=1.0),
        big("so is its accumulated update after 30, times", "much larger", "post/deepnorm drift", at_least=1.5),
        big("Post-LN-init's is smaller than Post-LN's, times", "10.4 and 21.6: 0.48", "init/post drift", at_most=0.8),
        big(
            "without warm-up two updates move the output further than with it, times",
            "29 at once; with warm-up 21.6 after 29 updates",
            "without/with warm-up",
            at_least=3,
        ),
        big(
            "what enters Post-LN's norms from the FFN at first: ‖x‖ at d 512",
            "23.8",
            "from the ffn",
            at_least=23.3,
            at_most=24.3,
        ),
        big("and from self-attention", "28.9", "from self-attention", at_least=27.5, at_most=30.3),
    ),
    seeds=3,
    base=iwslt14,
)


def _fig5(scale: str, base: Config) -> Variants:
    """‖ΔF‖ of tiny models (d 64, FFN 128, 2 heads) against depth, in a step of either optimizer."""
    depths = (2, 6, 12) if scale == "tiny" else (6, 18, 50, 100)
    once = {"updates": 1, "epochs": 0, "step": "eager", "precision": "fp32", "eval_every": -1}
    sizes = {"dim": 64, "ffn_dim": 128, "heads": 2, "dropout": 0.0}
    variants: Variants = {}
    for kind in FIG5_KINDS:
        placement, name = kind.split("/")
        for depth in depths:
            optim = {"name": name, "lr": FIG5_RATES[name], "schedule": "constant", "warmup": 0}
            config = of_paper(base, placement, depth).set(model=sizes, train=once, optim=optim)
            variants[f"{kind} {depth}-{depth}"] = Variant(config, 1)
    return variants


def _change(run: FinishedRun) -> float:
    return run.last("watch/change")


def _fig5_numbers(runs: Runs) -> Numbers:
    depths = sorted({depth for kind in FIG5_KINDS for depth in by_depth(runs, kind)})
    by_kind = {kind: slopes(runs, kind, _change) for kind in FIG5_KINDS}
    post, deep = by_kind["post_ln/adam"], by_kind["deepnorm/adam"]
    deepest = (runs.get(f"{kind} {depths[-1]}-{depths[-1]}", ()) for kind in ("post_ln/adam", "deepnorm/adam"))
    return {f"{kind} slope": list(each.values()) for kind, each in by_kind.items()} | {
        "post_ln - deepnorm": [post[seed] - deep[seed] for seed in post if seed in deep],
        "post_ln/deepnorm": [_change(a) / _change(b) for a, b in pairs(*deepest)] if depths else [],
    }


def _fig5_charts(runs: Runs) -> list[Section]:
    def chart(name: str) -> Chart:
        series = [
            band(placement, list(depths), [[_change(run) for run in members] for members in depths.values()])
            for placement in ("post_ln", "deepnorm")
            if (depths := by_depth(runs, f"{placement}/{name}"))
        ]
        optimizer = {"adam": "Adam", "sgd": "SGD"}[name]
        title = f"Update of the model against depth, one step of {optimizer} at {FIG5_RATES[name]:g}"
        return Chart(title, "layers of each stack", "‖ΔF‖ / √d", series, log_x=True, log_y=True)

    return [chart(name) for name in FIG5_RATES]


FIG5 = Figure(
    title="DeepNet Figure 5: the model's update against depth",
    paper="Wang et al. 2022, Figure 5",
    variants=_fig5,
    numbers=_fig5_numbers,
    charts=_fig5_charts,
    claims=(
        Claim(
            "DeepNorm's update does not grow with depth in a step of SGD (slope in log-log)",
            "bounded for any depth (Theorem 4.3)",
            "deepnorm/sgd slope",
            at_most=0.15,
        ),
        Claim(
            "nor in one of Adam (slope in log-log)",
            "about constant from 6-6 to 100-100",
            "deepnorm/adam slope",
            at_most=0.15,
        ),
        Claim(
            "Post-LN's grows faster: the difference of the slopes with Adam",
            "grows",
            "post_ln - deepnorm",
            at_least=0.1,
        ),
        Claim(
            "in the deepest model Post-LN's update with Adam is larger than DeepNorm's, times",
            "far above it",
            "post_ln/deepnorm",
            at_least=2,
        ),
    ),
    seeds=3,
    base=iwslt14,
)
