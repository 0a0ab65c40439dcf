"""Fine-tuning a pre-trained run: what it starts from, the grid, going on after a kill, and what it says."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.jobs import finetune as tuning
from leadline.jobs import worker
from leadline.jobs.grid import Grid, Setting, SettingScores, settings_of, summary
from leadline.jobs.job import Job
from leadline.training import checkpoint
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.run import load_config

WORDS = ["abc", "dab", "fee", "gab", "had", "bag", "cad", "deaf"]


@pytest.fixture(scope="module")
def pretrained(masked: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With next-sentence prediction: it has a pooler. Checkpoints at 10 and 20."""
    return train(masked.set(model={"classes": 2}), tmp_path_factory.mktemp("pretrained") / "bert")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("table"), random.Random(0)
    for split, size in {"train": 64, "dev": 30}.items():
        rows = [
            {"label": rng.choice(["good", "bad", "so so"]), "text": " ".join(rng.choices(WORDS, k=rng.randint(2, 30)))}
            for _ in range(size)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


LONG = Setting(4, 1e-4, 3)  # 16 updates an epoch
COLUMNS = ["data.first=text", "data.second="]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, in_process: Callable[..., None]) -> None:
    def quietly(jobs: Any, root: Path, at_once: int, on_event: Any, on_finished: Any) -> None:
        in_process(jobs, root, at_once, lambda name, event: None, on_finished)

    monkeypatch.setattr(tuning, "execute", quietly)


def weights_at_start(config: Config, folder: Path) -> dict[str, torch.Tensor]:
    """Those the first update reads."""
    found: dict[str, torch.Tensor] = {}
    from leadline.training import loop

    train_ = loop._train

    def stop(setup: Any, *others: Any) -> None:
        found.update({name: p.detach().clone() for name, p in setup.model.named_parameters()})

    loop._train = stop
    try:
        train(config, folder)
    finally:
        loop._train = train_
    return found


def test_it_starts_from_the_encoder_and_the_pooler_with_a_new_classifier(
    pretrained: Path, table: Path, tmp_path: Path
) -> None:
    config = tuning.configure(pretrained, str(table), "", COLUMNS, "10").set(model={"classes": 3})
    assert config.data.vocabulary == str(pretrained / "tokenizer.json")
    assert (config.model.dim, config.model.head, config.data.lowercase) == (16, "linear", True)
    start = load_file(pretrained / "checkpoints" / "00000010" / "model.safetensors")
    found = weights_at_start(config, tmp_path / "one")
    new = {name for name, weight in found.items() if name not in start or not torch.equal(weight, start[name])}
    assert new == {"classifier.out.weight", "classifier.out.bias"}
    assert not any(name.startswith("head.") for name in found)
    last = weights_at_start(config.set(train={"start_checkpoint": "last"}), tmp_path / "two")
    assert not torch.equal(last["source_embed.tokens.weight"], found["source_embed.tokens.weight"])
    pair = weights_at_start(
        config.set(model={"classes": 2}, data={"source": f"table:{two_labels(tmp_path)}"}), tmp_path / "t"
    )
    assert not torch.equal(pair["classifier.out.weight"], start["classifier.out.weight"])  # that of next sentences


def test_a_pooler_that_nothing_has_read_yet_is_kept(masked: Config, table: Path, tmp_path: Path) -> None:
    """As of an imported BertModel."""
    whole = masked.set(model={"pooler": True}, optim={"weight_decay": 0.0}, train={"updates": 1, "eval_every": -1})
    run = train(whole, tmp_path / "bert")
    config = tuning.configure(run, str(table), "", COLUMNS, "last").set(model={"classes": 3})
    start = load_file(run / "checkpoints" / "00000001" / "model.safetensors")
    found = weights_at_start(config, tmp_path / "one")
    assert torch.equal(found["classifier.dense.weight"], start["classifier.dense.weight"])
    assert "classifier.out.weight" not in start


def two_labels(folder: Path) -> Path:
    (folder / "labels").mkdir()
    for split in ("train", "valid"):
        (folder / "labels" / f"{split}.tsv").write_text("label\ttext\n" + "0\tabc dab\n1\tfee gab\n" * 9)
    return folder / "labels"


def test_a_run_of_another_size_does_not_fit(pretrained: Path, table: Path, tmp_path: Path) -> None:
    config = tuning.configure(pretrained, str(table), "", COLUMNS, "last").set(model={"classes": 3, "ffn_dim": 48})
    with pytest.raises(UserError, match=r"checkpoint 00000020 of .* does not fit this model: .* is \(32, 16\)"):
        train(config, tmp_path / "run")


def test_masked_lm_goes_on_from_a_run_with_all_its_heads(masked: Config, pretrained: Path, tmp_path: Path) -> None:
    config = masked.set(model={"classes": 2}, train={"start": str(pretrained), "start_checkpoint": "last"})
    start = load_file(pretrained / "checkpoints" / "00000020" / "model.safetensors")
    found = weights_at_start(config, tmp_path / "run")
    assert found.keys() == start.keys()
    assert all(torch.equal(found[name], start[name]) for name in start)


def test_resuming_needs_the_first_run_no_more(pretrained: Path, table: Path, tmp_path: Path) -> None:
    moved = tmp_path / "bert"
    subprocess.run(["cp", "-r", pretrained, moved], check=True)
    config = tuning.configure(moved, str(table), "", COLUMNS, "last")
    config = config.set(model={"classes": 3}, train={"epochs": 1, "batch_sequences": 16, "keep": 3})
    whole = train(config, tmp_path / "run")
    for path in (moved / "checkpoints").rglob("*.safetensors"):
        path.unlink()
    resume(whole, config=load_config(whole).set(train={"epochs": 2}))
    assert checkpoint.names(whole)[-1] == "00000008"


def test_the_grid_reports_mean_and_interval_and_is_not_done_again(
    pretrained: Path, table: Path, tmp_path: Path, leadline: Callable[..., Any], here: None
) -> None:
    command = ["finetune", pretrained, "--task", table, "--set", COLUMNS[0], "--set", COLUMNS[1], "--seeds", 2,
               "--epochs", 1, "--lr", 1e-3, "--lr", 1e-4, "--batch", 16, "--out", tmp_path / "out"]  # fmt: skip
    done = leadline(*command, "--set", "model.max_length=24")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    folder = tmp_path / "out" / f"{table.name}-bert-best"
    told = json.loads((folder / "table.json").read_text())
    assert [(s["setting"]["lr"], len(s["scores"])) for s in told["settings"]] == [(1e-3, 2), (1e-4, 2)]
    for row in told["settings"]:
        a, b = row["scores"]
        assert row["mean"] == pytest.approx((a + b) / 2)
        assert row["interval"] == pytest.approx(
            12.7062 * abs(a - b) / 2, abs=1e-9
        )  # of two, s/√2 is half their distance
    best = max(told["settings"], key=lambda row: row["mean"])
    assert any(line.startswith(f"best: batch 16, lr {best['setting']['lr']:g}, 1 epochs: ") for line in lines)
    assert any("examples of train are longer than model.max_length=24 and cut" in line for line in lines)
    assert len((folder / "results.csv").read_text().splitlines()) == 5
    made = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}
    assert len(made) == 4
    again = leadline(*command, "--set", "model.max_length=24", "--json")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")} == made
    found = json.loads(again.out)
    assert found["best"]["mean"] == pytest.approx(best["mean"])
    tokenizer = Tokenizer.load(pretrained / "tokenizer.json", load_config(pretrained).data)
    texts = [json.loads(line)["text"] for line in (table / "train.jsonl").read_text().splitlines()]
    assert found["cut"]["train"] == sum(len(tokens) > 22 for tokens in tokenizer.encode(texts, "en")) > 0
    assert found["run"] == told["run"]
    job = load_config(Path(found["run"]))
    assert (job.optim.schedule, job.optim.warmup, job.train.batch_sequences) == ("linear", 0, 16)
    assert job.train.start_checkpoint == "00000020"


def test_the_rate_rises_over_a_tenth_of_the_updates(pretrained: Path, table: Path) -> None:
    base = tuning.configure(pretrained, str(table), "", COLUMNS, "last")
    store = Store(prepare(base.data))  # 64 examples
    updates = {1: 16, 3: 6, 16: 1}  # of an epoch, by how many batches make one
    for accumulate, each in updates.items():
        config = tuning.tuned(base.set(train={"accumulate": accumulate}), Setting(4, 1e-4, 10), store)
        assert config.optim.warmup == each


def test_results_of_other_data_or_of_another_run_are_not_overwritten(
    pretrained: Path, table: Path, tmp_path: Path, here: None
) -> None:
    def tune(run: Path, data: Path) -> None:
        base = tuning.configure(run, str(data), "", COLUMNS, "10")
        tuning.finetune(base, [Setting(16, 1e-4, 1)], 1, 1, tmp_path / "out")

    tune(pretrained, table)
    before = (tmp_path / "out" / "results.csv").read_bytes()
    copy = shutil.copytree(table, tmp_path / "copy")
    tune(shutil.copytree(pretrained, tmp_path / "bert"), copy)  # the same, elsewhere: nothing is left to do
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    changed = shutil.copytree(table, tmp_path / "changed")
    (changed / "dev.jsonl").write_text('{"label": "bad", "text": "fee"}\n')
    other = train(load_config(pretrained).set(train={"seed": 2, "updates": 10}), tmp_path / "other")
    for run, data in ((pretrained, changed), (other, table)):
        with pytest.raises(UserError, match=f"holds the results of {tmp_path}/bert on table:{copy}: choose another"):
            tune(run, data)
        assert (tmp_path / "out" / "results.csv").read_bytes() == before


def test_the_best_run_keeps_its_weights_and_labels_new_text(
    pretrained: Path, table: Path, tmp_path: Path, leadline: Callable[..., Any], here: None
) -> None:
    base = tuning.configure(pretrained, str(table), "", COLUMNS, "last")
    settings = [Setting(16, 1e-3, 1), Setting(16, 1e-4, 1)]
    told: list[str] = []
    tuned = tuning.finetune(base, settings, 2, 1, tmp_path, on_event=lambda _, event: told.append(event.message))
    assert told[0] == "4 runs: 2 settings, 2 seeds each; 4 to do, 1 at a time; the first tells how long"
    assert told[1].startswith("about ")
    runs = {path.parent: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")}
    scores = {run: r["valid_accuracy"] for run, r in runs.items() if r["settings"]["optim.lr"] == tuned.best.setting.lr}
    assert scores[tuned.run] == max(scores.values())
    assert [run for run in runs if checkpoint.names(run)] == [tuned.run]

    whole = json.loads(leadline("evaluate", tuned.run, "--split", "valid", "--json").out)
    examples = [json.loads(line) for line in (table / "dev.jsonl").read_text().splitlines()]
    lines = "\n".join(example["text"] for example in examples).encode()
    answers = [json.loads(line) for line in leadline("classify", tuned.run, "--json", stdin=lines).out.splitlines()]
    right = [each["label"] == example["label"] for each, example in zip(answers, examples, strict=True)]
    nll = [-math.log(each["probabilities"][example["label"]]) for each, example in zip(answers, examples, strict=True)]
    assert sum(right) / len(right) == pytest.approx(whole["accuracy"])
    assert sum(nll) / len(nll) == pytest.approx(whole["nll"], rel=1e-5)
    (tmp_path / "text").write_bytes(lines)
    folder = tuned.run.parent.parent  # one of several runs is meant: the one that was kept
    assert len(list((folder / "runs").iterdir())) > 1
    plain = leadline("classify", folder, "--input", tmp_path / "text").out.splitlines()
    assert plain == [each["label"] for each in answers]

    (gone,) = {run for run in runs if run != tuned.run and run in scores}
    said = leadline("evaluate", gone).err
    assert said.endswith(f"train it in a folder of its own: leadline train {gone / 'config.toml'} --out FOLDER\n")
    # The weights of another metric's best, or of one that was removed, are made again, and nothing else is.
    shutil.rmtree(tuned.run / "checkpoints")
    told.clear()
    assert (
        tuning.finetune(base, settings, 2, 1, tmp_path, on_event=lambda _, e: told.append(e.message)).run == tuned.run
    )
    assert "its weights were not kept" not in told[0]
    assert "were not kept: it is trained again" in told[1]
    assert checkpoint.names(tuned.run)


def test_weights_are_kept_until_another_run_is_surely_better(tmp_path: Path) -> None:
    """The best of each setting that is not complete, and of the best that is."""
    settings = [Setting(16, lr, 1) for lr in (1e-3, 1e-4, 1e-5)]
    jobs = {(s, seed): Job(f"{s.lr} {seed}", Config(), f"{s.lr} {seed}") for s in settings for seed in (1, 2)}
    grid = Grid(jobs, tmp_path, "accuracy")
    scores = {(1e-3, 1): 0.5, (1e-3, 2): 0.7, (1e-4, 1): 0.9, (1e-4, 2): 0.1, (1e-5, 1): 0.2, (1e-5, 2): 0.3}
    kept = []
    for setting, seed in jobs:
        folder = jobs[setting, seed].folder(tmp_path)
        (folder / "checkpoints" / "00000001").mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"diverged": "", "valid_accuracy": scores[setting.lr, seed]}))
        grid._prune()
        kept.append(
            {(s.lr, seed) for (s, seed), job in jobs.items() if list(job.folder(tmp_path).glob("checkpoints/*"))}
        )
    first, second = (1e-3, 2), (1e-4, 1)
    assert kept == [{(1e-3, 1)}, {first}, {first, second}, {first}, {first, (1e-5, 1)}, {first}]


def test_two_texts_are_written_with_a_tab(pretrained: Path, tmp_path: Path, leadline: Callable[..., Any]) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "valid"):
        rows = "yes\tabc dab\tfee gab\nno\tfee gab\tabc\n" * 9
        (folder / f"{split}.tsv").write_text("label\tsentence1\tsentence2\n" + rows)
    base = tuning.configure(pretrained, str(folder), "", ["model.segments=0"], "last")
    run = train(base.set(train={"epochs": 1, "batch_sequences": 6, "batch_tokens": 256}), tmp_path / "run")
    assert leadline("classify", run, stdin=b"abc dab\tfee gab\n").out in ("yes\n", "no\n")
    wrong = leadline("classify", run, stdin=b"abc dab\n")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "the run compares two texts: write them with one tab between them, not 'abc dab'" in wrong.err
    assert "has no labels: it was trained for masked_lm and cannot classify" in leadline("classify", pretrained).err


def test_it_goes_on_after_a_kill_to_the_same_scores(
    pretrained: Path, table: Path, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tuning.configure(pretrained, str(table), "", COLUMNS, "best")
    whole = tuning.finetune(base, [LONG], 1, 1, tmp_path / "whole")
    folder = tmp_path / "killed" / "runs" / whole.run.name
    folder.mkdir(parents=True)
    for name in ("job.toml", "job.json"):
        (folder / name).write_text((whole.run / name).read_text())

    def kill(event: Event) -> None:  # kills of processes: tests/jobs/test_jobs.py
        if event.update > 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.work(folder, kill)
    assert not (folder / "result.json").exists()
    assert checkpoint.names(folder) == ["00000016"]
    again = tuning.finetune(base, [LONG], 1, 1, tmp_path / "killed")
    assert again.run == folder
    one, other = (json.loads((run / "result.json").read_text()) for run in (whole.run, folder))
    assert {k: one[k] for k in one if k != "seconds"} == {k: other[k] for k in one if k != "seconds"}
    monkeypatch.setattr(tuning, "execute", lambda *a: None)  # nothing is left to do
    assert tuning.finetune(base, [LONG], 1, 1, tmp_path / "killed").best.scores == whole.best.scores


def test_a_job_s_key_is_of_the_weights_and_not_of_where_they_lie(pretrained: Path) -> None:
    config = load_config(pretrained)
    one, other = (config.set(train={"start": path}) for path in ("/a", "/b"))
    assert Job("x", one, "data", start="weights").key == Job("x", other, "data", start="weights").key
    assert Job("x", one, "data", start="weights").key != Job("x", one, "data", start="others").key
    assert Job("x", config, "data").key == Job("x", one, "data").key
    first, last = (checkpoint.choose(pretrained, which)[1] for which in ("10", "last"))
    assert checkpoint.fingerprint(first) != checkpoint.fingerprint(last)
    assert checkpoint.fingerprint(dict(reversed(first.items()))) == checkpoint.fingerprint(first)


def test_diverged_runs_are_counted_and_not_averaged() -> None:
    results = [{"diverged": "", "valid_f1": 0.5}, {"diverged": "at update 3"}, {"diverged": "", "valid_f1": 0.7}]
    found = summary(Setting(16, 1e-4, 3), results, "f1")
    assert (found.scores, found.diverged) == ([0.5, 0.7], 1)
    assert str(found) == "60.0 ± 127.1 (1 diverged)"
    assert str(SettingScores(found.setting, [], 2)) == "diverged"
    assert str(SettingScores(found.setting, [0.25], 0)) == "25.0"


def test_the_paper_s_grid() -> None:
    grid = settings_of(*tuning.FULL)
    assert len(grid) == len(set(grid)) == 30
    assert {s.batch for s in grid} == {16, 32}
    assert (min(s.lr for s in grid), max(s.lr for s in grid)) == (1e-5, 1e-4)
    assert (min(s.epochs for s in grid), max(s.epochs for s in grid)) == (3, 8)


@pytest.mark.parametrize(("options", "complaint"), [
    (["--set", "optim.lr=1"], "--set optim.lr: the grid decides; use --lr"),
    (["--set", "model.classes=5"], "--set model.classes: there is a class for each label of the data; leave it out"),
    (["--set", "train.batch_tokens=64"], "--set train.batch_tokens: it is made as large as the largest --batch takes"),
    (["--set", "train.start=x"], "--set train.start: the runs start from RUN"),
    (["--set", "train.start_checkpoint=last"], "--set train.start_checkpoint: use --checkpoint"),
    (["--set", "train.eval_every=-1"], "train.eval_every=-1: settings are compared by their evaluations"),
    (["--task", "mrcp"], "--task 'mrcp' is neither a task nor a file or folder: did you mean 'mrpc'?"),
    (["--metric", "bleu"], "--metric cannot be 'bleu'"),
    (["--seeds", 0], "--seeds and --jobs must be at least 1"),
    (["--batch", 0], "--batch and --epochs must be at least 1"),
    (["--checkpoint", 7], "has no checkpoint '7'"),
    (["--task", "mrpc", "--data", "nowhere"], "nowhere does not exist"),
    (["--data", "nowhere"], "--data is where the files of mrpc or rte are: --task same_meaning needs none"),
])  # fmt: skip
def test_mistakes_are_one_sentence(
    options: list, complaint: str, pretrained: Path, tmp_path: Path, leadline: Callable[..., Any]
) -> None:
    found = leadline("finetune", pretrained, *options, "--out", tmp_path / "out")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert complaint in found.err


def test_a_translation_run_cannot_be_fine_tuned(finished: Path, leadline: Callable[..., Any]) -> None:
    assert "is not an encoder alone" in leadline("finetune", finished).err


@pytest.mark.parametrize("task", ["mrpc", "rte"])
def test_glue_s_files_have_the_columns_of_the_recipes(task: str) -> None:
    from leadline import recipes
    from leadline.data.sources import open_source

    folder = Path(__file__).parents[2] / "shared" / "data" / task
    if not folder.exists():
        pytest.skip("these files are not part of the repository")
    source = open_source(recipes.find(task).set(data={"source": f"table:{folder}"}).data)
    sizes = {split: len(list(source.examples(split))) for split in source.splits()}
    assert sizes == {"mrpc": {"train": 3668, "valid": 408, "test": 1725}, "rte": {"train": 2490, "valid": 277}}[task]


def test_what_is_to_know_of_the_data_is_told(pretrained: Path, tmp_path: Path, here: None) -> None:
    folder = tmp_path / "RTE"
    folder.mkdir()
    rows = "".join(f"{i}\tabc dab\tfee gab\t{label}\n" for i, label in enumerate(["entailment", "not_entailment"] * 4))
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    (folder / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tabc\tdab\n")
    base = tuning.configure(pretrained, "rte", str(folder), [], "last")
    told: list[str] = []
    tuning.finetune(base, [Setting(4, 1e-4, 1)], 1, 1, tmp_path / "out", on_event=lambda _, e: told.append(e.message))
    assert "test.tsv has no labels" in told[0]
    assert "GLUE's RTE has 2,490 and 277" in told[1]
