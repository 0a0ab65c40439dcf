"""Leadline trains deep Transformers without the warm-up lottery.

import leadline

config = leadline.recipes.numerals()
run = leadline.train(config, "runs/first")
print(leadline.load(run).translate(["zweihundertdreiundvierzig"]))
"""

from leadline import recipes
from leadline.config import Config
from leadline.errors import Diverged, UserError
from leadline.load import Trained, load
from leadline.model import Transformer
from leadline.placement import PLACEMENTS, DeepNorm, Placement, PostLN, PreLN, Site
from leadline.train.loop import resume, train

__all__ = [
    "PLACEMENTS",
    "Config",
    "DeepNorm",
    "Diverged",
    "Placement",
    "PostLN",
    "PreLN",
    "Site",
    "Trained",
    "Transformer",
    "UserError",
    "load",
    "recipes",
    "resume",
    "train",
]
