"""Does `leadline explain` name what went wrong? Faults are put into small trainings, and healthy ones are left alone.

    python -m bench.injected make FOLDER     trains: every kind of fault, four kinds of training, several seeds
    python -m bench.injected judge FOLDER    bench/results/injected.csv: what explain said of each
    python -m bench.injected saved           bench/results/rollback.csv: trainings with a bad batch, rolled back and not
    python -m bench.injected cost            bench/results/watch_cost.csv: time of watching in a plain loop

Trainings are of translation (number words), a masked LM and a language model (the standard library's docstrings), each
in our own loop, and of Hugging Face's GPT-2 in a plain one. A fault comes at a random update. The thresholds of explain
were chosen on even seeds; odd ones judge. A folder's trainings are kept, so `make` can be stopped and started again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import shutil
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
        self.where, norm = inside[self.case.layer % len(inside)]
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
        "model": {"dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48, "dropout": rng.choice([0.1, 0.3]) if noisy else 0.1},
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

    Task.collate, loop.set_up, optim.schedule = bad, with_optimizer, faster  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Task.collate, loop.set_up, optim.schedule = collate, set_up, schedule  # type: ignore[method-assign]


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
    """`only`: cases whose name has this in it."""
    for case in cases():
        if only not in case.name:
            continue
        place = folder / case.name
        if (place / "truth.txt").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        began = time.perf_counter()
        where = train(case, place)
        (place / "truth.txt").write_text(where)
        print(f"{case.name}: {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "make":
        make(given.folder, given.only)


if __name__ == "__main__":
    main()
