"""Training itself: it learns, it tells what it does, it stops when it should, and a run can be repeated."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline import config as configuration
from leadline import history
from leadline.config import Config, to_dict
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.errors import Diverged, UserError
from leadline.kernels.cross_entropy import cross_entropy
from leadline.provenance import FORMAT, NUMERICS, code
from leadline.tasks import Translation
from leadline.training import checkpoint
from leadline.training.device import find_device
from leadline.training.events import Event
from leadline.training.loop import train
from leadline.training.run import load_config
from leadline.training.step import Result, make_step


def measured(run: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl without what depends on the clock."""
    return [{key: value for key, value in row.items() if key not in history.CLOCK} for row in history.read(run).rows]


def evaluations(run: Path) -> list[dict[str, float]]:
    return [row for row in history.read(run).rows if "valid_nll" in row]


def task_of(config: Config) -> Translation:
    return Translation(config, Store(prepare(config.data)))


def one_step(config: Config, batches: Callable[[Translation], list[Any]]) -> tuple[dict[str, torch.Tensor], Result]:
    """The weights after one update on `batches`, and what the update reported."""
    task = task_of(config)
    model = task.build_model()
    step = make_step(config, task, model)
    result = step(batches(task), 1, config.optim.lr)
    return {name: p.detach() for name, p in model.named_parameters()}, result


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory, tiny: Config) -> Config:
    """A task that a tiny model learns quickly: say the same again."""
    folder = tmp_path_factory.mktemp("copying")
    words = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"]
    lines = [f"{a} {b}\n" for a in words for b in words]
    for split, some in (("train", lines * 4), ("valid", lines)):
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text("".join(some))
    return tiny.set(
        model={"dim": 32, "max_length": 16, "dropout": 0.0},
        data={"source": f"text:{folder}", "vocab_size": 32},
        optim={"lr": 0.01, "schedule": "constant"},
        train={"updates": 60, "eval_every": 20, "batch_tokens": 256},
    )


def test_the_loss_falls_on_a_task_that_can_be_learnt(copying: Config, tmp_path: Path) -> None:
    run = train(copying, tmp_path / "run")
    first, *_, last = (row["loss"] for row in history.read(run).rows if "loss" in row)
    assert first > 3
    assert last < 0.3
    assert evaluations(run)[-1]["valid_nll"] < 0.3


def test_events_tell_the_training_in_order(tiny: Config, tmp_path: Path) -> None:
    events: list[Event] = []
    run = train(tiny.set(train={"updates": 6, "eval_every": 3}), tmp_path / "run", [events.append])
    told = [(event.kind, event.update) for event in events]
    assert told == [
        ("start", 0), ("update", 1), ("update", 2), ("update", 3), ("evaluation", 3),
        ("update", 4), ("update", 5), ("update", 6), ("evaluation", 6),
    ]  # fmt: skip
    assert {event.total for event in events} == {6}
    assert "pre_ln" in events[0].message
    assert [event.row for event in events[1:]] == history.read(run).rows


def test_every_listener_hears_every_event(tiny: Config, tmp_path: Path) -> None:
    first: list[Event] = []
    second: list[Event] = []
    train(tiny.set(train={"updates": 1}), tmp_path / "run", [first.append, second.append])
    assert len(first) == 3
    assert first == second


def test_a_run_of_epochs_evaluates_after_each(tiny: Config, tmp_path: Path) -> None:
    config = tiny.set(train={"updates": 0, "epochs": 2, "eval_every": 0, "batch_tokens": 1024})
    task = task_of(config)
    ends, total = [], 0
    for epoch in range(2):
        total += len(batching.epoch_plan(task.train.lengths, task.shape, config.train.seed, epoch))
        ends.append(total)
    run = train(config, tmp_path / "run")
    assert [row["update"] for row in evaluations(run)] == ends
    assert [row["epoch"] for row in evaluations(run)] == [1, 2]
    assert checkpoint.names(run) == [f"{end:08d}" for end in ends]


def test_whichever_of_updates_and_epochs_comes_first_ends_a_run(tiny: Config, tmp_path: Path) -> None:
    by_updates = train(tiny.set(train={"updates": 3, "epochs": 1}), tmp_path / "updates")
    assert history.read(by_updates).rows[-1]["update"] == 3
    by_epochs = train(tiny.set(train={"updates": 999, "epochs": 1, "eval_every": 0}), tmp_path / "epochs")
    assert (history.read(by_epochs).rows[-1]["epoch"], len(evaluations(by_epochs))) == (1, 1)


def test_a_run_that_is_never_evaluated_trains_and_saves_like_any_other(tiny: Config, tmp_path: Path) -> None:
    weights = []
    for name, every in (("never", -1), ("sometimes", 0)):
        config = tiny.set(train={"updates": 0, "epochs": 2, "eval_every": every, "batch_tokens": 1024, "keep": 9})
        run = train(config, tmp_path / name)
        saved = checkpoint.names(run)
        assert any("valid_nll" in row for row in history.read(run).rows) == (every == 0)
        assert len(saved) == 2
        weights.append(checkpoint.read_latest(run)[1])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    with pytest.raises(UserError, match="patience counts evaluations"):
        tiny.set(train={"eval_every": -1, "patience": 1})


def test_a_run_evaluates_every_few_updates_and_at_its_end(tiny: Config, tmp_path: Path) -> None:
    run = train(tiny.set(train={"updates": 5, "eval_every": 2, "log_every": 100}), tmp_path / "run")
    assert [row["update"] for row in evaluations(run)] == [2, 4, 5]


def test_a_line_of_metrics_is_the_mean_since_the_line_before(tiny: Config, tmp_path: Path) -> None:
    settings = {"updates": 6, "eval_every": 6}
    each = train(tiny.set(train=settings), tmp_path / "each")
    some = train(tiny.set(train=settings | {"log_every": 3}), tmp_path / "some")
    losses = [row["loss"] for row in history.read(each).rows if "loss" in row]
    found = {row["update"]: row["loss"] for row in history.read(some).rows if "loss" in row}
    assert found == pytest.approx({3: sum(losses[:3]) / 3, 6: sum(losses[3:]) / 3})


def test_bleu_is_measured_at_evaluations_when_asked(tiny: Config, tmp_path: Path) -> None:
    run = train(tiny.set(train={"updates": 1, "bleu_sentences": 3}), tmp_path / "run")
    assert 0 <= evaluations(run)[0]["valid_bleu"] <= 100
    assert "valid_chrf" in evaluations(run)[0]


def test_patience_ends_a_training_that_does_not_improve(tiny: Config, tmp_path: Path) -> None:
    events: list[Event] = []
    hopeless = tiny.set(optim={"lr": 1e-30}, train={"updates": 1000, "eval_every": 1, "patience": 2})
    run = train(hopeless, tmp_path / "run", [events.append])
    assert [row["update"] for row in evaluations(run)] == [1, 2, 3]
    assert any("stopping early" in event.message for event in events)
    assert checkpoint.best(run) == "00000001"


def test_a_validation_loss_that_is_not_finite_is_never_the_best(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([math.nan, 2.0, math.nan, 3.0])
    monkeypatch.setattr(Translation, "evaluate", lambda *_: {"nll": next(losses)})
    run = train(tiny.set(train={"updates": 4, "eval_every": 1}), tmp_path / "run")
    assert checkpoint.best(run) == "00000002"


def test_patience_waits_while_the_loss_improves(copying: Config, tmp_path: Path) -> None:
    run = train(copying.set(train={"updates": 12, "eval_every": 4, "patience": 1}), tmp_path / "run")
    assert [row["update"] for row in evaluations(run)] == [4, 8, 12]


def poisoned(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is built with one weight set to `value`."""
    build = Translation.build_model

    def build_and_poison(self: Translation) -> Any:
        model = build(self)
        with torch.no_grad():
            dict(model.named_parameters())[name].view(-1)[0] = value
        return model

    monkeypatch.setattr(Translation, "build_model", build_and_poison)


def test_a_weight_that_is_nan_ends_the_training_at_its_update(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned("encoder.blocks.0.attn.qkv.weight", math.nan, monkeypatch)
    with pytest.raises(Diverged, match=r"the loss is nan at update 1 with pre_ln.*no checkpoint had been written"):
        train(tiny, tmp_path / "run")
    assert checkpoint.names(tmp_path / "run") == []
    assert history.read(tmp_path / "run").rows == [{"update": 1, "loss": None, "grad_norm": None}]


def test_an_absurd_rate_diverges_and_keeps_the_last_good_checkpoint(tiny: Config, tmp_path: Path) -> None:
    absurd = tiny.set(
        model={"placement": "post_ln"},
        optim={"name": "sgd", "lr": 1e30, "schedule": "constant"},
        train={"save_every": 1},
    )
    with pytest.raises(Diverged) as error:
        train(absurd, tmp_path / "run")
    kept = checkpoint.names(tmp_path / "run")
    last = int(kept[-1])
    assert f"at update {last + 1} with post_ln at lr 1e+30" in str(error.value)
    assert f"the last checkpoint is {kept[-1]}" in str(error.value)
    assert [row["update"] for row in history.read(tmp_path / "run").rows] == list(range(1, last + 2))


def test_divergence_ends_the_command_with_code_3(
    tiny: Config, tmp_path: Path, leadline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned("decoder.blocks.0.ffn.expand.weight", math.inf, monkeypatch)
    (tmp_path / "config.toml").write_text(configuration.to_toml(tiny))
    answer = leadline("train", tmp_path / "config.toml", "--out", tmp_path / "run", "--json")
    assert answer.code == 3
    assert answer.out == ""
    assert answer.err.splitlines()[-1].startswith("leadline: the loss is nan at update 1")
    assert "Traceback" not in answer.err


def test_a_training_that_fails_leaves_no_thread_behind(tiny: Config, tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def fail(event: Event) -> None:
        if event.kind == "update":
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose") as error:  # keeps the traceback, as a notebook does
        train(tiny, tmp_path / "run", [fail])
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert error.value is not None
    assert left == []


def test_the_config_of_a_run_repeats_it(finished: Path, tiny: Config, tmp_path: Path) -> None:
    config = configuration.load(finished / "config.toml")
    assert config == tiny
    again = train(config, tmp_path / "again")
    assert measured(again) == measured(finished)
    assert len(measured(again)) == 22


def test_a_relative_text_folder_is_found_from_anywhere(
    copying: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(copying.data.source.removeprefix("text:"))
    monkeypatch.chdir(folder.parent)
    run = train(copying.set(data={"source": f"text:{folder.name}"}, train={"updates": 1}), tmp_path / "run")
    assert configuration.load(run / "config.toml").data.source == copying.data.source


def test_run_json_says_what_the_run_stands_on(finished: Path, tiny: Config) -> None:
    facts = json.loads((finished / "run.json").read_text())
    store = Store(prepare(tiny.data))
    assert facts["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {"python", "leadline", "numpy", "tokenizers", "safetensors", "sacrebleu"} < facts["versions"].keys()
    assert "unknown" not in facts["versions"].values()
    assert facts["device"] == "cpu"
    assert facts["chosen"] == {"attention": "padded", "step": "eager", "precision": "fp32", "init": "fairseq_2019"}
    assert (facts["format"], facts["numerics"], facts["code"]) == (FORMAT, NUMERICS, code())
    assert facts["config"] == to_dict(load_config(finished))
    assert "began" not in facts
    assert facts["data"]["key"] == store.manifest["key"]
    assert facts["data"]["sha256"] == store.manifest["sha256"]
    assert facts["data"]["splits"]["train"]["rows"] == 300
    assert (finished / "tokenizer.json").read_bytes() == (store.folder / "tokenizer.json").read_bytes()


def test_tensorboard_holds_the_same_numbers(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(finished / "tensorboard"))
    board.Reload()
    found = [(event.step, event.value) for event in board.Scalars("loss")]
    expected = [(row["update"], row["loss"]) for row in history.read(finished).rows if "loss" in row]
    assert found == [(update, pytest.approx(loss)) for update, loss in expected]


def test_pairs_that_are_too_long_are_counted_in_a_message(tiny: Config, tmp_path: Path) -> None:
    config = tiny.set(model={"max_length": 20}, train={"updates": 1})
    lengths = Store(prepare(config.data)).split("train").lengths() + 1  # with </s> or <s>
    too_long = int((lengths.max(1) > 20).sum())
    events: list[Event] = []
    run = train(config, tmp_path / "run", [events.append])
    assert 0 < too_long < 300
    assert f"{too_long} training pairs are longer than model.max_length=20 and left out" in [e.message for e in events]
    assert evaluations(run)[0]["valid_skipped"] > 0


def test_a_limit_that_leaves_nothing_is_refused(tiny: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"every training pair is longer than model\.max_length=1"):
        train(tiny.set(model={"max_length": 1}), tmp_path / "run")


def test_a_config_that_cannot_work_does_not_occupy_the_run_folder(tiny: Config, tmp_path: Path) -> None:
    """Having put the config right, the same command must work."""
    for wrong in ({"model": {"placement": "pre_nl"}}, {"train": {"device": "gpu"}}, {"train": {"batch_tokens": 8}}):
        with pytest.raises(UserError):
            train(tiny.set(**wrong), tmp_path / "run")
    train(tiny.set(train={"updates": 1}), tmp_path / "run")


def halves(task: Translation) -> list[Any]:
    rows = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)[0]
    return [task.collate(rows[0::2]), task.collate(rows[1::2])]


def together(task: Translation) -> list[Any]:
    return [task.collate(batching.epoch_plan(task.train.lengths, task.shape, 1, 0)[0])]


def test_two_half_batches_make_the_update_of_the_whole_batch(tiny: Config) -> None:
    config = tiny.set(model={"dropout": 0.0}, optim={"name": "sgd", "lr": 0.5})
    apart, apart_result = one_step(config, halves)
    whole, whole_result = one_step(config, together)
    begin = dict(task_of(config).build_model().named_parameters())
    assert apart_result.tokens == whole_result.tokens
    torch.testing.assert_close(apart_result.loss, whole_result.loss)
    torch.testing.assert_close(apart_result.grad_norm, whole_result.grad_norm)
    for name in whole:
        torch.testing.assert_close(apart[name], whole[name], rtol=1e-4, atol=1e-6)
    assert not torch.equal(whole["source_embed.tokens.weight"], begin["source_embed.tokens.weight"])


def test_clipping_bounds_the_step_and_reports_the_norm_before_it(tiny: Config) -> None:
    config = tiny.set(model={"dropout": 0.0}, optim={"name": "sgd", "lr": 1.0})
    begin = {name: p.detach() for name, p in task_of(config).build_model().named_parameters()}
    _, free = one_step(config, together)
    clipped, result = one_step(config.set(optim={"clip": 0.01}), together)
    moved = math.sqrt(sum(float((clipped[name] - begin[name]).square().sum()) for name in clipped))
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert result.grad_norm == free.grad_norm > 0.01


def test_label_smoothing_mixes_in_the_uniform_distribution(tiny: Config) -> None:
    """(1-ε)·nll + ε·mean over the vocabulary of -log p; without ε, the loss is the nll."""
    config = tiny.set(model={"dropout": 0.0})
    task = task_of(config)
    model, batch = task.build_model(), together(task)[0]
    logits = model.logits(model(batch.source, batch.target)).detach()
    minus_log_p = -logits.log_softmax(-1)[: batch.count].double()
    nll = minus_log_p.gather(1, batch.labels[: batch.count, None]).mean()
    for epsilon in (0.0, 0.1):
        _, result = one_step(config.set(train={"label_smoothing": epsilon}), together)
        expected = (1 - epsilon) * nll + epsilon * minus_log_p.mean()
        assert float(result.loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(cross_entropy(logits, batch.labels, 0.1, 0)[1]) / batch.count == pytest.approx(float(nll), rel=1e-5)


def test_validation_reports_the_plain_loss_beside_the_smoothed(tiny: Config, tmp_path: Path) -> None:
    smooth = evaluations(train(tiny.set(train={"updates": 5, "label_smoothing": 0.1}), tmp_path / "smooth"))[-1]
    assert smooth["valid_loss"] != smooth["valid_nll"]
    plain = evaluations(train(tiny.set(train={"updates": 5}), tmp_path / "plain"))[-1]
    assert plain["valid_loss"] == pytest.approx(plain["valid_nll"], rel=1e-6)


def test_bf16_trains_on_a_cpu_with_fp32_weights(copying: Config, tmp_path: Path) -> None:
    settings = {"updates": 20, "eval_every": 20}
    half = train(copying.set(train=settings | {"precision": "bf16"}), tmp_path / "bf16")
    full = train(copying.set(train=settings), tmp_path / "fp32")
    losses = [[row["loss"] for row in history.read(run).rows if "loss" in row] for run in (half, full)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0][-1] < losses[0][0] / 1.5
    assert {t.dtype for t in checkpoint.read(half, "00000020")[1].values()} == {torch.float32}


def test_a_device_that_does_not_exist_is_refused() -> None:
    assert find_device("auto").type in ("cpu", "cuda")
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match=r"train\.device='gpu' is not a device"):
        find_device("gpu")
    with pytest.raises(UserError, match=r"train\.device='mps' is not a device"):
        find_device("mps")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            find_device("cuda")


def test_a_run_on_prepared_data_says_how_it_was_prepared(tiny: Config, tmp_path: Path) -> None:
    folder = prepare(tiny.set(data={"lowercase": True}).data, tmp_path / "prepared")
    asked = tiny.set(data={"source": f"prepared:{folder}", "text": "tokenized"}, train={"updates": 1})
    run = train(asked, tmp_path / "run")
    written = configuration.load(run / "config.toml").data
    assert (written.text, written.lowercase, written.source) == ("raw", True, f"prepared:{folder}")
