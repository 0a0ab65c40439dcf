"""The config: one TOML file, strict keys and kinds, and errors that name what was meant."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from leadline.config import Config, OptimConfig, from_dict, load, override, to_dict, to_toml
from leadline.errors import UserError, nearest
from leadline.recipes import RECIPES

PROMISED = {
    "model": ("placement", "encoder_layers", "decoder_layers", "dim", "ffn_dim", "heads"),
    "data": ("source", "vocab_size"),
    "optim": ("name", "lr", "schedule", "warmup"),
    "train": ("batch_tokens", "updates", "epochs", "seed"),
}


def value_of(config: Config, path: str) -> object:
    section, key = path.split(".")
    return getattr(getattr(config, section), key)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_survives_the_way_through_toml(recipe: str, tmp_path: Path) -> None:
    config = RECIPES[recipe]()
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert load(tmp_path / "config.toml") == config


@pytest.mark.parametrize("name", ['a "quoted" name', "b\\c\t[d]", "größe #1", "delete\x7f"])
def test_values_that_need_escapes_survive_the_way_through_toml(name: str) -> None:
    config = Config().set(data={"source": f"text:/tmp/{name}"}, optim={"eps": 1e-30, "decay_at": [3, 5]})
    assert from_dict(tomllib.loads(to_toml(config)), Config) == config


@pytest.mark.parametrize("path", [f"{section}.{key}" for section, keys in PROMISED.items() for key in keys])
def test_promised_keys_exist_and_can_be_set_to_what_they_are(path: str) -> None:
    value = value_of(Config(), path)
    assert override(Config(), [f"{path}={value}"]) == Config()


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("optim.lr=1e-3", 1e-3),
        ("optim.lr=1", 1.0),
        ("model.dim=64", 64),
        ("train.updates=1e3", 1000),
        ("model.embed_norm=true", True),
        ("model.embed_norm=False", False),
        ("optim.betas=0.8,0.9", (0.8, 0.9)),
        ("optim.betas=[0.8, 0.9]", (0.8, 0.9)),
        ("optim.decay_at=8", (8,)),
        ("optim.decay_at=", ()),
        ("optim.schedule=cosine", "cosine"),
        ("data.source=text:/a=b", "text:/a=b"),
        ("data.source_lang=1", "1"),
        (" optim.lr = 0.5 ", 0.5),
    ],
)
def test_override_reads_a_value_as_the_kind_its_key_declares(assignment: str, value: object) -> None:
    found = value_of(override(Config(), [assignment]), assignment.partition("=")[0].strip())
    assert found == value
    assert type(found) is type(value)


def test_overrides_apply_together_and_change_nothing_else() -> None:
    changed = override(Config(), ["train.epochs=0", "train.updates=5"])  # each alone would never stop
    assert (changed.train.epochs, changed.train.updates) == (0, 5)
    assert changed == Config().set(train={"epochs": 0, "updates": 5})


def test_the_top_level_key_can_be_overridden() -> None:
    assert override(Config(), ["task=other"]).task == "other"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("optim.lrr", "optim.lr"),
        ("modle.dim", "model.dim"),
        ("model.encoder_layer", "model.encoder_layers"),
        ("train.batch_token", "train.batch_tokens"),
        ("learning_rate", "optim.lr"),
        ("colour", "the choices are"),
        ("optim.lr.x", "optim.lr"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(path: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        override(Config(), [f"{path}=1"])
    assert repr(path) in str(error.value)
    assert meant in str(error.value)
    if "." in meant:
        assert f"did you mean '{meant}'?" in str(error.value)


@pytest.mark.parametrize(
    ("toml", "key", "meant"), [("[optim]\nlrr = 1", "'optim.lrr'", "'lr'"), ("[modle]\ndim = 1", "'modle'", "'model'")]
)
def test_an_unknown_key_in_a_file_names_the_nearest_right_one(toml: str, key: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"{key}: did you mean {meant}"):
        from_dict(tomllib.loads(toml), Config)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("model.dim=wide", "model.dim must be a whole number, not 'wide'"),
        ("model.dim=64.5", "model.dim must be a whole number"),
        ("optim.lr=fast", "optim.lr must be a number"),
        ("model.embed_norm=1", "model.embed_norm must be true or false"),
        ("optim.betas=0.9", "optim.betas needs 2 numbers"),
        ("optim.decay_at=3,x", "optim.decay_at must be a whole number, not 'x'"),
        ("optim=3", "optim is a section"),
        ("optim.lr", "has no '='"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(assignment: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        override(Config(), [assignment])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"model": {"dim": "64"}}, "model.dim must be a whole number"),
        ({"model": {"dim": True}}, "model.dim must be a whole number"),
        ({"optim": {"lr": False}}, "optim.lr must be a number"),
        ({"data": {"source": 3}}, "data.source must be text"),
        ({"model": {"embed_norm": "true"}}, "model.embed_norm must be true or false"),
        ({"model": 3}, "model is a section"),
        ({"optim": {"lr": {"value": 1}}}, "optim.lr must be a number"),
    ],
)
def test_a_file_is_as_strict_about_kinds(values: dict, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        from_dict(values, Config)


def test_an_unknown_schedule_lists_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"did you mean 'cosine'\?.*hold_inverse_sqrt, linear, constant, step, cosine"):
        override(Config(), ["optim.schedule=cosin"])


@pytest.mark.parametrize(
    "assignment",
    [
        "model.encoder_layers=-1",
        "model.dim=0",
        "model.dim=6",  # not a multiple of 4 heads
        "model.dropout=1",
        "model.dropout=-0.1",
        "model.attention_dropout=1.5",
        "data.vocab_size=4",
        "data.size=0",
        "data.holdout=-1",
        "data.seed=-1",
        "data.vocab_size=1000000000",
        "data.size=1000000000",
        "data.source=text:a\0b",
        "data.source_lang=d\0e",
        "data.target_lang=../en",
        "optim.lr=0",
        "optim.lr=-1",
        "optim.lr=nan",
        "optim.lr=inf",
        "optim.warmup=-1",
        "optim.hold=0",
        "optim.clip=-1",
        "optim.clip=nan",
        "optim.eps=-1",
        "optim.eps=0",
        "optim.betas=0.9,1",
        "optim.betas=-0.1,0.9",
        "train.updates=-1",
        "train.batch_tokens=0",
        "train.accumulate=0",
        "train.label_smoothing=1",
        "train.keep=0",
        "train.log_every=0",
        "train.eval_every=-2",
        "train.bleu_sentences=-2",
        "train.seed=-1",
        "train.seed=9223372036854775808",
        "train.batch_tokens=1e30",
        "train.label_smoothing=nan",
        "optim.betas=nan,0.9",
        "optim.decay_factor=-1",
        "optim.decay_factor=inf",
        "optim.decay_at=-3",
        "optim.decay_at=8,4",
        "optim.decay_at=4,4",
        "optim.weight_decay=inf",
        "mask.share=nan",
        "decode.beam=0",
        "decode.beam=1000000000",
        "decode.max_ratio=0",
        "decode.max_ratio=nan",
        "decode.max_ratio=inf",
        "decode.max_ratio=1e300",
        "decode.length_penalty=-1",
        "decode.length_penalty=nan",
    ],
)
def test_a_value_out_of_range_is_refused_by_name(assignment: str) -> None:
    with pytest.raises(UserError) as error:
        override(Config(), [assignment])
    assert assignment.partition("=")[0].partition(".")[2] in str(error.value)


def test_a_model_without_layers_and_a_training_without_end_are_refused() -> None:
    with pytest.raises(UserError, match="not both 0"):
        Config().set(model={"encoder_layers": 0, "decoder_layers": 0})
    with pytest.raises(UserError, match="never stop"):
        Config().set(train={"updates": 0, "epochs": 0})


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().optim.lr = 1.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().optim = OptimConfig()  # type: ignore[misc]


def test_set_returns_a_changed_copy() -> None:
    before = Config()
    after = before.set(optim={"lr": 1e-3, "betas": (0.8, 0.9)}, train={"seed": 2})
    assert (after.optim.lr, after.optim.betas, after.train.seed) == (1e-3, (0.8, 0.9), 2)
    assert after.set(optim={"lr": before.optim.lr, "betas": before.optim.betas}, train={"seed": 1}) == before
    assert before == Config()


@pytest.mark.parametrize("change", [{"optim": {"lrr": 1}}, {"modle": {"dim": 4}}, {"optim": {"lr": {"a": 1}}}])
def test_set_is_strict(change: dict) -> None:
    with pytest.raises(UserError):
        Config().set(**change)


def test_to_dict_is_what_from_dict_reads() -> None:
    assert from_dict(to_dict(Config()), Config) == Config()
    assert to_dict(Config())["optim"]["betas"] == [0.9, 0.98]


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.toml does not exist"):
        load(tmp_path / "gone.toml")
    deep = b"a = " + b"[" * 20_000
    for number, content in enumerate((b"lr = = 1", b"\xff\xfe", b"a = " + b"1" * 5000, deep)):
        path = tmp_path / f"bad{number}.toml"
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"bad{number}.toml is not a TOML file"):
            load(path)


def test_nearest_offers_no_guess_where_nothing_is_near() -> None:
    assert nearest("zzz", ["adam", "sgd"]) == "the choices are adam, sgd"


def test_of_many_names_only_the_nearest_is_told() -> None:
    names = [f"x{i}-y{i}" for i in range(100)]
    assert nearest("x7-y", names) == "did you mean 'x7-y7'?"
    assert nearest("???", names).count(",") == 99
    assert nearest("x1", names[:5]).startswith("did you mean 'x1-y1'? the choices are x0-y0, ")


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf[optim]\r\nlr = 1e-3\r\n")
    assert load(tmp_path / "config.toml").optim.lr == 1e-3
