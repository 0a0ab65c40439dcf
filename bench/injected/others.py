"""Twenty other ways to break a training, each once, in a plain loop with GPT-2."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

AT, UPDATES, TOKENS, ROWS, RATE = 150, 220, 64, 8, 2e-3
WAYS = {
    "padding": "labels of padding count, in half of each row",
    "frozen": "two blocks are frozen",
    "dropout": "dropout of 0.7 in place of 0.1",
    "stuck": "the same batch for ever",
    "clip": "gradients are clipped to 0.001 in place of 1",
    "kept": "gradients are clipped, and never zeroed",
    "leak": "no causal mask",
    "beta": "a β2 of 0.1 in place of 0.95",
    "decay": "weight decay of 20 in place of 0.1",
    "group": "30 times the rate for one parameter group",
    "swapped": "two blocks take each other's weights",
    "reversed": "the text is reversed",
    "shifted": "labels are shifted twice",
    "short": "8 tokens a row in place of 64",
    "sum": "the loss times 8",
    "nan": "one number of one gradient is NaN, once",
    "eval": "evaluation mode",
    "uphill": "the loss times -1",
    "ended": "a rate of 0",
    "smooth": "label smoothing of 0.3",
}
TIMES = {"sum": 8, "uphill": -1}


def others(folder: Path) -> None:
    """What explain says of each."""
    from leadline.diagnose.explain import explain

    for way, words in WAYS.items():
        if not (folder / way / "metrics.jsonl").exists():
            break_off(way, folder / way)
        print(f"{words}\n{explain(folder / way)}\n", flush=True)


def break_off(way: str, out: Path) -> None:
    import transformers

    import leadline

    torch.manual_seed(5)
    config = transformers.GPT2Config(
        n_layer=4, n_embd=64, n_head=4, vocab_size=128, n_positions=TOKENS, bos_token_id=0, eos_token_id=0
    )
    model: Any = transformers.GPT2LMHeadModel(config)
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    groups = [{"params": part, "weight_decay": decay} for part, decay in zip(parts, (0.1, 0.0), strict=True)]
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.95))
    text, draw, x, attend = (
        _text(),
        torch.Generator().manual_seed(5),
        torch.zeros(0),
        functional.scaled_dot_product_attention,
    )
    with leadline.Watch(model, optimizer, out, every=10) as watch:
        for update in range(1, UPDATES + 1):
            bad, starts = update >= AT, torch.randint(0, len(text) - TOKENS, (ROWS,), generator=draw)
            if not (way == "stuck" and update > AT):
                x = torch.stack([text[i : i + TOKENS] for i in starts.tolist()])
            given, labels = _batch(way if bad else "", x)
            if update == AT:
                _once(way, model, optimizer)
            loss = model(input_ids=given, labels=labels).loss * (TIMES.get(way, 1) if bad else 1)
            if bad and way == "smooth":
                logits = model(input_ids=given).logits[:, :-1].flatten(0, 1)
                loss = functional.cross_entropy(logits, given[:, 1:].flatten(), label_smoothing=0.3)
            loss.backward()
            if way == "nan" and update == AT:
                model.transformer.h[2].mlp.c_fc.weight.grad[3, 3] = float("nan")
            nn.utils.clip_grad_norm_(model.parameters(), 0.001 if bad and way == "clip" else 1.0)
            for i, group in enumerate(optimizer.param_groups):
                group["lr"] = RATE * min(1, update / 20) * (30 if bad and way == "group" and i == 1 else 1)
                group["lr"] *= not (bad and way == "ended")
            optimizer.step()
            if not (bad and way == "kept"):
                optimizer.zero_grad()
            watch.step(loss)
    functional.scaled_dot_product_attention = attend


def _text() -> Tensor:
    """Python's standard library, as bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    read = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
    return torch.tensor([byte if byte < 128 else 63 for byte in read.encode()])


def _batch(way: str, x: Tensor) -> tuple[Tensor, Tensor]:
    if way == "padding":
        x = torch.cat([x[:, : TOKENS // 2], torch.zeros_like(x[:, TOKENS // 2 :])], 1)
    x = {"reversed": x.flip(1), "short": x[:, :8]}.get(way, x)
    return x, torch.cat([x[:, 1:], torch.full((len(x), 1), -100)], 1) if way == "shifted" else x


@torch.no_grad()
def _once(way: str, model: Any, optimizer: torch.optim.Optimizer) -> None:
    blocks = model.transformer.h
    if way == "eval":
        model.eval()
    if way == "frozen":
        blocks[1:3].requires_grad_(False)
    if way == "dropout":
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.7
    if way == "swapped":
        for a, b in zip(blocks[0].parameters(), blocks[3].parameters(), strict=True):
            old = a.clone()
            a.copy_(b)
            b.copy_(old)
    if way == "beta":
        for group in optimizer.param_groups:
            group["betas"] = (0.9, 0.1)
    if way == "decay":
        optimizer.param_groups[0]["weight_decay"] = 20.0
    if way == "leak":
        attend = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = lambda q, k, v, dropout_p=0.0, **_: attend(
            q, k, v, dropout_p=dropout_p
        )
