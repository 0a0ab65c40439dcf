"""A loaded run in own code: texts to hidden states and logits, the same as one by one and as evaluation has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from leadline import recipes, tasks
from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import BOS, EOS
from leadline.errors import UserError
from leadline.training.trained import Trained, load


def untrained(config: Config) -> Trained:
    store = Store(prepare(config.data))
    model = tasks.find(config.task)(config, store).build_model()
    return Trained(config, model.eval(), store.tokenizer, "none")


@pytest.fixture(scope="module")
def translator(finished: Path) -> Trained:
    return load(finished)


@pytest.fixture(scope="module")
def bert(masked: Config) -> Trained:
    return untrained(masked)


@pytest.fixture(scope="module")
def classifier() -> Trained:
    small = {"encoder_layers": 1, "dim": 16, "ffn_dim": 16, "heads": 2, "max_length": 48}
    return untrained(recipes.same_meaning().set(model=small, data={"size": 300, "vocab_size": 200}))


def test_logits_of_given_translations_are_those_of_the_evaluation(translator: Trained) -> None:
    task = translator.task()
    text = task.store.sentences("valid")
    pairs = [text[row] for row in task.read("valid").rows]  # those that are short enough
    batch = translator.encode([left for left, _ in pairs], [right for _, right in pairs])
    nll, count = 0.0, 0
    for tokens, logits in zip(batch.tokens, translator.logits(batch), strict=True):
        assert tokens[0] == BOS
        assert logits.shape == (len(tokens), translator.tokenizer.vocab_size)
        nll += float(F.cross_entropy(logits, torch.tensor([*tokens[1:], EOS]), reduction="sum"))
        count += len(tokens)
    assert nll / count == pytest.approx(task.evaluate(translator.model, "valid")["nll"], rel=1e-4)


def test_without_a_translation_the_logits_are_of_its_first_token(translator: Trained) -> None:
    batch = translator.encode(["zwölf"])
    (logits,) = translator.logits(batch)
    assert batch.tokens == [[BOS]]
    assert logits.shape[0] == 1
    assert not logits.requires_grad


TEXTS = ["Ab cdef.", "gh", "abc abc. Gh ab ef"]


@pytest.mark.parametrize("seconds", [None, ["ef", "ab cd", "h"]])
@pytest.mark.parametrize("kind", ["bert", "classifier", "translator"])
def test_texts_together_are_as_each_alone(kind: str, seconds: list[str] | None, request) -> None:
    trained: Trained = request.getfixturevalue(kind)
    batch = trained.encode(TEXTS, seconds)
    together = zip(trained.hidden(batch), trained.logits(batch), strict=True)
    for number, (hidden, logits) in enumerate(together):
        alone = trained.encode(TEXTS[number : number + 1], seconds and seconds[number : number + 1])
        assert hidden.shape == (len(batch.tokens[number]), trained.config.model.dim)
        assert torch.allclose(hidden, trained.hidden(alone)[0], atol=1e-5)
        assert torch.allclose(logits, trained.logits(alone)[0], atol=1e-5)


def test_an_encoder_is_given_its_marks_and_segments(bert: Trained, classifier: Trained) -> None:
    cls, sep = (bert.tokenizer.special(name) for name in ("[CLS]", "[SEP]"))
    (a,), (b,) = (bert.tokenizer.encode([text], "en") for text in ("ab", "cde"))
    assert bert.encode(["ab"]).tokens == [[cls, *a, sep]]
    pair = bert.encode(["ab"], ["cde"])
    assert pair.tokens == [[cls, *a, sep, *b, sep]]
    assert pair.packs[0].segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert classifier.logits(classifier.encode(["eins"], ["one"]))[0].shape == (2,)


def test_what_cannot_be_encoded_is_one_sentence(translator: Trained, bert: Trained) -> None:
    with pytest.raises(UserError, match="give one text as"):
        bert.encode("ab cd")
    with pytest.raises(UserError, match="3 texts and 1 to go with them"):
        translator.encode(TEXTS, ["one"])
    with pytest.raises(UserError, match=r"text 1 \(from 0\) has .* model.max_length=48: shorten it"):
        bert.encode(["ab", "ab " * 60])


def test_a_single_text_is_not_taken_for_its_characters(translator: Trained) -> None:
    with pytest.raises(UserError, match="give one sentence as"):
        translator.translate("zwölf")
