"""No bit of prepared data changes unnoticed, and whatever a manifest says, the answer is one sentence."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.config import DataConfig
from leadline.data import manifest, remembered
from leadline.data.store import Store, prepare
from leadline.errors import UserError

pytestmark = pytest.mark.usefixtures("fresh_cache")
Make = Callable[[str], DataConfig]


@pytest.fixture
def make(corpus: Callable[..., DataConfig], tmp_path: Path) -> Make:
    """A small config of each form of data."""

    def _make(holds: str) -> DataConfig:
        if holds == "pairs":
            return corpus()
        if holds == "documents":
            (tmp_path / "text").write_text("\n\n".join(f"This is {i}. It was {i}." for i in range(40)))
            return DataConfig(source=f"documents:{tmp_path / 'text'}", vocab_size=40, valid_every=5)
        rows = "".join(f"the {i}\ta {i}\t{i % 2}\n" for i in range(40))
        (tmp_path / "x.tsv").write_text("sentence1\tsentence2\tlabel\n" + rows)
        return DataConfig(source=f"table:{tmp_path / 'x.tsv'}", vocab_size=24, holdout=5)

    return _make


def flip(path: Path, byte: int, bit: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[byte] ^= 1 << bit
    path.write_bytes(bytes(contents))


def is_as(folder: Path, before: dict[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / "manifest.json").read_bytes()) == before)
    except ValueError:
        return False


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        Store(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("holds", ["pairs", "documents", "examples"])
def test_a_flipped_bit_anywhere_is_one_sentence(make: Make, tmp_path: Path, holds: str) -> None:
    folder, rng = prepare(make(holds), tmp_path / "data"), random.Random(0)
    before = Store(folder).manifest
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for _ in range(60 if path.name == "manifest.json" else 3):
            flip(path, rng.randrange(len(whole)), rng.randrange(8))
            if path.name != "manifest.json" or not is_as(folder, before):  # JSON reads some flips the same
                assert re.search(rf"{folder}.* prepare", refusal(folder))
            path.write_bytes(whole)
    assert Store(folder).manifest == before


@pytest.mark.parametrize("damage", ["truncate", "delete"])
def test_a_file_that_is_cut_or_gone_is_named(make: Make, tmp_path: Path, damage: str) -> None:
    folder = prepare(make("pairs"), tmp_path / "data")
    shard = folder / "train-00000.tokens.npy"
    shard.write_bytes(shard.read_bytes()[:50]) if damage == "truncate" else shard.unlink()
    assert f"{shard} is damaged" in refusal(folder)


def test_what_was_verified_is_not_read_again_and_what_changed_is(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(remembered, "SETTLED", -60)  # files are trusted at once
    folder = prepare(make("pairs"), tmp_path / "data")
    hashed: list[Path] = []
    sha256 = manifest.sha256
    monkeypatch.setattr(manifest, "sha256", lambda path: hashed.append(path) or sha256(path))
    Store(folder)
    assert len(hashed) == len(Store(folder).manifest["sha256"])
    flip(folder / "train-00000.tokens.npy", -1, 0)
    assert "train-00000.tokens.npy is damaged" in refusal(folder)


def test_on_request_everything_is_read_again(make: Make, tmp_path: Path, monkeypatch, leadline) -> None:
    monkeypatch.setattr(remembered, "SETTLED", -60)
    monkeypatch.setattr(remembered, "_times", lambda files: [[1, 1, 1] for _ in files])  # a disk that rots
    folder = prepare(make("pairs"), tmp_path / "data")
    Store(folder)
    assert leadline("data", "check", str(folder)).code == 0
    flip(folder / "valid-00000.ends.npy", -1, 0)
    Store(folder)
    answer = leadline("data", "check", str(folder))
    assert answer.code == 2
    assert answer.err.startswith(f"leadline: {folder}/valid-00000.ends.npy is damaged")


@pytest.mark.parametrize("name", ["train-00000.tokens.npy", "manifest.json", "tokenizer.json"])
@pytest.mark.parametrize("out", [None, "chosen"])
def test_damaged_data_whose_text_is_there_is_prepared_again(make: Make, tmp_path: Path, name: str, out) -> None:
    config, where = make("pairs"), out and tmp_path / out
    folder = prepare(config, where)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    place = whole[name].index(b'"checksum": "') + 20 if name == "manifest.json" else -3
    flip(folder / name, place, 0)
    said: list[str] = []
    assert prepare(config, where, lambda what, done: said.append(what)) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert any(f"{folder / name} is damaged" in what for what in said)


WRONG: list[dict[str, Any]] = [
    {"key": 3}, {"data": []}, {"data": {"size": "many"}}, {"splits": []}, {"splits": {"train": None}},
    {"splits": {"train": {}}}, {"vocab_size": "8"}, {"vocab_size": None}, {"holds": "songs"}, {"holds": []},
    {"sha256": []}, {"sha256": {"../x": ""}}, {"sha256": {"train-00000.tokens.npy": 3}}, {"notes": "x"}, {"labels": 1},
    {"format": "1"}, {"more": 1},
    {"splits": {"train": {"rows": 1, "shards": 10**9, "tokens": [1, 1], "empty_left_out": 0}}},
    {"splits": {"train": {"rows": 1, "shards": 1, "tokens": 2, "empty_left_out": 0}}},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_a_manifest_that_makes_no_sense_is_one_sentence(make: Make, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = prepare(make("pairs"), tmp_path / "data")
    facts = json.loads((folder / "manifest.json").read_text())
    del facts["checksum"]  # as those of earlier versions
    (folder / "manifest.json").write_text(json.dumps(facts))
    Store(folder)
    (folder / "manifest.json").write_text(json.dumps(facts | change))
    refusal(folder)


def test_a_manifest_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "is not prepared data" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}', "[" * 10_000, "\udcff"])
def test_a_vocabulary_that_is_no_tokenizer_is_one_sentence(make: Make, tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    config = dataclasses.replace(make("pairs"), vocabulary=str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer") as error:
        prepare(config)
    assert "\n" not in str(error.value)
