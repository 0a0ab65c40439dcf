"""The table of placements: names, and the classes that implement them."""

from __future__ import annotations

import importlib
import os
import sys

from leadline.errors import UserError, nearest
from leadline.placement.admin import Admin, AdminConstant
from leadline.placement.b2t import B2T
from leadline.placement.base import ROLES, Architecture, Base, NormName, Placement, Role, Site, Stack, tensor
from leadline.placement.complete_p import CompleteP
from leadline.placement.deepnorm import DeepNorm
from leadline.placement.dlcl import DLCL
from leadline.placement.ds_init import DSInit
from leadline.placement.hybrid_norm import HybridNorm
from leadline.placement.keel import Keel
from leadline.placement.layer_scale import LayerScale
from leadline.placement.ln_scaling import LNScaling
from leadline.placement.mix_ln import MixLN
from leadline.placement.normformer import NormFormer
from leadline.placement.post_ln import PostLN
from leadline.placement.post_ln_init import PostLNInit
from leadline.placement.pre_ln import PreLN
from leadline.placement.r_fixup import RFixup
from leadline.placement.res_post_ln import ResPostLN
from leadline.placement.resi_dual import ResiDual
from leadline.placement.rezero import ReZero
from leadline.placement.sandwich_ln import PeriLN, SandwichLN
from leadline.placement.siamese_norm import SiameseNorm
from leadline.placement.sub_ln import SubLN
from leadline.placement.t_fixup import TFixup

PLACEMENTS: dict[str, type[Placement]] = {
    "post_ln": PostLN,
    "pre_ln": PreLN,
    "deepnorm": DeepNorm,
    "post_ln_init": PostLNInit,
    "ds_init": DSInit,
    "admin": Admin,
    "admin_constant": AdminConstant,
    "b2t": B2T,
    "resi_dual": ResiDual,
    "dlcl": DLCL,
    "normformer": NormFormer,
    "sub_ln": SubLN,
    "sandwich_ln": SandwichLN,
    "peri_ln": PeriLN,
    "ln_scaling": LNScaling,
    "mix_ln": MixLN,
    "t_fixup": TFixup,
    "r_fixup": RFixup,
    "rezero": ReZero,
    "res_post_ln": ResPostLN,
    "layer_scale": LayerScale,
    "hybrid_norm": HybridNorm,
    "keel": Keel,
    "siamese_norm": SiameseNorm,
    "complete_p": CompleteP,
}


def find(name: str) -> type[Placement]:
    """The placement called `name`, or the one at `my.module:MyNorm`."""
    if name in PLACEMENTS:
        return PLACEMENTS[name]
    if ":" not in name:
        raise UserError(f"there is no placement {name!r}: {nearest(name, PLACEMENTS)}")
    module_name, _, class_name = name.partition(":")
    sys.path.append(os.getcwd())  # a user's own file is found beside their runs
    try:
        placement = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # anything may go wrong in a user's file
        where = " (run the command in the folder of its file)" if isinstance(error, ModuleNotFoundError) else ""
        raise UserError(f"the placement {name!r} cannot be imported: {error}{where}") from error
    finally:
        sys.path.pop()
    if not (isinstance(placement, type) and issubclass(placement, Placement)):
        raise UserError(f"{name!r} is not a subclass of leadline.placement.Placement")
    return placement


__all__ = [
    "PLACEMENTS", "ROLES", "Architecture", "Base", "DeepNorm", "NormName", "Placement", "PostLN", "PreLN", "Role",
    "Site", "Stack", "find", "tensor",
]  # fmt: skip
