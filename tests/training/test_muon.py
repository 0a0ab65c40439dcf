"""Muon's steps are those of torch.optim.Muon on the matrix of each role, and AdamW's on everything else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline.config import OptimConfig
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.block import Block
from leadline.model.layers import Linear
from leadline.training import optim
from leadline.training.muon import orthogonal

SHAPES = {
    "translator": {"encoder_layers": 1, "decoder_layers": 1, "embeddings": "separate"},
    "language model": {"encoder_layers": 0, "decoder_layers": 1, "activation": "swiglu", "kv_heads": 2, "bias": False},
    "encoder": {"encoder_layers": 1, "decoder_layers": 0, "head": "bert", "positions": "learned"},
    "dlcl": {"encoder_layers": 2, "decoder_layers": 0, "placement": "dlcl"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_its_steps_are_those_of_torchs_own(shape: str) -> None:
    model = Transformer(50, dim=16, ffn_dim=24, heads=4, **SHAPES[shape])
    config = OptimConfig(name="muon", lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, decay_embeddings=False)
    own = optim.optimizer(config, model)

    linears = [m for b in model.modules() if isinstance(b, Block) for m in b.modules() if isinstance(m, Linear)]
    assert len(linears) >= 4
    parts = {m.weight: [nn.Parameter(part.clone()) for part in m.weight.detach().split(m.sizes)] for m in linears}
    others = {p: nn.Parameter(p.detach().clone()) for p in model.parameters() if p not in parts}
    spared = optim.spared(config, model)
    muon = torch.optim.Muon(
        [q for each in parts.values() for q in each], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    adamw = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "fused": True}
    decayed = [[q for p, q in others.items() if (p in spared) == left_alone] for left_alone in (False, True)]
    plain = torch.optim.AdamW([{"params": decayed[0], "weight_decay": 0.1}, {"params": decayed[1]}], **adamw)
    plain.param_groups[1]["weight_decay"] = 0.0

    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
            if p in parts:
                pieces = p.grad.split([len(q) for q in parts[p]])
                for q, piece in zip(parts[p], pieces, strict=True):
                    q.grad = piece.clone()
            else:
                others[p].grad = p.grad.clone()
        for optimizer in (own, muon, plain):
            optimizer.step()
    for p in model.parameters():
        assert torch.equal(p, torch.cat([*parts[p]]) if p in parts else others[p])


def test_directions_stay_and_their_sizes_become_alike() -> None:
    g = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    for matrix in (g, g.T):
        u, before, v = torch.linalg.svd(matrix, full_matrices=False)
        assert before.max() / before.min() > 3
        x = u.T @ orthogonal(matrix).float() @ v.T
        assert ((x.diagonal() > 0.6) & (x.diagonal() < 1.3)).all()
        assert (x - x.diagonal().diag()).abs().max() < 0.05


def test_several_processes_are_refused() -> None:
    with pytest.raises(UserError, match="muon updates whole matrices"):
        optim.optimizer_of(OptimConfig(name="muon"), [], [])
