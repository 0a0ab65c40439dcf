"""Encoder-decoder, encoder-only and decoder-only Transformers on packed batches.

    model = Transformer(vocab_size=10000, placement="pre_ln", encoder_layers=6, decoder_layers=6)
    hidden_TD = model(source, target)          # both stacks; the target's tokens shifted right
    logits_TV = model.logits(hidden_TD)
    scores_SC = model.classify(hidden_TD, firsts_S)   # with model.classes, from each sequence's first token

A model with one stack takes one pack, `model(pack)`: with no encoder layers every token sees those before it only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leadline import config as configuration
from leadline.config import ModelConfig
from leadline.errors import UserError
from leadline.kernels.attention import ATTENTION
from leadline.kernels.pack import Pack
from leadline.model.block import Layers
from leadline.model.init import initialise
from leadline.model.layers import HEADS, Attends, Attention, Classifier, Embed, Embedding
from leadline.model.operations import PLAIN, Operations
from leadline.model.precision import evaluating
from leadline.model.size import require_room
from leadline.placement import find


class Transformer(nn.Module):
    """The model of all tasks: two stacks, or one. Keywords are those of ModelConfig; the weights start from `seed`."""

    ops: Operations = PLAIN

    def __init__(self, vocab_size: int, *, seed: int = 1, **model: Any) -> None:
        super().__init__()
        config = configuration.from_dict(model, ModelConfig, "model.")
        find(config.placement)  # a wrong name is an error before anything is built
        require_room(config, vocab_size)
        self.config = config
        self.vocab_size = vocab_size
        shared = Embedding(vocab_size, config.dim)
        if config.encoder_layers:
            self.source_embed = Embed(config, shared)
            self.encoder = Layers(config, "encoder")
        if config.decoder_layers:
            own = config.embeddings != "tied" and config.encoder_layers > 0
            self.target_embed = Embed(config, Embedding(vocab_size, config.dim) if own else shared)
            self.decoder = Layers(config, "decoder")
        last = self.target_embed if config.decoder_layers else self.source_embed
        self.output = Embedding(vocab_size, config.dim) if config.embeddings == "separate" else last.tokens
        self.head = None if config.head == "linear" else HEADS[config.head](config, vocab_size)
        self.classifier = Classifier(config) if config.classes or config.pooler else None
        initialise(self, config, seed)

    def forward(self, source: Pack | None = None, target: Pack | None = None) -> Tensor:
        """The hidden states at the top of the last stack. A stack that is alone takes the first pack."""
        if not self.config.encoder_layers and target is None:
            source, target = None, source
        given = (source is not None, target is not None)
        if given != (self.config.encoder_layers > 0, self.config.decoder_layers > 0):
            raise ValueError("give a pack to each stack the model has: source to the encoder, target to the decoder")
        memory_SD = self.encode(source) if source is not None else None
        return memory_SD if target is None else self.decode(target, memory_SD, source)  # type: ignore[return-value]

    def encode(self, source: Pack) -> Tensor:
        return self.encoder(self.source_embed(source.tokens, source.positions, source.segments), source)

    def decode(self, target: Pack, memory_SD: Tensor | None = None, source: Pack | None = None) -> Tensor:
        foot_TD = self.target_embed(target.tokens, target.positions, target.segments)
        return self.decoder(foot_TD, target, memory_SD, source)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return self.ops.logits(self, hidden_TD)

    def step(
        self, tokens_N: Tensor, positions_N: Tensor, layers: Iterable[tuple[Any, Attends, Attends | None]]
    ) -> Tensor:
        """Logits of the token that follows each hypothesis; a decoder block's keys and values come with it.

        Without an encoder there is no memory.
        """
        return self.logits(self.advance(tokens_N, positions_N, layers))

    def advance(
        self, tokens_N: Tensor, positions_N: Tensor, layers: Iterable[tuple[Any, Attends, Attends | None]]
    ) -> Tensor:
        """The same up to the hidden states."""
        x = self.decoder.opens(self.target_embed(tokens_N, positions_N))
        for block, cache, memory in layers:
            x = block.step(x, positions_N, cache, memory)
        return self.decoder.close(x)

    def classify(self, hidden_TD: Tensor, firsts_S: Tensor) -> Tensor:
        """[S, classes] scores of the sequences that begin at `firsts_S`."""
        if self.classifier is None or not self.config.classes:
            raise ValueError("this model has no classifier: build it with classes=2 or more")
        return self.classifier(hidden_TD.index_select(0, firsts_S))

    def loss(
        self, hidden_TD: Tensor, labels_T: Tensor, smoothing: float, ignore: int, divisor: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """(smoothed, plain) cross entropy of the next token, summed over labels but `ignore`, over `divisor`."""
        return self.ops.loss(self, hidden_TD, labels_T, smoothing, ignore, divisor)

    @torch.no_grad()
    def calibrate(self, forward: Callable[[], object]) -> None:
        """Once, before training: placements that start from data (Admin) look at it while `forward` runs the model."""
        with evaluating(self):
            for layers in (module for module in self.modules() if isinstance(module, Layers)):
                find(self.config.placement).calibrate(list(layers.connections()), forward)

    def use(self, ops: Operations) -> None:
        """What to compute with: leadline.model.operations, leadline.model.fused."""
        for module in self.modules():
            if hasattr(type(module), "ops"):
                module.ops = ops

    @contextlib.contextmanager
    def using(self, ops: Operations) -> Iterator[None]:
        """The same for a while."""
        before = self.ops
        self.use(ops)
        try:
            yield
        finally:
            self.use(before)

    def use_recompute(self, recompute: bool) -> None:
        """Keep only what enters each block for the way back, and compute the rest again there."""
        for module in self.modules():
            if isinstance(module, Layers):
                module.recompute = recompute

    def use_attention(self, kernel: str) -> None:
        """Which of leadline.kernels.attention.ATTENTION every layer calls."""
        if kernel not in ATTENTION:
            raise UserError(f"there is no attention {kernel!r}: the choices are {', '.join(ATTENTION)}")
        for module in self.modules():
            if isinstance(module, Attention):
                module.kernel = ATTENTION[kernel]
