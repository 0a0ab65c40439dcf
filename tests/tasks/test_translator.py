"""The translator: one line out for every line in, whatever its length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leadline.config import Config, DecodeConfig
from leadline.data.store import Store
from leadline.data.tokenizer import BOS, EOS, Tokenizer, clean, learn
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.model.decode import Hypothesis, beam_search
from leadline.tasks import translator
from leadline.tasks.translation import Translation
from leadline.tasks.translator import MARGIN, Translator


class Echo(Translator):
    """Translates every piece to itself and remembers the batches."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.batches: list[list[list[int]]] = []

    def _best(self, sources, decode, start=BOS) -> list[Hypothesis]:
        self.batches.append(sources)
        return [Hypothesis(tokens, 0.0) for tokens in sources]


@pytest.fixture
def model(config: Config, store: Store) -> Transformer:
    model = Translation(config, store).build_model().eval()
    with torch.no_grad():
        model.output.weight *= 3  # so that different sentences have different translations
    return model


@pytest.fixture
def echo(model: Transformer, config: Config, store: Store) -> Echo:
    return Echo(model, store.tokenizer, config)


@pytest.fixture
def lines(store: Store) -> list[str]:
    return [left for left, _ in store.sentences("valid")]


def test_outputs_are_in_the_order_of_the_lines(echo: Echo, lines: list[str]) -> None:
    assert echo.translate(lines) == lines
    assert echo.translate(lines[::-1]) == lines[::-1]


def test_a_batch_is_translated_like_each_line_alone(model, config, store, lines) -> None:
    translator = Translator(model, store.tokenizer, config)
    together = translator.translate(lines)
    assert together == [translator.translate([line])[0] for line in lines]
    assert len(set(together)) > len(lines) // 2


def test_the_source_is_searched_with_its_end(model, config, store, lines) -> None:
    translator = Translator(model, store.tokenizer, config)
    (tokens,) = store.tokenizer.encode(lines[:1], "de")
    limit, decode = torch.tensor([config.model.max_length]), config.decode
    for beam in (1, 2):
        source = pack_one([np.array([*tokens, EOS])])
        ((expected, *_),) = beam_search(model, source, limit, BOS, EOS, beam, decode.length_penalty if beam > 1 else 0)
        (found,) = translator._best([tokens], DecodeConfig(beam=beam, max_ratio=50.0))
        assert found.tokens == expected.tokens
        assert found.score == pytest.approx(expected.score, abs=1e-5)


def test_the_beam_of_the_config_is_used(model, config, store, lines) -> None:
    by_beam = {
        beam: Translator(model, store.tokenizer, config.set(decode={"beam": beam})).translate(lines) for beam in (1, 4)
    }
    assert by_beam[1] != by_beam[4]


def test_empty_lines_stay_empty(echo: Echo, lines: list[str]) -> None:
    assert echo.translate(["", lines[0], "  \t", "\u2028", lines[1], ""]) == ["", lines[0], "", "", lines[1], ""]
    assert echo.translate(["", " "]) == ["", ""]
    assert echo.translate([]) == []


def test_a_line_over_the_limit_is_translated_in_pieces(echo: Echo, lines: list[str]) -> None:
    limit = echo.model.config.max_length
    long = " ".join(lines)
    short = min(lines, key=len)
    (tokens,) = echo.tokenizer.encode([long], "de")
    assert len(tokens) > 5 * limit
    assert echo.translate([short, long, short]) == [short, long, short]  # a space inside a word would show
    assert echo.split_up == 1
    assert all(len(piece) + 1 <= limit for batch in echo.batches for piece in batch)
    echo.translate([long, short, long])
    assert echo.split_up == 3


def test_the_limit_counts_the_end_of_the_sentence(echo: Echo) -> None:
    limit = echo.model.config.max_length
    (word,) = echo.tokenizer.encode(["der"], "de")
    assert len(word) == 1
    for count, pieces in ((limit - 1, 1), (limit, 2)):
        echo.batches.clear()
        line = " ".join(["der"] * count)
        assert echo.translate([line]) == [line]
        assert sum(map(len, echo.batches)) == pieces


def test_pieces_cover_all_tokens_in_order(echo: Echo, lines: list[str]) -> None:
    for count in range(1, len(lines) + 1):
        (tokens,) = echo.tokenizer.encode([" ".join(lines[:count])], "de")
        pieces = echo._pieces(tokens)
        assert [token for piece in pieces for token in piece] == tokens
        assert all(pieces)
        assert all(echo.tokenizer.piece(piece[0]).startswith("▁") for piece in pieces)


def test_a_line_in_wordpieces_is_cut_between_words(model: Transformer, config: Config) -> None:
    data = config.set(data={"vocab_size": 12, "tokenizer": "wordpiece"}).data
    echo = Echo(model, Tokenizer(learn(["abcd abcd"], data), data), config)
    (tokens,) = echo.tokenizer.encode(["ab abcd abc " * 15], "de")
    pieces = echo._pieces(tokens)
    assert len(pieces) > 2
    assert not any(echo.tokenizer.piece(piece[0]).startswith("##") for piece in pieces)


@pytest.fixture
def letters(model: Transformer, config: Config) -> Echo:
    """Every letter is a token, so lengths can be chosen: a word of n letters is n tokens."""
    characters = "a b c d e"
    data = config.set(data={"vocab_size": 15}).data
    tokenizer = Tokenizer(learn([characters], data), data)
    echo = Echo(model, tokenizer, config)
    assert [len(t) for t in tokenizer.encode(["a", "abc"], "de")] == [1, 3]
    return echo


def test_a_word_over_the_limit_is_cut_and_loses_nothing(letters: Echo) -> None:
    word = "abcde" * 12
    assert letters.translate([word])[0].replace(" ", "") == word
    assert all(len(piece) + 1 <= letters.model.config.max_length for batch in letters.batches for piece in batch)


@pytest.mark.parametrize("line", ["abcde" * 3 + " abc" * 4, "abc " * 4 + "abcde" * 3, "ab " + "abcde" * 4 + " cd e"])
def test_a_line_with_a_long_word_is_still_cut_between_words(letters: Echo, line: str) -> None:
    (tokens,) = letters.tokenizer.encode([line], "de")
    limit = letters.model.config.max_length
    assert len(tokens) + 1 > limit >= 1 + max(len(word) for word in line.split())
    assert letters.translate([line]) == [line]


@pytest.mark.parametrize("budget", [1, 40, 60, 10_000])
def test_batches_are_within_their_tokens(model, config, store, lines, budget: int) -> None:
    echo = Echo(model, store.tokenizer, config.set(decode={"batch_tokens": budget}))
    done: list[int] = []
    echo.translate(lines, done.append)
    sizes = [len(batch) * max(len(tokens) + 1 for tokens in batch) for batch in echo.batches]
    assert all(size <= budget or len(batch) == 1 for size, batch in zip(sizes, echo.batches, strict=True))
    assert done == [len(batch) for batch in echo.batches]
    if budget == 60:
        assert max(done) > 2
    if budget == 10_000:
        assert len(done) == 1


@pytest.mark.parametrize("wave", [1, 60, 10_000])
def test_a_search_in_slots_gets_many_lines_at_once(echo: Echo, lines, monkeypatch, wave: int) -> None:
    """It pads nothing and sees itself to how many it works on: the batch is counted in real tokens."""
    monkeypatch.setattr(translator.slots, "usable", lambda device: True)
    monkeypatch.setattr(translator, "WAVE", wave)
    assert echo.translate(lines) == lines
    sizes = [sum(len(tokens) + 1 for tokens in batch) for batch in echo.batches]
    assert all(size <= wave or len(batch) == 1 for size, batch in zip(sizes, echo.batches, strict=True))
    following = [len(batch[0]) + 1 for batch in echo.batches[1:]]
    assert all(size + more > wave for size, more in zip(sizes, following, strict=False))  # none is cut too early
    assert (len(sizes) == 1) == (wave == 10_000)


def test_lines_of_similar_length_are_batched_together(echo: Echo, lines: list[str]) -> None:
    echo.translate(lines)
    lengths = [len(tokens) for batch in echo.batches for tokens in batch]
    assert lengths == sorted(lengths)


def test_translations_are_no_longer_than_asked(model, config, store) -> None:
    """max_ratio times the source and a margin, and never more than the model's limit."""
    with torch.no_grad():  # </s> comes only when nothing else may
        model.decoder.final.bias[0] = 10
        model.output.weight[:, 0] = 1
        model.output.weight[EOS, 0] = -1
    (tokens,) = store.tokenizer.encode(["der die"], "de")
    assert len(tokens) == 2
    for ratio, longest in ((0.1, MARGIN), (1.0, MARGIN + 2), (50.0, config.model.max_length)):
        translator = Translator(model, store.tokenizer, config.set(decode={"max_ratio": ratio}))
        (hypothesis,) = translator._best([tokens], translator.config.decode)
        assert len(hypothesis.tokens) + 1 == longest


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_of_the_model_comes_back(model, config, store, lines, training: bool) -> None:
    expected = Translator(model.eval(), store.tokenizer, config).translate(lines)
    assert Translator(model.train(training), store.tokenizer, config).translate(lines) == expected
    assert model.training is training


def test_tokenised_text_is_detokenised_for_people_only(model, config) -> None:
    data = config.set(data={"text": "moses", "vocab_size": 15}).data
    line = "Hallo, Hallo!"
    tokenizer = Tokenizer(learn([clean(line, data, "de")], data), data)
    echo = Echo(model, tokenizer, config)
    assert echo.translate_tokenized([line]) == ["Hallo , Hallo !"]
    assert echo.translate([line]) == [line]
