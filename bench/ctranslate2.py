"""Beam search on a CPU in fp32: Leadline beside CTranslate2 with the same weights, sentences and output lengths.

CTranslate2 takes one length for all sentences of a call, so sentences come in groups of one length; the lengths and
how many there are of each follow TED talks. Needs `pip install ctranslate2`. On a machine that is not idle set
OMP_WAIT_POLICY=passive, or torch's threads wait for each other by spinning and the result is noise.

    python -m bench ctranslate2 [--sentences 100]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.measure import Row, Setting, Work, compete
from bench.workload import BOS, EOS, SIZES, Size
from leadline.config import DecodeConfig
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.model.decode import beam_search

__all__ = ["SIZES", "run"]

BEAM = 5
# Output length and share of the sentences: nine parts of TED's test set, each at its middle.
LENGTHS = {5: 0.1, 9: 0.15, 13: 0.15, 18: 0.15, 24: 0.15, 32: 0.15, 45: 0.1, 70: 0.04, 120: 0.01}


def random_model(size: Size) -> Transformer:
    """Pre-LN; </s> is so unlikely that it comes only where nothing else may."""
    sizes = {"encoder_layers": size.layers, "decoder_layers": size.layers, "dim": size.dim, "ffn_dim": size.ffn_dim}
    model = Transformer(
        size.vocab, seed=0, placement="pre_ln", heads=size.heads, embeddings="separate", dropout=0.0, **sizes
    )
    with torch.no_grad():
        model.decoder.final.bias[0] = 10  # type: ignore[index, operator]
        model.output.weight[:, 0] = 0
        model.output.weight[EOS, 0] = -3
    return model.eval()


def sentences(size: Size, count: int) -> list[list[np.ndarray]]:
    """Groups of sentences of one length, with </s>."""
    rng = np.random.default_rng(0)
    return [
        [np.append(rng.integers(4, size.vocab, length - 1), EOS) for _ in range(round(share * count))]
        for length, share in LENGTHS.items()
        if round(share * count)
    ]


def by_leadline(
    model: Transformer, groups: list[list[np.ndarray]], batch_tokens: int, beam: int = BEAM
) -> list[list[int]]:
    translations: list[list[int]] = []
    for group in groups:
        length = len(group[0])
        many = max(1, batch_tokens // length)
        for begin in range(0, len(group), many):
            batch = group[begin : begin + many]
            limits = torch.full((len(batch),), length)
            hypotheses = beam_search(model, pack_one(batch), limits, BOS, EOS, beam, 1.0, best=1)
            translations += [best.tokens for (best,) in hypotheses]
    return translations


def by_ctranslate2(
    translator: Any, groups: list[list[np.ndarray]], batch_tokens: int, beam: int = BEAM
) -> list[list[int]]:
    translations: list[list[int]] = []
    for group in groups:
        length = len(group[0])
        results = translator.translate_batch(
            [[str(token) for token in sentence] for sentence in group],
            beam_size=beam,
            max_batch_size=batch_tokens,
            batch_type="tokens",
            min_decoding_length=length - 1,
            max_decoding_length=length - 1,
        )
        translations += [[int(token) for token in result.hypotheses[0]] for result in results]
    return translations


def converted(model: Transformer, threads: int) -> Any:
    """The same model, run by CTranslate2."""
    import ctranslate2
    from ctranslate2.specs import TransformerSpec, common_spec

    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=True,
        activation=common_spec.Activation.RELU,
    )
    _embed(spec.encoder.embeddings[0], spec.encoder.position_encodings, model.source_embed)
    _embed(spec.decoder.embeddings, spec.decoder.position_encodings, model.target_embed)
    for theirs, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        _norm(theirs.layer_norm, stack.final)
        for layer, block in zip(theirs.layer, stack.blocks, strict=True):
            _layer(layer, block)
    spec.decoder.projection.weight = model.output.weight.detach().numpy()
    names = [str(token) for token in range(model.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = str(BOS), str(EOS), "3"
    spec.config.decoder_start_token = str(BOS)
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        return ctranslate2.Translator(
            folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )


def _embed(spec: Any, positions: Any, embed: Any) -> None:
    spec.weight = embed.tokens.weight.detach().numpy()
    positions.encodings = embed.positions.table.numpy()


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()


def _layer(spec: Any, block: Any) -> None:
    _norm(spec.self_attention.layer_norm, block.attn_residual.norm)
    _linear(spec.self_attention.linear[0], block.attn.qkv)
    _linear(spec.self_attention.linear[1], block.attn.out)
    if hasattr(block, "cross"):
        _norm(spec.attention.layer_norm, block.cross_residual.norm)
        for place, linear in enumerate((block.cross.q, block.cross.kv, block.cross.out)):
            _linear(spec.attention.linear[place], linear)
    _norm(spec.ffn.layer_norm, block.ffn_residual.norm)
    _linear(spec.ffn.linear_0, block.ffn.expand)
    _linear(spec.ffn.linear_1, block.ffn.contract)


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    """Each has the batch its authors chose: theirs is 2048 tokens in their examples."""
    model, groups = random_model(size), sentences(size, arguments.sentences or 100)
    theirs, ours = converted(model, torch.get_num_threads()), DecodeConfig().batch_tokens
    # With several beams they may differ: at the last position we count the </s> that must come, they do not.
    if by_leadline(model, groups[:2], ours, beam=1) != by_ctranslate2(theirs, groups[:2], 2048, beam=1):
        raise RuntimeError("the two run different models: they differ without a beam")
    ways: dict[str, Callable[[], Any]] = {
        "leadline": lambda: by_leadline(model, groups, ours),
        "CTranslate2": lambda: by_ctranslate2(theirs, groups, 2048),
    }
    count = sum(map(len, groups))
    return compete({name: partial(Work, way, count, "sentences") for name, way in ways.items()}, setting)
