"""Documents as shards: they hold the text, whoever makes them and however often it is interrupted."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leadline.config import DataConfig, to_dict
from leadline.data import corpus
from leadline.data.sentences import splitter
from leadline.data.sequences import cut
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.errors import UserError

COUNT = 430


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    rng, path = random.Random(1), tmp_path_factory.mktemp("text") / "text.txt"
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 8))) for _ in range(200)]
    lines = [f"Text {i}. " + " ".join(rng.choices(words, k=rng.randint(1, 40))) + ". The end!" for i in range(COUNT)]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return DataConfig(source=f"documents:{path}", source_lang="en", vocab_size=150, lowercase=True)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "BLOCK", 6000)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def documents_of(store: Store, split: str) -> list[list[list[int]]]:
    return [[s.tolist() for s in document] for shard in store.documents(split) for document in shard.each()]


@pytest.mark.parametrize("changes", [{}, {"tokenizer": "wordpiece"}, {"text": "moses"}, {"text": "moses_normalize"}])
def test_the_store_holds_every_sentence_of_every_document(config, tmp_path: Path, changes: dict[str, str]) -> None:
    config = dataclasses.replace(config, **changes)
    store = Store(prepare(config, tmp_path / "data"))
    texts = [text for _, text in open_source(config).paragraphs()]
    expected = [store.tokenizer.encode(splitter("en")(text), "en") for text in texts]
    valid = [corpus.is_valid(i, COUNT, config) for i in range(COUNT)]
    for split, chosen in (("train", False), ("valid", True)):
        assert documents_of(store, split) == [d for d, v in zip(expected, valid, strict=True) if v == chosen]
    assert store.manifest["splits"]["train"]["documents"] == COUNT - 2
    assert store.manifest["splits"]["train"]["sentences"] == sum(map(len, expected)) - sum(
        len(d) for d, v in zip(expected, valid, strict=True) if v
    )


def test_one_document_in_two_hundred_is_for_validation(config) -> None:
    chosen = [i for i in range(1000) if corpus.is_valid(i, 1000, config)]
    assert [i // 200 for i in chosen] == [0, 1, 2, 3, 4]
    other = dataclasses.replace(config, seed=1)
    assert chosen != [i for i in range(1000) if corpus.is_valid(i, 1000, other)]
    assert sum(corpus.is_valid(i, 1199, config) for i in range(1199)) == 5
    assert sum(corpus.is_valid(i, 7, config) for i in range(7)) == 1


def test_processes_make_the_same_shards_as_one_alone(config, tmp_path: Path, small_blocks, monkeypatch) -> None:
    monkeypatch.setattr(corpus.os, "sched_getaffinity", lambda _: {0, 1})
    many = contents(prepare(config, tmp_path / "many"))
    monkeypatch.setattr(corpus.os, "sched_getaffinity", lambda _: {0})
    assert many == contents(prepare(config, tmp_path / "one"))
    assert sum(name.startswith("train") for name in many) > 15


KILLED = """
import json, os, signal, sys
from pathlib import Path
from leadline.config import DataConfig
from leadline.data import corpus
from leadline.data.store import prepare

corpus.BLOCK = 6000
corpus.os.sched_getaffinity = lambda _: {0}
written, calls = corpus.written, []

def written_or_killed(path):
    calls.append(path)
    if len(calls) == 20:
        path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(b"half")
        path.write_bytes(b"half of it, too")
        os.kill(os.getpid(), signal.SIGKILL)
    return written(path)

corpus.written = written_or_killed
prepare(DataConfig(**json.loads(sys.argv[1])), Path(sys.argv[2]))
"""


def test_a_killed_preparation_goes_on_behind_its_finished_shards(config, tmp_path, small_blocks, monkeypatch) -> None:
    monkeypatch.setattr(corpus.os, "sched_getaffinity", lambda _: {0})
    out = tmp_path / "data"
    done = subprocess.run([sys.executable, "-c", KILLED, json.dumps(to_dict(config)), str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    made: list[int] = []
    encode = corpus._Encoder.encode
    monkeypatch.setattr(corpus._Encoder, "encode", lambda *a: made.append(a[1]) or encode(*a))
    monkeypatch.setattr(corpus, "learn", lambda *a, **k: pytest.fail("the vocabulary is there already"))
    assert prepare(config, out) == out
    monkeypatch.undo()
    monkeypatch.setattr(corpus, "BLOCK", 6000)
    assert contents(out) == contents(prepare(config, tmp_path / "whole"))
    assert made[0] > 3
    assert made == list(range(made[0], made[-1] + 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "whole"]


def test_it_is_prepared_once_and_again_when_the_text_changes(config, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("One is here. Two is there.\n\nThree is nowhere.\n\nAnd four.")
    changed = dataclasses.replace(config, source=f"documents:{text}", vocab_size=30)
    out = prepare(changed)
    at = (out / "manifest.json").stat().st_mtime_ns
    assert (prepare(changed) / "manifest.json").stat().st_mtime_ns == at
    text.write_text("One is here. Two is there.\n\nThree is nowhere.\n\nAnd five.")
    assert prepare(changed) != out


def test_a_process_that_dies_is_one_sentence(config, tmp_path: Path, small_blocks, monkeypatch) -> None:
    monkeypatch.setattr(corpus.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(corpus.sys, "executable", "/bin/true")
    with pytest.raises(UserError, match="has died: prepare again"):
        prepare(config, tmp_path / "data")


def test_a_task_is_told_what_data_it_needs(config, masked, tiny, tmp_path: Path) -> None:
    documents, pairs = Store(prepare(masked.data)), Store(prepare(tiny.data))
    with pytest.raises(UserError, match=r"holds documents, and this task needs pairs: .* data.source=text:FOLDER"):
        documents.split("train")
    with pytest.raises(UserError, match=r"holds pairs, and this task needs documents: .*documents:PATH"):
        pairs.documents("train")
    with pytest.raises(UserError, match="no test split, only train, valid"):
        documents.documents("test")


@pytest.fixture(scope="module")
def shards(config, tmp_path_factory: pytest.TempPathFactory) -> list[corpus.Shard]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BLOCK", 20000)
        return Store(prepare(config, tmp_path_factory.mktemp("shards") / "data")).documents("train")


@pytest.mark.parametrize("room", [7, 30, 1000])
def test_sequences_are_whole_sentences_of_one_document_and_lose_nothing(shards, room: int) -> None:
    assert len(shards) > 2
    found = cut(shards, room)
    assert found.lengths().max() <= room
    assert found.lengths().sum() == sum(len(shard.tokens) for shard in shards)
    at = 0
    for number, shard in enumerate(shards):
        ends = {0, *shard.ends.tolist()}
        edges = [0, *shard.ends[shard.documents - 1].tolist()]
        while at < len(found) and found.shard[at] == number:
            begin, end = int(found.begins[at]), int(found.ends[at])
            breaks = found.breaks(np.array([at])).tokens.tolist()
            document = np.searchsorted(edges, begin, side="right")
            assert end <= edges[document]  # of one document
            if end not in ends:  # only a sentence that does not fit is cut, and only where the room ends
                assert end - begin == room
                assert not breaks
            elif end < edges[document]:  # the next sentence did not fit
                assert shard.ends[np.searchsorted(shard.ends, end, side="right")] - begin > room
            assert set(breaks) == {e for e in ends if begin < e < end}
            at += 1
    assert at == len(found)
    rows = np.random.default_rng(0).permutation(len(found))  # of all shards at once, in any order
    places = [(shards[found.shard[row]], found.begins[row], found.ends[row]) for row in rows]
    expected = np.concatenate([shard.tokens[begin:end] for shard, begin, end in places])
    assert np.array_equal(found.gather(found.places(rows)).tokens, expected)
    assert len(set(found.documents.tolist())) == COUNT - 2


TITLED = """= One =
First line, 1.  Two  spaces.
  indented \t 🙂

Another line; e\u0301 is not é

= Two =
== A heading ==
x
"""


class TestBytes:
    """data.tokenizer=byte_bpe: documents to the byte, each with its end."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> DataConfig:
        titles = "".join(f"= T{i} =\nthe line {i}\n" for i in range(COUNT))
        (tmp_path / "text.txt").write_text(TITLED + titles, encoding="utf-8")
        return DataConfig(source=f"documents:{tmp_path / 'text.txt'}", tokenizer="byte_bpe", vocab_size=290)

    def test_a_document_is_its_lines_and_an_end(self, config: DataConfig, tmp_path: Path) -> None:
        store = Store(prepare(config, tmp_path / "data"))
        end = store.tokenizer.end_of_text
        documents = [sum(d, []) for split in ("train", "valid") for d in documents_of(store, split)]  # noqa: RUF017
        assert all(tokens[-1] == end and tokens.count(end) == 1 for tokens in documents)
        first = "One\nFirst line, 1.  Two  spaces.\n  indented \t 🙂\nAnother line; e\u0301 is not é"
        expected = [first, "Two\nA heading\nx", *(f"T{i}\nthe line {i}" for i in range(COUNT))]
        assert sorted(store.tokenizer.decode([tokens[:-1] for tokens in documents])) == sorted(expected)
        assert store.manifest["splits"]["train"]["documents"] + store.manifest["splits"]["valid"]["documents"] == len(
            expected
        )

    def test_processes_make_the_same(self, config: DataConfig, tmp_path: Path, small_blocks, monkeypatch) -> None:
        alone, together = tmp_path / "alone", tmp_path / "together"
        monkeypatch.setattr(corpus.machine, "cores", lambda: 1)
        prepare(config, alone)
        monkeypatch.setattr(corpus.machine, "cores", lambda: 2)
        prepare(config, together)
        assert len(list(alone.glob("train-*.tokens.npy"))) > 1
        assert contents(alone) == contents(together)


def test_an_end_is_put_behind_every_document() -> None:
    shard = corpus.Shard(
        np.arange(10, 17, dtype=np.uint16), np.array([2, 3, 7], np.uint32), np.array([2, 3], np.uint32)
    )
    found = corpus.ended(shard, 1)
    assert found.tokens.tolist() == [10, 11, 12, 1, 13, 14, 15, 16, 1]
    assert found.tokens.dtype == np.uint16
    assert (found.ends.tolist(), found.documents.tolist()) == ([2, 4, 9], [2, 3])
