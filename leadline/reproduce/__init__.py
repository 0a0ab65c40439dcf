"""The papers' figures and tables by name: `leadline reproduce`."""

from __future__ import annotations

from collections.abc import Callable

from leadline.config import Config
from leadline.reproduce import deepnet, xiong
from leadline.reproduce.figure import Figure

SCALES = ("tiny", "small", "paper")
BASE: Callable[[str], Config] = xiong.base  # what all figures vary

FIGURES: dict[str, Figure] = {
    "xiong-fig2": xiong.FIG2,
    "xiong-fig3": xiong.FIG3,
    "xiong-fig4": xiong.FIG4,
    "xiong-fig6": xiong.FIG6,
    "deepnet-fig4": deepnet.FIG4,
    "deepnet-fig5": deepnet.FIG5,
}

__all__ = ["BASE", "FIGURES", "SCALES", "Figure"]
