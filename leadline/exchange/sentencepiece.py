"""A SentencePiece model file, read: a protocol buffer, of which few fields matter. No package is needed.

ModelProto: 1 pieces (1 text, 2 score, 3 type), 2 trainer (3 model type), 3 normalizer (2 table of characters); and MUST
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from leadline.errors import UserError

UNIGRAM = 1  # TrainerSpec.ModelType
TEXT = (1, 4)  # SentencePiece.Type: normal and user-defined, which text may become
MUST = {  # (field of ModelProto, field in it): its name, and its usual value, the only one that can be imported
    (2, 24): ("treat_whitespace_as_suffix", 0),
    (2, 35): ("byte_fallback", 0),
    (3, 3): ("add_dummy_prefix", 1),
    (3, 4): ("remove_extra_whitespaces", 1),
    (3, 5): ("escape_whitespaces", 1),
}


class Model(NamedTuple):
    scores: dict[str, float]  # of the pieces that text may become
    charsmap: bytes  # how characters are normalised, for tokenizers' Precompiled


def read(path: Path) -> Model:
    scores: dict[str, float] = {}
    charsmap, kind, other = b"", UNIGRAM, ""
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:
                piece = dict(_fields(_bytes(value)))
                if piece.get(3, 1) in TEXT:
                    (score,) = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))
                    scores[_bytes(piece[1]).decode("utf-8")] = score
            elif field in (2, 3):
                said = dict(_fields(_bytes(value)))
                if field == 2:
                    kind = said.get(3, UNIGRAM)  # type: ignore[assignment]
                else:
                    charsmap = _bytes(said.get(2, b""))
                for (section, key), (name, only) in MUST.items():
                    if section == field and said.get(key, only) != only:
                        other = f"{name}={bool(said[key])}"
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from None
    if kind != UNIGRAM:
        raise UserError(f"{path} is not a unigram model: only those can be imported, as OPUS-MT's are")
    if other:
        raise UserError(f"{path} has {other}: only models with SentencePiece's own setting of it can be imported")
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
