"""Encoders in and out of transformers: BERT and RoBERTa-PreLayerNorm, with heads, labels and tokenizer."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as BPE
from tokenizers import decoders as text_decoders
from tokenizers import models, normalizers, pre_tokenizers
from torch import Tensor

from leadline import config as configuration
from leadline.config import Config, DataConfig, ModelConfig, TrainConfig
from leadline.data.tokenizer import BERT_SPECIAL, Tokenizer
from leadline.errors import UserError
from leadline.exchange import bert, formats, texts
from leadline.exchange import folder as folders
from leadline.exchange.decoder_kinds import ACTIVATIONS, activation
from leadline.files import Facts, write_json
from leadline.model import Transformer
from leadline.training.trained import Trained

SPECIAL_KEYS = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token", "mask_token"), BERT_SPECIAL, strict=True))


def save(trained: Trained, out: Path, labels: list[str] | None = None) -> list[str]:
    """Write a folder; what a user should know about it."""
    config, tokenizer = trained.model.config, trained.tokenizer
    kind = bert.KINDS[formats.choose(config).name]
    pad = tokenizer.special("[PAD]")
    folders.require_empty(out)
    theirs, architecture = bert.to_theirs(trained.model, kind, pad), bert.architecture(config, kind)
    folders.save_weights(theirs, out)
    described = {theirs: getattr(config, ours) for theirs, (ours, _) in bert.KEYS.items()} | {
        "architectures": [architecture],
        "model_type": kind.model_type,
        "vocab_size": trained.model.vocab_size,
        "max_position_embeddings": len(theirs[f"{kind.body}.embeddings.position_embeddings.weight"]),
        "type_vocab_size": max(1, config.segments),
        "tie_word_embeddings": bert.is_tied(trained.model),
        "hidden_act": ACTIVATIONS[config.activation],
        "pad_token_id": pad,
        "bos_token_id": tokenizer.special("[CLS]"),
        "eos_token_id": tokenizer.special("[SEP]"),
    }
    if config.classes and config.head == "linear":
        labels = labels or [f"LABEL_{number}" for number in range(config.classes)]  # as transformers calls them
        described |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    write_json(out / "config.json", described)
    notes = []
    if formats.has_bare_output(config):
        notes.append(f"{architecture} has no output matrix: it is left out")
    if config.head == "linear" and not config.classes and not config.pooler:
        notes.append(
            f"{architecture} predicts no words: the output matrix, which is that of the embeddings, has no place in it"
        )
    if config.pooler and not config.classes and (kind is bert.PRE or config.head == "bert"):
        notes.append(f"{architecture} has no pooler: it is left out")
    if config.head == "bert" and config.classes and kind is bert.PRE:
        notes.append("RoBERTa-PreLayerNorm has no next-sentence prediction: that head is left out")
    return notes + _save_tokenizer(tokenizer, config, out)


def _save_tokenizer(tokenizer: Tokenizer, config: ModelConfig, out: Path) -> list[str]:
    """With [CLS] a [SEP] b [SEP] as its template."""
    second = 1 if config.segments > 1 else 0
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {
        "model_max_length": config.max_length,
        "model_input_names": inputs if config.segments else [name for name in inputs if name != "token_type_ids"],
        **SPECIAL_KEYS,
    }
    pair = f"[CLS] $A [SEP] $B:{second} [SEP]:{second}"
    return texts.save(tokenizer, out, "[CLS] $A [SEP]", pair, ["[CLS]", "[SEP]"], settings)


def load(folder: Path, described: Facts, out: Path) -> list[str]:
    """Make the run `out` of a folder; what was left out."""
    kind = bert.KINDS[described["model_type"]]
    theirs = _weights(folder, kind)
    tokenizer = _tokenizer(folder)
    size, pad = tokenizer.vocab_size, tokenizer.special("[PAD]")
    heads = [f"{kind.head}.{key}" for key in ("bias", "decoder.weight", "decoder.bias")]
    words = f"{kind.body}.embeddings.word_embeddings.weight"
    notes = folders.cut_vocabulary(theirs, words, heads, size, folder)
    config = Config(
        task="masked_lm",
        model=_model(described, theirs, kind, pad, folder),
        data=DataConfig(**folders.data_of(folder, out, size, source_lang="en", target_lang="en")),
        train=TrainConfig(updates=1, precision="fp32"),
    )
    model = Transformer(size, **configuration.to_dict(config.model))
    if tied := bert.is_tied(model):
        for part in ("weight", "bias"):
            own = words if part == "weight" else f"{kind.head}.bias"
            folders.require_one(theirs, [own, f"{kind.head}.decoder.{part}"], folder)
    used = bert.from_theirs(model, kind, pad, theirs)
    folders.make_run(out, config, model, tokenizer)
    more = ("position_ids", *(("decoder.weight", "decoder.bias") if tied else ()))
    left = (name for name in theirs if name not in used and not name.endswith(more))
    return notes + folders.left_out(left)


def _weights(folder: Path, kind: bert.Kind) -> dict[str, Tensor]:
    """By the names that a model with a head has; some old files call a norm's weights gamma and beta."""
    tensors = folders.weights(folder)
    bare = not any(name.startswith(f"{kind.body}.") for name in tensors)
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    named = {}
    for name, tensor in ((name, tensor) for name, tensor in tensors.items() if tensor.ndim):
        for before, now in old.items():
            name = name.removesuffix(before) + now if name.endswith(before) else name
        named[f"{kind.body}.{name}" if bare else name] = tensor.float()
    return named


def _model(described: Facts, theirs: dict[str, Tensor], kind: bert.Kind, pad: int, folder: Path) -> ModelConfig:
    if described.get("is_decoder") or described.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{folder}/config.json: only encoders with absolute positions can be imported")
    positions = described.get("max_position_embeddings", 512)
    if not isinstance(positions, int):
        raise UserError(f"{folder}/config.json: max_position_embeddings must be a whole number, not {positions!r}")
    if kind is bert.PRE and (theirs_pad := described.get("pad_token_id", 1)) != pad:
        raise UserError(
            f"{folder}/config.json: pad_token_id={theirs_pad!r} has no counterpart here, only {pad}, the tokenizer's "
            "[PAD]: positions are counted from it"
        )
    head = f"{kind.head}.{kind.head_dense}.weight" in theirs
    tied = folders.flag(described, "tie_word_embeddings", True, folder)
    scores = theirs.get(f"{bert.classifier_name(kind, head)}.weight") if f"{kind.pooler}.weight" in theirs else None
    values = {ours: described.get(key, usual) for key, (ours, usual) in bert.KEYS.items()} | {
        **bert.FIXED,
        "placement": "post_ln" if kind is bert.BERT else "pre_ln",
        "max_length": positions - (pad + 1 if kind is bert.PRE else 0),
        "segments": described.get("type_vocab_size", 2),
        "embeddings": "tied" if tied or not head else "separate",
        "activation": activation(described.get("hidden_act", "gelu"), "hidden_act", folder),
        "head": "bert" if head else "linear",
        "classes": len(scores) if scores is not None else 0,
        "pooler": kind is bert.BERT and not head and scores is None and f"{kind.pooler}.weight" in theirs,
    }
    return configuration.from_dict(values, ModelConfig, f"{folder}/config.json: model.")


def _tokenizer(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").exists():
        bpe = Tokenizer.load(folder / "tokenizer.json", DataConfig()).bpe
    elif (folder / "vocab.txt").exists():
        bpe = _word_pieces(folder)
    else:
        raise UserError(f"{folder} has neither tokenizer.json nor vocab.txt")
    if missing := [name for name in BERT_SPECIAL if bpe.token_to_id(name) is None]:
        raise UserError(f"the tokenizer of {folder} has no {', '.join(missing)}: only BERT's can be imported")
    return Tokenizer(bpe, DataConfig())


def _word_pieces(folder: Path) -> BPE:
    path = folder / "tokenizer_config.json"
    settings = folders.read_json(path) if path.exists() else {}
    try:
        bpe = BPE(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    except Exception as error:  # the library has no kind of its own
        raise UserError(f"{folder / 'vocab.txt'} is not a vocabulary: {error}") from None
    try:
        bpe.normalizer = normalizers.BertNormalizer(
            lowercase=settings.get("do_lower_case", True),
            strip_accents=settings.get("strip_accents"),
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        )
    except TypeError as error:
        raise UserError(f"{path} is not what transformers writes: {error}") from None
    bpe.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bpe.decoder = text_decoders.WordPiece()
    bpe.add_special_tokens([name for name in BERT_SPECIAL if bpe.token_to_id(name) is not None])
    return bpe
