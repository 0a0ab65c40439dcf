"""Accuracy, F1 and Matthews against counts worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.tasks.agreement import scores


def test_two_labels_by_hand() -> None:
    """TN 50, FP 10, FN 5, TP 35: F1 = 70/85; Matthews = (35·50 - 10·5)/√(45·40·60·55)."""
    found = scores(np.array([[50, 10], [5, 35]]))
    assert found["accuracy"] == pytest.approx(0.85)
    assert found["f1"] == pytest.approx(70 / 85)
    assert found["matthews"] == pytest.approx(1700 / (45 * 40 * 60 * 55) ** 0.5)


def test_three_labels_by_hand() -> None:
    """scikit-learn's example for matthews_corrcoef of three classes: labels 0 0 1 1 2 2, guesses 0 1 1 1 2 0."""
    counts = np.zeros((3, 3), dtype=int)
    for label, guess in zip([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0], strict=True):
        counts[label, guess] += 1
    found = scores(counts)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["f1"] == pytest.approx((2 / 4 + 4 / 5 + 2 / 3) / 3)
    assert found["matthews"] == pytest.approx((6 * 4 - (2 * 2 + 2 * 3 + 2 * 1)) / ((36 - 14) * (36 - 12)) ** 0.5)


def test_perfect_reversed_and_constant_guesses() -> None:
    assert scores(np.diag([3, 4])) == {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}
    assert scores(np.array([[0, 3], [4, 0]])) == {"accuracy": 0.0, "f1": 0.0, "matthews": -1.0}
    assert scores(np.array([[0, 3], [0, 7]]))["matthews"] == 0.0
    assert scores(np.zeros((2, 2), dtype=int)) == {"accuracy": 0.0, "f1": 0.0, "matthews": 0.0}
