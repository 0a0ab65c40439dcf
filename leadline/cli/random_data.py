"""Random input for a Hugging Face model, with the labels its kind of task takes: it shows the model, not the task."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

TOKENS = 512  # in a batch: enough for stable statistics, few enough for a CPU
SEQUENCES = 4  # of pictures, sounds and pairs
SECONDS = 1
SAMPLES = 16_000  # of sound in a second

Batch = dict[str, Tensor]


def random_batch(model: Any) -> Batch:
    """What the model's `forward` takes, and labels."""
    config = model.config
    name = str(getattr(model, "main_input_name", "input_ids"))
    make = {"pixel_values": _pictures, "input_values": _sound, "input_features": _spectrum}.get(name, _tokens)
    inputs = make(config)
    taken = inspect.signature(model.forward).parameters
    if "start_positions" in taken:  # question answering
        count, length = next(iter(inputs.values())).shape[:2]
        ends = torch.randint(0, length, (2, count))
        return inputs | {"start_positions": ends.amin(0), "end_positions": ends.amax(0)}
    if type(model).__name__.endswith("MultipleChoice"):
        choices = {key: value[:, None].expand(-1, 2, -1).clone() for key, value in inputs.items()}
        return choices | {"labels": torch.randint(0, 2, (len(next(iter(inputs.values()))),))}
    labels = _labels(type(model).__name__, config, inputs)
    both = "next_sentence_label" if "next_sentence_label" in taken and "labels" in taken else ""
    return inputs | {"labels": labels} | ({both: torch.randint(0, 2, (len(labels),))} if both else {})


def _labels(kind: str, config: Any, inputs: Batch) -> Tensor:
    """By what the name of the model says of its task."""
    first = next(iter(inputs.values()))
    classes, count = max(2, getattr(config, "num_labels", 2)), len(first)
    if kind.endswith(("ForTokenClassification", "ForAudioFrameClassification")):
        return torch.randint(0, classes, first.shape[:2])
    if kind.endswith(("Classification", "ForXVector", "NextSentencePrediction")):
        if getattr(config, "problem_type", None) == "multi_label_classification":
            return torch.randint(0, 2, (count, classes)).float()
        return torch.randint(0, classes, (count,))
    if kind.endswith("ForCTC"):
        return torch.randint(1, int(config.vocab_size), (count, 8))
    if "input_ids" in inputs:
        return inputs["input_ids"].clone()
    if hasattr(config, "vocab_size") or hasattr(config, "decoder"):  # writes what it hears or sees
        return torch.randint(0, int(_text(config).vocab_size), (count, 16))
    return torch.randint(0, classes, (count,))


def _text(config: Any) -> Any:
    """The part of a config that is of the text a model reads or writes."""
    return getattr(config, "text_config", None) or getattr(config, "decoder", None) or config


def _tokens(config: Any) -> Batch:
    text = _text(config)
    # RoBERTa's kind counts positions from behind the padding token
    room = (getattr(text, "max_position_embeddings", None) or 66) - 2
    length, words = max(1, min(64, room)), int(text.vocab_size)
    tokens = torch.randint(0, words, (TOKENS // length, length))
    end = getattr(text, "eos_token_id", None)
    if isinstance(end, int) and end < words:  # BART classifies a text by its one end
        tokens[tokens == end] = (end + 1) % words
        tokens[:, -1] = end
    return {"input_ids": tokens}


def _pictures(config: Any) -> Batch:
    seen = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
    size = getattr(seen, "image_size", 224)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return {"pixel_values": torch.randn(SEQUENCES, getattr(seen, "num_channels", 3), height, width)}


def _sound(config: Any) -> Batch:
    spectrum = getattr(config, "num_mel_bins", None)
    shape = (int(config.max_length), spectrum) if spectrum else (SECONDS * SAMPLES,)
    return {"input_values": torch.randn(SEQUENCES, *shape)}


def _spectrum(config: Any) -> Batch:
    bands = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", 80)
    frames = 2 * int(getattr(config, "max_source_positions", 500))  # Whisper's convolutions halve them
    shape = (bands, frames) if config.model_type == "whisper" else (frames, bands)
    return {"input_features": torch.randn(SEQUENCES, *shape)}
