"""What `leadline explain` says of numbers whose fault is known, and of those that are only noisy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leadline
from leadline import UserError
from leadline.alarm import Seer
from leadline.diagnose.explain import explain
from leadline.history import Row
from leadline.report import explanations
from leadline.report.page import Chart

LAYERS = ["a.attn", "a.mlp", "b.attn", "b.mlp", "embeddings", "norms"]
AT = 60  # the update at which the fault begins


def rows(count: int = 110, noise: float = 0.03, seed: int = 0) -> list[Row]:
    """A training without a fault."""
    rng = np.random.default_rng(seed)
    result: list[Row] = []
    for update in range(1, count + 1):
        factor = lambda: float(np.exp(noise * rng.normal()))  # noqa: E731
        grads = [0.3 * factor() * factor() for _ in LAYERS]
        lr = 1e-3 * min(1.0, update / 20)
        steps = [lr * 20 * factor() for _ in LAYERS]
        pulse = [grads, steps, [10.0] * len(LAYERS), [0.0] * len(LAYERS)]
        result.append(
            {
                "update": update, "lr": lr, "loss": (1 + 3 * math.exp(-update / 40)) * factor(),
                "grad_norm": math.hypot(*grads), "layers": LAYERS, "pulse": pulse,
                "epoch": 0, "batch": update - 1, "rows": [[update, 1000 + update]],
            }
        )  # fmt: skip
    return result


def scale(row: Row, quantity: int, by: float) -> None:
    row["pulse"][quantity] = [value * by for value in row["pulse"][quantity]]
    row["grad_norm"] = math.hypot(*row["pulse"][0])


def bad_batch(row: Row) -> None:
    if row["update"] == AT:
        row["loss"] *= 2
        scale(row, 0, 2)


def data(row: Row) -> None:
    if row["update"] >= AT:
        row["loss"] *= 1 + math.exp((AT - row["update"]) / 20)
        scale(row, 0, 1.5)


def labels(row: Row) -> None:
    if row["update"] >= AT:
        row["loss"] *= 2
        scale(row, 0, 1.5 if row["update"] < AT + 5 else 0.6)


def rate(row: Row) -> None:
    if row["update"] >= AT:
        row["lr"] *= 10
        scale(row, 1, 10)


def written(row: Row) -> None:
    if row["update"] == AT:
        row["pulse"][3][3] = 0.9
        row["loss"] *= 1.5


def embedding(row: Row) -> None:
    if row["update"] == AT:
        row["pulse"][3][4] = 0.02


def precision(row: Row) -> None:
    if row["update"] >= AT:
        row["pulse"][3] = [1.6e-3] * len(LAYERS)


def loss_scale(row: Row) -> None:
    if row["update"] >= AT:
        scale(row, 0, 64)


def moments(row: Row) -> None:
    if AT <= row["update"] < AT + 10:
        scale(row, 1, 3)


def epsilon(row: Row) -> None:
    if row["update"] >= AT:
        scale(row, 1, 0.2)


def not_finite(row: Row) -> None:
    if row["update"] >= AT:
        row["loss"] = None


FAULTS: list[tuple[Callable[[Row], None], str, str]] = [
    (bad_batch, "bad_batch", ""), (data, "data", ""), (labels, "labels", ""), (rate, "rate", ""),
    (written, "weights", "b.mlp"), (embedding, "embedding", "embeddings"), (precision, "precision", ""),
    (loss_scale, "loss_scale", ""), (moments, "moments", ""), (epsilon, "epsilon", ""), (not_finite, "not_finite", ""),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "kind", "where"), FAULTS, ids=[kind for _, kind, _ in FAULTS])
def test_the_fault_is_named_with_its_place_and_update(fault: Callable[[Row], None], kind: str, where: str) -> None:
    measured = rows()
    for row in measured:
        fault(row)
    explanation = explain(measured)
    first = explanation.causes[0]
    assert (first.kind, first.where, first.update) == (kind, where, AT)
    assert f"since update {AT}" in str(explanation).splitlines()[0]
    assert "to do: " in str(explanation)
    assert "\n" not in first.message + first.remedy


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_noise_is_no_fault(noise: float) -> None:
    for seed in range(5):
        explanation = explain(rows(noise=noise, seed=seed))
        assert explanation.verdict == "no sudden fault", explanation.causes
        assert not explanation.healthy
        assert "no sudden fault" in str(explanation)
        assert "nobody looked into the model" in str(explanation)  # which is not said to be healthy
        assert "healthy" not in str(explanation)


def test_a_training_that_was_killed_before_its_first_number_has_measured_nothing() -> None:
    """The recorder has the batches of updates that had begun; on a GPU those of a hundred."""
    with pytest.raises(UserError, match="has measured nothing yet"):
        explain([{"update": 1, "epoch": 0, "batch": 0, "rows": [[1]], "lr": 0.1}])


def test_a_bad_batch_is_named_by_its_rows() -> None:
    measured = rows()
    for row in measured:
        bad_batch(row)
    assert f"batch {AT - 1} of epoch 0, rows {AT}, {1000 + AT}" in explain(measured).causes[0].message


def look(update: int, **values: float) -> Row:
    named = {"norm_input": 2.0, "norm_output": 1.0, "diversity": 0.8, "logits": 3.0} | values
    return {"update": update} | {f"watch/{quantity}/b.attn": value for quantity, value in named.items()}


@pytest.mark.parametrize(
    ("kind", "values"),
    [("norm", {"norm_output": 2.0}), ("collapse", {"diversity": 0.01}), ("logits", {"logits": 900.0})],
)
def test_what_only_looks_show(kind: str, values: dict[str, float]) -> None:
    looks = [look(update, **(values if update >= 80 else {})) for update in range(10, 111, 10)]
    (cause,) = explain(rows(), looks).causes
    assert (cause.kind, cause.where) == (kind, "b.attn")
    assert explain(rows(), looks).verdict == "fault"
    assert 70 < cause.update <= 80
    page = explanations.sections_of(explain(rows(), looks))
    charts = [section.title for section in page if isinstance(section, Chart)]
    assert charts[:4] == ["How much tokens differ", "What enters the norms", "Largest attention logit", "Loss"]
    looked = explain(rows(), [look(update) for update in range(10, 111, 10)])
    assert looked.healthy
    assert looked.verdict == "healthy"
    assert "healthy" in str(looked)


def test_what_the_model_learns_in_ten_updates_is_not_one_bad_batch() -> None:
    """Padding whose labels count, say: the loss of the batches after it is high as well."""
    measured = rows()
    for row in measured:
        row["loss"] *= 1 + 1.3 * math.exp((AT - row["update"]) / 4) * (row["update"] >= AT)
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.update) == ("data", AT)


def test_batches_that_are_bad_again_and_again_are_of_the_data() -> None:
    measured = rows()
    for row in measured:
        row["loss"] *= 2 if row["update"] in (AT, 90) else 1
    assert explain(measured).causes[0].kind == "bad_batch"
    for row in measured:
        row["loss"] *= 1.8 if row["update"] in (52, 71, 80) else 1
    assert not explain(measured).causes

    measured = rows()
    for row in measured:  # two near each other are not other data either
        row["loss"] *= {AT: 2.0, AT + 2: 2.2, 76: 2.0, 84: 2.0}.get(row["update"], 1)
    assert not explain(measured).causes


def test_gradients_that_shrink_with_the_loss_are_of_no_other_scale() -> None:
    """The labels are all of one class, say, or are in the inputs."""
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            row["loss"] *= 0.5 ** (row["update"] - AT)
            scale(row, 0, 0.2)
    assert not explain(measured).causes


def test_a_loss_that_may_be_negative_is_not_followed() -> None:
    """A likelihood of densities, say: its logarithm says nothing."""
    measured: list[Row] = []
    for seed in range(8):
        measured, seer, rng = rows(200, seed=seed), Seer(), np.random.default_rng(seed)
        for row in measured:
            row["loss"] = 3 * math.exp(-row["update"] / 60) - 0.5 + 0.1 * float(rng.normal())
        assert not any(seer.see(row) for row in measured)
        assert not explain(measured).causes
    for row in measured:
        rate(row)
    assert [cause.kind for cause in explain(measured).causes] == ["rate"]


def test_settings_that_change_again_and_again_are_no_fault() -> None:
    measured = rows()
    for row in measured:
        beta = 0.85 + 0.001 * row["update"]  # as a cycle has it
        late = row["update"] >= AT
        row["settings"] = {"training": True, "betas": [[beta, 0.9]], "weight_decay": [0.0, 0.1 if late else 0.09]}
    assert not explain(measured).causes
    for row in measured:
        row["settings"]["betas"] = [[0.9, 0.5 if row["update"] >= AT else 0.95]]
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.update) == ("settings", AT)
    assert cause.message == f"since update {AT} the β is (0.9, 0.5) in place of (0.9, 0.95)"


def test_few_batches_again_and_again_are_named_where_there_were_many() -> None:
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            row["rows"] = [[row["update"] % 2]]
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.update) == ("repeated", AT)
    assert "the same 2 batches come" in cause.message
    for row in measured:  # all the data there are
        row["rows"] = [[row["update"] % 2]]
    assert not explain(measured).causes


def test_a_causal_mask_that_is_lost() -> None:
    looks = [look(update, later=0.8 if update >= 80 else 0.0) for update in range(10, 111, 10)]
    (cause,) = explain(rows(), looks).causes
    assert (cause.kind, cause.where, cause.update) == ("mask", "b.attn", 80)
    for late in (5, 200):  # never causal; once, of a batch whose first tokens are padding
        looks = [look(update, later=0.8 if update == 80 or late == 5 else 0.0) for update in range(10, 111, 10)]
        assert explain(rows(), looks).healthy


def test_a_schedule_that_has_ended_and_weights_that_all_stand_still() -> None:
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            row["lr"], row["pulse"][1] = 0.0, [0.0] * len(LAYERS)
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.where, cause.update) == ("still", "", AT)
    assert "the learning rate is 0" in cause.message
    for row in measured:
        row["lr"] = row["lr"] or 1e-3
    cause = next(cause for cause in explain(measured).causes if cause.kind == "still")
    assert cause.message == f"since update {AT} no weights move at all, at a rate of 0.001"


def test_at_another_rate_steps_of_another_size_are_no_fault_of_the_optimizer() -> None:
    """The rate of one parameter group alone: that of the row is the highest."""
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            row["lr"] *= 30
            row["pulse"][1][5] *= 30
    assert [cause.kind for cause in explain(measured).causes] == ["rate"]


def test_a_rate_that_restarts_is_no_fault() -> None:
    measured, seer = rows(), Seer()
    for row in measured:
        times = 0.55 + 0.45 * math.cos(math.pi * (max(0, row["update"] - 20) % 30) / 30)
        row["lr"] *= times
        scale(row, 1, times)
    assert not explain(measured).causes
    assert not any(seer.see(row) for row in measured)
    for row in measured:
        if row["update"] > 80:  # and with it the loss
            row["loss"] *= 3
    cause = explain(measured).causes[0]
    assert (cause.kind, cause.update) == ("rate", 80)


def test_where_numbers_are_not_finite_and_nothing_of_what_comes_after() -> None:
    measured = rows()
    for row in measured:
        if row["update"] == AT:
            row["pulse"][0][1], row["grad_norm"] = None, None
        if row["update"] > AT:
            row["loss"], row["pulse"] = None, [[None] * len(LAYERS)] * 4
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.where, cause.update) == ("not_finite", "a.mlp", AT)
    assert cause.message == f"at update {AT} the gradient of a.mlp is not finite"


@pytest.mark.parametrize("layers", [[2], [2, 3, 4]])
def test_weights_that_have_stopped(layers: list[int]) -> None:
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            for layer in layers:
                row["pulse"][1][layer] = 0.0
    cause = next(cause for cause in explain(measured).causes if cause.kind == "still")
    assert (cause.where, cause.update) == ("b.attn", AT)
    assert ("and of 2 more layers" in cause.message) == (len(layers) > 1)
    for row in measured:  # it never moved: the model was fine-tuned so
        row["pulse"][1][2] = 0.0
    assert all(cause.where != "b.attn" for cause in explain(measured).causes)


# What comes slowly


def fading(row: Row) -> None:
    row["pulse"][2][4] *= 0.95 ** max(0, row["update"] - AT + 1)


def growing(row: Row) -> None:
    row["pulse"][2][2] *= 1.03 ** max(0, row["update"] - AT + 1)


def rounded(row: Row) -> None:
    if row["update"] >= AT:
        row["pulse"][3][1] = 1e-3


def rising_rate(row: Row) -> None:
    times = 1.08 ** max(0, row["update"] - AT + 1)
    row["lr"] *= times
    scale(row, 1, times)


def drift(row: Row) -> None:
    row["loss"] *= 1.03 ** max(0, row["update"] - AT + 1)


SLOW: list[tuple[Callable[[Row], None], str, str, int]] = [
    (fading, "decay", "embeddings", 3), (growing, "growth", "b.attn", 3), (rounded, "precision", "a.mlp", 0),
    (rising_rate, "rate", "", 0), (drift, "drift", "", 20),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "kind", "where", "about"), SLOW, ids=[kind for _, kind, _, _ in SLOW])
def test_a_slow_fault_is_named_with_about_when_it_began(
    fault: Callable[[Row], None], kind: str, where: str, about: int
) -> None:
    measured = rows()
    for row in measured:
        row["pulse"][2][5] = 0.0  # a layer whose weights are all 0, as a bias that is frozen
        fault(row)
    first = explain(measured).causes[0]
    assert (first.kind, first.where) == (kind, where)
    assert abs(first.update - AT) <= about


def test_a_layer_that_shrinks_and_with_it_the_steps_of_all_are_no_lost_moments() -> None:
    measured = rows()
    for row in measured:
        fading(row)
        if AT <= row["update"] < AT + 8:
            scale(row, 1, 1.4)
            row["pulse"][1][4] *= 8
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.where) == ("decay", "embeddings")


def test_weights_written_to_once_do_not_grow_slowly() -> None:
    measured = rows()
    for row in measured:
        if row["update"] >= AT:
            row["pulse"][2][2] *= 8 * 1.01 ** (row["update"] - AT)
        row["pulse"][3][2] = 7.0 * (row["update"] == AT)
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.where, cause.update) == ("weights", "b.attn", AT)


def test_logits_that_grow_with_the_weights_of_their_layer() -> None:
    measured = rows()
    for row in measured:
        growing(row)
    looks = [look(update, logits=3.0 * 1.06 ** max(0, update - AT)) for update in range(5, 111, 5)]
    (cause,) = explain(measured, looks).causes
    assert (cause.kind, cause.where) == ("logits", "b.attn")
    assert abs(cause.update - AT) <= 3


def test_a_norm_that_starves() -> None:
    outputs = {update: 0.93 ** max(0, update - AT) for update in range(5, 111, 5)}
    (cause,) = explain(rows(), [look(update, norm_output=size) for update, size in outputs.items()]).causes
    assert (cause.kind, cause.where) == ("starving", "b.attn")
    assert abs(cause.update - AT) <= 5
    once = {40: 0.98, 45: 0.97, 50: 0.96, 55: 0.95, 60: 0.03, 65: 0.029}  # it was written to
    assert explain(rows(), [look(update, norm_output=size) for update, size in once.items()]).healthy
    slower = [look(50 * update, norm_output=size) for update, size in outputs.items()]  # as trained gains do
    assert explain(rows(), slower).healthy


def test_all_layers_growing_together_and_one_that_begins_at_zero_are_no_fault() -> None:
    measured = rows()
    for row in measured:
        row["pulse"][2] = [10.0 * 1.03 ** row["update"]] * len(LAYERS)
    assert not explain(measured).causes
    for layer in (1, 5):  # the second: gains, or the α of ReZero
        measured = rows()
        for row in measured:
            row["pulse"][2][layer] = 0.05 * row["update"] if layer == 1 else abs(1 - row["update"] / 60)
        assert not explain(measured).causes


def test_norms_by_layer_of_some_updates_only() -> None:
    """As a captured step keeps them."""
    measured = rows()
    for row in measured:
        loss_scale(row)
        row["pulse"] = row["pulse"][:3]
        if row["update"] % 50:
            del row["pulse"], row["layers"]
    (cause,) = explain(measured).causes
    assert (cause.kind, cause.update) == ("loss_scale", AT)
    seer = Seer()
    assert [row["update"] for row in measured if seer.see(row)] == [AT]


# Around it


def test_metrics_alone_say_what_they_can() -> None:
    """Of a run without a recorder, such as one of an earlier version."""
    kept = [{key: row[key] for key in ("update", "loss", "lr", "grad_norm")} for row in rows()]
    assert not explain([], kept).causes
    kept[AT - 1]["loss"] *= 3
    assert explain([], kept).causes[0].kind == "bad_batch"


def test_it_is_told_while_it_happens() -> None:
    seer, measured = Seer(), rows()
    for row in measured:
        bad_batch(row)
    said = {row["update"]: seer.see(row) for row in measured}
    assert [update for update, messages in said.items() if messages] == [AT]
    assert "2.0 times its usual size" in said[AT][0] or "times its usual size" in said[AT][0]
    collapsed = [Seer().look(look(1, diversity=value)) for value in (0.5, 0.01)]
    assert not collapsed[0]
    assert "almost identical" in collapsed[1][0]


def test_the_command(tmp_path: Path, finished: Path, leadline: Callable[..., Any]) -> None:
    answer = leadline("explain", finished, "--json")
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert (said["verdict"], said["healthy"]) == ("no sudden fault", False)  # nobody looked into it
    folder = tmp_path / "<b>run"
    folder.mkdir()
    measured = rows()
    for row in measured:
        bad_batch(row)
    (folder / "flight.jsonl").write_text("".join(json.dumps(row) + "\n" for row in measured))
    answer = leadline("explain", folder, "--html", tmp_path / "page.html")
    assert answer.out.startswith(f"<b>run: a bad batch, since update {AT} (updates 1 to 110)\n")
    assert "▁" in answer.out
    page = (tmp_path / "page.html").read_text()
    assert "a bad batch" in page
    assert "<b>run" not in page
    for wrong in (tmp_path / "nothing", tmp_path):
        refused = leadline("explain", wrong)
        assert refused.code == 2
        assert "\n" not in refused.err.strip()


def test_python_has_it_too() -> None:
    assert leadline.explain is explain
    with pytest.raises(UserError, match="nothing to explain"):
        explain([])
