"""Progress bars, tables and notices. Progress goes to stderr, so that answers on stdout can be piped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from leadline.training.events import Event
from leadline.world import started

# Text is shown as it is: "[bold]" in a sentence is not an instruction.
# Of several processes of one training the first speaks.
quiet = started() and os.environ["RANK"] != "0"
screen = Console(stderr=True, highlight=False, markup=False, emoji=False, quiet=quiet)
answer = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)  # sentences are as long as they are

TABLE = box.Box("    \n    \n ── \n    \n    \n    \n    \n    \n")  # a space between columns, a rule under the heads
PLAIN_SECONDS = 10  # between lines where there is no terminal


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=screen,
    )


def _facts(row: dict[str, float]) -> str:
    if "loss" in row:
        speed = f"{row['tokens_per_second']:,.0f} tok/s"
        return f"loss {row['loss']:.3f}  lr {row['lr']:.2e}  grad {row['grad_norm']:.2f}  {speed}"
    unit = "an example" if "valid_matthews" in row else "a masked token" if "valid_accuracy" in row else "a token"
    text = f"valid {row['valid_nll']:.3f} nats {unit}"
    text += f"  BLEU {row['valid_bleu']:.1f}" if "valid_bleu" in row else ""
    text += f"  {row['valid_bits_per_byte']:.3f} bits a byte" if "valid_bits_per_byte" in row else ""
    return text + (f"  accuracy {row['valid_accuracy']:.3f}" if "valid_accuracy" in row else "")


class TrainingView:
    """A live bar for each training, or plain lines where there is no terminal. Use as an `on_step` function."""

    def __init__(self) -> None:
        self.bar = _bar() if screen.is_terminal else None
        self.tasks: dict[str, TaskID] = {}
        self.printed: dict[str, float] = {}

    def __enter__(self) -> TrainingView:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        self.show("", event)

    def show(self, name: str, event: Event) -> None:
        """`name` tells trainings apart that run side by side."""
        label = f"{name}: " if name else ""
        if self.bar and name not in self.tasks and event.kind != "message":  # the first numbers may take minutes
            self.tasks[name] = self.bar.add_task(
                name or "training", total=event.total, completed=event.update, facts=""
            )
        if event.message:
            screen.print(f"{label}{event.message}", soft_wrap=True)
            return
        if event.kind == "evaluation" and (self.bar is None or not name):
            screen.print(f"{label}update {event.update}/{event.total}  {_facts(event.row)}", soft_wrap=True)
        if self.bar:
            self.bar.update(self.tasks[name], completed=event.update, total=event.total, facts=_facts(event.row))
        elif event.kind == "update" and time.monotonic() - self.printed.get(name, 0) >= PLAIN_SECONDS:
            self.printed[name] = time.monotonic()
            screen.print(f"{label}update {event.update}/{event.total}  {_facts(event.row)}", soft_wrap=True)


@contextmanager
def counting(unit: str = "") -> Iterator[Callable[[str, int], None]]:
    """A function (what, done) for work whose end is not known: preparing data, inspecting a model.

    It takes what is being done, and how many more are done; 0 says only that it has begun.
    """
    unit = f" {unit}" if unit else ""
    if not screen.is_terminal:
        counts: dict[str, int] = {}
        told = 0.0

        def plain(what: str, done: int) -> None:
            nonlocal told
            new = what not in counts
            counts[what] = counts.get(what, 0) + done
            if new or (done and time.monotonic() - told >= PLAIN_SECONDS):
                screen.print(f"{what} …" if new else f"{what}: {counts[what]:,}{unit} so far", soft_wrap=True)
                told = time.monotonic()

        yield plain
        return
    with Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
        console=screen,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int) -> None:
            if what not in tasks:
                for before in tasks.values():
                    bar.stop_task(before)
                tasks[what] = bar.add_task(what, total=None, counted="")
            bar.advance(tasks[what], done)
            if count := round(bar.tasks[tasks[what]].completed):
                bar.update(tasks[what], counted=f"{count:,}{unit}")

        yield advance


@contextmanager
def sentences_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A function (done) for translating a known number of sentences."""
    if not screen.is_terminal:
        done, told = 0, time.monotonic()

        def plain(count: int) -> None:
            nonlocal done, told
            done += count
            if time.monotonic() - told >= PLAIN_SECONDS:
                screen.print(f"translating: {done:,} of {total:,} sentences", soft_wrap=True)
                told = time.monotonic()

        yield plain
        return
    with Progress(
        TextColumn("translating"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=screen,
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


def tell(notes: Iterable[str]) -> None:
    """Sentences a person should read, beside the progress."""
    for note in notes:
        screen.print(note, soft_wrap=True)


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Text columns to the left, numbers to the right."""
    if title:
        answer.print(title)
    shown = Table(box=TABLE, show_edge=False, padding=0)
    for i, column in enumerate(columns):
        numeric = all(row[i][:1].isdigit() for row in rows if row[i])
        shown.add_column(column, justify="right" if numeric else "left", no_wrap=not numeric)
    for row in rows:
        shown.add_row(*row)
    answer.print(shown, soft_wrap=False)


def definitions(rows: list[tuple[str, str]]) -> None:
    """Words to the left and what they mean beside them, over as many lines as that takes."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for row in rows:
        grid.add_row(*row)
    answer.print(grid, soft_wrap=False)
