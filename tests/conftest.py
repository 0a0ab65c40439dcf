"""Shared by all tests: data prepared once in a temporary folder, a training of a second, the command line."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch loads
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton loads: its kernels run here too, slowly

import contextlib
import functools
import io
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leadline import cli, recipes
from leadline.config import Config

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: tests and what they start do hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def quicken_interpreter() -> None:
    """Triton's interpreter goes through its whole language whenever a kernel calls a function, a third of its time.

    Once in each launch of a kernel is enough. Where a later version has other insides, it stays as slow as it is.
    """
    from triton import language
    from triton.runtime import interpreter

    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared: set[frozenset[str]] = set()  # by this launch: a function sees the language as `tl`, as `core` or both

    @functools.cache
    def sees(function: Any) -> frozenset[str]:
        modules = (language, language.core)
        return frozenset(value.__name__ for value in function.__globals__.values() if any(value is m for m in modules))

    def prepare_once(function: Any) -> Any:
        if sees(function) in prepared:
            return None
        prepared.add(sees(function))
        return prepare(function)

    def launch_anew(self: Any, *arguments: Any, **options: Any) -> None:
        prepared.clear()
        launch(self, *arguments, **options)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare_once, launch_anew


def multiply_bf16() -> None:
    """Triton's interpreter keeps bf16 as whole numbers, and multiplies matrices of them as such."""
    import numpy as np
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply = InterpreterBuilder.create_dot

    def wide(x: Any) -> Any:
        if x.dtype.scalar != language.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, wide(a), wide(b), *others)

    InterpreterBuilder.create_dot = create_dot


if os.environ.get("TRITON_INTERPRET") == "1":
    with contextlib.suppress(ImportError, AttributeError):
        quicken_interpreter()
        multiply_bf16()


@pytest.fixture
def interpreted() -> None:
    """For tests that give kernels tensors of the CPU: where there is a GPU, Triton compiles kernels for that."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's kernels are for the GPU here; TRITON_INTERPRET=1 interprets them")


@pytest.fixture
def captured(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured step without a GPU: its kernels are interpreted and its graphs done again."""
    from leadline.kernels.fused import residual
    from leadline.training import step

    monkeypatch.setattr(step, "require_usable", lambda device: None)
    for name in ("_forward_launch", "_backward_launch"):  # few programs, which the interpreter does one by one
        monkeypatch.setattr(residual, name, lambda D: residual.Launch(16, 4, 528))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where prepared data goes, instead of the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEADLINE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny() -> Config:
    """Number words with 1-1 layers: 11 updates an epoch, 20 updates in about a second."""
    return recipes.numerals().set(
        model={"encoder_layers": 1, "decoder_layers": 1, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48},
        data={"size": 300, "vocab_size": 200},
        train={"updates": 20, "batch_tokens": 512, "eval_every": 10, "log_every": 1, "device": "cpu", "step": "eager"},
    )


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents of made-up sentences."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("documents") / "text.txt"
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(80)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(3, 12))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(rng.randint(1, 9))) for _ in range(60)]
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def masked(documents: Path) -> Config:
    """A small BERT: about 9 updates an epoch."""
    return recipes.bert_small_pre_ln().set(
        model={"encoder_layers": 1, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48},
        data={"source": f"documents:{documents}", "vocab_size": 120, "valid_every": 10},
        train={"updates": 20, "batch_tokens": 512, "eval_every": 10, "log_every": 1, "device": "cpu", "step": "eager"},
    )


@pytest.fixture(scope="session")
def written(documents: Path) -> Config:
    """A small language model: about 14 batches an epoch."""
    return recipes.lm_small_pre_ln().set(
        model={"decoder_layers": 1, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 48},
        data={"source": f"documents:{documents}", "vocab_size": 300, "valid_every": 10},
        train={"updates": 20, "batch_tokens": 512, "eval_every": 10, "log_every": 1, "device": "cpu", "step": "eager"},
    )


@pytest.fixture(scope="session")
def small_lm(written: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its run. To look at, not to change."""
    from leadline.training.loop import train

    return train(written.set(train={"updates": 2}), tmp_path_factory.mktemp("lm") / "run")


@pytest.fixture(scope="session")
def finished(tiny: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `tiny`, with checkpoints at 10 and 20. To look at, not to change."""
    from leadline.training.loop import train

    return train(tiny, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def in_process() -> Callable[..., None]:
    """leadline.jobs.engine.execute but for its processes (see tests/jobs), of which each loads torch anew."""
    from leadline.jobs import job as jobs
    from leadline.jobs import worker

    def execute(
        asked: Sequence[Any], root: Path, at_once: int, on_event: Any, on_finished: Any = lambda job: None
    ) -> None:
        for job in jobs.unfinished(asked, root):
            worker.work(jobs.lay_out(job, root), functools.partial(on_event, job.name))
            on_finished(job)

    return execute


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def leadline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The command line in this process: leadline("train", "numerals", stdin=b"") -> exit code, stdout, stderr."""

    def call(*arguments: object, stdin: bytes = b"") -> Answer:
        monkeypatch.setattr(sys, "argv", ["leadline", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        assert isinstance(code, int)
        return Answer(code, *capsys.readouterr())

    return call
