"""Text to tokens and back."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer as StandardTokenizer
from tokenizers import normalizers, pre_tokenizers

from leadline.config import DataConfig
from leadline.data import tokenizer as tokenizers
from leadline.data import words
from leadline.data.tokenizer import BERT_SPECIAL, BOS, EOS, PAD, SPECIAL, UNK, Tokenizer, clean, learn, tokenisation
from leadline.errors import UserError

RAW = {
    "de": "»Größe?«, fragte Jürgen (42) – das kostet 3,50 €; wie viel: 1.000 oder 10/2?",
    "en": "Don't panic! It's 9:30 a.m., isn't it?   50% of the state-of-the-art \"models\" … [fail].",
    "fr": "L'été, où êtes-vous allés ? « À la plage », répondit-elle.",
    "es": "¿Qué pasó? ¡Nada! El niño comió 2 piñas.",
    "ru": "«Привет», — сказал он. Объём: 5 м³, №7; ёжик.",
    "uk": "Їжак з’їв п'ять яблук; ґанок — її?",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "el": "Τι κάνεις; Καλά, ευχαριστώ!",
}
MOSES = {
    "de": 'Er sagte: "Das ist gut", und ging (nach Hause).',
    "en": "The cats & dogs don't sleep, do they? It's 3.5% more.",
    "ru": "Привет, мир! Как дела?",
}


def learned(lines: list[str], **changes) -> Tokenizer:
    """With as many merges as the lines allow."""
    config = DataConfig(vocab_size=100_000, **changes)
    cleaned = [clean(line, config, config.source_lang) for line in lines]
    most = learn(cleaned, config).get_vocab_size()
    few = most - most // 4  # so that some words are in several pieces
    return Tokenizer(learn(cleaned, DataConfig(vocab_size=few, **changes)), config)


@pytest.fixture(scope="module")
def raw() -> Tokenizer:
    return learned([*RAW.values()])


def normalised(line: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", line)).strip()


@pytest.mark.parametrize("language", RAW)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_raw_text_comes_back_normalised(raw: Tokenizer, language: str, form: str) -> None:
    line = f"  {unicodedata.normalize(form, RAW[language])}\t"
    assert raw.decode(raw.encode([line], language)) == [normalised(line)]


def test_words_are_in_several_pieces(raw: Tokenizer) -> None:
    (tokens,) = raw.encode([RAW["cs"]], "cs")
    assert len(tokens) > len(RAW["cs"].split()) + 1


def test_each_line_of_a_batch_is_encoded_as_if_alone(raw: Tokenizer) -> None:
    lines = [*RAW.values(), "", "a"]
    together = raw.encode(lines, "en")
    assert together == [raw.encode([line], "en")[0] for line in lines]
    assert raw.decode(together) == [raw.decode([tokens])[0] for tokens in together]


ODD = ["▁", "▁das", "das ▁das ▁ ▁▁", "x▁y ▁x x▁", "<pad> <to de>", "das, das", "a\u0301 \u0301", "\u200b 漢字 😀", ""]


@pytest.mark.parametrize("remembered", [0, 100, words.REMEMBERED])
@pytest.mark.parametrize(
    ("options", "learnt"),
    [
        ({}, {}),
        ({"text": "tokenized"}, {}),
        ({"tokenizer": "wordpiece"}, {}),
        ({}, {"documents": True}),
        ({}, {"languages": ["de", "en"]}),
    ],
)
def test_words_that_are_looked_up_are_what_the_library_makes_of_lines(monkeypatch, remembered, options, learnt) -> None:
    monkeypatch.setattr(words, "REMEMBERED", remembered)
    lines = [*RAW.values(), *ODD]
    size = 500 if learnt.get("languages") else 250
    config = DataConfig(vocab_size=size, **options)
    tokenizer = Tokenizer(learn(lines, config, **learnt), config)
    chooser = random.Random(0)
    for _ in range(10):
        some = [" ".join(chooser.choices(lines, k=chooser.randint(0, 3))) for _ in range(20)]
        cleaned = [clean(line, config, "en") for line in some]
        whole = [encoding.ids for encoding in tokenizer.bpe.encode_batch(cleaned, add_special_tokens=False)]
        assert tokenizer.encode(some, "en") == whole
    assert tokenizer._words.known


def test_words_that_an_interrupted_call_has_numbered_are_encoded_by_the_next(raw: Tokenizer, monkeypatch) -> None:
    fresh = Tokenizer(raw.bpe, raw.config)
    with monkeypatch.context() as patch:
        patch.setattr(fresh._words, "_whole", lambda lines: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fresh.encode(["das ist"], "de")
    assert fresh.encode(["ist ein", "das"], "de") == raw.encode(["ist ein", "das"], "de")
    assert fresh.encode([], "de") == []


def test_a_vocabulary_that_leaves_numbers_out_is_refused_where_a_shard_could_not_hold_them(raw: Tokenizer) -> None:
    state = json.loads(raw.bpe.to_str())
    state["model"] = {"type": "WordLevel", "vocab": {"▁a": 4, "▁b": 70_000, "<unk>": 3}, "unk_token": "<unk>"}
    state["added_tokens"] = []
    sparse = Tokenizer(StandardTokenizer.from_str(json.dumps(state)), raw.config)
    with pytest.raises(UserError, match="has 3 tokens and one of them is number 70,000"):
        sparse.stored(sparse.encode_flat(["b"], "de").tokens)


@pytest.mark.parametrize("change", ["tokens of several words", "a normaliser", "no ▁ at the beginning", "dropout"])
def test_words_of_other_vocabularies_are_not_looked_up(raw: Tokenizer, change: str) -> None:
    bpe = StandardTokenizer.from_str(raw.bpe.to_str())
    if change == "tokens of several words":
        bpe.add_tokens(["óda je", "ist das"])
    elif change == "a normaliser":
        bpe.normalizer = normalizers.Replace("s d", "sd")
    elif change == "dropout":
        bpe.model.dropout = 0.5
    else:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    other = Tokenizer(bpe, raw.config)
    lines = ["das ist das", "ódy óda je"]
    encoded = other.encode(lines, "en")
    assert not other._words.known
    if change != "dropout":
        assert encoded == [bpe.encode(line, add_special_tokens=False).ids for line in lines]


def test_spaces_of_every_kind_separate_words_and_an_empty_line_has_no_tokens(raw: Tokenizer) -> None:
    tokens = raw.encode(["Привет мир", "\u2028Привет \t\u00a0мир\r", "", " \u3000\n"], "ru")
    assert tokens[0] == tokens[1] != []
    assert tokens[2:] == [[], []]


def test_raw_text_keeps_punctuation_apart_and_tokenised_text_does_not() -> None:
    lines = ["dog, cat, dog, cat, cow."] * 3
    for text, whole in (("raw", False), ("tokenized", True)):
        config = DataConfig(vocab_size=22, text=text)
        vocabulary = learn(lines, config).get_vocab()
        assert any(re.search(r"\w[,.]", piece) for piece in vocabulary) == whole


def test_special_tokens_have_their_ids(raw: Tokenizer) -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert [raw.piece(token) for token in (PAD, BOS, EOS, UNK)] == SPECIAL == ["<pad>", "<s>", "</s>", "<unk>"]
    (tokens,) = raw.encode(["Don't panic!"], "en")
    assert min(tokens) > UNK  # neither begin nor end is added
    assert raw.decode([[BOS, *tokens, EOS, PAD]]) == ["Don't panic!"]


def test_an_unknown_character_is_unk_and_the_rest_comes_back(raw: Tokenizer) -> None:
    (tokens,) = raw.encode(["panic 漢 panic"], "en")
    assert tokens.count(UNK) == 1
    assert normalised(raw.decode([tokens])[0]) == "panic panic"


@pytest.mark.parametrize("markup", SPECIAL)
def test_text_that_looks_like_a_special_token_is_text(markup: str) -> None:
    lines = [f"a {markup} b", "<pads> </s> <unk> <s>"]
    tokenizer = learned(lines)
    tokens = tokenizer.encode(lines, "en")
    assert min(min(t) for t in tokens) > UNK
    assert tokenizer.decode(tokens) == lines


def test_the_file_is_a_standard_tokenizer(raw: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    raw.bpe.save(str(path))
    standard = StandardTokenizer.from_file(str(path))
    again = Tokenizer.load(path, raw.config)
    for language, line in RAW.items():
        (tokens,) = raw.encode([line], language)
        assert standard.encode(normalised(line)).ids == tokens == again.encode([line], language)[0]
        assert standard.decode(tokens) == normalised(line) == again.decode([tokens])[0]
    assert [standard.token_to_id(token) for token in SPECIAL] == [PAD, BOS, EOS, UNK]
    assert standard.get_vocab_size() == again.vocab_size == raw.vocab_size


@pytest.mark.parametrize("language", MOSES)
def test_moses_text_is_tokenised_and_detokenised(language: str) -> None:
    tokenizer = learned([MOSES[language]], text="moses", source_lang=language, target_lang=language)
    (written,) = tokenizer.decode(tokenizer.encode([MOSES[language]], language))
    assert written == clean(MOSES[language], tokenizer.config, language)
    assert len(written.split()) > len(MOSES[language].split())  # punctuation stands alone
    assert tokenizer.detokenize(written) == MOSES[language]


def test_moses_tokenises_as_the_moses_scripts_do() -> None:
    config = DataConfig(text="moses")
    assert clean("The cat's “here”, isn't it?", config, "en") == "The cat &apos;s &quot; here , &quot; isn &apos;t it ?"


def test_tokenised_text_is_left_alone_until_it_is_detokenised() -> None:
    line = "er sagte : &quot; gut , &quot; und ging ."
    tokenizer = learned([line], text="tokenized", target_lang="en")
    assert tokenizer.decode(tokenizer.encode([line], "de")) == [line]
    assert tokenizer.detokenize(line) == 'er sagte: "gut," und ging.'


def test_raw_text_needs_no_detokenising(raw: Tokenizer) -> None:
    assert raw.detokenize("a , b &quot; c") == "a , b &quot; c"


@pytest.mark.parametrize("text", ["raw", "moses", "tokenized"])
def test_lowercase_applies_to_every_kind_of_text(text: str) -> None:
    line = "Das IST ÄRGERLICH Привет"
    tokenizer = learned([line], text=text, lowercase=True)
    assert tokenizer.decode(tokenizer.encode([line], "de")) == ["das ist ärgerlich привет"]
    assert clean(line, DataConfig(text=text), "de") == line


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs"])
def test_punctuation_is_normalised_as_by_moses(language: str) -> None:
    from sacremoses import MosesPunctNormalizer

    pieces = [*"“”„‘’‚´`–—…«»()[]%:;,.?!\"'\r <5aZ", "\u00a0", "  ", "nº", "ºC", "cm", "''", "´´", " )", "( ", '."']
    rng, config = random.Random(0), DataConfig(text="moses_normalize")
    lines = ["".join(rng.choices(pieces, k=12)) for _ in range(3000)] + [*RAW.values()]
    moses = MosesPunctNormalizer(lang=language).normalize
    expected = [" ".join(moses(unicodedata.normalize("NFC", line)).split()) for line in lines]
    assert [clean(line, config, language) for line in lines] == expected


def test_documents_give_the_same_vocabulary_every_time_and_rare_characters_are_unknown() -> None:
    rare = [chr(0x4E00 + i) for i in range(1200)]  # each once: the library would draw which of them it keeps
    lines = ["the cat sat on the mat"] * 3 + [f"the {c}{c}" for c in rare]
    config = DataConfig(vocab_size=1030)
    one, again = learn(lines, config, documents=True), learn(lines, config, documents=True)
    assert one.get_vocab() == again.get_vocab()
    assert [one.token_to_id(name) for name in BERT_SPECIAL] == [0, 1, 2, 3, 4]
    assert rare[0] in one.get_vocab()
    encode = Tokenizer(one, config).encode
    assert encode([rare[-1]], "en")[0][-1] == UNK
    assert UNK not in encode(["the mat"], "en")[0]


@pytest.mark.parametrize(
    ("lines", "looks"),
    [
        (["Hello, world.", "So it goes."], "raw"),
        (["Bonjour ! Ça va ? Oui, merci."], "raw"),  # French has spaces before ! and ?
        (["ich bin hier , und du ?", "ja ."], "tokenized"),
        (["it &apos;s a state @-@ of @-@ the @-@ art"], "tokenized"),
        (["mr. smith , i am here ."], "tokenized"),
        (["我们在这里，他们也在。"], "raw"),
        (["one two", "three 3.5 4,000"], ""),
        ([], ""),
    ],
)
def test_text_is_told_from_tokenised_text(lines: list[str], looks: str) -> None:
    assert tokenisation(lines) == looks


def test_a_word_that_never_ends_is_learnt_from_by_its_beginning() -> None:
    """The library's time grows with the square of a word's length: this one would take it minutes."""
    word = "".join(random.Random(0).choices("abcdefgh", k=500_000)) + "xyz"
    config = DataConfig(vocab_size=60)
    found = Tokenizer(learn([f"ab {word} cd", "ab cd ef"], config), config)
    assert found.decode(found.encode([word], "en")) == [word]
    assert max(map(len, tokenizers._learnable(f"ab {word} cd").split(" "))) == tokenizers.LONG_WORD
    line = "ab  cd " * 1000
    assert tokenizers._learnable(line) == line


class TestBytes:
    """data.tokenizer=byte_bpe"""

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        config = DataConfig(tokenizer="byte_bpe", vocab_size=265)
        return Tokenizer(learn(["the cat and the hat", "that is the end"] * 20, config, documents=True), config)

    def test_any_text_comes_back_as_it_was(self, tokenizer: Tokenizer) -> None:
        texts = [
            "",
            " ",
            "\n",
            "a\n\n  b\t\r\n",
            "<|endoftext|>",
            "\x00\x01\x7f\x85\u2028\ufeff",
            "é e\u0301 ﬁ",
            "👩‍👩‍👧🏽",
        ]
        texts += ["".join(map(chr, range(a, a + 199))) for a in range(0, 0xD700, 199)]  # all scripts
        texts += ["".join(map(chr, range(a, a + 999))) for a in range(0xE000, 0x10FF00, 0x2111)]
        tokens = tokenizer.encode(texts, "en")
        assert tokenizer.decode(tokens) == texts
        lengths = tokenizer.byte_lengths()
        assert [int(lengths[own].sum()) if own else 0 for own in tokens] == [len(text.encode()) for text in texts]
        assert tokenizer.end_of_text not in {token for own in tokens for token in own}
        assert lengths[tokenizer.end_of_text] == 0

    def test_lines_do_not_share_tokens(self, tokenizer: Tokenizer) -> None:
        lines = ["the cat\n", "  and\n", "\n", " the hat"]
        assert tokenizer.encode(["".join(lines)], "en")[0] == [
            token for line in tokenizer.encode(lines, "en") for token in line
        ]

    def test_it_is_the_same_when_it_is_read_again(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        tokenizer.bpe.save(str(tmp_path / "tokenizer.json"))
        again = Tokenizer.load(tmp_path / "tokenizer.json", DataConfig())  # what it is, it says itself
        text = "Thé cat 🙂\n"
        assert again.exact
        assert again.encode([text], "en") == tokenizer.encode([text], "en")
        assert again.end_of_text == tokenizer.end_of_text

    def test_an_end_of_text_that_is_no_special_token_has_no_bytes(self, tokenizer: Tokenizer) -> None:
        state = json.loads(tokenizer.bpe.to_str())
        for added in ([], [token | {"special": False} for token in state["added_tokens"]]):
            bpe = StandardTokenizer.from_str(json.dumps(state | {"added_tokens": added}))
            theirs = Tokenizer(bpe, tokenizer.config)
            assert theirs.byte_lengths().tolist() == tokenizer.byte_lengths().tolist()

    @pytest.mark.parametrize("change", ["prefix", "NFKC", "NFD", "Lowercase"])
    def test_a_vocabulary_that_changes_text_is_refused(self, tokenizer: Tokenizer, change: str, tmp_path: Path) -> None:
        if change == "prefix":
            tokenizer.bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        else:
            tokenizer.bpe.normalizer = getattr(normalizers, change)()
        path = tmp_path / "tokenizer.json"
        tokenizer.bpe.save(str(path))
        with pytest.raises(UserError, match=r"tokenizer.json does not give text back as it was: use"):
            learn([], DataConfig(tokenizer="byte_bpe", vocabulary=str(path)), documents=True)


def test_a_vocabulary_that_cuts_and_fills_up_does_neither_here() -> None:
    tokenizer = learned(["a b c d e f g"])
    tokenizer.bpe.enable_truncation(2)
    tokenizer.bpe.enable_padding(length=8)
    again = Tokenizer(StandardTokenizer.from_str(tokenizer.bpe.to_str()), tokenizer.config)
    assert again.decode(again.encode(["a b c d e f g", "a"], "en")) == ["a b c d e f g", "a"]
