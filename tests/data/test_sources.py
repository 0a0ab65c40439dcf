"""data.source as a value: one table of kinds, and one sentence where it is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.config import Config, DataConfig
from leadline.data.sources import FORMS, KINDS, Source, open_source, parse
from leadline.data.store import prepare
from leadline.errors import UserError
from leadline.training.run import absolute


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_as_it_is_written(kind: str) -> None:
    text = f"{kind}:some/place: of mine" if KINDS[kind].place else kind
    source = parse(text)
    assert source == Source(kind, "some/place: of mine" if KINDS[kind].place else "")
    assert str(source) == text
    assert source.holds in FORMS or kind in ("prepared", "imported")


@pytest.mark.parametrize(
    "name", ["numerals", "builtin:words", "builtin:numerals:x", "csv:folder", "", *(f"{k}:" for k in KINDS), "text: "]
)
def test_an_unknown_source_or_an_empty_place_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UserError) as error:
        prepare(DataConfig(source=name))
    assert repr(name) in str(error.value)
    for kind in ("builtin:numerals", "text:FOLDER", "hf:NAME", "documents:PATH", "table:PATH", "prepared:FOLDER"):
        assert kind in str(error.value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].place])
def test_a_place_is_made_absolute(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine#part").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    config = absolute(Config().set(data={"source": f"{kind}:mine#part"}))
    assert config.data.source == f"{kind}:{tmp_path / 'mine#part'}"


def test_the_name_of_a_dataset_is_not_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in ("hf:wmt/wmt14#de-en", "builtin:numerals"):
        assert absolute(Config().set(data={"source": source})).data.source == source


def test_an_imported_run_says_that_it_has_no_data() -> None:
    with pytest.raises(UserError, match=r"was imported from /a/bert and has no data: .* data.source=documents:PATH"):
        open_source(DataConfig(source="imported:/a/bert"))
