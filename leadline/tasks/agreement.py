"""How well guesses agree with labels, from counts_CC[label, guess].

accuracy  Σ_c n_cc / n
F1        2·n_cc / (labels c + guesses c): of the second label where there are two, else the mean over all labels
Matthews  (n·Σ_c n_cc - Σ_c t_c·p_c) / √((n² - Σ_c p_c²)(n² - Σ_c t_c²)), t_c labels and p_c guesses of c; 0 where
          one side is always the same
"""

from __future__ import annotations

import math

import numpy as np


def scores(counts_CC: np.ndarray) -> dict[str, float]:
    counts = counts_CC.astype(float)
    total, right = counts.sum(), counts.diagonal()
    labels, guesses = counts.sum(1), counts.sum(0)
    each = 2 * right / np.maximum(labels + guesses, 1)
    spread = math.sqrt((total**2 - guesses @ guesses) * (total**2 - labels @ labels))
    return {
        "accuracy": float(right.sum() / max(total, 1)),
        "f1": float(each[1] if len(each) == 2 else each.mean()),
        "matthews": float((total * right.sum() - labels @ guesses) / spread) if spread else 0.0,
    }
