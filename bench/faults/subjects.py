"""Small trainings of every task, as files, and what they end with when nothing goes wrong."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from bench.faults.process import call
from bench.golden import text
from leadline.files import sha256
from leadline.history import CLOCK

SMALL = "model.dim=16 model.ffn_dim=16 model.heads=2 model.max_length=32 model.encoder_layers=1"
TRAIN = (
    "train.batch_tokens=256 train.epochs=0 train.updates=24 train.eval_every=8 train.save_every=3 train.keep=9 "
    "train.log_every=2"
)
ALWAYS = f"{SMALL} {TRAIN} train.device=cpu train.precision=fp32 train.step=eager"
RECIPES = {
    "translation": ("numerals", "model.decoder_layers=1 data.source=text:pairs data.vocab_size=150"),
    "masked_lm": ("bert_small_post_ln", "data.source=documents:text.txt data.vocab_size=120 data.valid_every=10"),
    "classification": ("same_meaning", "data.source=table:table data.vocab_size=150 train.batch_sequences=8"),
    "many": ("many_small", "model.decoder_layers=1 data.source=many:many data.vocab_size=300 data.directions=both"),
    "next_sentence": (
        "bert_small_post_ln",
        "data.source=documents:text.txt data.vocab_size=120 data.valid_every=10 model.classes=2",
    ),
    "causal_lm": (
        "lm_small_pre_ln",
        "model.encoder_layers=0 model.decoder_layers=1 data.source=documents:text.txt data.vocab_size=300 "
        "data.valid_every=10",
    ),
}
# What a run of each task is used for: the command that reads lines, and its options.
USES = {
    "translation": ["translate"],
    "many": ["translate", "--to", "en"],
    "causal_lm": ["generate", "--tokens", "8"],
    "classification": ["classify"],
}


@dataclass(frozen=True)
class Whole:
    """A finished run of one task (a name of RECIPES) that nothing has disturbed."""

    task: str
    folder: Path
    weights: str
    metrics: list[str]
    more: str = ""  # options

    def train(self, out: str) -> list[str]:
        recipe, options = RECIPES[self.task]
        settings = [word for option in f"{ALWAYS} {options} {self.more}".split() for word in ("--set", option)]
        return ["train", recipe, "--out", out, *settings]


def make_text(folder: Path) -> None:
    """The text of all tasks."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(60)]
    text(folder / "text.txt")
    for split, count in (("train", 300), ("valid", 20), ("test", 20)):
        lines = [rng.choices(words, k=rng.randint(2, 9)) for _ in range(count)]
        written = {"de": 1, "en": -1, "fr": 1}  # in which order a language has the words
        places = {f"pairs/{split}": "de en", f"many/{split}.de-en": "de en", f"many/{split}.fr-en": "fr en"}
        if split == "test":
            places |= {"many/zero.de-fr": "de fr", "many/flores": "de en fr"}
        for place, languages in places.items():
            for name in languages.split():
                path = folder / f"{place}.{name}"
                path.parent.mkdir(exist_ok=True)
                ordered = [" ".join(line[:: written[name]]) + "\n" for line in lines]
                path.write_text("".join(ordered), encoding="utf-8")
        path = folder / "table" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        rows = [f"{' '.join(line)}\t{' '.join(line[::-1])}\t{len(line) % 2}\n" for line in lines]
        path.write_text("sentence1\tsentence2\tlabel\n" + "".join(rows), encoding="utf-8")


def weights(run: Path) -> str:
    newest = sorted((run / "checkpoints").glob("[0-9]*"))[-1]
    return sha256(newest / "model.safetensors")


def metrics(run: Path) -> list[str]:
    """Its lines without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [json.dumps({key: value for key, value in row.items() if key not in CLOCK}) for row in rows]


def make_whole(task: str, folder: Path, more: str = "") -> Whole:
    whole = Whole(task, folder / f"whole-{task}{more}", "", [], more)
    ended = call(whole.train(whole.folder.name), folder)
    if ended.code:
        raise RuntimeError(f"{task} does not even train undisturbed: {ended.err}")
    if task == "many":  # a report shows the table that this writes
        call(["evaluate", whole.folder.name], folder)
    return replace(whole, weights=weights(whole.folder), metrics=metrics(whole.folder))
