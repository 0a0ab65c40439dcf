"""Records as a file: what is written is read again, and a damaged line is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from leadline.diagnose.record import QUANTITIES, Record, load, save, spread
from leadline.errors import UserError

SOME = [
    Record("hidden_norm", 1.25, "encoder.layers.0", 3, "encoder", seed=2),
    Record("loss", 6.5, step=4, rate=1e-3),
    Record("diversity", 0.1 + 0.2, "größe.☃ [bold]<b>\n\t\"quoted'"),
]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(SOME, tmp_path / "records.jsonl")
    assert load(tmp_path / "records.jsonl") == SOME


def test_an_iterator_of_none_is_an_empty_file(tmp_path: Path) -> None:
    save(iter([]), tmp_path / "records.jsonl")
    assert (tmp_path / "records.jsonl").read_bytes() == b""
    assert load(tmp_path / "records.jsonl") == []


def test_what_is_not_whole_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    def broken() -> Iterator[Record]:
        yield SOME[0]
        raise KeyboardInterrupt

    save(SOME, tmp_path / "records.jsonl")
    with pytest.raises(KeyboardInterrupt):
        save(broken(), tmp_path / "records.jsonl")
    assert load(tmp_path / "records.jsonl") == SOME
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_line_is_a_json_object_with_every_field(tmp_path: Path) -> None:
    save(SOME, tmp_path / "records.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows == [asdict(record) for record in SOME]
    assert set(rows[0]) == {field.name for field in fields(Record)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_in_the_file_and_nan_again(value: float, tmp_path: Path) -> None:
    save([Record("loss", value, "x"), Record("loss", 1.0)], tmp_path / "records.jsonl")
    text = (tmp_path / "records.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text.splitlines()[0])["value"] is None
    first, second = load(tmp_path / "records.jsonl")
    assert math.isnan(first.value)
    assert (first.where, second) == ("x", Record("loss", 1.0))


def test_a_name_may_hold_a_separator_of_lines(tmp_path: Path) -> None:
    odd = [Record("loss", 1.0, "a\u2028b"), Record("loss", 2.0, "a\x85b"), Record("loss", 3.0, "a\x0cb")]
    save(odd, tmp_path / "records.jsonl")
    assert load(tmp_path / "records.jsonl") == odd


def test_fields_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"quantity": "loss", "value": 2, "colour": "red"}\n')
    assert load(tmp_path / "records.jsonl") == [Record("loss", 2)]


@pytest.mark.parametrize(
    "bad",
    ["{", "", "5", "[]", "null", '{"quantity": "loss"}', '{"value": 1}', '{"quantity": "loss", "value": 1} x'],
)
def test_a_damaged_line_is_named(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    good = json.dumps(asdict(SOME[0]))
    path.write_text(f"{good}\n{good}\n{bad}\n{good}\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        load(path)
    assert str(error.value) == f"{path} line 3 is not a record"


@pytest.mark.parametrize("value", ['"x"', "[1]", "{}"])
def test_a_value_that_is_no_number_is_named(value: str, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(f'{{"quantity": "loss", "value": {value}}}\n')
    with pytest.raises(UserError, match="line 1 is not a record"):
        load(tmp_path / "records.jsonl")


def test_bytes_that_are_no_text_are_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a record"):
        load(tmp_path / "records.jsonl")


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    def some() -> object:
        yield SOME[0]
        raise RuntimeError("on purpose")

    save(SOME, tmp_path / "records.jsonl")
    with pytest.raises(RuntimeError, match="on purpose"):
        save(some(), tmp_path / "records.jsonl")  # type: ignore[arg-type]
    assert load(tmp_path / "records.jsonl") == SOME


def test_every_quantity_is_explained() -> None:
    assert all(meaning and meaning[-1] != "." for meaning in QUANTITIES.values())


def test_spread_is_mean_and_standard_deviation() -> None:
    assert spread([3.0]) == (3.0, 0.0)
    assert spread([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, math.sqrt(5 / 3)))


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, math.inf], [math.inf, 1.0]])
def test_the_spread_of_what_is_not_finite_is_not_finite_either(values: list[float]) -> None:
    mean, deviation = spread(values)
    assert not math.isfinite(mean)
    assert not math.isfinite(deviation)
