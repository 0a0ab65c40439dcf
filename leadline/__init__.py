"""Leadline trains deep Transformers without the warm-up lottery.

import leadline

config = leadline.recipes.numerals()
run = leadline.train(config, "runs/first")
print(leadline.load(run).translate(["zweihundertdreiundvierzig"]))
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline import callbacks, recipes
    from leadline.api import resume, train
    from leadline.config import Config
    from leadline.diagnose.choosing import choose
    from leadline.diagnose.explain import explain
    from leadline.diagnose.inspect import inspect
    from leadline.diagnose.inspection import Inspection
    from leadline.diagnose.watch import Watch
    from leadline.errors import Diverged, UserError
    from leadline.model import Transformer
    from leadline.placement import PLACEMENTS, DeepNorm, Placement, PostLN, PreLN, Site
    from leadline.report.comparison import compare
    from leadline.training.trained import Trained, load

__version__ = "0.1.0"

# Imported when first used: torch takes seconds to load, and `leadline --help` needs none of it.
_HOME = {
    "callbacks": "leadline.callbacks",
    "recipes": "leadline.recipes",
    "Config": "leadline.config",
    "Diverged": "leadline.errors",
    "Inspection": "leadline.diagnose.inspection",
    "Watch": "leadline.diagnose.watch",
    "compare": "leadline.report.comparison",
    "explain": "leadline.diagnose.explain",
    "inspect": "leadline.diagnose.inspect",
    "choose": "leadline.diagnose.choosing",
    "UserError": "leadline.errors",
    "Trained": "leadline.training.trained",
    "load": "leadline.training.trained",
    "Transformer": "leadline.model",
    "PLACEMENTS": "leadline.placement",
    "DeepNorm": "leadline.placement",
    "Placement": "leadline.placement",
    "PostLN": "leadline.placement",
    "PreLN": "leadline.placement",
    "Site": "leadline.placement",
    "resume": "leadline.api",
    "train": "leadline.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    globals()[name] = value = module if name in ("callbacks", "recipes") else getattr(module, name)
    return value


__all__ = [
    "PLACEMENTS",
    "Config",
    "DeepNorm",
    "Diverged",
    "Inspection",
    "Placement",
    "PostLN",
    "PreLN",
    "Site",
    "Trained",
    "Transformer",
    "UserError",
    "Watch",
    "callbacks",
    "choose",
    "compare",
    "explain",
    "inspect",
    "load",
    "recipes",
    "resume",
    "train",
]
