"""The table of placements: a name, and the class that implements it."""

from __future__ import annotations

import importlib

from leadline.errors import UserError, nearest
from leadline.placement.base import ROLES, Placement, Role, Site, Stack
from leadline.placement.deepnorm import DeepNorm
from leadline.placement.post_ln import PostLN
from leadline.placement.pre_ln import PreLN

PLACEMENTS: dict[str, type[Placement]] = {
    "post_ln": PostLN,
    "pre_ln": PreLN,
    "deepnorm": DeepNorm,
}


def find(name: str) -> type[Placement]:
    """The placement called `name`, or the one at `my.module:MyNorm`."""
    if name in PLACEMENTS:
        return PLACEMENTS[name]
    if ":" not in name:
        raise UserError(f"there is no placement {name!r}: {nearest(name, PLACEMENTS)}")
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"the placement {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Placement)):
        raise UserError(f"{name!r} is not a subclass of leadline.placement.Placement")
    return found


__all__ = ["PLACEMENTS", "ROLES", "DeepNorm", "Placement", "PostLN", "PreLN", "Role", "Site", "Stack", "find"]
