"""Translators in and out of transformers and CTranslate2: the same logits and hypotheses on both sides."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as BPE
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor, nn

from leadline import evaluations
from leadline.config import Config, DataConfig
from leadline.data.tokenizer import EOS, Tokenizer, learn
from leadline.diagnose.inspection import Inspection
from leadline.diagnose.verdict import Verdict
from leadline.errors import UserError
from leadline.exchange import ctranslate2, formats, huggingface
from leadline.exchange.export import export
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.placement import PLACEMENTS
from leadline.training.trained import Trained, load

transformers = pytest.importorskip("transformers")

SOURCE, TARGET = np.array([5, 6, 7, 30, 2]), np.array([1, 9, 8, 44])
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "dim": 16, "ffn_dim": 24, "heads": 4, "max_length": 24}
LINES = ["the lead line sounds the depth", "das Lot misst die Tiefe der See", "twelve fathoms, no bottom!"] * 9
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "post_ln": ("MarianMTModel", {"placement": "post_ln", "activation": "gelu"}),
    "post_ln, three matrices": ("MarianMTModel", {"placement": "post_ln", "embeddings": "separate"}),
    "post_ln, as OPUS-MT": ("MarianMTModel", {"placement": "post_ln", "activation": "silu", "head": "bias"}),
    "deepnorm": ("MarianMTModel", {"placement": "deepnorm"}),
    "deepnorm, learned positions": (
        "MarianMTModel", {"placement": "deepnorm", "embeddings": "output_tied", "positions": "learned"}
    ),
    "admin": ("MarianMTModel", {"placement": "admin", "embed_scale": False}),
    "admin_constant": ("MarianMTModel", {"placement": "admin_constant", "activation": "gelu_tanh"}),
    "pre_ln": ("PegasusForConditionalGeneration", {"placement": "pre_ln"}),
    "pre_ln, learned positions": (
        "PegasusForConditionalGeneration", {"placement": "pre_ln", "positions": "learned", "activation": "gelu"}
    ),
}  # fmt: skip


def scatter(model: nn.Module) -> None:
    """Weights far from any initialisation, so that nothing is 0, 1 or symmetric by chance."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size, centre = (parameter.shape[-1] ** -0.5, 0.0) if parameter.dim() > 1 else (0.3, 0.7)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size + centre)


def tokenizer_of(**data: Any) -> Tokenizer:
    config = DataConfig(vocab_size=80 if "directions" not in data else 340, **data)
    tags = ("de", "en") if config.directions else ()
    return Tokenizer(learn(LINES, config, languages=tags), config)


def run_of(tokenizer: Tokenizer | None = None, beam: int = 5, **changes: Any) -> Trained:
    tokenizer = tokenizer or tokenizer_of()
    config = Config(data=tokenizer.config).set(model=SIZES | changes, decode={"beam": beam})
    model = Transformer(tokenizer.vocab_size, **SIZES | changes)
    scatter(model)
    return Trained(config, model.eval(), tokenizer, "last")


def that_ends(trained: Trained) -> Trained:
    """Positions count for more than tokens, so that it hardly repeats itself and </s> comes before its limit."""
    model: Any = trained.model
    with torch.no_grad():
        model.source_embed.positions.weight.mul_(3)
        model.target_embed.positions.weight.mul_(6)
        model.output.weight[EOS] *= 3
    return trained


@torch.no_grad()
def ours(model: Transformer) -> Tensor:
    return model.logits(model(pack_one([SOURCE]), pack_one([TARGET])))


@torch.no_grad()
def theirs(model: Any) -> Tensor:
    return model(torch.from_numpy(SOURCE)[None], decoder_input_ids=torch.from_numpy(TARGET)[None]).logits[0]


def close(found: Tensor, expected: Tensor) -> None:
    assert expected.std() > 0.1
    assert (found - expected).abs().max() <= 1e-5


def opened(folder: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", OURS)
def test_an_exported_translator_gives_the_same_logits_and_comes_back(name: str, tmp_path: Path) -> None:
    architecture, options = OURS[name]
    trained = run_of(**options)
    before = {key: p.clone() for key, p in trained.model.named_parameters()}
    notes = huggingface.save(trained, tmp_path / "folder")
    assert all(torch.equal(before[key], p) for key, p in trained.model.named_parameters())
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not any(report.values())  # no weight is missing and none is too much
    assert type(model).__name__ == architecture
    close(theirs(model.eval()), ours(trained.model))

    huggingface.load(tmp_path / "folder", tmp_path / "run")
    back = load(tmp_path / "run", "last", "cpu")
    close(ours(back.model), ours(trained.model))
    assert back.config.decode == trained.config.decode
    if options["placement"] in ("post_ln", "pre_ln"):
        assert all(torch.equal(before[key], p) for key, p in back.model.named_parameters())
        assert before.keys() == dict(back.model.named_parameters()).keys()
    huggingface.save(back, tmp_path / "again")
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("folder", "again")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])

    if any("_keys_to_ignore_on_save" in note for note in notes):
        model._keys_to_ignore_on_save = None
    model.save_pretrained(tmp_path / "theirs")
    close(theirs(opened(tmp_path / "theirs")), ours(trained.model))


def sentences(trained: Trained) -> list[str]:
    return ["the depth of the sea!", "zwölf", "das Lot <s> \x1f misst,  die\ttiefe See", "no", "A\u0308"]


@pytest.mark.parametrize("placement", ["post_ln", "deepnorm", "pre_ln"])
@pytest.mark.parametrize("beam", [1, 5])
def test_exported_translators_write_the_same(placement: str, beam: int, tmp_path: Path) -> None:
    """In transformers and in CTranslate2, from the text on."""
    translating = pytest.importorskip("ctranslate2")
    trained = that_ends(run_of(placement=placement, positions="learned", max_length=60, beam=beam))
    config = trained.config.set(decode={"max_ratio": 900.0})  # one limit for all sentences, as theirs
    expected = replace(trained, config=config).translate(sentences(trained))
    assert all(expected)
    for to in ("huggingface", "ctranslate2"):
        export(tmp_path / "none", trained, tmp_path / to, to)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    batch = tokenizer(sentences(trained), return_tensors="pt", padding=True)
    tokens = opened(tmp_path / "huggingface").generate(**batch)
    assert [" ".join(s.split()) for s in tokenizer.batch_decode(tokens, skip_special_tokens=True)] == expected
    translator = translating.Translator(str(tmp_path / "ctranslate2"), device="cpu")
    pieces = [tokenizer.convert_ids_to_tokens(row) for row in tokenizer(sentences(trained))["input_ids"]]
    options: dict[str, Any] = {
        "beam_size": beam,
        "length_penalty": 1,
        "min_decoding_length": 0,
        "max_decoding_length": 59,
    }
    results = translator.translate_batch(pieces, **options)
    numbers = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    written = tokenizer.batch_decode(numbers, skip_special_tokens=True)
    assert [" ".join(s.split()) for s in written] == expected


@pytest.mark.parametrize(("changes", "data"), [
    ({"placement": "admin"}, {}),
    ({"placement": "pre_ln"}, {"lowercase": True, "text": "moses"}),
    ({"placement": "post_ln"}, {"text": "tokenized"}),
    ({"placement": "pre_ln"}, {"text": "moses_normalize"}),
    ({"placement": "post_ln"}, {"directions": ("de-en", "en-de")}),
    ({"placement": "deepnorm"}, {"directions": ("de-en", "en-de"), "tag": "target"}),
], ids=str)  # fmt: skip
def test_the_card_s_own_lines_translate_as_we_do(
    changes: dict, data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    trained = that_ends(run_of(tokenizer_of(**data), positions="learned", max_length=60, **changes))
    if data.get("directions"):
        trained = trained.into("de")
    text = "the »sea« is Twelve fathoms , and 3 ." if data.get("text") == "tokenized" else "the »sea« is Twelve, 3."
    short = trained.config.set(decode={"max_ratio": 900.0, "beam": 1})  # without a limit of its own
    expected = replace(trained, config=short).translate([text])
    for to in ("huggingface", "ctranslate2"):
        export(tmp_path / "none", replace(trained, config=short), tmp_path / to, to)
        card = (tmp_path / to / "README.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        monkeypatch.chdir(tmp_path / to)
        capsys.readouterr()
        exec(re.sub(r'"A sentence to translate ?\."', repr(text), code), {})
        found = json.loads(capsys.readouterr().out.splitlines()[-1].replace("'", '"'))
        assert [" ".join(s.split()) for s in found] == expected
        assert "license:  # yours to fill in" in card


def test_the_card_has_scores_with_their_signatures_and_the_verdict(
    leadline: Callable[..., Any], finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    answer = leadline("evaluate", run, "--split", "valid", "--checkpoint", "last", "--json")
    facts = {"split": "test", "checkpoint": "00000020", "bleu": 12.5}
    assert evaluations.write(run, facts, ["data.source=text:/home/me/secret"]) == []
    scores = json.loads(answer.out)
    assert leadline("export", run, tmp_path / "out", "--checkpoint", "last").code == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"- bleu: {scores['bleu']:.4g}\n" in card.partition("`leadline evaluate`, valid-checkpoint-last:")[2]
    assert f"- bleu signature: {scores['bleu_signature']}".replace("|", r"\|") in card
    assert "`leadline evaluate`, test-data.source=…:\n\n- bleu: 12.5\n" in card
    assert "secret" not in card
    assert "| `decode.beam` |" in card
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert f"The training did not diverge.\nIts loss began at {losses[0]:.3f} and ended at " in card
    assert "`leadline explain` says:\n\n- run: no sudden fault" in card
    assert "\n- loss " not in card  # the curve

    verdict = Verdict("trains at the rate asked for", True, 0.97, 1e-3, 0, 1e-2, 0, "encoder")
    Inspection("/home/me/run", [], [], [], verdict, {}).save(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"update": 21, "loss": null}\n')
    assert leadline("export", run, tmp_path / "again", "--checkpoint", "last").code == 0
    card = (tmp_path / "again" / "README.md").read_text(encoding="utf-8")
    assert "`leadline inspect` said:\n\n- run: trains at the rate asked for" in card
    assert "/home/me" not in card
    assert "The training diverged: its last numbers are not finite." in card
    (run / "inspection.json").write_text("{}")
    assert leadline("export", run, tmp_path / "third", "--checkpoint", "last").code == 0
    assert "an inspection that cannot be read" in (tmp_path / "third" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("measured", ["", '{"update": 2, "loss": null, "grad_norm": null}\n'])
def test_a_run_that_ended_before_a_loss_was_logged_is_not_said_to_be_imported(measured: str, tmp_path: Path) -> None:
    trained = run_of()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(measured)
    export(tmp_path / "run", trained, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "imported" not in card
    assert ("The training diverged" in card) == bool(measured)
    assert "It ended before a loss was logged." in card


@pytest.mark.parametrize("to", formats.TARGETS)
def test_all_files_of_a_folder_may_be_read_by_the_same_people(to: str, tmp_path: Path) -> None:
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    export(tmp_path / "none", run_of(placement="post_ln"), tmp_path / "out", to)
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len({*modes.values()}) == 1, modes


def test_what_a_config_says_is_text_in_the_card(tmp_path: Path) -> None:
    evil = 'de"); print("ran"); ("\n- [x](x) <b>`|'
    trained = run_of(tokenizer_of(text="moses"))
    tokenizer = Tokenizer(trained.tokenizer.bpe, replace(trained.tokenizer.config, source_lang=evil))
    export(tmp_path / "run <i>", replace(trained, tokenizer=tokenizer), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    strings = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert evil in strings
    prose = card.replace(code, "")
    assert "\n- [x]" not in prose
    assert re.findall(r"(?<!\\)<", prose.partition("# run")[2]) == []
    head = prose.split("---")[1]
    assert json.loads(re.findall(r"^- (.*)$", head, re.MULTILINE)[0]) == evil


@pytest.mark.parametrize("tag", ["source", "target"])
@pytest.mark.parametrize("placement", ["pre_ln", "post_ln", "deepnorm"])
def test_a_run_of_many_languages_comes_back(placement: str, tag: str, tmp_path: Path) -> None:
    trained = run_of(tokenizer_of(directions=("de-en", "en-de"), tag=tag), placement=placement)
    huggingface.save(trained, tmp_path / "folder")
    assert not any("tag" in note for note in huggingface.load(tmp_path / "folder", tmp_path / "run"))
    back = load(tmp_path / "run", "last", "cpu")
    for key in ("directions", "tag", "source_lang", "target_lang", "text"):
        assert getattr(back.config.data, key) == getattr(trained.config.data, key)
    assert back.into("de").translate(["the sea"]) == trained.into("de").translate(["the sea"])
    close(ours(back.model), ours(trained.model))
    if placement != "deepnorm":
        pairs = zip(back.model.named_parameters(), trained.model.named_parameters(), strict=True)
        assert all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)
    huggingface.save(back, tmp_path / "again")
    files = [load_file(tmp_path / folder / "model.safetensors") for folder in ("folder", "again")]
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])


def test_a_language_must_be_said_where_it_is_the_first_token(tmp_path: Path) -> None:
    trained = run_of(tokenizer_of(directions=("de-en", "en-de"), tag="target"), placement="post_ln")
    huggingface.save(trained, tmp_path / "folder")
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")(["Lot"], return_tensors="pt")
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        opened(tmp_path / "folder").generate(**batch)
    huggingface.load(tmp_path / "folder", tmp_path / "run")
    back = load(tmp_path / "run", "last", "cpu").into("en")
    assert back.translate(["das Lot"]) == trained.into("en").translate(["das Lot"])


def test_ctranslate2_s_numbers_are_ours_and_int8_is_smaller(tmp_path: Path) -> None:
    translating = pytest.importorskip("ctranslate2")
    for number, changes in enumerate([
        {"placement": "admin", "norm_eps": 1e-2, "activation": "silu", "head": "bias"},
        {"placement": "pre_ln", "embeddings": "separate"},
        {"placement": "deepnorm", "activation": "gelu_tanh", "embed_scale": False, "positions": "learned"},
    ]):  # fmt: skip
        trained = run_of(**changes)
        ctranslate2.save(trained, tmp_path / str(number))
        translator = translating.Translator(str(tmp_path / str(number)), device="cpu", compute_type="float32")
        pieces = [[trained.tokenizer.piece(int(token)) for token in side] for side in (SOURCE, TARGET[1:])]
        (found,) = translator.score_batch([pieces[0]], [pieces[1]])
        log_p = ours(trained.model).log_softmax(-1)
        expected = log_p[range(4), [*TARGET[1:], 2]]
        close(torch.tensor(found.log_probs), expected)
    wide = run_of(placement="pre_ln", dim=64, ffn_dim=256)
    sizes = []
    for quantization in ctranslate2.QUANTIZATIONS:
        ctranslate2.save(wide, tmp_path / quantization, quantization)
        sizes.append((tmp_path / quantization / "model.bin").stat().st_size)
    assert sizes[1] < sizes[0] / 2


SMALL = {
    "vocab_size": 84, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 24,
    "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2,
}  # fmt: skip


def folder_of(kind: str, out: Path, **changes: Any) -> Any:
    """A model of theirs with random weights and our vocabulary, saved."""
    prefix = "Marian" if kind.startswith("Marian") else "Pegasus"
    model = getattr(transformers, kind)(getattr(transformers, f"{prefix}Config")(**SMALL | changes)).eval()
    scatter_but_positions(model)
    model.save_pretrained(out)
    tokenizer_of().bpe.save(str(out / "tokenizer.json"))
    return model


def scatter_but_positions(model: Any) -> None:
    tables = [stack.embed_positions.weight.clone() for stack in (model.model.encoder, model.model.decoder)]
    scatter(model)
    with torch.no_grad():
        for stack, table in zip((model.model.encoder, model.model.decoder), tables, strict=True):
            stack.embed_positions.weight.copy_(table)


@pytest.mark.parametrize(("kind", "changes"), [
    ("MarianMTModel", {"activation_function": "gelu_new", "scale_embedding": True}),
    ("MarianMTModel", {"share_encoder_decoder_embeddings": False}),
    ("MarianMTModel", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    ("PegasusForConditionalGeneration", {"activation_function": "relu"}),
], ids=str)  # fmt: skip
def test_an_imported_translator_gives_the_same_logits(kind: str, changes: dict, tmp_path: Path) -> None:
    model = folder_of(kind, tmp_path / "folder", **changes)
    assert huggingface.load(tmp_path / "folder", tmp_path / "run") == [
        "4 rows of the vocabulary have no token and are left out"
    ]
    close(ours(load(tmp_path / "run", "last", "cpu").model), theirs(model)[:, :80])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_tokenizer_json_of_somebody_else_s_is_numbered_as_ours(kind: str, tmp_path: Path) -> None:
    """Pegasus's order: padding is also the start, then the end; unknown is further on, and there are tags."""
    names = ["<pad>", "</s>", "<mask>", "▁", "a", "b", "▁a", "<unk>", "▁b", "ab"]
    if kind == "unigram":
        bpe = BPE(models.Unigram([(name, -float(i)) for i, name in enumerate(names)], 7, False))
    else:
        numbers = {name: i for i, name in enumerate(names)}
        bpe = BPE(models.BPE(numbers, [("▁", "a"), ("▁", "b"), ("a", "b")], unk_token="<unk>"))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    bpe.add_special_tokens(["<pad>", "</s>", "<mask>", "<unk>"])
    model = folder_of("PegasusForConditionalGeneration", tmp_path / "folder", vocab_size=10, pad_token_id=0,
                      eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1)  # fmt: skip
    bpe.save(str(tmp_path / "folder" / "tokenizer.json"))
    assert huggingface.load(tmp_path / "folder", tmp_path / "run") == []
    run, rows = load(tmp_path / "run", "last", "cpu"), torch.tensor([0, 0, 1, 7, 2, 3, 4, 5, 6, 8, 9])
    text = "ab b a abc"
    (source,) = run.tokenizer.encode([text], "de")
    assert rows[source].tolist() == bpe.encode(text).ids
    assert run.tokenizer.decode([source]) == [bpe.decode(bpe.encode(text).ids)]
    found = run.model.logits(run.model(pack_one([np.array([*source, 2])]), pack_one([np.array([1, 9, 6])])))
    with torch.no_grad():
        inputs = {"input_ids": rows[[*source, 2]][None], "decoder_input_ids": rows[[1, 9, 6]][None]}
        close(found[:, 2:], model(**inputs).logits[0][:, rows[2:]])


@pytest.mark.parametrize(("change", "complaint"), [
    ({"decoder_attention_heads": 4}, "decoder_attention_heads=4 has no counterpart here, only 2, that of the encoder"),
    ({"normalize_before": True}, "normalize_before=True has no counterpart here, only False"),
    ({"decoder_vocab_size": 99}, "decoder_vocab_size=99 has no counterpart here, only 84"),
    ({"activation_function": ["relu"]}, r"activation_function=\['relu'\] has no counterpart here"),
    ({"d_model": 24}, r"embed_tokens|shared.weight is \(80, 16\), and config.json makes it \(80, 24\)"),
    ({"encoder_layers": 3}, "the weights have no model.encoder.layers.2.self_attn.q_proj.weight"),
    ({"d_model": "wide"}, "model.dim"),
    ({"num_attention_heads": 4}, "decoder_attention_heads=2 has no counterpart here, only 4, that of the encoder"),
    ({"is_causal": False}, "is_causal=False has no counterpart here, only True"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
    ({"share_encoder_decoder_embeddings": False}, r"have no model.encoder.embed_tokens.weight: save the model"),
    ({"leadline": {"data": {"source_lang": 3}}}, "data.source_lang"),
])  # fmt: skip
def test_a_folder_that_disagrees_is_refused_in_one_sentence(change: dict, complaint: str, tmp_path: Path) -> None:
    folder_of("MarianMTModel", tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=complaint):
        huggingface.load(tmp_path / "folder", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_matrices_that_are_tied_and_differ_are_refused(tmp_path: Path) -> None:
    """transformers would warn and not tie them."""
    folder_of("MarianMTModel", tmp_path / "folder", tie_word_embeddings=False)
    path = tmp_path / "folder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(UserError, match=r"ties model.shared.weight and model.encoder.embed_tokens.weight, which d"):
        huggingface.load(tmp_path / "folder", tmp_path / "run")


def test_a_spare_token_may_be_called_as_one_of_ours(tmp_path: Path) -> None:
    """Padding is the start, and "<s>" a token that nothing uses."""
    names = ["<pad>", "</s>", "<s>", "<unk>", "a", "b", "d"]
    bpe = BPE(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bpe.add_special_tokens(names[:4])
    model = folder_of("MarianMTModel", tmp_path / "folder", vocab_size=7, pad_token_id=0, eos_token_id=1,
                      decoder_start_token_id=0, forced_eos_token_id=1)  # fmt: skip
    bpe.save(str(tmp_path / "folder" / "tokenizer.json"))
    assert huggingface.load(tmp_path / "folder", tmp_path / "run") == []
    run, rows = load(tmp_path / "run", "last", "cpu"), torch.tensor([0, 0, 1, 3, 2, 4, 5, 6])
    (source,) = run.tokenizer.encode(["b a c"], "de")
    assert source == [6, 5, 3]
    found = run.model.logits(run.model(pack_one([np.array([*source, 2])]), pack_one([np.array([1, 6, 5])])))
    with torch.no_grad():
        inputs = {"input_ids": rows[[*source, 2]][None], "decoder_input_ids": rows[[1, 6, 5]][None]}
        close(found[:, 2:], model(**inputs).logits[0][:, rows[2:]])


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    folder_of("MarianMTModel", tmp_path / "folder")
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "folder" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin is a pickle, which can run code and is never opened: save"):
        huggingface.load(tmp_path / "folder", tmp_path / "run")


def test_a_vocabulary_that_is_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder_of("MarianMTModel", tmp_path / "folder")
    file = tmp_path / "folder" / "model.safetensors"
    tensors = load_file(file)
    save_file({name: x[:50].clone() if len(x) == 84 else x for name, x in tensors.items()}, file)
    with pytest.raises(UserError, match="has 80 tokens, and its model only 50"):
        huggingface.load(tmp_path / "folder", tmp_path / "run")


@pytest.mark.parametrize("to", formats.TARGETS)
@pytest.mark.parametrize("placement", [n for n in PLACEMENTS if "encoder-decoder" in PLACEMENTS[n].architectures])
def test_a_placement_is_exported_exactly_or_refused(to: str, placement: str) -> None:
    known = {"post_ln", "deepnorm", "post_ln_init", "ds_init", "admin", "admin_constant"}
    model = Config().set(model={"placement": placement}).model
    if placement in known | {"pre_ln"}:
        title = "CTranslate2" if to == "ctranslate2" else "Pegasus" if placement == "pre_ln" else "Marian"
        assert formats.choose(model, to).title == title
    else:
        with pytest.raises(UserError, match=f"{placement} has no counterpart in .*: what can be exported is post_ln, "):
            formats.choose(model, to)


@pytest.mark.parametrize(("changes", "needs"), [
    ({"norm": "rms_norm"}, "Pegasus needs model.norm=layer_norm"),
    ({"norm_eps": 1e-6}, "Pegasus needs model.norm_eps=1e-5"),
    ({"positions": "rotary"}, "Pegasus needs model.positions=sinusoidal or learned"),
    ({"activation": "swiglu"}, "Pegasus needs model.activation=relu or gelu or gelu_tanh or silu"),
    ({"bias": False}, "Pegasus needs model.bias=true"),
    ({"embeddings": "separate"}, "Pegasus needs model.embeddings=tied"),
    ({"placement": "deepnorm", "kv_heads": 1}, "Marian needs model.kv_heads=0 and model.head_dim=0"),
    ({"placement": "deepnorm", "embed_norm": True}, "Marian needs model.embed_norm=false"),
])  # fmt: skip
def test_what_theirs_is_not_is_refused(changes: dict, needs: str) -> None:
    with pytest.raises(UserError, match=f"transformers has no format for this model: {needs}$"):
        formats.choose(Config().set(model=changes).model)


def test_the_guide_has_the_table_of_formats() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    assert formats.markdown() in guide


def test_the_command_line_there_and_back_and_further(
    leadline: Callable[..., Any], finished: Path, tmp_path: Path
) -> None:
    there = leadline("export", finished, tmp_path / "folder")
    assert there.code == 0, there.err
    assert there.out.endswith("as PegasusForConditionalGeneration\n")
    back = leadline("import", tmp_path / "folder", tmp_path / "run")
    assert (back.code, back.out.splitlines()[-1]) == (0, f"next: echo … | leadline translate {tmp_path / 'run'}")
    first, second = (
        leadline("translate", run, stdin="zwölf Tage\n".encode()).out for run in (finished, tmp_path / "run")
    )
    assert first == second != ""
    config = tmp_path / "run" / "config.toml"
    further = leadline(
        "train", config, "--out", tmp_path / "further", "--set", f"train.start={tmp_path / 'run'}",
        "--set", "train.start_checkpoint=last", "--set", "data.source=builtin:numerals", "--set", "data.size=60",
        "--set", "train.updates=2", "--set", "train.batch_tokens=256", "--set", "train.device=cpu",
    )  # fmt: skip
    assert further.code == 0, further.err
    wrong = leadline("export", finished, tmp_path / "x", "--to", "onnx")
    assert (wrong.code, "--to cannot be 'onnx'" in wrong.err) == (2, True)
    wrong = leadline("export", finished, tmp_path / "x", "--quantization", "int8")
    assert "--quantization is for --to ctranslate2" in wrong.err
    assert not (tmp_path / "x").exists()


def test_a_language_model_or_encoder_does_not_go_to_ctranslate2() -> None:
    model = Config().set(model={"encoder_layers": 0}).model
    with pytest.raises(
        UserError, match=r"this model is decoder-only, .* to CTranslate2 is encoder-decoder: use --to hug"
    ):
        formats.choose(model, "ctranslate2")
