"""How deep each placement goes: figures 6 and 7 of Wang et al. 2022 (arXiv 2203.00555), and their thousand layers.

Figure 6 is in the paper's own setting, which one GPU can hold: IWSLT-14 German-English, d 512, FFN 2048, 8 heads,
dropout 0.4, 8,000 updates of 4,000 tokens, Adam to 5e-4 after a warm-up of 4,000. Its baselines started as fairseq of
2020 does, as far as its Figure 4 tells; a placement whose constants are defined on Xavier starts from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline import recipes
from leadline.config import Config
from leadline.placement import find
from leadline.report.page import Chart, Section, Series, Table
from leadline.reproduce.claims import Numbers, big
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants, translation
from leadline.reproduce.reading import bleu, by_depth, gaps, loss_chart, mean, nll, of

START = "fairseq_2020"
PAPER_DEPTHS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
# Test BLEU on IWSLT-14 German-English at these depths, read off the paper's Figure 6.
PAPER = {
    "deepnorm": (29.8, 30.9, 31.1, 31.3, 31.2, 31.4, 31.7, 31.5, 31.5, 31.7),
    "pre_ln": (29.6, 29.1, 28.2, 27.0, 26.6, 26.3, 25.6, 25.1, 24.7, 24.3),
    "post_ln": (4, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "ds_init": (29.9, 29.6, 16, 10.5, 13, 10.3, 7.2, 27.6, 12, 6.8),
    "admin": (28.8, 29.2, 28.8, 28.2, 27.8, 22.6, 16.8, 16.9, 0.6, 0.7),
    "r_fixup": (29.6, 30.3, 30.2, 30.4, 30.3, 30.2, 30.1, 30.3, 30.2, 30.2),
    "t_fixup": (29.6, 29.3, 28.6, 28.2, 28.6, 27.7, 27.2, 25.8, 26.4, 27.0),
    "rezero": (25.9, 26.4, 27.1, 27.7, 28.2, 27.7, 27.8, 28.0, 27.8, 27.8),
    "dlcl": (28.6, 29.1, 29.3, 29.5, 29.5, 29.5, 29.5, 29.6, 29.3, 29.8),
    "normformer": (27.3, 26.9, 26.3, 26.5, 26.3, 26.2, 25.9, 25.9, 25.8, 25.6),
}
LEARNT = 1.0  # BLEU below this is no translation
OTHER_BASE = f"deepnorm/{START}"


def of_paper(base: Config, placement: str, depth: int) -> Config:
    """The placement at N-N layers, started as in the paper."""
    layers = {"encoder_layers": depth, "decoder_layers": depth}
    start = "auto" if find(placement).base else START
    return base.set(model={"placement": placement, "init": start, **layers})


def iwslt14(scale: str) -> Config:
    """The model and the schedule of the paper's Table 5; tiny: number words."""
    base = translation(scale)
    if scale == "tiny":
        schedule = {"lr": 2e-3, "schedule": "inverse_sqrt", "warmup": 20}
        return base.set(model={"dim": 32, "ffn_dim": 64, "heads": 2}, optim=schedule, train={"bleu_sentences": 20})
    return base.set(
        model={"dim": 512, "ffn_dim": 2048, "heads": 8, "dropout": 0.4},
        # fairseq's Adam decouples the decay
        optim={
            "name": "adamw", "lr": 5e-4, "eps": 1e-8, "weight_decay": 1e-4,
            "schedule": "inverse_sqrt", "warmup": 4000,
        },
        train={"epochs": 0, "updates": 8000, "batch_tokens": 4000, "eval_every": 1000, "bleu_sentences": 1000},
    )  # fmt: skip


def _fig6(scale: str, base: Config) -> Variants:
    """Who does not get better for half of the training is stopped."""
    # (placement, depths, seeds)
    if scale == "tiny":
        wanted: list[tuple[str, Sequence[int], int]] = [(placement, (2, 6), 0) for placement in PAPER]
    elif scale == "small":
        wanted = [("deepnorm", (10, 50), 3), ("pre_ln", (10, 50), 3)]
        wanted += [(placement, (10, 50), 0) for placement in PAPER if placement not in ("deepnorm", "pre_ln")]
        wanted += [("deepnorm", (30, 100), 0), ("pre_ln", (30, 100), 0)]
    else:
        wanted = [(placement, PAPER_DEPTHS, 0) for placement in PAPER]
    base = base.set(train={"patience": 0 if scale == "tiny" else 4})
    variants = {
        f"{placement} {depth}-{depth}": Variant(of_paper(base, placement, depth), seeds=seeds)
        for placement, depths, seeds in wanted
        for depth in depths
    }
    shallow = min(depth for _, depths, _ in wanted for depth in depths)
    other = of_paper(base, "deepnorm", shallow).set(model={"init": START})
    return variants | {f"{OTHER_BASE} {shallow}-{shallow}": Variant(other)}


def _fig6_numbers(runs: Runs) -> Numbers:
    shallow, middle, deep = ("10-10", "50-50", "100-100")
    others = ("r_fixup", "t_fixup", "rezero", "dlcl", "normformer")
    reached = [min(values) for name in others if (values := of(runs, f"{name} {middle}", bleu))]
    return {
        "deepnorm middle - shallow": gaps(runs, f"deepnorm {middle}", f"deepnorm {shallow}", bleu),
        "deepnorm deep - shallow": gaps(runs, f"deepnorm {deep}", f"deepnorm {shallow}", bleu),
        "pre_ln middle - shallow": gaps(runs, f"pre_ln {middle}", f"pre_ln {shallow}", bleu),
        "pre_ln deep - shallow": gaps(runs, f"pre_ln {deep}", f"pre_ln {shallow}", bleu),
        "deepnorm - pre_ln, shallow": gaps(runs, f"deepnorm {shallow}", f"pre_ln {shallow}", bleu),
        "deepnorm - pre_ln, middle": gaps(runs, f"deepnorm {middle}", f"pre_ln {middle}", bleu),
        "deepnorm - pre_ln, deep": gaps(runs, f"deepnorm {deep}", f"pre_ln {deep}", bleu),
        "post_ln, shallow": of(runs, f"post_ln {shallow}", bleu),
        "post_ln, middle": of(runs, f"post_ln {middle}", bleu),
        "deepnorm - ds_init, middle": gaps(runs, f"deepnorm {middle}", f"ds_init {middle}", bleu),
        "deepnorm - admin, middle": gaps(runs, f"deepnorm {middle}", f"admin {middle}", bleu),
        "lowest of the others, middle": [min(reached)] if len(reached) == len(others) else [],
    }


def _cell(members: Sequence[FinishedRun]) -> str:
    if not members:
        return "–"
    if all(run.result["diverged"] for run in members):
        return "diverged"
    score, loss = mean(map(bleu, members)), mean(map(nll, members))
    seeds = f", {len(members)} seeds" if len(members) > 1 else ""
    return f"{score:.1f} ({loss:.2f}{seeds})" if score >= LEARNT else f"not learnt ({loss:.2f}{seeds})"


def _fig6_charts(runs: Runs) -> list[Section]:
    names = [*PAPER, OTHER_BASE]
    depths = sorted({depth for name in names for depth in by_depth(runs, name)})
    told = [depth for depth in depths if depth in PAPER_DEPTHS]  # by the paper
    rows, lines = [], []
    for name in names:
        of_depth = by_depth(runs, name)
        if not of_depth:
            continue
        reported = dict(zip(PAPER_DEPTHS, PAPER.get(name, ()), strict=False))
        rows.append([name, *(_cell(of_depth.get(d, ())) for d in depths), *(reported.get(d, "") for d in told)])
        means = [mean(map(bleu, members)) for members in of_depth.values()]
        lines.append(Series(name, list(of_depth), means))
        if reported and set(of_depth) <= set(reported):
            line = [reported[depth] for depth in of_depth]
            lines.append(Series(f"{name}, the paper", list(of_depth), line, style="dashes", selected=False))
    title = "Validation BLEU (loss in nats a token) by placement and depth; the paper's is test BLEU"
    columns = ["placement", *(f"{depth}-{depth}" for depth in depths), *(f"paper {depth}-{depth}" for depth in told)]
    table = Table(title, columns, rows)
    return [table, Chart("Validation BLEU against depth", "layers of each stack", "BLEU", lines)] if rows else []


FIG6 = Figure(
    title="DeepNet Figure 6: BLEU against depth",
    paper="Wang et al. 2022, Figure 6",
    variants=_fig6,
    numbers=_fig6_numbers,
    charts=_fig6_charts,
    base=iwslt14,
    claims=(
        big("DeepNorm gains from 10-10 to 50-50, BLEU", "29.8 to 31.2", "deepnorm middle - shallow", at_least=0),
        big("and from 10-10 to 100-100", "29.8 to 31.7", "deepnorm deep - shallow", at_least=0),
        big("Pre-LN loses from 10-10 to 50-50", "29.6 to 26.6", "pre_ln middle - shallow", at_most=0),
        big("and from 10-10 to 100-100", "29.6 to 24.3", "pre_ln deep - shallow", at_most=0),
        big(
            "at 10-10 DeepNorm and Pre-LN are about equal",
            "29.8 and 29.6",
            "deepnorm - pre_ln, shallow",
            at_least=-1,
            at_most=1,
        ),
        big("at 50-50 DeepNorm is ahead", "31.2 and 26.6", "deepnorm - pre_ln, middle", at_least=1),
        big("and at 100-100", "31.7 and 24.3", "deepnorm - pre_ln, deep", at_least=1),
        big("Post-LN learns little at 10-10", "4", "post_ln, shallow", at_most=10),
        big("and nothing at 50-50", "0", "post_ln, middle", at_most=LEARNT),
        big("DS-Init is behind DeepNorm at 50-50", "13 and 31.2", "deepnorm - ds_init, middle", at_least=1),
        big("and so is Admin", "27.8 and 31.2", "deepnorm - admin, middle", at_least=1),
        big(
            "R-Fixup, T-Fixup, ReZero, DLCL and NormFormer learn at 50-50: the lowest BLEU of them",
            "26.3",
            "lowest of the others, middle",
            at_least=10,
        ),
    ),
)


def wmt17(scale: str) -> Config:
    """The paper's Figure 7: 18-18 on WMT-17; small: 3,000 updates of 4,096 tokens, on half a million pairs."""
    if scale == "tiny":
        return iwslt14(scale).set(data={"source_lang": "en", "target_lang": "de"})
    base = recipes.wmt14_pre_ln().set(
        model={"dropout": 0.4},
        optim={"lr": 1e-3, "eps": 1e-6, "clip": 1.0, "schedule": "inverse_sqrt", "warmup": 4000},
        train={"epochs": 0, "updates": 30_000, "batch_tokens": 4096, "accumulate": 128, "step": "graph"}
        | {"log_every": 50, "keep": 1, "eval_every": 5000, "bleu_sentences": 0},
    )
    if scale == "paper":
        return base
    shorter = {"updates": 3000, "accumulate": 1, "eval_every": 1000}
    return base.set(model={"dropout": 0.1}, data={"vocab_size": 16000}, optim={"warmup": 1000}, train=shorter)


def _fig7(scale: str, base: Config) -> Variants:
    """DeepNorm with three rates, three batches and three widths; one run is in all three."""
    base = of_paper(base, "deepnorm", 4 if scale == "tiny" else 18)

    def wider(times: float) -> Config:
        dim, heads = round(times * base.model.dim), round(times * base.model.heads)
        return base.set(model={"dim": dim, "ffn_dim": 4 * dim, "heads": heads})

    configs = {
        "as usual": base,
        "rate ×½": base.set(optim={"lr": base.optim.known_lr / 2}),
        "rate ×1.5": base.set(optim={"lr": base.optim.known_lr * 1.5}),
        "batch ×2": base.set(train={"batch_tokens": 2 * base.train.batch_tokens}),
        "batch ×4": base.set(train={"batch_tokens": 4 * base.train.batch_tokens}),
        "width ×1.5": wider(1.5),
        "width ×2": wider(2),
    }
    return {label: Variant(config) for label, config in configs.items()}


def _fig7_numbers(runs: Runs) -> Numbers:
    losses = [run.last("valid_nll") for members in runs.values() for run in members]
    return {
        "highest": [max(losses)] if len(runs) == 7 else [],
        "high - low rate": gaps(runs, "rate ×1.5", "rate ×½"),
        "large - usual batch": gaps(runs, "batch ×4", "as usual"),
        "wide - usual": gaps(runs, "width ×2", "as usual"),
    }


FIG7 = Figure(
    title="DeepNet Figure 7: DeepNorm with other rates, batches and widths",
    paper="Wang et al. 2022, Figure 7",
    variants=_fig7,
    numbers=_fig7_numbers,
    charts=lambda runs: [loss_chart(runs)],
    base=wmt17,
    claims=(
        big("18-18 layers train in all seven settings: the highest loss", "3.88 to 4.13", "highest", at_most=5),
        big("the highest rate ends no worse than the lowest", "3.88 and 3.97", "high - low rate", at_most=0.05),
        big("larger batches end no worse", "3.89 and 3.92", "large - usual batch", at_most=0.05),
        big("the widest model trains as well, or overfits", "4.13 and 3.99", "wide - usual", at_most=0.3),
    ),
)


def thousand(scale: str) -> Config:
    """500-500 layers of d 256 on one GPU; tiny: 50-50 of d 16 on a CPU."""
    if scale == "tiny":
        return iwslt14(scale).set(model={"dim": 16, "ffn_dim": 32}, train={"updates": 30, "eval_every": 10})
    return iwslt14(scale).set(
        model={"dim": 256, "ffn_dim": 1024, "heads": 4, "dropout": 0.1},
        optim={"lr": 3e-4, "warmup": 300},
        train={
            "batch_tokens": 4096, "updates": 1800 if scale == "small" else 8000, "eval_every": 300, "save_every": 300,
            "bleu_sentences": 200, "recompute": True, "patience": 3,
        },
    )  # fmt: skip


def _thousand(scale: str, base: Config) -> Variants:
    depth = 50 if scale == "tiny" else 500
    return {f"{name} {depth}-{depth}": Variant(of_paper(base, name, depth)) for name in ("deepnorm", "post_ln")}


def _only_depth(runs: Runs, placement: str) -> Sequence[FinishedRun]:
    return next(iter(by_depth(runs, placement).values()), ())


THOUSAND = Figure(
    title="DeepNet: a thousand layers on real text",
    paper="Wang et al. 2022, section 5",
    variants=_thousand,
    numbers=lambda runs: {name: list(map(bleu, _only_depth(runs, name))) for name in ("deepnorm", "post_ln")},
    charts=lambda runs: [loss_chart(runs)],
    base=thousand,
    claims=(
        big("1,000 layers of DeepNorm learn to translate, BLEU", "32.1 on OPUS-100", "deepnorm", at_least=LEARNT),
        big("as many of Post-LN do not", "diverges from 18-18 on", "post_ln", at_most=LEARNT),
    ),
)
