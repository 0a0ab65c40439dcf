"""Folders in and out of transformers: the same numbers on both sides, and plain words where there is no other side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline.config import Config, DataConfig
from leadline.data.tokenizer import BERT_SPECIAL, Tokenizer, learn
from leadline.errors import UserError
from leadline.exchange import huggingface
from leadline.kernels.pack import pack_flat
from leadline.model import Transformer
from leadline.placement import PLACEMENTS
from leadline.training.trained import Trained, load

transformers = pytest.importorskip("transformers")

WORDS = ["the", "lead", "line", "sounds", "depth", "of", "a", "sea", ",", "Ünited", "harbours", "."]
LINES = [" ".join(WORDS[i % 12 :] + WORDS[: i % 7]) for i in range(40)]
MODEL = {
    "encoder_layers": 3, "decoder_layers": 0, "dim": 16, "ffn_dim": 32, "heads": 4, "activation": "gelu",
    "positions": "learned", "max_length": 24, "embed_norm": True, "segments": 2, "head": "bert",
}  # fmt: skip
LENGTHS = np.array([5, 9, 14])


def scatter(model: nn.Module, seed: int = 0) -> None:
    """Weights far from any initialisation, so that nothing is 0, 1 or symmetric by chance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            centre = 0.0 if parameter.dim() > 1 else 0.7
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size + centre)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = DataConfig(source_lang="en", target_lang="en", lowercase=True, vocab_size=60)
    return Tokenizer(learn([line.lower() for line in LINES], config, documents=True), config)


def run_of(tokenizer: Tokenizer, **changes: Any) -> Trained:
    config = Config(task="masked_lm").set(model=MODEL | changes)
    model = Transformer(tokenizer.vocab_size, **MODEL | changes)
    scatter(model)
    return Trained(config, model.eval(), tokenizer, "last")


def inputs(vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(1, vocabulary, LENGTHS.sum()), rng.integers(0, 2, LENGTHS.sum())


def ours(model: Transformer, tokens: np.ndarray, segments: np.ndarray) -> Tensor:
    """In one pack with filler behind it."""
    with torch.no_grad():
        return model(pack_flat(tokens, LENGTHS, 32, [3], 24, 5, 0, segments))


def padded(tokens: np.ndarray, segments: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
    """The same as a padded batch, and where its tokens are."""
    mask = torch.arange(int(LENGTHS.max()))[None] < torch.from_numpy(LENGTHS)[:, None]
    ids, kinds = torch.zeros(mask.shape, dtype=torch.long), torch.zeros(mask.shape, dtype=torch.long)
    ids[mask], kinds[mask] = torch.from_numpy(tokens), torch.from_numpy(segments)
    return {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask.long()}, mask


def close(found: Tensor, expected: Tensor) -> None:
    assert float(expected.std()) > 0.1
    assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("changes", [
    {}, {"classes": 2}, {"placement": "deepnorm"}, {"placement": "admin_constant"}, {"placement": "admin"},
    {"placement": "ds_init", "embeddings": "separate"}, {"positions": "sinusoidal", "norm_eps": 1e-12},
    {"placement": "pre_ln"}, {"placement": "pre_ln", "embeddings": "separate"},
    {"embed_scale": False}, {"placement": "pre_ln", "embed_scale": False}, {"activation": "gelu_tanh"},
], ids=str)  # fmt: skip
def test_an_exported_run_gives_the_same_scores(changes: dict, tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of(tokenizer, **{"placement": "post_ln"} | changes)
    before = {name: p.clone() for name, p in run.model.named_parameters()}
    assert huggingface.save(run, tmp_path / "out") == []
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    tokens, segments = inputs(tokenizer.vocab_size)
    batch, mask = padded(tokens, segments)
    with torch.no_grad():
        found = theirs.eval()(**batch, output_hidden_states=True)
        hidden = ours(run.model, tokens, segments)
        close(found.logits[mask], run.model.logits(hidden)[: len(tokens)])
        body = theirs.base_model(**batch).last_hidden_state
        close(body[mask], hidden[: len(tokens)])
    assert all(torch.equal(before[name], p) for name, p in run.model.named_parameters())
    huggingface.load(tmp_path / "out", tmp_path / "run")
    back = load(tmp_path / "run", device="cpu")
    close(ours(back.model, tokens, segments)[: len(tokens)], hidden[: len(tokens)])
    if not run.model.config.embed_scale:
        assert all(torch.equal(before[name], p) for name, p in back.model.named_parameters())
        assert before.keys() == dict(back.model.named_parameters()).keys()
    huggingface.save(back, tmp_path / "again")
    files = [load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])
    if "classes" in changes:
        whole = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
        firsts = torch.from_numpy(np.cumsum(LENGTHS) - LENGTHS)
        with torch.no_grad():
            close(whole(**batch).seq_relationship_logits, run.model.classify(hidden, firsts))


@pytest.mark.parametrize("placement", ["post_ln", "pre_ln", "deepnorm"])
def test_an_exported_classifier_gives_the_same_scores(placement: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of(tokenizer, placement=placement, head="linear", classes=3)
    huggingface.save(run, tmp_path / "out", ["no", "perhaps", "yes"])
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.id2label == {0: "no", 1: "perhaps", 2: "yes"}
    tokens, segments = inputs(tokenizer.vocab_size)
    batch, _ = padded(tokens, segments)
    firsts = torch.from_numpy(np.cumsum(LENGTHS) - LENGTHS)
    with torch.no_grad():
        close(theirs(**batch).logits, run.model.classify(ours(run.model, tokens, segments), firsts))
    huggingface.load(tmp_path / "out", tmp_path / "run")
    huggingface.save(load(tmp_path / "run", device="cpu"), tmp_path / "again")  # a run without labels of its own
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        close(again(**batch).logits, theirs(**batch).logits)


def test_the_exported_tokenizer_gives_the_same_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    huggingface.save(run_of(tokenizer, placement="post_ln"), tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    first, second = "The  LEAD\tline, sounds. ", "U\u0308nited harbours?"
    a, b = tokenizer.encode([first, second], "en")
    cls, sep = tokenizer.special("[CLS]"), tokenizer.special("[SEP]")
    found = theirs(first, second)
    assert found["input_ids"] == [cls, *a, sep, *b, sep]
    assert found["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert theirs(first)["input_ids"] == [cls, *a, sep]
    assert theirs.mask_token_id == tokenizer.special("[MASK]")
    assert theirs.pad_token_id == tokenizer.special("[PAD]")
    assert theirs.model_max_length == 24


def test_a_run_without_a_head_says_that_its_output_stays_behind(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = run_of(tokenizer, placement="post_ln", head="linear")
    assert huggingface.save(run, tmp_path / "out") == [
        "BertModel predicts no words: the output matrix, which is that of the embeddings, has no place in it"
    ]
    classifier = run_of(tokenizer, placement="post_ln", head="linear", classes=2)
    assert huggingface.save(classifier, tmp_path / "classifier") == []


def test_what_cannot_go_along_is_said(tokenizer: Tokenizer, tmp_path: Path) -> None:
    moses = Tokenizer(tokenizer.bpe, replace(tokenizer.config, text="moses_normalize"))
    assert huggingface.save(run_of(moses, placement="pre_ln", classes=2), tmp_path / "out") == [
        "RoBERTa-PreLayerNorm has no next-sentence prediction: that head is left out",
        "the run's text passes through Moses first (data.text=moses_normalize): do so there too",
    ]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(theirs[1].values())  # no weight is missing and none is too much
    classifier = run_of(tokenizer, placement="post_ln", head="linear", classes=2, embeddings="separate")
    assert huggingface.save(classifier, tmp_path / "classifier") == [
        "BertForSequenceClassification has no output matrix: it is left out"
    ]


def folder_of(kind: str, path: Path, **changes: Any) -> Any:
    """A model of theirs with a vocabulary, saved."""
    pieces = [*BERT_SPECIAL, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
    usual = {
        "vocab_size": len(pieces), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 32, "max_position_embeddings": 24, "pad_token_id": 0,
    }  # fmt: skip
    described = transformers.BertConfig if kind.startswith("Bert") else transformers.RobertaPreLayerNormConfig
    model = getattr(transformers, kind)(described(**usual | changes)).eval()
    scatter(model)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return model


@pytest.mark.parametrize(
    "kind", ["BertModel", "BertForMaskedLM", "BertForPreTraining", "RobertaPreLayerNormForMaskedLM"]
)
@pytest.mark.parametrize("changes", [{}, {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}], ids=["usual", "changed"])
def test_an_imported_folder_gives_the_same_outputs(kind: str, changes: dict, tmp_path: Path) -> None:
    if kind.startswith("Roberta"):
        changes = changes | {"hidden_act": "gelu"}
    theirs = folder_of(kind, tmp_path / "theirs", **changes)
    notes = huggingface.load(tmp_path / "theirs", tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    tokens, segments = inputs(21)
    batch, mask = padded(tokens, segments)
    hidden = ours(run.model, tokens, segments)[: len(tokens)]
    with torch.no_grad():
        expected = theirs(**batch)
        close(hidden, theirs.base_model(**batch).last_hidden_state[mask])
        if kind != "BertModel":
            logits = expected.prediction_logits if "PreTraining" in kind else expected.logits
            close(run.model.logits(hidden), logits[mask])
        if kind == "BertForPreTraining":
            firsts = torch.from_numpy(np.cumsum(LENGTHS) - LENGTHS)
            close(run.model.classify(hidden, firsts), expected.seq_relationship_logits)
        if kind == "BertModel":
            pooled = run.model.classifier.dense(hidden[torch.from_numpy(np.cumsum(LENGTHS) - LENGTHS)]).tanh()
            close(pooled, expected.pooler_output)
    assert notes == []
    huggingface.save(run, tmp_path / "again")
    again, before = (load_file(tmp_path / name / "model.safetensors") for name in ("again", "theirs"))
    bare = [{name.removeprefix("bert.") for name in names if "pooler" in name} for names in (again, before)]
    assert bare[0] == bare[1]
    for name in again.keys() & before.keys():
        used = slice(1, None) if "Roberta" in kind and "position" in name else slice(None)  # the filler's row
        assert torch.allclose(again[name][used], before[name][used], atol=1e-6), name


@pytest.mark.parametrize("kind", ["BertModel", "RobertaPreLayerNormModel"])
def test_an_imported_encoder_is_trained_as_theirs(kind: str, tmp_path: Path) -> None:
    """A factor folded into a weight would leave the outputs as they are, and change what a learning rate does."""
    theirs = folder_of(kind, tmp_path / "theirs")
    huggingface.load(tmp_path / "theirs", tmp_path / "run")
    model = load(tmp_path / "run", device="cpu").model
    tokens, segments = inputs(21)
    batch, mask = padded(tokens, segments)
    source = pack_flat(tokens, LENGTHS, 32, [3], 24, 5, 0, segments)
    goal = torch.randn(len(tokens), 16, generator=torch.Generator().manual_seed(1))
    outputs = (lambda: model(source)[: len(tokens)], lambda: theirs(**batch).last_hidden_state[mask])
    for side, output in zip((model, theirs), outputs, strict=True):
        optimizer = torch.optim.SGD(side.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(output(), goal).backward()
            optimizer.step()
    close(*(output().detach() for output in outputs))


def test_what_transformers_would_not_tie_or_count_as_we_do_is_refused(tmp_path: Path) -> None:
    folder_of("BertForMaskedLM", tmp_path / "untied", tie_word_embeddings=False)
    folder_of("RobertaPreLayerNormForMaskedLM", tmp_path / "pad", pad_token_id=1)
    path = tmp_path / "untied" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    for name, why in (
        ("untied", "ties bert.embeddings.word_embeddings.weight and cls.predictions.decoder.weight, which differ"),
        ("pad", r"pad_token_id=1 has no counterpart here, only 0, the tokenizer's \[PAD\]"),
    ):
        with pytest.raises(UserError, match=why):
            huggingface.load(tmp_path / name, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    folder_of("BertForMaskedLM", tmp_path / "theirs")
    weights = load_file(tmp_path / "theirs" / "model.safetensors")
    name = "bert.encoder.layer.0.output.dense.bias"
    weights[name][3] = float("nan")
    save_file(weights, tmp_path / "theirs" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"^{name} holds values that are not finite"):
        huggingface.load(tmp_path / "theirs", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_untied_decoder_has_a_bias_of_its_own(tmp_path: Path) -> None:
    theirs = folder_of("BertForMaskedLM", tmp_path / "theirs", tie_word_embeddings=False)
    assert huggingface.load(tmp_path / "theirs", tmp_path / "run") == []
    model = load(tmp_path / "run", device="cpu").model
    tokens, segments = inputs(21)
    batch, mask = padded(tokens, segments)
    with torch.no_grad():
        close(model.logits(ours(model, tokens, segments)[: len(tokens)]), theirs(**batch).logits[mask])


def test_a_vocabulary_alone_is_bert_s_tokenizer(tmp_path: Path) -> None:
    folder_of("BertForMaskedLM", tmp_path / "theirs")
    huggingface.load(tmp_path / "theirs", tmp_path / "run")
    expected = transformers.BertTokenizer.from_pretrained(tmp_path / "theirs")
    text = "ABBA  bad-héad cab"
    assert load(tmp_path / "run", device="cpu").tokenizer.encode([text], "en")[0] == expected(text)["input_ids"][1:-1]


def test_only_the_files_of_the_model_are_read(tmp_path: Path) -> None:
    """Not a backup beside them, whatever its name."""
    folder = tmp_path / "theirs"
    theirs = folder_of("BertForMaskedLM", folder)
    weights = load_file(folder / "model.safetensors")
    wrong = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    save_file(wrong, folder / "model_old.safetensors")
    huggingface.load(folder, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors does not exist: save the model"):
        huggingface.load(folder, tmp_path / "other")
    parts = {f"model-0000{i + 1}-of-00002.safetensors": dict(list(weights.items())[i::2]) for i in range(2)}
    for name, tensors in parts.items():
        save_file(tensors, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {key: name for name, part in parts.items() for key in part}}))
    huggingface.load(folder, tmp_path / "parts")
    tokens, segments = inputs(21)
    batch, mask = padded(tokens, segments)
    for name in ("run", "parts"):
        model = load(tmp_path / name, device="cpu").model
        with torch.no_grad():
            close(model.logits(ours(model, tokens, segments)[: len(tokens)]), theirs(**batch).logits[mask])
    for content in ('{"weight_map": {"a": "../secret.safetensors"}}', '{"weight_map": {}}', '{"weight_map": []}'):
        index.write_text(content)
        with pytest.raises(UserError, match="does not name the files of a model"):
            huggingface.load(folder, tmp_path / "other")


def test_old_names_spare_rows_and_their_tokenizer_json(tmp_path: Path) -> None:
    """google-bert's files call a norm's weights gamma and beta; others have more rows than tokens."""
    theirs = folder_of("BertForMaskedLM", tmp_path / "theirs", vocab_size=24)
    transformers.BertTokenizer.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    weights = load_file(path)
    swaps = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    for new, old in swaps:
        weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    save_file(weights, path, metadata={"format": "pt"})
    (tmp_path / "theirs" / "vocab.txt").unlink(missing_ok=True)
    assert huggingface.load(tmp_path / "theirs", tmp_path / "run") == [
        "3 rows of the vocabulary have no token and are left out"
    ]
    run = load(tmp_path / "run", device="cpu")
    tokens, segments = inputs(21)
    batch, mask = padded(tokens, segments)
    with torch.no_grad():
        hidden = ours(run.model, tokens, segments)[: len(tokens)]
        close(run.model.logits(hidden), theirs(**batch).logits[mask][:, :21])


@pytest.mark.parametrize("placement", [
    name for name, p in PLACEMENTS.items() if "encoder-only" in p.architectures
    and name not in ("post_ln", "pre_ln", "deepnorm", "post_ln_init", "ds_init", "admin", "admin_constant")
])  # fmt: skip
def test_other_placements_say_what_can_be_exported(placement: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=f"{placement} has no counterpart in transformers: what can be exported is post"
    ):
        huggingface.save(run_of(tokenizer, placement=placement), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("changes", "needs"), [
    ({"embed_norm": False}, "model.embed_norm=true"),
    ({"norm": "rms_norm"}, "model.norm=layer_norm"),
    ({"activation": "swiglu", "head": "linear"}, "model.activation=relu or gelu or gelu_tanh or silu"),
    ({"placement": "pre_ln", "activation": "relu"}, "model.activation=gelu"),
    ({"head": "linear", "embeddings": "separate"}, "model.embeddings=tied or model.head=bert"),
    ({"classes": 3}, "model.classes=0 or 2 with model.head=bert"),
])  # fmt: skip
def test_what_bert_is_not_is_refused(changes: dict, needs: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"transformers has no format for this model: .* needs {needs}$"):
        huggingface.save(run_of(tokenizer, **{"placement": "post_ln"} | changes), tmp_path / "out")


@pytest.mark.parametrize(("broken", "complaint"), [
    ({"model_type": "t5"}, "of the type 't5': what can be imported is bert, roberta-prelayernorm, gpt2, opt, llama"),
    ({"hidden_act": "gelu_fast"}, "hidden_act='gelu_fast' has no counterpart here"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
    ({"num_hidden_layers": 3}, "the weights have no bert.encoder.layer.2"),
    ({"intermediate_size": 64}, r"intermediate.dense.weight is \(32, 16\), and config.json makes it \(64, 16\)"),
    ({"position_embedding_type": "relative_key"}, "only encoders with absolute positions"),
    ({"max_position_embeddings": "512"}, "max_position_embeddings must be a whole number, not '512'"),
    ({"hidden_size": "wide"}, "model.dim"),
    ({"hidden_size": None}, "model.dim"),
    ({"num_attention_heads": 0}, "model.heads"),
    ({"type_vocab_size": [2]}, "model.segments"),
    ({"hidden_dropout_prob": {}}, "model.dropout"),
    ({"layer_norm_eps": "nan"}, "model.norm_eps"),
    ({"max_position_embeddings": -3}, "model.max_length"),
    ({"model_type": {"bert": 1}}, "of the type {'bert': 1}"),
])  # fmt: skip
def test_a_folder_that_cannot_be_imported_says_why(broken: dict, complaint: str, tmp_path: Path) -> None:
    folder_of("BertForMaskedLM", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | broken))
    with pytest.raises(UserError, match=complaint):
        huggingface.load(tmp_path / "theirs", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("file", "text", "complaint"), [
    ("config.json", None, "config.json does not exist"),
    ("config.json", "[", "config.json is not JSON"),
    ("model.safetensors", None, "model.safetensors does not exist: save the model"),
    ("model.safetensors", "xx", "is damaged"),
    ("vocab.txt", None, "neither tokenizer.json nor vocab.txt"),
    ("vocab.txt", "[PAD]\n[UNK]\na\n", r"has no \[CLS\], \[SEP\], \[MASK\]"),
    ("vocab.txt", "\udcff\udcfe", "vocab.txt is not a vocabulary"),
    ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
    ("tokenizer.json", "[" * 10_000, "tokenizer.json is not a tokenizer"),
    ("tokenizer_config.json", "[1]", "tokenizer_config.json is not a JSON object"),
    ("tokenizer_config.json", '{"do_lower_case": "yes"}', "tokenizer_config.json is not what transformers writes"),
    ("tokenizer_config.json", '{"strip_accents": []}', "tokenizer_config.json is not what transformers writes"),
])  # fmt: skip
def test_a_damaged_folder_says_which_file(file: str, text: str | None, complaint: str, tmp_path: Path) -> None:
    folder_of("BertModel", tmp_path / "theirs")
    path = tmp_path / "theirs" / file
    path.unlink() if text is None else path.write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=complaint):
        huggingface.load(tmp_path / "theirs", tmp_path / "run")


def test_the_command_line_there_and_back(leadline: Callable[..., Any], tmp_path: Path) -> None:
    folder_of("BertModel", tmp_path / "theirs")
    there = leadline("import", tmp_path / "theirs", tmp_path / "run")
    assert (there.code, there.out.splitlines()[0]) == (0, f"{tmp_path}/run: a run of BertModel")
    assert there.err == ""
    back = leadline("export", tmp_path / "run", tmp_path / "back")
    assert (back.code, back.out) == (0, f"{tmp_path}/back: checkpoint 00000000 of {tmp_path}/run as BertModel\n")
    assert leadline("export", tmp_path / "run", tmp_path / "back").err.endswith("is not empty: choose another folder\n")
    assert leadline("import", tmp_path / "theirs", tmp_path / "run").code == 2
    evaluated = leadline("evaluate", tmp_path / "run")
    assert (evaluated.code, "was imported from" in evaluated.err) == (2, True)
    (tmp_path / "text").write_text("\n\n".join(f"{word} here." for word in "abcdefgh"))
    evaluated = leadline(
        "evaluate", tmp_path / "run", "--split", "valid", "--set", f"data.source=documents:{tmp_path / 'text'}"
    )
    assert evaluated.code == 0, evaluated.err
    assert "nll" in evaluated.out


def test_an_imported_run_is_fine_tuned_and_exported_with_its_labels(
    leadline: Callable[..., Any], tmp_path: Path
) -> None:
    from leadline.jobs import finetune
    from leadline.training.loop import train

    folder_of("BertForPreTraining", tmp_path / "theirs")
    assert leadline("import", tmp_path / "theirs", tmp_path / "run").code == 0
    rows = "label,text\n" + "bad,abc dab\ngood,fee gab\n" * 20
    for split in ("train", "valid"):
        (tmp_path / f"{split}.csv").write_text(rows)
    base = finetune.configure(tmp_path / "run", str(tmp_path), "", ["data.first=text", "data.second="], "best")
    run = train(base.set(train={"epochs": 1, "batch_sequences": 8}), tmp_path / "tuned")
    assert leadline("export", run, tmp_path / "back").out.endswith("as BertForSequenceClassification\n")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")(["abc dab", "fee gab"], return_tensors="pt")
    with torch.no_grad():
        expected = nn.functional.cross_entropy(theirs(**batch).logits, torch.tensor([0, 1]))
    assert load(run, device="cpu").evaluate("valid")["nll"] == pytest.approx(float(expected), abs=1e-5)


def test_an_imported_run_is_inspected_and_evaluated_on_data_given_to_it(
    leadline: Callable[..., Any], tmp_path: Path
) -> None:
    folder_of("BertForMaskedLM", tmp_path / "theirs")
    run = tmp_path / "run"
    assert leadline("import", tmp_path / "theirs", run).code == 0
    for command in ("evaluate", "inspect"):
        answer = leadline(command, run)
        assert (answer.code, answer.out) == (2, "")
        line = answer.err.splitlines()[-1]
        assert line.startswith(f"leadline: this run was imported from {tmp_path}/theirs and has no data: give it some")
        assert "--set data.source=documents:PATH" in line
    (tmp_path / "text.txt").write_text(
        "\n\n".join(" ".join("abcdefg"[i % 7] * (1 + i % 3) for i in range(n)) for n in range(20, 80))
    )
    given = ["--set", f"data.source=documents:{tmp_path}/text.txt", "--set", "data.valid_every=5", "--json"]
    evaluated = leadline("evaluate", run, *given)
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["checkpoint"] == "00000000"
    inspected = leadline("inspect", run, *given)
    assert inspected.code == 0, inspected.err
    found = json.loads(inspected.out)
    assert found["facts"]["start"] == "trained"
    assert "weights already trained" in found["verdict"]["outside"]
    other = leadline("evaluate", run, *given, "--set", "data.vocabulary=")
    assert other.code == 2
    assert "another vocabulary" in other.err or "data.vocab_size" in other.err
    refused = leadline("evaluate", run, "--set", "train.seed=3")
    assert "can only change decode.* and data.* keys" in refused.err
