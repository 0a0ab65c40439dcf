"""A run is a folder: what was asked, on what, what was measured, and the checkpoints.

config.toml      reruns it: leadline train RUN/config.toml
run.json         which code and versions, device, the config with every choice made and changed, data hashes; sealed
tokenizer.json   so that the run can translate without its data
metrics.jsonl    one line a measurement: see leadline.metrics
flight.jsonl     the last few hundred updates: see leadline.flight
evaluations/     see leadline.evaluations
tensorboard/     the same as metrics.jsonl, for TensorBoard
checkpoints/     see leadline.training.checkpoint

run.json has the hash of config.toml and its own, each checkpoint that of config.toml too: a config that is torn is
restored, and one that was changed is named and refused.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import leadline
from leadline import config as configuration
from leadline import machine
from leadline.config import Config, ModelConfig
from leadline.data.sources import parse
from leadline.data.store import Store
from leadline.data.tokenizer import TARGET
from leadline.errors import UserError, not_a_run
from leadline.files import Facts, checksum, reason, sha256, sha256_of, write_json, write_text
from leadline.options import flat
from leadline.provenance import NUMERICS, facts_of, stamp
from leadline.training import checkpoint
from leadline.world import join

# Keys that another run which starts from these weights cannot change either.
IN_WEIGHTS = {f"model.{f.name}" for f in fields(ModelConfig)} - {
    "model.dropout", "model.attention_dropout", "model.activation_dropout", "model.init", "model.max_length"
} | {"data.vocab_size", "data.tokenizer"}  # fmt: skip

LAID_OUT = ("job.toml", "job.json", "log.txt")  # what leadline.jobs puts into a folder before its run begins


def is_run(folder: Path) -> bool:
    return (folder / "config.toml").exists() or (folder / "run.json").exists()


def require_new(folder: Path) -> None:
    """An existing run is never overwritten, and what else lies there is never taken for a part of one."""
    if is_run(folder):
        raise UserError(
            f"{folder} holds a run already: go on with leadline train --resume {folder}, or choose another folder"
        )
    if folder.is_file():
        raise UserError(f"the run folder {folder} cannot be written: there is a file of that name")
    there = [path.name for path in folder.iterdir() if path.name[:1] != "."] if folder.is_dir() else []
    if others := sorted(set(there) - {*LAID_OUT}):
        raise UserError(f"{folder} is not empty and not a run: it has {others[0]}; choose another --out, or empty it")


def absolute(config: Config) -> Config:
    """A folder named relative to here must be found from anywhere."""
    config = config.set(data={"source": str(parse(config.data.source).absolute())})
    if config.data.vocabulary:
        config = config.set(data={"vocabulary": str(Path(config.data.vocabulary).expanduser().absolute())})
    if config.train.start:
        config = config.set(train={"start": str(Path(config.train.start).expanduser().absolute())})
    return config


def load_config(folder: Path, allow_code: bool = False) -> Config:
    """The config of a run; one that names code to import only where that is allowed."""
    config = with_vocabulary(read_config(folder)[0], folder)
    require_permission(config, folder, allow_code)
    return config


def with_vocabulary(config: Config, folder: Path) -> Config:
    """With the run's own tokenizer.json in place of a vocabulary that is no longer where it was."""
    own = folder / "tokenizer.json"
    if config.data.vocabulary and not Path(config.data.vocabulary).expanduser().exists() and own.exists():
        return config.set(data={"vocabulary": str(own.absolute())})
    return config


def read_config(folder: Path) -> tuple[Config, str]:
    """What the run was trained with, and what is to be said of it; a config that is not that is refused."""
    if not is_run(folder):
        raise not_a_run(folder)
    path, facts = folder / "config.toml", facts_of(folder)
    known = configuration.from_dict(configuration.renamed(facts["config"]), Config) if "seal" in facts else None
    try:
        config = configuration.load(path)
    except UserError as error:
        if known is None:
            hint = f"{folder / 'run.json'} cannot restore it: put back one of them, or train in another folder"
            raise UserError(f"{error}, and {hint}") from None
        return known, f"{error}: it is restored from run.json"
    digest = sha256(path)
    if known is None:
        if checkpoint.newest_config(folder) not in ("", digest):
            raise UserError(f"{path} is not what the last checkpoint was trained with: put it back")
        damaged = (folder / "run.json").exists() and not facts
        return config, f"{folder / 'run.json'} is damaged: training writes it again" if damaged else ""
    if digest == facts["replaced_sha256"] != facts["config_sha256"]:
        return known, ""  # a change was killed before it reached config.toml
    if digest != facts["config_sha256"] and (changed := changes(known, config)):
        key, (_, new) = next(iter(changed.items()))
        ask = f", or ask for the change with leadline train --resume {folder} --set {key}={new}"
        raise UserError(
            f"{path} is not what the run was trained with: {_told(changed)}; delete it to go on as before"
            + (ask if changed.keys() <= configuration.LATER else "")
        )
    return config, ""


def changes(before: Config, after: Config) -> dict[str, tuple[object, object]]:
    """The keys that differ, with both values."""
    old, new = (flat(configuration.to_dict(config)) for config in (before, after))
    return {key: (old[key], new[key]) for key in new if old[key] != new[key]}


def _told(changed: dict[str, tuple[object, object]], most: int = 5) -> str:
    told = [f"{key} {old} → {new}" for key, (old, new) in changed.items()]
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def require_changeable(folder: Path, before: Config, after: Config) -> None:
    """A run goes on as what it is; how long, at which rate and where it is computed may change."""
    for key, (old, new) in changes(before, after).items():
        if key not in configuration.LATER:
            kept, start = f"--set {key}: a resumed run keeps it ({old}, not {new})", f"--set train.start={folder}"
            if key in IN_WEIGHTS:
                raise UserError(f"{kept}; train a new run from the beginning, since {start} keeps it too")
            raise UserError(f"{kept}; start another run from these weights with {start}")


def own(config: Config, store: Store) -> Facts:
    """What is done, by which code, on which data: the same in all processes of a command."""
    return {"config": configuration.to_dict(config), "numerics": NUMERICS, "data": store.manifest["sha256"]}


def require_permission(config: Config, folder: Path, allow_code: bool) -> None:
    """A folder may come from anybody: code that it names is imported only where the user has said so."""
    if ":" in config.model.placement and not allow_code:
        raise UserError(
            f"{folder} names code to import, model.placement={config.model.placement!r}: if you trust it, allow that "
            "with --allow-code (in Python allow_code=True)"
        )


def labels_of(folder: Path) -> list[str] | None:
    """Of a run that learnt to classify: the names of its classes, in their order."""
    try:
        return facts_of(folder)["data"].get("labels")
    except (KeyError, AttributeError):
        return None


def require_whole_tokenizer(folder: Path) -> None:
    """With another vocabulary than the run's, a model's answers would be silently wrong."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(f"{folder} has no checkpoint yet: train it with leadline train --resume {folder}")
    with contextlib.suppress(KeyError, TypeError):
        if sha256(path) != facts_of(folder)["data"]["sha256"]["tokenizer.json"]:
            raise UserError(f"{path} is damaged: leadline train --resume {folder} writes it again from the data")


def number_of(folder: Path, key: str) -> int:
    """What run.json says: updates_per_epoch, which do not change; watch, the updates between two looks; 0: nothing."""
    number = facts_of(folder).get(key, 0)
    return number if isinstance(number, int) else 0


def reasons_of(folder: Path, config: Config) -> dict[str, str]:
    """Why a run has the numbers that were chosen for it, by key; of those that it still has."""
    facts = facts_of(folder)
    reasons = facts.get("reasons", {})
    before, now = flat(facts.get("config", {})), flat(configuration.to_dict(config))
    return {key: why for key, why in reasons.items() if before.get(key) == now[key]}


def keeping_chosen(before: Config, config: Config) -> Config:
    """A run that goes on has the numbers that were chosen when it began."""
    optim = {key: getattr(before.optim, key) for key in ("lr", "warmup") if getattr(config.optim, key) == "auto"}
    return config.set(optim=optim) if optim else config


def describe(folder: Path, config: Config, store: Store, choices: Facts, update: int) -> list[str]:
    """Write what was asked and what the run stands on; a run that goes on must stand on the same data.

    `choices` are further facts for run.json. Returns what is to be said of a run that goes on at `update`, if anything.
    """
    before, path = facts_of(folder), folder / "config.toml"
    _require_same_data(folder, before, store)
    asked = read_config(folder)[0] if is_run(folder) else config
    changed, text = changes(asked, config), configuration.to_toml(config, choices.get("reasons", {}))
    with contextlib.suppress(UserError):
        if configuration.load(path) == config:
            text = path.read_text(encoding="utf-8")  # as it was written, perhaps by an earlier version
    packages = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu")
    versions = {"python": platform.python_version(), "leadline": leadline.__version__} | {
        name: _version(name) for name in packages
    }
    known = ("key", "sha256", "splits", "labels")
    facts: Facts = stamp() | {
        "versions": versions,
        **choices,
        "watch": choices["watch"] or before.get("watch", 0),
        "config": configuration.to_dict(config),
        "config_sha256": sha256_of(text),
        "replaced_sha256": sha256(path) if path.exists() else "",
        "changes": [
            *before.get("changes", []),
            *({"update": update, "key": key, "before": old, "after": new} for key, (old, new) in changed.items()),
        ],
        "data": {key: store.manifest[key] for key in known if key in store.manifest},
        "spikes": before.get("spikes", []),
    }
    if "configs" in before or not (before or checkpoint.names(folder)):  # of an earlier version they are not known
        facts["configs"] = sorted({*before.get("configs", []), facts["config_sha256"]})
    if before:
        facts["began"] = before.get("began", {"numerics": before.get("numerics", 1), "code": before.get("code")})
    write_json(folder / "run.json", facts | {"seal": checksum(facts)})
    if not path.exists() or sha256(path) != facts["config_sha256"]:
        write_text(path, text)
        facts["replaced_sha256"] = ""  # the change has arrived
        write_json(folder / "run.json", facts | {"seal": checksum(facts)})
    for name in ("tokenizer.json", TARGET):
        if (store.folder / name).exists():
            write_text(folder / name, (store.folder / name).read_text(encoding="utf-8"))
    notes = [f"from update {update} on: {_told(changed)}"] if changed else []
    numerics = facts["began"]["numerics"] if before else NUMERICS
    if numerics != NUMERICS:
        differs = f"this run began with numerics {numerics} and goes on with {NUMERICS}"
        notes.insert(0, f"{differs}: it is not what either would have computed alone")
    return notes


def note_spike(folder: Path, spike: Facts) -> None:
    """What was done about an update goes into run.json, once."""
    facts = facts_of(folder)
    facts.pop("seal", None)
    if facts and spike not in facts.setdefault("spikes", []):
        facts["spikes"].append(spike)
        write_json(folder / "run.json", facts | {"seal": checksum(facts)})


def _require_same_data(folder: Path, before: Facts, store: Store) -> None:
    try:
        data = before["data"]
        same = data["key"] == store.manifest["key"]
        # Data prepared again from the same text can still have another vocabulary: WordPiece is learnt by chance.
        same = same and data["sha256"]["tokenizer.json"] == store.manifest["sha256"]["tokenizer.json"]
        same = same or data["sha256"] == store.manifest["sha256"]  # every token, whatever the key was made of
    except (KeyError, TypeError):
        return
    if not same:
        raise UserError(
            f"the data of {folder} has changed since the run began: restore it, or begin another run from its "
            f"weights with --set train.start={folder}"
        )


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
        raise UserError(f"the run folder {folder} cannot be written: {reason(error)}") from None
    with file:
        if not machine.lock(file, wait=False):
            raise UserError(f"another training is running in {folder}")
        yield


def default_folder(name: str) -> Path:
    """The same for all processes of a training."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / str(join().gather(name)[0])
