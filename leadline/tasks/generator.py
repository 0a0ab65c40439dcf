"""A trained language model as a function from prompts to what follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from leadline.config import Config
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.generate import generate
from leadline.model.precision import autocast, evaluating

AT_ONCE = 64  # prompts


class Generator:
    """What follows a prompt depends on the model, on the `generate` options and on the prompt, and on nothing else.

    That is so in fp32; in bf16 rounding depends on the prompts beside it, and may decide between two likely tokens.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.end = tokenizer.end_of_text
        self.cut = 0  # texts that ended because the model has no more positions

    def generate(self, prompts: Sequence[str], on_text: Callable[[str], None] | None = None) -> list[str]:
        """The texts that follow, in order. Of a single prompt `on_text` is given each piece as it comes."""
        if isinstance(prompts, str):
            raise UserError("generate takes a list of prompts: give one prompt as [prompt]")
        if on_text and len(prompts) != 1:
            raise UserError("one prompt at a time can be followed piece by piece")
        tokens = self.tokens(prompts)
        pieces = Pieces(self.tokenizer, on_text) if on_text else None
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))  # those of similar length together
        results: list[list[int]] = [[] for _ in tokens]
        for begin in range(0, len(order), AT_ONCE):
            some = order[begin : begin + AT_ONCE]
            for i, result in zip(some, self._continued([tokens[i] for i in some], pieces), strict=True):
                results[i] = result
                full = len(tokens[i]) + len(result) > self.model.config.max_length
                self.cut += full and len(result) < self.config.generate.tokens
        if pieces:
            pieces.finish()
        return self.tokenizer.decode(results)

    def tokens(self, prompts: Sequence[str]) -> list[list[int]]:
        """Of each prompt, behind an end of text: it begins a document."""
        longest = self.model.config.max_length
        for number, prompt in enumerate(prompts, 1):
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise UserError(f"prompt {number} is not valid UTF-8: give it in that encoding") from None
        tokens = [[self.end, *own] for own in self.tokenizer.encode(prompts, self.config.data.source_lang)]
        for number, own in enumerate(tokens, 1):
            if len(own) > longest:
                raise UserError(
                    f"prompt {number} has {len(own)} tokens with the end of text before it, and the model takes "
                    f"model.max_length={longest}: shorten it"
                )
        return tokens

    def _continued(self, prompts: list[list[int]], pieces: Pieces | None) -> list[list[int]]:
        device, how = next(self.model.parameters()).device, self.config.generate
        most = min(how.tokens, self.model.config.max_length)
        drawn = np.stack([np.random.default_rng([how.seed, *prompt]).random(most) for prompt in prompts])
        with evaluating(self.model), autocast(device, self.config.train.precision):
            uniform = torch.from_numpy(drawn).float()
            return generate(self.model, prompts, uniform, self.end, how, pieces or (lambda tokens: None))


class Pieces:
    """Tokens as text, as soon as their characters are whole."""

    def __init__(self, tokenizer: Tokenizer, on_text: Callable[[str], None]) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.waiting: list[int] = []

    def __call__(self, tokens: list[list[int]]) -> None:
        self.waiting += tokens[0]
        for left in range(4):  # no character has more than four bytes, so at most three tokens wait for its last
            text = self.tokenizer.decode([self.waiting[: max(len(self.waiting) - left, 0)]])[0]
            if not text.endswith("\ufffd"):
                break
        else:  # bytes that are no text: where to divide them is known at the next whole character
            return
        if text:
            self.on_text(text)
        self.waiting = self.waiting[max(len(self.waiting) - left, 0) :]

    def finish(self) -> None:
        if self.waiting:
            self.on_text(self.tokenizer.decode([self.waiting])[0])
