"""Does `leadline explain` name what went wrong? Faults are put into small trainings, and healthy ones are left alone.

    python -m bench.injected make FOLDER     trains: every kind of fault, four kinds of training, several seeds
    python -m bench.injected judge FOLDER    bench/results/injected.csv: what explain said of each
    python -m bench.injected gallery FOLDER  docs/post-mortems.md
    python -m bench.injected saved           bench/results/rollback.csv: trainings with a bad batch, rolled back and not
    python -m bench.injected cost            bench/results/watch_cost.csv: time of watching in a plain loop

Trainings are of translation (number words), a masked LM and a language model (the standard library's docstrings), each
in our own loop, and of Hugging Face's GPT-2 in a plain one. A fault comes at a random update. The thresholds of explain
were chosen on even seeds; odd ones judge. A folder's trainings are kept, so `make` can be stopped and started again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import fnmatch
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RESULTS = Path(__file__).parent / "results"
TRAININGS = ("translation", "masked_lm", "causal_lm", "gpt2")
FAULTS = ("bad_batch", "labels", "rate", "weights", "embedding", "loss_scale", "precision", "moments", "data", "norm")
AFTER = 25  # updates that a training goes on with a fault
EVALUATED = 10  # updates between validations
WATCHED = 5  # updates between looks


@dataclasses.dataclass(frozen=True)
class Case:
    training: str
    fault: str  # "" : healthy
    seed: int

    @property
    def name(self) -> str:
        return f"{self.training}-{self.fault or 'healthy'}-{self.seed}"

    @property
    def at(self) -> int:
        return random.Random(f"{self.name} at").randint(60, 95)

    @property
    def layer(self) -> int:
        return random.Random(f"{self.name} layer").randint(0, 3)


class Injector:
    """Puts a fault into a training: into batches, before an update's forward pass, and into its gradients."""

    def __init__(self, case: Case) -> None:
        self.case, self.generator = case, torch.Generator().manual_seed(case.seed)
        self.optimizer: Any = None
        self.where = ""

    def rate(self, update: int) -> float:
        return 10.0 if self.case.fault == "rate" and update >= self.case.at else 1.0

    def tokens(self, update: int, inputs: Tensor, words: int) -> Tensor:
        """The inputs of a batch."""
        if self.case.fault == "bad_batch" and update == self.case.at:
            return torch.randint(8, words, inputs.shape, generator=self.generator)
        if self.case.fault == "data" and update >= self.case.at:
            return self._other(words)[inputs]
        return inputs

    def labels(self, update: int, labels: Tensor, words: int, valid: Tensor) -> Tensor:
        labels = labels.clone()
        if self.case.fault == "bad_batch" and update == self.case.at:
            labels[valid] = torch.randint(8, words, (int(valid.sum()),), generator=self.generator)
        if self.case.fault == "labels" and update >= self.case.at:
            labels[valid] = labels[valid][torch.randperm(int(valid.sum()), generator=self.generator)]
        if self.case.fault == "data" and update >= self.case.at:
            labels[valid] = self._other(words)[labels[valid]]
        return labels

    def _other(self, words: int) -> Tensor:
        """The same text in another alphabet; what is no word stays."""
        order = torch.randperm(words - 8, generator=torch.Generator().manual_seed(self.case.seed)) + 8
        return torch.cat([torch.arange(8), order])

    @torch.no_grad()
    def model(self, update: int, model: nn.Module) -> None:
        """Before an update's forward pass."""
        fault, new = self.case.fault, update == self.case.at
        if fault == "weights" and new:
            weights = _matrices(model)
            self.where, weight = weights[self.case.layer % len(weights)]
            weight.mul_(8)
        if fault == "embedding" and new:
            table = max((m.weight for m in model.modules() if isinstance(m, nn.Embedding)), key=lambda w: w.shape[0])
            table[20 + self.case.layer].normal_(0, 30 * float(table.std()), generator=self.generator)
        if fault == "precision" and update >= self.case.at:
            for p in model.parameters():
                p.copy_(p.bfloat16())
        if fault == "moments" and new:
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].zero_()
        if fault == "norm" and new:
            self._remove(model)

    def _remove(self, model: nn.Module) -> None:
        norms = [
            (name, module) for name, module in model.named_modules()
            if isinstance(module, nn.LayerNorm) or type(module).__name__ == "LayerNorm"
        ]  # fmt: skip
        inside = [(name, m) for name, m in norms if any(part.isdigit() for part in name.split("."))]
        self.where, _ = inside[self.case.layer % len(inside)]
        parent, _, attribute = self.where.rpartition(".")
        setattr(model.get_submodule(parent), attribute, nn.Identity())

    def gradients(self, update: int, model: nn.Module) -> None:
        if self.case.fault == "loss_scale" and update >= self.case.at:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(64)


def _matrices(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Those of the blocks."""
    return [
        (name, p) for name, p in model.named_parameters()
        if p.ndim == 2 and any(part.isdigit() for part in name.split("."))
    ]  # fmt: skip


class _Watcher:
    """Around every update of our own loop."""

    def __init__(self, injector: Injector) -> None:
        self.injector, self.update, self.seen_model = injector, 0, nn.Module()

    def __call__(self, event: Any) -> None:
        pass

    def due(self, update: int) -> bool:
        self.update = update
        return update >= self.injector.case.at and bool(self.injector.case.fault)

    def begin(self, model: nn.Module) -> None:
        self.seen_model = model
        self.injector.model(self.update, model)

    def seen(self) -> None:
        pass

    def gradients(self) -> None:
        self.injector.gradients(self.update, self.seen_model)

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        return {}, ""


def config_of(case: Case) -> Any:
    from leadline import recipes

    rng = random.Random(case.name)
    noisy = not case.fault
    tokens = rng.choice([64, 128]) if noisy else 256
    changes: dict[str, Any] = {
        "model": {"dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48,
                  "dropout": rng.choice([0.1, 0.3]) if noisy else 0.1},
        "optim": {"lr": rng.choice([3e-3, 1e-2]) if noisy else 5e-3, "warmup": 20, "schedule": "constant", "clip": 0.0},
        "train": {"updates": case.at + AFTER, "epochs": 0, "batch_tokens": tokens, "seed": case.seed, "device": "cpu",
                  "step": "eager", "precision": "fp32", "eval_every": EVALUATED, "log_every": 10, "keep": 2},
    }  # fmt: skip
    if case.training == "translation":
        changes["model"] |= {"encoder_layers": 1, "decoder_layers": 2}
        return recipes.numerals().set(**changes, data={"size": 1000, "vocab_size": 200})
    data = {"source": "builtin:python-docs", "vocab_size": 400, "valid_every": 100}
    if case.training == "masked_lm":
        changes["model"]["encoder_layers"] = 2
        return recipes.bert_small_pre_ln().set(**changes, data=data)
    changes["model"]["decoder_layers"] = 2
    return recipes.lm_small_pre_ln().set(**changes, data=data)


@contextlib.contextmanager
def _injected(injector: Injector) -> Iterator[None]:
    """Our own loop, with the fault in its batches, its rate and its optimizer."""
    from leadline.tasks.base import Task
    from leadline.training import loop, optim

    collate, set_up, schedule = Task.collate, loop.set_up, optim.schedule
    calls = -1  # the first is not trained on

    def bad(self: Any, rows: Any, epoch: int = 0) -> Any:
        nonlocal calls
        calls += 1
        batch, words = collate(self, rows, epoch), self.store.manifest["vocab_size"]
        changed: dict[str, Any] = {}
        for side in ("source", "target"):
            if hasattr(batch, side):
                pack = getattr(batch, side)
                changed[side] = dataclasses.replace(pack, tokens=injector.tokens(calls, pack.tokens, words))
        nothing = 0 if self.config.task == "translation" else -100
        valid = batch.labels != nothing if self.config.task == "translation" else batch.labels >= 0
        changed["labels"] = injector.labels(calls, batch.labels, words, valid)
        return dataclasses.replace(batch, **changed)

    def with_optimizer(*given: Any, **named: Any) -> Any:
        setup = set_up(*given, **named)
        injector.optimizer = setup.step.optimizer
        return setup

    def faster(*given: Any) -> Callable[[int], float]:
        rate = schedule(*given)
        return lambda update: rate(update) * injector.rate(update)

    Task.collate, loop.set_up, optim.schedule = bad, with_optimizer, faster  # type: ignore
    try:
        yield
    finally:
        Task.collate, loop.set_up, optim.schedule = collate, set_up, schedule  # type: ignore


def train(case: Case, folder: Path) -> str:
    """Train with the fault; returns where it was put."""
    from leadline.errors import Diverged

    injector = Injector(case)
    if case.training == "gpt2":
        _train_gpt2(case, folder, injector)
        return injector.where
    from leadline.diagnose.watch import Watch
    from leadline.training import loop

    with _injected(injector), contextlib.suppress(Diverged):
        loop.train(config_of(case), folder, [_Watcher(injector), Watch(every=WATCHED)])
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    return injector.where


def _train_gpt2(case: Case, folder: Path, injector: Injector) -> None:
    import transformers

    import leadline

    words, rng = 64, random.Random(case.name)
    rows = rng.choice([2, 4]) if not case.fault else 8
    torch.manual_seed(case.seed)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=words, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = injector.optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.98))
    chain = torch.softmax(3 * torch.randn(words, words, generator=torch.Generator().manual_seed(0)), -1)
    draw, held_out = torch.Generator().manual_seed(case.seed), _sequences(chain, 64, torch.Generator().manual_seed(9))
    watch = leadline.Watch(model, optimizer, folder, every=WATCHED)
    assert watch.attached is not None
    for update in range(1, case.at + AFTER + 1):
        x = _sequences(chain, rows, draw)
        given, labels = injector.tokens(update, x, words), injector.labels(update, x, words, x >= 0)
        injector.model(update, model)
        loss = model(input_ids=given, labels=labels).loss
        loss.backward()
        injector.gradients(update, model)
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, update / 20) * injector.rate(update)
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss)
        if update % EVALUATED == 0:
            model.eval()
            with torch.no_grad():
                nll = float(model(input_ids=held_out, labels=held_out).loss)
            watch.attached.metrics.write({"update": update, "valid_nll": nll})
            model.train()
    watch.close()


def _sequences(chain: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """Rows of a Markov chain."""
    x = [torch.randint(0, len(chain), (rows,), generator=generator)]
    for _ in range(31):
        x.append(torch.multinomial(chain[x[-1]], 1, generator=generator)[:, 0])
    return torch.stack(x, 1)


def cases() -> list[Case]:
    """The healthy ones first seeds of all, so that a part of the whole is of every kind."""
    faulty = [Case(training, fault, seed) for seed in (2, 1) for fault in FAULTS for training in TRAININGS]
    healthy = [Case(training, "", seed) for seed in range(10) for training in TRAININGS]
    return [*faulty, *healthy]


def make(folder: Path, only: str) -> None:
    """`only`: cases whose name is like this."""
    for case in cases():
        if not fnmatch.fnmatch(case.name, only):
            continue
        place = folder / case.name
        if (place / "truth.txt").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        began = time.perf_counter()
        where = train(case, place)
        (place / "truth.txt").write_text(where)
        print(f"{case.name}: {time.perf_counter() - began:.0f} s", flush=True)


COLUMNS = ["training", "fault", "seed", "at", "put", "named", "where", "since", "right", "alarm", "shown", "others"]


def judge(folder: Path) -> None:
    """What explain says of every training in a folder."""
    rows = [_judged(case, folder / case.name) for case in cases() if (folder / case.name / "truth.txt").exists()]
    with (RESULTS / "injected.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    tell()


def _judged(case: Case, folder: Path) -> list[Any]:
    from leadline import alarm, flight, history
    from leadline.diagnose.explain import explain

    put, measured = (folder / "truth.txt").read_text(), flight.read(folder)
    causes = explain(folder).causes
    first = causes[0] if causes else None
    seer = alarm.Seer()
    alarms = [row["update"] for row in measured if "loss" in row and seer.see(row)]
    alarms += [cause.update + _until_look(cause.update) for cause in causes if cause.kind == "norm"]
    # Where the fault begins, every update counts; a norm is only looked at every WATCHED updates.
    reach = WATCHED if case.fault == "norm" else 1
    right = (
        first is not None
        and first.kind == case.fault
        and abs(first.update - case.at) <= reach
        and _is_place(first.where, put)
    )
    after = [update for update in alarms if case.fault and update >= case.at]
    shown = _shown(history.read(folder).points("valid_nll"), case.at) if case.fault else ""
    return [
        case.training, case.fault, case.seed, case.at if case.fault else "", put, first.kind if first else "",
        first.where if first else "", first.update if first else "", int(right) if case.fault else int(not first),
        min(after, default="") if case.fault else min(alarms, default=""), shown, len(causes) - 1 if causes else 0,
    ]  # fmt: skip


def _until_look(update: int) -> int:
    return -update % WATCHED


def _is_place(where: str, put: str) -> bool:
    """`put` is the name of a weight or a norm: of the sublayer, of its residual connection, or of its block."""
    if not put or ("norm" not in put and "ln_" not in put):
        return not put or put.startswith(where)
    names = {"ln_1": "attn", "ln_2": "mlp", "attn_residual": "attn", "cross_residual": "cross", "ffn_residual": "ffn"}
    home, parts = [], put.split(".")
    for part in parts:
        home.append(names.get(part, part))
    return where == ".".join(home[: home.index(home[-1])] if home[-1] == "norm" else home)


def _shown(points: tuple[list[float], list[float]], at: int) -> Any:
    """The first validation after a fault that is worse than the best before it."""
    updates, losses = points
    best = min((loss for update, loss in zip(updates, losses, strict=True) if update < at), default=0.0)
    return next((int(u) for u, loss in zip(updates, losses, strict=True) if u >= at and loss > best + 0.02), "")


def tell() -> None:
    """The shares, from the file."""
    rows = list(csv.DictReader((RESULTS / "injected.csv").open(encoding="utf-8")))
    for parity, words in ((0, "seeds that thresholds were chosen on"), (1, "seeds that judge")):
        chosen = [row for row in rows if row["fault"] and int(row["seed"]) % 2 == parity]
        right = sum(int(row["right"]) for row in chosen)
        kinds = sum(row["named"] == row["fault"] for row in chosen)
        shown = [row for row in chosen if row["shown"]]
        early = sum(bool(row["alarm"]) and int(row["alarm"]) <= int(row["shown"]) for row in shown)
        print(f"{words}: {len(chosen)} faults, {kinds} of the right kind, {right} with the right place and update; "
              f"the validation loss shows {len(shown)}, of {early} of which an alarm came before")  # fmt: skip
    healthy = [row for row in rows if not row["fault"]]
    said, alarmed = (sum(bool(row[key]) for row in healthy) for key in ("named", "alarm"))
    print(f"{len(healthy)} healthy trainings: explain found a fault in {said}, {alarmed} had an alarm")
    _tell_saved()


def _tell_saved() -> None:
    """How far from the undisturbed training each bad batch left its own, rolled back and not."""
    rows = list(csv.DictReader((RESULTS / "rollback.csv").open(encoding="utf-8")))
    ends = {(row["training"], row["seed"], row["how"]): float(row["valid_nll"]) for row in rows}
    for how in ("ignore", "rollback"):
        apart = [loss - ends[t, seed, "undisturbed"] for (t, seed, done), loss in ends.items() if done == how]
        near = sum(abs(nats) <= 0.02 for nats in apart)
        print(f"{how}: {near} of {len(apart)} within 0.02 nats of the undisturbed training, {max(apart):.4f} at most")


# Going on from a bad batch


def saved(seeds: int) -> None:
    """Undisturbed, with a batch that is bad whenever it is met, and the same rolled back: the loss at the end."""
    from leadline import history
    from leadline.errors import Diverged
    from leadline.provenance import facts_of
    from leadline.training import loop

    with (RESULTS / "rollback.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["training", "seed", "at", "how", "valid_nll", "rolled back"])
        for training in TRAININGS[:3]:
            for seed in range(1, 1 + seeds):
                case = Case(training, "bad_rows", seed)
                for how in ("undisturbed", "ignore", "rollback"):
                    base = config_of(case)
                    train: dict[str, Any] = {"updates": 120, "save_every": 20, "eval_every": 60}
                    train["on_spike"] = "ignore" if how == "undisturbed" else how
                    with tempfile.TemporaryDirectory() as folder, _bad_rows(case, how != "undisturbed"):
                        run = Path(folder) / "run"
                        with contextlib.suppress(Diverged):
                            loop.train(base.set(train=train), run)
                        nll, back = history.read(run).last("valid_nll"), len(facts_of(run)["spikes"])
                    writer.writerow([training, seed, case.at, how, nll, back])
                    file.flush()
                    print(training, seed, how, f"{nll:.4f}", back, flush=True)


@contextlib.contextmanager
def _bad_rows(case: Case, bad: bool) -> Iterator[None]:
    """The rows of one update are bad whenever they are asked for in its epoch: random labels, twenty times over."""
    from leadline.tasks.base import Task

    collate, calls, rows_of = Task.collate, -1, {}

    def spoilt(self: Any, rows: Any, epoch: int = 0) -> Any:
        nonlocal calls
        calls += 1
        batch, key = collate(self, rows, epoch), (epoch, tuple(map(int, rows)))
        if calls == case.at:
            rows_of["bad"] = key
        if not bad or rows_of.get("bad") != key:
            return batch
        generator, words = torch.Generator().manual_seed(case.seed), self.store.manifest["vocab_size"]
        labels = torch.randint(8, words, batch.labels.shape, generator=generator)
        valid = batch.labels != 0 if self.config.task == "translation" else batch.labels >= 0
        return dataclasses.replace(
            batch, labels=torch.where(valid, labels, batch.labels), count=max(1, batch.count // 20)
        )

    Task.collate = spoilt  # type: ignore
    try:
        yield
    finally:
        Task.collate = collate  # type: ignore


# What watching costs


def cost(updates: int) -> None:
    """Time of a plain loop with and without Watch, in turns; and whether both end with the same bits."""
    with (RESULTS / "watch_cost.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model", "weights", "update ms", "every update ms", "look ms", "once ms", "share at 50", "same bits"]
        )
        for name in ("gpt2", "llama", "bert", "vit"):
            row = _cost_of(name, updates)
            writer.writerow([name, *row])
            file.flush()
            print(name, *row, flush=True)


def _cost_of(name: str, updates: int) -> list[Any]:
    """CPU milliseconds of an update, and of what Watch does in it: at every one, at a look, and once when it begins."""
    import leadline

    model, batch = _model(name)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    ends, total, spent = [], 0.0, dict.fromkeys(("call", "step", "look"), 0.0)
    for watched in (False, True):
        model.load_state_dict(start)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        with tempfile.TemporaryDirectory() as folder:
            watch = leadline.Watch(model, optimizer, Path(folder) / "run", every=updates) if watched else None
            if watch:
                _timed(watch.attached, spent)
            torch.manual_seed(0)
            began = time.process_time()
            for _ in range(updates):
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if watch:
                    watch.step(loss)
            total = time.process_time() - began
            if watch:
                watch.close()
        ends.append([p.detach().clone() for p in model.parameters()])
    update = (total - sum(spent.values())) / updates
    pulse, look, find = spent["step"] / updates, spent["look"], spent["call"] - spent["look"]
    same = all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    numbers = [f"{1e3 * number:.1f}" for number in (update, pulse, look, find)]
    return [sum(p.numel() for p in model.parameters()), *numbers, f"{(pulse + look / 50) / update:.4f}", int(same)]


def _timed(attached: Any, spent: dict[str, float]) -> None:
    """Adds up the CPU time of what Watch does: calls of the model, the optimizer's steps, and looks among the calls."""

    def timed(function: Callable[..., Any], key: str) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                spent[key] += time.process_time() - began

        return run

    for hook in attached.hooks:
        hook.remove()
    attached.step, attached.looker.look = timed(attached.step, "step"), timed(attached.looker.look, "look")
    attached.hooks = [
        attached.model.register_forward_pre_hook(timed(attached._called, "call"), with_kwargs=True),
        attached.optimizer.register_step_pre_hook(timed(attached._before_step, "step")),
        attached.optimizer.register_step_post_hook(timed(attached._after_step, "step")),
    ]


def _model(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The published shapes, with four layers in place of twelve or more: the share is that of a layer."""
    import transformers as hf

    torch.manual_seed(0)
    x = torch.randint(0, 1000, (8, 128))
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=4, vocab_size=8000)), {"input_ids": x, "labels": x}
    if name == "bert":
        return hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=4, vocab_size=8000)), {"input_ids": x, "labels": x}
    if name == "llama":
        shape: dict[str, Any] = {
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
        }
        config = hf.LlamaConfig(num_hidden_layers=4, vocab_size=8000, **shape)
        return hf.LlamaForCausalLM(config), {"input_ids": x, "labels": x}
    pixels, labels = torch.randn(8, 3, 224, 224), torch.randint(0, 2, (8,))
    return hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=4)), {"pixel_values": pixels, "labels": labels}


# A gallery


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
    (Path(__file__).parent.parent / "docs" / "post-mortems.md").write_text(
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "judge", "tell", "gallery", "saved", "cost"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="*", help="make: cases whose name is like this, such as gpt2-*-1")
    parser.add_argument("--number", type=int, default=4, help="saved: seeds; cost: updates")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what in ("make", "judge", "gallery") and given.folder is None:
        parser.error("name a folder for the trainings")
    does: dict[str, Callable[[], None]] = {
        "make": lambda: make(given.folder, given.only), "judge": lambda: judge(given.folder), "tell": tell,
        "gallery": lambda: gallery(given.folder), "saved": lambda: saved(given.number),
        "cost": lambda: cost(given.number),
    }  # fmt: skip
    does[given.what]()


if __name__ == "__main__":
    main()
