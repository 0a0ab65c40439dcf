"""Many languages and depth: table 2 and figure 8 of Wang et al. 2022 (arXiv 2203.00555), BLEU on OPUS-100 by depth.

The paper counts the layers of both stacks: its 12 are 6-6. Its points are 25.25 BLEU at 12 layers, 26.6 at 20, 30.1 at
100, 31.1 at 200 and 32.05 at 1,000: 5.3 a decade of depth below 100 layers and 2.0 above, which it calls a log law.
`small` is for one GPU and a few hundred thousand pairs of a dozen languages: far less text than OPUS-100's 55 million
pairs, seen several times over, so that a deep model overfits sooner. It can show whether depth trains, whether it helps
and for which directions; not the paper's BLEU.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from leadline import recipes
from leadline.config import Config
from leadline.report.page import Chart, Section, Series, Table
from leadline.reproduce.claims import Numbers, big
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants
from leadline.reproduce.reading import band, bleu, by_depth, gaps, loss_chart, mean, of

DEPTHS = {"tiny": (1, 2, 4), "small": (6, 12, 24, 50), "paper": (6, 12, 24, 50, 100)}  # of each stack
BASELINE = {"tiny": (1, 4), "small": (6, 24), "paper": (6, 12, 24)}  # the paper's are of 12, 24 and 48 layers
PAPER = {12: 25.25, 20: 26.6, 100: 30.1, 200: 31.1, 1000: 32.05}  # layers of both stacks -> BLEU, read off figure 8
KINDS = {"valid_bleu": "all", "valid_bleu_to_en": "X→en", "valid_bleu_from_en": "en→X"}


def base(scale: str) -> Config:
    """OPUS-100's model; small: for 425,000 pairs of 12 languages, more dropout; tiny: number words on a CPU."""
    if scale == "tiny":
        few = {"updates": 200, "batch_tokens": 1024, "eval_every": 50, "bleu_sentences": 40, "keep": 1}
        schedule = {"lr": 6e-3, "schedule": "inverse_sqrt", "warmup": 40}
        return recipes.many_small().set(data={"size": 4000, "vocab_size": 1000}, optim=schedule, train=few)
    opus = recipes.opus100_pre_ln()
    shown = {"step": "graph", "log_every": 50, "keep": 1}
    if scale == "paper":
        return opus.set(train=shown | {"bleu_sentences": -1})
    return opus.set(
        model={"dropout": 0.2},
        data={"source": "many:data/multilingual", "vocab_size": 24000},
        train=shown
        | {"epochs": 0, "updates": 15_000, "batch_tokens": 8192, "accumulate": 1}
        | {"eval_every": 3000, "bleu_sentences": 4800},
    )


def _variants(scale: str, base: Config) -> Variants:
    """A baseline of Pre-LN, and DeepNorm from shallow to deep."""
    wanted = [("deepnorm", DEPTHS[scale]), ("pre_ln", BASELINE[scale])]
    return {
        f"{placement} {depth}-{depth}": Variant(
            base.set(model={"placement": placement, "encoder_layers": depth, "decoder_layers": depth})
        )
        for placement, depths in wanted
        for depth in depths
    }


def _bends(runs: Runs, depths: tuple[int, int, int]) -> list[float]:
    """BLEU a decade of depth from the second to the third, less that from the first to the second, seed by seed."""
    by_seed = [{run.seed: bleu(run) for run in runs.get(f"deepnorm {depth}-{depth}", ())} for depth in depths]
    below, above = (math.log10(deep / shallow) for shallow, deep in itertools.pairwise(depths))
    first, second, third = by_seed
    seeds = first.keys() & second.keys() & third.keys()
    return [(third[s] - second[s]) / above - (second[s] - first[s]) / below for s in sorted(seeds)]


def _numbers(runs: Runs) -> Numbers:
    shallow, middle, deep = "deepnorm 6-6", "deepnorm 24-24", "deepnorm 50-50"
    gains = {kind: gaps(runs, deep, shallow, functools.partial(bleu, key=key)) for key, kind in KINDS.items()}
    return {
        "gain": gains["all"],
        "gain to 48": gaps(runs, middle, shallow, bleu),
        "gain, X→en": gains["X→en"],
        "gain, en→X": gains["en→X"],
        "en→X - X→en": [a - b for a, b in zip(gains["en→X"], gains["X→en"], strict=True)],
        "bend": _bends(runs, (6, 12, 50)),
        "deepnorm - pre_ln, 12": gaps(runs, shallow, "pre_ln 6-6", bleu),
        "deepnorm - pre_ln, 48": gaps(runs, middle, "pre_ln 24-24", bleu),
        "off-target": of(runs, deep, lambda run: 100 * run.last("valid_off_target")),
    }


def _line(name: str, depths: dict[int, Sequence[FinishedRun]], key: str) -> Series:
    return band(name, [2 * depth for depth in depths], [[bleu(run, key) for run in runs] for runs in depths.values()])


def _charts(runs: Runs) -> list[Section]:
    rows, lines, kinds = [], [], []
    for placement in ("deepnorm", "pre_ln"):
        if not (depths := by_depth(runs, placement)):
            continue
        lines.append(_line(placement, depths, "valid_bleu"))
        for depth, members in depths.items():
            means = [mean(bleu(run, key) for run in members) for key in KINDS]
            loss, off = (mean(run.last(f"valid_{key}") for run in members) for key in ("nll", "off_target"))
            rows.append([placement, 2 * depth, *(f"{m:.1f}" for m in means), f"{loss:.3f}", f"{off:.1%}", len(members)])
    if depths := by_depth(runs, "deepnorm"):
        kinds = [_line(name, depths, key) for key, name in KINDS.items() if name != "all"]
    paper = Series("DeepNet on OPUS-100", list(PAPER), list(PAPER.values()), style="dashes", selected=False)
    columns = ["placement", "layers", *(f"BLEU {kind}" for kind in KINDS.values()), "loss", "off-target", "seeds"]
    if not rows:
        return []
    return [
        Table("Validation BLEU by depth, means over directions", columns, rows),
        Chart("BLEU against depth", "layers of both stacks", "BLEU", [*lines, paper], log_x=True),
        Chart("BLEU of DeepNorm by kind of direction", "layers of both stacks", "BLEU", kinds, log_x=True),
        loss_chart(runs),
    ]


FIGURE = Figure(
    title="DeepNet Table 2 and Figure 8: many languages, BLEU against the logarithm of depth",
    paper="Wang et al. 2022, Table 2 and Figure 8",
    variants=_variants,
    numbers=_numbers,
    charts=_charts,
    base=base,
    claims=(
        big("DeepNorm gains from 12 to 100 layers, BLEU", "25.25 to 30.1", "gain", at_least=0),
        big("and from 12 to 48", "on its line about 3.2", "gain to 48", at_least=0),
        big("into English there is a gain", "27.5 (12 layers, baseline) to 33.2 (200)", "gain, X→en", at_least=0),
        big("out of English there is a gain", "21.4 (12 layers, baseline) to 29.0 (200)", "gain, en→X", at_least=0),
        big("and that is the larger one", "7.6 and 5.7", "en→X - X→en", at_least=0),
        big(
            "BLEU is straight in log depth: BLEU a decade from 24 to 100 layers less that from 12 to 24",
            "a log law; its own points: 5.3 a decade below 100 layers, 2.0 above",
            "bend",
            at_least=-1.5,
            at_most=1.5,
        ),
        big(
            "at 12 layers DeepNorm and Pre-LN are about equal",
            "25.25 and 24.5",
            "deepnorm - pre_ln, 12",
            at_least=-1,
            at_most=1.5,
        ),
        big("at 48 layers DeepNorm is ahead", "on its line about 28.4, and 27.7", "deepnorm - pre_ln, 48", at_least=0),
        big(
            "the deepest writes the language asked for: outputs in another, %", "not reported", "off-target", at_most=5
        ),
    ),
)
