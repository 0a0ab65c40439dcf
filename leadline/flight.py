"""The flight recorder: the last few hundred updates of a training, number by number, and the rows of their batches.

    flight.jsonl, flight.before.jsonl     a JSON line an update, or several that add to each other

    update, epoch, batch, rows     which rows of the data its batches were, one list a batch
    loss, grad_norm, lr
    layers, pulse                  the quantities of leadline.pulse; the names of the layers are said once

The first is appended to and takes the place of the second when it is full. Nothing is forced to the disk: what a killed
process has written is there all the same, and only a machine that loses its power loses some of it. No torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from leadline import history
from leadline.errors import UserError
from leadline.files import reason, to_json, write_text
from leadline.history import Row

KEPT = 300  # updates in a full file: so many at least are known, and at most twice as many
DIGITS = 5  # of a number
QUANTITIES = ("grad", "update", "weight", "outside")  # of leadline.pulse
EMBEDDINGS, NORMS = "embeddings", "norms"  # the layers that are no sublayer


class Flight:
    """Writes the recorder of a run folder. What it holds of updates after `update`, of a training that was killed, is
    dropped."""

    def __init__(self, folder: Path, update: int = 0) -> None:
        self.folder, self.now, self.before = folder, *paths(folder)
        with self._writing():
            self.layers: list[str] = []
            kept = [row for row in read(folder) if row["update"] <= update]
            write_text(self.before, "".join(map(self._line, kept[-KEPT:])))
            self._open()

    def _open(self) -> None:
        self.file = self.now.open("w", encoding="utf-8", buffering=1)
        self.layers, self.updates = [], set[int]()

    def write(self, row: Row) -> None:
        """What is known of an update; a second row of the same adds to it."""
        with self._writing():
            if len(self.updates) >= KEPT and row["update"] not in self.updates:
                self.file.close()
                self.now.replace(self.before)
                self._open()
            self.updates.add(row["update"])
            self.file.write(self._line(row))

    def _line(self, row: Row) -> str:
        layers = row.get("layers", self.layers)
        said = {key: value for key, value in row.items() if key != "layers" or value != self.layers}
        self.layers = layers
        if "pulse" in row:
            said["pulse"] = [list(map(_rounded, values)) for values in row["pulse"]]
        return to_json(said) + "\n"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the flight recorder of {self.folder} cannot be written: {reason(error)}; go on from the last "
                "checkpoint when it can"
            ) from error


def _rounded(value: float | None) -> float | None:
    """None is what a number that is not finite was written as."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def paths(folder: Path) -> tuple[Path, Path]:
    """The file that is written to, and the one before."""
    return folder / "flight.jsonl", folder / "flight.before.jsonl"


def read(folder: Path) -> list[Row]:
    """What is known of each update, in their order; lines that are damaged are left out."""
    rows: dict[int, Row] = {}
    for path in reversed(paths(folder)):
        layers: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            for _, row in history.lines(path):
                if row is not None:
                    layers = row.get("layers", layers)
                    if "pulse" in row and any(len(values) != len(layers) for values in row["pulse"]):
                        del row["pulse"]  # the line that names the layers is damaged
                    named = {"layers": layers} if "pulse" in row else {}
                    rows.setdefault(row["update"], {}).update(row | named)
    return [rows[update] for update in sorted(rows)]
