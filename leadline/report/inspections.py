"""An inspection as a page: the verdict in words, then what was measured, layer by layer, with the theory over it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from leadline.diagnose import fitted, theory
from leadline.diagnose.connection import by_stack
from leadline.diagnose.inspection import Inspection
from leadline.diagnose.record import QUANTITIES, Record, spread
from leadline.diagnose.verdict import COLLAPSE_AFTER, ENDURES, STEPS, features, probability, score
from leadline.options import flat
from leadline.report.page import Chart, Section, Series, Table, Words, sentence


def sections_of(inspection: Inspection) -> list[Section]:
    return [
        *_words(inspection),
        *_findings(inspection),
        *_rates(inspection),
        _hidden(inspection),
        _gradients(inspection),
        *_depths(inspection),
        _diversity(inspection),
        _norm_inputs(inspection),
        _connections(inspection),
        Table("Facts", ["what", "value"], [[key, value] for key, value in flat(inspection.facts).items()], folded=True),
        Table("Quantities", ["name", "meaning"], list(map(list, QUANTITIES.items())), folded=True),
    ]


def _words(inspection: Inspection) -> list[Section]:
    v = inspection.verdict
    chance = f"At lr {v.rate:g} with warm-up {v.warmup}, the probability of learning is {v.probability:.2f}."
    said = [sentence(v.answer), chance, *([sentence(fitted.hint(v.outside))] if v.outside else [])]
    verdict = Words(inspection.name, said, "good" if v.trains else "bad")
    why = Words("Why", [sentence(line) for line in v.evidence])
    if not v.remedies:
        return [verdict, why]
    moved = [] if v.trains else [f"In the first step the residual stream changes most from {v.where} on."]
    steps = [f"{number}. {line}" for number, line in enumerate(v.remedies, 1)]
    return [verdict, why, Words("What to change, the smallest change first", [*steps, *moved], "warning")]


def _findings(inspection: Inspection) -> list[Section]:
    rows = [[f.severity, f.name.replace("_", " "), f.where, f.places, f.message] for f in inspection.findings]
    return [Table("Wrongly coded or unusual", ["", "what", "where", "places", "in words"], rows)] if rows else []


def _of_rate(inspection: Inspection, rate: float) -> list[Record]:
    return [r for r in inspection.records if r.rate == rate]


def _before(inspection: Inspection) -> list[Record]:
    return [r for r in inspection.records if r.step == 0]


def _rates(inspection: Inspection) -> list[Section]:
    rates = sorted({r.rate for r in inspection.records if r.rate})
    seeds = sorted({r.seed for r in inspection.records})
    chances: list[list[float]] = []
    changes: list[list[float]] = []
    for rate in rates:
        tried = _of_rate(inspection, rate)
        rows = [[r for r in tried if r.seed == seed] for seed in seeds]
        before = [[r for r in _before(inspection) if r.seed == seed] for seed in seeds]
        pairs = [(b, r) for b, r in zip(before, rows, strict=True) if r]
        chances.append([probability(score(features(b, r))) for b, r in pairs])
        changes.append([r.value for r in tried if r.quantity == "output_change" and r.step == 1])
    caption = f"Each rate was tried for {STEPS} steps from the same weights, which were then put back."
    if rates and rates[-1] > (limit := fitted.limit(inspection.facts)):
        caption += f" Above {limit:g} the probability says nothing: no model that it was fitted on has its edge there."
    if rises := inspection.facts.get("rises_again"):
        caption += f" At {rises:.2g} the loss rises again within {ENDURES} steps, whatever the probability."
    learning = _spread_series("probability of learning", rates, chances)
    first = _spread_series("‖ΔF‖, first step", rates, changes)
    x = "learning rate"
    return [
        Chart("Whether it learns, by learning rate", x, "probability", [learning], log_x=True, caption=caption),
        Chart("How far the first step moves the output", x, "‖ΔF‖ / ‖F‖", [first], log_x=True, log_y=True),
    ]


def _spread_series(name: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    """Mean over seeds, with a band of one standard deviation where there are several."""
    kept = [(at, spread(each)) for at, each in zip(x, values, strict=True) if each]
    mean = [m for _, (m, _) in kept]
    several = any(len(each) > 1 for each in values)
    low = [m - s for _, (m, s) in kept] if several else None
    high = [m + s for _, (m, s) in kept] if several else None
    return Series(name, [at for at, _ in kept], mean, low, high, "line" if len(kept) > 1 else "points", name)


def _by_position(records: Sequence[Record], quantity: str) -> dict[int, list[float]]:
    values: dict[int, list[float]] = defaultdict(list)
    for r in records:
        if r.quantity == quantity and math.isfinite(r.value):
            values[r.position].append(r.value)
    return values


def _profile(inspection: Inspection, quantity: str, records: Sequence[Record]) -> list[Series]:
    values = _by_position(records, quantity)
    return [
        _spread_series(stack, [i + 1 for i, _ in kept], [values[c.position] for _, c in kept])
        for stack, members in by_stack(inspection.connections).items()
        if (kept := [(i, c) for i, c in enumerate(members) if values.get(c.position)])
    ]


def _hidden(inspection: Inspection) -> Chart:
    """The stream's norm over √d against Lemma 2."""
    before = _before(inspection)
    values, branches = _by_position(before, "hidden_norm"), _by_position(before, "branch_norm")
    series: list[Series] = []
    for stack, members in by_stack(inspection.connections).items():
        root = math.sqrt(members[0].dim)
        x = [i + 1 for i in range(len(members))]
        series.append(_spread_series(stack, x, [[v / root for v in values[c.position]] for c in members]))
        if members[0].placement == "Pre-LN" and values.get(first_at := members[0].position) and branches.get(first_at):
            first, branch = spread(values[members[0].position])[0], spread(branches[members[0].position])[0]
            entered = max(first**2 - branch**2, 0.0) / members[0].dim  # the lemma's inputs have squared norm d
            per_layer = max(len(members) / max(sum(c.sublayer == "feed-forward" for c in members), 1), 1)
            bounds = [theory.pre_ln_squared_norm(round(i / per_layer), members[0].dim) for i in x]
            for name, squared in zip(("lower", "upper"), zip(*bounds, strict=True), strict=True):
                y = [math.sqrt(entered - 1 + size / members[0].dim) for size in squared]
                series.append(Series(name, x, y, style="dashes", group=f"{stack}: Lemma 2, bounds"))
        elif members[0].placement == "Post-LN":
            y = [math.sqrt(theory.post_ln_squared_norm(c.dim) / c.dim) for c in members]
            series.append(Series(f"{stack}: Lemma 2 (feed-forward)", x, y, style="dashes"))
    caption = "After each addition, before any norm; 1 is the norm of a normalised token. Xiong et al. 2020, Lemma 2."
    return Chart("Stream, layer by layer", "residual connection, from the input", "‖x‖ / √d", series, caption=caption)


def _gradients(inspection: Inspection) -> Chart:
    """The gradient of each feed-forward's last matrix, over that of the last layer, against appendix F."""
    series: list[Series] = []
    before = [r for r in _before(inspection) if r.quantity == "grad_norm_of_mean"]
    by_weight: dict[str, list[float]] = defaultdict(list)
    for r in before:
        by_weight[r.where].append(r.value)
    for stack, members in by_stack(inspection.connections).items():
        layers = [c for c in members if c.sublayer == "feed-forward" and c.weights and by_weight.get(c.weights[-1])]
        if len(layers) < 2:
            continue
        last = spread(by_weight[layers[-1].weights[-1]])[0] or 1.0
        x = [i + 1 for i in range(len(layers))]
        series.append(_spread_series(stack, x, [[v / last for v in by_weight[c.weights[-1]]] for c in layers]))
        kind = {"Post-LN": "post_ln", "Pre-LN": "pre_ln"}.get(layers[0].placement)
        if kind:
            profile = theory.post_ln_gradient_profile if kind == "post_ln" else theory.pre_ln_gradient_profile
            series.append(Series(f"{stack}: appendix F", x, profile(len(layers)), style="dashes"))
            y = theory.one_position_gradient_profile(kind, len(layers))  # type: ignore[arg-type]
            series.append(Series(f"{stack}: all factors kept", x, y, style="dashes"))
    caption = (
        "Norm of the mean gradient of the last feed-forward matrix, over that of the last layer. Dashes: Xiong et al. "
        "2020, appendix F, and what its equations give when no factor is dropped (docs/theory.md)."
    )
    return Chart("Gradients, layer by layer", "layer, from the input", "gradient / that of the last layer", series,
                 log_y=True, caption=caption)  # fmt: skip


def _depths(inspection: Inspection) -> list[Section]:
    """The gradient of the last layer against depth, if several depths were measured."""
    norms: dict[int, list[float]] = defaultdict(list)
    for r in inspection.records:
        if r.quantity == "last_gradient":
            norms[r.position].append(r.value)
    if len(norms) < 2:
        return []
    x = sorted(norms)
    measured = _spread_series("measured", x, [norms[at] for at in x])
    first = spread(norms[x[0]])[0]
    flat = Series("Theorem 1, Post-LN: flat", x, [first] * len(x), style="dashes")
    falling = Series("Theorem 1, Pre-LN: 1/√L", x, [first * math.sqrt(x[0] / at) for at in x], style="dashes")
    caption = "Gradient of the last feed-forward matrix at initialisation, by the number of layers in the stack."
    series = [measured, flat, falling]
    return [
        Chart("Depth", "layers in the last stack", "gradient norm", series, log_x=True, log_y=True, caption=caption)
    ]


def _diversity(inspection: Inspection) -> Chart:
    series = []
    start = _by_position(_before(inspection), "diversity")
    x = [c.position + 1 for c in inspection.connections]
    series.append(_spread_series("before training", x, [start.get(c.position, []) for c in inspection.connections]))
    for rate in sorted({r.rate for r in inspection.records if r.rate}):
        after = [r for r in _of_rate(inspection, rate) if r.step == COLLAPSE_AFTER]
        values = _by_position(after, "diversity")
        if values:
            series.append(
                _spread_series(f"lr {rate:.2g}", x, [values.get(c.position, []) for c in inspection.connections])
            )
    caption = (
        f"After {COLLAPSE_AFTER} steps. 1: the tokens have nothing in common; 0: all are the same, and nothing is left "
        f"to learn from."
    )
    return Chart("How different the tokens stay", "residual connection, from the input", "diversity of the tokens",
                 series, log_y=True, caption=caption)  # fmt: skip


def _norm_inputs(inspection: Inspection) -> Chart:
    series = _profile(inspection, "norm_input", _before(inspection))
    caption = "The Jacobian of a layer norm is √d/‖x − mean‖ (Lemma 3): large inputs shrink the gradient."
    x_label = "residual connection, from the input"
    return Chart("Input of the norms", x_label, "‖x‖ / √d", series, caption=caption)


def _connections(inspection: Inspection) -> Table:
    columns = ["", "module", "sublayer", "placement", "α on skip", "scale on branch"]
    columns += ["norms before/in/after branch/after add"]
    rows = [
        [c.position + 1, c.where, c.sublayer, c.placement, f"{c.skip_scale:.4g}", f"{c.branch_scale:.4g}",
         f"{c.before}/{c.within}/{c.after_branch}/{c.after_add}"]
        for c in inspection.connections
    ]  # fmt: skip
    return Table("Residual connections", columns, rows, folded=True)
