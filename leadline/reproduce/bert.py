"""Figure 5 of Xiong et al. 2020: BERT with and without warm-up, and what its checkpoints are worth on MRPC and RTE."""

from __future__ import annotations

from leadline import recipes
from leadline.config import Config
from leadline.data.sources import parse
from leadline.data.store import Store, prepare
from leadline.jobs.finetune import classifier, fitted, tuned
from leadline.jobs.grid import Setting
from leadline.jobs.interval import mean_and_interval
from leadline.report.page import Chart, Section, Series, Words
from leadline.reproduce.claims import Claim, Numbers, big
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants
from leadline.reproduce.reading import gaps, loss_chart, shares

PRE, POST, BARE = "pre_ln, no warm-up", "post_ln, a third of the rate, warm-up", "post_ln, no warm-up"
# MRPC and RTE are looked for in data/mrpc and data/rte; a task that is not there is left out.
TASKS = {"tiny": ("same_meaning",), "small": ("mrpc", "rte"), "paper": ("mrpc", "rte")}
SEEDS = {"tiny": 2, "small": 6, "paper": 6}
SETTINGS = {"tiny": Setting(32, 1e-3, 1), "small": Setting(32, 5e-5, 3), "paper": Setting(32, 5e-5, 3)}
NEVER = 1 << 30  # updates
GENERATED = 1000  # examples of a task without files


def base(scale: str) -> Config:
    """BERT-base on documents; small: sequences of 128 tokens, as in most of BERT's own training; tiny: on a core."""
    if scale == "tiny":
        small = {"updates": 120, "batch_tokens": 1024, "eval_every": 20, "keep": NEVER}
        return recipes.bert_small_pre_ln().set(train=small)
    every = {"keep": NEVER, "step": "graph", "log_every": 50}
    if scale == "small":
        every |= {"updates": 4000, "batch_tokens": 16384, "accumulate": 1, "eval_every": 200}
        return recipes.bert_base_pre_ln().set(model={"max_length": 128}, train=every)
    return recipes.bert_base_pre_ln().set(train=every | {"eval_every": 50_000})


def _fig5(scale: str, base: Config) -> Variants:
    """Post-LN has a third of Pre-LN's rate and a warm-up of a tenth of the updates (the paper: of a hundredth)."""
    updates, lr = base.train.updates, base.optim.known_lr
    warmup = updates // 100 if scale == "paper" else updates // 10
    post = {"placement": "post_ln"}
    variants: Variants = {
        PRE: Variant(base),
        POST: Variant(base.set(model=post, optim={"lr": lr / 3, "warmup": warmup})),
        BARE: Variant(base.set(model=post)),
    }
    evaluations = updates // base.train.eval_every
    checkpoints = {base.train.eval_every * max(1, evaluations * quarters // 4) for quarters in (1, 2, 4)}
    return variants | {
        f"{task} after {checkpoint} of {label}": Variant(config, 0, label, checkpoint, SEEDS[scale])
        for label in (PRE, POST)
        for task, config in _classifiers(scale, variants[label].config).items()
        for checkpoint in sorted(checkpoints)
    }


def _classifiers(scale: str, pretrained: Config) -> dict[str, Config]:
    """Of the tasks whose data is there."""
    configs = {}
    for task in TASKS[scale]:
        recipe = recipes.find(task)
        source = parse(recipe.data.source)
        if not source.place:  # it is generated
            recipe = recipe.set(data={"size": GENERATED})
        elif not source.path.exists():
            continue
        vocabulary = prepare(pretrained.data) / "tokenizer.json"
        config = classifier(pretrained, recipe, vocabulary.resolve())
        config = config.set(train={"eval_every": NEVER, "log_every": 50})
        store = Store(prepare(config.data))
        setting = SETTINGS[scale]
        configs[task] = tuned(fitted(config, store, [setting]), setting, store)
    return configs


def _accuracy(run: FinishedRun) -> float:
    return run.last("valid_accuracy")


def _fig5_numbers(runs: Runs) -> Numbers:
    numbers = {"bare - post": gaps(runs, BARE, POST), "share": shares(runs, PRE, POST)}
    for task in ("mrpc", "rte"):
        ahead: list[float] = []
        for label in runs:
            if label.startswith(f"{task} after ") and label.endswith(PRE):
                ahead += [100 * gap for gap in gaps(runs, label, label.replace(PRE, POST), _accuracy)]
        numbers[f"{task}: pre - post"] = ahead
    return numbers


def _by_checkpoint(runs: Runs, task: str) -> list[Series]:
    lines = []
    for pretrained in (PRE, POST):
        begin, end = f"{task} after ", f" of {pretrained}"
        of_task = {
            int(label.removeprefix(begin).removesuffix(end)): [100 * _accuracy(run) for run in members]
            for label, members in runs.items()
            if label.startswith(begin) and label.endswith(end)
        }
        if of_task:
            xs = sorted(of_task)
            middle = [mean_and_interval(of_task[x]) for x in xs]
            low, high = [m - h for m, h in middle], [m + h for m, h in middle]
            several = all(len(values) > 1 for values in of_task.values())
            mean = [m for m, _ in middle]
            lines.append(Series(pretrained, xs, mean, low if several else None, high if several else None))
    return lines


def _fig5_charts(runs: Runs) -> list[Section]:
    pretraining = {label: runs[label] for label in (PRE, POST, BARE) if label in runs}
    charts: list[Section] = [
        loss_chart(pretraining, "a masked token"),
    ]
    tasks = dict.fromkeys(label.partition(" after ")[0] for label in runs if " after " in label)
    if pretraining and not tasks:
        charts.append(Words("Fine-tuning", ["Nothing was fine-tuned: data/mrpc and data/rte are not here."], "warning"))
    for task in tasks:
        title = f"{task}: accuracy by checkpoint, with 95 % confidence intervals"
        charts.append(Chart(title, "update of the pre-training", "accuracy (%)", _by_checkpoint(runs, task)))
    return charts


FIG5 = Figure(
    title="Xiong Figure 5: BERT without warm-up, and fine-tuned by checkpoint",
    paper="Xiong et al. 2020, Figure 5",
    variants=_fig5,
    numbers=_fig5_numbers,
    charts=_fig5_charts,
    claims=(
        Claim(
            "Pre-LN without warm-up reaches Post-LN's final loss in less of the updates",
            "500k updates against 700k: 0.71",
            "share",
            at_most=0.8,
        ),
        big(
            "Post-LN at Pre-LN's rate without warm-up ends worse than with a third of it and warm-up, in nats",
            "diverges",
            "bare - post",
            at_least=0.5,
        ),
        *(
            big(
                f"on {task.upper()}, Pre-LN's checkpoints are ahead, in points",
                "converges faster",
                f"{task}: pre - post",
                at_least=0,
            )
            for task in ("mrpc", "rte")
        ),
    ),
    base=base,
)
