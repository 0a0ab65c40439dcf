"""Tables of labelled text: every format, every way in which a file can be wrong, and what is prepared from them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leadline import recipes
from leadline.config import DataConfig
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.data.tables import Example
from leadline.errors import UserError

ROWS = [("yes", "The dog runs", "A dog moves"), ("no", 'He said "so', "it, rains"), ("maybe", "green", "cats")] * 4


def written(path: Path, rows: list[tuple[str, ...]] = ROWS, header: tuple[str, ...] = ("label", "a", "b")) -> Path:
    kind = path.name.split(".")[1]
    if kind == "tsv":
        text = "".join("\t".join(row) + "\n" for row in (header, *rows))
    elif kind == "csv":
        quoted = [['"' + field.replace('"', '""') + '"' for field in row] for row in (header, *rows)]
        text = "".join(",".join(row) + "\r\n" for row in quoted)
    else:
        text = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def config(path: Path, **changes: Any) -> DataConfig:
    usual = {"first": "a", "second": "b", "label": "label", "vocab_size": 42, "holdout": 2}
    return DataConfig(source=f"table:{path}", **usual | changes)


@pytest.mark.parametrize("name", ["x.tsv", "x.csv", "x.jsonl", "x.tsv.gz", "x.json"])
def test_every_format_gives_the_same_examples(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name)
    source = open_source(config(path))
    assert source.splits() == ("train", "valid", "test")
    found = {split: list(source.examples(split)) for split in source.splits()}
    assert [len(found[split]) for split in found] == [8, 2, 2]
    texts = sorted((e.label, e.first, e.second) for split in found.values() for e in split)
    assert texts == sorted(ROWS)  # each in one split, and quotes are text
    assert {e.where for e in found["train"]} < {f"{path}, line {n}" for n in range(1, 30)}


def test_a_folder_has_its_own_splits(tmp_path: Path) -> None:
    written(tmp_path / "train.tsv")
    written(tmp_path / "dev.csv", ROWS[:3])
    written(tmp_path / "test.jsonl", ROWS[:2])
    source = open_source(config(tmp_path, holdout=0))
    assert {split: len(list(source.examples(split))) for split in source.splits()} == {
        "train": 12,
        "valid": 3,
        "test": 2,
    }
    assert next(source.examples("valid")) == Example(
        "The dog runs", "A dog moves", "yes", f"{tmp_path / 'dev.csv'}, line 2"
    )
    written(tmp_path / "test.jsonl", [row[1:] for row in ROWS], ("a", "b"))  # GLUE gives out tests without labels
    assert open_source(config(tmp_path, holdout=0)).splits() == ("train", "valid")


MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
MRPC_ROWS = ['1\t70\t71\tHe said "so\tSo he said', "0\t72\t73\tA dog runs\tThe cat sleeps", "1\t74\t75\ta b\tb a"] * 3


def glue(folder: Path, files: dict[str, list[str]]) -> Path:
    folder.mkdir()
    for name, lines in files.items():
        end = "\r\n" if name.endswith(".txt") else "\n"
        (folder / name).write_bytes(("\ufeff" + "".join(line + end for line in lines)).encode())
    return folder


def glue_mrpc(folder: Path) -> Path:
    unlabelled = ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tx\ty"]
    labelled = {"train.tsv": [MRPC_HEADER, *MRPC_ROWS], "dev.tsv": [MRPC_HEADER, *MRPC_ROWS[:2]]}
    return glue(folder, labelled | {"test.tsv": unlabelled})


def recipe_data(task: str, folder: Path, **changes: Any) -> DataConfig:
    return recipes.find(task).set(data={"source": f"table:{folder}"} | changes).data


def test_glue_s_mrpc_is_read_as_it_is(tmp_path: Path) -> None:
    folder = glue_mrpc(tmp_path / "MRPC")
    source = open_source(recipe_data("mrpc", folder))
    assert source.splits() == ("train", "valid")
    assert len(list(source.examples("train"))) == len(MRPC_ROWS)  # nothing is held out of it for the test
    first = Example('He said "so', "So he said", "1", f"{folder / 'train.tsv'}, line 2")
    assert next(source.examples("train")) == first
    assert source.notes() == ["test.tsv has no labels and is left out: there is no test split"]
    named = recipe_data("mrpc", folder, first="#1 String", second="#2 String", label="Quality")
    assert list(open_source(named).examples("valid")) == list(source.examples("valid"))


def test_a_test_split_without_labels_is_not_one_that_is_missing(tmp_path: Path) -> None:
    """Where it is missing, it is held out of train: other data, which needs another key."""
    folder = glue_mrpc(tmp_path / "MRPC")
    left_out = open_source(recipe_data("mrpc", folder, holdout=2))
    (folder / "test.tsv").unlink()
    missing = open_source(recipe_data("mrpc", folder, holdout=2))
    assert [len(list(source.examples("train"))) for source in (left_out, missing)] == [9, 7]
    assert left_out.fingerprint() != missing.fingerprint()


def test_the_original_mrpc_is_read_as_it_is(tmp_path: Path) -> None:
    lines = [MRPC_HEADER, *MRPC_ROWS]
    folder = glue(tmp_path / "x", {"msr_paraphrase_train.txt": lines, "msr_paraphrase_test.txt": lines[:3]})
    source = open_source(recipe_data("mrpc", folder, holdout=4))
    assert {split: len(list(source.examples(split))) for split in source.splits()} == {
        "train": 5,
        "valid": 4,
        "test": 2,
    }
    assert next(source.examples("test"))[:3] == ('He said "so', "So he said", "1")
    (note,) = source.notes()
    assert note.startswith("valid is 4 examples of msr_paraphrase_train.txt")


def test_glue_s_rte_is_read_as_it_is(tmp_path: Path) -> None:
    rows = ['0\tIt "rains.\tWet.\tentailment', "1\tIt rains.\tDry.\tnot_entailment"]
    labelled = ["index\tsentence1\tsentence2\tlabel", *rows]
    unlabelled = ["index\tsentence1\tsentence2", "0\tIt rains.\tWet."]
    folder = glue(tmp_path / "RTE", {"train.tsv": labelled, "dev.tsv": labelled[:2], "test.tsv": unlabelled})
    source = open_source(recipe_data("rte", folder))
    assert {split: len(list(source.examples(split))) for split in source.splits()} == {"train": 2, "valid": 1}
    assert next(source.examples("train"))[:3] == ('It "rains.', "Wet.", "entailment")
    store = Store(prepare(recipe_data("rte", folder, vocab_size=31), tmp_path / "out"))
    assert store.manifest["labels"] == ["entailment", "not_entailment"]
    left_out, counts = store.notes
    assert "test.tsv has no labels" in left_out
    assert counts.startswith("train has 2 examples and valid has 1 examples; GLUE's RTE has 2,490 and 277: accuracy is")


def test_numbers_and_truth_in_json_are_labels(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        rows = [{"label": label, "a": "x", "b": 3, "more": [1]} for label in (3, 2.5, True)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(open_source(config(tmp_path, holdout=0)).examples("train"))
    assert [(e.label, e.second) for e in found] == [("3", "3"), ("2.5", "3"), ("true", "3")]


def test_more_cannot_be_held_out_than_is_left(tmp_path: Path) -> None:
    source = open_source(config(written(tmp_path / "x.tsv"), holdout=4))
    with pytest.raises(UserError, match=r"data.holdout=4 would take 8 of the 12 examples in .*x.tsv: choose fewer"):
        list(source.examples("train"))


BAD: list[tuple[str, bytes, str]] = [
    ("x.tsv", b"label\ta\tb\nyes\tone\ttwo\nno\tthree\n", "x.tsv, line 3: 2 columns, and the header has 3"),
    ("x.tsv", b"label\ta\tb\nyes\tone\ttwo\tthree\n", "x.tsv, line 2: 4 columns, and the header has 3"),
    ("x.tsv", b"", "x.tsv has no examples: it is empty but for its header"),
    ("x.tsv", b"label\ta\tb\n", "x.tsv has no examples: it is empty but for its header"),
    ("x.jsonl", b"\n", "x.jsonl has no examples: it is empty$"),
    ("x.tsv", b"Label\ta\tb\nyes\tone\ttwo\n", "there is no column 'label' .*: set data.label; did you mean 'Label'"),
    ("x.tsv", b"label\tA\tb\nyes\tone\ttwo\n", "there is no column 'a' .*: set data.first; did you mean 'A'"),
    ("x.tsv", b"label\ta\tb\nyes\t\xff\ttwo\n", "x.tsv, line 2: not valid UTF-8"),
    ("x.tsv", b"label\ta\tb\n \tone\ttwo\n", "x.tsv, line 2: the column 'label' is empty"),
    ("x.csv", b'label,a,b\nyes,"one,two\n', "x.csv, line 2: not CSV"),
    ("x.jsonl", b'{"label": 1, "a": "x"', "x.jsonl, line 1: not JSON"),
    ("x.jsonl", b"[" * 100_000, "x.jsonl, line 1: not JSON"),
    ("x.jsonl", b"[1]\n", "x.jsonl, line 1: not a JSON object"),
    ("x.jsonl", b'{"label": null, "a": "x", "b": "y"}\n', "x.jsonl, line 1: there is no column 'label'"),
    ("x.txt", b"label\ta\tb\n", "x.txt is neither .tsv nor .csv nor .jsonl"),
]


@pytest.mark.parametrize(("name", "text", "complaint"), BAD, ids=[case[2][:40] for case in BAD])
def test_a_wrong_file_says_where(name: str, text: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UserError, match=complaint):
        prepare(config(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_validation_or_training_examples_it_says_what_to_do(tmp_path: Path) -> None:
    written(tmp_path / "train.tsv")
    with pytest.raises(UserError, match=r"no examples for validation: add a valid or dev file .* data.holdout=500"):
        open_source(config(tmp_path, holdout=0))
    (tmp_path / "train.tsv").rename(tmp_path / "training.tsv")
    with pytest.raises(UserError, match=r"has no train.tsv, train.csv or train.jsonl"):
        open_source(config(tmp_path))
    with pytest.raises(UserError, match="nowhere does not exist"):
        open_source(config(tmp_path / "nowhere"))


def test_tokens_labels_and_counts_are_prepared(tmp_path: Path) -> None:
    rows = [("10", "a b", "c"), ("9", "c c", "a"), ("9", "  ", "b"), ("10", "b", "a a")]
    written(tmp_path / "data" / "train.tsv", rows)
    written(tmp_path / "data" / "valid.tsv", rows[1:2])
    store = Store(prepare(config(tmp_path / "data", holdout=0, vocab_size=9), tmp_path / "out"))
    assert (store.holds, store.manifest["labels"]) == ("examples", ["9", "10"])  # numbers in their order
    assert store.labels("train").tolist() == [1, 0, 1]
    assert store.manifest["splits"]["train"] == {"rows": 3, "shards": 1, "tokens": [10, 8], "empty_left_out": 1}
    split = store.split("train", "examples")  # each letter is two tokens, of which one begins a word
    assert store.tokenizer.decode(split[0]) == ["a b", "c"]
    assert store.first("train", 1)[0][0].tolist() == split[0][0].tolist()
    with pytest.raises(UserError, match="holds examples, and this task needs pairs"):
        store.split("train")


def test_single_texts_have_no_second_side(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv")
    store = Store(prepare(config(path, second=""), tmp_path / "out"))
    assert store.split("train", "examples").lengths()[:, 1].tolist() == [0] * 8
    assert len(store.first("train", 1)[0]) == 1


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_label_that_train_does_not_have_is_an_error(split: str, tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        written(tmp_path / "data" / f"{name}.tsv")
    written(tmp_path / "data" / f"{split}.tsv", [*ROWS, ("never", "x", "y")])
    complaint = f"{split}.tsv, line 14: the label 'never' is not among those of train \\(maybe, no, yes\\)"
    with pytest.raises(UserError, match=complaint):
        prepare(config(tmp_path / "data", holdout=0), tmp_path / "out")


def test_one_label_is_nothing_to_learn(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv", [("yes", "a", "b")] * 9)
    with pytest.raises(UserError, match="all examples of train have the label 'yes'"):
        prepare(config(path), tmp_path / "out")


def test_another_run_s_vocabulary_is_used_and_belongs_to_the_key(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv")
    first = Store(prepare(config(path), tmp_path / "first"))
    moved = tmp_path / "moved.json"
    moved.write_text((tmp_path / "first" / "tokenizer.json").read_text())
    options = config(path, vocabulary=str(moved), seed=3)
    second = Store(prepare(options, tmp_path / "second"))
    assert second.tokenizer.bpe.to_str() == first.tokenizer.bpe.to_str()
    again = tmp_path / "again.json"
    moved.rename(again)
    same = config(path, vocabulary=str(again), seed=3)
    assert (
        Store(prepare(same, tmp_path / "third")).manifest["key"] == second.manifest["key"]
    )  # where it lies does not matter
    text = json.loads(again.read_text())
    text["added_tokens"][0]["lstrip"] = True
    again.write_text(json.dumps(text))
    assert Store(prepare(same, tmp_path / "fourth")).manifest["key"] != second.manifest["key"]
    with pytest.raises(UserError, match=r"data.vocabulary: .*moved.json is not a file that exists"):
        prepare(options, tmp_path / "fifth")


def test_the_columns_are_no_part_of_other_data_s_key(tmp_path: Path) -> None:
    """So that what was prepared before there were tables is still found."""
    usual = DataConfig(source="builtin:numerals", size=50, vocab_size=120)
    assert prepare(usual) == prepare(
        DataConfig(source="builtin:numerals", size=50, vocab_size=120, first="x", label="y")
    )
    assert np.all(Store(prepare(usual)).split("train").lengths() > 0)
