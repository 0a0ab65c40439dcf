"""The command line: JSON for programs, one sentence for mistakes, text as it is, answers as they come."""

from __future__ import annotations

import io
import json
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from leadline import config as configuration
from leadline.cli import terminal
from leadline.config import Config
from leadline.data.store import prepare
from leadline.placement import PLACEMENTS, ROLES
from leadline.training.events import Event

Leadline = Callable[..., Any]

MARKUP = ["[bold]x[/bold] [/y] [red]", "<script>alert(1)</script>", "a :heart: b", "50% \\[z] {w}"]


def strict_json(text: str) -> Any:
    """JSON as every program reads it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="session")
def tiny_toml(tiny: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configs") / "tiny.toml"
    path.write_text(configuration.to_toml(tiny), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def marked_up(tiny: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text folder whose lines look like markup, and a config.toml for it."""
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "valid"):
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in MARKUP))
    data = {"source": f"text:{folder}", "vocab_size": 48}
    (folder / "config.toml").write_text(configuration.to_toml(tiny.set(data=data)), encoding="utf-8")
    return folder


# JSON


def test_prepared_data_is_used_as_it_is_or_refused(tiny: Config, leadline: Callable[..., Any], tmp_path: Path) -> None:
    folder = prepare(tiny.set(data={"directions": ("de-en", "en-de"), "vocab_size": 900}).data, tmp_path / "prepared")
    asked = ["data", "show", "numerals", "--set", f"data.source=prepared:{folder}", "--set"]
    assert leadline(*asked, "data.vocab_size=900").code == 0
    for change, was in (("temperature=100", "1.0"), ("tag=target", "'source'"), ("directions=de-en", "'de-en,en-de'")):
        answer = leadline(*asked, f"data.{change}")
        assert answer.code == 2
        name = change.partition("=")[0]
        assert f"--set data.{name}: prepared:{folder} was prepared with {was} and is used so: leave it" in answer.err


def test_placements_gives_a_row_a_stack_as_json(leadline: Leadline) -> None:
    answer = leadline("placements", "--layers", "4", "2", "--json")
    rows = strict_json(answer.out)
    assert answer.code == 0
    assert [(row["placement"], row["stack"], row["layers"]) for row in rows] == [
        (name, stack, layers) for name in PLACEMENTS for stack, layers in (("encoder", 4), ("decoder", 2))
    ]
    for row in rows:
        assert {f"std_{role}" for role in ROLES if role != "ffn_gate"} <= row.keys()
        assert ("alpha" in row) == (row["placement"] in ("deepnorm", "keel"))


def test_placements_gives_deepnorms_constants_for_an_encoder_alone(leadline: Leadline) -> None:
    """α = (2N)^¼ and β = (8N)^-¼ (DeepNet, Figure 2); v, out and the FFN start β times smaller."""
    rows = strict_json(leadline("placements", "--layers", "12", "0", "--json").out)
    (deepnorm,) = (row for row in rows if row["placement"] == "deepnorm")
    assert deepnorm["stack"] == "encoder"
    assert deepnorm["alpha"] == pytest.approx(24**0.25)
    assert deepnorm["beta"] == pytest.approx(96**-0.25)
    assert deepnorm["std_v"] / deepnorm["std_q"] == pytest.approx(96**-0.25)
    assert all(row["stack"] == "encoder" for row in rows)


@pytest.mark.slow
def test_placements_compare_measures_each(leadline: Leadline, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: PLACEMENTS[name] for name in ("post_ln", "rezero")}
    monkeypatch.setattr("leadline.placement.PLACEMENTS", few)
    rows = strict_json(leadline("placements", "--compare", "--layers", "1", "2", "--json").out)
    assert [row["placement"] for row in rows] == ["post_ln", "rezero"]
    post_ln, rezero = rows
    assert post_ln["growth"] == pytest.approx(1, abs=0.01)
    assert rezero["first_gradient"] == rezero["last_gradient"] == 0  # its branches are shut
    assert rezero["change"] < post_ln["change"]
    assert rezero["needs_warmup"] is False
    del few["post_ln"]
    lines = leadline("placements", "--compare", "--layers", "1", "2").out.splitlines()
    assert any(line.startswith("rezero") for line in lines)


def test_placements_is_a_table_for_people(leadline: Leadline) -> None:
    lines = leadline("placements", "--layers", "12", "0").out.splitlines()
    (row,) = (line for line in lines if line.lstrip().startswith("deepnorm"))
    assert "2.213" in row  # 24^¼
    assert "0.319" in row  # 96^-¼


def test_data_prepare_says_where_and_how_much_as_json(leadline: Leadline, tiny_toml: Path, cache: Path) -> None:
    answer = leadline("data", "prepare", tiny_toml, "--json")
    found = strict_json(answer.out)
    assert found.keys() == {"folder", "vocab_size", "splits"}
    assert Path(found["folder"]).parent == cache
    assert found["vocab_size"] == 200
    assert {split: counts["rows"] for split, counts in found["splits"].items()} == {
        "train": 300, "valid": 500, "test": 500,
    }  # fmt: skip


def test_data_prepare_writes_where_it_is_told(leadline: Leadline, tiny_toml: Path, tmp_path: Path) -> None:
    found = strict_json(leadline("data", "prepare", tiny_toml, "--out", tmp_path / "data", "--json").out)
    assert found["folder"] == str(tmp_path / "data")
    assert (tmp_path / "data" / "manifest.json").exists()
    occupied = leadline("data", "prepare", tiny_toml, "--out", tiny_toml.parent)
    assert (occupied.code, occupied.out) == (2, "")
    assert "is not prepared data" in occupied.err


def test_data_show_gives_text_and_tokens_as_json(leadline: Leadline, tiny_toml: Path) -> None:
    rows = strict_json(leadline("data", "show", tiny_toml, "--split", "valid", "-n", "3", "--json").out)
    assert len(rows) == 3
    for row in rows:
        assert row.keys() == {"text", "tokens"}
        for text, tokens in zip(row["text"], row["tokens"], strict=True):
            assert "".join(tokens).replace("▁", " ").strip() == text


def test_what_is_to_know_of_the_data_is_said_once_by_each_command(
    leadline: Leadline, tiny_toml: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "iwslt14.tokenized.de-en"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text("ein hun@@ d\neine kat@@ ze\n" * 20)
    settings = ["--set", f"data.source=text:{folder}", "--set", "data.vocab_size=25", "--set", "train.updates=2"]
    commands = [
        ["data", "prepare", tiny_toml, *settings],
        ["data", "show", tiny_toml, *settings],
        ["train", tiny_toml, *settings, "--out", tmp_path / "run"],
        ["evaluate", tmp_path / "run", "--set", "decode.beam=1"],
    ]
    for command in commands:
        answer = leadline(*command, "--json")
        strict_json(answer.out)
        assert answer.err.count("they are joined again\n") == 1, command
        assert answer.err.count("BLEU is not comparable with published figures\n") == 1, command
    assert strict_json(leadline(*commands[1], "--json").out)[0]["text"] == ["ein hund", "ein hund"]


def test_train_gives_the_run_and_its_losses_as_json(leadline: Leadline, tiny_toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = leadline("train", tiny_toml, "--out", out, "--set", "train.updates=2", "--set", "train.seed=3", "--json")
    found = strict_json(answer.out)
    assert answer.code == 0
    assert (found["run"], found["best_checkpoint"], found["update"], found["epoch"]) == (str(out), "00000002", 2, 0)
    assert 0 < found["valid_nll"] < 10
    assert configuration.load(out / "config.toml").train.seed == 3
    assert "update 2/2" in answer.err

    again = leadline("train", "--resume", out, "--json")
    assert strict_json(again.out) == found
    assert "this run is complete" in again.err


def test_a_run_without_evaluations_says_so(leadline: Leadline, tiny_toml: Path, tmp_path: Path) -> None:
    settings = ("--set", "train.updates=1", "--set", "train.eval_every=-1")
    answer = leadline("train", tiny_toml, "--out", tmp_path / "run", *settings)
    assert answer.code == 0
    assert f"{tmp_path / 'run'}: not evaluated" in answer.out


def test_train_names_its_folder_after_the_recipe(
    leadline: Leadline, tiny_toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = leadline("train", tiny_toml, "--set", "train.updates=1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert f"runs/{folder.name}: valid loss" in answer.out
    assert f"leadline translate runs/{folder.name}" in answer.out


def test_evaluate_gives_scores_and_signatures_as_json(leadline: Leadline, finished: Path) -> None:
    found = strict_json(leadline("evaluate", finished, "--split", "valid", "--checkpoint", "last", "--json").out)
    assert (found["run"], found["split"], found["checkpoint"]) == (str(finished), "valid", "00000020")
    assert {"loss", "nll", "bleu", "chrf", "exact_match", "sentences"} <= found.keys()
    assert found["bleu_signature"].startswith("nrefs:1|case:mixed")
    assert found["chrf_signature"].startswith("nrefs:1|case:mixed")
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert found["nll"] == pytest.approx(rows[-1]["valid_nll"], rel=1e-6)


def test_translate_gives_a_line_of_json_a_sentence(leadline: Leadline, finished: Path) -> None:
    answer = leadline("translate", finished, "--json", stdin="zwölf\n\n[bold]drei[/bold]\n".encode())
    found = [strict_json(line) for line in answer.out.splitlines()]
    assert [row["source"] for row in found] == ["zwölf", "", "[bold]drei[/bold]"]
    assert all(row.keys() == {"source", "translation"} for row in found)
    assert found[1]["translation"] == ""


# Translating


@pytest.mark.parametrize("text", ["eins\nzwei\ndrei\n", "eins\nzwei\ndrei", "eins\r\n\r\ndrei\r\n", "\n\n\n"])
def test_translate_keeps_the_number_of_lines(text: str, leadline: Leadline, finished: Path) -> None:
    answer = leadline("translate", finished, stdin=text.encode())
    assert answer.code == 0
    assert answer.out.count("\n") == 3


def test_translate_reads_and_writes_files(leadline: Leadline, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("eins\n\nzwei\n", encoding="utf-8")
    answer = leadline("translate", finished, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert (answer.code, answer.out) == (0, "")
    piped = leadline("translate", finished, stdin=b"eins\n\nzwei\n")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == piped.out


def test_translate_says_when_a_line_was_too_long(leadline: Leadline, finished: Path) -> None:
    answer = leadline("translate", finished, stdin=("eins zwei " * 100).encode() + b"\nzwei\n")
    assert answer.out.count("\n") == 2
    assert "longer than the model's limit, translated in pieces: 1" in answer.err


def test_translate_can_change_how_it_searches_but_not_the_model(leadline: Leadline, finished: Path) -> None:
    assert leadline("translate", finished, "--set", "decode.beam=2", stdin=b"eins\n").code == 0
    refused = leadline("translate", finished, "--set", "model.dim=32", stdin=b"eins\n")
    assert_one_sentence(refused, "--set model.dim=32: a trained run can only change decode.* keys")


def test_translate_answers_a_line_before_the_next_is_sent(finished: Path) -> None:
    arguments = [sys.executable, "-m", "leadline.cli", "translate", str(finished)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        try:
            for line in (b"zweihundert\n", b"\n", b"dreizehn\n"):
                process.stdin.write(line)
                assert select.select([process.stdout], [], [], 60)[0], "no answer within a minute"
                assert process.stdout.readline().endswith(b"\n")
            process.stdin.close()
            assert process.stdout.read() == b""
            assert process.wait(60) == 0
        finally:
            process.kill()


# A terminal


def test_a_terminal_shows_a_bar_and_the_evaluations(
    leadline: Leadline, tiny_toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, highlight=False, width=200)
    monkeypatch.setattr(terminal, "screen", screen)
    answer = leadline("train", tiny_toml, "--out", tmp_path / "run", "--set", "train.updates=2", "--json")
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert strict_json(answer.out)["update"] == 2
    assert "training" in shown
    assert "100%" in shown
    assert "update 2/2  valid" in shown


def test_a_terminal_shows_the_bar_before_there_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, highlight=False, width=200)
    monkeypatch.setattr(terminal, "screen", screen)
    with terminal.TrainingView() as view:
        view(Event("message", 0, 8, {}, "a note"))
        assert not view.tasks
        view(Event("start", 2, 8, {}, "from update 2"))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "from update 2" in shown
    assert "25%" in shown


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, "a token"),
        ({"valid_bits_per_byte": 2.0}, "a token  2.000 bits a byte"),
        ({"valid_accuracy": 0.5}, "a masked token  accuracy 0.500"),
        ({"valid_accuracy": 0.5, "valid_matthews": 0.1}, "an example  accuracy 0.500"),
    ],
)
def test_a_loss_is_told_in_the_unit_of_its_task(row: dict[str, float], told: str, capsys: Any) -> None:
    with terminal.TrainingView() as view:
        view(Event("evaluation", 2, 8, {"valid_nll": 1.0} | row, ""))
    assert capsys.readouterr().err == f"update 2/8  valid 1.000 nats {told}\n"


# Mistakes


def assert_one_sentence(answer: Any, *parts: str) -> None:
    """One line on stderr that begins with the program's name, nothing on stdout, exit code 2."""
    assert answer.code == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err
    (line,) = answer.err.splitlines()
    assert line.startswith("leadline: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "numeral"], ["no recipe 'numeral'", "did you mean 'numerals'?"]),
        (["train", "gone.toml"], ["gone.toml does not exist"]),
        (["train"], ["say what to train"]),
        (["train", "numerals", "--set", "optim.lrr=1"], ["'optim.lrr'", "did you mean 'optim.lr'?"]),
        (["train", "numerals", "--set", "optim.learning_rate=1"], ["'optim.learning_rate': did you mean 'optim.lr'?"]),
        (["train", "numerals", "--set", "lr=1"], ["no key 'lr': did you mean 'optim.lr'?"]),
        (["train", "numerals", "--set", "train.dropout=0"], ["no key 'train.dropout': did you mean 'model.dropout'?"]),
        (
            ["train", "numerals", "--set", "lm.across_documents=true"],
            ["lm.across_documents means nothing with task=tra"],
        ),
        (["train", "numerals", "--set", "optim.momentum=0.9"], ["optim.momentum means nothing with optim.name=adam"]),
        (["inspect", "lm_small_pre_ln", "--set", "mask.share=0.1"], ["mask.share means nothing with task=causal_lm"]),
        (["train", "gone.yaml"], ["gone.yaml does not exist"]),
        (["train", "numerals", "--set", "optim.schedule=cosin"], ["optim.schedule", "did you mean 'cosine'?"]),
        (["reproduce", "xiong-fig6", "--set", "train.eval_every=-1"], ["train.eval_every=-1", "made of evaluations"]),
        (["train", "numerals", "--set", "train.seed=one"], ["train.seed must be a whole number"]),
        (["train", "numerals", "--set", "data.source=text:/no/such/folder"], ["/no/such/folder does not exist"]),
        (
            ["data", "show", "numerals", "--set", "data.source=text:x", "--set", "data.size=9"],
            ["--set data.size: it says how much a builtin source generates, and text:x is used whole"],
        ),
        (["data", "show", "numerals", "--set", "data.source=documents:"], ["'documents:' is not a source"]),
        (["data", "check", "/no/such/folder"], ["/no/such/folder is not prepared data (it has no manifest.json)"]),
        (["train", "numerals", "--set", "data.source=web:x"], ["'web:x' is not a source"]),
        (["train", "numerals", "--set", "data.source_lang=xx"], ["xx"]),
        (["train", "--resume", "/no/such/run"], ["/no/such/run does not exist"]),
        (["train", "--resume", "/no/such/run", "--set", "optim.lr=1"], ["/no/such/run does not exist"]),
        (["train", "--resume", "/no/such/run", "--out", "x"], ["--resume goes on in the folder of the run"]),
        (["train", "numerals", "--resume", "/no/such/run"], ["say what to train"]),
        (["data", "prepare", "numeral"], ["did you mean 'numerals'?"]),
        (["data", "show", "numeral"], ["did you mean 'numerals'?"]),
        (["evaluate", "/no/such/run"], ["/no/such/run does not exist"]),
        (["translate", "/no/such/run"], ["/no/such/run does not exist"]),
        (["placements", "--layers", "0", "0"], ["not both 0"]),
        (["placements", "--lr", "0.1"], ["--lr means nothing without --compare"]),
        (["placements", "--compare", "--dim", "64"], ["--dim and --ffn-dim mean nothing with --compare"]),
        (["reproduce", "list", "--only", "post_ln"], ["reproduce list takes no options"]),
        (["reproduce", "xiong-fig6", "--on", "ray", "--jobs", "3"], ["--jobs means nothing with --on"]),
        (["placements", "--layers", "-1", "6"], ["must be 0 or more"]),
    ],
    ids=lambda value: " ".join(value) if value and len(value) > 1 else None,
)
def test_a_mistake_is_answered_with_one_sentence(
    arguments: list[str], parts: list[str], leadline: Leadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(leadline(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder_of_a_run_is_told_what_it_is(
    leadline: Leadline, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_one_sentence(leadline("evaluate", finished / "config.toml"), "config.toml is a file: give the folder")
    assert_one_sentence(leadline("report", finished / "gone"), "gone does not exist: give the folder of a run")
    monkeypatch.chdir(finished.parent)
    assert_one_sentence(leadline("train", finished.name), f"leadline train --resume {finished.name}")


def test_an_unknown_placement_is_answered_with_one_sentence(
    leadline: Leadline, tiny_toml: Path, tmp_path: Path
) -> None:
    leadline("data", "prepare", tiny_toml)
    answer = leadline("train", tiny_toml, "--out", tmp_path / "run", "--set", "model.placement=pre_nl")
    assert_one_sentence(answer, "no placement 'pre_nl'", "did you mean 'pre_ln'?", "deepnorm")
    imported = leadline("train", tiny_toml, "--out", tmp_path / "other", "--set", "model.placement=no_module:Norm")
    assert_one_sentence(imported, "'no_module:Norm' cannot be imported")
    assert "run the command in the folder of its file" in imported.err


def test_an_out_folder_that_holds_a_run_is_refused(leadline: Leadline, finished: Path, tiny_toml: Path) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    answer = leadline("train", tiny_toml, "--out", finished)
    assert_one_sentence(answer, f"{finished} holds a run already", f"leadline train --resume {finished}")
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_run_without_checkpoint_is_refused(leadline: Leadline, tiny_toml: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_toml, tmp_path / "config.toml")
    for command in ("evaluate", "translate"):
        answer = leadline(command, tmp_path)
        assert_one_sentence(answer, f"{tmp_path} has no checkpoint yet", f"leadline train --resume {tmp_path}")


def test_what_a_run_does_not_have_is_refused(leadline: Leadline, finished: Path) -> None:
    assert_one_sentence(leadline("evaluate", finished, "--split", "tset"), "no tset split, only train, valid, test")
    assert_one_sentence(leadline("evaluate", finished, "--split", "train"), "use valid or test")
    assert_one_sentence(leadline("translate", finished, "--checkpoint", "99"), "no checkpoint '99'", "00000020")
    assert_one_sentence(leadline("data", "show", finished / "config.toml", "--split", "tset"), "no tset split")


def test_a_device_that_does_not_exist_is_refused_and_not_replaced(leadline: Leadline, finished: Path) -> None:
    assert_one_sentence(leadline("translate", finished, "--device", "gpu"), "'gpu' is not a device")


def test_text_that_is_not_utf8_is_refused_by_line(leadline: Leadline, finished: Path, tmp_path: Path) -> None:
    bad = b"eins\nzwei\n\xff\xfe\nvier\n"
    assert_one_sentence(leadline("translate", finished, stdin=bad), "stdin, line 3: not valid UTF-8")
    (tmp_path / "in.txt").write_bytes(bad)
    answer = leadline("translate", finished, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert_one_sentence(answer, "in.txt, line 3: not valid UTF-8")
    assert not (tmp_path / "out.txt").exists()


def test_a_file_that_cannot_be_opened_is_named(leadline: Leadline, finished: Path, tmp_path: Path) -> None:
    missing = leadline("translate", finished, "-i", tmp_path / "gone.txt")
    assert_one_sentence(missing, "gone.txt: No such file or directory")
    nowhere = leadline("translate", finished, "-o", tmp_path / "no" / "out.txt", stdin=b"eins\n")
    assert_one_sentence(nowhere, "out.txt: No such file or directory")


def test_a_training_in_a_place_that_is_a_file_is_refused(leadline: Leadline, tiny_toml: Path, tmp_path: Path) -> None:
    leadline("data", "prepare", tiny_toml)
    (tmp_path / "file").write_text("")
    assert_one_sentence(leadline("train", tiny_toml, "--out", tmp_path / "file"), "file cannot be written")


def test_a_keyboard_interrupt_is_one_sentence_too(
    leadline: Leadline, tiny_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leadline.data.store.prepare", interrupted)
    answer = leadline("data", "prepare", tiny_toml)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "leadline: stopped\n"


# Text is printed as it is


def test_data_show_prints_text_that_looks_like_markup_as_it_is(leadline: Leadline, marked_up: Path) -> None:
    shown = leadline("data", "show", marked_up / "config.toml", "-n", "9").out.splitlines()
    texts = [line for line in shown if line and not line.startswith("    ")]
    assert texts == [line for line in MARKUP for _ in ("de", "en")]
    tokens = ["".join(line.split()).replace("▁", " ").strip() for line in shown if line.startswith("    ")]
    assert tokens == texts


def test_a_size_in_a_config_of_text_is_said_to_be_unused(leadline: Leadline, marked_up: Path) -> None:
    path = marked_up / "config.toml"
    size = configuration.load(path).data.size
    assert f"data.size={size} is not used: text:" in leadline("data", "show", path).err


def test_data_show_does_not_break_long_lines(leadline: Leadline, tiny: Config, tmp_path: Path) -> None:
    line = " ".join(f"word{number}" for number in range(60))
    for name in ("train.de", "train.en", "valid.de", "valid.en"):
        (tmp_path / name).write_text(f"{line}\n")
    data = {"source": f"text:{tmp_path}", "vocab_size": 30}
    (tmp_path / "config.toml").write_text(configuration.to_toml(tiny.set(data=data)))
    assert line in leadline("data", "show", tmp_path / "config.toml").out.splitlines()


@pytest.mark.parametrize("name", ["a [bold]run[/bold]", "run [/b]", "run :heart:"])
def test_a_folder_whose_name_looks_like_markup_is_printed_as_it_is(
    name: str, leadline: Leadline, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, name)
    evaluated = leadline("evaluate", name, "--split", "valid")
    assert evaluated.code == 0
    assert name in evaluated.out
    trained = leadline("train", "--resume", name)
    assert trained.out.startswith(f"{name}: valid loss")


def test_an_error_prints_what_looks_like_markup_as_it_is(leadline: Leadline) -> None:
    assert_one_sentence(leadline("train", "[bold]x[/bold] :heart:"), "[bold]x[/bold] :heart: does not exist")


def test_reproduce_takes_the_data_that_a_figure_is_about(leadline: Leadline, tmp_path: Path) -> None:
    documents = f"documents:{tmp_path}"
    answer = leadline("reproduce", "xiong-fig4", "--data", documents, "--out", tmp_path / "out")
    assert answer.code == 2
    assert answer.err == f"leadline: --data {documents} holds documents: this needs pairs\n"
