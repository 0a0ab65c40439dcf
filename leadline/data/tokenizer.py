"""Text to tokens and back: optional Moses tokenisation, then joint BPE or WordPiece; or BPE of bytes.

They are learnt and stored with the `tokenizers` library, in its standard JSON. How text is split before the
merges depends on `data.text`: raw text also keeps punctuation apart; tokenised text is
split at spaces only. WordPiece always keeps punctuation apart, as BERT's does.

The vocabulary of many languages has a tag for each that is translated into (`<to fr>`, which no text becomes: it has a
space) and the 256 bytes, of which rare characters are made, so that no character of any script is unknown.

BPE of bytes is GPT-2's, and lines do not share tokens: text is not cleaned, every text has tokens and comes back as it
was. A vocabulary of somebody else's (data.vocabulary) that is byte-level is used in the same way.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer as BPE
from tokenizers import decoders, models, pre_tokenizers, trainers

from leadline.config import DataConfig
from leadline.data.flat import Flat
from leadline.data.words import APART, BERT, DOCUMENTS, SPACES, Words
from leadline.errors import UserError
from leadline.files import write_text

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
BERT_SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]  # of documents; the first four as above
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>"]  # of language models; ours is the first
TARGET = (
    "tokenizer.target.json"  # beside tokenizer.json where targets are split otherwise than sources, as OPUS-MT's are
)
PROBE = "A a  ﬁ é\u0301\n"  # text that normalizers change
ALPHABET = 1000  # characters of documents that are tokens
COVERAGE = 0.9995  # share of the characters of many languages that are tokens; the others are bytes
LONG_WORD = 1000  # characters; learning from a word takes the library time that grows with the square of its length

_DETACHED = re.compile(r"\s[.,。，](?=\s|$)|&(?:apos|quot|amp|#91|#93);|@-@")
_ATTACHED = re.compile(r"\w[.,。，](?=\s|$)")


def tokenisation(lines: Iterable[str]) -> Literal["tokenized", "raw", ""]:
    """How text looks by its first lines: with spaces before full stops and commas, or without; "" where it has none."""
    some = list(itertools.islice(lines, 1000))
    apart, attached = (sum(len(kind.findall(line)) for line in some) for kind in (_DETACHED, _ATTACHED))
    return "tokenized" if apart > attached else "raw" if attached else ""


def tag(language: str) -> str:
    """What tells a model of many languages to write this one."""
    return f"<to {language}>"


def learn(lines: Iterable[str], config: DataConfig, documents: bool = False, languages: Sequence[str] = ()) -> BPE:
    """Joint over already cleaned lines of all languages.

    Documents have BERT's special tokens, their rarest characters are unknown, and spaces at punctuation do not count,
    so that every word and every punctuation mark begins with a token of its own. `languages` have tags, and rare
    characters are bytes. `data.vocabulary` is used as it is.
    """
    if config.vocabulary:
        return _usable(Tokenizer.load(Path(config.vocabulary).expanduser(), config), documents).bpe
    if config.tokenizer == "byte_bpe":
        return _sized(_usable(Tokenizer(_learn_bytes(lines, config), config), documents).bpe, config)
    special = BERT_SPECIAL if documents else [*SPECIAL, *map(tag, languages), *(BYTES if languages else ())]
    options: dict[str, Any] = {"vocab_size": config.vocab_size, "special_tokens": special, "show_progress": False}
    if documents or languages:
        lines = list(lines)
        alphabet = _alphabet(lines, COVERAGE, config.vocab_size // 2) if languages else _alphabet(lines)
        options |= {"limit_alphabet": len(alphabet) if languages else ALPHABET, "initial_alphabet": alphabet}
    apart = config.text in ("raw", "moses_normalize")  # punctuation is not, yet
    if config.tokenizer == "wordpiece":
        bpe = BPE(models.WordPiece(unk_token=special[UNK]))
        bpe.pre_tokenizer = BERT
        bpe.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**options)
    else:
        bpe = BPE(models.BPE(unk_token=special[UNK], byte_fallback=bool(languages)))
        bpe.pre_tokenizer = (DOCUMENTS if documents else APART) if apart else SPACES
        joined = decoders.Metaspace()
        bpe.decoder = decoders.Sequence([decoders.ByteFallback(), joined]) if languages else joined
        trainer = trainers.BpeTrainer(**options)
    bpe.train_from_iterator(map(_learnable, lines), trainer)
    if languages:
        bpe = _bytes_are_text(bpe)
    return _sized(bpe, config)


def _learn_bytes(lines: Iterable[str], config: DataConfig) -> BPE:
    bpe = BPE(models.BPE())
    ends_lines = pre_tokenizers.Split("\n", "merged_with_previous")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([ends_lines, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=END_OF_TEXT[:1],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(map(_learnable, lines), trainer)
    return bpe


def _usable(tokenizer: Tokenizer, documents: bool) -> Tokenizer:
    if tokenizer.exact and not documents:
        raise UserError(
            "a byte-level vocabulary is for documents and language models: set data.source=documents:PATH, or "
            "data.tokenizer=bpe for pairs and labelled text"
        )
    if tokenizer.exact and (tokenizer.config.text != "raw" or tokenizer.config.lowercase):
        raise UserError("a byte-level vocabulary takes text as it is: set data.text=raw and data.lowercase=false")
    if tokenizer.exact and tokenizer.decode(tokenizer.encode([PROBE], "")) != [PROBE]:
        raise UserError(
            f"data.vocabulary={tokenizer.config.vocabulary} does not give text back as it was: use a byte-level "
            "vocabulary without a normalizer and with add_prefix_space=false"
        )
    return tokenizer


def _sized(bpe: BPE, config: DataConfig) -> BPE:
    """Refuses a vocabulary larger than was asked for; a smaller one is all that the text has (Store.notes says so)."""
    if bpe.get_vocab_size() > config.vocab_size:
        raise UserError(
            f"data.vocab_size={config.vocab_size} is too small for this corpus, whose characters alone need "
            f"{bpe.get_vocab_size()}: set data.vocab_size above that"
        )
    return bpe


def _learnable(line: str) -> str:
    """Of a word that is too long its beginning, and its other characters once, so that they are known."""
    if len(line) <= LONG_WORD:
        return line
    words = (
        word if len(word) <= LONG_WORD else " ".join([word[:LONG_WORD], *sorted(set(word[LONG_WORD:]))])
        for word in line.split(" ")
    )
    return " ".join(words)


def _alphabet(lines: Iterable[str], coverage: float = 1.0, most: int = ALPHABET) -> list[str]:
    """The most frequent characters; among equals in a fixed order, unlike the library's own choice."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    spaces, total = counts.pop(" ", 0), counts.total()
    counts["▁"] = spaces + sys.maxsize  # what begins a word is in no line yet
    ordered = sorted(counts, key=lambda character: (-counts[character], character))[:most]
    if coverage == 1:
        return ordered
    before = np.cumsum([0, 0, *(counts[character] for character in ordered[1:-1])])
    return [character for character, count in zip(ordered, before, strict=False) if count < coverage * total]


def _bytes_are_text(bpe: BPE) -> BPE:
    """Decoding leaves special tokens out, and the library has made the bytes special to give them a place."""
    state = json.loads(bpe.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in BYTES]
    return BPE.from_str(json.dumps(state))


class Tokenizer:
    """The BPE with what goes before and after it."""

    def __init__(self, bpe: BPE, config: DataConfig, target: BPE | None = None) -> None:
        """`target` splits text of the target language, into tokens of the same vocabulary."""
        self.bpe, self.config, self.target = bpe, config, target
        self._words, self._target_words = Words(bpe), Words(target or bpe)
        for each in (bpe, target or bpe):
            each.encode_special_tokens = True  # "<pad>" in somebody's text is text
            each.no_truncation()  # a published vocabulary may say otherwise: text would be lost, or filled up
            each.no_padding()

    @classmethod
    def load(cls, path: Path, config: DataConfig) -> Tokenizer:
        beside = path.with_name(TARGET)
        try:
            return cls(BPE.from_file(str(path)), config, BPE.from_file(str(beside)) if beside.exists() else None)
        except BaseException as error:  # the library raises nothing more specific, and panics on some files
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise UserError(f"{path} is not a tokenizer: {str(error)[:200]}") from None

    def save(self, folder: Path) -> None:
        write_text(folder / "tokenizer.json", self.bpe.to_str(pretty=True))
        if self.target is not None:
            write_text(folder / TARGET, self.target.to_str(pretty=True))

    @property
    def vocab_size(self) -> int:
        return self.bpe.get_vocab_size()

    @functools.cached_property
    def exact(self) -> bool:
        """Byte-level: the tokens of a text are its bytes."""
        return isinstance(self.bpe.decoder, decoders.ByteLevel)

    def encode(self, lines: Sequence[str], language: str) -> list[list[int]]:
        """Tokens of each line, without begin and end."""
        return self.encode_flat(lines, language).lists()

    def encode_flat(self, lines: Sequence[str], language: str) -> Flat:
        cleaned = list(lines) if self.exact else [clean(line, self.config, language) for line in lines]
        of_target = self.target is not None and language == self.config.target_lang
        return (self._target_words if of_target else self._words).encode(cleaned)

    def stored(self, tokens: np.ndarray) -> np.ndarray:
        """In the type that shards have, which holds every number below the size of the vocabulary."""
        if (most := tokens.max(initial=0)) >= self.vocab_size:
            raise UserError(
                f"data.vocabulary={self.config.vocabulary} has {self.vocab_size:,} tokens and one of them is number "
                f"{most:,}: use a vocabulary whose numbers leave none out"
            )
        return tokens.astype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def decode(self, tokens: Iterable[Sequence[int]]) -> list[str]:
        """Lines as the model was trained on them: tokenised text stays tokenised."""
        return self.bpe.decode_batch([list(t) for t in tokens], skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """How a token is written; ▁ begins a word, ## goes on with one."""
        return self.bpe.id_to_token(token) or ""

    def special(self, name: str) -> int:
        """The number of [CLS] and its like."""
        token = self.bpe.token_to_id(name)
        if token is None:
            if name not in BERT_SPECIAL:
                raise UserError(f"this vocabulary has no {name}: use one that was learnt on the languages of this data")
            raise UserError(
                f"this vocabulary has no {name}: prepare documents (data.source=documents:PATH) for this task, with "
                "data.tokenizer=bpe or wordpiece"
            )
        return token

    @functools.cached_property
    def end_of_text(self) -> int:
        """The number of the token that ends a document, and stands before one."""
        numbers = [self.bpe.token_to_id(name) for name in END_OF_TEXT]
        if not self.exact or not any(number is not None for number in numbers):
            given = self.config.vocabulary
            raise UserError(
                "a language model needs a byte-level vocabulary that has an end of text (<|endoftext|>), and this one "
                "is none: "
                + (f"it is data.vocabulary={given}, give another" if given else "set data.tokenizer=byte_bpe")
            )
        return next(number for number in numbers if number is not None)

    def byte_lengths(self) -> np.ndarray:
        """[vocabulary] bytes that each token of a byte-level vocabulary stands for; 0: it stands for no text."""
        lengths = np.array([len(self.piece(token)) for token in range(self.vocab_size)], dtype=np.int64)
        for token, added in self.bpe.get_added_tokens_decoder().items():
            lengths[token] = 0 if added.special else len(added.content.encode())
        lengths[self.end_of_text] = 0  # also where it is a token like others
        return lengths

    def begins_word(self) -> np.ndarray:
        """[vocabulary] bool: the tokens that begin a word, where spaces around punctuation do not count."""
        pieces = [self.piece(token) for token in range(self.vocab_size)]
        marked = any(piece.startswith("▁") for piece in pieces)
        return np.array([piece.startswith("▁") if marked else not piece.startswith("##") for piece in pieces])

    def detokenize(self, line: str) -> str:
        """A line as a person would write it."""
        raw = self.config.text in ("raw", "moses_normalize")
        return line if raw else _moses_detokenizer(self.config.target_lang)(line.split())


def clean(line: str, config: DataConfig, language: str) -> str:
    """What happens to a line before BPE."""
    line = unicodedata.normalize("NFC", line)
    if config.text == "moses":
        line = _moses_tokenizer(language)(line)
    elif config.text == "moses_normalize":
        line = _moses_normalizer(language)(line)
    if config.lowercase:
        line = line.lower()
    return " ".join(line.split())


@functools.cache
def _moses_normalizer(language: str) -> Callable[[str], str]:
    """MosesPunctNormalizer.normalize in a fraction of its time: few of its many rules find anything in a line."""
    from sacremoses import MosesPunctNormalizer

    rules = [(_literal(r), re.compile(r), new) for r, new in MosesPunctNormalizer(lang=language).substitutions]

    def normalise(line: str) -> str:
        for literal, rule, new in rules:
            if literal in line:
                line = rule.sub(new, line)
        return line.strip()

    return normalise


def _literal(rule: str) -> str:
    """Without which a rule changes nothing: the longest of what stands between its groups, classes and repetitions."""
    if rule == " +":  # which becomes one space
        return "  "
    parts = re.split(r"(?<!\\)[()]|\[[^\]]*\]|\\[ds]|[+*]", rule)
    plain = [re.sub(r"\\(.)", r"\1", part.replace(r"\r", "\r")) for part in parts]
    return max(plain, key=len)


@functools.cache
def _moses_tokenizer(language: str) -> Callable[[str], str]:
    from sacremoses import MosesTokenizer

    normalise, tokenise = _moses_normalizer(language), MosesTokenizer(lang=language).tokenize
    return lambda line: tokenise(normalise(line), return_str=True)


@functools.cache
def _moses_detokenizer(language: str) -> Callable[[list[str]], str]:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language).detokenize
