"""The papers' figures and tables by name: `leadline reproduce`."""

from __future__ import annotations

from leadline.reproduce import bert, deepnet, depths, gradients, lm, multilingual, sensitivity, xiong
from leadline.reproduce.figure import Figure

SCALES = ("tiny", "small", "paper")

FIGURES: dict[str, Figure] = {
    "xiong-fig2": xiong.FIG2,
    "xiong-fig3": gradients.FIG3,
    "xiong-fig4": xiong.FIG4,
    "xiong-fig4-wmt": xiong.FIG4_WMT,
    "xiong-fig5": bert.FIG5,
    "xiong-fig6": xiong.FIG6,
    "deepnet-fig3": deepnet.FIG3,
    "deepnet-fig4": deepnet.FIG4,
    "deepnet-fig5": deepnet.FIG5,
    "deepnet-fig6": depths.FIG6,
    "deepnet-fig7": depths.FIG7,
    "deepnet-1000": depths.THOUSAND,
    "deepnet-multilingual": multilingual.FIGURE,
    "sensitivity": sensitivity.FIGURE,
    "lm-warmup": lm.WARMUP,
    "lm-sensitivity": lm.SENSITIVITY,
}

__all__ = ["FIGURES", "SCALES", "Figure"]
