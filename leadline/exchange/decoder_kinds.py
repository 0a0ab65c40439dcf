"""Five decoders of Hugging Face's: what their modules and options are called, and what they always are.

GPT-2    Pre-LN                                        learned positions, GELU
OPT      Pre-LN or Post-LN                             learned positions from row 2 on, ReLU
Llama    Pre-LN, RMSNorm                               rotary positions, SwiGLU, grouped keys
Qwen3    the same, with a norm of each head's q and k
OLMo 2   x + LN(f(x)), RMSNorm, a norm of q and k      as Llama
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from leadline.errors import UserError
from leadline.files import Facts


class Kind(NamedTuple):
    """One of their architectures. Names are those of its modules."""

    architecture: str
    body: str
    layers: str
    tokens: str
    places: str  # "": rotary
    first: int  # the row of the first position
    qkv: tuple[str, ...]
    out: str
    qk_norm: str  # {}: q or k; "": none
    attention_norm: str
    expand: tuple[str, ...]
    contract: str
    ffn_norm: str
    final: str
    keys: dict[str, tuple[str, Any]]  # theirs, ours, and what theirs is where config.json does not say
    must: Facts  # what only has a counterpart here at this value
    fixed: Facts  # ours
    names: dict[str, str]  # of theirs that are other names of theirs
    transposed: bool = False  # matrices are [inputs, outputs]


_MODERN_KEYS: dict[str, tuple[str, Any]] = {
    "hidden_size": ("dim", 4096),
    "num_hidden_layers": ("decoder_layers", 32),
    "num_attention_heads": ("heads", 32),
    "intermediate_size": ("ffn_dim", 11008),
    "max_position_embeddings": ("max_length", 2048),
    "rms_norm_eps": ("norm_eps", 1e-6),
    "attention_dropout": ("attention_dropout", 0.0),
}
_MODERN = {"norm": "rms_norm", "positions": "rotary", "activation": "swiglu", "dropout": 0.0}
LLAMA = Kind(
    architecture="LlamaForCausalLM", body="model", layers="layers", tokens="embed_tokens", places="", first=0,
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.o_proj", qk_norm="",
    attention_norm="input_layernorm", expand=("mlp.gate_proj", "mlp.up_proj"), contract="mlp.down_proj",
    ffn_norm="post_attention_layernorm", final="norm", keys=_MODERN_KEYS, must={"hidden_act": "silu"},
    fixed=_MODERN | {"placement": "pre_ln", "qk_norm": "none"}, names={},
)  # fmt: skip
QWEN3 = LLAMA._replace(
    architecture="Qwen3ForCausalLM",
    qk_norm="self_attn.{}_norm",
    keys=_MODERN_KEYS | {"intermediate_size": ("ffn_dim", 22016), "max_position_embeddings": ("max_length", 32768)},
    must={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
    fixed=_MODERN | {"placement": "pre_ln", "qk_norm": "head", "bias": False},
)
OLMO2 = LLAMA._replace(
    architecture="Olmo2ForCausalLM",
    qk_norm="self_attn.{}_norm",
    attention_norm="post_attention_layernorm",
    ffn_norm="post_feedforward_layernorm",
    keys=_MODERN_KEYS | {"rms_norm_eps": ("norm_eps", 1e-5)},
    must={"hidden_act": "silu", "attention_bias": False},
    fixed=_MODERN | {"placement": "res_post_ln", "qk_norm": "width", "bias": False},
)
OPT = Kind(
    architecture="OPTForCausalLM", body="model.decoder", layers="layers", tokens="embed_tokens",
    places="embed_positions", first=2,
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.out_proj", qk_norm="",
    attention_norm="self_attn_layer_norm", expand=("fc1",), contract="fc2", ffn_norm="final_layer_norm",
    final="final_layer_norm",
    keys={
        "hidden_size": ("dim", 768), "num_hidden_layers": ("decoder_layers", 12), "num_attention_heads": ("heads", 12),
        "ffn_dim": ("ffn_dim", 3072), "max_position_embeddings": ("max_length", 2048), "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0), "activation_function": ("activation", "relu"),
    },
    must={"enable_bias": True, "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    fixed={"positions": "learned", "norm_eps": 1e-5}, names={},
)  # fmt: skip
GPT2 = Kind(
    architecture="GPT2LMHeadModel", body="transformer", layers="h", tokens="wte", places="wpe", first=0,
    qkv=("attn.c_attn",), out="attn.c_proj", qk_norm="", attention_norm="ln_1", expand=("mlp.c_fc",),
    contract="mlp.c_proj", ffn_norm="ln_2", final="ln_f",
    keys={
        "n_embd": ("dim", 768), "n_layer": ("decoder_layers", 12), "n_head": ("heads", 12),
        "n_positions": ("max_length", 1024), "resid_pdrop": ("dropout", 0.1), "attn_pdrop": ("attention_dropout", 0.1),
        "layer_norm_epsilon": ("norm_eps", 1e-5), "activation_function": ("activation", "gelu_new"),
    },
    must={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    fixed={"positions": "learned", "placement": "pre_ln"}, transposed=True,
    names={
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
)  # fmt: skip
KINDS = {"gpt2": GPT2, "opt": OPT, "llama": LLAMA, "qwen3": QWEN3, "olmo2": OLMO2}
ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}  # ours and theirs
THEIR_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu", "swish": "silu"} | {
    theirs: ours for ours, theirs in ACTIVATIONS.items()
}


def activation(theirs: Any, key: str, folder: Path) -> str:
    """Ours of that name."""
    if not isinstance(theirs, str) or theirs not in THEIR_ACTIVATIONS:
        raise UserError(f"{folder}/config.json: {key}={theirs!r} has no counterpart here")
    return THEIR_ACTIVATIONS[theirs]
