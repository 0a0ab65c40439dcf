"""What every placement owes the model, at any depth and in every architecture: one body over the whole table."""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline.config import to_dict
from leadline.errors import UserError
from leadline.kernels.pack import Pack, pack
from leadline.model import Transformer
from leadline.model.layers import Embedding, Linear
from leadline.placement import PLACEMENTS
from leadline.training.checkpoint import restore_model
from leadline.training.saving import model_tensors
from leadline.training.step import compile_blocks

VOCAB, DIM, FFN = 50, 16, 32
SOURCE, TARGET = [6, 3, 9], [4, 8, 5]  # tokens of each sentence
ARCHITECTURES = {"encoder-only": (1, 0), "decoder-only": (0, 1), "encoder-decoder": (1, 1)}

# Xavier's sqrt(2 / (inputs + outputs)) of each role's own matrix, which q, k and v have only where a placement's
# constants are defined on it; 1/sqrt(D) for embeddings
ON_XAVIER = {"deepnorm", "ds_init", "sub_ln", "t_fixup", "r_fixup"}
BASE_STD = {
    **dict.fromkeys(("q", "k", "v"), (1 / (16 + 16)) ** 0.5),
    "out": (2 / (16 + 16)) ** 0.5,
    **dict.fromkeys(("ffn_in", "ffn_out"), (2 / (16 + 32)) ** 0.5),
    "embed": 1 / 4,
}


def build(placement: str, architecture: str, depth: int, seed: int = 1, norm: str = "layer_norm") -> Transformer:
    encoder, decoder = ARCHITECTURES[architecture]
    model = Transformer(
        VOCAB,
        seed=seed,
        placement=placement,
        norm=norm,
        encoder_layers=encoder * depth,
        decoder_layers=decoder * depth,
        dim=DIM,
        ffn_dim=FFN,
        heads=2,
        max_length=12,
    )
    return model.eval()


def draw(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB - 1, n) for n in lengths]


def packed(tokens: list[np.ndarray]) -> Pack:
    return pack(tokens, sum(map(len, tokens)) + 3, [2, 1], 12, len(tokens) + 1)


def changed(tokens: list[np.ndarray], sentence: int, position: int) -> list[np.ndarray]:
    """A copy with another token in one place."""
    copies = [t.copy() for t in tokens]
    copies[sentence][position] += 1
    return copies


@torch.no_grad()
def hidden(model: Transformer, source: list[np.ndarray], target: list[np.ndarray]) -> list[Tensor]:
    """The model's output for each sentence, on one pack."""
    sides = {"source": source} if model.config.encoder_layers else {}
    sides |= {"target": target} if model.config.decoder_layers else {}
    out = model(**{side: packed(tokens) for side, tokens in sides.items()})
    lengths = [len(t) for t in (target if "target" in sides else source)]
    return list(out[: sum(lengths)].split(lengths))


def is_finite(model: Transformer) -> None:
    outputs = torch.cat(hidden(model, draw(SOURCE), draw(TARGET)))
    assert outputs.isfinite().all()
    assert outputs.std() > 0.01


def keeps_apart(model: Transformer) -> None:
    """Another token in the middle sentence, on either side, reaches only that sentence, from there on."""
    source, target = draw(SOURCE), draw(TARGET)
    before = hidden(model, source, target)
    variants = [(changed(source, 1, 0), target, 0)] if model.config.encoder_layers else []
    variants += [(source, changed(target, 1, t), t) for t in (0, 3)] if model.config.decoder_layers else []
    for changed_source, changed_target, t in variants:
        after = hidden(model, changed_source, changed_target)
        assert torch.equal(after[0], before[0])
        assert torch.equal(after[2], before[2])
        assert torch.equal(after[1][:t], before[1][:t])
        assert not torch.equal(after[1][t:], before[1][t:])


def survives_a_file(model: Transformer, file: Path) -> None:
    save_file(model_tensors(model), file)
    other = Transformer(VOCAB, seed=2, **to_dict(model.config)).eval()
    restore_model(other, load_file(file), str(file))
    for (name, parameter), (other_name, restored) in zip(
        model.named_parameters(remove_duplicate=False), other.named_parameters(remove_duplicate=False), strict=True
    ):
        assert name == other_name
        assert torch.equal(parameter, restored), name
    for (name, buffer), (_, rebuilt) in zip(model.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(buffer, rebuilt), name


def starts_as_its_gains_say(model: Transformer) -> None:
    """The std of a role, measured on all its weights in a stack, is the base std times the placement's gain."""
    placement = PLACEMENTS[model.config.placement]
    scaled: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for stack in ("encoder", "decoder"):
        for block in getattr(getattr(model, stack, None), "blocks", []):
            for connection, sublayer in block.connections():
                assert connection.site.stack == stack
                for linear in (m for m in sublayer.modules() if isinstance(m, Linear)):
                    for role, part, _ in linear.parts():
                        base = BASE_STD["out" if model.config.placement in ON_XAVIER and role in "qkv" else role]
                        std = base * placement.gain(role, connection.site)
                        if std:
                            scaled[stack, role].append(part / std)
                        else:
                            assert not part.any()
    foot = (model.encoder if model.config.encoder_layers else model.decoder).blocks[0].attn_residual.site
    for module in model.modules():
        if isinstance(module, Embedding):
            scaled["embed", "embed"].append(module.weight / (BASE_STD["embed"] * placement.gain("embed", foot)))

    for (stack, role), parts in scaled.items():
        weights = torch.cat([part.detach().flatten() for part in parts])
        n = len(weights)
        # The std of n normal draws is itself normal with relative std 1/sqrt(2n), their mean with 1/sqrt(n).
        assert float(weights.square().mean().sqrt()) == pytest.approx(1, abs=5 / (2 * n) ** 0.5), (stack, role)
        assert float(weights.mean()) == pytest.approx(0, abs=5 / n**0.5), (stack, role)
    for module in model.modules():
        if isinstance(module, Linear):
            assert not module.bias.any()
        elif isinstance(module, nn.LayerNorm):
            assert not module.bias.any()
            assert (module.weight == 1).all()


def wake(model: Transformer) -> None:
    """Branches that start at zero (ReZero, R-Fixup) would hide what they see from the checks."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.fill_(0.1)


def gives_its_weights_gradients(model: Transformer) -> None:
    """Each layer learns: the sum of squares of what comes out reaches every matrix of every layer."""
    sides = {"source": packed(draw(SOURCE))} if model.config.encoder_layers else {}
    sides |= {"target": packed(draw(TARGET))} if model.config.decoder_layers else {}
    model(**sides).mul(torch.randn(DIM, generator=torch.manual_seed(0))).sum().backward()
    for name, parameter in model.named_parameters():
        if "embed" not in name:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    model.zero_grad()


# Those whose papers go so deep, and one of each kind of stream: 100 layers take seconds.
DEEP = ["deepnorm", "pre_ln", "admin", "dlcl", "keel", "siamese_norm"]
CASES = [
    (placement, architecture, norm)
    for placement, found in PLACEMENTS.items()
    for architecture in ARCHITECTURES
    for norm in ("layer_norm", "rms_norm")
    if architecture in found.architectures
]


@pytest.mark.parametrize(
    ("placement", "architecture", "norm", "depth"),
    [
        pytest.param(*case, depth, marks=[pytest.mark.slow] if depth == 100 else [])
        for case in CASES
        for depth in ((2, 12, 100) if case[1:] == ("encoder-decoder", "layer_norm") else (2,))
        if depth < 100 or case[0] in DEEP
    ],
)
def test_placement_keeps_its_promises(placement: str, architecture: str, norm: str, depth: int, tmp_path: Path) -> None:
    model = build(placement, architecture, depth, norm=norm)
    assert all(isinstance(m, nn.LayerNorm) == (norm == "layer_norm") for m in model.modules() if is_norm(m))
    starts_as_its_gains_say(model)
    is_finite(model)
    wake(model)
    gives_its_weights_gradients(model)
    keeps_apart(model)
    survives_a_file(model, tmp_path / "model.safetensors")


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.RMSNorm)


# Compiling takes seconds a placement: one of each kind of stream, and of what is learnt in it and within a branch.
COMPILED = ["pre_ln", "dlcl", "siamese_norm", "hybrid_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("placement", COMPILED)
def test_compiled_blocks_give_what_eager_ones_give(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile; what its code generator makes of it is tested with the training step."""
    model = build(placement, "encoder-decoder", 2 if placement == "dlcl" else 1)
    wake(model)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        if compiled:
            compile_blocks(model)
        model.zero_grad()
        out = model(packed(draw(SOURCE)), packed(draw(TARGET)))
        out.square().sum().backward()
        found.append([out, *(p.grad.clone() for p in model.parameters())])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(*found)  # gradients: some versions add them up in another order


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_recomputed_blocks_give_the_same_gradients_bit_for_bit(placement: str) -> None:
    found = []
    for recompute in (False, True):
        model = build(placement, "encoder-decoder", 3).train()
        wake(model)
        model.use_recompute(recompute)
        torch.manual_seed(0)  # dropout
        model(packed(draw(SOURCE)), packed(draw(TARGET))).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))


@pytest.mark.parametrize("placement", [name for name, found in PLACEMENTS.items() if len(found.architectures) < 3])
def test_what_a_paper_does_not_define_is_refused(placement: str) -> None:
    for architecture in set(ARCHITECTURES) - set(PLACEMENTS[placement].architectures):
        with pytest.raises(UserError, match=f"encoder-decoder models, and this one is {architecture}"):
            build(placement, architecture, 2)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_seed_gives_the_same_weights_and_another_seed_others(placement: str) -> None:
    one, again, other = (model_tensors(build(placement, "encoder-decoder", 2, seed)) for seed in (1, 1, 2))
    assert one.keys() == again.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], again[name]), name
        if one[name].dim() > 1 and one[name].any():
            assert not torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_sites_are_numbered_through_their_stack_and_know_the_depth(placement: str) -> None:
    model = Transformer(VOCAB, placement=placement, encoder_layers=3, decoder_layers=2, dim=DIM, ffn_dim=FFN, heads=2)
    for stack, count in ((model.encoder, 3 * 2), (model.decoder, 2 * 3)):
        sites = [connection.site for block in stack.blocks for connection, _ in block.connections()]
        assert [site.index for site in sites] == list(range(count))
        assert {(site.dim, site.encoder_layers, site.decoder_layers) for site in sites} == {(DIM, 3, 2)}
