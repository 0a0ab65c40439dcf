"""The benchmark suite runs, counts what it says it counts, and compares models that compute the same."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import __main__ as command
from bench import batches, bert, depth, flops, goals, golden, report, start
from bench.command import Watched
from bench.measure import Setting, Work, compete
from bench.workload import PAD, SIZES, make_pool, padded_batches
from leadline import config as configuration
from leadline import recipes

CPU = Setting(torch.device("cpu"), repeats=2)
TINY = SIZES["tiny"]


def bench(*words: str, out: Path) -> dict:
    command.main([*words, "--repeats", "1", "--out", str(out)])
    (path,) = out.glob("*.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_contestants_see_the_same_tokens() -> None:
    pool = make_pool(SIZES["small"])
    batches = padded_batches(pool, SIZES["small"].batches)
    assert sum(int((batch["labels"] != PAD).sum()) for batch in batches) == pool.target_tokens
    assert sum(len(batch["labels"]) for batch in batches) == len(pool.pairs)


def test_one_that_fails_does_not_stop_the_others() -> None:
    def fails() -> Work:
        raise RuntimeError("no such thing\nsecond line")

    def work() -> Work:
        return Work(lambda: None, items=10, steps=2, flops=4.0)

    ours, theirs, failed = compete({"leadline": work, "peer": work, "broken": fails}, CPU, peak=1.0)
    assert failed == {"contestant": "broken", "failed": "RuntimeError: no such thing"}
    assert ours["leadline_is_faster_by"] == 1
    assert len(theirs["seconds"]) == 2
    assert theirs["share_of_peak"] == pytest.approx(8.0 / sum(theirs["seconds"]))
    assert [row["contestant"] for row in compete({"a": work, "b": work}, Setting(CPU.device, only=("b",)))] == ["b"]


def test_flops_are_those_that_torch_counts() -> None:
    """torch counts matrix products and dense attention; sentences of equal length have no padding to tell apart."""
    from torch.utils.flop_counter import FlopCounterMode

    from bench.peers import marian

    length, rows = 12, 3
    peer = marian(TINY, CPU.device)
    tokens = torch.randint(4, TINY.vocab, (rows, length))
    batch = {"source": tokens, "target": tokens, "source_padding": tokens == PAD}
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        peer.logits(batch).sum().backward()
    lengths = np.full((rows, 2), length)
    causal_half = 12 * TINY.dim * TINY.layers * rows * length * (length - 1) / 2  # torch counts what is masked, too
    assert flops.translation(TINY, lengths) + causal_half == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_language_models_of_all_contestants_are_the_same(name: str) -> None:
    """The same loss of the same weights, and the FLOPs that torch counts; it also counts what the causal mask hides."""
    pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    from bench import convert, lm, ours

    config = lm.config_of(lm.SIZES[name], CPU, "eager")
    (batch, _), length, rows = lm.make_batches(lm.SIZES[name], 32), 32, 4
    model = ours.model_of(config, 200)
    theirs = convert.decoder(model)
    loss = lm.Task().loss(model, batch, batch.count)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        logits = theirs(input_ids=batch.target.tokens.view(rows, length)).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels)
        expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    hidden = 12 * 32 * 2 * rows * length * (length - 1) / 2
    assert flops.decoder(config.model, 200, rows, length) + hidden == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_bert_batches_have_exactly_the_masked_tokens() -> None:
    size = bert.SIZES["bert-tiny"]
    for batch in bert.make_batches(size):
        assert len(batch.masked) == len(batch.labels) == batch.count == size.masked
        assert (batch.source.tokens[batch.masked] == bert.MASK).all()
        assert batch.fixed().source.groups == ()


@pytest.mark.parametrize("name", batches.cases(4096))
def test_batches_of_every_task_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "TOKENS", 20_000)
    assert batches.speed(batches.cases(4096)[name], seconds=1e-3) > 0


def test_train_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    facts = bench("train", "--size", "tiny", "--only", "eager", out=tmp_path)
    assert {"leadline, eager", "torch.nn.Transformer, eager", "Hugging Face Marian, eager"} <= {
        row["contestant"] for row in facts["rows"]
    }
    assert not [row for row in facts["rows"] if "failed" in row]
    assert all(row["target_tokens_per_second"] > 0 and 0 < row["share_of_peak"] < 1 for row in facts["rows"])
    assert "leadline is faster by" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    assert report.markdown(path).count("\n|") == len(facts["rows"]) + 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["bert", "--only", "eager"],
        ["lm", "--only", "eager"],
        ["memory", "--depths", "1", "2"],
        ["prepare"],
        ["processes", "--only", "two processes"],
    ],
)
def test_the_others_run(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    size = ["--size", "numerals-tiny"] if words == ["prepare"] else []
    facts = bench(*words, *size, out=tmp_path)
    assert facts["rows"]
    assert not [row for row in facts["rows"] if "failed" in row]


@pytest.mark.slow
def test_decoding_random_weights_gives_the_same_translations(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    facts = bench("decode", "--size", "tiny", "--sentences", "8", out=tmp_path)
    assert [row["same_output"] for row in facts["rows"]] == [1, 1, 1]
    assert len({row["output_tokens"] for row in facts["rows"]}) == 1


def test_generating_gives_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    facts = bench("generate", "--size", "llama-tiny", "--sentences", "2", out=tmp_path)
    assert [row["same_output"] for row in facts["rows"]] == [1, 1, 1]


def test_decoding_a_trained_run(finished: Path, tmp_path: Path) -> None:
    """Pre-LN, by way of Pegasus."""
    pytest.importorskip("transformers")
    text = tmp_path / "text"
    text.write_text("zwölf\neinundzwanzig\n\ndrei Tage\n", encoding="utf-8")
    facts = bench("decode", "--run", str(finished), "--text", str(text), out=tmp_path)
    assert [row["same_output"] for row in facts["rows"]] == [1, 1, 1]


def test_ctranslate2_beside_a_trained_run_has_a_score_and_says_what_is_the_same(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    long = "eins " * 300  # ours translates it in pieces, theirs cuts it as its card does
    for name, text in (("de", f"zwölf\n{long}\ndrei Tage\n"), ("en", "twelve\none\nthree days\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    given = ["--run", str(finished), "--text", str(tmp_path / "de"), "--reference", str(tmp_path / "en")]
    facts = bench("ctranslate2", *given, out=tmp_path)
    assert [row["contestant"] for row in facts["rows"]] == ["leadline", "CTranslate2, float32", "CTranslate2, int8"]
    assert all(0 <= row["bleu"] <= 100 and row["bleu_signature"] for row in facts["rows"])
    assert facts["rows"][0]["same_output"] == 1
    assert "load average" in facts["notes"][0]


@pytest.mark.slow
def test_exports_say_why_a_translation_differs(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    text = tmp_path / "text"
    text.write_text(f"zwölf\n\n{'eins ' * 300}\ndrei Tage\n", encoding="utf-8")
    facts = bench("exports", "--run", str(finished), "--text", str(text), out=tmp_path)
    for row in facts["rows"]:
        assert (row["sentences"], row["too_long"], row["by_unexplained"]) == (2, 1, 0)
        assert row["same"] + sum(row[f"by_{kind}"] for kind in ("limit", "end", "tie")) == 2


@pytest.mark.parametrize(("encoder", "decoder"), depth.SIZES["depth-tiny"].depths)
def test_depth_measures_what_layers_cost(encoder: int, decoder: int) -> None:
    row = depth.cost(depth.SIZES["depth-tiny"], encoder, decoder)
    assert row["layers"] == f"{encoder}-{decoder}"
    assert row["parameters"] > 300 * 16
    assert min(row["build_seconds"], row["step_seconds"], row["save_seconds"]) > 0


def test_letters_of_the_depth_benchmark_come_equally_often_and_follow_each_other(tmp_path: Path) -> None:
    depth.write_alphabets(tmp_path)
    lines = (tmp_path / "train.en").read_text().splitlines()
    letters = [line.split() for line in lines]
    assert {letter: sum(line.count(letter) for line in letters) for letter in "ahp"} == dict.fromkeys("ahp", len(lines))
    following = {(a, b) for line in letters for a, b in pairwise(line)}
    assert len(following) == 16  # each letter has one that follows
    assert (tmp_path / "valid.de").read_text() == (tmp_path / "valid.en").read_text()


def test_what_fits_where_agrees_with_what_one_gpu_has_measured() -> None:
    from bench import fits

    (path,) = sorted(fits.RESULTS.glob("*-memory-memory-cuda-bf16.json"))[-1:]
    one = fits.measured(path)
    for layers, known in one.state.items():
        assert fits.state(fits.Shape(layers, 512), 1) / fits.GIB == pytest.approx(known, rel=0.06)
    assert "| 500-500 | 512 | 3,675 M | 1 | 61.6 | does not fit | 74 |" in fits.table(one)
    document = (Path(__file__).parents[1] / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert fits.table(one) in document


@pytest.mark.slow
def test_trainer_ends_where_ours_does_with_the_same_batches(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from bench import command as commands
    from bench import prepare, trainer
    from leadline.training import loop

    size, text = commands.SIZES["numerals-tiny"], tmp_path / "text"
    text.mkdir()
    prepare.generate(text, prepare.Size("", size.pairs, 0), ("de", "en"))
    for path in text.glob("test.*"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    config = commands.config_of(size, CPU, f"text:{text}", ("de", "en"), seed=1)
    run = loop.train(config, tmp_path / "ours")
    trainer.translation(config, tmp_path / "theirs", trainer.Told(tmp_path / "theirs"), our_batches=True)
    ours, theirs = (
        [row["valid_nll"] for row in map(json.loads, lines.read_text().splitlines()) if "valid_nll" in row]
        for lines in (run / "metrics.jsonl", tmp_path / "theirs" / "metrics.jsonl")
    )
    assert len(ours) == 2
    assert theirs == pytest.approx(ours, abs=1e-4)
    assert len(json.loads((tmp_path / "theirs" / "hypotheses.json").read_text())) == 9


def test_trainer_begins_a_masked_lm_where_ours_does(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from bench import command as commands
    from bench import trainer
    from leadline.training import loop

    golden.text(tmp_path / "text")
    config = commands.config_of(commands.SIZES["bert-tiny"], CPU, f"documents:{tmp_path / 'text'}", ("", ""), seed=1)
    config = config.set(data={"vocab_size": 120, "valid_every": 4}, optim={"lr": 1e-9}, train={"batch_tokens": 128})
    run = loop.train(config, tmp_path / "ours")
    trainer.masked_lm(config, tmp_path / "theirs", trainer.Told(tmp_path / "theirs"), our_batches=False)
    ours, theirs = (
        [row["valid_nll"] for row in map(json.loads, lines.read_text().splitlines()) if "valid_nll" in row]
        for lines in (run / "metrics.jsonl", tmp_path / "theirs" / "metrics.jsonl")
    )
    assert theirs == pytest.approx(ours, abs=0.1)  # other masks
    assert len(theirs) == 2


def test_a_command_is_timed_and_its_metrics_read(tmp_path: Path) -> None:
    from bench.command import watched

    lines = "import sys, time; file = open(sys.argv[1], 'w', buffering=1)\n"
    lines += "for nll in 3, 1: print(f'{{\"valid_nll\": {nll}}}', file=file); time.sleep(0.2)"
    folder = tmp_path / "run"
    folder.mkdir()
    told = watched([sys.executable, "-c", lines, str(folder / "metrics.jsonl")], folder)
    assert [row["valid_nll"] for _, row in told.rows] == [3, 1]
    assert 0 < told.rows[0][0] <= told.rows[1][0] <= told.wall
    assert told.cpu > 0
    with pytest.raises(RuntimeError, match="no such thing"):
        watched([sys.executable, "-c", "raise SystemExit('no such thing')"], folder)


def test_the_first_update_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def watched(command: list[str], folder: Path, **environment: str) -> Watched:
        calls.append((command, environment))
        return Watched([(3.0 - len(calls), {"update": 1, "loss": 1.0})], wall=9.0, cpu=9.0)

    monkeypatch.setattr(start, "watched", watched)
    facts = bench("start", out=tmp_path)
    assert {row["contestant"]: row["seconds"] for row in facts["rows"]} == {
        "leadline, cold": [2.0],
        "leadline, warm cache": [1.0],
    }
    (cold, where), (warm, there) = calls
    assert where == there
    assert cold[: cold.index("--out")] == warm[: warm.index("--out")]
    config = configuration.override(recipes.find(cold[4]), [w for w in cold if "=" in w])
    assert (config.train.updates, config.train.epochs, config.train.log_every) == (1, 0, 1)


@pytest.mark.slow
def test_a_training_beside_its_step(tmp_path: Path) -> None:
    golden.text(tmp_path / "text")
    training, step = bench("loop", "--text", str(tmp_path / "text"), out=tmp_path)["rows"]
    assert min(training["tokens_per_second"], step["tokens_per_second"]) > 0
    assert 0 <= training["wait_share"] <= 1
    assert step["seconds"] == pytest.approx([1e6 / step["tokens_per_second"]])


def test_the_table_of_goals_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: python -m docs.make_speed"""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    import make_speed

    assert make_speed.page() == (make_speed.DOCS / "performance.md").read_text(encoding="utf-8")
    peer = {"contestant": "peer", "seconds": [1.2]}
    ours = {"ms_a_step": 50.0, "share_of_peak": 0.5, "seconds": [1.0]}
    goal = goals.Goal("", "", ms=57, ratio=1.2, share=0.55)
    assert goal.asked() == "≤ 57 ms, ≥ 1.2×, ≥ 55% of peak"
    assert goal.reached(ours, peer, 1.2) == "**no**"
    assert goal.reached(ours | {"share_of_peak": 0.56}, peer, 1.2) == "yes"
    assert goal.reached(ours | {"share_of_peak": 0.56}, None, 0.0) == "no peer finished"
    assert goal.reached(ours, None, 0.0) == "**no**"  # whatever a peer would take


@pytest.mark.parametrize("on", [goals.GPU, goals.CPU])
def test_goals_are_measured_by_the_commands_that_their_rows_read(on: str, tmp_path: Path) -> None:
    given = goals.commands(on, {"pairs": tmp_path, "documents": tmp_path})
    chosen = [goal for goal in goals.GOALS if goal.on == on]
    dates = {goal.run: min(goals.measured(other) for other in chosen if other.run == goal.run) for goal in chosen}
    order = []
    for what, _, size, _, device, _, precision, *_ in given:
        assert size in importlib.import_module(f"bench.{what}").SIZES
        assert f"{device}-{precision}" == on
        order.append((what == "command", dates.pop(f"{what}-{size}")))
    assert order == sorted(order)
    assert {goal.needs for goal in goals.GOALS if goal.run in dates} == {"run"}  # the others are all there
    assert not any("--text" in words for words in goals.commands(on, {}))


def test_a_goal_that_was_measured_beside_no_peer_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "RESULTS", tmp_path)
    monkeypatch.setattr(goals, "GOALS", [goals.Goal("", f"lm-{name}", goals.CPU, ratio=1) for name in ("one", "two")])
    for name, peers in (("one", [{"contestant": "peer", "seconds": [2.0]}]), ("two", [{"contestant": "peer"}])):
        rows = [{"contestant": "leadline", "seconds": [1.0]}, *peers]
        (tmp_path / f"2026-01-01-lm-{name}-cpu-fp32.json").write_text(json.dumps({"rows": rows}))
    assert [words[2] for words in goals.commands(goals.CPU, {})] == ["two", "one"]


def test_one_that_is_not_ready_in_time_does_not_stop_the_others() -> None:
    def compiles() -> Work:
        with contextlib.suppress(TimeoutError):  # as a compiler may, which takes it for an error of its own
            time.sleep(60)
        time.sleep(60)
        raise AssertionError

    work = lambda: Work(lambda: None, items=10)  # noqa: E731
    begun = time.monotonic()
    slow, ours = compete({"peer": compiles, "leadline": work}, dataclasses.replace(CPU, limit=0.1))
    assert slow["failed"] == "TimeoutError: not ready after 0.1 s"
    assert ours["seconds"]
    assert time.monotonic() - begun < 30


def test_what_a_command_has_measured_so_far_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import command as commands

    def way(config: object, folder: Path, size: object) -> commands.Result:
        if len(kept) == 2:
            raise KeyboardInterrupt
        return commands.Result(1.0, 2.0, None, [])

    kept: list[list[str]] = []
    monkeypatch.setattr(commands, "ways_of", lambda size, setting: dict.fromkeys(("leadline train", "peer", "z"), way))
    setting = dataclasses.replace(CPU, keep=lambda rows: kept.append([row["contestant"] for row in rows]))
    with pytest.raises(KeyboardInterrupt):
        commands.measured(commands.SIZES["numerals-tiny"], setting, "builtin:numerals", ("de", "en"), tmp_path)
    assert kept == [["leadline train"], ["leadline train", "peer"]]


def test_what_measures_a_goal_is_stopped_with_all_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert goals.measure(["no-such"], 60) == "failed with exit code 2"
    popen, started = subprocess.Popen, []

    def begin(words: list[str], **given: object) -> subprocess.Popen:
        started.append(popen(["/bin/sh", "-c", "sleep 60 & wait"], **given))
        return started[-1]

    monkeypatch.setattr(goals.subprocess, "Popen", begin)
    assert goals.measure([], 0.2) == "stopped, no time is left"
    assert any(not _alive(started[0].pid) or time.sleep(0.05) for _ in range(200))  # nor the process it waits for


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
