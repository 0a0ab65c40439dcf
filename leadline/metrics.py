"""What a run measures: metrics.jsonl, a JSON a line, and the same for TensorBoard."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadline import history
from leadline.errors import UserError
from leadline.files import reason, to_json, write_text


class Metrics:
    """Writes both files. Lines after `update` are of a training that was killed, and are dropped.

    Lines that cannot be read are moved to metrics.damaged.jsonl; `damaged` counts them.
    """

    def __init__(self, folder: Path, update: int) -> None:
        self.folder, self.path, self.damaged = folder, folder / "metrics.jsonl", 0
        self._digest = hashlib.sha256()
        with self._writing():
            if self.path.exists():
                self._mend(update)
            self.file = self.path.open("a", encoding="utf-8", buffering=1)
            self.board = None
            with contextlib.suppress(ImportError):
                self.board = Board(folder / "tensorboard", update)

    def _mend(self, update: int) -> None:
        lines = history.lines(self.path)
        bad = [line for line, row in lines if row is None]
        self.damaged = len(bad)
        if bad:
            with (self.folder / "metrics.damaged.jsonl").open("ab") as file:
                file.writelines(line + b"\n" for line in bad)
        kept = [line.decode() + "\n" for line, row in lines if row is not None and row["update"] <= update]
        write_text(self.path, "".join(kept))
        self._digest.update("".join(kept).encode())

    def write(self, row: history.Row) -> None:
        line = to_json(row) + "\n"
        with self._writing():
            self.file.write(line)
            self._digest.update(line.encode())
            if self.board:
                self.board.write(row)

    def digest(self) -> str:
        """SHA-256 of metrics.jsonl as it should be now."""
        return self._digest.hexdigest()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # every line is flushed: what fails here has failed before
            self.file.close()
        if self.board:
            self.board.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the metrics of {self.folder} cannot be written: {reason(error)}; go on with leadline train --resume "
                f"{self.folder} when they can"
            ) from error


class Unwritten:
    """In place of Metrics in a process that does not write the run folder."""

    damaged = 0

    def write(self, row: history.Row) -> None:
        pass

    def digest(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Board:
    """TensorBoard's events. Its own writer has a thread, which can tell of a full disk only by a traceback."""

    numbers = itertools.count()  # of the files of this process

    def __init__(self, folder: Path, update: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}.{next(self.numbers)}"
        self.file = (folder / name).open("wb")
        self.records = RecordWriter(self.file)
        self._add(file_version="brain.Event:2")
        if update:  # what an earlier file has from here on counts no more
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=update + 1, session_log=start)
        self.file.flush()

    def _add(self, **fields: Any) -> None:
        self.records.write(self._event(wall_time=time.time(), **fields).SerializeToString())

    def write(self, row: history.Row) -> None:
        values = [
            self._summary.Value(tag=key, simple_value=value)
            for key, value in row.items()
            if key not in ("update", "epoch") and isinstance(value, int | float)
        ]
        self._add(step=int(row["update"]), summary=self._summary(value=values))
        self.file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
