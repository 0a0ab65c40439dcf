"""How to call an exported model: Python for its card, which tests run, and what it does not do there.

What a config says (languages, tags) is in that code as text only, whatever is in it.
"""

from __future__ import annotations

from leadline.data.directions import targets
from leadline.data.tokenizer import tag
from leadline.exchange import translators
from leadline.training.trained import Trained

FOLDER = 'folder = "."  # where this file lies\n'


def code(trained: Trained, to: str) -> str:
    kind = trained.model.config.architecture
    if kind == "encoder-decoder":
        return _translation(trained, to)
    return _generation() if kind == "decoder-only" else _encoder(trained)


def limits(trained: Trained) -> list[str]:
    """What a user of any format should know."""
    longest = trained.model.config.max_length
    if trained.model.config.architecture != "encoder-decoder":
        return [f"At most {longest} tokens."]
    told = [
        f"At most {longest - 1 - translators.tags_in_source(trained)} tokens of a sentence, its end not counted: "
        "`leadline translate` translates longer ones in pieces, the lines above leave their rest out.",
        f"`leadline translate` also ends a translation at {trained.config.decode.max_ratio:g} times its source and 20 "
        f"tokens, where a model repeats itself; here the limit is {longest} tokens. There it counts the score of the "
        "end, which transformers gives for nothing and CTranslate2 leaves out.",
    ]
    if trained.tokenizer.config.directions:
        known = ", ".join(tag(language) for language in targets(trained.tokenizer.config.directions))
        where = "before the text" if translators.tags_in_source(trained) else "in place of the first token it writes"
        told.append(f"The language to write is told by a tag {where}, one of: `{known}`.")
    return told


def _translation(trained: Trained, to: str) -> str:
    data = trained.tokenizer.config
    languages = targets(data.directions)
    asked = tag(languages[0]) if languages else ""
    before = f"{asked} " if asked and data.tag == "source" else ""
    start = asked if asked and data.tag == "target" else ""
    call = _by_transformers(start) if to == "huggingface" else _by_ctranslate2(trained, start, bool(before))
    return call.replace("# texts\n", _prepared(trained, before)).replace("print(written)\n", _finished(trained))


def _by_transformers(start: str) -> str:
    option = f", decoder_start_token_id=tokenizer.convert_tokens_to_ids({start!r})" if start else ""
    return f"""from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{FOLDER}tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
# texts
batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
tokens = model.generate(**batch{option})
written = tokenizer.batch_decode(tokens, skip_special_tokens=True)
print(written)
"""


def _by_ctranslate2(trained: Trained, start: str, tagged: bool) -> str:
    decode = trained.config.decode
    option = f"\n    target_prefix=[[{start!r}]] * len(texts)," if start else ""
    return f"""import ctranslate2
from tokenizers import Tokenizer

{FOLDER}translator = ctranslate2.Translator(folder, device="cpu")
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.encode_special_tokens = {not tagged}
tokenizer.enable_truncation({trained.model.config.max_length})
# texts
results = translator.translate_batch(
    [encoding.tokens for encoding in tokenizer.encode_batch(texts)],
    beam_size={decode.beam},
    length_penalty={decode.length_penalty:g},
    min_decoding_length=0,
    max_decoding_length={trained.model.config.max_length - 1},{option}
)
pieces = [result.hypotheses[0] for result in results]
written = tokenizer.decode_batch([[tokenizer.token_to_id(piece) for piece in row] for row in pieces])
print(written)
"""


def _prepared(trained: Trained, before: str) -> str:
    """The texts, through Moses where the run's text went through it."""
    data = trained.tokenizer.config
    texts = 'texts = ["A sentence to translate."]\n'
    if data.text == "tokenized":
        texts = 'texts = ["A sentence to translate ."]  # tokenised as Moses does\n'
    steps, made = "", "text"
    if data.text in ("moses", "moses_normalize"):
        made = f"MosesPunctNormalizer(lang={data.source_lang!r}).normalize({made})"
        steps = "from sacremoses import MosesPunctNormalizer\n\n"
    if data.text == "moses":
        made = f"MosesTokenizer(lang={data.source_lang!r}).tokenize({made}, return_str=True)"
        steps = "from sacremoses import MosesPunctNormalizer, MosesTokenizer\n\n"
    if made != "text":
        texts = f"{steps}{texts}texts = [{made} for text in texts]\n"
    return f"{texts}texts = [{before!r} + text for text in texts]\n" if before else texts


def _finished(trained: Trained) -> str:
    data = trained.tokenizer.config
    if data.text not in ("moses", "tokenized"):
        return "print(written)\n"
    detokenised = f"MosesDetokenizer(lang={data.target_lang!r}).detokenize(line.split())"
    return f"from sacremoses import MosesDetokenizer\n\nprint([{detokenised} for line in written])\n"


def _generation() -> str:
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

{FOLDER}tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
prompt = tokenizer.bos_token + "Once upon"  # a document begins with it
batch = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
"""


def _encoder(trained: Trained) -> str:
    model = trained.model.config
    kind = "AutoModelForMaskedLM" if model.head == "bert" else "AutoModel"
    kind = "AutoModelForSequenceClassification" if model.classes and model.head != "bert" else kind
    return f"""from transformers import AutoTokenizer, {kind}

{FOLDER}tokenizer = AutoTokenizer.from_pretrained(folder)
model = {kind}.from_pretrained(folder)
print(model(**tokenizer("A sentence.", return_tensors="pt"))[0].shape)
"""
