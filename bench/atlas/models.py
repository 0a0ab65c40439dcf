"""The architectures of the atlas, each as `model(batch) -> (logits, hidden)`: ours, torch.nn's and Hugging Face's.

Logits are of labels, in their order; hidden states are what the output matrix reads. Nothing is dropped (dropout 0),
and every model starts as its cell says, from a seed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.atlas.data import LENGTH, PAD, Data, Rows
from bench.atlas.design import Cell
from leadline.kernels.pack import pack_one
from leadline.model import Transformer, init

Batch = dict[str, Any]


def collate(cell: Cell, rows: Rows) -> Batch:
    if cell.arch != "ours":
        arrays = {"tokens": rows.tokens, "labels": rows.labels.reshape(-1)}
        if rows.source is not None:
            arrays["source"] = rows.source
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    sides = [side for side in (rows.source, rows.tokens) if side is not None]
    packs = [pack_one([row[row != PAD] for row in side], LENGTH) for side in sides]
    labels = rows.labels if rows.labels.ndim == 1 else rows.labels[rows.tokens != PAD]
    return {"packs": packs, "labels": torch.from_numpy(np.ascontiguousarray(labels))}


def build(cell: Cell, data: Data, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if cell.arch == "ours":
        return Ours(cell, data, seed)
    model: nn.Module = {"torch": Torch, "gpt2": HuggingFace, "llama": HuggingFace, "bert": HuggingFace, "vit": Vision}[
        cell.arch
    ](cell, data)
    if cell.start != "own":
        start(model, cell.start, cell.depth)
    return model


@torch.no_grad()
def start(model: nn.Module, name: str, depth: int) -> None:
    """xavier, or small: N(0, 0.02²), and over √(2·layers) the last matrix of each sublayer (GPT-2's way)."""
    last = ("out_proj", "linear2", "c_proj", "o_proj", "down_proj", "attention.output.dense", "output.dense")
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    for key, weight in model.named_parameters():
        if weight.ndim != 2 or weight in tables:
            continue
        if name == "xavier":
            rows, columns = weight.shape
            weight.normal_(0, math.sqrt(2 / (rows + columns)))
        else:
            is_last = any(f"{part}.weight" in key for part in last)
            weight.normal_(0, 0.02 / (math.sqrt(2 * depth) if is_last else 1))


class Ours(nn.Module):
    def __init__(self, cell: Cell, data: Data, seed: int) -> None:
        super().__init__()
        encoder = cell.depth if cell.task != "causal_lm" else 0
        decoder = cell.depth if cell.task in ("causal_lm", "translation") else 0
        self.classes = data.classes
        self.model = Transformer(
            data.vocabulary,
            seed=seed,
            placement=cell.placement,
            encoder_layers=encoder,
            decoder_layers=decoder,
            dim=cell.width,
            ffn_dim=2 * cell.width,
            heads=max(2, cell.width // 32),
            dropout=0.0,
            max_length=LENGTH,
            classes=data.classes,
            init="auto" if cell.start == "small" else cell.start,
        )
        self.model.use_attention("padded")
        if cell.start == "small":
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for weight in init.weights(self.model, self.model.config):
                    if weight.role not in ("embed", "head") and weight.tensor.ndim == 2:
                        is_last = weight.role in ("out", "ffn_out")
                        std = 0.02 / (math.sqrt(2 * cell.depth) if is_last else 1)
                        weight.tensor.copy_(torch.randn(weight.tensor.shape, generator=generator) * std)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden = self.model(*batch["packs"])
        if self.classes:
            return self.model.classify(hidden, batch["packs"][0].starts[: len(batch["labels"])]), hidden
        return self.model.logits(hidden), hidden


def _positions(width: int) -> Tensor:
    angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], 1)


class Torch(nn.Module):
    """torch.nn's stacks under embeddings: an encoder, or for translation both."""

    def __init__(self, cell: Cell, data: Data) -> None:
        super().__init__()
        width, before = cell.width, cell.placement == "pre_ln"
        sizes: dict[str, Any] = {"nhead": max(2, width // 32), "dim_feedforward": 2 * width, "dropout": 0.0}
        options: dict[str, Any] = sizes | {"batch_first": True, "norm_first": before}
        self.classes = data.classes
        self.embed = nn.Linear(4, width) if not data.vocabulary else nn.Embedding(data.vocabulary, width)
        if data.vocabulary:
            nn.init.normal_(self.embed.weight, 0, width**-0.5)  # type: ignore[arg-type]
        self.register_buffer("positions", _positions(width), persistent=False)
        self.stacks = nn.ModuleList()
        if cell.task == "translation":
            made: Any = nn.Transformer(width, num_encoder_layers=cell.depth, num_decoder_layers=cell.depth, **options)
            made.encoder.use_nested_tensor = False
            self.stacks.extend([made.encoder, made.decoder])
        else:
            layers = [nn.TransformerEncoderLayer(width, **options) for _ in range(cell.depth)]
            encoder = nn.TransformerEncoder(layers[0], 1, nn.LayerNorm(width) if before else None, False)
            encoder.layers, encoder.num_layers = nn.ModuleList(layers), cell.depth  # each layer drawn by itself
            self.stacks.append(encoder)
        self.out = nn.Linear(width, data.outputs)

    def _embedded(self, tokens: Tensor) -> Tensor:
        x = self.embed(_patches(tokens) if tokens.is_floating_point() else tokens)
        x = x if tokens.is_floating_point() else x * x.shape[-1] ** 0.5
        return x + self.positions[: x.shape[1]]  # type: ignore[index]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = batch["tokens"]
        if "source" in batch:
            padded = batch["source"] == PAD
            memory = self.stacks[0](self._embedded(batch["source"]), src_key_padding_mask=padded)
            length = tokens.shape[1]
            future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
            hidden = self.stacks[1](self._embedded(tokens), memory, tgt_mask=future, memory_key_padding_mask=padded)
        else:
            padding = None if tokens.is_floating_point() else tokens == PAD
            hidden = self.stacks[0](self._embedded(tokens), src_key_padding_mask=padding)
        return self.out(hidden.mean(1) if self.classes else hidden).flatten(0, -2), hidden


def _patches(images: Tensor) -> Tensor:
    """[N, 8, 8] -> [N, 16, 4]"""
    return images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)


class HuggingFace(nn.Module):
    """GPT-2, Llama and BERT from small configs."""

    def __init__(self, cell: Cell, data: Data) -> None:
        super().__init__()
        import transformers as hf

        width, heads = cell.width, max(2, cell.width // 32)
        common: dict[str, Any] = {"vocab_size": data.vocabulary, "attn_implementation": "eager"}
        sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": cell.depth, "num_attention_heads": heads}
        self.classes, self.masks = data.classes, cell.arch == "bert"
        if cell.arch == "gpt2":
            config: Any = hf.GPT2Config(
                n_embd=width, n_layer=cell.depth, n_head=heads, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0,
                attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, **common,
            )  # fmt: skip
            self.body: Any = hf.GPT2Model(config)
        elif cell.arch == "llama":
            config = hf.LlamaConfig(
                **sizes, intermediate_size=2 * width, num_key_value_heads=heads, max_position_embeddings=LENGTH,
                bos_token_id=None, eos_token_id=None, **common,
            )  # fmt: skip
            self.body = hf.LlamaModel(config)
        else:
            config = hf.BertConfig(
                **sizes, intermediate_size=2 * width, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, **common,
            )  # fmt: skip
            self.body = hf.BertModel(config, add_pooling_layer=False)
        self.out = nn.Linear(width, data.outputs)
        nn.init.normal_(self.out.weight, 0, 0.02)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = batch["tokens"]
        given: dict[str, Any] = {"attention_mask": (tokens != PAD).long()} if self.masks else {"use_cache": False}
        hidden = self.body(input_ids=tokens, **given).last_hidden_state
        return self.out(hidden[:, 0] if self.classes else hidden).flatten(0, -2), hidden


class Vision(nn.Module):
    def __init__(self, cell: Cell, data: Data) -> None:
        super().__init__()
        import transformers as hf

        eager: dict[str, Any] = {"attn_implementation": "eager"}
        config = hf.ViTConfig(
            hidden_size=cell.width, num_hidden_layers=cell.depth, num_attention_heads=max(2, cell.width // 32),
            intermediate_size=2 * cell.width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, image_size=8,
            patch_size=2, num_channels=1, **eager,
        )  # fmt: skip
        self.body: Any = hf.ViTModel(config, add_pooling_layer=False)
        self.out = nn.Linear(cell.width, data.outputs)
        nn.init.normal_(self.out.weight, 0, 0.02)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden = self.body(pixel_values=batch["tokens"][:, None]).last_hidden_state
        return self.out(hidden[:, 0]), hidden
