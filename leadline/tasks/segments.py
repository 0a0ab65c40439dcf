"""BERT's sequences, laid end to end: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b is of the second segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leadline.config import Config
from leadline.data.flat import Flat, spans
from leadline.errors import UserError


@dataclass(frozen=True)
class Laid:
    tokens: np.ndarray  # of all sequences, end to end
    lengths: np.ndarray  # of each
    begins: np.ndarray  # where each begins
    sequence: np.ndarray  # of each token, the number of its sequence
    position: np.ndarray  # of each token, in its sequence
    segments: np.ndarray  # of each token, 0 or 1


def require_encoder(config: Config) -> None:
    """Such sequences are read by an encoder alone, and each fits in a batch."""
    model, tokens = config.model, config.train.batch_tokens
    if not model.encoder_layers or model.decoder_layers:
        raise UserError(f"{config.task} needs an encoder alone: set model.encoder_layers, and model.decoder_layers=0")
    if model.max_length < 8 or tokens < model.max_length:
        raise UserError(
            f"train.batch_tokens={tokens} must be at least model.max_length={model.max_length}, and that at least 8"
        )


def size(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Tokens of a sequence whose texts have so many; without a second there is one [SEP]."""
    return first + second + 2 + (second > 0)


def lay_out(first: Flat, second: Flat, cls: int, sep: int) -> Laid:
    lengths = size(first.lengths, second.lengths)
    begins = np.cumsum(lengths) - lengths
    tokens = np.full(lengths.sum(), sep, dtype=np.int64)
    tokens[begins] = cls
    tokens[spans(begins + 1, first.lengths)] = first.tokens
    middles = first.lengths + 2
    tokens[spans(begins + middles, second.lengths)] = second.tokens
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(tokens)) - begins[sequence]
    return Laid(tokens, lengths, begins, sequence, position, (position >= middles[sequence]).astype(np.int64))
