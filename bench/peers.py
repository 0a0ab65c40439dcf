"""Other libraries' encoder-decoders, on the same sentences in padded batches, with the same loss and optimizer.

Each function builds a model of a Size and says how a padded batch becomes logits. Where a library's layer has more
dropout than ours (inside attention, between the feed-forward matrices) it is taken out, so that all compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import flops
from bench.measure import Setting, Work
from bench.ours import LR, SMOOTHING
from bench.workload import BOS, EOS, PAD, Pool, Size, padded_batches
from leadline.config import OptimConfig
from leadline.model.precision import autocast
from leadline.training import optim

Padded = dict[str, Tensor]
Compiled = Literal["", "whole", "layers", "graphs"]  # torch.compile of model and loss; of each layer; with CUDA graphs


class Peer(NamedTuple):
    model: nn.Module
    logits: Callable[[Padded], Tensor]
    layers: Sequence[nn.Module]


def torch_nn(size: Size, device: torch.device) -> Peer:
    """Without positions, which it does not have: less work than the others do."""
    embed = nn.Embedding(size.vocab, size.dim)
    norm_first = size.placement == "pre_ln"
    body = nn.Transformer(
        size.dim, size.heads, size.layers, size.layers, size.ffn_dim, 0.1, batch_first=True, norm_first=norm_first
    )
    layers = [*body.encoder.layers, *body.decoder.layers]
    for layer in layers:
        layer.dropout = nn.Identity()  # between the feed-forward matrices
    for module in body.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    model = nn.ModuleList([embed, body]).to(device).train()

    def logits(batch: Padded) -> Tensor:
        length = batch["target"].shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        source, target = (F.dropout(embed(batch[key]) * math.sqrt(size.dim), 0.1) for key in ("source", "target"))
        hidden = body(
            source,
            target,
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=batch["source_padding"],
            memory_key_padding_mask=batch["source_padding"],
        )
        return hidden @ embed.weight.t()

    return Peer(model, logits, layers)


def bart_like(size: Size) -> dict[str, Any]:
    """What Hugging Face's encoder-decoders of BART's family call our sizes."""
    return {
        "vocab_size": size.vocab,
        "d_model": size.dim,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.ffn_dim,
        "decoder_ffn_dim": size.ffn_dim,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "scale_embedding": True,
        "attn_implementation": "sdpa",
    }


def marian(size: Size, device: torch.device) -> Peer:
    """Post-LN, whatever the size asks for: it has no other placement.

    Its stacks draw a number for each layer to skip it or not, which would break its compiled graph at every layer. They
    are told that they do not train, their layers that they do; this spares it the dropout on embeddings too.
    """
    from transformers import MarianConfig, MarianMTModel

    model: Any = MarianMTModel(MarianConfig(**bart_like(size)))
    model.to(device).train()
    for stack in (model.model.encoder, model.model.decoder):
        stack.training = False

    def logits(batch: Padded) -> Tensor:
        mask = (~batch["source_padding"]).long()
        return model(
            input_ids=batch["source"], attention_mask=mask, decoder_input_ids=batch["target"], use_cache=False
        ).logits

    return Peer(model, logits, [*model.model.encoder.layers, *model.model.decoder.layers])


def x_transformers(size: Size, device: torch.device) -> Peer:
    """Pre-LN with flash attention; its dropout is where it has one: on embeddings and in the feed-forward layer."""
    from x_transformers import XTransformer

    sizes: dict[str, Any] = {"num_tokens": size.vocab, "depth": size.layers, "heads": size.heads, "max_seq_len": 256}
    sizes |= {"attn_dim_head": size.dim // size.heads, "ff_mult": size.ffn_dim / size.dim}
    sizes |= {"attn_flash": True, "emb_dropout": 0.1, "ff_dropout": 0.1}
    both = {f"{stack}_{key}": value for stack in ("enc", "dec") for key, value in sizes.items()}
    model: Any = XTransformer(dim=size.dim, tie_token_emb=True, **both).to(device).train()

    def logits(batch: Padded) -> Tensor:
        mask = ~batch["source_padding"]
        memory = model.encoder(batch["source"], mask=mask, return_embeddings=True)
        return model.decoder.net(batch["target"], context=memory, context_mask=mask)

    return Peer(model, logits, [])


def torchscale(size: Size, device: torch.device) -> Peer:
    """DeepNorm as its authors published it."""
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    sizes = {"embed_dim": size.dim, "attention_heads": size.heads, "ffn_embed_dim": size.ffn_dim, "layers": size.layers}
    both = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in sizes.items()}
    config = EncoderDecoderConfig(
        vocab_size=size.vocab, activation_fn="relu", dropout=0.1, deepnorm=size.placement == "deepnorm",
        share_all_embeddings=True, no_scale_embedding=False, **both,
    )  # fmt: skip
    embed = nn.Embedding(size.vocab, size.dim)
    model: Any = EncoderDecoder(config, embed, None, embed, None).to(device).train()

    def logits(batch: Padded) -> Tensor:
        memory = model.encoder(batch["source"], encoder_padding_mask=batch["source_padding"])
        return model.decoder(batch["target"], encoder_out=memory)[0]

    return Peer(model, logits, [*model.encoder.layers, *model.decoder.layers])


def work(
    make: Callable[[Size, torch.device], Peer], size: Size, pool: Pool, setting: Setting, compiled: Compiled = ""
) -> Work:
    peer = make(size, setting.device)
    batches = [{k: v.to(setting.device) for k, v in batch.items()} for batch in padded_batches(pool, size.batches)]

    def loss(batch: Padded) -> Tensor:
        logits, labels = peer.logits(batch).flatten(0, 1).float(), batch["labels"].flatten()
        return F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=SMOOTHING)

    run = updates(peer.model, with_compile(loss, peer.layers, compiled), batches, setting, OptimConfig(lr=LR))
    return Work(run, pool.target_tokens, steps=len(batches), flops=flops.translation(size, pool.lengths))


def with_compile(
    loss: Callable[[Any], Tensor], layers: Sequence[nn.Module], compiled: Compiled
) -> Callable[[Any], Tensor]:
    """Shapes that change from batch to batch become symbols by themselves; with CUDA graphs each shape is its own."""
    if compiled:
        from torch import _dynamo
        from torch.fx.experimental import _config as symbols

        symbols.use_duck_shape = False  # two sizes that are equal by chance are not taken for the same symbol
        _dynamo.config.recompile_limit = 64 if compiled == "graphs" else 16
    if compiled == "layers":
        for layer in layers:
            layer.compile()
        return loss
    if compiled == "graphs":
        return torch.compile(loss, dynamic=False, mode="reduce-overhead")
    return torch.compile(loss) if compiled else loss


def updates(
    model: nn.Module, loss: Callable[[Any], Tensor], batches: Sequence[Any], setting: Setting, config: OptimConfig
) -> Callable[[], None]:
    """One update a batch: bf16 by autocast over fp32 weights, fused Adam, norm and clipping as in a training."""
    optimizer = optim.optimizer(config, model)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def run() -> None:
        for batch in batches:
            with autocast(setting.device, setting.precision):
                value = loss(batch)
            value.backward()
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            if config.clip:
                nn.utils.clip_grads_with_norm_(parameters, config.clip, norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run
