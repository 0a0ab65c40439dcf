"""What `leadline explain` found, as a page: the sentences, then the curves around the update, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.alarm import layer_values
from leadline.diagnose.explain import KINDS, NOT_SEEN, Explanation
from leadline.history import Row, number
from leadline.report.page import Chart, Section, Series, Table, Words, sentence

AROUND = 60  # updates before and after the cause
SEEN_IN_LOOKS = ("collapse", "logits", "norm", "starving")
LOOKS = [
    ("diversity", "How much tokens differ", "1: nothing in common, 0: all the same"),
    ("norm_input", "What enters the norms", "norm over √d"),
    ("logits", "Largest attention logit", "logit"),
]


def sections_of(explanation: Explanation) -> list[Section]:
    rows = [row for row in explanation.rows if "loss" in row]
    if not explanation.causes:
        seen = f"Nothing unusual was found in updates {explanation.facts['first']} to {explanation.facts['last']}."
        title = f"{explanation.name}: {explanation.verdict}"
        if not explanation.healthy:
            return [Words(title, [seen, sentence(NOT_SEEN)], "plain"), *_charts(rows)]
        return [Words(title, [seen], "good"), *_charts(rows), *_looks(explanation.looks)]
    first = explanation.causes[0]
    said = [sentence(first.message), f"To do: {first.remedy}."]
    title = f"{explanation.name}: {KINDS.get(first.kind, first.kind)}"
    others = [[c.update, KINDS.get(c.kind, c.kind), c.where, c.message] for c in explanation.causes[1:]]
    after = (
        [Table("What followed, or came beside it", ["update", "what", "where", "in words"], others)] if others else []
    )
    near = [row for row in rows if abs(row["update"] - first.update) <= AROUND]
    charts = [_charts(near), _looks(explanation.looks)]
    if first.kind in SEEN_IN_LOOKS:
        charts.reverse()
    return [Words(title, said, "bad"), *after, *charts[0], *charts[1]]


def _charts(rows: Sequence[Row]) -> list[Section]:
    updates = [row["update"] for row in rows]
    charts: list[Section] = []
    for key, title in (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("lr", "Learning rate")):
        if any(key in row for row in rows):
            values = [number(row.get(key)) for row in rows]
            charts.append(Chart(title, "update", title.lower(), [Series(title.lower(), updates, values)]))
    layers: list[str] = next((row["layers"] for row in rows if row.get("layers")), [])
    for quantity, title in (("grad", "Gradient by layer"), ("update", "Step by layer"), ("weight", "Weights by layer")):
        by = [layer_values(row, quantity) for row in rows]
        series = [Series(name, updates, [number(values.get(name)) for values in by]) for name in layers]
        if series:
            charts.append(Chart(title, "update", "norm", series, log_y=True))
    return charts


def _looks(looks: Sequence[Row]) -> list[Section]:
    """What only a look into the model shows, of the whole training: what comes slowly began long before it is told."""
    charts: list[Section] = []
    for quantity, title, words in LOOKS:
        start = f"watch/{quantity}/"
        keys = dict.fromkeys(key for look in looks for key in look if key.startswith(start))
        seen = [(key, [look for look in looks if key in look]) for key in keys]
        series = [
            Series(key.removeprefix(start), [row["update"] for row in rows], [number(row[key]) for row in rows])
            for key, rows in seen
        ]
        if series:
            charts.append(Chart(title, "update", words, series, log_y=quantity != "logits"))
    return charts
