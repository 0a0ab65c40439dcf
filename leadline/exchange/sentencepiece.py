"""A SentencePiece model file, read: a protocol buffer, of which four fields matter. No package is needed.

ModelProto: 1 pieces (1 text, 2 score, 3 type), 2 trainer (3 model type), 3 normalizer (2 table of characters)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from leadline.errors import UserError

UNIGRAM = 1  # TrainerSpec.ModelType
TEXT = (1, 4)  # SentencePiece.Type: normal and user-defined, which text may become


class Model(NamedTuple):
    scores: dict[str, float]  # of the pieces that text may become
    charsmap: bytes  # how characters are normalised, for tokenizers' Precompiled


def read(path: Path) -> Model:
    scores: dict[str, float] = {}
    charsmap, kind = b"", UNIGRAM
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:
                piece = dict(_fields(_bytes(value)))
                if piece.get(3, 1) in TEXT:
                    (score,) = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))
                    scores[_bytes(piece[1]).decode("utf-8")] = score
            elif field == 2:
                kind = dict(_fields(_bytes(value))).get(3, UNIGRAM)  # type: ignore[assignment]
            elif field == 3:
                charsmap = _bytes(dict(_fields(_bytes(value))).get(2, b""))
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from None
    if kind != UNIGRAM:
        raise UserError(f"{path} is not a unigram model: only those can be imported, as OPUS-MT's are")
    return Model(scores, charsmap)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text was expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number of the field, its value): whole numbers as such, the others as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[wire]
        if at + length > len(data):
            raise ValueError("it ends too early")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
