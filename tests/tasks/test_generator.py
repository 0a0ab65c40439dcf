"""Prompts to what follows them: a prompt's text depends on nothing but itself, and comes in whole characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leadline.errors import UserError
from leadline.tasks import generator
from leadline.tasks.generator import Pieces
from leadline.training.trained import Trained, load

PROMPTS = ["abc de", "", "fgh", "Abc.\ndef ab", "b"]


@pytest.fixture(scope="module")
def trained(small_lm: Path) -> Trained:
    return load(small_lm)


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"top_k": 20, "top_p": 0.9, "temperature": 0.7}], ids=str
)
def test_a_batch_of_prompts_is_each_alone(trained: Trained, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    options |= {"tokens": 12}
    together = trained.generate(PROMPTS, **options)
    assert together == [trained.generate([prompt], **options)[0] for prompt in PROMPTS]
    monkeypatch.setattr(generator, "AT_ONCE", 2)
    assert trained.generate(PROMPTS, **options) == together
    assert len(set(together)) > 1


def test_texts_that_the_models_length_ends_are_counted(trained: Trained) -> None:
    generator, prompt = trained.generator(tokens=3, temperature=0), "ab" * 100
    (tokens,) = trained.tokenizer.encode([prompt], "en")
    prompt = trained.tokenizer.decode([tokens[: trained.config.model.max_length - 3]])[0]
    assert len(generator.tokens([prompt])[0]) == trained.config.model.max_length - 2
    generator.generate(["ab", prompt])
    assert generator.cut == 0
    longer = trained.generator(tokens=4, temperature=0)
    longer.generate(["ab", prompt])
    assert longer.cut == 1


def test_a_seed_gives_the_same_and_another_something_else(trained: Trained) -> None:
    texts = [trained.generate(PROMPTS, tokens=12, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert all(one != other for one, other in zip(texts[0], texts[2], strict=True))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_text_comes_in_whole_characters(trained: Trained, chunk: int) -> None:
    text = "ab 👩‍👩‍👧🏽 é ｶﾅ\n𝔘 end"
    (tokens,) = trained.tokenizer.encode([text], "en")
    assert len(tokens) > len(text)  # characters of several tokens
    said: list[str] = []
    pieces = Pieces(trained.tokenizer, said.append)
    for begin in range(0, len(tokens), chunk):
        pieces([tokens[begin : begin + chunk]])
    pieces.finish()
    assert "".join(said) == text
    assert all(piece and "\ufffd" not in piece for piece in said)
    if chunk == 1:
        assert len(said) > 10


def test_bytes_that_are_no_text_come_as_they_are_decoded(trained: Trained) -> None:
    decode, numbers = trained.tokenizer.decode, range(trained.tokenizer.vocab_size)
    bytes_ = [n for n, text in zip(numbers, decode([[n] for n in numbers]), strict=True) if text == "\ufffd"]
    assert len(bytes_) == 128
    for tokens in np.random.default_rng(1).choice(bytes_, (50, 12)).tolist():
        said: list[str] = []
        pieces = Pieces(trained.tokenizer, said.append)
        for token in tokens:
            pieces([[token]])
        pieces.finish()
        assert "".join(said) == decode([tokens])[0]


def test_one_prompt_is_followed_as_it_comes(trained: Trained) -> None:
    said: list[str] = []
    (text,) = trained.generator(tokens=12, temperature=0).generate(["abc"], said.append)
    assert "".join(said) == text == trained.generate(["abc"], tokens=12, temperature=0)[0]
    with pytest.raises(UserError, match="one prompt at a time"):
        trained.generator().generate(["a", "b"], said.append)
    with pytest.raises(UserError, match="give one prompt as"):
        trained.generate("abc")


def test_no_more_numbers_are_drawn_than_there_are_positions(trained: Trained) -> None:
    """100 million tokens took 2 GB and half a minute, to write as many as the model has positions for."""
    most = trained.config.model.max_length
    assert trained.generate(["abc"], tokens=10**15) == trained.generate(["abc"], tokens=most)
