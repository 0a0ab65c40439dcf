"""Trainings of Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture": figures 2, 4 and 6."""

from __future__ import annotations

from leadline import recipes
from leadline.config import Config
from leadline.report.page import Chart, Section
from leadline.reproduce.claims import Claim, Numbers, big
from leadline.reproduce.figure import Figure, Runs, Variant, Variants, translation
from leadline.reproduce.reading import curves, gaps, nll, of, shares

# Set after a look: figure 4's first two claims. That Post-LN with warm-up comes within 0.1 nats of Pre-LN from this
# start, and that it fails without at a rate that is held, was known from single runs.


def rates_and_warmups(scale: str) -> tuple[float, float, tuple[int, int]]:
    """The lower and the higher rate of Adam, and the short and the long warm-up."""
    return (3e-3, 6e-3, (15, 40)) if scale == "tiny" else (5e-4, 1e-3, (500, 4000))


def post_ln(base: Config, name: str, lr: float, warmup: int) -> Config:
    schedule = {"name": name, "lr": lr, "schedule": "inverse_sqrt", "warmup": warmup}
    return base.set(model={"placement": "post_ln"}, optim=schedule | ({"momentum": 0.0} if name == "sgd" else {}))


SGD = "sgd, higher rate, no warm-up"


def _fig2(scale: str, base: Config) -> Variants:
    low, high, (short, long) = rates_and_warmups(scale)
    variants: Variants = {}
    for name, rates in (("adam", (low, high)), ("sgd", (5e-3, 1e-3))):
        for lr in rates:
            for what, warmup in (("no", 1), ("short", short), ("long", long)):
                label = f"{name}, {'lower' if lr == min(rates) else 'higher'} rate, {what} warm-up"
                in_claim = name == "adam" or label == SGD
                variants[label] = Variant(post_ln(base, name, lr, warmup), once=not in_claim)
    return variants


def _fig2_numbers(runs: Runs) -> Numbers:
    return {
        "none - long, higher": gaps(runs, "adam, higher rate, no warm-up", "adam, higher rate, long warm-up"),
        "none - long, lower": gaps(runs, "adam, lower rate, no warm-up", "adam, lower rate, long warm-up"),
        "short: higher - lower": gaps(runs, "adam, higher rate, short warm-up", "adam, lower rate, short warm-up"),
        "sgd none - adam long": gaps(runs, SGD, "adam, higher rate, long warm-up"),
    }


def losses_and_bleu(runs: Runs, what: str = "") -> list[Section]:
    """By epoch, as in the paper, where each evaluation is at the end of one."""
    epochs = [run.history.points("valid_nll", "epoch")[0] for members in runs.values() for run in members]
    by = "epoch" if all(each == list(range(1, len(each) + 1)) for each in epochs) else "update"
    return [
        Chart(f"Validation loss{what}", by, "nats a token", curves(runs, "valid_nll", by)),
        Chart(f"BLEU{what}", by, "BLEU", curves(runs, "valid_bleu", by)),
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
        big("so does Adam at the lower rate", "BLEU 8.45 without, about 34 with", "none - long, lower", at_least=0.5),
        big(
            "with the short warm-up the higher rate ends worse than the lower",
            "BLEU 2.77 at 1e-3, 31.16 at 5e-4",
            "short: higher - lower",
            at_least=0.2,
        ),
        Claim(
            "SGD without warm-up ends worse than Adam with it",
            "BLEU about 0 in 15 epochs",
            "sgd none - adam long",
            at_least=0.5,
        ),
    ),
)


def _fig4(scale: str, base: Config) -> Variants:
    _, high, (_, long) = rates_and_warmups(scale)
    # How long RAdam holds itself back depends on β2: with its own 0.999 twenty times as long as with Adam's 0.98 here.
    radam = {"name": "radam", "schedule": "linear", "warmup": 0}
    post = base.set(model={"placement": "post_ln"}, optim=radam)
    warm = post_ln(base, "adam", high, long)
    return {
        "pre_ln, adam, no warm-up": Variant(base),
        "post_ln, adam, warm-up": Variant(warm),
        # The same rate for as long, then the same decay: only the rise is missing.
        "post_ln, adam, no warm-up": Variant(
            warm.set(optim={"schedule": "hold_inverse_sqrt", "hold": long, "warmup": 0})
        ),
        "deepnorm, adam, warm-up": Variant(warm.set(model={"placement": "deepnorm"})),
        "post_ln, radam, no warm-up": Variant(post),
        "post_ln, radam (β2 0.999), no warm-up": Variant(post.set(optim={"betas": (0.9, 0.999)})),
        "pre_ln, radam, no warm-up": Variant(base.set(optim=radam)),
    }


def _fig4_numbers(runs: Runs) -> Numbers:
    pre, post = "pre_ln, adam, no warm-up", "post_ln, adam, warm-up"
    return {
        "post - pre": gaps(runs, post, pre),
        "held - warm": gaps(runs, "post_ln, adam, no warm-up", post),
        "pre - post": gaps(runs, pre, post),
        "share": shares(runs, pre, post),
        "radam pre - adam pre": gaps(runs, "pre_ln, radam, no warm-up", pre),
        "radam post - adam post": gaps(runs, "post_ln, radam, no warm-up", post),
        "radam 0.999 post - adam post": gaps(runs, "post_ln, radam (β2 0.999), no warm-up", post),
    }


FIG4 = Figure(
    title="Xiong Figure 4: Pre-LN without warm-up against Post-LN with it",
    paper="Xiong et al. 2020, Figure 4",
    variants=_fig4,
    numbers=_fig4_numbers,
    charts=losses_and_bleu,
    claims=(
        big(
            "Post-LN with warm-up ends near Pre-LN without it: nats above it",
            "both about 34 BLEU",
            "post - pre",
            at_most=0.15,
        ),
        Claim(
            "without warm-up, at the same rate held for as long, Post-LN fails: nats above that with warm-up",
            "8.45 BLEU (Figure 2)",
            "held - warm",
            at_least=0.5,
        ),
        Claim("Pre-LN without warm-up ends no worse than Post-LN with it", "both about 34", "pre - post", at_most=0.1),
        Claim(
            "it reaches Post-LN's final loss in less of the updates",
            "its 9th checkpoint is as good as Post-LN's 15th: 0.6",
            "share",
            at_most=0.8,
        ),
        big(
            "RAdam trains Post-LN without warm-up about as well as Adam with it",
            "trains",
            "radam post - adam post",
            at_most=0.3,
        ),
        big("so does RAdam with its usual β2 of 0.999", "trains", "radam 0.999 post - adam post", at_most=0.3),
        big("RAdam changes little for Pre-LN", "little", "radam pre - adam pre", at_least=-0.3, at_most=0.3),
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
    rates = rates_and_warmups(scale)[:2] if scale == "tiny" else (7e-4, 1.5e-3)
    warmup = {"tiny": 40, "small": 1000, "paper": 4000}[scale]
    variants: Variants = {}
    for what, lr in zip(("lower", "higher"), rates, strict=True):
        variants[f"pre_ln, {what} rate, no warm-up"] = Variant(base.set(optim={"lr": lr}))
        variants[f"post_ln, {what} rate, warm-up"] = Variant(post_ln(base, "adam", lr, warmup))
    return variants


def _fig4_wmt_numbers(runs: Runs) -> Numbers:
    labels = [(f"pre_ln, {what} rate, no warm-up", f"post_ln, {what} rate, warm-up") for what in ("lower", "higher")]
    return {
        "pre - post": [gap for pre, post in labels for gap in gaps(runs, pre, post)],
        "share": [share for pre, post in labels for share in shares(runs, pre, post)],
    }


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
        "final": of(runs, "post_ln, small fixed rate", lambda run: run.first("valid_nll") - nll(run)),
        "fixed - pre": gaps(runs, "post_ln, small fixed rate", "pre_ln, adam, no warm-up"),
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
