"""Language models in and out of transformers: the same logits on both sides, and a sentence where there is none."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline.config import Config, DataConfig
from leadline.data.tokenizer import Tokenizer, learn
from leadline.errors import UserError
from leadline.exchange import decoders, huggingface
from leadline.exchange.export import export
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.placement import PLACEMENTS
from leadline.training.trained import Trained, load

transformers = pytest.importorskip("transformers")

TOKENS = [np.array([5, 90, 33, 7, 120, 2, 64]), np.array([8, 8, 41])]
SIZES = {"encoder_layers": 0, "decoder_layers": 3, "dim": 16, "ffn_dim": 24, "heads": 4, "max_length": 12}
MODERN = {"norm": "rms_norm", "positions": "rotary", "activation": "swiglu", "bias": False, "rotary_theta": 500.0}
LEARNED = {"positions": "learned"}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", LEARNED | {"activation": "gelu_tanh", "norm_eps": 1e-4}),
    "gpt2, as the recipe": ("GPT2LMHeadModel", LEARNED | {"activation": "gelu_tanh", "embed_scale": False}),
    "gpt2, sinusoids and an untied output": ("GPT2LMHeadModel", {"activation": "gelu", "embeddings": "separate"}),
    "opt": ("OPTForCausalLM", LEARNED),
    "opt, Post-LN": ("OPTForCausalLM", LEARNED | {"placement": "post_ln"}),
    "opt, DeepNorm": ("OPTForCausalLM", {"placement": "deepnorm", "activation": "gelu"}),
    "opt, Admin": ("OPTForCausalLM", LEARNED | {"placement": "admin", "embed_scale": False}),
    "llama": ("LlamaForCausalLM", MODERN | {"kv_heads": 2, "embeddings": "separate"}),
    "llama, with biases and wide heads": ("LlamaForCausalLM", MODERN | {"bias": True, "head_dim": 6}),
    "qwen3": ("Qwen3ForCausalLM", MODERN | {"qk_norm": "head", "kv_heads": 1, "head_dim": 6}),
    "olmo2": ("Olmo2ForCausalLM", MODERN | {"qk_norm": "width", "placement": "res_post_ln", "kv_heads": 2}),
}


def scatter(model: nn.Module) -> None:
    """Weights far from any initialisation, so that nothing is 0, 1 or symmetric by chance."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size, centre = (parameter.shape[-1] ** -0.5, 0.0) if parameter.dim() > 1 else (0.3, 0.7)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size + centre)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = DataConfig(source_lang="en", target_lang="en", tokenizer="byte_bpe", vocab_size=262)
    return Tokenizer(learn(["the lead line sounds the depth of the sea\n"] * 9, config, documents=True), config)


def run_of(tokenizer: Tokenizer, **changes: Any) -> Trained:
    config = Config(task="causal_lm").set(model=SIZES | changes)
    model = Transformer(tokenizer.vocab_size, **SIZES | changes)
    scatter(model)
    return Trained(config, model.eval(), tokenizer, "last")


@torch.no_grad()
def ours(model: Transformer) -> list[Tensor]:
    logits = model.logits(model(pack_one(TOKENS)))
    return list(logits.split([len(tokens) for tokens in TOKENS]))


@torch.no_grad()
def theirs(model: Any) -> list[Tensor]:
    return [model(torch.from_numpy(tokens)[None]).logits[0] for tokens in TOKENS]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert other.std() > 0.1
        assert (one - other).abs().max() <= 1e-5 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("name", OURS)
def test_an_exported_language_model_gives_the_same_logits_and_comes_back(
    name: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    architecture, options = OURS[name]
    trained = run_of(tokenizer, **options)
    before = {name: p.clone() for name, p in trained.model.named_parameters()}
    huggingface.save(trained, tmp_path / "folder")
    assert all(torch.equal(before[name], p) for name, p in trained.model.named_parameters())
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32).eval()
    assert type(model).__name__ == architecture
    assert_same(theirs(model), ours(trained.model))
    text = "the lead line, 测深 \n"
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert there(text)["input_ids"] == tokenizer.encode([text], "en")[0]
    assert huggingface.load(tmp_path / "folder", tmp_path / "run") == []
    back = load(tmp_path / "run", "last", "cpu")
    assert_same(ours(back.model), ours(trained.model))
    if options.get("placement", "pre_ln") in ("pre_ln", "post_ln", "res_post_ln"):  # else a factor is in the weights
        scaled = ("target_embed.tokens", "decoder.final", "ffn_residual.norm", "positions")  # by √D and its inverse
        scaled = scaled if trained.model.config.embed_scale else ()
        kept = {name: p for name, p in back.model.named_parameters() if not any(part in name for part in scaled)}
        assert len(kept) >= 12
        assert all(torch.equal(before[name], p) for name, p in kept.items())
    huggingface.save(back, tmp_path / "again")
    files = [load_file(tmp_path / folder / "model.safetensors") for folder in ("folder", "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])


SMALL = {"vocab_size": 270, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "max_position_embeddings": 12}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"vocab_size": 270, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}),
    "opt": ("OPT", SMALL | {"ffn_dim": 24, "max_position_embeddings": 12, "word_embed_proj_dim": 16}),
    "opt, Post-LN": ("OPT", SMALL | {"ffn_dim": 24, "max_position_embeddings": 12, "word_embed_proj_dim": 16,
                                     "do_layer_norm_before": False, "activation_function": "gelu"}),
    "llama": ("Llama", SMALL | ROPE | {"intermediate_size": 24, "num_key_value_heads": 2}),
    "llama, tied": ("Llama", SMALL | ROPE | {"intermediate_size": 24, "tie_word_embeddings": True, "head_dim": 8,
                                             "attention_bias": True, "mlp_bias": True}),
    "qwen3": ("Qwen3", SMALL | ROPE | {"intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 6}),
    "olmo2": ("Olmo2", SMALL | ROPE | {"intermediate_size": 24, "num_key_value_heads": 2, "pad_token_id": 1}),
}  # fmt: skip


def folder_of(name: str, tokenizer: Tokenizer, out: Path) -> Any:
    prefix, options = THEIRS[name]
    config = getattr(transformers, f"{prefix}Config")(**options)
    model = getattr(transformers, f"{prefix}LMHeadModel" if prefix == "GPT2" else f"{prefix}ForCausalLM")(config).eval()
    scatter(model)
    model.save_pretrained(out)
    tokenizer.bpe.save(str(out / "tokenizer.json"))
    return model


@pytest.mark.parametrize("name", THEIRS)
def test_an_imported_language_model_gives_the_same_logits(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = folder_of(name, tokenizer, tmp_path / "folder")
    notes = huggingface.load(tmp_path / "folder", tmp_path / "run")
    assert notes == ["8 rows of the vocabulary have no token and are left out"]
    found = load(tmp_path / "run", "last", "cpu").model
    assert_same(ours(found), [logits[:, :262] for logits in theirs(model)])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"num_attention_heads": 2}),
        ("gpt2", {"n_head": None, "num_attention_heads": 4, "activation_function": "swish"}),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 9.0}, "rope_scaling": {"rope_type": "default", "rope_theta": 70.0}},
        ),
    ],
)
def test_of_two_keys_for_one_thing_the_one_is_read_that_transformers_reads(
    name: str, changes: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder_of(name, tokenizer, tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in described.items() if value is not None}))
    huggingface.load(tmp_path / "folder", tmp_path / "run")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32).eval()
    assert_same(ours(load(tmp_path / "run", "last", "cpu").model), [logits[:, :262] for logits in theirs(model)])


def test_one_imported_is_trained_as_theirs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Gradients: of a Llama whose output is its embedding."""
    model = folder_of("llama, tied", tokenizer, tmp_path / "folder")
    huggingface.load(tmp_path / "folder", tmp_path / "run")
    found = load(tmp_path / "run", "last", "cpu").model
    tokens = torch.from_numpy(TOKENS[0])
    model(tokens[None]).logits[0, :, 3].sum().backward()
    found.logits(found(pack_one(TOKENS[:1])))[:, 3].sum().backward()
    for module, names in decoders.modules(found, decoders.LLAMA):
        for key, parameter in module.named_parameters():
            gradients = [dict(model.named_parameters())[f"{name}.{key}"].grad for name in names]
            torch.testing.assert_close(parameter.grad, torch.cat(gradients)[: len(parameter)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if "decoder-only" in PLACEMENTS[name].architectures])
def test_a_placement_is_exported_exactly_or_refused(placement: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    known = {"post_ln", "pre_ln", "deepnorm", "post_ln_init", "ds_init", "admin", "admin_constant"}
    if placement in known:
        assert decoders.kind_of(run_of(tokenizer, placement=placement, **LEARNED).model.config) is decoders.OPT
    elif placement != "res_post_ln":
        with pytest.raises(UserError, match="has no counterpart in transformers: what can be exported is pre_ln"):
            huggingface.save(run_of(tokenizer, placement=placement, **LEARNED), tmp_path / "folder")
        assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"placement": "deepnorm", "norm": "rms_norm"}, "no format for this model: OPT needs model.norm=layer_norm$"),
        ({"placement": "deepnorm", "norm": "dyt"}, "OPT needs model.norm=layer_norm$"),
        ({"placement": "deepnorm", "positions": "rotary"}, "OPT needs model.positions=sinusoidal or learned$"),
        ({"placement": "deepnorm", "activation": "swiglu"}, "OPT needs model.activation=relu or gelu .*$"),
        ({"placement": "deepnorm", "bias": False}, "OPT needs model.bias=true$"),
        ({"placement": "post_ln", "norm_eps": 1e-6}, "OPT needs model.norm_eps=1e-5$"),
        ({"activation": "gelu", "kv_heads": 2}, "GPT-2 needs model.kv_heads=0 and .*; OPT needs model.kv_heads=0"),
        (MODERN | {"qk_norm": "width"}, "Qwen3 needs model.qk_norm=head; Llama needs model.qk_norm=none$"),
        (MODERN | {"qk_norm": "head", "bias": True}, "Qwen3 needs model.bias=false; Llama needs model.qk_norm=none$"),
        (MODERN | {"placement": "res_post_ln"}, "OLMo 2 needs model.qk_norm=width$"),
        (MODERN | {"embed_norm": True}, "Llama needs model.embed_norm=false$"),
    ],
)  # fmt: skip
def test_what_theirs_is_not_is_refused(options: dict, needs: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=needs):
        huggingface.save(run_of(tokenizer, **options), tmp_path / "folder")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rotary positions that are scaled"),
        ("llama", {"partial_rotary_factor": 0.5, "rope_parameters": None}, "rotary positions that are scaled"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "are scaled .*, and rope_scaling is {'type': 'l",
        ),
        (
            "llama",
            {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            "are scaled .*, and rope_parameters",
        ),
        ("llama", {"rope_parameters": "linear"}, "rope_parameters must be an object, not 'linear'"),
        ("llama", {"is_causal": False}, "is_causal=False has no counterpart here, only True"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
        ("llama", {"tie_word_embeddings": True}, r"ties model.embed_tokens.weight and lm_head.weight, which differ in"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has no counterpart here"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' has no counterpart here, only 'silu'"),
        ("llama", {"attention_bias": True}, "mlp_bias=False has no counterpart here, only True"),
        ("llama", {"intermediate_size": 32}, r"gate_proj.weight is \(24, 16\), and config.json makes it \(32, 16\)"),
        ("llama", {"hidden_size": 24}, r"embed_tokens.weight is \(262, 16\), and config.json makes it \(262, 24\)"),
        ("llama", {"num_hidden_layers": 3}, "the weights have no model.layers.2.self_attn.q_proj.weight"),
        ("llama", {"num_attention_heads": [4]}, r"num_attention_heads must be a whole number, not \[4\]"),
        ("llama", {"head_dim": "8"}, "head_dim must be a whole number, not '8'"),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, "rotary_theta"),
        ("gpt2", {"activation_function": ["relu"]}, r"activation_function=\['relu'\] has no counterpart here"),
        ("opt", {"word_embed_proj_dim": 8}, "word_embed_proj_dim=8 has no counterpart here, only 16"),
        ("gpt2", {"activation_function": "quick_gelu"}, "activation_function='quick_gelu' has no counterpart here"),
    ],
)
def test_a_folder_that_disagrees_is_refused_in_one_sentence(
    name: str, change: dict, complaint: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder_of(name, tokenizer, tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=complaint):
        huggingface.load(tmp_path / "folder", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_says_what_comes_next(
    leadline: Callable[..., Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder_of("gpt2", tokenizer, tmp_path / "folder")
    answer = leadline("import", str(tmp_path / "folder"), str(tmp_path / "run"))
    assert answer.code == 0
    assert "a run of GPT2LMHeadModel" in answer.out
    assert "next: leadline generate" in answer.out
    answer = leadline("export", str(tmp_path / "run"), str(tmp_path / "back"), "--checkpoint", "last")
    assert answer.code == 0, answer.err
    assert "as GPT2LMHeadModel" in answer.out


def test_a_vocabulary_that_does_not_fit_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder_of("opt", tokenizer, tmp_path / "folder")
    file = tmp_path / "folder" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.decoder.embed_tokens.weight"][:200].clone()
    save_file({name: x for name, x in tensors.items() if name != "lm_head.weight"}, file)
    with pytest.raises(UserError, match="has 262 tokens, and its model only 200"):
        huggingface.load(tmp_path / "folder", tmp_path / "run")
    (tmp_path / "folder" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer.json"):
        huggingface.load(tmp_path / "folder", tmp_path / "other")


@pytest.mark.parametrize("name", ["tokenizer.json", "state.json", "config.toml"])
def test_an_import_that_cannot_be_written_leaves_nothing_in_its_own_way(
    name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return replaced(self, target)

    replaced = Path.replace
    folder_of("llama, tied", tokenizer, tmp_path / "theirs")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(UserError, match=r"the run cannot be written to .*: the disk is full$"):
            huggingface.load(tmp_path / "theirs", tmp_path / "run")
    huggingface.load(tmp_path / "theirs", tmp_path / "run")
    assert load(tmp_path / "run").checkpoint == "00000000"
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().partition("[optim]")[0])  # torn: the rest would be the defaults
    with pytest.raises(UserError, match="is not what the last checkpoint was trained with"):
        load(tmp_path / "run")


def test_the_card_of_a_language_model_has_lines_that_run(
    small_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = load(small_lm, "last", "cpu")
    notes = export(small_lm, trained, tmp_path)[1]
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert "Once upon" in capsys.readouterr().out
    assert notes[0] in card
    assert "- train: " not in card.partition("## Data")[0]
    facts = [row for row in (small_lm / "metrics.jsonl").read_text().splitlines() if "valid_nll" in row]
    assert f"- nll: {json.loads(facts[-1])['valid_nll']:.4g}" in card
    assert str(small_lm.parent) not in card  # where things lie is nobody's business
