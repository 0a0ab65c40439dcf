"""Text to tokens and back: optional Moses tokenisation, then joint BPE.

The BPE is learnt and stored with the `tokenizers` library, in its standard JSON. How text is split before the
merges depends on `data.text`: raw text also keeps punctuation apart; tokenised text is
split at spaces only.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BPE
from tokenizers import decoders, models, pre_tokenizers, trainers

from leadline.config import DataConfig
from leadline.errors import UserError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def learn(lines: Iterable[str], config: DataConfig) -> BPE:
    """Joint BPE over already cleaned lines of both languages."""
    bpe = BPE(models.BPE(unk_token=SPECIAL[UNK]))
    words = pre_tokenizers.Metaspace()
    raw = config.text == "raw"
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation()]) if raw else words
    bpe.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=config.vocab_size, special_tokens=SPECIAL, show_progress=False)
    bpe.train_from_iterator(lines, trainer)
    if bpe.get_vocab_size() < config.vocab_size:
        raise UserError(
            f"data.vocab_size={config.vocab_size} is too large for this corpus, which has only "
            f"{bpe.get_vocab_size()} characters and merges: set data.vocab_size={bpe.get_vocab_size()} or less"
        )
    if bpe.get_vocab_size() > config.vocab_size:
        raise UserError(
            f"data.vocab_size={config.vocab_size} is too small for this corpus, whose characters alone need "
            f"{bpe.get_vocab_size()}: set data.vocab_size above that"
        )
    return bpe


class Tokenizer:
    """The BPE with what goes before and after it."""

    def __init__(self, bpe: BPE, config: DataConfig) -> None:
        self.bpe, self.config = bpe, config
        self.bpe.encode_special_tokens = True  # "<pad>" in somebody's text is text

    @classmethod
    def load(cls, path: Path, config: DataConfig) -> Tokenizer:
        try:
            return cls(BPE.from_file(str(path)), config)
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f"{path} is not a tokenizer: {error}") from None

    @property
    def vocab_size(self) -> int:
        return self.bpe.get_vocab_size()

    def encode(self, lines: Sequence[str], language: str) -> list[list[int]]:
        """Tokens of each line, without begin and end."""
        cleaned = [clean(line, self.config, language) for line in lines]
        return [encoding.ids for encoding in self.bpe.encode_batch(cleaned, add_special_tokens=False)]

    def decode(self, tokens: Iterable[Sequence[int]]) -> list[str]:
        """Lines as the model was trained on them: tokenised text stays tokenised."""
        return self.bpe.decode_batch([list(t) for t in tokens], skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """How a token is written; ▁ begins a word."""
        return self.bpe.id_to_token(token) or ""

    def detokenize(self, line: str) -> str:
        """A line as a person would write it."""
        return line if self.config.text == "raw" else _moses_detokenizer(self.config.target_lang)(line.split())


def clean(line: str, config: DataConfig, language: str) -> str:
    """What happens to a line before BPE."""
    line = unicodedata.normalize("NFC", line)
    if config.text == "moses":
        line = _moses_tokenizer(language)(line)
    if config.lowercase:
        line = line.lower()
    return " ".join(line.split())


@functools.cache
def _moses_tokenizer(language: str) -> Any:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalise, tokenise = (
        MosesPunctNormalizer(lang=language).normalize,
        MosesTokenizer(lang=language).tokenize,
    )
    return lambda line: tokenise(normalise(line), return_str=True)


@functools.cache
def _moses_detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language).detokenize
