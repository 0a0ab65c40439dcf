"""The first ten updates of every task and every kind of step: a change that should not alter numbers does not.

    python -m bench.golden                 losses and a hash of the weights, of this tree
    python -m bench.golden COMMIT          the same of another commit, and whether every bit is equal
    python -m bench.golden --write         what tests/test_golden.py holds this tree to, eager steps only

On a CPU the captured step's kernels are interpreted, for three updates; on a GPU they are what they are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tests" / "golden.json"

SMALL = "model.dim=16 model.ffn_dim=16 model.heads=2 model.dropout=0.1 model.max_length=32"
ONCE = "train.batch_tokens=64 train.seed=3 train.epochs=0 train.eval_every=-1 train.log_every=1"
TRANSLATION = f"{SMALL} model.encoder_layers=1 model.decoder_layers=1 data.size=300 data.vocab_size=200"
ENCODER = f"{SMALL} model.encoder_layers=1 model.attention_dropout=0.1"
# Name -> recipe and settings.
CASES = {
    "translation": ("numerals", f"{TRANSLATION} optim.lr=1e-3"),
    "translation, accumulated": ("numerals", f"{TRANSLATION} train.accumulate=2 model.placement=post_ln optim.clip=1"),
    "translation, deepnorm": ("numerals", f"{TRANSLATION} model.placement=deepnorm optim.name=adamw"),
    "causal_lm": ("lm_small_pre_ln", f"{SMALL} model.decoder_layers=1 data.source=documents:TEXT data.vocab_size=300"),
    "masked_lm": ("bert_small_pre_ln", f"{ENCODER} data.source=documents:TEXT data.vocab_size=120"),
    "masked_lm, pairs": (
        "bert_small_post_ln", f"{ENCODER} data.source=documents:TEXT data.vocab_size=120 model.classes=2"
    ),
    "classification": ("same_meaning", f"{ENCODER} data.size=300 data.vocab_size=200 train.batch_sequences=8"),
}  # fmt: skip
STEPS = ("eager", "graph")


def text(path: Path) -> None:
    """Documents of made-up sentences."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(80)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(3, 12))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(rng.randint(1, 9))) for _ in range(60)]
    path.write_text("\n\n".join(documents), encoding="utf-8")


def measured(case: str, step: str, folder: Path) -> dict[str, Any]:
    """Of the leadline that is on the path."""
    from leadline import config as configuration
    from leadline import recipes
    from leadline.files import sha256
    from leadline.training import graph, loop
    from leadline.training import step as steps

    recipe, settings = CASES[case]
    text(folder / "text.txt")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    updates = 3 if step == "graph" and interpreted else 10
    device = "cuda" if step == "graph" and not interpreted else "cpu"
    how = [f"train.step={step}", f"train.updates={updates}", f"train.device={device}"]
    given = [word.replace("TEXT", str(folder / "text.txt")) for word in (*settings.split(), *ONCE.split(), *how)]
    place: Any = steps if hasattr(steps, "require_usable") else graph  # where earlier code has it
    before, place.require_usable = place.require_usable, lambda device: None
    try:
        run = loop.train(configuration.override(recipes.find(recipe), given), folder / "run")
    finally:
        place.require_usable = before
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "losses": [row["loss"] for row in rows if "loss" in row],
        "weights": sha256(run / "checkpoints" / f"{updates:08d}" / "model.safetensors"),
    }


def all_measured(cases: list[str], steps: list[str]) -> dict[str, Any]:
    """Without the cases whose recipe the tree does not have."""
    from leadline import recipes

    results = {}
    for case in (case for case in cases if CASES[case][0] in recipes.RECIPES):
        for step in steps:
            with tempfile.TemporaryDirectory() as folder:
                results[f"{case}, {step}"] = measured(case, step, Path(folder))
    return results


def of_tree(tree: Path, cases: list[str], steps: list[str]) -> dict[str, Any]:
    """In a process of its own, with this file's cases and that tree's code."""
    call = [sys.executable, str(Path(__file__).resolve()), "--here", "--cases", *cases, "--steps", *steps]
    there = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    if not os.path.exists("/dev/nvidiactl"):
        there["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        there["LEADLINE_CACHE"] = cache
        done = subprocess.run(call, env=os.environ | there, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(commit: str, cases: list[str], steps: list[str]) -> int:
    """How many trainings differ."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            theirs = of_tree(tree, cases, steps)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    different = 0
    for name, ours in of_tree(ROOT, cases, steps).items():
        if (other := theirs.get(name)) is None:
            print(f"{name:32} is new")
            continue
        far = max(abs(a - b) for a, b in zip(ours["losses"], other["losses"], strict=True))
        same = ours == other
        different += not same
        print(f"{name:32} {'equal' if same else f'DIFFERS: losses by up to {far:.2g}'}")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.golden", description="Losses that should not change.")
    parser.add_argument("commit", nargs="?", help="compare with this one")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--steps", nargs="+", choices=["eager", "compiled", "graph"], default=list(STEPS))
    parser.add_argument("--write", action="store_true", help=f"to {STORED.name}")
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(all_measured(given.cases, given.steps)))
    elif given.commit:
        sys.exit(1 if compare(given.commit, given.cases, given.steps) else 0)
    else:
        results = of_tree(ROOT, given.cases, ["eager"] if given.write else given.steps)
        if given.write:
            STORED.write_text(json.dumps({name: each["losses"] for name, each in results.items()}, indent=1) + "\n")
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
