"""What a stranger does wrong first is told before any text is prepared, and long work tells how far it is."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.cli import terminal
from leadline.cli.app import stdin_lines

Leadline = Callable[..., Any]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder, names in {
        "pairs": ["train.fr", "train.en", "valid.fr", "valid.en"],
        "one": ["train.fr"],
        "dots": ["train.fr-en.fr", "train.fr-en.en"],
        "brazil": ["train.en.gz", "train.fr.gz", "train.pt-br.gz"],
        "table": ["train.tsv"],
        "empty": [],
    }.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("a b\n" * 9)
    (tmp_path / "lr.toml").write_text("lr = 1e-3")
    (tmp_path / "mine.py").write_text("def make(): ...")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train small_pre_ln", "the folder data does not exist: name yours with --set data.source=text:FOLDER"),
        ("train pairs", "pairs is a folder and neither a run nor a recipe: text is named with --set data.source=text"),
        ("train small_pre_ln --set data.source=pairs", "text:pairs for pairs of sentences"),
        ("train small_pre_ln --set data.source=documents:pairs", "has documents, and translation needs pairs of"),
        ("train small_pre_ln --set data.source=text:one", "the other language of fr is missing (it has train.fr)"),
        ("train small_pre_ln --set data.source=text:dots", "data.source_lang=fr data.target_lang=en"),
        ("train small_pre_ln --set data.source=text:brazil", "data.target_lang (it has en, fr, pt-br)"),
        ("train small_pre_ln --set data.source=text:table", "a table of pairs makes two such files: cut -f1, cut -f2"),
        ("train small_pre_ln --set data.source=text:table/train.tsv", "a table of pairs makes two such files"),
        ("train small_pre_ln --set data.source=text:empty", "(it is empty)"),
        ("train numerals --set data.source_lang=en", "'en'"),
        (
            "train small_pre_ln --set data.source=text:pairs --set data.source_lang=en",
            "are both en: set the other too",
        ),
        ("train small_pre_ln --set data.source=text:pairs --set task=translate", "there is no task 'translate'"),
        ("train small_pre_ln --set data.source=text:pairs --set model.encoder_layers=0", "needs an encoder and a"),
        ("train small_pre_ln --set data.source=text:pairs --set train.device=gpu", "'gpu' is not a device"),
        ("train small_pre_ln --set data.source=text:pairs --watch -1", "--watch must be 0 (off) or the number"),
        ("train small_pre_ln --set train.updates=-5", "train.updates=-5 and train.epochs=0: one must be above 0"),
        ("train small_pre_ln --set train.keep=0", "train.keep must be at least 1, not 0"),
        ("train lr.toml", "lr.toml: there is no key 'lr': did you mean 'optim.lr'?"),
        ("inspect mine", "mine is Python: name the function in it that returns the model, as in mine:make"),
        ("inspect mine.py", "as in mine:make"),
        ("inspect mine.py:make", "names a file: name the module, as in mine:make"),
        ("placements --dim 0", "must be at least 1"),
        ("data show numerals -n -1", "greater than or equal to 1"),
        ("explain pairs/train.fr", "is a file: give the folder of the run"),
    ],
)
def test_it_is_told_before_anything_is_prepared(leadline: Leadline, text: Path, command: str, told: str) -> None:
    answer = leadline(*command.split())
    assert (answer.code, answer.out) == (2, "")
    *progress, line = answer.err.splitlines()
    assert told in line
    assert not [said for said in progress if said.startswith(("learning", "encoding", "looking"))]


def test_a_folder_of_runs_is_called_one(leadline: Leadline, finished: Path) -> None:
    for command in ("evaluate", "explain", "inspect"):
        answer = leadline(command, finished.parent)
        assert answer.code == 2
        assert f"is a folder of runs: name those you mean, such as {finished}" in answer.err


def test_work_is_told_again_while_it_lasts(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with terminal.counting("pairs") as progress:
        for now in (0.0, 4.0, 8.0, 12.0, 16.0, 30.0):  # noqa: B007
            progress("encoding train", 1000)
        progress("encoding valid", 0)
    assert capsys.readouterr().err.splitlines() == [
        "encoding train …", "encoding train: 4,000 pairs so far", "encoding train: 6,000 pairs so far",
        "encoding valid …",
    ]  # fmt: skip
    now = 0.0
    with terminal.sentences_bar(300) as advance:
        for now in (1.0, 11.0, 12.0):  # noqa: B007
            advance(100)
    assert capsys.readouterr().err.splitlines() == ["translating: 200 of 300 sentences"]


def test_an_inspection_tells_what_it_is_doing(leadline: Leadline, text: Path) -> None:
    (text / "small.py").write_text(
        "import torch\n"
        "def make():\n"
        "    layer = torch.nn.TransformerEncoderLayer(8, 2, 16)\n"
        "    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)\n"
        "    return model, torch.randn(4, 2, 8), lambda output, batch: (output - batch).pow(2).mean()\n"
    )
    answer = leadline("inspect", "small:make")
    assert answer.code == 0, answer.err
    said = answer.err.splitlines()
    assert said[:3] == ["making the model …", "finding the residual connections …", "measuring streams and gradients …"]
    assert said[3] == "trying lr 1.0e-03 for 5 steps (rate 1 of at most 6) …"


def test_an_update_that_a_run_does_not_have_is_not_replayed(leadline: Leadline, finished: Path) -> None:
    answer = leadline("replay", finished, "21")
    assert answer.code == 2
    assert "ends after update 20: there is no update 21" in answer.err


def test_a_command_that_waits_for_the_keyboard_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for typed in (True, False):
        stdin = io.TextIOWrapper(io.BytesIO(b"one\n"))
        monkeypatch.setattr(stdin, "isatty", lambda typed=typed: typed)
        monkeypatch.setattr("sys.stdin", stdin)
        assert list(stdin_lines()) == [["one"]]
        assert ("Ctrl-D ends" in capsys.readouterr().err) == typed
