"""The vocabulary of a translator that somebody else has saved, with our numbers for padding, start, end and unknown.

It is a tokenizer.json, or OPUS-MT's files: source.spm and target.spm say how text is split, vocab.json numbers the
pieces of both. Pieces that only the other one has are the last resort: characters that no piece of its own has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BPE

from leadline.config import DataConfig
from leadline.data.tokenizer import SPECIAL, UNK, Tokenizer
from leadline.errors import UserError
from leadline.exchange import sentencepiece
from leadline.exchange.folder import read_json
from leadline.files import Facts

LAST_RESORT = 1000.0  # less likely than the least likely piece


def read(folder: Path, described: Facts) -> tuple[Tokenizer, list[int]]:
    """The tokenizer, and for each of its tokens the row of its embeddings."""
    if (folder / "source.spm").exists() and (folder / "vocab.json").exists():  # a tokenizer.json beside splits one side
        return _of_opus(folder, described)
    if (folder / "tokenizer.json").exists():
        return _renumbered(folder / "tokenizer.json", described)
    raise UserError(
        f"{folder} has neither tokenizer.json nor OPUS-MT's source.spm and vocab.json: save the tokenizer with "
        "transformers' save_pretrained"
    )


def _special(described: Facts, unknown: int | None, folder: Path) -> list[int]:
    """Their numbers for what we call PAD, BOS, EOS and UNK."""
    keys = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
    numbers = [described.get(key) for key in keys] + [unknown]
    if wrong := [key for key, number in zip((*keys, "<unk>"), numbers, strict=True) if type(number) is not int]:
        raise UserError(f"{folder}/config.json does not say which token is {wrong[0]}: it must be a whole number")
    return numbers  # type: ignore[return-value]


def _order(special: list[int], size: int) -> list[int]:
    """The row of each of our tokens: what is special first, one that is two things twice."""
    return special + [row for row in range(size) if row not in special]


def _named(pieces: list[str]) -> list[str]:
    """The first four are ours; another that is called as one of them, and has no use here, gets a name of its own."""
    return SPECIAL + [f"{piece} " if piece in SPECIAL else piece for piece in pieces[4:]]


def _renumbered(path: Path, described: Facts) -> tuple[Tokenizer, list[int]]:
    tokenizer = Tokenizer.load(path, DataConfig())
    size = tokenizer.vocab_size
    special = _special(described, tokenizer.bpe.token_to_id(SPECIAL[UNK]), path.parent)
    if [tokenizer.piece(number) for number in range(4)] == SPECIAL:  # ours; a tag may be the start of its targets
        return tokenizer, list(range(size))
    rows = _order(special, size)
    state = json.loads(tokenizer.bpe.to_str())
    names = _named([tokenizer.piece(row) for row in rows])
    now: dict[int, int] = {}
    for number, row in enumerate(rows):
        now.setdefault(row, number)
    model = state["model"]
    if isinstance(model.get("vocab"), list):
        scores = [score for _, score in model["vocab"]]
        spare = [scores[row] if row < len(scores) else 0.0 for row in rows]
        model |= {"vocab": [list(pair) for pair in zip(names, spare, strict=True)], "unk_id": UNK}
    else:
        model["vocab"] = {name: number for number, name in enumerate(names)}
    tokens = [
        token | {"id": now[token["id"]]}
        for token in state["added_tokens"]
        if now[token["id"]] > UNK and token["content"] not in SPECIAL
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    state["added_tokens"] = [{"id": i, "content": name} | flags for i, name in enumerate(SPECIAL)] + tokens
    state["post_processor"] = None
    try:
        return Tokenizer(BPE.from_str(json.dumps(state)), DataConfig()), rows
    except Exception as error:  # the library has no kind of its own
        raise UserError(f"{path} cannot be numbered as ours: {str(error)[:200]}") from None


def _of_opus(folder: Path, described: Facts) -> tuple[Tokenizer, list[int]]:
    settings = folder / "tokenizer_config.json"
    if (folder / "target_vocab.json").exists() or (settings.exists() and read_json(settings).get("separate_vocabs")):
        raise UserError(
            f"{folder} has a vocabulary for each side (target_vocab.json): only a shared one can be imported"
        )
    numbers = read_json(folder / "vocab.json")
    names = {number: piece for piece, number in numbers.items() if type(number) is int}
    if len(names) != len(numbers) or sorted(names) != list(range(len(names))):
        raise UserError(f"{folder / 'vocab.json'} does not number its pieces 0, 1, 2, …: it is not OPUS-MT's")
    rows = _order(_special(described, numbers.get(SPECIAL[UNK]), folder), len(names))
    ours = _named([names[row] for row in rows])
    source = _unigram(ours, folder / "source.spm")
    target = _unigram(ours, folder / "target.spm") if (folder / "target.spm").exists() else None
    return Tokenizer(source, DataConfig(), target), rows


def _unigram(names: list[str], path: Path) -> BPE:
    """Splits text as a SentencePiece model does, into tokens that are called `names`."""
    known = sentencepiece.read(path)
    least = min(known.scores.values(), default=0.0) - LAST_RESORT
    pieces = [(name, 0.0 if name in SPECIAL else known.scores.get(name, least)) for name in names]
    bpe = BPE(models.Unigram(pieces, UNK, False))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    charsmap = [normalizers.Precompiled(known.charsmap)] if known.charsmap else []
    bpe.normalizer = normalizers.Sequence([*charsmap, spaces])
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.decoder = decoders.Metaspace()
    bpe.add_special_tokens(SPECIAL)
    bpe.add_tokens([AddedToken(name, normalized=False) for name in tags(names)])
    return bpe


def tags(names: Iterable[str]) -> list[str]:
    """OPUS-MT's, such as ">>fra<<", which before a text asks for French."""
    return [name for name in names if name.startswith(">>") and name.endswith("<<")]
