"""How a folder of transformers says that its translator searches, as our config says it."""

from __future__ import annotations

from pathlib import Path

from leadline import config as configuration
from leadline.config import DecodeConfig
from leadline.exchange import folder as folders
from leadline.files import Facts

# What changes a search of theirs and has no counterpart in ours, and where it changes nothing.
SEARCH: Facts = {
    "do_sample": False, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "repetition_penalty": 1.0,
    "min_length": 0, "forced_bos_token_id": None, "suppress_tokens": None, "diversity_penalty": 0.0,
}  # fmt: skip


def _search(folder: Path, described: Facts) -> tuple[str, Facts]:
    """The file that says how they generate, and what it says: old folders have none for it but config.json."""
    apart = (folder / "generation_config.json").exists()
    name = "generation_config.json" if apart else "config.json"
    said = folders.read_json(folder / name) if apart else described
    return name, {key: value for key, value in said.items() if value is not None}


def decode(folder: Path, described: Facts) -> DecodeConfig:
    """Ours, as far as it has what theirs says."""
    name, search = _search(folder, described)
    values = {ours: search[key] for key, ours in (("num_beams", "beam"), ("length_penalty",) * 2) if key in search}
    return configuration.from_dict(values, DecodeConfig, f"{folder / name}: decode.")


def notes(folder: Path, described: Facts, pad: int) -> list[str]:
    """What of theirs ours does not have; `pad`, which ours never writes, may be among the bad words."""
    _, search = _search(folder, described)
    other = [f"{key}={search[key]!r}" for key, usual in SEARCH.items() if search.get(key, usual) != usual]
    if search.get("bad_words_ids", [[pad]]) != [[pad]]:
        other.append("bad_words_ids")
    return [f"its search settings that have no counterpart here are left out: {', '.join(other)}"] if other else []
