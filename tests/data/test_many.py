"""Pairs of many languages: what a folder may hold, what it becomes, and what is said of one that is wrong."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leadline.config import DataConfig
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import UNK, Tokenizer, learn, tag
from leadline.errors import UserError

WORDS = {"de": "eins zwei drei vier", "fr": "un deux trois quatre", "en": "one two three four", "ja": "一 二 三 四"}
Folder = Callable[..., DataConfig]


def lines(language: str, count: int) -> list[str]:
    words = WORDS[language].split()
    return [" ".join(words[(i // 4**k) % 4] for k in range(4)) for i in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """files={"train.de-en": 40} -> both files of the pair, of so many lines; the config that reads them."""

    def write(files: dict[str, int] | None = None, **changes) -> DataConfig:
        wanted = files or {"train.de-en": 40, "train.fr-en": 20, "valid.de-en": 5, "valid.fr-en": 5, "test.de-en": 4}
        for name, count in wanted.items():
            for language in name.split(".")[1].split("-"):
                path = tmp_path / f"{name}.{language}"
                path.write_text("".join(f"{line}\n" for line in lines(language, count)), encoding="utf-8")
        return DataConfig(source=f"many:{tmp_path}", **{"vocab_size": 300, **changes})

    return write


def test_both_directions_of_every_pair_are_the_default(folder: Folder, tmp_path: Path) -> None:
    many = open_source(folder())
    assert many.config.directions == ("de-en", "en-de", "en-fr", "fr-en")
    assert many.splits() == ("train", "valid", "test")
    streams = {(source, target): list(pairs) for source, target, pairs in many.streams("train")}
    assert {key: len(pairs) for key, pairs in streams.items()} == {
        ("de", "en"): 40, ("en", "de"): 40, ("en", "fr"): 20, ("fr", "en"): 20,
    }  # fmt: skip
    assert streams["de", "en"] == list(zip(lines("de", 40), lines("en", 40), strict=True))
    assert streams["en", "fr"] == list(zip(lines("en", 20), lines("fr", 20), strict=True))
    assert [(s, t) for s, t, _ in many.streams("test")] == [("de", "en"), ("en", "de")]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (("both",), ("de-en", "en-de", "en-fr", "fr-en")),
        (("X-en",), ("de-en", "fr-en")),
        (("en-X",), ("en-de", "en-fr")),
        (("fr-en", "en-X"), ("en-de", "en-fr", "fr-en")),
        (("de-en",), ("de-en",)),
    ],
)
def test_directions_are_chosen(folder: Folder, asked: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    assert open_source(folder(directions=asked)).config.directions == chosen


def test_files_may_be_packed_and_in_folders_as_opus_100_has_them(tmp_path: Path) -> None:
    for place, name, openers in (
        ("supervised/de-en", "opus.de-en-train", (open, gzip.open)),
        ("supervised/de-en", "opus.de-en-dev", (lzma.open, open)),
        ("supervised/en-fr", "opus.en-fr-train", (open, open)),
        ("zero-shot/de-fr", "opus.de-fr-test", (open, open)),
    ):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for language, opener in zip(name.split(".")[1].split("-"), openers, strict=False):
            ending = {gzip.open: ".gz", lzma.open: ".xz"}.get(opener, "")
            with opener(tmp_path / place / f"{name}.{language}{ending}", "wt", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines(language, 6))
    (tmp_path / "supervised/de-en/README").touch()
    many = open_source(DataConfig(source=f"many:{tmp_path}"))
    assert many.config.directions == ("de-en", "en-de", "en-fr", "fr-en")
    assert [(s, t) for s, t, _ in many.streams("zero")] == [("de", "fr"), ("fr", "de")]
    assert "no valid files of en-fr" in " ".join(many.notes())


def test_one_pair_of_such_a_folder_is_text(folder: Folder) -> None:
    config = folder(source_lang="fr", target_lang="en")
    text = open_source(DataConfig(source=config.source.replace("many:", "text:"), source_lang="fr"))
    assert list(text.pairs("train")) == list(zip(lines("fr", 20), lines("en", 20), strict=True))


def test_rows_of_a_direction_stand_together_with_its_tag_first(folder: Folder) -> None:
    folder({"zero.de-fr": 3})
    store = Store(prepare(folder(temperature=5.0)))
    assert store.directions("train") == {"de-en": 40, "en-de": 40, "en-fr": 20, "fr-en": 20}
    assert store.directions("zero") == {"de-fr": 3, "fr-de": 3}
    train, begin = store.split("train"), 0
    for direction, size in store.directions("train").items():
        for row in range(begin, begin + size):
            source, target = train[row]
            assert source[0] == store.tokenizer.special(tag(direction.split("-")[1]))
            assert store.tokenizer.decode([source.tolist()]) == [lines(direction.split("-")[0], 40)[row - begin]]
            assert store.tokenizer.decode([target.tolist()]) == [lines(direction.split("-")[1], 40)[row - begin]]
        begin += size
    assert store.sentences("test", "en-de") == list(zip(lines("en", 4), lines("de", 4), strict=True))


def test_a_tag_on_the_other_side_is_not_in_the_source(folder: Folder) -> None:
    store = Store(prepare(folder(tag="target")))
    tags = {store.tokenizer.special(tag(language)) for language in ("de", "en", "fr")}
    assert not any({*side.tolist()} & tags for row in range(120) for side in store.split("train")[row])


def test_sentences_that_are_there_in_all_languages_are_of_every_direction(folder: Folder, tmp_path: Path) -> None:
    for language in WORDS:
        (tmp_path / f"flores.{language}").write_text("\n".join(lines(language, 7)), encoding="utf-8")
    store = Store(prepare(folder()))
    expected = {"de-en", "de-fr", "en-de", "en-fr", "fr-de", "fr-en"}  # nothing is known of ja
    assert store.directions("flores") == dict.fromkeys(sorted(expected), 7)
    assert store.sentences("flores", "fr-de") == list(zip(lines("fr", 7), lines("de", 7), strict=True))
    (tmp_path / "flores.fr").write_text("un\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"flores\.fr ends after 1 lines"):
        prepare(folder())


def test_where_a_pair_is_from_is_kept_beside_it(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "test.de-en.origin").write_text("t\nl\nt\nw\n")
    store = Store(prepare(folder()))
    assert [store.origins("test", direction) for direction in ("de-en", "en-de")] == [["t", "l", "t", "w"]] * 2
    assert store.sentences("test", "en-de") == list(zip(lines("en", 4), lines("de", 4), strict=True))
    assert store.origins("valid", "de-en") == []
    (tmp_path / "test.de-en.origin").write_text("t\nl\n")
    with pytest.raises(UserError, match=r"test\.de-en\.origin has not as many lines as the pairs it describes"):
        prepare(folder())


def test_number_words_need_no_folder() -> None:
    config = DataConfig(directions=("de-en", "en-de", "en-fr", "fr-en"), size=30, vocab_size=400)
    many = open_source(config)
    assert [len(list(pairs)) for _, _, pairs in many.streams("train")] == [30] * 4
    assert [(s, t) for s, t, _ in many.streams("zero")] == [("de", "fr"), ("fr", "de")]
    assert open_source(DataConfig(directions=("X-it",), size=3)).config.directions[0] == "ca-it"


# What is wrong with a folder.


def test_of_two_files_for_the_same_none_is_left_out_silently(folder: Folder, tmp_path: Path) -> None:
    config = folder()
    for name in ("test.de-en.origin", "test.de-en.origin.gz"):
        (tmp_path / name).touch()
    with pytest.raises(
        UserError, match=r"test\.de-en\.origin and .*test\.de-en\.origin\.gz are both the origins of test"
    ):
        open_source(config)
    (tmp_path / "test.de-en.origin.gz").unlink()
    for zero in ("zero.de-fr", "zero.fr-de"):
        folder({"test.de-fr": 4, zero: 4})
        said = (
            rf"test\.de-fr\.de and .*{zero}\.de are both the text that is only tested of {zero[5:]}: keep one of them"
        )
        with pytest.raises(UserError, match=said):
            open_source(config)
        for language in ("de", "fr"):
            (tmp_path / "a").mkdir(exist_ok=True)
            (tmp_path / f"{zero}.{language}").rename(tmp_path / "a" / f"{zero}.{language}")
        with pytest.raises(UserError, match=rf"a/{zero}\.de and .*test\.de-fr\.de are both the text"):
            open_source(config)
        for path in (tmp_path / "a").iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train.fr-en.fr", "un\n", r"train\.fr-en\.fr ends after 1 lines but .*train\.fr-en\.en goes on"),
        ("train.fr-en.fr", "", r"train\.fr-en\.fr ends after 0 lines"),
        ("train.fr-en.en", "\n" * 20, r"no line of .*train\.fr-en\.fr and .*train\.fr-en\.en has text on both sides"),
        ("train.en-de.de", "eins\n", r"train\.de-en\.de and .*train\.en-de\.de are both the train text of de-en in de"),
        ("train.pt-br-en.pt-br", "um\n", r"train\.pt-br-en\.pt-br is not named after two languages, .*pt_br"),
        ("valid.english-de.de.xz", "", r"valid\.english-de\.de\.xz is not named after two languages"),
        (
            "train.de-en.de.gz",
            "",
            r"train\.de-en\.de and .*train\.de-en\.de\.gz are both the train text of de-en in de",
        ),
        ("train.de-ja.ja", "一\n", r"train\.de-ja\.ja has no counterpart in de: add it"),
        ("train.zh-Hant-en.en", "a\n", r"train\.zh-Hant-en\.en is not named after two languages, each written as de"),
        ("valid.日-en.日.xz", "", r"valid\.日-en\.日\.xz is not named after two languages"),
        ("train.de-de.de", "a\n", r"train\.de-de\.de is not named after two languages"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_file(
    folder: Folder, tmp_path: Path, name: str, text: str, said: str
) -> None:
    config = folder()
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        prepare(config)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)], ids=["pipe", "dir", "loop"])
def test_what_is_not_a_file_is_told_at_once(make: Callable[[Path], None], folder: Folder, tmp_path: Path) -> None:
    config = folder()
    (tmp_path / "train.de-en.de").unlink()
    make(tmp_path / "train.de-en.de")
    with pytest.raises(UserError, match=r"train\.de-en\.de should be the train text of de-en in de and is not a file"):
        open_source(config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"directions": ("de-fr",)}, r"has no direction 'de-fr': .*the choices are de-en, en-de, en-fr, fr-en"),
        ({"directions": ("X-it",)}, "has no direction 'X-it'"),
        ({"directions": ("de>en",)}, "'de>en' is not a direction: write de-en"),
        ({"temperature": 0.5}, r"data\.temperature must be 1 \(as the data is\) or more, not 0\.5"),
        ({"text": "moses"}, r"set data\.text=raw and data\.tokenizer=bpe, not moses and bpe"),
        ({"tokenizer": "wordpiece"}, "not raw and wordpiece"),
    ],
)
def test_what_cannot_be_asked_for(folder: Folder, changes: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_source(folder(**changes))


def test_a_folder_without_pairs_or_without_valid_files(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no pairs of files train\.xx-yy\.xx"):
        open_source(DataConfig(source=f"many:{tmp_path}"))
    config = folder({"train.de-en": 4})
    with pytest.raises(UserError, match=r"has no valid\.de-en\.de, nor valid files of another pair"):
        open_source(config)
    assert len(list(open_source(folder({"train.de-en": 4}, holdout=1)).pairs("valid"))) == 2
    with pytest.raises(UserError, match=r"data\.directions is for many languages, and data\.source=text:"):
        open_source(DataConfig(source=f"text:{tmp_path}", directions=("de-en",)))


# The vocabulary.

SCRIPTS = {
    "ar": "هذا نص قصير.", "de": "Ein kürzerer Satz: „süß“!", "es": "¿Qué más?", "fr": "Ça y est, l’été…",
    "he": "זה משפט קצר.", "hi": "यह एक छोटा वाक्य है।", "ja": "これは短い文です。", "nl": "Eén zin, ’s avonds.",
    "pl": "Zażółć gęślą jaźń.", "ru": "Это короткое предложение.", "tr": "Işık çok güçlü, değil mi?",
    "zh": "这是一个短句。",
}  # fmt: skip


def vocabulary(text: list[str], size: int, *languages: str) -> Tokenizer:
    config = DataConfig(vocab_size=size, directions=("X-en",))
    return Tokenizer(learn(text, config, languages=languages), config)


def test_no_character_of_any_script_is_lost() -> None:
    known = vocabulary(["one two three four", "eins zwei drei vier"], 290, "en", "de")
    for text in [*SCRIPTS.values(), "unseen 🎉👩‍👩‍👧 😀", "𓀀 ﷽ \u200b x", "<0x41> <pad> <s>"]:
        (tokens,) = known.encode([text], "")
        assert UNK not in tokens
        assert known.decode([tokens]) == [text]


def test_the_mark_of_a_space_becomes_one() -> None:
    known = vocabulary(["one two three four", "eins zwei drei vier"], 290, "en", "de")
    assert known.decode(known.encode(["one▁two"], "")) == ["one two"]


def test_rare_characters_are_bytes_and_frequent_ones_are_not() -> None:
    text = ["abab " * 2000, "x漢"]
    known = vocabulary(text, 266, "en")
    assert known.bpe.token_to_id("a")
    assert known.bpe.token_to_id("漢") is None
    assert known.decode(known.encode(["漢ab"], "")) == ["漢ab"]


def test_a_tag_in_somebodys_text_stays_text() -> None:
    known = vocabulary([f"{tag('fr')} <to fr> <to en> one two " * 50], 283, "en", "fr")
    tags = {known.special(tag("en")), known.special(tag("fr"))}
    text = "one <to fr> two <to en>"
    (tokens,) = known.encode([text], "")
    assert not {*tokens} & tags
    assert known.decode([tokens]) == [text]
    assert known.decode([[*tags, *tokens]]) == [text]  # and a tag is never text
    with pytest.raises(UserError, match="this vocabulary has no <to it>: use one that was learnt on the languages"):
        known.special(tag("it"))


def test_the_temperature_is_that_of_the_vocabulary_too(folder: Folder) -> None:
    """A language with a hundredth of the text has a fair share of the merges."""
    files = {"train.de-en": 256, "train.ja-en": 2, "valid.de-en": 2}
    shares = []
    for temperature in (1.0, 100.0):
        store = Store(prepare(folder(files, temperature=temperature, vocab_size=300)))
        shares.append(len(store.tokenizer.encode(["一 二 三 四"], "ja")[0]))
    assert shares[1] < shares[0]
