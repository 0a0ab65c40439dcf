"""Prepared data: what was text comes back as its tokens, and a folder is whole, found again, or absent."""

from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from leadline.config import DataConfig
from leadline.data import manifest, parallel, store, words
from leadline.data.pairs import TextFolder
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.files import sha256

pytestmark = pytest.mark.usefixtures("fresh_cache")
SPLITS = ("train", "valid", "test")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", 200)
    monkeypatch.setattr(parallel, "CHUNK", 2)


def encoded(opened: Store, config: DataConfig, split: str) -> list[tuple[list[int], list[int]]]:
    """The tokens of every pair, one line at a time from the text itself."""
    encode = opened.tokenizer.encode
    return [
        (encode([left], config.source_lang)[0], encode([right], config.target_lang)[0])
        for left, right in open_source(config).pairs(split)
    ]


def rows(opened: Store, split: str) -> list[tuple[list[int], list[int]]]:
    found = opened.split(split)
    return [(left.tolist(), right.tolist()) for left, right in (found[i] for i in range(len(found)))]


def refusal(config: DataConfig, out: Path | None = None) -> str:
    with pytest.raises(UserError) as error:
        prepare(config, out)
    assert "\n" not in str(error.value)
    return str(error.value)


def replace_line(config: DataConfig, name: str, line: str) -> None:
    path = Path(config.source.removeprefix("text:")) / name
    path.write_text("\n".join([line, *path.read_text(encoding="utf-8").split("\n")[1:]]), encoding="utf-8")


def test_tokens_come_back_from_one_shard(corpus) -> None:
    config = corpus()
    opened = Store(prepare(config))
    for split in SPLITS:
        assert opened.manifest["splits"][split]["shards"] == 1
        assert rows(opened, split) == encoded(opened, config, split)


@pytest.mark.usefixtures("small_shards")
def test_tokens_come_back_from_several_shards(corpus) -> None:
    config = corpus()
    opened = Store(prepare(config))
    sizes = [len(tokens) for tokens in opened.split("train").tokens]
    assert len(sizes) == opened.manifest["splits"]["train"]["shards"] > 3
    assert all(200 <= size < 400 for size in sizes[:-1])
    for split in SPLITS:
        assert rows(opened, split) == encoded(opened, config, split)


@pytest.mark.usefixtures("small_shards")
def test_lengths_are_those_of_the_rows(corpus) -> None:
    opened = Store(prepare(corpus()))
    for split in SPLITS:
        lengths = opened.split(split).lengths()
        assert lengths.tolist() == [[len(left), len(right)] for left, right in rows(opened, split)]


@pytest.mark.parametrize("shard_tokens", [200, 1 << 24], ids=["several shards", "one shard"])
def test_rows_are_gathered_in_any_order(corpus, monkeypatch, shard_tokens: int) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", shard_tokens)
    monkeypatch.setattr(parallel, "CHUNK", 2)
    config = corpus()
    opened = Store(prepare(config))
    split, expected = opened.split("train"), encoded(opened, config, "train")
    assert (len(split.tokens) == 1) == (shard_tokens > 200)
    shuffled = np.random.default_rng(0).permutation(len(split))
    for chosen in (shuffled, shuffled[:7], np.array([3]), np.array([0, len(split) - 1, 0])):
        for side, found in enumerate(split.gather(chosen)):
            rows_of_side = [expected[row][side] for row in chosen]
            assert found.tokens.tolist() == [token for tokens in rows_of_side for token in tokens]
            assert found.lengths.tolist() == [len(tokens) for tokens in rows_of_side]
            assert found.tokens.dtype == np.int64


def test_a_row_that_is_not_there_is_an_index_error(corpus) -> None:
    split = Store(prepare(corpus())).split("train")
    with pytest.raises(IndexError):
        split[len(split)]


def test_a_shard_that_ends_with_the_split_is_not_followed_by_an_empty_one(corpus, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", 1)  # every chunk fills a shard
    monkeypatch.setattr(parallel, "CHUNK", 10)
    opened = Store(prepare(corpus(train=50)))
    assert opened.manifest["splits"]["train"]["shards"] == 5
    assert all(len(ends) == 10 for ends in opened.split("train").ends)


def test_pairs_that_are_left_out_behind_the_last_shard_make_no_empty_one(write, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", 1)
    monkeypatch.setattr(parallel, "CHUNK", 1)
    two = {"train.de": ["ein", ""], "train.en": ["a", "dog"], "valid.de": ["ein"], "valid.en": ["a"]}
    opened = Store(prepare(DataConfig(source=f"text:{write(two)}", vocab_size=16)))
    train = opened.manifest["splits"]["train"]
    assert (train["rows"], train["shards"], train["empty_left_out"]) == (1, 1, 1)


@pytest.mark.usefixtures("small_shards")
def test_the_manifest_counts_and_hashes_what_is_there(corpus) -> None:
    config = corpus()
    folder = prepare(config)
    opened, facts = Store(folder), json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for split in SPLITS:
        expected = encoded(opened, config, split)
        counts = facts["splits"][split]
        assert counts["rows"] == len(opened.split(split)) == len(expected)
        assert counts["tokens"] == [sum(len(row[side]) for row in expected) for side in (0, 1)]
        assert counts["empty_left_out"] == 0
    files = {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert facts["sha256"] == {name: sha256(folder / name) for name in files}
    assert facts["vocab_size"] == config.vocab_size == opened.tokenizer.vocab_size
    assert opened.data == config


def test_the_text_of_valid_and_test_is_kept_as_it_was(corpus) -> None:
    config = corpus()
    replace_line(config, "valid.en", 'a "quote", \\ a\u2028separator\x85 and a\ttab')
    opened = Store(prepare(config))
    for split in ("valid", "test"):
        assert opened.sentences(split) == list(open_source(config).pairs(split))


def test_the_same_corpus_gives_the_same_bytes(corpus, tmp_path: Path) -> None:
    first, second = (prepare(corpus(), tmp_path / name) for name in ("first", "second"))
    files = {path.name for path in first.iterdir()}
    assert files == {path.name for path in second.iterdir()}
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


class TestReuse:
    @pytest.fixture
    def reads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The splits whose pairs were asked for, in order."""
        asked: list[str] = []
        pairs = TextFolder.pairs

        def counted(self: TextFolder, split: str):
            asked.append(split)
            return pairs(self, split)

        monkeypatch.setattr(TextFolder, "pairs", counted)
        return asked

    @pytest.mark.parametrize("out", [None, "chosen"])
    def test_unchanged_data_is_found_and_not_read_again(self, corpus, reads, tmp_path, out: str | None) -> None:
        config, where = corpus(), out and tmp_path / out
        folder = prepare(config, where)
        before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [folder, *folder.iterdir()]}
        assert set(reads) == set(SPLITS)
        reads.clear()
        assert prepare(config, where) == folder
        assert reads == []
        assert before == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [folder, *folder.iterdir()]}

    def test_a_copy_of_the_text_elsewhere_finds_the_same_data(self, corpus, reads) -> None:
        folder = prepare(corpus(folder="here"))
        reads.clear()
        assert prepare(corpus(folder="there")) == folder
        assert reads == []

    @pytest.mark.parametrize("name", ["train.de", "train.en", "valid.en", "test.de"])
    def test_a_changed_file_is_prepared_again(self, corpus, name: str) -> None:
        config = corpus()
        before = prepare(config)
        replace_line(config, name, "die Katze and the cat")
        after = Store(prepare(config))
        assert after.folder != before
        split = name.partition(".")[0]
        assert rows(after, split) == encoded(after, config, split)
        assert "cat" in after.tokenizer.decode(rows(after, split)[0])[name.endswith("en")]

    @pytest.mark.parametrize("change", [{"vocab_size": 90}, {"lowercase": True}, {"text": "tokenized"}])
    def test_a_changed_config_is_prepared_again(self, corpus, change: dict[str, object]) -> None:
        config = corpus()
        before = prepare(config)
        changed = dataclasses.replace(config, **change)
        after = prepare(changed)
        assert after != before
        assert Store(after).data == changed
        assert Store(after).tokenizer.vocab_size == changed.vocab_size

    @pytest.mark.parametrize("what", ["options", "text"])
    def test_a_chosen_folder_with_other_data_is_refused_and_stays(self, corpus, tmp_path: Path, what: str) -> None:
        config, out = corpus(), tmp_path / "chosen"
        prepare(config, out)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        other = dataclasses.replace(config, vocab_size=90) if what == "options" else config
        if what == "text":
            replace_line(config, "train.de", "die Katze")
        assert (
            refusal(other, out)
            == f"{out} holds other data, of other text or options: choose another --out, or remove it"
        )
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert [path.name for path in tmp_path.iterdir() if "chosen" in path.name] == ["chosen"]


@pytest.mark.parametrize("stage", ["learning BPE", "encoding train", "encoding test"])
@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_preparation_leaves_nothing(corpus, fresh_cache: Path, stage: str) -> None:
    def interrupt(what: str, done: int) -> None:
        if what == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(corpus(), progress=interrupt)
    assert [path.name for path in fresh_cache.iterdir() if path.name != ".remembered"] == []


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_preparation_keeps_the_data_that_was_there(corpus, tmp_path: Path) -> None:
    def interrupt(what: str, done: int) -> None:
        raise KeyboardInterrupt

    config, out = corpus(), tmp_path / "chosen"
    prepare(config, out)
    (out / "tokenizer.json").write_text("{}")  # damaged, so that it is made again
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        prepare(config, out, progress=interrupt)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.usefixtures("small_shards")
def test_progress_counts_every_pair_encoded(corpus) -> None:
    done = dict.fromkeys(SPLITS, 0)

    def count(what: str, pairs: int) -> None:
        if what.startswith("encoding "):
            done[what.removeprefix("encoding ")] += pairs

    prepare(corpus(train=50, valid=9, test=3), progress=count)
    assert done == {"train": 50, "valid": 9, "test": 3}


def test_pairs_with_an_empty_side_are_left_out_and_counted(write) -> None:
    folder = write(
        {
            "train.de": ["ein Hund", "", "zwei", " \t\u2028", "drei Katzen"],
            "train.en": ["a dog", "nothing", "\u00a0", "", "three cats"],
            "valid.de": ["", "ein"],
            "valid.en": ["x", "a"],
        }
    )
    opened = Store(prepare(DataConfig(source=f"text:{folder}", vocab_size=40)))
    train, valid = (opened.manifest["splits"][split] for split in ("train", "valid"))
    assert (train["rows"], train["empty_left_out"]) == (2, 3)
    assert (valid["rows"], valid["empty_left_out"]) == (1, 1)
    assert [opened.tokenizer.decode(row) for row in rows(opened, "train")] == [
        ["ein Hund", "a dog"],
        ["drei Katzen", "three cats"],
    ]
    assert opened.sentences("valid") == [("ein", "a")]  # row by row with the tokens


def test_a_split_without_any_text_is_refused(write, fresh_cache: Path) -> None:
    files = {"train.de": ["ein Hund"], "train.en": ["a dog"], "valid.de": ["", ""], "valid.en": ["a", "b"]}
    message = refusal(DataConfig(source=f"text:{write(files)}", vocab_size=20))
    assert "valid" in message
    assert [path.name for path in fresh_cache.iterdir() if path.name != ".remembered"] == []


class TestPrepared:
    def test_a_folder_is_used_as_it_is(self, corpus, tmp_path: Path) -> None:
        folder = prepare(corpus(), tmp_path / "chosen")
        assert prepare(DataConfig(source=f"prepared:{folder}")) == folder
        assert rows(Store(folder), "valid")

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        assert f"{tmp_path}/nowhere is not prepared data" in refusal(DataConfig(source=f"prepared:{tmp_path}/nowhere"))

    @pytest.mark.parametrize("text", [None, "", "{half", "{}", "[]", '{"name": "a web page"}'])
    def test_a_folder_of_something_else_is_refused(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "manifest.json").write_text(text)
        assert f"{tmp_path} is not prepared data" in refusal(DataConfig(source=f"prepared:{tmp_path}"))

    def test_another_format_is_refused(self, corpus, tmp_path: Path, monkeypatch) -> None:
        folder = prepare(corpus(), tmp_path / "chosen")
        monkeypatch.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
        assert f"{folder} was prepared by another version" in refusal(DataConfig(source=f"prepared:{folder}"))

    def test_a_folder_with_other_files_is_not_overwritten(self, corpus, tmp_path: Path) -> None:
        out = tmp_path / "thesis"
        out.mkdir()
        (out / "chapter.txt").write_text("years of work")
        assert str(out) in refusal(corpus(), out)
        assert [path.name for path in out.iterdir()] == ["chapter.txt"]

    def test_an_empty_folder_may_be_filled(self, corpus, tmp_path: Path) -> None:
        out = tmp_path / "empty"
        out.mkdir()
        assert rows(Store(prepare(corpus(), out)), "train")

    def test_a_split_that_is_not_there_is_refused_with_those_that_are(self, write) -> None:
        files = {"train.de": ["ein Hund"], "train.en": ["a dog"], "valid.de": ["ein"], "valid.en": ["a"]}
        opened = Store(prepare(DataConfig(source=f"text:{write(files)}", vocab_size=16)))
        with pytest.raises(UserError, match="no test split, only train, valid"):
            opened.split("test")


def test_memory_does_not_grow_with_the_corpus(corpus, monkeypatch) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", 2000)
    monkeypatch.setattr(parallel, "CHUNK", 32)
    monkeypatch.setattr(words, "REMEMBERED", 500)

    def peak(size: int) -> int:
        """Of the stages that go through train."""
        peaks = {"": 0}

        def look(what: str, done: int) -> None:
            if not tracemalloc.is_tracing():
                tracemalloc.start()
            peaks[what] = tracemalloc.get_traced_memory()[1]

        try:
            prepare(corpus(train=size, folder=str(size)), progress=look)
        finally:
            tracemalloc.stop()
        return max(peaks["learning BPE"], peaks["encoding train"])

    # Python's table of names may happen to grow in one of them.
    small, large = peak(400), min(peak(3200), peak(3201))
    assert large < 1.5 * small


def test_reading_a_row_maps_the_file_and_does_not_load_it(corpus) -> None:
    found = Store(prepare(corpus())).split("train")
    assert all(isinstance(array, np.memmap) for array in found.tokens)


def test_a_vocabulary_larger_than_the_text_gives_is_as_large_as_it_gets_and_says_so(corpus) -> None:
    largest = Store(prepare(corpus(vocab_size=5000)))
    size = largest.tokenizer.vocab_size
    assert largest.notes[0] == f"the text is enough for a vocabulary of {size:,}, not 5,000 tokens"
    asked = Store(prepare(corpus(vocab_size=size)))
    assert asked.tokenizer.encode(["ein Haus"], "de") == largest.tokenizer.encode(["ein Haus"], "de")
    assert not any("vocabulary" in note for note in asked.notes)


def test_a_vocabulary_too_small_is_refused_with_one_that_works(corpus) -> None:
    config = corpus(vocab_size=10)
    message = refusal(config)
    needed = re.search(r"characters alone need (\d+)", message)
    assert "data.vocab_size=10 is too small" in message
    assert needed
    works = dataclasses.replace(config, vocab_size=int(needed[1]) + 1)
    assert Store(prepare(works)).tokenizer.vocab_size == works.vocab_size


def test_a_file_is_not_a_folder_to_prepare_into(corpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "choose another folder" in refusal(corpus(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


class TestChoices:
    """What the text itself decides is told, and is what the data says of itself."""

    RAW = ("Das ist gut, sehr gut.", "That's good, very good.")
    TOKENISED = ("das ist gut , sehr gut .", "that &apos;s good , very good .")

    @pytest.fixture
    def folder(self, write):
        def _folder(pair: tuple[str, str], languages: tuple[str, str] = ("de", "en")) -> Path:
            lines = {
                language: [f"{text} {i}" for i in range(9)] for language, text in zip(languages, pair, strict=True)
            }
            return write({f"{s}.{language}": lines[language] for s in ("train", "valid") for language in languages})

        return _folder

    @pytest.mark.parametrize(
        ("pair", "text"), [(RAW, "raw"), (TOKENISED, "tokenized"), (("das ist gut", "that is good"), "raw")]
    )
    def test_auto_is_what_the_text_looks_like(self, folder, pair: tuple[str, str], text: str) -> None:
        asked = DataConfig(source=f"text:{folder(pair)}", text="auto", vocab_size=40)
        opened = Store(prepare(asked), asked)
        assert opened.data == dataclasses.replace(asked, text=text)
        assert opened.notes == [f"the text looks {'tokenised' if text == 'tokenized' else 'raw'}: data.text={text}"]
        assert prepare(dataclasses.replace(asked, text=text)) == opened.folder  # the same data as if it were said

    def test_raw_text_that_is_said_to_be_tokenised_is_told(self, folder) -> None:
        said = DataConfig(source=f"text:{folder(self.RAW)}", text="tokenized", vocab_size=40)
        (note,) = Store(prepare(said), said).notes
        assert note.startswith("the text looks raw")
        assert "data.text=raw" in note
        fitting = dataclasses.replace(said, source=f"text:{folder(self.TOKENISED)}")
        assert Store(prepare(fitting), fitting).notes == []

    def test_languages_of_the_folder_are_told_with_how_to_turn_them_round(self, folder) -> None:
        asked = DataConfig(source=f"text:{folder(self.RAW, ('fr', 'en'))}", vocab_size=40)
        opened = Store(prepare(asked), asked)
        assert (opened.data.source_lang, opened.data.target_lang) == ("fr", "en")
        (note,) = opened.notes
        assert note.startswith("from fr to en, the languages of the files")
        assert note.endswith("--set data.source_lang=en --set data.target_lang=fr turns it round")
        turned = dataclasses.replace(asked, source_lang="en", target_lang="fr")
        assert Store(prepare(turned), turned).notes == []
        given = DataConfig(source=f"prepared:{opened.folder}")
        assert Store(prepare(given), given).notes == []


def test_data_that_was_prepared_before_an_option_was_added_is_still_found() -> None:
    """The key that this config had when it had fewer options."""
    key = "1aaf8e0189a3793c37d22072a23d2c7e9be837a690144897ff7cd52cc4820116"
    assert store._key(DataConfig(), "pairs", "x") == key
    assert store._key(DataConfig(temperature=5.0), "pairs", "x") != key
