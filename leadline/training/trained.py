"""A trained run, ready to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leadline import config as configuration
from leadline import notebook, tasks
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.files import Facts
from leadline.kernels import attention
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.provenance import NUMERICS
from leadline.tasks.encoded import Encoded
from leadline.tasks.generator import Generator
from leadline.tasks.translator import Translator, into
from leadline.training import checkpoint
from leadline.training import run as runs
from leadline.training.device import find_device
from leadline.world import ALONE, World


@dataclass(frozen=True)
class Trained:
    """A run's model with its weights, vocabulary and config; `load` makes one."""

    config: Config
    model: Transformer
    tokenizer: Tokenizer
    checkpoint: str  # which weights these are

    def _repr_html_(self) -> str:
        shape, weights = self.config.model, sum(p.numel() for p in self.model.parameters())
        facts = {
            "task": self.config.task,
            "placement": shape.placement,
            "layers": f"{shape.encoder_layers}-{shape.decoder_layers}, width {shape.dim}",
            "weights": f"{weights:,} of checkpoint {self.checkpoint}",
            "vocabulary": f"{self.tokenizer.vocab_size:,}",
            "trained on": self.config.data.source,
            "device": next(self.model.parameters()).device,
        }
        return notebook.card("A trained model", [notebook.table(["", ""], facts.items())])

    def into(self, language: str) -> Trained:
        """The same, of many languages, where it translates and encodes into this one."""
        if "translate" not in tasks.find(self.config.task).commands:
            self.translator()  # says that it cannot
        return replace(self, config=into(self.config, language))

    def own(self, **more: object) -> Facts:
        """What it is, and what it is used on: the same in all processes of a command."""
        weights = checkpoint.fingerprint({name: p.detach().cpu() for name, p in self.model.named_parameters()})
        config, which = configuration.to_dict(self.config), self.checkpoint
        return {"config": config, "checkpoint": which, "numerics": NUMERICS, "weights": weights} | more

    def translator(self, world: World = ALONE) -> Translator:
        return tasks.find(self.config.task).translator(self.model, self.tokenizer, self.config, world)

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The translation of each sentence, by beam search as config.decode says."""
        if isinstance(sentences, str):  # its characters are a list too, which nobody means
            raise UserError("translate takes a list of sentences: give one sentence as [sentence]")
        return self.translator().translate(sentences)

    def generator(self, **options: float) -> Generator:
        """`options` are those of config.generate, where they differ from the run's."""
        config = self.config.set(generate=options)
        return tasks.find(config.task).generator(self.model, self.tokenizer, config)

    def generate(self, prompts: Sequence[str], **options: float) -> list[str]:
        """What follows each prompt: `generate(["Once"], tokens=50, temperature=0.8, top_k=40, top_p=0.9, seed=2)`."""
        return self.generator(**options).generate(prompts)

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Encoded:
        """Texts as the model takes them, `model(*encoded.packs)`.

        For an encoder `second` has the text that each is paired with; for a translator the translation, or as much of
        it as is known, of which the model says how it goes on.
        """
        encoded = tasks.find(self.config.task).encode(self.tokenizer, self.config, texts, second)
        return encoded.to(next(self.model.parameters()).device)

    @torch.no_grad()
    def hidden(self, encoded: Encoded) -> list[Tensor]:
        """[tokens, dim] of each text: the states at the top of the last stack."""
        return encoded.each(self._states(encoded))

    @torch.no_grad()
    def logits(self, encoded: Encoded) -> list[Tensor]:
        """Of each text [tokens, vocabulary], or [classes] of a run that classifies."""
        return tasks.find(self.config.task).logits(self.model, self._states(encoded), encoded)

    def _states(self, encoded: Encoded) -> Tensor:
        with autocast(next(self.model.parameters()).device, self.config.train.precision):
            return self.model(*encoded.packs)

    def task(self, progress: Progress | None = None) -> tasks.AnyTask:
        """The task on the data the run was trained on, which is prepared again if it is not there."""
        tasks.require(self.config)
        store = Store(prepare(self.config.data, progress=progress or (lambda what, done: None)))
        if store.tokenizer.bpe.to_str() != self.tokenizer.bpe.to_str():
            raise UserError(
                f"{store.folder} was prepared again with another vocabulary than the run's: train again on it"
            )
        # As in training the folder says what the data is; what was trained is what the run says.
        data = replace(store.data, source=self.config.data.source, vocabulary=self.config.data.vocabulary)
        if data.directions:
            data = replace(data, directions=self.tokenizer.config.directions or data.directions)
        return tasks.find(self.config.task)(replace(self.config, data=data), store)

    def evaluate(self, split: str = "test") -> Facts:
        """Loss on a whole split, in nats a token or an example; of a translation BLEU and chrF with signatures."""
        task = self.task()
        return task.evaluate(self.model, split) | task.scores(self.model, split)


def load(run: str | Path, which: str = "best", device: str | None = None, allow_code: bool = False) -> Trained:
    """The model of a run with the weights of `which`: best, last, average:K, or the number of a checkpoint.

    allow_code: also where the run names a placement of somebody's own, which is imported.
    """
    folder = Path(run)
    config = runs.load_config(folder, allow_code)
    runs.require_whole_tokenizer(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json", config.data)
    model = Transformer(tokenizer.vocab_size, **configuration.to_dict(config.model))
    name, weights = checkpoint.choose(folder, which)
    checkpoint.restore_model(model, weights, f"checkpoint {name} of {folder}")
    on = find_device(device or (config.train.device if torch.cuda.is_available() else "cpu"))
    if on.type == "cpu" and config.train.precision == "bf16":
        config = config.set(train={"precision": "fp32", "device": "cpu"})  # bf16 is for the GPU it was trained on
    model.use_attention(attention.choose(on, config.train.precision, config.model.head_width, 0.0))
    return Trained(config, model.to(on).eval(), tokenizer, name)
