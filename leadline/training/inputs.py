"""Batches on their way to a captured step: one copy into the memory that the step reads every time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

ALIGN = 16  # bytes


def tensors(tree: object) -> list[Tensor]:
    """All tensors of a dataclass of dataclasses, in the order of their fields."""
    if isinstance(tree, Tensor):
        return [tree]
    if not dataclasses.is_dataclass(tree):
        return []
    return [tensor for field in dataclasses.fields(tree) for tensor in tensors(getattr(tree, field.name))]


def with_tensors(tree: Any, replacements: Iterator[Tensor]) -> Any:
    """The same tree with other tensors, taken in the same order."""
    if isinstance(tree, Tensor):
        return next(replacements)
    if not dataclasses.is_dataclass(tree):
        return tree
    fields = {f.name: with_tensors(getattr(tree, f.name), replacements) for f in dataclasses.fields(tree)}
    return dataclasses.replace(tree, **fields)  # type: ignore[type-var]


def to_bytes(tree: object, pinned: bool) -> Tensor:
    """The tensors end to end. Pinned memory is reused by torch when the copy that reads it is done."""
    leaves = tensors(tree)
    buffer = torch.empty(sum(map(_size, leaves)), dtype=torch.uint8, pin_memory=pinned)
    for part, tensor in zip(_parts(buffer, leaves), leaves, strict=True):
        part.copy_(tensor)
    return buffer


def views(tree: Any, buffer: Tensor) -> Any:
    """The tree with its tensors in `buffer`, where to_bytes of any tree of the same shapes puts them."""
    return with_tensors(tree, iter(_parts(buffer, tensors(tree))))


def _size(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN


def _parts(buffer: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts, begin = [], 0
    for tensor in like:
        used = tensor.numel() * tensor.element_size()
        parts.append(buffer[begin : begin + used].view(tensor.dtype).view(tensor.shape))
        begin += _size(tensor)
    return parts
