"""Documents: how text becomes them, and one clear sentence where it cannot."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import sys
from pathlib import Path

import pytest

from leadline.config import DataConfig
from leadline.data import documents, python_docs, remembered
from leadline.data.python_docs import prose
from leadline.data.sources import open_source
from leadline.data.store import prepare
from leadline.data.text import lines_of
from leadline.errors import UserError


def read(path: Path) -> list[list[str]]:
    """The paragraphs of each document."""
    found: list[list[str]] = []
    for number, text in open_source(DataConfig(source=f"documents:{path}")).paragraphs():
        if number == len(found):
            found.append([])
        assert number == len(found) - 1
        found[-1].append(text)
    return found


def refusal(path: Path, tmp_path: Path) -> str:
    """The one sentence with which it cannot be prepared; nothing that looks like data is left behind."""
    out = tmp_path / "prepared"
    with pytest.raises(UserError) as error:
        prepare(DataConfig(source=f"documents:{path}", vocab_size=30), out)
    assert not out.exists()
    assert not re.search(r"\n|[.!?] [A-Z]", str(error.value))
    return str(error.value)


def test_blank_lines_separate_documents_and_empty_ones_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\n\n \t\none\ntwo\n\n\n\n\u3000\nthree\n= no title =\n\n")
    assert read(tmp_path / "a") == [["one", "two"], ["three", "= no title ="]]


@pytest.mark.parametrize("blank", ["", "\n"])
def test_titles_separate_documents_where_a_file_begins_with_one(tmp_path: Path, blank: str) -> None:
    text = f"{blank}= A =\n{blank}one\n{blank}= = Part = =\ntwo\n\n== More ==\n= A = B =\n{blank}x = y\n"
    (tmp_path / "a").write_text(text)
    assert read(tmp_path / "a") == [["A", "one", "Part", "two", "More"], ["A = B", "x = y"]]


def test_a_folder_is_read_in_the_order_of_its_names_whatever_the_compression(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"b"))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"= T =\na"))
    (tmp_path / "sub" / "c").write_text("c\n\nd")
    (tmp_path / "empty").write_text("")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read(tmp_path) == [["T", "a"], ["b"], ["c"], ["d"]]


def test_the_fingerprint_changes_with_the_text_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\n\ntwo")
    source = open_source(DataConfig(source=f"documents:{path}"))
    before = source.fingerprint()
    os.utime(path, (1, 1))
    assert source.fingerprint() == before
    path.write_text("one\n\ntwO")
    assert source.fingerprint() != before


def test_one_enormous_line_is_several_paragraphs_and_nothing_is_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "LONGEST", 50)
    words = [f"wörd{i}" for i in range(200)] + ["ü" * 200, "end"]
    (tmp_path / "a").write_text(" ".join(words) + "\nnext\n", encoding="utf-8")
    ((*pieces, last),) = read(tmp_path / "a")
    assert last == "next"
    assert "".join(pieces) == " ".join(words)
    assert max(len(piece.encode()) for piece in pieces) < 100
    assert all(piece.endswith(" ") for piece in pieces[:10])


def test_lines_are_the_same_in_pieces_of_any_size(tmp_path: Path) -> None:
    text = "\ufeffa bü\n\n" + "€" * 30 + "\r\nlast line without an end"
    (tmp_path / "a").write_bytes(text.encode())
    whole = list(lines_of(tmp_path / "a"))
    assert whole == ["a bü", "", "€" * 30, "last line without an end"]
    for longest in (4, 7, 64):
        assert "".join(lines_of(tmp_path / "a", longest)) == "".join(whole)


@pytest.mark.parametrize(("longest", "byte"), [(-1, 103), (20, 103)])
def test_invalid_utf8_is_refused_with_its_place(tmp_path: Path, monkeypatch, longest: int, byte: int) -> None:
    monkeypatch.setattr(documents, "LONGEST", longest)
    (tmp_path / "a").write_bytes(b"one\n\n" + b"two " * 25 + b"abc\xff d\n")
    message = refusal(tmp_path / "a", tmp_path)
    assert f"{tmp_path}/a, line 3: not valid UTF-8" in message
    assert f"at byte {byte}" in message


def test_what_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("")
    (tmp_path / "blank").write_text(" \n\n\t\n")
    (tmp_path / "single").write_text("one\ntwo")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"one\n\ntwo\n" * 1000)[:-20])
    assert f"{tmp_path}/nowhere does not exist" in refusal(tmp_path / "nowhere", tmp_path)
    assert f"the folder {tmp_path}/folder holds no files" in refusal(tmp_path / "folder", tmp_path)
    assert f"{tmp_path}/empty has no text" in refusal(tmp_path / "empty", tmp_path)
    assert f"{tmp_path}/blank has no text" in refusal(tmp_path / "blank", tmp_path)
    assert "is a single document" in refusal(tmp_path / "single", tmp_path)
    assert f"{tmp_path}/cut.gz is damaged" in refusal(tmp_path / "cut.gz", tmp_path)


def test_python_carries_prose_that_is_read_without_importing_it(monkeypatch) -> None:
    some = {"antigravity", "this", "turtle", "asyncio", "argparse"}  # all of them take seconds to parse
    monkeypatch.setattr(sys, "stdlib_module_names", some)
    before = set(sys.modules)
    found = list(open_source(DataConfig(source="builtin:python-docs")).paragraphs())
    assert not {"antigravity", "this", "turtle", "pydoc_data.topics"} & (set(sys.modules) - before)
    assert sum(len(text) for _, text in found) > 200_000
    assert found[-1][0] > 60
    assert any("event loop" in text for _, text in found)
    assert any("Assert statements are a convenient way" in text for _, text in found)


def test_prose_is_without_code_and_rules() -> None:
    text = "A title\n*******\n\nSome text that\nis wrapped.\n\n   code = 1\n\n>>> 1\n1\n\nrule ::= x\n\n* an item\n"
    assert list(prose(text)) == ["A title", "Some text that is wrapped.", "* an item"]


class TestHub:
    """hf-documents:NAME_OR_PATH"""

    def saved(self, tmp_path: Path, rows: list[dict]) -> str:
        datasets = pytest.importorskip("datasets")
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "saved")
        return f"hf-documents:{tmp_path / 'saved'}"

    def test_a_row_is_a_document_and_a_line_a_paragraph(self, tmp_path: Path) -> None:
        source = self.saved(tmp_path, [{"text": "a b\n\n  c\r\n"}, {"text": " \n"}, {"text": None}, {"text": "d"}])
        assert list(open_source(DataConfig(source=source)).paragraphs()) == [(0, "a b"), (0, "  c"), (1, "d")]

    def test_without_the_column_it_is_refused(self, tmp_path: Path) -> None:
        source = self.saved(tmp_path, [{"content": "a"}])
        with pytest.raises(UserError, match="has no column text, only content"):
            open_source(DataConfig(source=source))


def test_pythons_documentation_is_parsed_once_to_know_it(
    tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {'a': 'A topic that is prose.'}")
    (tmp_path / "ast.py").write_text('"""A module that has one line."""')
    monkeypatch.setattr(remembered, "SETTLED", -1.0)
    known = python_docs.PythonDocs(DataConfig())
    assert [text for _, text in known.paragraphs()] == ["A topic that is prose.", "A module that has one line."]
    with monkeypatch.context() as once:
        first = known.fingerprint()
        once.setattr(python_docs, "_parsed", lambda path: pytest.fail("parsed again"))
        assert python_docs.PythonDocs(DataConfig()).fingerprint() == first
    (tmp_path / "ast.py").write_text('"""Another module, of another length."""')
    assert python_docs.PythonDocs(DataConfig()).fingerprint() != first
