"""OPUS-MT's folders, as transformers saves them and as they were once saved: read as they compute, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from leadline.config import DecodeConfig
from leadline.errors import UserError
from leadline.exchange import huggingface
from leadline.kernels.pack import pack_one
from leadline.training.trained import load
from tests.exchange.test_translators import LINES, SMALL, close, opened, scatter_but_positions

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as OPUS-MT's: two SentencePiece models, one numbering of both, an output bias, padding as the start."""
    pieces = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("opus")
    names = ["</s>", "<unk>"]
    texts = {
        "source": ["das Lot misst die Tiefe der See", "zwölf Faden, kein Grund!"],
        "target": LINES[::3] + LINES[2::3],
    }
    for side, lines in texts.items():
        (folder / side).write_text("\n".join(lines * 9))
        pieces.SentencePieceTrainer.train(
            input=str(folder / side),
            model_prefix=str(folder / side),
            vocab_size=35,
            minloglevel=2,
            hard_vocab_limit=False,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        model = pieces.SentencePieceProcessor(str(folder / f"{side}.spm"))
        names += [
            piece for number in range(3, model.get_piece_size()) if (piece := model.id_to_piece(number)) not in names
        ]
    names += [">>eng<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text('{"source_lang": "de", "target_lang": "en"}')
    last = len(names) - 1
    numbers = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0, "forced_eos_token_id": 0}
    more = {"vocab_size": len(names), "scale_embedding": True, "activation_function": "swish", "num_beams": 4}
    model = transformers.MarianMTModel(transformers.MarianConfig(**SMALL | numbers | more)).eval()
    scatter_but_positions(model)
    model.final_logits_bias.copy_(torch.randn(1, len(names), generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        model.model.shared.weight[last] = 0
    model.save_pretrained(folder)
    return folder


def test_an_opus_mt_folder_has_its_tokens_logits_and_translations(opus: Path, tmp_path: Path) -> None:
    assert huggingface.load(opus, tmp_path / "run") == ["a text may begin with the tag of a language to write: >>eng<<"]
    run, model = load(tmp_path / "run", "last", "cpu"), opened(opus)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(opus))
    for side, text in [
        ("de", "das Lot, zwölf Faden!"), ("de", ">>eng<< die Tiefe"), ("de", "Grund  Привет See"),
        ("en", "the  lead sounds"), ("en", "twelve Привет fathoms!"),
    ]:  # fmt: skip
        given = tokenizer(**{"text" if side == "de" else "text_target": text})["input_ids"]
        names = tokenizer.convert_ids_to_tokens(given)
        assert [run.tokenizer.piece(n) for n in run.tokenizer.encode([text], side)[0]] == names[:-1]
    last = model.config.vocab_size - 1
    rows = torch.tensor([last, last, 0, 1, *range(2, last)])
    (source,) = run.tokenizer.encode(["das Lot misst"], "de")
    found = run.model.logits(run.model(pack_one([np.array([*source, 2])]), pack_one([np.array([1, 9, 12])])))
    inputs = {"input_ids": rows[[*source, 2]][None], "decoder_input_ids": rows[[1, 9, 12]][None]}
    with torch.no_grad():
        close(found[:, 2:], model(**inputs).logits[0][:, rows[2:]])
    assert found[:, :2].max() < -1000  # padding is never written
    texts = ["das Lot", "kein Grund!"]
    limits = [len(tokenizer(text)["input_ids"]) - 1 for text in texts]
    search = {"num_beams": 5, "early_stopping": True, "bad_words_ids": [[last]], "do_sample": False}
    written = [
        model.generate(**tokenizer([text], return_tensors="pt"), max_new_tokens=min(24, 2 * n + 20), **search)
        for text, n in zip(texts, limits, strict=True)
    ]
    assert run.translate(texts) == [tokenizer.batch_decode(row, skip_special_tokens=True)[0] for row in written]


def test_a_run_of_an_opus_mt_folder_is_trained_and_exported(
    opus: Path, leadline: Callable[..., Any], tmp_path: Path
) -> None:
    assert leadline("import", opus, tmp_path / "run").code == 0
    for split, side in ((split, side) for split in ("train", "valid") for side in ("de", "en")):
        (tmp_path / f"{split}.{side}").write_text(
            "das Lot misst\ndie See\n" if side == "de" else "the lead\nthe depth\n"
        )
    further = leadline(
        "train", tmp_path / "run" / "config.toml", "--out", tmp_path / "further", "--set", "train.device=cpu",
        "--set", f"train.start={tmp_path / 'run'}", "--set", "train.start_checkpoint=last", "--set", "train.updates=2",
        "--set", f"data.source=text:{tmp_path}", "--set", "train.batch_tokens=128",
    )  # fmt: skip
    assert further.code == 0, further.err
    run = load(tmp_path / "further", "last", "cpu")
    before = load(tmp_path / "run", "last", "cpu").tokenizer
    english = ["the depth", "the lead sounds", "twelve fathoms"]  # pieces of single lines may be those of German too
    assert run.tokenizer.encode(english, "en") == before.encode(english, "en") != before.encode(english, "de")
    (_, target), *_ = run.task().store.first("train", 1)
    assert target.tolist() == before.encode(["the lead"], "en")[0]
    back = leadline("export", tmp_path / "further", tmp_path / "back", "--checkpoint", "last")
    assert "split targets with the run's tokenizer.target.json" in back.err
    huggingface.load(tmp_path / "back", tmp_path / "again")
    again = load(tmp_path / "again", "last", "cpu")
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True))


LEGACY = {  # what config.json of OPUS-MT's older folders says besides, with padding as its last number
    "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "bad_words_ids": [["last"]],
    "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0, "do_blenderbot_90_layernorm": False,
    "extra_pos_embeddings": "last", "gradient_checkpointing": False, "id2label": {"0": "LABEL_0"}, "max_length": 24,
    "normalize_before": False, "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 2,
    "static_position_embeddings": True, "use_cache": True, "torch_dtype": "float16",
}  # fmt: skip


def opus_with(opus: Path, out: Path, described: dict[str, Any], settings: dict[str, Any] | None = None) -> Path:
    """A copy with other keys in config.json and tokenizer_config.json, and without generation_config.json."""
    out.mkdir()
    for name in ("model.safetensors", "vocab.json", "target.spm", "source.spm"):
        (out / name).write_bytes((opus / name).read_bytes())
    for name, more in (("config.json", described), ("tokenizer_config.json", settings or {})):
        (out / name).write_text(json.dumps(json.loads((opus / name).read_text()) | more))
    return out


def test_an_old_opus_mt_folder_is_read_as_a_new_one(opus: Path, tmp_path: Path) -> None:
    last = json.loads((opus / "config.json").read_text())["pad_token_id"]
    legacy = json.loads(json.dumps(LEGACY).replace('"last"', str(last)))
    folder = opus_with(opus, tmp_path / "old", legacy)
    tensors = {name: x.half() for name, x in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")  # some have one besides, which splits one side only
    notes = huggingface.load(folder, tmp_path / "run")
    assert notes == ["a text may begin with the tag of a language to write: >>eng<<"]
    run, model = load(tmp_path / "run", "last", "cpu"), opened(opus).half().float()
    assert (run.config.decode.beam, run.config.model.positions) == (6, "sinusoidal")
    rows = torch.tensor([last, last, 0, 1, *range(2, last)])
    found = run.model.logits(run.model(pack_one([np.array([7, 9, 2])]), pack_one([np.array([1, 9, 12])])))
    inputs = {"input_ids": rows[[7, 9, 2]][None], "decoder_input_ids": rows[[1, 9, 12]][None]}
    with torch.no_grad():
        assert (found[:, 2:] - model(**inputs).logits[0][:, rows[2:]]).abs().max() < 1e-3  # their positions are halved


def test_what_an_opus_mt_folder_asks_for_beyond_ours_is_said(opus: Path, tmp_path: Path) -> None:
    asks = {"no_repeat_ngram_size": 3, "min_length": 0, "bad_words_ids": [[5]], "repetition_penalty": 1.2}
    same = {"source_lang": "zle", "target_lang": "zle"}
    notes = huggingface.load(opus_with(opus, tmp_path / "asks", asks, same), tmp_path / "run")
    left = "no_repeat_ngram_size=3, repetition_penalty=1.2, bad_words_ids"
    assert notes[0] == f"its search settings that have no counterpart here are left out: {left}"
    first, second = (load(run, "last", "cpu") for run in (tmp_path / "run", run_from(opus, tmp_path)))
    text = "the lead"  # one language on both sides: its sources are still split as sources
    assert first.tokenizer.encode([text], "source") == second.tokenizer.encode([text], "de")
    assert first.translate([text]) == second.translate([text])


def test_a_file_of_its_own_says_how_a_folder_searches(opus: Path, tmp_path: Path) -> None:
    folder = opus_with(opus, tmp_path / "folder", {"num_beams": 6, "no_repeat_ngram_size": 3})
    (folder / "generation_config.json").write_text('{"length_penalty": 0.5}')
    theirs = opened(folder).generation_config
    assert (theirs.num_beams or 1, theirs.length_penalty, theirs.no_repeat_ngram_size or 0) == (1, 0.5, 0)
    notes = huggingface.load(folder, tmp_path / "run")
    assert not any("search settings" in note for note in notes)
    assert load(tmp_path / "run", "last", "cpu").config.decode == DecodeConfig(length_penalty=0.5)


def run_from(folder: Path, tmp_path: Path) -> Path:
    huggingface.load(folder, tmp_path / "usual")
    return tmp_path / "usual"


@pytest.mark.parametrize(("described", "settings", "complaint"), [
    ({}, {"separate_vocabs": True}, r"has a vocabulary for each side \(target_vocab.json\): only a shared one"),
    ({"quantization_config": {"bits": 4}}, {}, r"config.json has a quantization_config: its weights are rounded"),
    ({"normalize_embedding": True}, {}, "normalize_embedding=True has no counterpart here, only False"),
    ({"layernorm_embedding": True}, {}, "layernorm_embedding=True has no counterpart here, only False"),
    ({"add_final_layer_norm": True}, {}, "add_final_layer_norm=True has no counterpart here, only False"),
    ({"num_beams": 0}, {}, r"decode\.beam"),
], ids=str)  # fmt: skip
def test_an_opus_mt_folder_that_would_compute_something_else_is_refused(
    described: dict, settings: dict, complaint: str, opus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=complaint):
        huggingface.load(opus_with(opus, tmp_path / "folder", described, settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sentencepiece_file_that_is_none_is_refused(opus: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "vocab.json", "target.spm", "source.spm"):
        (tmp_path / name).write_bytes((opus / name).read_bytes())
    whole = (opus / "source.spm").read_bytes()
    for damaged in (b"", b"not a model", whole[:-40], b"\x0a\xff" + whole):
        (tmp_path / "source.spm").write_bytes(damaged)
        if damaged:
            with pytest.raises(UserError, match=r"source.spm is not a SentencePiece model: "):
                huggingface.load(tmp_path, tmp_path / "run")
    for said, name in (
        (b"\x1a\x02\x18\x00", "add_dummy_prefix=False"), (b"\x1a\x02\x20\x00", "remove_extra_whitespaces=False"),
        (b"\x12\x03\x98\x02\x01", "byte_fallback=True"), (b"\x12\x03\xc0\x01\x01", "treat_whitespace_as_suffix=True"),
    ):  # fmt: skip
        (tmp_path / "source.spm").write_bytes(whole + said)
        with pytest.raises(UserError, match=f"source.spm has {name}: only models with SentencePiece's own"):
            huggingface.load(tmp_path, tmp_path / "run")
    (tmp_path / "source.spm").write_bytes(whole + b"\x12\x02\x18\x02")  # its trainer says: BPE
    with pytest.raises(UserError, match=r"source.spm is not a unigram model"):
        huggingface.load(tmp_path, tmp_path / "run")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 0}')
    with pytest.raises(UserError, match=r"vocab.json does not number its pieces 0, 1, 2"):
        huggingface.load(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
