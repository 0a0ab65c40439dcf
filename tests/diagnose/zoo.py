"""Models of five libraries and architectures written here, each with the stacks that are to be found (`ZOO`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from handwritten import DIM, IDS, Attention, Built, FeedForward, Stack, found_in
from torch import Tensor, nn

from leadline.diagnose.connection import Connection
from leadline.diagnose.faults import Finding
from leadline.diagnose.theory import deepnet_constants
from leadline.kernels.pack import pack_one
from leadline.model import Transformer

PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Entry:
    build: Callable[[], Built]
    stacks: list[Stack]
    faults: frozenset[str] = frozenset()  # what is really wrong with it


ZOO: dict[str, Entry] = {}


def enter(name: str, build: Callable[[], Built], *stacks: Stack, faults: Sequence[str] = ()) -> None:
    ZOO[name] = Entry(build, list(stacks), frozenset(faults))


def pre(layout: str, name: str, final: int = 1) -> Stack:
    return Stack(layout, "Pre-LN", final, name)


def post(layout: str, name: str, final: int = 0) -> Stack:
    return Stack(layout, "Post-LN", final, name)


def ident(name: str) -> str:
    return name.replace(" ", "-")


@functools.cache
def of_zoo(name: str) -> tuple[list[Connection], list[Finding]]:
    torch.manual_seed(0)
    return found_in(*ZOO[name].build())


# --- Models of five libraries -----------------------------------------------------------------------------------------

# torch.nn


def torch_nn(kind: str, norm_first: bool, final: bool, batch_first: bool = True) -> Built:
    x = torch.randn(2, 7, DIM)
    memory = torch.randn(2, 5, DIM) if batch_first else torch.randn(4, 7, DIM)
    options: dict[str, Any] = {"norm_first": norm_first, "batch_first": batch_first}
    norm = nn.LayerNorm(DIM) if final else None
    if kind == "encoder":
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 64, **options), 3, norm)
        return encoder, lambda: encoder(x)
    if kind == "decoder":
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(DIM, 4, 64, **options), 2, norm)
        return decoder, lambda: decoder(x, memory)
    both = nn.Transformer(DIM, 4, 3, 2, 64, **options)
    return both, lambda: both(memory, x)


for _first, _stack in ((False, post), (True, pre)):
    _order = "pre" if _first else "post"
    enter(
        f"torch.nn encoder {_order}", functools.partial(torch_nn, "encoder", _first, _first), _stack("AFAFAF", "layers")
    )
    enter(
        f"torch.nn decoder {_order}", functools.partial(torch_nn, "decoder", _first, _first), _stack("ACFACF", "layers")
    )
    enter(
        f"torch.nn decoder {_order}, time first",
        functools.partial(torch_nn, "decoder", _first, _first, False),
        _stack("ACFACF", "layers"),
    )
    enter(  # it adds a final norm to each stack whatever the order
        f"torch.nn.Transformer {_order}",
        functools.partial(torch_nn, "both", _first, True),
        _stack("AFAFAF", "encoder.layers", 1),
        _stack("ACFACF", "decoder.layers", 1),
    )


# leadline


def own(placement: str, encoder: int, decoder: int) -> Built:
    small: dict[str, int] = {"dim": DIM, "ffn_dim": 64, "heads": 2, "max_length": 32}
    model = Transformer(50, placement=placement, encoder_layers=encoder, decoder_layers=decoder, **small)
    model.use_attention("padded")
    pack = pack_one([np.arange(5, 15), np.arange(4, 11)], 0)
    packs = (pack if encoder else None, pack if decoder else None)
    return model, lambda: model.logits(model(*packs))


for _placement, _name in (("post_ln", "Post-LN"), ("pre_ln", "Pre-LN"), ("deepnorm", "DeepNorm")):
    for _n, _m in ((3, 0), (0, 3), (3, 2)):
        _alphas = deepnet_constants(_n, _m) if _placement == "deepnorm" else {}
        enter(
            f"leadline {_placement} {_n}-{_m}",
            functools.partial(own, _placement, _n, _m),
            *(
                Stack(
                    ("ACF" if _n and side == "decoder" else "AF") * layers,
                    _name,
                    int(_placement == "pre_ln"),
                    f"{side}.blocks",
                    round(_alphas.get(f"{side}_alpha", 1.0), 3),
                )
                for side, layers in (("encoder", _n), ("decoder", _m))
                if layers
            ),
        )


# Hugging Face

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
    "pad_token_id": 0, "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": 60, "d_model": 32, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64,
    "decoder_start_token_id": 0,
}  # fmt: skip
OPT = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
    "word_embed_proj_dim": 32, "max_position_embeddings": 40,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip


def face(model: str, config: str, options: dict[str, Any], **run: Any) -> Built:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    if "pixel_values" in run:
        return built, lambda: built(**run)
    return built, lambda: built(IDS, **run)


def hugging(name: str, model: str, config: str, options: dict[str, Any], *stacks: Stack, **run: Any) -> None:
    enter(f"transformers {name}", functools.partial(face, model, config, options, **run), *stacks)


GPT2 = {
    "vocab_size": 60,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
labels: dict[str, Any] = {"labels": IDS}
hugging("BERT", "BertForMaskedLM", "BertConfig", SMALL, post("AFAF", "bert.encoder.layer"), **labels)
hugging("BERT bare", "BertModel", "BertConfig", SMALL, post("AFAF", "encoder.layer"))
hugging(
    "RoBERTa",
    "RobertaForMaskedLM",
    "RobertaConfig",
    {**SMALL, "max_position_embeddings": 40},
    post("AFAF", "roberta.encoder.layer"),
)
hugging(
    "ALBERT",
    "AlbertModel",
    "AlbertConfig",
    {**SMALL, "embedding_size": 16},
    post("AFAF", "encoder.albert_layer_groups.0.albert_layers.0"),
)
hugging(
    "DeBERTa",
    "DebertaV2Model",
    "DebertaV2Config",
    {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    post("AFAF", "encoder.layer"),
)
hugging("GPT-2", "GPT2LMHeadModel", "GPT2Config", GPT2, pre("AFAF", "transformer.h"), **labels)
hugging("GPT-2 bare", "GPT2Model", "GPT2Config", GPT2, pre("AFAF", "h"))
hugging(
    "Marian",
    "MarianMTModel",
    "MarianConfig",
    BART,
    post("AFAFAF", "model.encoder.layers"),
    post("ACFACF", "model.decoder.layers"),
    **labels,
)
hugging(
    "BART",
    "BartForConditionalGeneration",
    "BartConfig",
    BART,
    post("AFAFAF", "model.encoder.layers"),
    post("ACFACF", "model.decoder.layers"),
    **labels,
)
hugging(
    "mBART",
    "MBartForConditionalGeneration",
    "MBartConfig",
    BART,
    pre("AFAFAF", "model.encoder.layers"),
    pre("ACFACF", "model.decoder.layers"),
    **labels,
)
hugging(
    "T5",
    "T5ForConditionalGeneration",
    "T5Config",
    T5,
    pre("AFAFAF", "encoder.block"),
    pre("ACFACF", "decoder.block"),
    **labels,
)
hugging(
    "T5 v1.1",
    "T5ForConditionalGeneration",
    "T5Config",
    {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    pre("AFAFAF", "encoder.block"),
    pre("ACFACF", "decoder.block"),
    **labels,
)
hugging("Llama", "LlamaForCausalLM", "LlamaConfig", LLAMA, pre("AFAF", "model.layers"), **labels)
hugging("Mistral", "MistralForCausalLM", "MistralConfig", LLAMA, pre("AFAF", "model.layers"))
hugging("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", LLAMA, pre("AFAF", "model.layers"))
hugging("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 8}, pre("AFAF", "model.layers"))
hugging(
    "Granite",
    "GraniteForCausalLM",
    "GraniteConfig",
    {**LLAMA, "residual_multiplier": 0.25},
    replace(pre("AFAF", "model.layers"), branch=0.25),
)
hugging(
    "Gemma2",
    "Gemma2ForCausalLM",
    "Gemma2Config",
    {**LLAMA, "head_dim": 8},
    Stack("AFAF", "Sandwich-LN", 1, "model.layers"),
)
hugging("OLMo2", "Olmo2ForCausalLM", "Olmo2Config", LLAMA, Stack("AFAF", "branch-norm", 1, "model.layers"))
hugging(
    "GPT-J",
    "GPTJForCausalLM",
    "GPTJConfig",
    {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    pre("AA", "transformer.h"),
)
hugging("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, pre("AA", "gpt_neox.layers"))
hugging(
    "GPT-NeoX in turn",
    "GPTNeoXForCausalLM",
    "GPTNeoXConfig",
    {**SMALL, "use_parallel_residual": False},
    pre("AFAF", "gpt_neox.layers"),
)
hugging("Cohere", "CohereForCausalLM", "CohereConfig", LLAMA, pre("AFAF", "model.layers"))
hugging("Falcon", "FalconForCausalLM", "FalconConfig", SMALL, pre("AA", "transformer.h"))
hugging("OPT", "OPTForCausalLM", "OPTConfig", OPT, pre("AFAF", "model.decoder.layers"))
hugging(
    "OPT post",
    "OPTForCausalLM",
    "OPTConfig",
    {**OPT, "do_layer_norm_before": False},
    post("AFAF", "model.decoder.layers"),
)
hugging(
    "Mixtral", "MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}, pre("AFAF", "model.layers")
)
hugging(
    "ModernBERT",
    "ModernBertModel",
    "ModernBertConfig",
    {**LLAMA, "cls_token_id": 1, "sep_token_id": 2},
    Stack("AFAF", "no norm/Pre-LN", 1, "layers"),
)
hugging("ViT", "ViTForImageClassification", "ViTConfig", VIT, pre("AFAF", "vit.layers"), pixel_values=PIXELS)
hugging(
    "BEiT",
    "BeitForImageClassification",
    "BeitConfig",
    {**VIT, "layer_scale_init_value": 0.1, "drop_path_rate": 0.0},
    replace(pre("AFAF", "beit.layers"), branch=0.1),
    pixel_values=PIXELS,
)
hugging(
    "Swin",
    "SwinModel",
    "SwinConfig",
    {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 2},
    pre("AFAF", "encoder.layers.0.blocks"),
    pre("AFAF", "encoder.layers.1.blocks"),
    pixel_values=PIXELS,
)


HEARD = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
SOUND = torch.randn(2, 4000, generator=torch.Generator().manual_seed(1))


def hearing(model: str, config: str, **options: Any) -> Built:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    built = getattr(transformers, model)(getattr(transformers, config)(**HEARD | options))
    return built, lambda: built(SOUND)


for _name, _options, _stack in (
    ("Wav2Vec2", {}, post("AFAF", "encoder.layers")),
    ("Hubert", {}, post("AFAF", "encoder.layers")),
    ("WavLM", {}, post("AFAF", "encoder.layers")),
    ("Wav2Vec2", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}, pre("AFAF", "encoder.layers")),
):
    enter(
        f"transformers {_name} {_stack.placement}",
        functools.partial(hearing, f"{_name}Model", f"{_name}Config", **_options),  # type: ignore[arg-type]
        _stack,
    )
enter(  # every layer of a Conformer ends in a norm
    "transformers Wav2Vec2 Conformer",
    functools.partial(hearing, "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig"),
    Stack("FAFFFAFF", "Pre-LN/Pre-LN and Post-LN", 2, "encoder.layers", branch=math.nan),
)
hugging(
    "FNet",
    "FNetModel",
    "FNetConfig",
    {**SMALL, "max_position_embeddings": 40, "tpu_short_seq_length": 7},
    post("AFAF", "encoder.layer"),
)
FUNNEL = {"vocab_size": 60, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}
hugging(
    "Funnel",
    "FunnelModel",
    "FunnelConfig",
    FUNNEL,
    post("AF", "encoder.blocks.0.0"),
    post("CF", "encoder.blocks.1.0"),
    post("AFAF", "decoder.layers"),
)
hugging("MPNet", "MPNetModel", "MPNetConfig", {**SMALL, "max_position_embeddings": 40}, post("AFAF", "encoder.layer"))
for _kind in ("local", "transient-global"):
    hugging(
        f"LongT5 {_kind}",
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        {**T5, "local_radius": 4, "encoder_attention_type": _kind, "global_block_size": 4},
        pre("AFAFAF", "encoder.block"),
        pre("ACFACF", "decoder.block"),
        **labels,
    )
STAGES = {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "image_size": 32, "patch_size": 4}
for _name, _placement, _scale in (("ConvNext", "ReZero", 0.0), ("ConvNextV2", "no norm", 1.0)):
    hugging(
        _name,
        f"{_name}Model",
        f"{_name}Config",
        STAGES,
        *(Stack("FF", _placement, 1, f"encoder.stages.{i}.layers", branch=_scale) for i in (0, 1)),
        pixel_values=PIXELS,
    )
hugging(
    "ResNet",
    "ResNetModel",
    "ResNetConfig",
    {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "basic"},
    *(Stack("F", "no norm", 0, f"encoder.stages.{i}.layers.{j}", closed=i == 0) for i, j in ((0, 0), (0, 1), (1, 1))),
    pixel_values=PIXELS,
)


# x-transformers, timm, torchscale


def lucid(decoder: bool = True, wide: bool = False, **options: Any) -> Built:
    x = pytest.importorskip("x_transformers")
    if wide:
        model = x.XTransformer(
            dim=DIM, enc_num_tokens=60, enc_depth=2, enc_heads=4, enc_max_seq_len=32, dec_num_tokens=60, dec_depth=2,
            dec_heads=4, dec_max_seq_len=32, **options,
        )  # fmt: skip
        return model, lambda: model(IDS, IDS)
    layers = (x.Decoder if decoder else x.Encoder)(dim=DIM, depth=2, heads=4, **options)
    model = x.TransformerWrapper(num_tokens=60, max_seq_len=32, attn_layers=layers)
    return model, lambda: model(IDS)


for _name, _options, _stack in (
    ("pre", {}, pre("AFAF", "attn_layers.layers")),
    ("encoder", {"decoder": False}, pre("AFAF", "attn_layers.layers")),
    ("post rms", {"pre_norm": False, "use_rmsnorm": True}, post("AFAF", "attn_layers.layers")),
    ("post", {"pre_norm": False}, post("AFAF", "attn_layers.layers")),
    ("scalenorm", {"use_scalenorm": True}, pre("AFAF", "attn_layers.layers")),
    ("simple rms", {"use_simple_rmsnorm": True}, pre("AFAF", "attn_layers.layers")),
    ("sandwich", {"sandwich_norm": True}, Stack("AFAF", "Sandwich-LN", 1, "attn_layers.layers")),
    ("learned residual", {"scale_residual": True}, pre("AFAF", "attn_layers.layers")),
    ("gated values", {"attn_gate_values": True, "ff_glu": True}, pre("AFAF", "attn_layers.layers")),
    ("query-key norm", {"attn_qk_norm": True}, pre("AFAF", "attn_layers.layers")),
    ("rotary", {"rotary_pos_emb": True}, pre("AFAF", "attn_layers.layers")),
    ("macaron", {"macaron": True}, Stack("FAFFAF", "Pre-LN", 1, "attn_layers.layers", branch=math.nan)),
):
    enter(f"x-transformers {_name}", functools.partial(lucid, **_options), _stack)  # type: ignore[arg-type]
enter(
    "x-transformers encoder-decoder",
    functools.partial(lucid, wide=True),
    pre("AFAF", "encoder.attn_layers.layers"),
    pre("ACFACF", "decoder.net.attn_layers.layers"),
)
enter("x-transformers gated residual", functools.partial(lucid, gate_residual=True))  # a GRU: nothing is added
enter(
    "x-transformers talking heads",
    functools.partial(lucid, attn_pre_talking_heads=True),
    pre("AFAF", "attn_layers.layers"),
)


def vision(block: str = "Block", **options: Any) -> Built:
    timm = pytest.importorskip("timm.models.vision_transformer")
    if not (block_fn := getattr(timm, block, None)):
        pytest.skip(f"this version of timm has no {block}")
    model = timm.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, num_heads=4, depth=2, block_fn=block_fn, **options
    )
    return model, lambda: model(PIXELS)


enter("timm ViT", vision, pre("AFAF", "blocks"))
enter("timm LayerScale", functools.partial(vision, init_values=0.5), replace(pre("AFAF", "blocks"), branch=0.5))
enter("timm ResPostBlock", functools.partial(vision, "ResPostBlock"), Stack("AFAF", "branch-norm", 1, "blocks"))
enter("timm ParallelBlock", functools.partial(vision, "ParallelBlock"), pre("AFAF", "blocks"))
enter("timm mean pooling", functools.partial(vision, global_pool="avg"), pre("AFAF", "blocks"))
enter("timm drop path", functools.partial(vision, drop_path_rate=0.3), pre("AFAF", "blocks"))


def cait() -> Built:
    timm = pytest.importorskip("timm.models.cait")
    model = timm.Cait(
        img_size=32, patch_size=8, embed_dim=48, num_heads=4, depth=2, depth_token_only=2, init_values=0.5
    )
    return model, lambda: model(PIXELS)


enter(  # the class token is a parameter and no stream until something is added to it
    "timm CaiT",
    cait,
    replace(pre("AFAF", "blocks", 3), branch=0.5),
    replace(pre("FAF", "blocks_token_only"), branch=0.5),
)


def scale(decoder: bool = False, **options: Any) -> Built:
    config = pytest.importorskip("torchscale.architecture.config")
    side = "decoder" if decoder else "encoder"
    options |= {
        f"{side}_embed_dim": DIM,
        f"{side}_attention_heads": 4,
        f"{side}_ffn_embed_dim": 64,
        f"{side}_layers": 2,
    }
    module = pytest.importorskip(f"torchscale.architecture.{side}")
    if decoder:
        model = module.Decoder(config.DecoderConfig(vocab_size=60, **options), embed_tokens=nn.Embedding(60, DIM))
    else:
        given = config.EncoderConfig(vocab_size=60, **options)
        model = module.Encoder(given, embed_tokens=nn.Embedding(60, DIM), is_encoder_decoder=False)
    return model, lambda: model(IDS)


ALPHA = round(4**0.25, 3)
for _side in (False, True):
    _name = "decoder" if _side else "encoder"
    enter(
        f"torchscale {_name} DeepNorm",
        functools.partial(scale, _side, deepnorm=True),
        Stack("AFAF", "DeepNorm", 0, "layers", ALPHA),
        faults=("beta_wrong", "beta_on_biases"),  # its matrices start from torch's own draw, and β also hits biases
    )
    enter(f"torchscale {_name}", functools.partial(scale, _side), Stack("AFAF", "Sub-LN", 1, "layers"))
    enter(f"torchscale {_name} Pre-LN", functools.partial(scale, _side, subln=False), pre("AFAF", "layers"))
enter(
    "torchscale encoder Post-LN",
    functools.partial(scale, subln=False, encoder_normalize_before=False),
    post("AFAF", "layers"),
)
enter("torchscale drop path", functools.partial(scale, drop_path_rate=0.3), Stack("AFAF", "Sub-LN", 1, "layers"))


# --- Architectures written here ---------------------------------------------------------------------------------------


class Arch(nn.Module):
    """Layers of an attention `a`, a feed-forward `f`, norms `n` and gains `g`, put together by a function."""

    def __init__(self, forward: Callable[[Arch, Tensor], Tensor], closes: bool = True, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.final, self.head = nn.Embedding(50, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, 50)
        self.a = nn.ModuleList(Attention() for _ in range(layers))
        self.f = nn.ModuleList(FeedForward("") for _ in range(layers))
        self.n = nn.ModuleList(nn.ModuleList(nn.LayerNorm(DIM) for _ in range(6)) for _ in range(layers))
        self.wide = nn.ModuleList(nn.LayerNorm(2 * DIM) for _ in range(layers))
        self.g = nn.ParameterList(nn.Parameter(torch.full((2, DIM), 0.5)) for _ in range(layers))
        self.down = nn.ModuleList(nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2)) for _ in range(layers))
        self.join = nn.ModuleList(nn.Linear(2 * DIM, DIM) for _ in range(layers))
        self.built, self.closes = forward, closes

    def forward(self, ids: Tensor) -> Tensor:
        x = self.built(self, self.embed(ids))
        return self.head(self.final(x) if self.closes else x)

    def each(self) -> Any:
        return zip(self.a, self.f, self.n, self.g, self.down, range(len(self.a)), strict=True)


def arch(forward: Callable[[Arch, Tensor], Tensor], closes: bool = True) -> Built:
    model = Arch(forward, closes)
    return model, lambda: model(IDS)


def written(layout: str, placement: str, final: int = 1, **more: Any) -> Any:
    def decorate(function: Callable[[Arch, Tensor], Tensor]) -> Callable[[Arch, Tensor], Tensor]:
        enter(
            function.__name__,
            lambda: arch(function, bool(final)),
            Stack(layout, placement, final, **{"name": "stack"} | more),
        )
        return function

    return decorate


@written("AFAF", "Admin", 0, alpha=0.5)
def admin(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, g, _, _ in m.each():
        x = n[0](x * g[0] + a(x))
        x = n[1](x * g[1] + f(x))
    return x


@written("AFAF", "ReZero", 0, branch=0.5, closed=False)
def rezero(m: Arch, x: Tensor) -> Tensor:
    for a, f, _, g, _, _ in m.each():
        x = x + g[0] * a(x)
        x = x + g[1] * f(x)
    return x


@written("AFAF", "Sandwich-LN/Sub-LN")
def normformer(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = x + n[1](a(n[0](x)))
        x = x + f.down(m.wide[i](F.relu(f.up(n[2](x)))))
    return x


@written("AFAF", "Pre-LN")
def parallel_branches(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x)) + f(n[1](x))
    return x


@written("AFAF", "Pre-LN")
def parallel_branches_one_norm_called_twice(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x)) + f(n[0](x))
    return x


@written("AFAF", "Post-LN", 0)
def parallel_branches_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x + a(x) + f(x))
    return x


@written("AA", "Pre-LN", name="f")
def parallel_branches_in_brackets(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = n[0](x)
        x = x + (a(y) + f(y))
    return x


@written("AFAF", "Pre-LN", name="down")
def adapters(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, down, _ in m.each():
        y = a(n[0](x))
        x = x + (y + down[0](y))
        y = f(n[1](x))
        x = x + (y + down[1](y))
    return x


@written("AFAF", "Pre-LN")
def low_rank_updates(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, down, _ in m.each():
        x = x + a(n[0](x))
        y = n[1](x)
        x = x + (f(y) + 0.5 * down[0](down[1](y)))
    return x


@written("AFAF", "Pre-LN")
def long_skip(m: Arch, x: Tensor) -> Tensor:
    first = x
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return x + first


@written("AFAF", "Pre-LN")
def embedding_added_again(m: Arch, x: Tensor) -> Tensor:
    first = x
    for a, f, n, _, _, _ in m.each():
        x = 0.5 * x + 0.5 * first
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return x


@written("AFAF", "Pre-LN")
def weighted_sum_of_layers(m: Arch, x: Tensor) -> Tensor:
    states = [x]
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x))
        states.append(x)
        x = sum(0.3 * s for s in states)  # type: ignore[assignment]
    return x


@written("AFAF", "Post-LN", 0)
def bottom_to_top(m: Arch, x: Tensor) -> Tensor:
    """Takase et al. 2023."""
    for a, f, n, _, _, _ in m.each():
        y = n[0](x + a(x))
        x = n[1](y + f(y) + x)
    return x


@written("AFAF", "Pre-LN/Post-LN", 0)
def attention_pre_feed_forward_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = n[1](x + f(x))
    return x


@written("AFAF", "Post-LN/Pre-LN")
def post_below_pre_above(m: Arch, x: Tensor) -> Tensor:
    """Mix-LN, Li et al. 2024."""
    for a, f, n, _, _, i in m.each():
        x = x + a(n[0](x)) if i else n[0](x + a(x))
        x = x + f(n[1](x)) if i else n[1](x + f(x))
    return x


@written("AFAF", "Pre-LN")
def embedding_scaled_and_normed(m: Arch, x: Tensor) -> Tensor:
    x = F.dropout(m.n[0][5](x * DIM**0.5 + torch.randn(x.shape[1], DIM)), 0.1)
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return x


@written("AFAF", "Post-LN", 0)
def skip_taken_behind_the_norm(m: Arch, x: Tensor) -> Tensor:
    """Meant as Pre-LN; it is Post-LN with a norm on the embedding."""
    for a, f, n, _, _, _ in m.each():
        x = n[0](x)
        x = x + a(x)
        x = n[1](x)
        x = x + f(x)
    return m.n[0][5](x)


@written("AFAF", "Pre-LN")
def modulated(m: Arch, x: Tensor) -> Tensor:
    """DiT: gain, shift and gate of every branch are made of a condition."""
    condition = m.embed(torch.tensor([[3], [4]]))
    for a, f, _, _, down, _ in m.each():
        gain, shift = down[0](F.silu(condition)), down[1](F.silu(condition))
        x = x + gain * a(F.layer_norm(x, (DIM,)) * (1 + gain) + shift)
        x = x + gain * f(F.layer_norm(x, (DIM,)) * (1 + shift) + gain)
    return x


@written("AFAF", "Pre-LN")
def padded_from_packed(m: Arch, x: Tensor) -> Tensor:
    """Attention on a buffer that the stream is written into."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    packed = x[mask]
    for a, f, n, _, _, _ in m.each():
        buffer = packed.new_zeros(*mask.shape, DIM)
        buffer[mask] = n[0](packed)
        packed = packed + a(buffer)[mask]
        packed = packed + f(n[1](packed))
    return packed


@written("AFAF", "Pre-LN")
def relative_keys(m: Arch, x: Tensor) -> Tensor:
    """Shaw et al. 2018: attention also multiplies by embeddings of the distance."""
    distance = m.embed(torch.arange(x.shape[1])[None] % 5)
    for a, f, n, _, _, _ in m.each():
        y = n[0](x)
        weights = ((a.q(y) @ a.k(y).mT) + a.q(y) @ distance.mT).softmax(-1)
        x = x + a.o(weights @ a.v(y))
        x = x + f(n[1](x))
    return x


# Additions that are not written x + y


@written("AFAF", "Post-LN", 0, branch=-1.0)
def subtracted(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x - a(x))
        x = n[1](torch.sub(x, f(x)))
    return x


@written("AFAF", "Pre-LN", 1, alpha=0.75, branch=0.25)
def interpolated(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = torch.lerp(x, a(n[0](x)), 0.25)
        x = x.lerp(f(n[1](x)), 0.25)
    return x


@written("AFAF", "Pre-LN")
def summed_from_a_stack(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = torch.stack([x, a(n[0](x))]).sum(0)
        x = torch.stack([f(n[1](x)), x], dim=-1).sum(-1)
    return x


@written("AFAF", "Pre-LN")
def three_summed_from_a_stack(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = torch.sum(torch.stack([x, a(n[0](x)), f(n[1](x))], 0), dim=0)
    return x


@written("AFAF", "Pre-LN", 1, branch=0.5)
def multiplied_and_added(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, g, _, _ in m.each():
        x = torch.addcmul(x, a(n[0](x)), g[0])
        x = x.addcmul(f(n[1](x)), torch.tensor(0.25), value=2)
    return x


@written("FF", "Pre-LN", 1, name="down")
def added_by_a_matrix_product(m: Arch, x: Tensor) -> Tensor:
    for _, _, n, _, down, _ in m.each():
        flat = x.flatten(0, 1)
        flat = torch.addmm(flat, F.relu(down[0](n[0](flat))), down[1].weight.T)
        x = flat.unflatten(0, x.shape[:2])
    return x


@written("AFAF", "Pre-LN", 1)
def highway(m: Arch, x: Tensor) -> Tensor:
    """Srivastava et al. 2015."""
    for a, f, n, _, down, _ in m.each():
        t = torch.sigmoid(down[0](x))
        x = x * (1 - t) + a(n[0](x)) * t
        t = down[1](x).sigmoid()
        x = (1 - t) * x + t * f(n[1](x))
    return x


@written("AFAF", "Post-LN", 0)
def highway_of_the_difference(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, down, _ in m.each():
        x = n[0](x + torch.sigmoid(down[0](x)) * (a(x) - x))
        x = n[1](x + torch.sigmoid(down[1](x)) * (f(x) - x))
    return x


# --- Networks that are no Transformers --------------------------------------------------------------------------------


class ResNet(nn.Module):
    """Channels first; blocks of convolutions, batch norms and a ReLU behind the addition."""

    def __init__(self, norm: Callable[[int], nn.Module], activated: bool) -> None:
        super().__init__()
        self.first, self.activated = nn.Conv2d(3, 8, 3, padding=1), activated
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8))
            for _ in range(3)
        )
        self.narrow, self.head = nn.Conv2d(8, 8, 2, stride=2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            x = self.narrow(x) if i == 2 else x
            x = x + block(x)
            x = F.relu(x) if self.activated else x
        return self.head(x.mean((2, 3)))


class Deep(nn.Module):
    def __init__(self, layers: int, embedding_again: bool = False) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(layers + 1))
        self.again = embedding_again

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for line, norm in zip(self.lines, self.norms, strict=False):
            x = x + line(norm(x))
            x = x + 0.1 * first if self.again else x
        return self.norms[-1](x)
