"""Our tokenizer as a file that AutoTokenizer and the `tokenizers` library open, as far as that can hold it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, normalizers, processors
from tokenizers import Tokenizer as BPE

from leadline.data.tokenizer import Tokenizer
from leadline.files import Facts, write_json

SPACES = r"[\s\x1c-\x1f]+"  # what Python's split() splits at


def save(
    tokenizer: Tokenizer, out: Path, single: str, pair: str, special: list[str], settings: Facts | None
) -> list[str]:
    """What leadline.data.tokenizer.clean does becomes its normaliser; what cannot be is said.

    `single` and `pair` are the templates of one and of two texts, with the `special` tokens; `settings` are more of
    tokenizer_config.json, which only transformers reads.
    """
    bpe = BPE.from_str(tokenizer.bpe.to_str())
    steps = [normalizers.NFC(), normalizers.Replace(Regex(SPACES), " "), normalizers.Strip()]
    steps += [normalizers.Lowercase()] if tokenizer.config.lowercase else []
    bpe.normalizer = normalizers.Sequence([*steps, bpe.normalizer] if bpe.normalizer else steps)
    numbers = [(name, tokenizer.special(name)) for name in special]
    bpe.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=numbers)
    bpe.save(str(out / "tokenizer.json"))
    if settings is not None:
        usual = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        write_json(out / "tokenizer_config.json", usual | settings)
    text = tokenizer.config.text
    if text == "tokenized":
        return ["the run's text is tokenised (data.text=tokenized): give tokenised text there too, and detokenise it"]
    return [] if text == "raw" else [f"the run's text passes through Moses first (data.text={text}): do so there too"]
