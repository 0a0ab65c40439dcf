"""A run is a folder: what was asked, on what, what was measured, and the checkpoints.

config.toml      reruns it: leadline train RUN/config.toml
run.json         which code and versions, device, the config with every choice made, data hashes
tokenizer.json   so that the run can translate without its data
metrics.jsonl    one line a measurement
tensorboard/     the same for TensorBoard
checkpoints/     see leadline.training.checkpoint
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import leadline
from leadline import config as configuration
from leadline import history, machine
from leadline.config import Config
from leadline.data.sources import parse
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.files import to_json, write_json
from leadline.provenance import NUMERICS, stamp

TOGETHER = 1.0  # seconds within which signals count as one


def require_new(folder: Path) -> None:
    """An existing run is never overwritten."""
    if (folder / "config.toml").exists():
        raise UserError(
            f"{folder} holds a run already: go on with leadline train --resume {folder}, or choose another --out"
        )


def absolute(config: Config) -> Config:
    """A folder named relative to here must be found from anywhere."""
    config = config.set(data={"source": str(parse(config.data.source).absolute())})
    if config.data.vocabulary:
        config = config.set(data={"vocabulary": str(Path(config.data.vocabulary).expanduser().absolute())})
    if config.train.start:
        config = config.set(train={"start": str(Path(config.train.start).expanduser().absolute())})
    return config


def load_config(folder: Path) -> Config:
    if not (folder / "config.toml").exists():
        raise UserError(f"{folder} is not a run: it has no config.toml")
    return configuration.load(folder / "config.toml")


def labels_of(folder: Path) -> list[str] | None:
    """Of a run that learnt to classify: the names of its classes, in their order."""
    try:
        return _facts(folder)["data"].get("labels")
    except (KeyError, AttributeError):
        return None


def describe(folder: Path, config: Config, store: Store, device: str, chosen: dict[str, str]) -> str:
    """Write what was asked and what the run stands on; a run that goes on must stand on the same data.

    Returns what is to be said of a run that other code began, if anything.
    """
    before = _facts(folder)
    _require_same_data(folder, before, store)
    if not (folder / "config.toml").exists():
        (folder / "config.toml").write_text(configuration.to_toml(config), encoding="utf-8")
    packages = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu")
    versions = {"python": platform.python_version(), "leadline": leadline.__version__} | {
        name: _version(name) for name in packages
    }
    known = ("key", "sha256", "splits", "labels")
    facts: dict[str, Any] = stamp() | {
        "versions": versions,
        "device": device,
        "chosen": chosen,
        "config": configuration.to_dict(config),
        "data": {key: store.manifest[key] for key in known if key in store.manifest},
    }
    if before:
        facts["began"] = before.get("began", {"numerics": before.get("numerics", 1), "code": before.get("code")})
    write_json(folder / "run.json", facts)
    shutil.copyfile(store.folder / "tokenizer.json", folder / "tokenizer.json")
    numerics = facts["began"]["numerics"] if before else NUMERICS
    differs = f"this run began with numerics {numerics} and goes on with {NUMERICS}"
    return "" if numerics == NUMERICS else f"{differs}: it is not what either would have computed alone"


def _facts(folder: Path) -> dict[str, Any]:
    """What an earlier start has written; nothing where there was none, or where it is damaged."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _require_same_data(folder: Path, before: dict[str, Any], store: Store) -> None:
    try:
        data = before["data"]
        same = data["key"] == store.manifest["key"]
        # Data prepared again from the same text can still have another vocabulary: WordPiece is learnt by chance.
        same = same and data["sha256"]["tokenizer.json"] == store.manifest["sha256"]["tokenizer.json"]
    except (KeyError, TypeError):
        return
    if not same:
        raise UserError(f"the data of {folder} has changed since the run began: restore it, or train in another folder")


def _version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "unknown"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Two trainings in one folder are refused; the lock goes with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror}") from None
    with file:
        if not machine.lock(file, wait=False):
            raise UserError(f"another training is running in {folder}")
        yield


@contextlib.contextmanager
def watching_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, for the loop to save and leave; one that comes a while later ends the process.

    A terminal's Ctrl-C reaches a command and its trainings at once, and the command then tells them to leave: signals
    that come together are one.
    """
    received: list[int] = []
    times: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: Any) -> None:
        received.append(number)
        times.append(time.monotonic())
        if times[-1] - times[0] > TOGETHER:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Metrics:
    """metrics.jsonl and TensorBoard. Lines after `update` are of a training that was killed: they are dropped."""

    def __init__(self, folder: Path, update: int) -> None:
        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            kept = [row for row in history.read(folder).rows if row["update"] <= update]
            temporary = self.path.with_name(".metrics.jsonl.tmp")
            temporary.write_text("".join(to_json(row) + "\n" for row in kept), encoding="utf-8")
            temporary.replace(self.path)
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        self.board = _tensorboard(folder / "tensorboard", update)

    def write(self, row: dict[str, float]) -> None:
        self.file.write(to_json(row) + "\n")
        for key, value in row.items():
            if self.board and key not in ("update", "epoch"):
                self.board.add_scalar(key, value, row["update"])

    def close(self) -> None:
        self.file.close()
        if self.board:
            self.board.close()


def _tensorboard(folder: Path, update: int) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=update + 1 if update else None)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return list(history.read(folder).rows)


def default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
