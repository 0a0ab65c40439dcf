"""`leadline.inspect` end to end: what people train, given as they have it, and one sentence where it cannot be."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leadline
from leadline import Inspection, UserError
from leadline.diagnose import inspection as inspections
from leadline.diagnose.inspect import BATCHES, REACH, inspect_seeds
from leadline.diagnose.probe import Subject, output_of
from leadline.diagnose.verdict import ENDURES, STEPS

DIM, VOCAB = 16, 20


class Model(nn.Module):
    """Tokens to logits by way of torch's encoder; `tied`: the head shares the embedding's weight."""

    def __init__(self, tied: bool = False, norm_first: bool = False, dropout: float = 0.0, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout, batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(DIM) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)))


def model(**options: Any) -> Model:
    torch.manual_seed(1)
    return Model(**options)


def tokens(seed: int = 0, count: int = 4) -> Tensor:
    return torch.randint(0, VOCAB, (count, 6), generator=torch.Generator().manual_seed(seed))


def loss(output: Tensor, batch: Any) -> Tensor:
    """Say what you have seen."""
    seen = batch if isinstance(batch, Tensor) else batch["tokens"] if isinstance(batch, dict) else batch[0]
    return F.cross_entropy(output.flatten(0, 1).float(), seen.flatten())


def assert_whole(found: Inspection, connections: int = 2) -> None:
    """An inspection with everything in it, of the rate asked for among others."""
    assert isinstance(found, Inspection)
    assert len(found.connections) == connections
    v = found.verdict
    assert 0 <= v.probability <= 1
    assert v.trains == (v.probability >= 0.5)
    assert v.answer
    rates = sorted({r.rate for r in found.records} - {0.0})
    assert 0 <= v.highest_rate <= rates[-1]
    assert v.rate in rates
    assert 2 <= len(rates) <= 2 + REACH // 2
    assert all(1 / 512 <= rate / v.rate <= 512 for rate in rates)
    assert {r.position for r in found.records if r.quantity == "hidden_norm"} == set(range(connections))
    assert len([r for r in found.records if r.quantity == "diversity" and r.step == 0]) == connections
    assert str(found).startswith(f"{found.name}: {v.answer}\n")


# Models and batches


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_torchs_encoder(norm_first: bool) -> None:
    found = leadline.inspect(model(norm_first=norm_first, layers=2), tokens(), loss)
    assert_whole(found, 4)
    assert found.name == "Model"
    assert {c.placement for c in found.connections} == {"Pre-LN" if norm_first else "Post-LN"}
    assert found.findings == []
    assert found.facts["optimizer"] == "Adam"
    assert found.verdict.rate == 1e-3
    weights = sum(p.numel() for p in model(norm_first=norm_first, layers=2).parameters())
    assert (found.facts["weights"], found.facts["frozen"], found.facts["batches"]) == (weights, 0, 1)


def test_torchs_encoder_itself() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x = torch.randn(3, 5, DIM)
    assert_whole(leadline.inspect(encoder, x, lambda output, batch: (output - batch).pow(2).mean()))


def test_no_rate_is_promised_at_which_the_loss_rises() -> None:
    """docs/guide.md's example: the tokens stay different at any rate, and the loss explodes from about 0.06 on."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(32, 4, 64, norm_first=True)
    encoder, x = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(16, 8, 32)
    found = leadline.inspect(encoder, x, lambda output, batch: (output - batch).pow(2).mean())
    assert found.verdict.edge_found
    assert 0.01 < found.verdict.highest_rate < 0.064
    assert found.verdict.outside == ["not an encoder-decoder", "data other than number words", "one batch to look at"]
    assert "a hint, not a verdict" in str(found)


class Gated(nn.Module):
    """ReZero: what its gates let through grows with every step."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate * F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), is_causal=True)
        return x + self.gate * self.ffn(x)


def test_no_rate_is_promised_at_which_the_loss_rises_again_after_the_first_steps() -> None:
    torch.manual_seed(1)
    gated = nn.Sequential(nn.Embedding(VOCAB, DIM), *(Gated() for _ in range(6)), nn.Linear(DIM, VOCAB))
    batches = [tokens(seed, 16) for seed in range(6)]

    def next_token(output: Tensor, batch: Tensor) -> Tensor:
        return F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    before = copy.deepcopy(gated.state_dict())
    found = leadline.inspect(gated, iter(batches), next_token)
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())
    assert found.verdict.edge_found
    assert f"it rises again within {ENDURES} steps" in found.verdict.evidence[-1]
    assert 0 < found.verdict.highest_rate <= found.facts["rises_again"] / 2


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_hugging_face_models_with_labels(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16,
        )  # fmt: skip
        made = transformers.BertForMaskedLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=DIM, n_layer=1, n_head=2, n_positions=16)
        made = transformers.GPT2LMHeadModel(config)
    ids = tokens()
    found = leadline.inspect(made, {"input_ids": ids, "labels": ids})
    assert_whole(found)
    assert found.connections[0].placement == ("Post-LN" if kind == "bert" else "Pre-LN")
    with pytest.raises(UserError) as error:
        leadline.inspect(made, {"input_ids": ids})
    assert_one_sentence(error, "the model gives no loss for this batch", "labels", "loss=")


def test_a_mapping_that_is_no_dict() -> None:
    """What Hugging Face's tokenizers return is a UserDict."""
    assert_whole(leadline.inspect(model(), UserDict(tokens=tokens()), lambda output, batch: output.pow(2).mean()))


@pytest.mark.parametrize(
    "batch",
    [lambda: tokens(), lambda: {"tokens": tokens()}, lambda: (tokens(),), lambda: [tokens()]],
    ids=["single", "dict", "tuple", "list"],
)
def test_a_batch_in_any_form(batch: Callable[[], Any]) -> None:
    found = leadline.inspect(model(), batch(), loss)
    assert_whole(found)
    assert found.records == leadline.inspect(model(), tokens(), loss).records


def test_a_data_loader_gives_a_batch_a_step_and_one_to_look_at() -> None:
    many = torch.cat([tokens(seed) for seed in range(20)])
    found = leadline.inspect(model(), DataLoader(TensorDataset(many), batch_size=4), loss)
    assert_whole(found)
    assert found.facts["batches"] == BATCHES == STEPS + 1


def test_a_short_data_loader() -> None:
    found = leadline.inspect(model(), DataLoader(TensorDataset(tokens()), batch_size=2), loss)
    assert_whole(found)
    assert found.facts["batches"] == 2


def test_an_iterator_is_read_no_further_than_needed() -> None:
    batches = iter([tokens(seed) for seed in range(20)])
    found = leadline.inspect(model(), batches, loss)
    assert_whole(found)
    assert found.facts["batches"] == BATCHES
    assert torch.equal(next(batches), tokens(BATCHES))


def test_batches_of_different_sizes() -> None:
    batches = iter([tokens(0, 4), tokens(1, 2), tokens(2, 5)])
    assert_whole(leadline.inspect(model(), batches, loss))


class Several(Model):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return logits.argmax(-1), logits, None


def test_a_model_that_returns_a_tuple() -> None:
    torch.manual_seed(1)
    found = leadline.inspect(Several(), tokens(), lambda output, batch: loss(output[1], batch))
    assert_whole(found)
    assert [r.value for r in found.records] == [r.value for r in leadline.inspect(model(), tokens(), loss).records]


class OwnLoss(Model):
    def forward(self, tokens: Tensor) -> Tensor:
        return loss(super().forward(tokens), tokens)


def test_a_model_that_returns_only_its_loss() -> None:
    """As x-transformers' AutoregressiveWrapper does."""
    torch.manual_seed(1)
    assert_whole(leadline.inspect(OwnLoss(), tokens()))


@dataclasses.dataclass
class Answer:
    logits: Tensor
    loss: Tensor


@dataclasses.dataclass
class Parts:
    logits: Tensor
    nll: Tensor


LOSSES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda logits, value: {"logits": logits, "loss": value},
    "dict of another name": lambda logits, value: {"logits": logits, "nll": value},
    "nested": lambda logits, value: {"out": (logits, {"nll": value})},
    "tuple": lambda logits, value: (value, logits),
    "loss last": lambda logits, value: [logits, value],
    "loss first of several numbers": lambda logits, value: (value, logits, value.detach()),
    "dataclass": Answer,
    "dataclass of another name": Parts,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_among_what_the_model_returns(name: str) -> None:
    subject = Subject(model(), [tokens()], None, torch.optim.Adam(model().parameters()))
    logits = subject.run(tokens())
    value = loss(logits, tokens())
    output = LOSSES[name](logits, value)
    assert subject.loss_of(output, tokens()) is value
    assert output_of(output) is logits


def test_several_numbers_none_of_which_is_called_loss() -> None:
    made = model()
    subject = Subject(made, [tokens()], None, torch.optim.Adam(made.parameters()))
    value = loss(made(tokens()), tokens())
    with pytest.raises(UserError) as error:
        subject.loss_of({"nll": value, "penalty": value}, tokens())
    assert_one_sentence(error, "the model gives no loss", "loss=function(output, batch)")


def values(found: Inspection) -> list[float]:
    return [r.value for r in found.records]


class Scalars(Model):
    """Numbers without dimensions among what it computes."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x * (1 + 0 * x.std()) + 0 * x.abs().amax() * x
        return super().forward(tokens) * x.pow(2).mean() / x.pow(2).mean()


def test_numbers_without_dimensions() -> None:
    torch.manual_seed(1)
    assert_whole(leadline.inspect(Scalars(), tokens(), loss))


def in_place(made: Model) -> Model:
    made.compile(backend="eager")
    return made


def by_layer(made: Model) -> Model:
    made.encoder.layers[0] = torch.compile(made.encoder.layers[0], backend="eager")  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    "compiled",
    [lambda made: torch.compile(made, backend="eager"), in_place, by_layer],
    ids=["whole", "itself", "layer"],
)
def test_a_compiled_model_is_read_as_it_is_written(compiled: Callable[[Model], Any]) -> None:
    made = compiled(model())
    found = leadline.inspect(made, tokens(), loss, torch.optim.Adam(made.parameters(), lr=1e-3))
    assert_whole(found)
    assert found.name == "Model"
    assert values(found) == values(leadline.inspect(model(), tokens(), loss))


def test_shared_weights() -> None:
    shared = model(tied=True)
    assert_whole(leadline.inspect(shared, tokens(), loss))
    assert shared.head.weight is shared.embed.weight


def test_partly_frozen_weights() -> None:
    frozen = model()
    frozen.embed.requires_grad_(False)
    frozen.encoder.layers[0].self_attn.requires_grad_(False)
    found = leadline.inspect(frozen, tokens(), loss)
    assert_whole(found)
    expected = sum(p.numel() for p in frozen.parameters() if not p.requires_grad)
    assert found.facts["frozen"] == expected > 0
    assert not any(r.where == "embed.weight" for r in found.records)


def test_a_model_in_half_precision() -> None:
    half = model().bfloat16()
    found = leadline.inspect(half, tokens(), loss)
    assert_whole(found)
    assert found.facts["dtype"] == "bfloat16"
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())


def test_the_mode_of_the_model_is_kept() -> None:
    for training in (True, False):
        made = model(dropout=0.1).train(training)
        made.head.train(not training)
        assert_whole(leadline.inspect(made, tokens(), loss))
        assert made.encoder.training == training
        assert made.head.training != training


def test_dropout_does_not_make_it_differ_from_time_to_time() -> None:
    first = leadline.inspect(model(dropout=0.2), tokens(), loss)
    torch.manual_seed(123)
    second = leadline.inspect(model(dropout=0.2), tokens(), loss)
    assert first == second


# Optimizers


def test_an_optimizer_that_is_given() -> None:
    made = model()
    found = leadline.inspect(made, tokens(), loss, torch.optim.SGD(made.parameters(), lr=0.25, momentum=0.9), warmup=20)
    assert_whole(found)
    assert (found.facts["optimizer"], found.verdict.rate, found.verdict.warmup) == ("SGD", 0.25, 20)


def test_an_optimizer_with_state_and_a_model_with_gradients_are_left_as_they_were() -> None:
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-3)
    for seed in (3, 4):
        loss(made(tokens(seed)), tokens(seed)).backward()
        optimizer.step()
    weights, state = copy.deepcopy(made.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad.clone() for p in made.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    leadline.inspect(made, iter([tokens(0), tokens(1)]), loss, optimizer)
    assert all(torch.equal(made.state_dict()[name], value) for name, value in weights.items())
    assert all(torch.equal(p.grad, g) for p, g in zip(made.parameters(), gradients, strict=True))  # type: ignore
    assert torch.equal(torch.get_rng_state(), random)
    now = optimizer.state_dict()
    assert now["param_groups"] == state["param_groups"]
    for key, entry in state["state"].items():
        assert all(torch.equal(now["state"][key][name], value) for name, value in entry.items())


def test_training_goes_on_as_if_it_had_not_been_inspected() -> None:
    ends = []
    for inspected in (False, True):
        made = model(dropout=0.1)
        optimizer = torch.optim.Adam(made.parameters(), lr=1e-3)
        torch.manual_seed(5)
        for seed in range(4):
            if inspected and seed == 2:
                leadline.inspect(made, tokens(9), loss, optimizer)
            optimizer.zero_grad()
            loss(made(tokens(seed)), tokens(seed)).backward()
            optimizer.step()
        ends.append([p.detach() for p in made.parameters()])
    assert all(map(torch.equal, *ends))


def test_an_optimizer_of_a_part_of_the_model() -> None:
    made = model()
    assert_whole(leadline.inspect(made, tokens(), loss, torch.optim.Adam(made.head.parameters(), lr=1e-3)))


# The verdict of the whole


def test_a_rate_far_too_high_does_not_train() -> None:
    made = model()
    found = leadline.inspect(made, tokens(), loss, torch.optim.SGD(made.parameters(), lr=1e12))
    assert not found.verdict.trains
    assert found.verdict.where in {c.where for c in found.connections}
    assert any(line.startswith("lower the rate") for line in found.verdict.remedies)


@pytest.mark.slow
def test_seeds_are_drawn_one_by_one_and_the_middle_one_speaks() -> None:
    def make(seed: int) -> Subject:
        torch.manual_seed(seed)
        made = Model()
        return Subject(made, [tokens()], loss, torch.optim.Adam(made.parameters(), lr=1e-3))

    found = inspect_seeds(make, [3, 4, 5], "three")
    assert {r.seed for r in found.records} == {3, 4, 5}
    rates = sorted(inspect_seeds(make, [seed], "one").verdict.highest_rate for seed in (3, 4, 5))
    assert found.verdict.highest_rate == rates[1]
    assert found.verdict.evidence[-1].startswith("seeds: over 3 of them")
    assert f"{rates[0]:.1e} to {rates[2]:.1e}" in found.verdict.evidence[-1]


# Saved and loaded


def test_an_inspection_is_saved_and_loaded(tmp_path: Path) -> None:
    found = leadline.inspect(model(), tokens(), loss)
    found.save(tmp_path / "deep" / "folder")
    again = inspections.load(str(tmp_path / "deep" / "folder"))
    assert str(again) == str(found)
    assert (again.verdict, again.facts, list(again.records)) == (found.verdict, found.facts, list(found.records))
    assert [dataclasses.replace(c, norm_gains=()) for c in again.connections] == [
        dataclasses.replace(c, norm_gains=()) for c in found.connections
    ]
    found.save(tmp_path / "deep" / "folder")  # again, over itself
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == ["inspection.json", "records.jsonl"]


def test_an_inspection_that_diverged_is_saved_and_loaded(tmp_path: Path) -> None:
    made = model()
    found = leadline.inspect(made, tokens(), loss, torch.optim.SGD(made.parameters(), lr=1e30))
    found.save(tmp_path)
    again = inspections.load(tmp_path)
    assert str(again) == str(found)
    assert any(math.isnan(r.value) for r in again.records)


# Mistakes


def assert_one_sentence(error: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 300
    for part in parts:
        assert part in said


class NoResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(VOCAB, DIM), nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, VOCAB))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(tokens)


class Nothing(Model):
    def forward(self, tokens: Tensor) -> None:  # type: ignore[override]
        self.kept = super().forward(tokens)


class Restless(Model):
    """Does something else at each call."""

    calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        x = self.embed(tokens)
        for _ in range(self.calls % 5):
            x = F.relu(x) - F.relu(-x)
        return self.head(self.encoder(x))


class Shrinking(Model):
    """Does less and less."""

    calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        x = self.embed(tokens)
        return self.head(self.encoder(x) if self.calls < 3 else x)


def frozen() -> Model:
    made = model()
    made.requires_grad_(False)
    return made


def refused(made: Any, batch: Any, loss_function: Any = loss, optimizer: Any = None, **options: Any) -> Any:
    with pytest.raises(UserError) as error:
        leadline.inspect(made, batch, loss_function, optimizer, **options)
    return error


def test_a_model_without_residual_connections() -> None:
    assert_one_sentence(refused(NoResidual(), tokens()), "no residual connection was found in NoResidual")


def test_a_loss_that_nobody_gave() -> None:
    assert_one_sentence(refused(model(), tokens(), None), "the model gives no loss", "loss=function(output, batch)")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda output, batch: output,
        lambda output, batch: output.mean().item(),
        lambda output, batch: None,
        lambda output, batch: output.argmax(),
        lambda output, batch: output.mean()[None],
    ],
    ids=["a matrix", "a float", "None", "an integer", "a vector of one"],
)
def test_a_loss_that_is_not_one_number(wrong: Any) -> None:
    assert_one_sentence(refused(model(), tokens(), wrong), "the loss must be one number")


def test_a_loss_that_does_not_depend_on_the_weights() -> None:
    error = refused(model(), tokens(), lambda output, batch: torch.ones(()))
    assert_one_sentence(error, "the loss does not depend on any weight")
    detached = refused(model(), tokens(), lambda output, batch: output.detach().mean())
    assert_one_sentence(detached, "the loss does not depend on any weight")


def test_a_model_whose_weights_are_all_frozen() -> None:
    assert_one_sentence(refused(frozen(), tokens()), "every weight of the model is frozen", "requires_grad")


def test_an_optimizer_of_another_model() -> None:
    error = refused(model(), tokens(), loss, torch.optim.Adam(model().parameters()))
    assert_one_sentence(error, "the optimizer holds none of the model's weights", "model.parameters()")


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(lambda: tokens() + VOCAB, id="ids too large"),
        pytest.param(lambda: tokens().float(), id="dtype"),
        pytest.param(lambda: {"words": tokens()}, id="keyword"),
        pytest.param(lambda: (tokens(), tokens()), id="arguments"),
        pytest.param(lambda: (), id="no arguments"),
        pytest.param(lambda: "a sentence", id="text"),
        pytest.param(lambda: None, id="None"),
        pytest.param(lambda: tokens()[0, 0], id="no dimensions"),
        pytest.param(lambda: tokens()[None, None], id="four dimensions"),
    ],
)
def test_a_batch_that_does_not_fit(batch: Any) -> None:
    assert_one_sentence(refused(model(), batch()), "Model cannot be run on this batch: ")


def test_a_list_of_batches_says_how_several_are_given() -> None:
    assert_one_sentence(refused(model(), [tokens(), tokens()]), "give several batches as iter(…)")
    assert leadline.inspect(model(), iter([tokens(), tokens()]), loss).facts["batches"] == 2


def test_a_batch_of_another_width_for_torchs_encoder() -> None:
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with pytest.raises(UserError) as error:
        leadline.inspect(encoder, torch.randn(2, 3, DIM + 1), lambda output, batch: output.mean())
    assert_one_sentence(error, "cannot be run on this batch")


def test_a_batch_of_another_dtype_for_torchs_encoder() -> None:
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    error = refused(encoder, torch.randn(2, 3, DIM).double(), lambda output, batch: output.mean())
    assert_one_sentence(error, "cannot be run on this batch")


def test_a_later_batch_that_does_not_fit() -> None:
    error = refused(model(), iter([tokens(), tokens().float()]))
    assert_one_sentence(error, "Model cannot be run on this batch: ")


def test_an_empty_iterator() -> None:
    assert_one_sentence(refused(model(), iter([])), "the iterator of batches is empty")
    assert_one_sentence(refused(model(), DataLoader(TensorDataset(tokens()[:0]))), "the iterator of batches is empty")


@pytest.mark.parametrize("wrong", [Model, None, "model", {}])
def test_what_is_not_a_module(wrong: Any) -> None:
    assert_one_sentence(refused(wrong, tokens()), "inspect takes a torch.nn.Module, not ")


def test_a_rate_of_zero() -> None:
    made = model()
    error = refused(made, tokens(), loss, torch.optim.Adam(made.parameters(), lr=0.0))
    assert_one_sentence(error, "the learning rate is 0", "rate you intend to train with")


def test_a_model_that_returns_no_tensor() -> None:
    torch.manual_seed(1)
    assert_one_sentence(refused(Nothing(), tokens(), None), "the model gives no loss")
    made = Nothing()
    error = refused(made, tokens(), lambda output, batch: loss(made.kept, batch))
    assert_one_sentence(error, "the model returns no floating tensor")


def test_a_model_whose_layers_are_not_always_there() -> None:
    torch.manual_seed(1)
    assert_one_sentence(refused(Shrinking(), tokens()), "does not compute the same operations each time")


def test_a_model_that_does_something_else_each_time_is_read_rightly_or_refused() -> None:
    torch.manual_seed(1)
    with contextlib.suppress(UserError):
        found = leadline.inspect(Restless(), tokens(), loss)
        steady = leadline.inspect(model(), tokens(), loss)  # computes the same values
        expected = [r.value for r in steady.records if r.quantity == "hidden_norm"]
        assert [r.value for r in found.records if r.quantity == "hidden_norm"] == pytest.approx(expected, rel=1e-4)


def test_a_warm_up_below_zero() -> None:
    assert_one_sentence(refused(model(), tokens(), warmup=-5), "warm")
