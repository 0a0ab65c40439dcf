"""Somebody's run or folder: opening it never imports code that it names, unless that is allowed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leadline as library
from leadline import UserError
from leadline.config import Config
from leadline.exchange import huggingface

EVIL = f"evil_{os.getpid()}"
MODULE = """
from pathlib import Path
from leadline.placement import PreLN
Path("marker").touch()
class Norm(PreLN):
    pass
"""


@pytest.fixture(scope="module")
def made(tiny: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose placement is a class of the module beside it, which leaves a marker when imported."""
    folder = tmp_path_factory.mktemp("made")
    (folder / f"{EVIL}.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        library.train(tiny.set(model={"placement": f"{EVIL}:Norm"}, train={"updates": 1}), "run", progress=False)
    (folder / "marker").unlink()
    return folder


@pytest.fixture
def foreign(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delitem(sys.modules, EVIL, raising=False)  # as in a new process
    return Path("run")


COMMANDS = {
    "translate": ["translate", "run"],
    "evaluate": ["evaluate", "run"],
    "inspect": ["inspect", "run"],
    "inspect its config": ["inspect", "run/config.toml"],
    "export": ["export", "run", "out"],
    "finetune": ["finetune", "run"],
    "train": ["train", "run/config.toml", "--out", "other"],
    "resume": ["train", "--resume", "run"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_command_imports_what_a_run_names(command: list[str], leadline: Callable[..., Any], foreign: Path) -> None:
    answer = leadline(*command, stdin=b"zwei\n")
    assert (answer.code, answer.out) == (2, "")
    line = answer.err.splitlines()[-1]
    assert line.startswith("leadline: run")
    assert "names code to import, model.placement='evil_" in line
    assert "--allow-code" in line
    assert not Path("marker").exists()
    assert sorted(path.name for path in Path().iterdir() if path.suffix == "") == ["run"]


@pytest.mark.parametrize("command", ["inspect its config", "train"])
def test_a_config_beside_checkpoints_is_a_run_s_without_run_json_too(
    command: str, leadline: Callable[..., Any], foreign: Path
) -> None:
    (foreign / "run.json").unlink()
    answer = leadline(*COMMANDS[command])
    assert answer.code == 2
    assert "names code to import" in answer.err
    assert not Path("marker").exists()


def test_a_report_and_a_look_at_the_data_import_nothing(leadline: Callable[..., Any], foreign: Path) -> None:
    assert leadline("report", "run", "--out", "page.html").code == 0
    assert leadline("data", "show", "run/config.toml").code == 0
    assert not Path("marker").exists()


def test_python_asks_as_well(foreign: Path) -> None:
    for open_run in (library.load, library.resume):
        with pytest.raises(UserError, match="allow_code=True"):
            open_run(foreign)
    assert not Path("marker").exists()
    assert library.load(foreign, allow_code=True).translate(["zwei"])
    assert Path("marker").exists()


@pytest.mark.parametrize("command", [COMMANDS["translate"], COMMANDS["inspect"], COMMANDS["resume"]], ids=" ".join)
def test_what_is_allowed_is_imported(command: list[str], leadline: Callable[..., Any], foreign: Path) -> None:
    answer = leadline(*command, "--allow-code", stdin=b"zwei\n")
    assert answer.code == 0, answer.err
    assert Path("marker").exists()


def test_what_the_user_names_needs_no_permission(leadline: Callable[..., Any], foreign: Path) -> None:
    shutil.move("run/config.toml", "mine.toml")
    answer = leadline("inspect", "mine.toml", "--json")
    assert answer.code == 0, answer.err
    assert Path("marker").exists()


# Hugging Face

BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 30, "hidden_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16,
}  # fmt: skip
OWN_CODE = {
    "auto_map": {"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}},
    "inside": {"text_config": {"auto_map": {"AutoConfig": "code.Config"}}},
    "kernel": {"_attn_implementation": "somebody/kernels"},
}


@pytest.mark.parametrize("changes", OWN_CODE.values(), ids=OWN_CODE.keys())
@pytest.mark.parametrize("command", ["inspect", "import"])
def test_code_of_a_hugging_face_folder_is_never_run(
    command: str, changes: dict[str, Any], leadline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs").mkdir()
    Path("theirs/code.py").write_text("from pathlib import Path\nPath('marker').touch()\n")
    Path("theirs/config.json").write_text(json.dumps(BERT | changes))
    answer = leadline(command, "theirs", *(["run"] if command == "import" else []), stdin=b"y\n")
    assert (answer.code, answer.out) == (2, "")
    assert "theirs/config.json names code of its own" in answer.err.splitlines()[-1]
    assert "never run" in answer.err
    assert not Path("marker").exists()


def test_an_architecture_is_a_model_and_nothing_else_of_transformers(
    leadline: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(BERT | {"architectures": ["pipeline"], "is_decoder": True}))
    answer = leadline("inspect", tmp_path, "--json")
    assert json.loads(answer.out)["facts"]["model"] == "BertLMHeadModel"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("\xff", "is not JSON"),
        ('{"a":' * 500_000 + "1" + "}" * 500_000, "nested too deeply"),
        ('{"a":' * 800 + "1" + "}" * 800, "is of the type None"),
        (json.dumps({**BERT, "model_type": ["bert"]}), r"is of the type \['bert'\]"),
        (json.dumps({"architectures": 5}), "is of the type None"),
    ],
    ids=["empty", "list", "bytes", "too deep", "deep", "list as type", "no type"],
)
def test_a_malformed_config_is_one_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=complaint) as error:
        huggingface.load(tmp_path, tmp_path / "run")
    assert "\n" not in str(error.value)
