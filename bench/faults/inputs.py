"""Wrong arguments, options, configs and files for every command: one sentence and exit code 2, or a right answer."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.faults.process import GIB, WORD, call, limit_memory
from bench.faults.subjects import RECIPES, SMALL, USES, Whole
from leadline import config as configuration
from leadline.config import Config

LIMIT = 60.0  # seconds without a word that are too many
ROOM = 8 * GIB
NASTY = [
    "", " ", "0", "-1", "1e9", "1000000000", "99999999999999999999", "1e400", "nan", "inf", "-inf", "-0.0", "0.5",
    "2.5",
    "true", "null", "None", "[]", "[1,", "{}", "a.b.c", "../..", "/proc/nothing", "~", ".", "\x7f", "ü", "日本",
    "💥" * 9, "x" * 5000,
    "%s%n", "$(id)", "`id`", "'; --", "text:", "documents:", "table:", "hf:", "prepared:", "prepared:/", "imported:x",
    "builtin:", "builtin:nothing", "nothing:x", "text:nowhere", "documents:nowhere", "table:nowhere", "text:pairs",
    "os:system",
    "bench:X", "post_ln", "evil:X", "cuda:99", "mps", "average:0", "average:x", "best", "last", "1", "7", "de", "xx",
    "de-en", "X-en", "both", "zero", "flores", "en-en", "de-en,", "many:", "many:many", "many:pairs", "hf-documents:",
    "byte_bpe", "swiglu", "rotary", "target", "valid", "test",
]  # fmt: skip
LINES = [
    b"", b"\n", b"\xff\xfe\x00", b"\x00\n\x00\n", b"a" * 3_000_000 + b"\n", b"a b " * 500_000 + b"\n", b"\r\r\r",
    b"\xef\xbb\xbf",
    b"plain\n" * 50, "\u202e\u2028 x\n".encode() * 9, b"{" * 9000, b"[" * 90000, b"= x =\n\n= y =\n\n", b'"a\tb\n',
    b"sentence1\tlabel\n",
    b"sentence1\tsentence2\tlabel\na\tb\t1\n", b"{}\n{}\n", b"a\tb\tc\td\n" * 3, b"label\n1\n",
    b"\x1f\x8b\x08\x00junk", b"\xfd7zXZ\x00junk", b"ab cd\r\nef gh\r\n" * 9, b"<e> <s> </s> <2de>\n", b"ab cd",
    b"\xff\xfea\x00b\x00\n\x00", "e\u0301 \ufeff \U0001f9d1\u200d\U0001f680\n".encode() * 3, b"ab\tcd\nef\tgh\n",
]  # fmt: skip

JSON = [
    "{}", "[]", "null", "3", '"x"', "{", "[" * 5000, "\x00", "task = 3", '[model]\nplacement = "evil:X"',
    '{"model_type": "bert", "hidden_size": 24, "num_hidden_layers": 2, "vocab_size": 99}',
    '{"model_type": 3, "hidden_size": "x"}', '{"auto_map": {"AutoModel": "evil.Evil"}}',
    '{"model_type": "bert", "hidden_size": 1e99, "vocab_size": -1}',
    '{"format": 1, "key": 3, "data": {}, "splits": 4, "vocab_size": "x"}',
    '{"model_type": "llama", "hidden_size": 16}', '{"model_type": "gpt2", "n_embd": 0, "n_layer": -1}',
    '{"model_type": "qwen3", "rope_scaling": 3, "hidden_size": true}', '{"model_type": ["opt"]}',
]  # fmt: skip


def _keys() -> list[str]:
    config = Config()
    return [
        f"{section.name}.{option.name}"
        for section in dataclasses.fields(config)
        if dataclasses.is_dataclass(value := getattr(config, section.name))
        for option in dataclasses.fields(value)
    ] + ["task", "model", "optim.nothing", "nothing", "model.dim.x", ""]


def _settings(rng: random.Random) -> list[str]:
    count = rng.choice([1, 1, 1, 2, 3])
    return [w for _ in range(count) for w in ("--set", f"{rng.choice(_keys())}={rng.choice(NASTY)}")]


def _short(task: str) -> list[str]:
    recipe, options = RECIPES[task]
    always = (
        f"{SMALL} {options} train.batch_tokens=64 train.epochs=0 train.updates=2 train.eval_every=-1 train.device=cpu"
    )
    return [recipe, *(word for option in always.split() for word in ("--set", option))]


def _train(rng: random.Random, folder: Path) -> list[str]:
    return ["train", *_short(rng.choice(list(RECIPES))), "--out", "tried", *_settings(rng)]


def _words(rng: random.Random, folder: Path) -> list[str]:
    """A command with words that mean nothing to it."""
    command = rng.choice(
        ["train", "evaluate", "translate", "finetune", "export", "import", "inspect", "advise", "report",
        "placements",
         "reproduce", "data prepare", "data show", "data check", "demo", "keys", "recipes", "score", "classify",
         "generate", "nothing"]
    )  # fmt: skip
    options = ["--json", "--out", "--set", "--lr", "--seeds", "--checkpoint", "--split", "--only", "--depth",
               "--html", "-n",
               "--resume", "--task", "--batch", "--epochs", "--device", "--watch", "--scale", "--beam",
               "--directions", "--to", "--tokens", "--greedy", "--temperature", "--top-k", "--top-p", "--seed",
               "--lang", "--lowercase", "--input", "--output", "--allow-code", "--nothing"]  # fmt: skip
    there = ["whole-translation", "whole-many", "whole-causal_lm", "pairs", "text.txt"]
    words = [rng.choice([*NASTY, *options, *there]) for _ in range(rng.randrange(1, 5))]
    if command in ("demo", "reproduce"):
        words = ["--nothing", *words]  # by themselves they would train for minutes
    return [*command.split(), *words]


def _used(rng: random.Random, folder: Path) -> list[str]:
    """A finished run with wrong options."""
    run = rng.choice([f"whole-{task}" for task in RECIPES])
    command = rng.choice(["evaluate", "translate", "export", "inspect", "report", "classify", "generate"])
    extra = ["out"] if command == "export" else []
    option = rng.choice(["--checkpoint", "--split", "--device", "--lr", "--seeds", "--out", "--html", "--set", "--to",
                         "--directions"])  # fmt: skip
    value = f"decode.{rng.choice(['beam', 'length_penalty', 'max_ratio', 'batch_tokens'])}={rng.choice(NASTY)}"
    return [command, run, *extra, option, value if option == "--set" else rng.choice(NASTY)]


def _texts(rng: random.Random, folder: Path) -> list[str]:
    """A finished run, or score, with text that is no text and options that are no options."""
    for name in ("odd", "other"):
        (folder / f"{name}.txt").write_bytes(b"".join(rng.choices(LINES, k=rng.randrange(0, 4))))
    task, (command, *options) = rng.choice([*USES.items(), ("", ["score", "other.txt"])])
    given = ["odd.txt"] if command == "score" else [f"whole-{task}"]
    if command == "generate" and rng.random() < 0.3:
        given.append(rng.choice([word for word in NASTY if not word.startswith("-")]))
    elif command != "score" and rng.random() < 0.7:
        given += ["--input", rng.choice(["odd.txt"] * 9 + ["many", "nothing.txt", "/dev/null"])]
    some = {"translate": ["--to", "--output", "--set", "--checkpoint"], "score": ["--lang"],
            "classify": ["--checkpoint"],
            "generate": ["--tokens", "--temperature", "--top-k", "--top-p", "--seed", "--checkpoint"]}  # fmt: skip
    if rng.random() < 0.5:
        options = [*options, rng.choice(some[command]), rng.choice(NASTY)]
    return [command, *given, *options, *["--json"] * (rng.random() < 0.3)]


def _evaluated(rng: random.Random, folder: Path) -> list[str]:
    """A run of many languages by direction, or another one so."""
    run = rng.choice(["whole-many"] * 3 + [f"whole-{task}" for task in RECIPES])
    words = ["de-en", "en-de", "X-en", "en-X", "zero", "de-fr", "fr-de", "both", "X-X", rng.choice(NASTY)]
    directions = ",".join(rng.choices(words, k=rng.randrange(1, 4)))
    options = ["--directions", directions] if rng.random() < 0.7 else []
    if rng.random() < 0.7:
        options += ["--split", rng.choice(["valid", "test", "zero", "flores", "train", rng.choice(NASTY)])]
    if rng.random() < 0.3:
        options += ["--set", f"data.{rng.choice(['source', 'directions', 'target_lang'])}={rng.choice(NASTY)}"]
    return ["evaluate", run, *options]


def _config(rng: random.Random, folder: Path) -> list[str]:
    """A config.toml with a mistake."""
    text = configuration.to_toml(Config())
    lines = text.split("\n")
    line = rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        lines[line] = lines[line].partition("=")[0] + "= " + rng.choice([*NASTY, "[" * 3000, '"', "1979-05-27"])
    elif kind == 1:
        lines.insert(line, rng.choice(["[[model]]", "x.y.z = 1", "= 3", "[train", "model = 3", "\x00"]))
    elif kind == 2:
        lines = lines[:line]
    elif kind == 3:
        lines[line] = lines[line][: rng.randrange(len(lines[line]) + 1)]
    data = "\n".join(lines).encode()
    if kind == 4:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    (folder / "wrong.toml").write_bytes(data)
    command = rng.choice(
        [["train", "wrong.toml", "--out", "tried"], ["data", "prepare", "wrong.toml"], ["inspect", "wrong.toml"]]
    )
    limits = (
        "data.size=50 train.updates=2 train.epochs=0 model.dim=16 model.heads=2 model.ffn_dim=16 train.batch_tokens=300"
    )
    return [*command, *(word for option in limits.split() for word in ("--set", option))]


def _file(rng: random.Random, folder: Path) -> list[str]:
    """Text that is no text."""
    place = folder / "wrong"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    task = rng.choice(list(RECIPES))
    kind, _, _ = next(option for option in RECIPES[task][1].split() if "source=" in option)[12:].partition(":")
    names = {
        "text": ["train.de", "train.en", "valid.de", "valid.en"],
        "documents": ["text.txt", "more.txt"],
        "table": ["train.tsv", "valid.tsv", "train.csv", "train.jsonl"],
        "many": ["train.de-en.de", "train.de-en.en", "train.fr-en.fr", "train.fr-en.en", "valid.de-en.de",
                 "valid.de-en.en", "valid.de-en.origin", "test.de-fr.de", "test.de-fr.fr", "flores.de", "flores.en"],
    }[kind]  # fmt: skip
    for name in names:
        if rng.random() < 0.9:
            content = b"".join(rng.choices(LINES, k=rng.randrange(1, 4)))
            (place / (name + rng.choice(["", "", "", ".gz", ".xz"]))).write_bytes(content)
    return [
        *rng.choice([["data", "prepare"], ["train"], ["data", "show"]]),
        *_short(task),
        "--set",
        f"data.source={kind}:wrong",
    ]


def _foreign(rng: random.Random, folder: Path) -> list[str]:
    """A folder that is meant to be Hugging Face's, a run or prepared data."""
    place = folder / "foreign"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "manifest.json",
        "config.toml",
        "run.json",
        "vocab.txt",
    ):
        if rng.random() < 0.6:
            (place / name).write_text(rng.choice(JSON), encoding="utf-8")
    return rng.choice(
        [["import", "foreign", "imported"], ["inspect", "foreign"], ["evaluate", "foreign"], ["translate", "foreign"],
         ["generate", "foreign", "x"], ["classify", "foreign"], ["data", "check", "foreign"],
         ["report", "foreign"], ["train", "--resume", "foreign"], ["export", "foreign", "out"],
         ["data", "show", "numerals", "--set", "data.source=prepared:foreign"], ["finetune", "foreign", "--task",
         "rte"]]
    )  # fmt: skip


KINDS: list[Callable[[random.Random, Path], list[str]]] = [
    _train,
    _words,
    _used,
    _texts,
    _evaluated,
    _config,
    _file,
    _foreign,
]


def trial(folder: Path, rng: random.Random) -> tuple[str, int]:
    """How it ended, and the memory it took."""
    for name in ("tried", "imported", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
    arguments = rng.choice(KINDS)(rng, folder)
    given = rng.choice([b"ab cd\n", *LINES])
    ended = call(arguments, folder, stdin=given, before=limit_memory(ROOM), limit=LIMIT)
    said = " ".join(word if len(word) < 60 else f"{word[:60]}…" for word in arguments)
    if ended.code == -14:
        still = f"still at work after {LIMIT:.0f} s"
        return still if ended.silent < WORD else f"without a word at {LIMIT:.0f} s: {said}", ended.memory
    if ended.crashed or ended.code not in (0, 1, 2, 3):
        return f"code {ended.code}: {said}: {ended.err.strip()[-1500:]}", ended.memory
    return ("done" if ended.code == 0 else "told"), ended.memory


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng, outcomes, failures, most = random.Random(seed), Counter[str](), list[str](), 0
    for _ in range(count):
        outcome, memory = trial(folder, rng)
        most = max(most, memory)
        fine = outcome in ("done", "told") or outcome.startswith("still at work")
        outcomes[outcome if fine else "FAILED"] += 1
        if not fine:
            failures.append(outcome)
    outcomes["MiB at most"] = most >> 20
    return outcomes, failures
