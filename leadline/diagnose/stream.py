"""The residual stream, read as a model runs: what trace, Watch, Drift and the comparison of placements look through.

    with closing(Reader()) as reader:
        norms = reader.streams(model)       filled as the model runs; nothing is left behind

Of our models the residual connections are known; `leadline.diagnose.trace` finds those of any other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leadline.errors import UserError
from leadline.model.block import connections
from leadline.placement import Placement

Norms = dict[str, list[Tensor]]  # one a forward pass


class Reader:
    """Hooks on modules, all of which `close` removes."""

    def __init__(self) -> None:
        self.hooks: list[RemovableHandle] = []

    def before(self, module: nn.Module, function: Callable[..., None]) -> None:
        """function(module, args, kwargs) before each call."""
        self.hooks.append(module.register_forward_pre_hook(function, with_kwargs=True))

    def after(self, module: nn.Module, function: Callable[..., None]) -> None:
        """function(module, args, kwargs, output) after each call."""
        self.hooks.append(module.register_forward_hook(function, with_kwargs=True))

    def streams(self, model: nn.Module) -> Norms:
        """The norm of the stream behind every residual connection of our model, by the name of its sublayer."""
        norms: Norms = {}
        for name, connection in connections_of(model).items():

            def note(module: Placement, args: object, kwargs: object, output: Tensor, name: str = name) -> None:
                norms.setdefault(name, []).append(token_norm(module.stream(output)))

            self.after(connection, note)
        return norms

    def norm_inputs(self, model: nn.Module) -> Norms:
        """The norm of what enters the norms of the residual connections, by stack and kind of sublayer."""
        norms: Norms = {}
        for connection in connections_of(model).values():
            if isinstance(norm := getattr(connection, "norm", None), nn.Module):
                site = connection.site

                def note(
                    module: nn.Module, args: Sequence[Tensor], kwargs: object, name: str = f"{site.stack}.{site.kind}"
                ) -> None:
                    norms.setdefault(name, []).append(token_norm(args[0]))

                self.before(norm, note)
        return norms

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


def token_norm(x: Tensor) -> Tensor:
    """Mean over tokens of their norm, in float32."""
    return x.detach().float().flatten(0, -2).norm(dim=-1).mean()


def connections_of(model: nn.Module) -> dict[str, Placement]:
    """The residual connections of our model, by the name of their sublayer."""
    names = {module: name for name, module in model.named_modules()}
    return {names[sublayer]: placement for placement, sublayer in connections(model)}


@contextlib.contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Within it nothing is dropped, neither layers nor paths, and no layer is replaced by a single fused call."""
    if any(t.is_meta for t in model.parameters()):
        raise UserError("the model is on the meta device, but it has to run once: move it to a real device first")
    modes, fast = {m: m.training for m in model.modules()}, torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in modes.items():
            module.training = training
