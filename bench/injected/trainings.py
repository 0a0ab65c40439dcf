"""The trainings with their faults: three in our own loop, and Hugging Face's GPT-2 in a plain one."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.injected.faults import WARM_UP, Case, Injector

EVALUATED = 10  # updates between validations
WATCHED = 5  # updates between looks


class _Watcher:
    """Around every update of our own loop."""

    def __init__(self, injector: Injector) -> None:
        self.injector, self.update, self.seen_model = injector, 0, nn.Module()

    def __call__(self, event: Any) -> None:
        pass

    def due(self, update: int) -> bool:
        self.update = update
        return update >= self.injector.case.at and not self.injector.case.healthy

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
    noisy = case.healthy
    tokens = rng.choice([64, 128]) if noisy else 256
    tokens = 48 if case.fault == "tiny" else tokens
    changes: dict[str, Any] = {
        "model": {"dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48,
                  "dropout": rng.choice([0.1, 0.3]) if noisy else 0.1},
        "optim": {"lr": rng.choice([3e-3, 1e-2]) if noisy else 5e-3, "warmup": WARM_UP, "schedule": "constant",
                  "clip": 0.0},
        "train": {"updates": case.updates, "epochs": 0, "batch_tokens": tokens, "seed": case.seed, "device": "cpu",
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
        injector.hook(setup.step.optimizer)
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
    rows = 1 if case.fault == "tiny" else rng.choice([2, 4]) if case.healthy else 8
    torch.manual_seed(case.seed)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=words, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.98))
    injector.hook(optimizer)
    chain = torch.softmax(3 * torch.randn(words, words, generator=torch.Generator().manual_seed(0)), -1)
    draw, held_out = torch.Generator().manual_seed(case.seed), _sequences(chain, 64, torch.Generator().manual_seed(9))
    watch = leadline.Watch(model, optimizer, folder, every=WATCHED)
    assert watch.attached is not None
    for update in range(1, case.updates + 1):
        x = _sequences(chain, rows, draw)
        given, labels = injector.tokens(update, x, words), injector.labels(update, x, words, x >= 0)
        injector.model(update, model)
        loss = model(input_ids=given, labels=labels).loss
        loss.backward()
        injector.gradients(update, model)
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, update / WARM_UP) * injector.rate(update)
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
