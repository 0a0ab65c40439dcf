"""What watching costs: the time of a plain loop with and without it, and of the recorder in our own loop."""

from __future__ import annotations

import contextlib
import csv
import itertools
import pkgutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from bench.injected.judge import RESULTS


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


OURS = ("numerals", "lm_small_pre_ln")
RECORDING = {
    "leadline.training.recorder.Recorder": ("begin", "add", "read"),
    "leadline.pulse.Pulse": ("before", "after"),
}
WARM = 20  # updates before any is counted


def cost_of_recording(updates: int) -> None:
    """What the flight recorder takes of an update of our own loop: medians of CPU times of its thread."""
    with (RESULTS / "recorder_cost.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["recipe", "update ms", "recorder ms", "share"])
        for name in OURS:
            row = _recorded(name, updates)
            writer.writerow([name, *row])
            file.flush()
            print(name, *row, flush=True)


def _recorded(name: str, updates: int) -> list[Any]:
    from leadline import recipes
    from leadline.training import loop

    spent: dict[str, list[float]] = defaultdict(list)
    begun: list[float] = []

    def timed(function: Callable[..., Any], key: str) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            began = time.thread_time()
            if key == "begin":
                begun.append(began)
            try:
                return function(*given, **named)
            finally:
                spent[key].append(time.thread_time() - began)

        return run

    train = {"updates": WARM + updates, "eval_every": -1, "device": "cpu", "step": "eager"}
    config = recipes.find(name).set(train=train)
    with contextlib.ExitStack() as stack:
        for home, methods in RECORDING.items():
            for method in methods:
                old = getattr(pkgutil.resolve_name(home), method)
                stack.enter_context(mock.patch(f"{home}.{method}", timed(old, method)))
        loop.train(config, Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run")
    update = statistics.median(b - a for a, b in itertools.pairwise(begun[WARM:]))
    recorder = sum(statistics.median(times[WARM:]) for times in spent.values())
    return [f"{1e3 * update:.1f}", f"{1e3 * recorder:.2f}", f"{recorder / update:.4f}"]


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
