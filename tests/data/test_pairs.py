"""Pairs: the same ones from every kind of file, and one clear sentence where a file is wrong."""

from __future__ import annotations

import gzip
import lzma
import random
import re
import sys
from pathlib import Path

import pytest

from leadline.config import DataConfig
from leadline.data import pairs
from leadline.data.sources import open_source
from leadline.errors import UserError

LINES = 40
GERMAN = [f"Satz {i}" for i in range(LINES)]
ENGLISH = [f"sentence {i}" for i in range(LINES)]
WHOLE = {"train.de": GERMAN, "train.en": ENGLISH, "valid.de": ["ja"], "valid.en": ["yes"]}
TRAIN_ONLY = {"train.de": GERMAN, "train.en": ENGLISH}


def text(folder: Path, **changes) -> DataConfig:
    return DataConfig(source=f"text:{folder}", **changes)


def read(config: DataConfig) -> dict[str, list[pairs.Pair]]:
    source = open_source(config)
    return {split: list(source.pairs(split)) for split in source.splits()}


def refusal(config: DataConfig) -> str:
    """The message with which opening or reading all of a source fails: one sentence on one line."""
    with pytest.raises(UserError) as error:
        read(config)
    message = str(error.value)
    assert not re.search(r"\n|[.!?] [A-Z]", message)
    return message


def without(*names: str) -> dict[str, list[str]]:
    return {name: lines for name, lines in WHOLE.items() if name not in names}


def as_bytes(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_text_is_read_line_by_line_whatever_its_compression(write, suffix: str) -> None:
    folder = write({f"{name}{suffix}": COMPRESS[suffix](as_bytes(lines)) for name, lines in WHOLE.items()})
    source = open_source(text(folder))
    assert source.splits() == ("train", "valid")
    assert list(source.pairs("train")) == list(zip(GERMAN, ENGLISH, strict=True))
    assert list(source.pairs("valid")) == [("ja", "yes")]


def test_source_and_target_follow_the_languages_of_the_config(write) -> None:
    source = open_source(text(write(WHOLE), source_lang="en", target_lang="de"))
    assert next(source.pairs("train")) == ("sentence 0", "Satz 0")


def test_only_newlines_end_lines(write) -> None:
    german = "eins\u2028zwei\r\ndrei\x85vier\rfünf\x0bsechs\n\nsieben".encode()
    folder = write(WHOLE | {"train.de": german, "train.en": ["a", "b", "", "c"]})
    pairs = list(open_source(text(folder)).pairs("train"))
    assert pairs == [("eins\u2028zwei", "a"), ("drei\x85vier\rfünf\x0bsechs", "b"), ("", ""), ("sieben", "c")]


@pytest.mark.parametrize(("shorter", "longer"), [("de", "en"), ("en", "de")])
def test_files_of_unequal_length_are_refused(write, shorter: str, longer: str) -> None:
    folder = write(WHOLE | {f"train.{shorter}": WHOLE[f"train.{shorter}"][:7]})
    message = refusal(text(folder))
    assert f"{folder}/train.{shorter} ends after 7 lines" in message
    assert f"{folder}/train.{longer} goes on" in message


@pytest.mark.parametrize("empty", [["train.de"], ["train.en"], ["train.de", "train.en"], ["valid.de", "valid.en"]])
def test_an_empty_file_is_refused(write, empty: list[str]) -> None:
    folder = write(WHOLE | dict.fromkeys(empty, b""))
    assert f"{folder}/{empty[0]} " in refusal(text(folder))


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_a_missing_split_is_refused(write, missing: str) -> None:
    folder = write(without(f"{missing}.de", f"{missing}.en"))
    assert f"{folder} has no {missing}.de" in refusal(text(folder))


@pytest.mark.parametrize("missing", ["train.de", "train.en", "valid.de", "valid.en"])
def test_a_missing_language_is_refused(write, missing: str) -> None:
    folder = write(without(missing))
    assert f"{folder} has no {missing}" in refusal(text(folder))


def test_a_missing_language_names_the_options_and_the_languages_there(write) -> None:
    files = {f"train.{language}": GERMAN for language in ("cs", "en", "fr")}
    message = refusal(text(write(files)))
    assert message.endswith(
        "has no train.de (nor .gz, .xz): set data.source_lang and data.target_lang (it has cs, en, fr)"
    )


@pytest.mark.parametrize(
    ("there", "asked", "taken"),
    [
        (("fr", "en"), ("de", "en"), ("fr", "en")),
        (("fr", "en"), ("en", "de"), ("en", "fr")),
        (("de", "fr"), ("de", "en"), ("de", "fr")),
        (("sk", "cs"), ("de", "en"), ("cs", "sk")),
        (("zh_CN", "en"), ("de", "en"), ("zh_CN", "en")),
        (("de", "en"), ("en", "de"), ("en", "de")),
        (("de", "en"), ("de", "en"), ("de", "en")),
    ],
)
def test_a_folder_of_two_languages_needs_no_more(write, there, asked, taken) -> None:
    folder = write({f"{s}.{language}": [language] * 3 for s in ("train", "valid") for language in there})
    source = open_source(text(folder, source_lang=asked[0], target_lang=asked[1]))
    assert (source.config.source_lang, source.config.target_lang) == taken
    assert next(source.pairs("train")) == taken


def test_opus_s_names_show_the_languages_too(write) -> None:
    folder = write({f"opus.en-fr-{s}.{lang}": [lang] for s in ("train", "dev") for lang in ("en", "fr")})
    assert next(open_source(text(folder)).pairs("valid")) == ("fr", "en")


def test_languages_that_were_chosen_are_not_changed(write) -> None:
    folder = write({f"{s}.{language}": ["x"] for s in ("train", "valid") for language in ("cs", "en")})
    assert "has no train.fr" in refusal(text(folder, source_lang="fr"))


def test_a_test_split_with_one_language_is_refused(write) -> None:
    folder = write(WHOLE | {"test.en": ENGLISH})
    assert f"{folder} has no test.de" in refusal(text(folder))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}/nowhere does not exist" in refusal(text(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is a file: give the folder" in refusal(text(tmp_path / "file"))


def test_a_folder_without_text_says_what_files_are_called(tmp_path: Path) -> None:
    assert "name the files of a language train.LANGUAGE" in refusal(text(tmp_path))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_invalid_utf8_is_refused_with_its_line(write, suffix: str) -> None:
    lines = as_bytes(GERMAN).split(b"\n")
    lines[11] += "Größe".encode("latin-1")
    folder = write(without("train.de") | {f"train.de{suffix}": COMPRESS[suffix](b"\n".join(lines))})
    message = refusal(text(folder))
    assert f"{folder}/train.de{suffix}, line 12:" in message
    assert "UTF-8" in message


def incompressible(lines: int) -> bytes:
    """Lines that stay long when compressed, so that half a file still holds some of them."""
    rng = random.Random(0)
    return as_bytes([rng.randbytes(40).hex() for _ in range(lines)])


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_truncated_file_is_refused_with_its_line(write, suffix: str) -> None:
    data = COMPRESS[suffix](incompressible(2000))
    folder = write(without("train.de") | {f"train.de{suffix}": data[: len(data) // 2], "train.en": ["yes"] * 2000})
    message = refusal(text(folder))
    found = re.search(rf"{folder}/train\.de{suffix} is damaged after line (\d+)", message)
    assert found, message
    assert 0 < int(found[1]) < 2000


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_file_with_altered_bytes_is_refused(write, suffix: str) -> None:
    data = COMPRESS[suffix](as_bytes(GERMAN))
    # The tenth byte begins the compressed data of .gz and is in the check sum of .xz.
    folder = write(without("train.de") | {f"train.de{suffix}": data[:10] + b"\xff" + data[11:]})
    assert f"{folder}/train.de{suffix} is damaged after line 0" in refusal(text(folder))


def test_a_file_that_is_not_what_its_suffix_says_is_refused(write) -> None:
    folder = write(without("train.de") | {"train.de.gz": as_bytes(GERMAN)})
    assert f"{folder}/train.de.gz is damaged after line 0" in refusal(text(folder))


class TestHoldout:
    def test_is_disjoint_of_the_right_size_and_covers_every_line(self, write) -> None:
        splits = read(text(write(TRAIN_ONLY), holdout=5))
        assert {name: len(pairs) for name, pairs in splits.items()} == {"train": LINES - 10, "valid": 5, "test": 5}
        everything = [pair for pairs in splits.values() for pair in pairs]
        assert sorted(everything) == sorted(zip(GERMAN, ENGLISH, strict=True))

    def test_is_a_function_of_the_seed(self, write) -> None:
        folder = write(TRAIN_ONLY)
        first, again, other = (read(text(folder, holdout=5, seed=seed)) for seed in (3, 3, 4))
        assert first == again
        assert first["valid"] != other["valid"]

    def test_is_spread_over_the_file(self, write) -> None:
        splits = read(text(write(TRAIN_ONLY), holdout=10))
        rows = [GERMAN.index(left) for left, _ in splits["valid"]]
        assert min(rows) < LINES // 2 <= max(rows)

    def test_replaces_only_the_splits_that_have_no_files(self, write) -> None:
        splits = read(text(write(WHOLE), holdout=5))
        assert splits["valid"] == [("ja", "yes")]
        assert len(splits["test"]) == 5
        assert sorted(splits["train"] + splits["test"]) == sorted(zip(GERMAN, ENGLISH, strict=True))

    def test_of_more_than_half_is_refused(self, write) -> None:
        folder = write(TRAIN_ONLY)
        message = refusal(text(folder, holdout=LINES // 4 + 1))
        assert f"data.holdout={LINES // 4 + 1}" in message
        assert str(folder) in message


WORDS = ["die katze schläft .", "der hund läuft nicht @-@ er schläft", "eine straße"]
PIECES = ["die kat@@ ze schl@@ ä@@ ft .", "der hun@@ d läuft nicht @-@ er schl@@ ä@@ ft", "eine stra@@ ße"]


class TestSplitWords:
    """Text that subword-nmt's BPE has split, as in the folder that fairseq's prepare-iwslt14.sh makes."""

    @pytest.fixture
    def fairseq(self, write) -> Path:
        files = {f"{split}.{lang}": PIECES for split in ("train", "valid", "test") for lang in ("de", "en")}
        folder = write(files | {"code": ["#version: 0.2", "e n</w>"]}, "iwslt14.tokenized.de-en")
        (folder / "tmp").mkdir()
        (folder / "tmp" / "train.de").write_text("die katze\n")
        return folder

    def test_are_joined_in_every_split_and_that_is_said(self, fairseq: Path) -> None:
        config = text(fairseq, text="tokenized")
        pairs = list(zip(WORDS, WORDS, strict=True))
        assert read(config) == {"train": pairs, "valid": pairs, "test": pairs}
        (note,) = open_source(config).notes()
        assert "joined again" in note

    def test_are_joined_in_what_is_held_out(self, write) -> None:
        folder = write({"train.de": PIECES * 4, "train.en": PIECES * 4})
        splits = read(text(folder, holdout=2))
        assert {line for pairs in splits.values() for pair in pairs for line in pair} == set(WORDS)

    def test_other_at_signs_stay(self, write) -> None:
        lines = ["a @@ b", "x@@y z", "@@ -1 +1 @@ c", "the end@@", "mail@ me", "@@@ @"]
        folder = write(without("train.de") | {"train.de": [*lines, *["wor@@ ds"] * (LINES - len(lines))]})
        german = [left for left, _ in open_source(text(folder)).pairs("train")]
        assert german == [*lines[:-1], "@@", *["words"] * (LINES - len(lines))]

    def test_a_few_lines_that_look_like_it_are_text(self, write) -> None:
        german = [*GERMAN[:-2], "x@@ y", "a@@b @@ c"]
        source = open_source(text(write(WHOLE | {"train.de": german})))
        assert [left for left, _ in source.pairs("train")] == german
        assert source.notes() == []

    def test_belong_to_the_fingerprint(self, fairseq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was prepared before words were joined is not found again."""
        joined = open_source(text(fairseq)).fingerprint()
        monkeypatch.setattr(pairs, "SPLIT_WORD", re.compile("never"))
        assert open_source(text(fairseq)).fingerprint() != joined


class TestOpus:
    """OPUS-100's names: opus.de-en-train.de, opus.de-en-dev.de, opus.de-en-test.de and the same for .en."""

    @staticmethod
    def files(*splits: str) -> dict[str, list[str]]:
        lines = {"de": GERMAN, "en": ENGLISH}
        return {f"opus.de-en-{split}.{lang}": lines[lang] for split in splits for lang in lines}

    @pytest.mark.parametrize("languages", [("de", "en"), ("en", "de")])
    def test_are_read_in_either_direction(self, write, languages: tuple[str, str]) -> None:
        folder = write(self.files("train", "dev", "test"), "de-en")
        splits = read(text(folder, source_lang=languages[0], target_lang=languages[1]))
        assert list(splits) == ["train", "valid", "test"]
        expected = (GERMAN[7], ENGLISH[7]) if languages[0] == "de" else (ENGLISH[7], GERMAN[7])
        assert all(pairs[7] == expected for pairs in splits.values())

    def test_pairs_without_dev_and_test_need_a_holdout(self, write) -> None:
        folder = write(self.files("train"), "de-en")
        assert "data.holdout=1000" in refusal(text(folder))
        assert {split: len(pairs) for split, pairs in read(text(folder, holdout=5)).items()} == {
            "train": LINES - 10, "valid": 5, "test": 5,
        }  # fmt: skip

    def test_another_pair_is_refused(self, write) -> None:
        assert "has no train.fr" in refusal(text(write(self.files("train", "dev")), source_lang="fr"))


def test_the_fingerprint_changes_with_the_text_and_not_with_the_folder(write) -> None:
    first = open_source(text(write(WHOLE))).fingerprint()
    assert open_source(text(write(WHOLE, "moved"))).fingerprint() == first
    changed = write(WHOLE | {"valid.en": ["yep"]}, "changed")
    assert open_source(text(changed)).fingerprint() != first


@pytest.mark.parametrize(
    ("languages", "named"),
    [({"source_lang": "xx"}, "'xx'"), ({"target_lang": "eng"}, "'en'"), ({"target_lang": "de"}, "'de'")],
)
def test_builtin_languages_that_cannot_be_paired_are_refused(languages: dict[str, str], named: str) -> None:
    assert named in refusal(DataConfig(size=3, **languages))


def test_builtin_sentences_have_the_size_and_the_seed_asked_for() -> None:
    def train(seed: int) -> list[pairs.Pair]:
        return list(open_source(DataConfig(size=20, seed=seed)).pairs("train"))

    assert len(train(0)) == 20
    assert train(0) == train(0)
    assert train(0) != train(1)


class TestHuggingFace:
    @pytest.fixture
    def save(self, tmp_path: Path):
        datasets = pytest.importorskip("datasets")

        def _save(splits: dict[str, list[dict]]) -> Path:
            rows = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
            datasets.DatasetDict(rows).save_to_disk(tmp_path / "saved")
            return tmp_path / "saved"

        return _save

    def config(self, folder: Path, **changes) -> DataConfig:
        return DataConfig(source=f"hf:{folder}", **changes)

    @staticmethod
    def rows(nested: bool) -> list[dict]:
        rows = [{"de": left, "en": right} for left, right in zip(GERMAN[:6], ENGLISH[:6], strict=True)]
        return [{"translation": row} for row in rows] if nested else rows

    @pytest.mark.parametrize("nested", [True, False], ids=["translation column", "column a language"])
    def test_reads_a_saved_dataset(self, save, nested: bool) -> None:
        rows = self.rows(nested)
        source = open_source(self.config(save({"train": rows, "validation": rows[:2], "test": rows[2:3]})))
        assert source.splits() == ("train", "valid", "test")
        assert list(source.pairs("train")) == list(zip(GERMAN[:6], ENGLISH[:6], strict=True))
        assert list(source.pairs("valid")) == list(zip(GERMAN[:2], ENGLISH[:2], strict=True))
        assert list(source.pairs("test")) == [(GERMAN[2], ENGLISH[2])]

    def test_the_fingerprint_stays_when_the_dataset_is_opened_again(self, save) -> None:
        config = self.config(save({"train": self.rows(True), "valid": self.rows(True)}))
        assert open_source(config).fingerprint() == open_source(config).fingerprint()

    @pytest.mark.parametrize("nested", [True, False], ids=["translation column", "column a language"])
    def test_a_missing_language_is_refused(self, save, nested: bool) -> None:
        folder = save({"train": self.rows(nested), "valid": self.rows(nested)})
        message = refusal(self.config(folder, source_lang="fr"))
        assert "row 0 of train" in message
        assert "'fr'" in message
        assert "de, en" in message

    def test_a_row_without_text_is_refused(self, save) -> None:
        rows = self.rows(False)
        rows[4]["en"] = None
        message = refusal(self.config(save({"train": rows, "valid": rows[:1]})))
        assert "row 4 of train" in message
        assert "'en'" in message

    @pytest.mark.parametrize("missing", ["train", "valid"])
    def test_a_missing_split_is_refused(self, save, missing: str) -> None:
        rows = self.rows(True)
        folder = save({name: rows for name in ("train", "valid", "test") if name != missing})
        message = refusal(self.config(folder))
        assert f"no {missing} split" in message
        assert str(folder) in message

    def test_a_dataset_that_cannot_be_loaded_is_refused(self, tmp_path: Path, monkeypatch) -> None:
        datasets = pytest.importorskip("datasets")

        def fail(*arguments: object) -> None:
            raise FileNotFoundError("Couldn't find it\nA second line.")

        monkeypatch.setattr(datasets, "load_dataset", fail)
        message = refusal(self.config(tmp_path / "nowhere"))
        assert f"{tmp_path}/nowhere" in message
        assert "Couldn't find it" in message

    def test_without_the_library_says_what_to_install(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        assert "pip install 'leadline[datasets]'" in refusal(self.config(tmp_path))


def test_a_byte_order_mark_is_not_text(write) -> None:
    folder = write({"train.de": b"\xef\xbb\xbfeins\n", "train.en": ["one"], "valid.de": ["x"], "valid.en": ["y"]})
    config = DataConfig(source=f"text:{folder}")
    assert list(open_source(config).pairs("train")) == [("eins", "one")]
