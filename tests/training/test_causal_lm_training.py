"""Training a language model: learns, resumes bit for bit, is the same on fused kernels, and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import history
from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.tasks import CausalLM
from leadline.training import optim
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.step import make_step
from leadline.training.trained import load


class Crash(Exception):
    pass


def crash(event: Event) -> None:
    if event.kind == "update" and event.update == 13:
        raise Crash


def tensors(run: Path) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / "00000020"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def test_it_learns_and_resumes_to_the_same_bits(written: Config, tmp_path: Path) -> None:
    """In the middle of an epoch after the first, with dropout and several batches an update."""
    config = written.set(model={"dropout": 0.1}, train={"accumulate": 2}, optim={"lr": 0.01})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train(config, tmp_path / "stopped", [crash])
    resume(tmp_path / "stopped")
    found, expected = tensors(tmp_path / "stopped"), tensors(whole)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    rows = history.read(whole).rows
    assert rows[-1]["epoch"] >= 2
    assert rows[-1]["valid_nll"] < rows[0]["loss"] - 0.5
    assert {"valid_perplexity", "valid_bits_per_byte", "valid_trigram_nll"} <= rows[-1].keys()


def updated(config: Config, each: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    task = CausalLM(config, Store(prepare(config.data)))
    model = task.build_model().train()
    step = make_step(config, task, model)
    prepared = [step.prepare(task.collate(rows, 1)) for rows in task.epoch(0)[: 2 * each]]
    losses = [float(step(prepared[u * each : (u + 1) * each], u + 1, 0.01).loss) for u in range(2)]
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


# Llama's shape is the first.
CASES: list[tuple[dict[str, Any], bool]] = [
    ({"norm": "rms_norm", "positions": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 1}, False),
    ({"placement": "post_ln", "positions": "sinusoidal", "embeddings": "separate"}, True),
    ({"placement": "deepnorm", "embed_scale": True}, False),
]


@pytest.mark.parametrize(("model", "across"), CASES, ids=str)
@pytest.mark.usefixtures("captured")
def test_graph_and_eager_have_the_same_losses_and_weights(written: Config, model: dict, across: bool) -> None:
    each = 2 if across else 1
    config = written.set(
        model=model | {"max_length": 16},
        lm={"across_documents": across},
        optim={"weight_decay": 8.0},  # so much that an update tells whether a weight decays
        train={"batch_tokens": 48, "step": "graph", "accumulate": each},
    )
    losses, weights = updated(config, each)
    plain_losses, plain_weights = updated(config.set(train={"step": "eager"}), each)
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    for name, weight in weights.items():
        if "qkv.bias" not in name:  # the keys' have no gradient but rounding, which Adam makes as large as any other
            assert (weight - plain_weights[name]).abs().max() < 2e-3, name


@pytest.mark.parametrize("embeddings", ["tied", "separate"])
def test_weight_decay_is_off_norms_biases_and_embeddings(written: Config, embeddings: str) -> None:
    """By role: an output matrix of its own decays, one that is the embedding does not."""
    model = CausalLM(written.set(model={"embeddings": embeddings}), Store(prepare(written.data))).build_model()
    decayed, others = optim.optimizer(written.optim, model).param_groups
    foot = model.target_embed
    assert decayed["weight_decay"] == written.optim.weight_decay > 0 == others["weight_decay"]
    assert {id(p) for p in others["params"]} == {
        id(p) for p in model.parameters() if p.ndim < 2 or p is foot.tokens.weight or p is foot.positions.weight
    }
    assert any(p is model.output.weight for p in decayed["params"]) == (embeddings == "separate")
    usual = optim.optimizer(Config().optim, model).param_groups[0]["params"]
    assert {id(p) for p in usual} == {id(p) for p in model.parameters() if p.ndim >= 2}


def test_the_command_line_trains_evaluates_and_writes(
    written: Config, leadline: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assignments = [
        f"data.source={written.data.source}", "data.vocab_size=300", "data.valid_every=10", "model.dim=16",
        "model.decoder_layers=1", "model.max_length=48", "train.batch_tokens=512", "train.updates=3",
        "model.placement=deepnorm", "train.device=cpu",
    ]  # fmt: skip
    changed = [part for assignment in assignments for part in ("--set", assignment)]
    done = leadline("train", "lm_small_pre_ln", "--out", run, "--watch", 1, *changed)
    assert done.code == 0, done.err
    assert "trigrams of the same tokens have" in done.err
    assert "bits a byte" in done.err.split("update 3/3")[-1]
    report = leadline("report", run, "--out", tmp_path / "report.html")
    assert report.code == 0, report.err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Validation bits per byte" in page
    assert "Validation trigram" not in page  # a line that does not change
    assert f"next: leadline evaluate {run}, or echo … | leadline generate {run}\n" in done.out
    said = json.loads(leadline("evaluate", run, "--json").out)
    assert {"nll", "perplexity", "bits_per_byte", "trigram_nll", "trigram_bits_per_byte"} <= said.keys()

    greedy = leadline("generate", run, "abc de", "--greedy", "--tokens", 9)
    assert greedy.code == 0, greedy.err
    assert greedy.out.startswith("abc de")
    trained = load(run)
    (text,) = trained.generate(["abc de"], temperature=0, tokens=9)
    assert greedy.out == f"abc de{text}\n"
    empty = leadline("generate", run, "", "--greedy", "--tokens", 9)
    assert (empty.code, empty.out) == (0, trained.generate([""], temperature=0, tokens=9)[0] + "\n"), empty.err
    (tmp_path / "prompts").write_text("abc de\nfgh\n", encoding="utf-8")
    rows = [
        json.loads(line)
        for line in leadline(
            "generate", run, "-i", tmp_path / "prompts", "--temperature", 0, "--tokens", 9, "--json"
        ).out.splitlines()
    ]
    assert [row["prompt"] for row in rows] == ["abc de", "fgh"]
    assert rows[0]["text"] == text
    drawn = [leadline("generate", run, "--seed", seed, stdin=b"fgh\n").out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["~" * 50], b"", "prompt 1 has 51 tokens with the end of text before it, and the model takes"),
        ([], b"ab\n\xff\n", "stdin, line 2: not valid UTF-8"),
        (["a\udcff"], b"", "prompt 1 is not valid UTF-8"),
        (["a", "--top-p", "0"], b"", "generate.top_p must be above 0"),
        (["a", "--greedy", "--temperature", "1"], b"", "--greedy is --temperature 0"),
        (["a", "-i", ""], b"", "-i is empty"),
        (["a", "-i", "somewhere"], b"", "give prompts as arguments or in a file, not both"),
    ],
    ids=str,
)
def test_what_cannot_be_gone_on_with_is_one_sentence(
    small_lm: Path, leadline: Callable[..., Any], arguments: list[str], stdin: bytes, message: str
) -> None:
    answer = leadline("generate", small_lm, *arguments, stdin=stdin)
    assert answer.code == 2
    assert message in answer.err.splitlines()[-1]


def test_a_run_as_a_function(small_lm: Path) -> None:
    trained = load(small_lm)
    encoded = trained.encode(["abc", "de fg"])
    assert [tokens[0] for tokens in encoded.tokens] == [trained.tokenizer.end_of_text] * 2
    logits, hidden = trained.logits(encoded), trained.hidden(encoded)
    assert [x.shape for x in logits] == [(len(t), trained.tokenizer.vocab_size) for t in encoded.tokens]
    assert [x.shape for x in hidden] == [(len(t), trained.config.model.dim) for t in encoded.tokens]
    (text,) = trained.generate(["abc"], tokens=1, temperature=0)
    assert text == trained.tokenizer.decode([[int(logits[0][-1].argmax())]])[0]
