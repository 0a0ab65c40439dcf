"""`leadline score` says what sacreBLEU's own command says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

Leadline = Callable[..., Any]

ENGLISH = ["The cat sat on the mat.", "It isn't raining (yet)!", "", "Prices rose by 3.5 %, he said."]
WRITTEN = ["the cat sits on the mat.", "It is not raining yet!", "x", "Prices rose 3.5 %, he said."]
CHINESE = ["今天天气很好。", "我们去公园散步吧!"]


@pytest.fixture
def files(tmp_path: Path) -> Callable[[list[str], list[str]], tuple[Path, Path]]:
    def write(hypotheses: list[str], references: list[str]) -> tuple[Path, Path]:
        for name, lines in (("hyp", hypotheses), ("ref", references)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return tmp_path / "hyp", tmp_path / "ref"

    return write


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_and_signatures_are_those_of_sacrebleu(lowercase: bool, leadline: Leadline, files: Any) -> None:
    hyp, ref = files(WRITTEN, ENGLISH)
    scores = json.loads(leadline("score", hyp, ref, "--json", *["--lowercase"] * lowercase).out)
    flags = ["-i", str(hyp), "-m", "bleu", "chrf", "-w", "4", *["-lc"] * lowercase]
    flags += ["--chrf-lowercase"] * lowercase
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", str(ref), *flags], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout)
    for row in theirs:
        name = "bleu" if row["name"] == "BLEU" else "chrf"
        assert round(scores[name], 4) == row["score"]
        assert scores[f"{name}_signature"] == row["signature"]
    assert len(theirs) == 2
    assert scores["sentences"] == 4


def test_chinese_has_its_own_tokenizer(leadline: Leadline, files: Any) -> None:
    files = files(["今天天气不错。", "我们去散步吧!"], CHINESE)
    scores = json.loads(leadline("score", *files, "--lang", "zh", "--json").out)
    hypotheses = files[0].read_text(encoding="utf-8").splitlines()
    assert scores["bleu"] == sacrebleu.corpus_bleu(hypotheses, [CHINESE], tokenize="zh").score > 10
    assert "tok:zh" in scores["bleu_signature"]
    assert "tok:13a" in json.loads(leadline("score", *files, "--json").out)["bleu_signature"]


def test_a_tokenizer_that_is_not_installed_says_how_to_get_it(
    leadline: Leadline, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    answer = leadline("score", *files(CHINESE, CHINESE), "--lang", "ja")
    assert answer.code == 0
    assert "tok:char" in answer.out
    assert "because MeCab and ipadic are not installed: pip install 'sacrebleu[ja]'" in answer.out


def test_a_pipe_can_be_scored(leadline: Leadline, files: Any) -> None:
    _, ref = files(WRITTEN, ENGLISH)
    answer = leadline("score", "-", ref, stdin="\n".join(ENGLISH).encode())
    assert answer.code == 0
    assert "bleu                      100.0000" in answer.out


@pytest.mark.parametrize(("lines", "said"), [(3, "hyp has 3 lines and"), (0, "are empty")])
def test_files_that_do_not_fit_are_one_sentence(lines: int, said: str, leadline: Leadline, files: Any) -> None:
    answer = leadline("score", *files(WRITTEN[:lines], ENGLISH if lines else []))
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
