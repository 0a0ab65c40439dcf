"""The processes of one command: those that torchrun has started, or one alone, for which all of this does nothing.

Numbers and text go between the hosts by gloo; tensors of GPUs by NCCL where each process has its own, and otherwise
through the hosts. Every process calls the same methods in the same order. Torch is loaded only where there are several.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from leadline.errors import UserError
from leadline.files import Facts
from leadline.options import flat

if TYPE_CHECKING:
    from torch import Tensor

STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells its processes
TIMEOUT = 600.0  # seconds to wait for another process; LEADLINE_TIMEOUT says otherwise


class Lost(UserError):
    """Another process has ended, or cannot be reached."""


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    nccl: bool = False
    store: Any = None  # of torch.distributed, which every process reads and writes; None: not started by torchrun

    @property
    def grouped(self) -> bool:
        """Whether torchrun has started it, perhaps as the only one."""
        return self.store is not None

    @property
    def leads(self) -> bool:
        """The process that writes files and tells people."""
        return self.rank == 0

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """The whole numbers of every process."""
        if not self.grouped:
            return [list(numbers)]
        import torch
        import torch.distributed as dist

        everybodys = torch.empty(self.size * len(numbers), dtype=torch.int64)
        with _reaching():
            dist.all_gather_into_tensor(everybodys, torch.tensor(numbers, dtype=torch.int64))
        rows: list[list[int]] = everybodys.view(self.size, -1).tolist()
        return rows

    def gather(self, value: Any) -> list[Any]:
        """What every process gives, as JSON; floats keep every bit."""
        if not self.grouped:
            return [value]
        import torch
        import torch.distributed as dist

        own = json.dumps(value).encode()
        lengths = [length for (length,) in self.exchange([len(own)])]
        longest = max(lengths)
        everybodys = torch.empty(self.size * longest, dtype=torch.uint8)
        with _reaching():
            padded = bytearray(own.ljust(longest))
            dist.all_gather_into_tensor(everybodys, torch.frombuffer(padded, dtype=torch.uint8))
        return [
            json.loads(row[:n].numpy().tobytes()) for row, n in zip(everybodys.chunk(self.size), lengths, strict=True)
        ]

    def merged(self, items: list[Any]) -> list[Any]:
        """The items of all processes: number i of them is item i // size of process i % size."""
        if not self.grouped:
            return items
        everybodys = self.gather(items)
        return [everybodys[i % self.size][i // self.size] for i in range(sum(map(len, everybodys)))]

    def require_alike(self, own: Facts) -> None:
        """All processes must do the same on the same: `own`, which may be nested, is what this one does."""
        first, *others = (flat(each) for each in self.gather(own))
        for rank, other in enumerate(others, 1):
            if changed := [key for key in first | other if first.get(key) != other.get(key)]:
                values = f"{first.get(changed[0])} in process 0 and {other.get(changed[0])} in process {rank}"
                key = changed[0].removeprefix("config.")
                raise UserError(f"the processes differ: {key} is {values}; start all with the same")

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Every process then has what `source` has."""
        import torch.distributed as dist

        with _reaching(), self._host(tensor) as host:
            dist.broadcast(host, source)

    def add(self, tensor: Tensor) -> None:
        """Every process then has the sum over all."""
        import torch.distributed as dist

        with _reaching(), self._host(tensor) as host:
            dist.all_reduce(host)

    def add_up_slice(self, vector: Tensor) -> Tensor:
        """This process's slice of `vector`, which then holds the sum over all processes; the rest means nothing more.

        Between hosts, added in the order of the processes.
        """
        import torch
        import torch.distributed as dist

        own = self.slice(vector)
        with _reaching():
            if self._direct(vector):
                dist.reduce_scatter_tensor(own, vector)
            else:
                theirs = torch.empty(len(vector), dtype=vector.dtype)
                dist.all_to_all_single(theirs, vector.cpu())
                own.copy_(functools.reduce(torch.add, theirs.chunk(self.size)))
        return own

    def collect(self, vector: Tensor) -> None:
        """Fill `vector` with every process's slice of it."""
        import torch
        import torch.distributed as dist

        own = self.slice(vector)
        with _reaching():
            if self._direct(vector):
                dist.all_gather_into_tensor(vector, own)
            else:
                with self._host(vector) as host:  # as bytes: gloo does not know every kind of number
                    dist.all_gather_into_tensor(host.view(torch.uint8), own.cpu().clone().view(torch.uint8))

    def bring(self, own: Tensor, vector: Tensor) -> None:
        """Fill `vector` with every process's slice of it in the process that leads; on hosts."""
        import torch.distributed as dist

        with _reaching():
            dist.gather(own.clone(), list(vector.chunk(self.size)) if self.leads else None)

    def slice(self, vector: Tensor) -> Tensor:
        """The part of a vector that is this process's."""
        return vector.view(self.size, -1)[self.rank]

    def _direct(self, tensor: Tensor) -> bool:
        return self.nccl and tensor.is_cuda

    @contextlib.contextmanager
    def _host(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensor where the collective reads and writes it."""
        if self._direct(tensor) or not tensor.is_cuda:
            yield tensor
            return
        host = tensor.cpu()
        yield host
        tensor.copy_(host)

    def leave(self) -> None:
        """At the end, when nothing is left to say."""
        if self.grouped:
            import torch.distributed as dist

            gc.collect()  # NCCL waits for graphs that hold its collectives
            self.exchange([0])
            dist.destroy_process_group()
            join.cache_clear()


ALONE = World()


def started() -> bool:
    """Whether this is a process of torchrun's."""
    return all(name in os.environ for name in STARTED)


def local_rank() -> int:
    """Its number among those on this machine; 0 where it is the only one."""
    return int(os.environ["LOCAL_RANK"]) if started() else 0


def restarted() -> bool:
    """Whether torchrun has started the processes again after some have failed."""
    return started() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@functools.cache
def join() -> World:
    """The world that this process is part of; the first time it waits for the others."""
    if not started():
        return ALONE
    import torch
    import torch.distributed as dist

    on_machine = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    nccl = 0 < on_machine <= torch.cuda.device_count() and dist.is_nccl_available()
    limit = timedelta(seconds=timeout())
    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=limit)))
        # Where processes are started again they find the same store, with the addresses of those before.
        store = dist.PrefixStore(f"leadline {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        where, many = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", os.environ["WORLD_SIZE"]
        taken = "EADDRINUSE" in str(error)
        why = "that port is in use, choose another (MASTER_PORT, torchrun --master-port)" if taken else _short(error)
        raise UserError(f"the {many} processes do not meet at {where}: {why}") from None
    world = World(rank, size, nccl, store)
    if len(set(world.gather(nccl))) > 1:
        raise UserError(
            "some machines have a GPU for each of their processes and others have not: start as many as GPUs"
        )
    return world


def tells() -> bool:
    """Whether this process is the one to tell an error: of those that have one, the first."""
    if not started():
        return True
    if not join.cache_info().currsize:
        return os.environ["RANK"] == "0"
    world = join()
    try:
        return int(world.store.add("leadline told", 1)) == 1
    except RuntimeError:  # it went with the process that kept it
        return world.rank <= 1


def leave_with(code: int) -> NoReturn:
    """Exit after an error. By NCCL at once: at the interpreter's end it waits for graphs that hold its collectives, and
    the error holds the step that captured them."""
    if join.cache_info().currsize and join().nccl:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def timeout() -> float:
    """Seconds to wait for another process."""
    given = os.environ.get("LEADLINE_TIMEOUT", "")
    try:
        seconds = float(given or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UserError(f"LEADLINE_TIMEOUT={given} is not a number of seconds: give one above 0, or leave it out")
    return seconds


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise Lost(f"another process has ended or cannot be reached: {_short(error)}") from None


def _short(error: Exception) -> str:
    """The first sentence of what torch says, without where in its code."""
    line = str(error).strip().split("\n")[0]
    return re.sub(r"^(\[\S+:\d+\] )+", "", line).partition(". ")[0].rstrip(".")
