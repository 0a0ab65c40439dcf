"""`leadline inspect`, `advise` and `report`: whatever can be named is inspected, and a mistake is one sentence."""

from __future__ import annotations

import csv
import html as html_module
import itertools
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline import config as configuration
from leadline.cli.subjects import find
from leadline.config import Config
from leadline.diagnose import inspection as inspections

Leadline = Callable[..., Any]

SETTINGS = [
    "model.encoder_layers=1", "model.decoder_layers=1", "model.dim=16", "model.ffn_dim=32", "model.heads=2",
    "model.max_length=48", "data.size=300", "data.vocab_size=200", "train.device=cpu",
]  # fmt: skip
TINY = [part for setting in SETTINGS for part in ("--set", setting)]
NUMBERS = itertools.count()


def strict_json(text: str) -> Any:
    """JSON as every program reads it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def assert_inspected(answer: Any, connections: int = 5) -> dict[str, Any]:
    assert answer.code == 0, answer.err
    found = strict_json(answer.out)
    assert found.keys() == {"name", "verdict", "facts", "findings", "connections"}
    assert len(found["connections"]) == connections
    assert 0 <= found["verdict"]["probability"] <= 1
    return found


def escaped(text: str) -> str:
    return html_module.escape(text)


def assert_one_sentence(answer: Any, *parts: str) -> None:
    """Behind what is said of progress, one line on stderr that begins with the program's name; exit code 2."""
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err
    *progress, line = answer.err.splitlines()
    assert all(said.endswith(" …") for said in progress)
    assert line.startswith("leadline: ")
    for part in parts:
        assert part in line


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module into the current folder and returns its name: a new one each time, as Python keeps modules."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        name = f"written_{os.getpid()}_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write


MAKE = """
    import torch
    from torch import nn

    def make():
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        return model, torch.randn(3, 5, 16), lambda output, batch: (output - batch).pow(2).mean()

    def with_optimizer():
        model, batch, loss = make()
        return model, batch, loss, torch.optim.SGD(model.parameters(), lr=0.125)

    def with_batches():
        model, batch, loss = make()
        return model, iter([batch, batch + 1, batch - 1]), loss

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = make()[0]

        def forward(self, x):
            y = self.model(x)
            self.loss = (y - x).pow(2).mean()
            return Answer(y, self.loss)

    class Answer(tuple):
        def __new__(cls, *values):
            return super().__new__(cls, values)

        @property
        def loss(self):
            return self[1]

    def own_loss():
        return Own(), torch.randn(3, 5, 16)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.final = make()[0], nn.Linear(16, 16)

        def forward(self, x):
            x = self.model(x)
            return x + (x + self.final(x))

    def wrongly_coded():
        return Twice(), *make()[1:]

    def unread():
        return nn.Linear(16, 16), *make()[1:]

    def not_finite():
        model, batch, loss = make()
        nn.init.constant_(model.layers[0].linear1.weight, float("nan"))
        return model, batch, loss

    def imports_late():
        import sys

        sys.path.insert(0, "a folder of its own")
        name = __name__.replace("written", "sibling")
        __import__(name)

        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = make()[0]

            def forward(self, x):
                __import__(name + "_late")
                return self.model(x)

        return Late(), *make()[1:]

    def wrong():
        return make()[0]

    def without_weights():
        model, batch, loss = make()
        return model.requires_grad_(False), batch, loss

    def stranger():
        model, batch, loss = make()
        return model, batch, loss, torch.optim.Adam(make()[0].parameters())

    def failing():
        raise RuntimeError("the disk is full")

    number = 5
"""


# What can be inspected


def test_a_recipe(leadline: Leadline) -> None:
    answer = leadline("inspect", "numerals", *TINY, "--lr", "0.002", "--warmup", "0", "--json")
    found = assert_inspected(answer)
    assert (found["name"], found["verdict"]["rate"], found["verdict"]["warmup"]) == ("numerals", 0.002, 0)
    assert found["facts"]["model"] == "Transformer"
    assert {c["placement"] for c in found["connections"]} == {"Pre-LN"}
    assert found["findings"] == []


def test_a_recipe_is_judged_at_its_own_rate_and_warm_up(leadline: Leadline) -> None:
    answer = leadline(
        "inspect", "numerals", *TINY, "--set", "optim.lr=0.004", "--set", "optim.warmup=70",
        "--set", "model.placement=post_ln", "--json",
    )  # fmt: skip
    found = assert_inspected(answer)
    assert (found["verdict"]["rate"], found["verdict"]["warmup"]) == (0.004, 70)
    assert {c["placement"] for c in found["connections"]} == {"Post-LN"}


def test_a_config_file_in_words(leadline: Leadline, tiny: Config, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(configuration.to_toml(tiny))
    answer = leadline("inspect", tmp_path / "my.toml")
    assert answer.code == 0, answer.err
    first, second, *_ = answer.out.splitlines()
    assert first.startswith(f"{tmp_path / 'my.toml'}: ")
    assert "1-1 layers, Pre-LN" in first
    assert re.match(r"  at lr \S+, warm-up \d+: (trains|does not train) \(probability of learning \d\.\d\d\)", second)


def test_the_same_is_said_again(leadline: Leadline, module: Callable[[str], str]) -> None:
    name = module(MAKE)
    first, second = (leadline("inspect", f"{name}:make", "--json").out for _ in range(2))
    assert first == second != ""


def test_a_run_is_inspected_with_its_weights(leadline: Leadline, finished: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in finished.rglob("*"))
    found = assert_inspected(leadline("inspect", finished, "--json"))
    fresh = assert_inspected(leadline("inspect", finished / "config.toml", "--json"))
    assert found["verdict"]["evidence"] != fresh["verdict"]["evidence"]
    assert sorted((p.name, p.stat().st_mtime_ns) for p in finished.rglob("*")) == before


def test_what_a_checkpoint_cannot_become_is_refused(leadline: Leadline, finished: Path) -> None:
    assert_one_sentence(leadline("inspect", finished, "--set", "model.encoder_layers=2"), "model.encoder_layers")


def test_a_run_without_a_checkpoint_is_inspected_as_it_would_begin(
    leadline: Leadline, tiny: Config, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(configuration.to_toml(tiny))
    found = assert_inspected(leadline("inspect", tmp_path, "--json"))
    assert found["verdict"]["rate"] == tiny.optim.lr


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_hugging_face_folder(kind: str, leadline: Leadline, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, architectures=["BertForMaskedLM"],
        )  # fmt: skip
    else:
        config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    config.save_pretrained(tmp_path / "model")
    found = assert_inspected(leadline("inspect", tmp_path / "model", "--lr", "0.01", "--json"), 2)
    assert found["facts"]["model"] == ("BertForMaskedLM" if kind == "bert" else "GPT2LMHeadModel")
    assert found["verdict"]["rate"] == 0.01
    refused = leadline("inspect", tmp_path / "model", "--set", "model.dim=16")
    assert_one_sentence(refused, "--set changes a recipe or a run", "has no config of ours")


FACE = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 20,
}  # fmt: skip
HEARD = {**FACE, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
SPOKEN = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 30,
    "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WHISPER = {**SPOKEN, "num_mel_bins": 16, "suppress_tokens": None, "begin_suppress_tokens": None}
SEEN = {**FACE, "image_size": 16, "patch_size": 8}
# A model, its config, and how many connections it has
FACES: dict[str, tuple[str, dict[str, Any], int]] = {
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER, 5),
    "WhisperForAudioClassification": ("WhisperConfig", WHISPER, 2),
    "Speech2TextForConditionalGeneration": (
        "Speech2TextConfig", {**SPOKEN, "input_feat_per_channel": 16, "conv_channels": 16}, 5,
    ),
    "ASTForAudioClassification": ("ASTConfig", {**FACE, "max_length": 32, "num_mel_bins": 32}, 2),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", HEARD, 2),
    "Wav2Vec2ForSequenceClassification": ("Wav2Vec2Config", HEARD, 2),
    "BertForSequenceClassification": ("BertConfig", FACE, 2),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": 40, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32,
         "problem_type": "multi_label_classification"}, 2,
    ),
    "BertForTokenClassification": ("BertConfig", FACE, 2),
    "BertForQuestionAnswering": ("BertConfig", FACE, 2),
    "BertForMultipleChoice": ("BertConfig", FACE, 2),
    "BertForPreTraining": ("BertConfig", FACE, 2),
    "BartForSequenceClassification": ("BartConfig", {**SPOKEN, "forced_eos_token_id": 2}, 5),
    "RobertaForMaskedLM": ("RobertaConfig", FACE, 2),
    "ViTForImageClassification": ("ViTConfig", SEEN, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", FACES)
def test_every_kind_of_hugging_face_model_is_given_what_it_takes(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config, options, connections = FACES[kind]
    getattr(transformers, config)(**options, architectures=[kind]).save_pretrained(tmp_path)
    subject = find(str(tmp_path), None, [])[0](1)
    assert type(subject.model).__name__ == kind
    assert math.isfinite(float(subject.backward(subject.batches[0])))
    assert len(subject.connections) == connections
    assert [f.name for f in subject.findings if f.severity == "fault"] == []


@pytest.mark.parametrize(
    ("function", "rate"), [("make", 0.001), ("with_optimizer", 0.125), ("with_batches", 0.001), ("own_loss", 0.001)]
)
def test_a_function_of_a_module_here(
    function: str, rate: float, leadline: Leadline, module: Callable[[str], str]
) -> None:
    name = f"{module(MAKE)}:{function}"
    path = list(sys.path)
    found = assert_inspected(leadline("inspect", name, "--json"), 2)
    assert sys.path == path
    assert (found["name"], found["verdict"]["rate"]) == (name, rate)


def test_a_function_and_its_model_may_import_from_their_folder_late(
    leadline: Leadline, module: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    name, before = module(MAKE), list(sys.path)
    for sibling in ("", "_late"):
        (tmp_path / f"{name.replace('written', 'sibling')}{sibling}.py").write_text("", encoding="utf-8")
    assert_inspected(leadline("inspect", f"{name}:imports_late", "--json"), 2)
    assert sys.path == ["a folder of its own", *before]


def test_a_function_is_judged_at_the_rate_asked_for(leadline: Leadline, module: Callable[[str], str]) -> None:
    found = assert_inspected(leadline("inspect", f"{module(MAKE)}:make", "--lr", "0.5", "--json"), 2)
    assert found["verdict"]["rate"] == 0.5


def test_an_optimizer_is_judged_at_the_rate_asked_for(leadline: Leadline, module: Callable[[str], str]) -> None:
    found = assert_inspected(leadline("inspect", f"{module(MAKE)}:with_optimizer", "--lr", "0.5", "--json"), 2)
    assert found["verdict"]["rate"] == 0.5


def test_a_function_with_settings_is_refused(leadline: Leadline, module: Callable[[str], str]) -> None:
    answer = leadline("inspect", f"{module(MAKE)}:make", "--set", "model.dim=16")
    assert_one_sentence(answer, "--set changes a recipe or a run")


# Certificates


def test_what_is_right_and_trains_is_certified(leadline: Leadline, module: Callable[[str], str]) -> None:
    name = f"{module(MAKE)}:make"
    answer = leadline("certify", name, "--lr", "0.0001", "--json")
    assert answer.code == 0, answer.err
    found = strict_json(answer.out)
    assert (found["certified"], found["reasons"], found["rate"], found["warmup"]) == (True, [], 0.0001, 0)
    assert found["stacks"] == [{"name": "layers.0", "layers": 1, "placement": "Post-LN"}]
    assert found["probability"] >= 0.5
    assert leadline("certify", name, "--lr", "0.0001").out.startswith(f"{name}: certified\n")


@pytest.mark.parametrize(
    ("function", "rate", "reason"),
    [
        ("make", "1e6", "does not train at"),
        ("wrongly_coded", "1e-5", "final: the skip is added twice"),
        ("unread", "1e-5", "no residual connection was found in Linear"),
        ("not_finite", "1e-5", "holds values that are not finite"),
    ],
)
def test_what_is_not_certified_ends_with_1_and_a_reason(
    function: str, rate: str, reason: str, leadline: Leadline, module: Callable[[str], str]
) -> None:
    answer = leadline("certify", f"{module(MAKE)}:{function}", "--lr", rate, "--json")
    found = strict_json(answer.out)
    assert (answer.code, found["certified"]) == (1, False), answer.err
    assert any(reason in said for said in found["reasons"]), found["reasons"]
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("arguments", [["gone.toml"], ["math:make"], ["numerals", "--lr", "inf"]])
def test_a_certificate_that_cannot_be_asked_for_ends_with_2(arguments: list[str], leadline: Leadline) -> None:
    assert_one_sentence(leadline("certify", *arguments, "--json"))


# What is written


def test_out_html_and_a_report_of_both(leadline: Leadline, tmp_path: Path, finished: Path) -> None:
    out, html = tmp_path / "found", tmp_path / "pages" / "page.html"
    answer = leadline("inspect", "numerals", *TINY, "--out", out, "--html", html)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1] == f"page: {html}"

    loaded = inspections.load(out)
    assert str(loaded) in answer.out
    page = html.read_text(encoding="utf-8")
    assert escaped(loaded.verdict.answer[1:]) in page  # without its first letter, which is a capital there
    assert "NaN" not in re.sub("<script>.*?</script>", "", page, flags=re.DOTALL)
    figures = list(html.with_suffix("").iterdir())
    assert {path.suffix for path in figures} == {".png", ".csv"}
    assert any("depth" in path.name for path in figures)
    for path in figures:
        if path.suffix == ".csv":
            assert len(list(csv.reader(path.read_text(encoding="utf-8").splitlines()))) >= 1
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
            assert path.with_suffix(".csv").exists()

    report = leadline("report", finished, out, "--out", tmp_path / "report.html")
    assert (report.code, report.out) == (0, f"page: {tmp_path / 'report.html'}\n")
    both = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert escaped(loaded.verdict.answer[1:]) in both
    assert "Training" in both or "Loss" in both


def test_a_report_of_a_run_that_keeps_its_inspection_has_both(
    leadline: Leadline, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "found", tmp_path / "run"
    shutil.copytree(finished, run)
    assert leadline("inspect", "numerals", *TINY, "--out", out).code == 0
    for path in out.iterdir():
        shutil.copy(path, run)
    monkeypatch.chdir(run)
    assert leadline("report", ".", "--out", tmp_path / "report.html").code == 0
    both = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>Report of run</title>" in both
    assert escaped(inspections.load(out).verdict.answer[1:]) in both
    assert "valid loss" in both
    assert leadline("explain", ".").out.startswith("run: ")


def test_several_seeds(leadline: Leadline, module: Callable[[str], str], tmp_path: Path) -> None:
    answer = leadline("inspect", f"{module(MAKE)}:make", "--seeds", "2", "--out", tmp_path / "found")
    assert answer.code == 0, answer.err
    assert "seeds: over 2 of them the highest rate" in answer.out
    assert len({r.seed for r in inspections.load(tmp_path / "found").records}) == 2


def test_several_seeds_of_a_recipe(leadline: Leadline) -> None:
    """The batches of seed 2 do not all have as many groups of lengths as its first."""
    answer = leadline("inspect", "numerals", *TINY, "--seeds", "2", "--json")
    assert "seeds: over 2 of them" in assert_inspected(answer)["verdict"]["evidence"][-1]


def test_json_with_files_is_only_json(leadline: Leadline, module: Callable[[str], str], tmp_path: Path) -> None:
    answer = leadline("inspect", f"{module(MAKE)}:make", "--out", tmp_path / "found", "--json")
    found = assert_inspected(answer, 2)
    assert inspections.load(tmp_path / "found").verdict.answer == found["verdict"]["answer"]


def test_a_rate_that_diverges_is_an_answer_with_a_page(
    leadline: Leadline, module: Callable[[str], str], tmp_path: Path
) -> None:
    name = f"{module(MAKE)}:with_optimizer"
    text = (tmp_path / f"{name.partition(':')[0]}.py").read_text().replace("lr=0.125", "lr=1e30")
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(text)
    answer = leadline("inspect", name, "--out", tmp_path / "found", "--html", tmp_path / "page.html", "--json")
    found = assert_inspected(answer, 2)
    assert found["verdict"]["trains"] is False
    assert "NaN" not in re.sub("<script>.*?</script>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)


def test_a_rate_that_diverges_with_two_seeds_is_an_answer_with_a_page(
    leadline: Leadline, module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module(MAKE.replace("lr=0.125", "lr=1e30"))
    answer = leadline("inspect", f"{name}:with_optimizer", "--seeds", "2", "--html", tmp_path / "page.html")
    assert answer.code == 0


def test_an_out_that_is_a_file_is_refused(leadline: Leadline, module: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = leadline("inspect", f"{module(MAKE)}:make", "--out", tmp_path / "file")
    assert_one_sentence(answer, f"{tmp_path / 'file'} is a file: give a folder")


def test_a_report_of_a_damaged_inspection_is_one_sentence(leadline: Leadline, tmp_path: Path) -> None:
    (tmp_path / "inspection.json").write_text("{")
    answer = leadline("report", tmp_path, "--out", tmp_path / "page.html")
    assert_one_sentence(answer, f"{tmp_path} does not hold an inspection")
    assert not (tmp_path / "page.html").exists()


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["numeral"], ["no recipe 'numeral'", "did you mean 'numerals'?"]),
        (["gone.toml"], ["gone.toml does not exist"]),
        (["runs/gone"], ["runs/gone does not exist: check the path"]),
        (["./gone"], ["./gone does not exist"]),
        (["gone/here:make"], ["gone/here:make does not exist"]),
        (["numerals", "--lr", "0"], ["--lr must be above 0 and finite, not 0"]),
        (["numerals", "--lr", "-1"], ["--lr must be above 0 and finite, not -1"]),
        (["math:sqrt", "--lr", "inf"], ["--lr must be above 0 and finite, not inf"]),
        (["numerals", "--lr", "nan"], ["--lr must be above 0"]),
        (["numerals", "--seeds", "0"], ["--seeds must be at least 1"]),
        (["numerals", "--seeds", "-2"], ["--seeds must be at least 1"]),
        (["numerals", "--warmup", "-1"], ["--warmup 0 or more"]),
        (["numerals", "--set", "optim.lrr=1"], ["'optim.lrr'", "did you mean 'optim.lr'?"]),
        (["numerals", *TINY, "--set", "model.placement=pre_nl"], ["no placement 'pre_nl'"]),
        (["."], [". is neither a run (config.toml) nor a Hugging Face model (config.json)"]),
        (["no_such_module_xyz:make"], ["no_such_module_xyz:make: the module cannot be imported"]),
        (["math:"], ["math has no function ''"]),
        (["math:make"], ["math has no function 'make'"]),
        (["math:pi"], ["math has no function 'pi'"]),
        pytest.param([":make"], ["cannot be imported"]),
        pytest.param([".here:make"], ["cannot be imported"]),
        (["numerals", "--lr", "inf"], ["not inf"]),
    ],
    ids=lambda value: " ".join(value) if value and len(value) > 1 else None,
)  # fmt: skip
def test_a_mistake_is_answered_with_one_sentence(
    arguments: list[str], parts: list[str], leadline: Leadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(leadline("inspect", *arguments), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("import no_such_module_xyz", "the module cannot be imported"),
        pytest.param("def make(:", ""),
        pytest.param("1 / 0", ""),
    ],
    ids=["missing import", "syntax", "exception"],
)
def test_a_module_that_does_not_import(text: str, part: str, leadline: Leadline, module: Callable[[str], str]) -> None:
    name = module(text)
    assert_one_sentence(leadline("inspect", f"{name}:make"), name, part)


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("gone", "has no function 'gone'"),
        ("number", "has no function 'number'"),
        ("wrong", "must return (model, batch), (model, batch, loss) or (model, batch, loss, optimizer)"),
        pytest.param("without_weights", "frozen"),
        pytest.param("stranger", "the optimizer holds none of the model's weights"),
        pytest.param("failing", "the disk is full"),
    ],
)  # fmt: skip
def test_a_function_that_does_not_give_a_model(
    function: str, part: str, leadline: Leadline, module: Callable[[str], str]
) -> None:
    assert_one_sentence(leadline("inspect", f"{module(MAKE)}:{function}"), part)


BERT_LARGE = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 1024, "num_hidden_layers": 24,
              "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ["inspecting", "with its 3.35e+08 weights needs at least 7.49 GiB", "this machine has 4"]),
        ({"hidden_size": 10**9}, ["inspecting", "GiB of memory", "make the model smaller"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers = 1000000000: at most 10,000 layers"]),
    ],
    ids=["large", "wide", "deep"],
)
def test_a_hugging_face_model_that_cannot_fit_is_not_built(
    changes: dict[str, int], told: list[str], leadline: Leadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("leadline.machine.memory", lambda: 4 * 2**30)
    (tmp_path / "config.json").write_text(json.dumps(BERT_LARGE | changes))
    assert_one_sentence(leadline("inspect", tmp_path), *told)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"model_type": "no such model"}', "{}",
        "[]",
        pytest.param('{"model_type": "gpt2", "n_embd": "wide"}'),
    ],
)  # fmt: skip
def test_a_broken_hugging_face_config(text: str, leadline: Leadline, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(text)
    assert_one_sentence(leadline("inspect", tmp_path), str(tmp_path / "config.json"))


# Advice


def test_advice_as_json(leadline: Leadline) -> None:
    answer = leadline("advise", "--layers", "100", "--dim", "512", "--json")
    assert answer.code == 0, answer.err
    first, *others = strict_json(answer.out)
    assert first["placement"] == "deepnorm"
    assert list(first["constants"].values()) == pytest.approx([3.416, 0.206, 4.162, 0.170], abs=6e-4)
    assert {entry["placement"] for entry in others} == {"post_ln", "pre_ln"}
    for part in ("layers", "widths", "tokens a batch"):
        assert any(part in line for line in first["beyond"])


def test_advice_is_a_table_for_people(leadline: Leadline) -> None:
    answer = leadline("advise", "--layers", "18", "--dim", "64", "--batch-tokens", "512", "--warmup", "100")
    assert answer.code == 0, answer.err
    assert "encoder-decoder, 18 layers, d 64, warm-up 100: best first" in answer.out
    rows = [line.split()[0] for line in answer.out.splitlines()[3:6]]
    assert sorted(rows) == ["deepnorm", "post_ln", "pre_ln"]
    assert "deepnorm: encoder alpha 1.999, encoder beta 0.3526, decoder alpha 2.711, decoder beta 0.2608" in answer.out
    assert "note:" not in answer.out
    assert "note: the table holds encoder-decoders only" in leadline("advise", "--layers", "6", "--arch", "encoder").out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--layers", "0"], "at least 1 layer"),
        (["--layers", "9" * 400], "at most"),
        (["--layers", "6", "--dim", "0"], "width of at least 2"),
        (["--layers", "6", "--batch-tokens", "0"], "at least 1 token"),
        (["--layers", "6", "--arch", "both"], "the choices are encoder-decoder, encoder and decoder"),
    ],
    ids=" ".join,
)
def test_advice_that_cannot_be_given(arguments: list[str], part: str, leadline: Leadline) -> None:
    assert_one_sentence(leadline("advise", *arguments), part)


@pytest.mark.parametrize("page", [".", "..", "page"])
def test_a_page_needs_a_name_with_an_ending(leadline: Callable[..., Any], page: str, tmp_path: Path) -> None:
    """Its figures lie beside it under its name without the ending."""
    for command in (["inspect", "numerals", *TINY, "--html", page], ["report", tmp_path, "--out", page]):
        answer = leadline(*command)
        assert answer.code == 2
        assert answer.err.startswith(f"leadline: {page} cannot be a page: give a file with an ending, such as ")
