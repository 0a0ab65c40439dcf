"""The task contract: what is learnt, on which batches, and how it is judged.

A task reads a split as a `Part` and packs some of its rows as a `Batch`; the model makes hidden states of that, and the
task a loss of them. What differs between tasks is abstract here and written in their files; the rest is written once.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from leadline import config as configuration
from leadline.config import Config
from leadline.data import batching
from leadline.data.batching import Shape
from leadline.data.store import Store
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.files import Facts
from leadline.kernels.pack import Pack
from leadline.model import Transformer
from leadline.model.layers import Embed
from leadline.model.precision import autocast, evaluating
from leadline.tasks.encoded import Encoded, with_marks
from leadline.world import ALONE, World

if TYPE_CHECKING:
    from leadline.tasks.generator import Generator
    from leadline.tasks.translator import Translator


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A pack a side, and tensors whose shapes are the same in every batch."""

    count: int  # what the loss is a sum over
    tokens: int  # what its size and the speed of training are told in

    def packs(self) -> list[Pack]:
        """What the model is given."""
        return [value for _, value in self._fields() if isinstance(value, Pack)]

    def to(self, device: torch.device) -> Self:
        moved: dict[str, Any] = {n: v.to(device) for n, v in self._fields() if isinstance(v, Pack)}
        moved |= {n: v.to(device, non_blocking=True) for n, v in self._fields() if isinstance(v, Tensor)}
        return dataclasses.replace(self, **moved)

    def fixed(self) -> Self:
        """Only the tensors whose shapes are the same in every batch, which is all that fused kernels need."""
        packs: dict[str, Any] = {name: value.fixed() for name, value in self._fields() if isinstance(value, Pack)}
        return dataclasses.replace(self, **packs)

    def _fields(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A split as a task reads it."""

    lengths: np.ndarray  # [rows, sides] tokens
    facts: dict[str, float]  # what an evaluation says of it besides the scores


AnyPart = TypeVar("AnyPart", bound=Part)
AnyBatch = TypeVar("AnyBatch", bound=Batch)


class Task(ABC, Generic[AnyPart, AnyBatch]):
    """Made from a config and its prepared data; `require` and a task's own __init__ refuse what cannot work."""

    unit: ClassVar[str] = "a token"  # of which a loss is told
    commands: ClassVar[tuple[str, ...]] = ()  # that read a line and write what a run makes of it
    holds: ClassVar[str] = "pairs"  # what its data are: a name of leadline.data.sources.FORMS

    def __init__(self, config: Config, store: Store) -> None:
        self.require(config)
        self.config, self.store = config, store
        self.train = self.read("train")
        self.shape = self.choose_shape(self.train.lengths)

    @classmethod
    def require(cls, config: Config) -> None:
        """Refuse a config that cannot work, whatever its data."""

    # What a task writes.

    @abstractmethod
    def read(self, split: str) -> AnyPart:
        """A split, without the rows that cannot be used."""

    @abstractmethod
    def choose_shape(self, lengths: np.ndarray) -> Shape:
        """Of every batch, for training rows of these [rows, sides]."""

    @abstractmethod
    def pack(self, part: AnyPart, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> AnyBatch:
        """Rows, the shortest first, as a batch; what is drawn for a row is a function of (seed, epoch, row)."""

    @abstractmethod
    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: AnyBatch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        """Summed over what batch.count counts, over `divisor`; on fused kernels its gradient must be 1."""

    @abstractmethod
    def judge(self, model: Transformer, batch: AnyBatch, totals: Tensor) -> Tensor:
        """`totals` (float64; a 0 at first) with what is summed over the batches of a split."""

    @abstractmethod
    def verdict(self, totals: Sequence[float]) -> dict[str, float]:
        """Named numbers of those sums; `nll` (nats a unit) says which model is best."""

    # What a task may write.

    def notes(self) -> list[str]:
        """What people should know of the training rows, a sentence each."""
        return []

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        """The rows of each batch of a training epoch: a function of train.seed and `number`. Rows may repeat."""
        return batching.epoch_plan(self.train.lengths, self.shape, self.config.train.seed, number)

    def hidden(self, model: Transformer, batch: AnyBatch) -> Tensor:
        """The hidden states that the loss is made of."""
        return model(*batch.packs())

    def scored(self, split: str, directions: Sequence[str] = ()) -> int:
        """How many sentences of a split `scores` would go through."""
        return 0

    def scores(
        self,
        model: Transformer,
        split: str,
        sentences: int = -1,
        on_done: Callable[[int], None] = lambda done: None,
        directions: Sequence[str] = (),
        world: World = ALONE,
    ) -> Facts:
        """What the model writes for the first `sentences` (-1: all) of a split against what people wrote.

        `directions`: of many languages, which; the task's choice otherwise.
        """
        return {}

    @classmethod
    def encode(
        cls, tokenizer: Tokenizer, config: Config, first: Sequence[str], second: Sequence[str] | None
    ) -> Encoded:
        """Own texts as the model takes them: of an encoder, alone or with a second text each."""
        return with_marks(tokenizer, config, first, second)

    @classmethod
    def logits(cls, model: Transformer, hidden_TD: Tensor, encoded: Encoded) -> list[Tensor]:
        """What the model says of each text: of every token, over the vocabulary."""
        return encoded.each(model.logits(hidden_TD))

    @classmethod
    def translator(cls, model: Transformer, tokenizer: Tokenizer, config: Config, world: World = ALONE) -> Translator:
        raise UserError(f"this run was trained for {config.task}: it cannot translate")

    @classmethod
    def generator(cls, model: Transformer, tokenizer: Tokenizer, config: Config) -> Generator:
        raise UserError(f"this run was trained for {config.task}: it cannot go on with a text")

    # What is the same for all.

    @final
    def build_model(self) -> Transformer:
        model = configuration.to_dict(self.config.model)
        return Transformer(self.store.manifest["vocab_size"], seed=self.config.train.seed, **model)

    @final
    def collate(self, rows: np.ndarray, epoch: int = 0) -> AnyBatch:
        """A batch of training rows."""
        return self.pack(self.train, rows, self.shape, self.config.train.seed, epoch)

    @final
    def loss(self, model: Transformer, batch: AnyBatch, divisor: Tensor | float = 1.0) -> Tensor:
        return self.loss_of_hidden(model, self.hidden(model, batch), batch, divisor)

    @final
    def batches(self, part: AnyPart, world: World = ALONE) -> Iterator[AnyBatch]:
        """To evaluate on, the same each time and whatever the seed of the training; those of this process."""
        shape = self.shape.with_room_for(part.lengths)
        plan = batching.plan(part.lengths, shape, np.arange(len(part.lengths)))
        for rows in plan[world.rank :: world.size]:
            yield self.pack(part, rows, shape, self.config.data.seed, 0)

    @final
    @torch.inference_mode()
    def evaluate(
        self,
        model: Transformer,
        split: str,
        sentences: int = 0,
        world: World = ALONE,
        on_batch: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """The verdict on a split, and the scores of its first `sentences` (-1: all); each process judges some of it."""
        device, part = next(model.parameters()).device, self.read(split)
        zero, each = torch.zeros((), dtype=torch.float64, device=device), []
        with evaluating(model), autocast(device, self.config.train.precision):
            for batch in self.batches(part, world):
                each.append(self.judge(model, batch.to(device), zero))
                on_batch()
        # Added in the order of the batches: the same bits, however many processes there are.
        of_batches = world.merged(torch.stack(each).tolist() if each else [])
        if not of_batches:
            raise UserError(
                f"nothing in the {split} split fits in model.max_length={self.config.model.max_length} tokens"
            )
        scores = self.scores(model, split, sentences, world=world) if sentences else {}
        numbers = {name: value for name, value in scores.items() if isinstance(value, float)}
        return self.verdict(functools.reduce(np.add, map(np.array, of_batches)).tolist()) | part.facts | numbers

    @final
    def start_from(self, model: Transformer, before: Config, weights: dict[str, Tensor]) -> set[nn.Parameter]:
        """Fit another run's `weights` to the model; returns the parameters that start anew.

        Those are heads that the run does not have or had for another task. A model for shorter sequences takes the
        first of its learned positions.
        """
        for key, module in model.named_modules():
            if isinstance(module, Embed) and (places := f"{key}.positions.weight") in weights:
                weights[places] = weights[places][: self.config.model.max_length]
        known: list[tuple[nn.Module | None, bool]] = [(model.head, before.model.head == model.config.head)]
        if model.classifier is not None:
            known += [(model.classifier.dense, before.model.classes > 0 or before.model.pooler)]
            known += [(model.classifier.out, before.model.classes > 0 and before.task == self.config.task)]
        return {parameter for module, is_known in known if module and not is_known for parameter in module.parameters()}
