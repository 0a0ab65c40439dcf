"""A training step (forward, backward, Adam): Leadline beside torch.nn.Transformer and Hugging Face Marian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.workload import PAD, Pool, Size, median_seconds, padded_batches
from leadline.config import OptimConfig
from leadline.kernels import attention
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.tasks import translation
from leadline.tasks.translation import Batch, collate
from leadline.training import optim

Contestant = Callable[[Size, Pool, torch.device, str], Callable[[], None]]  # -> one pass over the pool
SMOOTHING = 0.1


def leadline(size: Size, pool: Pool, device: torch.device, precision: str) -> Callable[[], None]:
    sizes = {"encoder_layers": size.layers, "decoder_layers": size.layers, "dim": size.dim, "ffn_dim": size.ffn_dim}
    model = Transformer(size.vocab, heads=size.heads, **sizes).to(device)
    model.use_attention(attention.choose(device, precision, size.dim // size.heads, 0.0))
    longest = model.config.max_length
    batches = [collate([pool.pairs[i] for i in rows], pool.shape, longest).to(device) for rows in pool.packs]

    def loss(batch: Batch) -> Tensor:
        return translation.loss(model, batch, SMOOTHING) / batch.count

    return _run(model, loss, batches, device, precision)


def _run(
    model: nn.Module, loss: Callable[[Any], Tensor], batches: Sequence[Any], device: torch.device, precision: str
) -> Callable[[], None]:
    """One update a batch, with the same optimizer and gradient norm for everyone."""
    optimizer = optim.optimizer(OptimConfig(lr=1e-4), model)
    model.train()

    def run() -> None:
        for batch in batches:
            with autocast(device, precision):
                value = loss(batch)
            value.backward()
            nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def _padded_run(
    model: nn.Module, forward: Callable[[Any], Tensor], size: Size, pool: Pool, device: torch.device, precision: str
) -> Callable[[], None]:
    """The same loss for a model that takes padded batches."""
    batches = [{k: v.to(device) for k, v in batch.items()} for batch in padded_batches(pool, size.batches)]

    def loss(batch: dict[str, Tensor]) -> Tensor:
        logits, labels = forward(batch).flatten(0, 1).float(), batch["labels"].flatten()
        return F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=SMOOTHING)

    return _run(model, loss, batches, device, precision)


def torch_nn(size: Size, pool: Pool, device: torch.device, precision: str) -> Callable[[], None]:
    embed = nn.Embedding(size.vocab, size.dim)
    body = nn.Transformer(
        size.dim, size.heads, size.layers, size.layers, size.ffn_dim, 0.1, batch_first=True, norm_first=True
    )
    model = nn.ModuleList([embed, body]).to(device)

    def forward(batch: dict[str, Tensor]) -> Tensor:
        length = batch["target"].shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        source, target = (embed(batch[key]) * math.sqrt(size.dim) for key in ("source", "target"))
        hidden = body(
            source,
            target,
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=batch["source_padding"],
            memory_key_padding_mask=batch["source_padding"],
        )
        return hidden @ embed.weight.t()

    return _padded_run(model, forward, size, pool, device, precision)


def marian(size: Size, pool: Pool, device: torch.device, precision: str) -> Callable[[], None]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocab,
        d_model=size.dim,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.ffn_dim,
        decoder_ffn_dim=size.ffn_dim,
        dropout=0.1,
        attention_dropout=0.0,
        activation_function="relu",
        pad_token_id=PAD,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
        scale_embedding=True,
    )
    model: Any = MarianMTModel(config)
    model.to(device)

    def forward(batch: dict[str, Tensor]) -> Tensor:
        mask = (~batch["source_padding"]).long()
        return model(
            input_ids=batch["source"], attention_mask=mask, decoder_input_ids=batch["target"], use_cache=False
        ).logits

    return _padded_run(model, forward, size, pool, device, precision)


CONTESTANTS: dict[str, Contestant] = {
    "leadline": leadline,
    "torch.nn.Transformer": torch_nn,
    "Hugging Face Marian": marian,
}


def run(size: Size, pool: Pool, device: torch.device, precision: str, repeats: int) -> list[dict[str, Any]]:
    """The contestants take turns, so that a machine that is busy for a while is busy for all of them."""
    torch.manual_seed(0)
    runs = {name: make(size, pool, device, precision) for name, make in CONTESTANTS.items()}
    seconds = median_seconds(runs, device, repeats)
    speeds = {name: pool.target_tokens / seconds[name] for name in runs}
    return [
        {
            "contestant": name,
            "ms_a_step": 1000 * seconds[name] / size.batches,
            "target_tokens_per_second": speeds[name],
            "leadline_is_faster_by": speeds["leadline"] / speeds[name],
        }
        for name in runs
    ]
