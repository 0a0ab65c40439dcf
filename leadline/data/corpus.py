"""Documents as tokens: one block of text a shard, made by several processes, each shard whole or absent.

    FOLDER/train-00000.tokens.npy    all tokens of the block's documents, one sentence after the other
    FOLDER/train-00000.ends.npy      [sentences] where each ends
    FOLDER/train-00000.documents.npy [documents] how many sentences there are up to the end of each

A shard's last file is `block-00000.json`, what it holds. Whoever finds it there does not make the shard again, so that
work that was killed goes on behind its finished shards. Documents longer than two blocks are cut.

With a byte-level vocabulary a document is its paragraphs with line ends between them, to the byte, and behind them an
end of text; a "sentence" is then a paragraph.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from leadline import config as configuration
from leadline import machine
from leadline.config import DataConfig
from leadline.data.documents import Documents, Paragraph
from leadline.data.making import Progress, Unfinished
from leadline.data.ngram import baseline
from leadline.data.sentences import splitter
from leadline.data.tokenizer import Tokenizer, clean, learn
from leadline.errors import UserError
from leadline.files import Facts, read_json, write_json, write_text, written

BLOCK = 1 << 23  # characters of a shard
CHUNK = 2048  # sentences encoded at once
LEARN_ON = 1 << 25  # the vocabulary is learnt on this many characters at the most, from all over the text

Block = list[tuple[int, list[str]]]  # documents: number, paragraphs


class Shard(NamedTuple):
    tokens: np.ndarray
    ends: np.ndarray  # [sentences]
    documents: np.ndarray  # [documents]

    def each(self) -> Iterator[list[np.ndarray]]:
        """The sentences of each document."""
        sentences = np.split(self.tokens, self.ends[:-1])
        for begin, end in itertools.pairwise([0, *self.documents.tolist()]):
            yield sentences[begin:end]


class Survey(NamedTuple):
    """What a first look at the text finds; it also meets what is damaged before any work is done."""

    documents: int
    characters: int


def survey(source: Documents, config: DataConfig) -> Survey:
    documents = characters = 0
    for number, text in source.paragraphs():
        documents, characters = number + 1, characters + len(text)
    if not documents:
        raise UserError(f"{config.source} has no text: every line of it is blank")
    if documents == 1:
        raise UserError(
            f"{config.source} is a single document, so none is left for validation: separate documents by blank lines"
        )
    return Survey(documents, characters)


def is_valid(document: int, documents: int, config: DataConfig) -> bool:
    """Of every `valid_every` documents one, drawn from the seed; of what is left over at the end none."""
    every = min(config.valid_every, documents)
    group = document // every
    return group < documents // every and document % every == _chosen(config.seed, group, every)


@functools.lru_cache
def _chosen(seed: int, group: int, every: int) -> int:
    return int(np.random.default_rng((seed, group)).integers(every))


def blocks(paragraphs: Iterable[Paragraph]) -> Iterator[Block]:
    """The text in pieces of BLOCK characters, cut between documents unless they are very long."""
    block: Block = []
    size = 0
    for number, text in paragraphs:
        begins = not block or block[-1][0] != number
        if (size >= BLOCK and begins) or size >= 2 * BLOCK:
            yield block
            block, size = [], 0
        if not block or begins:
            block.append((number, []))
        block[-1][1].append(text)
        size += len(text)
    if block:
        yield block


def build(folder: Path, config: DataConfig, source: Documents, progress: Progress) -> Facts:
    """Fill a folder, or go on filling it; what the manifest says of it."""
    progress("looking through the text", 0)
    surveyed = survey(source, config)
    if not (folder / "tokenizer.json").exists():
        lines = _sample(source, config, surveyed, progress)
        write_text(folder / "tokenizer.json", learn(lines, config, documents=True).to_str(pretty=True))
    write_json(folder / "work.json", {"data": configuration.to_dict(config), "documents": surveyed.documents})
    todo = (
        {"number": number, "documents": block}
        for number, block in enumerate(blocks(source.paragraphs()))
        if not _marker(folder, number).exists()
    )
    processes = min(machine.cores(), math.ceil(surveyed.characters / BLOCK))
    done = _by_processes(folder, todo, processes) if processes > 1 else _alone(folder, todo)
    for counts in done:
        progress("encoding documents", counts["train"]["documents"] + counts["valid"]["documents"])
    facts = _totals(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json", config)
    compared = {}
    if tokenizer.exact:
        progress("counting trigrams, to compare with", 0)
        train, valid = ([s.tokens for s in read(folder, name, facts[name]["shards"])] for name in ("train", "valid"))
        compared = {"trigrams": baseline(train, valid, tokenizer.byte_lengths(), tokenizer.end_of_text)}
    # What a process that was killed left half written goes too.
    for path in [folder / "work.json", *folder.glob("block-*.json"), *folder.glob(".*")]:
        path.unlink()
    return {"vocab_size": tokenizer.vocab_size, "splits": facts} | compared


def lines(source: Documents) -> Iterator[str]:
    return (text for _, text in source.paragraphs())


def _sample(source: Documents, config: DataConfig, surveyed: Survey, progress: Progress) -> Iterator[str]:
    """What the vocabulary is learnt on: paragraphs of train at equal distances."""
    distance = math.ceil(surveyed.characters / LEARN_ON)
    for number, (document, text) in enumerate(source.paragraphs()):
        if number % distance == 0 and not is_valid(document, surveyed.documents, config):
            if number // distance % CHUNK == 0:
                progress("learning the vocabulary", CHUNK)
            yield text if config.tokenizer == "byte_bpe" else clean(text, config, config.source_lang)


def _marker(folder: Path, number: int) -> Path:
    return folder / f"block-{number:05d}.json"


def _totals(folder: Path) -> Facts:
    """Of all blocks."""
    facts = [read_json(path) for path in sorted(folder.glob("block-*.json"))]
    totals: Facts = {}
    for split in ("train", "valid"):
        counts = [fact[split] for fact in facts]
        totals[split] = {"shards": [fact["number"] for fact in facts if fact[split]["documents"]]}
        totals[split] |= {key: sum(count[key] for count in counts) for key in counts[0]}
        if not totals[split]["documents"]:
            raise UserError(f"the {split} split has no document with a word in it: lower data.valid_every or add text")
    return totals


def _alone(folder: Path, jobs: Iterator[Facts]) -> Iterator[Facts]:
    encoder = _Encoder(folder)
    yield from (encoder.encode(job["number"], job["documents"]) for job in jobs)


def _by_processes(folder: Path, jobs: Iterator[Facts], count: int) -> Iterator[Facts]:
    """Each process is this module as a program: it reads a job a line, and answers a line."""
    here = str(Path(__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TOKENIZERS_PARALLELISM": "false",
    }
    idle: queue.Queue[subprocess.Popen[str]] = queue.Queue()
    pending: list[Future[Facts]] = []

    def ask(process: subprocess.Popen[str], job: Facts) -> Facts:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # then there is no answer either
                process.stdin.write(json.dumps(job, ensure_ascii=False) + "\n")
                process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            idle.put(process)
        if not answer:
            raise Unfinished("a process that was preparing documents has died: prepare again to go on where it stopped")
        return json.loads(answer)

    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "leadline.data.corpus", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        for process in processes:
            idle.put(process)
        with ThreadPoolExecutor(count) as threads:
            for job in jobs:
                pending.append(threads.submit(ask, idle.get(), job))
                while pending and pending[0].done():
                    yield pending.pop(0).result()
            yield from (future.result() for future in pending)
    finally:
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # it leaves when there is nothing more to read
            process.wait()
            process.stdout.close()


class _Encoder:
    """Blocks of text to shards in a folder."""

    def __init__(self, folder: Path) -> None:
        work = read_json(folder / "work.json")
        self.folder, self.documents = folder, work["documents"]
        self.config = configuration.from_dict(work["data"], DataConfig, "data.")
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json", self.config)
        self.split = splitter(self.config.source_lang)

    def encode(self, number: int, block: Block) -> Facts:
        """Write the shard of a block; what it holds."""
        facts: Facts = {"number": number}
        for name, valid in (("train", False), ("valid", True)):
            documents = [d for d in block if is_valid(d[0], self.documents, self.config) == valid]
            shard = self._shard([paragraphs for _, paragraphs in documents])
            if len(shard.documents):
                for part, array in shard._asdict().items():
                    with written(self.folder / f"{name}-{number:05d}.{part}.npy") as file:
                        np.save(file.buffer, array)
            facts[name] = {
                "documents": len(shard.documents),
                "sentences": len(shard.ends),
                "tokens": len(shard.tokens),
                "empty_left_out": len(documents) - len(shard.documents),
            }
        write_json(_marker(self.folder, number), facts)
        return facts

    def _shard(self, documents: list[list[str]]) -> Shard:
        sentences: Iterator[tuple[int, str]] = (
            (number, sentence)
            for number, paragraphs in enumerate(documents)
            for sentence in self._sentences(paragraphs)
        )
        nothing = np.zeros(0, np.int64)
        parts, lengths, owners = [self.tokenizer.stored(nothing)], [nothing], [nothing]
        while some := list(itertools.islice(sentences, CHUNK)):
            encoded = self.tokenizer.encode_flat([sentence for _, sentence in some], self.config.source_lang)
            used = encoded.lengths > 0
            parts.append(self.tokenizer.stored(encoded.tokens))
            lengths.append(encoded.lengths[used])
            owners.append(np.array([number for number, _ in some])[used])
        ends = np.cumsum(np.concatenate(lengths)).astype(np.uint32)
        counts = np.bincount(np.concatenate(owners))
        shard = Shard(np.concatenate(parts), ends, np.cumsum(counts[counts > 0]).astype(np.uint32))
        return ended(shard, self.tokenizer.end_of_text) if self.tokenizer.exact else shard

    def _sentences(self, paragraphs: list[str]) -> Iterable[str]:
        if self.tokenizer.exact:
            return [*(f"{paragraph}\n" for paragraph in paragraphs[:-1]), paragraphs[-1]]
        return itertools.chain.from_iterable(map(self.split, paragraphs))


def ended(shard: Shard, end: int) -> Shard:
    """With the token `end` behind every document, as the last of its last sentence."""
    lasts = shard.documents.astype(np.int64) - 1
    is_last = np.zeros(len(shard.ends), dtype=np.int64)
    is_last[lasts] = 1
    tokens = np.insert(shard.tokens, shard.ends[lasts].astype(np.int64), end)
    return Shard(tokens, (shard.ends + np.cumsum(is_last)).astype(np.uint32), shard.documents)


def read(folder: Path, name: str, numbers: Iterable[int]) -> list[Shard]:
    parts = Shard._fields
    return [
        Shard(*(np.load(folder / f"{name}-{number:05d}.{part}.npy", mmap_mode="r") for part in parts))
        for number in numbers
    ]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides
    encoder = _Encoder(Path(sys.argv[1]))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(encoder.encode(job["number"], job["documents"])), flush=True)


if __name__ == "__main__":
    main()
