"""What a user would run instead of `leadline train`: transformers' Trainer, from raw text to a trained model.

    python -m bench.trainer CONFIG OUT [--batches ours]        as bench.command calls it

CONFIG is Leadline's, so that model, data, updates, schedule and precision are the same. So are the start (our weights,
copied), the vocabulary (learnt with the same call to `tokenizers`, in this process's time) and the loss on validation
text. With its own batches Trainer draws sentences grouped by length, as many as ours has in a pack on average; with
ours, the same rows in each update.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from bench import convert
from leadline import config as configuration
from leadline.config import Config
from leadline.data import batching, corpus
from leadline.data.sources import open_source
from leadline.data.tokenizer import BERT_SPECIAL, BOS, EOS, PAD, Tokenizer, clean, learn
from leadline.exchange import huggingface
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.training import optim

NOTHING = -100
AT_ONCE = 128  # sentences that are judged or translated together
Row = dict[str, list[int]]


class Told:
    """Lines of metrics.jsonl, which bench.command reads as they come."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True)
        self.path = out / "metrics.jsonl"

    def __call__(self, **facts: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


class Judged(transformers.Seq2SeqTrainer):
    """Its evaluation is ours: nats a token of the whole split. It may be given the rows of each update."""

    judge: Any
    told: Told
    plan: Sequence[np.ndarray] = ()
    last: tuple[int, float] = (0, 0.0)  # update and loss of the last evaluation

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        if self.last[0] == self.state.global_step:  # it asks once more at the end
            return {"eval_loss": self.last[1]}
        model: Any = self.model
        model.eval()
        with torch.inference_mode():
            nll = self.judge(model)
        model.train()
        self.told(update=self.state.global_step, valid_nll=nll)
        self.last = (self.state.global_step, nll)
        return {"eval_loss": nll}

    def get_train_dataloader(self) -> Any:
        if not len(self.plan):
            return super().get_train_dataloader()
        return torch.utils.data.DataLoader(
            cast(Any, self.train_dataset),
            batch_sampler=[rows.tolist() for rows in self.plan],
            collate_fn=self.data_collator,
        )


def arguments(config: Config, out: Path, **more: Any) -> transformers.Seq2SeqTrainingArguments:
    train, gpu = config.train, torch.cuda.is_available() and config.train.device != "cpu"
    return transformers.Seq2SeqTrainingArguments(
        output_dir=str(out / "checkpoints"), max_steps=train.updates, gradient_accumulation_steps=train.accumulate,
        bf16=train.precision == "bf16", use_cpu=not gpu, max_grad_norm=config.optim.clip, seed=train.seed,
        label_smoothing_factor=train.label_smoothing, eval_strategy="steps", eval_steps=train.eval_every,
        save_strategy="steps", save_steps=train.eval_every, save_total_limit=train.keep, logging_steps=train.log_every,
        report_to=[], disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=gpu,
        dataloader_num_workers=4 if gpu else 0, **more,
    )  # fmt: skip


def fit(config: Config, model: Any, train: Any, collate: Any, judge: Any, told: Told, **more: Any) -> Judged:
    """Trained, with our optimizer and schedule."""
    plan = more.pop("plan", ())
    rate = optim.schedule(config.optim, config.train.updates, config.train.updates)
    optimizer = optim.optimizer(config.optim, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done + 1) / config.optim.known_lr)
    given = arguments(config, told.path.parent, **more)
    trainer = Judged(
        model=model, args=given, train_dataset=train, eval_dataset=train[:1], data_collator=collate,
        optimizers=(optimizer, schedule),
    )  # fmt: skip
    trainer.judge, trainer.told, trainer.plan = judge, told, plan
    trainer.train()
    trainer.save_model(str(told.path.parent / "model"))
    told(trained=True)
    return trainer


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)


def collated(rows: Sequence[Row]) -> dict[str, Tensor]:
    sources = _padded([row["input_ids"] for row in rows], PAD)
    labels = _padded([row["labels"] for row in rows], NOTHING)
    given = labels.new_full(labels.shape, PAD)
    given[:, 0], given[:, 1:] = BOS, labels[:, :-1].where(labels[:, :-1] != NOTHING, PAD)
    mask = (sources != PAD).long()
    return {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": given, "labels": labels}


def _sorted(rows: Sequence[Row]) -> Iterator[list[int]]:
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    for begin in range(0, len(order), AT_ONCE):
        yield order[begin : begin + AT_ONCE]


def nats_a_token(model: Any, rows: Sequence[Row], config: Config) -> float:
    device, total, count = next(model.parameters()).device, 0.0, 0
    for some in _sorted(rows):
        batch = {key: value.to(device) for key, value in collated([rows[i] for i in some]).items()}
        labels = batch.pop("labels").flatten()
        with autocast(device, config.train.precision):
            logits = model(**batch, use_cache=False).logits.flatten(0, 1).float()
        total += float(F.cross_entropy(logits, labels, ignore_index=NOTHING, reduction="sum"))
        count += int((labels != NOTHING).sum())
    return total / count


def translated(model: Any, sources: Sequence[Row], config: Config) -> list[list[int]]:
    device, decode = next(model.parameters()).device, config.decode
    results: list[list[int]] = [[]] * len(sources)
    model.eval()
    for some in _sorted(sources):
        batch = collated([sources[i] for i in some])
        with torch.inference_mode(), autocast(device, config.train.precision):
            written = model.generate(
                input_ids=batch["input_ids"].to(device), attention_mask=batch["attention_mask"].to(device),
                num_beams=decode.beam, do_sample=False, length_penalty=decode.length_penalty,
                max_new_tokens=min(config.model.max_length - 1, int(batch["input_ids"].shape[1] * 1.5) + 10),
            )  # fmt: skip
        for i, row in zip(some, written.tolist(), strict=True):
            words = row[1:]
            results[i] = words[: words.index(EOS)] if EOS in words else words
    return results


def _encoded(config: Config) -> tuple[Tokenizer, dict[str, list[Row]]]:
    """The vocabulary, and the pairs of each split as tokens; those of test whatever their length."""
    source, data = open_source(config.data), config.data
    lines = {split: list(source.pairs(split)) for split in source.splits()}
    languages = (data.source_lang, data.target_lang)
    cleaned = (clean(line, data, which) for pair in lines["train"] for line, which in zip(pair, languages, strict=True))
    tokenizer, rows = Tokenizer(learn(cleaned, data), data), {}
    for split, pairs in lines.items():
        sources, targets = (
            tokenizer.encode(side, which) for side, which in zip(zip(*pairs, strict=True), languages, strict=True)
        )
        both = [{"input_ids": [*s, EOS], "labels": [*t, EOS]} for s, t in zip(sources, targets, strict=True)]
        longest = config.model.max_length
        rows[split] = [row for row in both if split == "test" or max(map(len, row.values())) <= longest]
    return tokenizer, rows


def _plan(train: list[Row], config: Config, epochs: int) -> list[np.ndarray]:
    """The rows of our batches, of so many epochs."""
    lengths = np.array([[len(row["input_ids"]), len(row["labels"])] for row in train])
    shape = batching.shape_for(lengths, config.train.batch_tokens).with_room_for(lengths)
    return [rows for epoch in range(epochs) for rows in batching.epoch_plan(lengths, shape, config.train.seed, epoch)]


def translation(config: Config, out: Path, told: Told, our_batches: bool) -> None:
    tokenizer, rows = _encoded(config)
    many = len(_plan(rows["train"], config, 1))
    more: dict[str, Any] = {"per_device_train_batch_size": round(len(rows["train"]) / many)}
    if our_batches:
        updates = config.train.updates
        more["plan"] = _plan(rows["train"], config, -(-updates // many))[:updates]
    else:
        more["train_sampling_strategy"] = "group_by_length"
    model = convert.translator(
        Transformer(tokenizer.vocab_size, seed=config.train.seed, **configuration.to_dict(config.model))
    ).train()

    def judge(model: Any) -> float:
        return nats_a_token(model, rows["valid"], config)

    trainer = fit(config, model, rows["train"], collated, judge, told, **more)
    hypotheses = tokenizer.decode(translated(trainer.model, rows["test"], config))
    (out / "hypotheses.json").write_text(json.dumps(hypotheses), encoding="utf-8")


def _blocks(config: Config) -> tuple[Tokenizer, dict[str, list[Row]]]:
    """The vocabulary, and the text of each split end to end, cut into sequences of the model's length."""
    source: Any = open_source(config.data)
    paragraphs, data = list(source.paragraphs()), config.data
    count, longest = paragraphs[-1][0] + 1, config.model.max_length - 2
    valid = np.array([corpus.is_valid(number, count, data) for number, _ in paragraphs])
    texts = np.array([text for _, text in paragraphs], dtype=object)
    cleaned = (clean(text, data, data.source_lang) for text in texts[~valid])
    tokenizer = Tokenizer(learn(cleaned, data, documents=True), data)
    begin, end = tokenizer.special("[CLS]"), tokenizer.special("[SEP]")
    rows = {}
    for split, chosen in (("train", texts[~valid]), ("valid", texts[valid])):
        tokens = [token for own in tokenizer.encode(list(chosen), data.source_lang) for token in own]
        parts = [tokens[first : first + longest] for first in range(0, len(tokens) - longest + 1, longest)]
        rows[split] = [{"input_ids": [begin, *part, end]} for part in parts]
    return tokenizer, rows


def masked_lm(config: Config, out: Path, told: Told, our_batches: bool) -> None:
    """As transformers' run_mlm.py does it. There are no batches of ours: sentences are packed otherwise there."""
    tokenizer, rows = _blocks(config)
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token", "mask_token"), BERT_SPECIAL, strict=True))
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.bpe, **names)
    collate = transformers.DataCollatorForLanguageModeling(words, mlm_probability=0.15)
    started: Any = Transformer(tokenizer.vocab_size, seed=config.train.seed, **configuration.to_dict(config.model))
    huggingface.save(SimpleNamespace(model=started, tokenizer=tokenizer), out / "start")  # type: ignore[arg-type]
    model: Any = transformers.AutoModelForMaskedLM.from_pretrained(out / "start")
    size = config.train.batch_tokens // config.model.max_length
    torch.manual_seed(0)
    judged = [collate(rows["valid"][begin : begin + AT_ONCE]) for begin in range(0, len(rows["valid"]), AT_ONCE)]

    def judge(model: Any) -> float:
        device, total, count = next(model.parameters()).device, 0.0, 0
        for batch in judged:
            with autocast(device, config.train.precision):
                loss = model(**{key: value.to(device) for key, value in batch.items()}).loss
            masked = int((batch["labels"] != NOTHING).sum())
            total, count = total + float(loss) * masked, count + masked
        return total / count

    fit(config, model.train(), rows["train"], collate, judge, told, per_device_train_batch_size=size)


TASKS = {"translation": translation, "masked_lm": masked_lm}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", choices=["own", "ours"], default="own")
    given = parser.parse_args()
    config = configuration.load(given.config)
    TASKS[config.task](config, given.out, Told(given.out), given.batches == "ours")


if __name__ == "__main__":
    main()
