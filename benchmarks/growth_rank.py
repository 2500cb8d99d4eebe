"""One real rank of the jobs of growth.py: all its messages are counted where hpcflow calls MPI.

    mpirun -n 8 python benchmarks/growth_rank.py FOLDER

Servers run this script only until hpcflow is asked for its ranks, so what each rank holds and has
done is written down by a thread, whenever the chief asks for it by a file in FOLDER.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import resource
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import common  # noqa: F401  (a checkout that is not installed will do)

MESSAGES, BYTES = "messages", "bytes"
CALLS, CALL_BYTES = "collective calls", "collective bytes"
STEPS, MEETINGS = 10, 4
LIMIT_S = 120.0

counts: collections.Counter[str] = collections.Counter()
sent_to: dict[int, list[int]] = collections.defaultdict(lambda: [0, 0])  # messages, bytes


def count_calls(MPI: Any) -> Any:
    """A stand-in for mpi4py's MPI whose world, and what is made from it, count what is called."""

    def called(size: int) -> None:
        counts[CALLS] += 1
        counts[CALL_BYTES] += size

    class Send(MPI.Prequest):
        def Start(self) -> None:
            sent(self.dest, self.size)
            super().Start()

    def sent(dest: int, size: int) -> None:
        counts[f"{MESSAGES} sent"] += 1
        counts[f"{BYTES} sent"] += size
        sent_to[dest][0] += 1
        sent_to[dest][1] += size

    class Counting(MPI.Intracomm):
        def world_rank(self, rank: int) -> int:
            world = MPI.COMM_WORLD.Get_group()
            return int(self.Get_group().Translate_ranks([rank], world)[0])

        def Isend(self, buffer: Any, dest: int, tag: int) -> Any:
            sent(self.world_rank(dest), nbytes(buffer))
            return super().Isend(buffer, dest, tag)

        def Send_init(self, buffer: Any, dest: int, tag: int) -> Any:
            made = Send(super().Send_init(buffer, dest, tag))
            made.dest, made.size = self.world_rank(dest), nbytes(buffer)
            return made

        def Iallreduce(self, given: Any, result: Any, op: Any) -> Any:
            called(2 * nbytes(result))
            return super().Iallreduce(given, result, op=op)

        def Ibcast(self, buffer: Any, root: int) -> Any:
            called(nbytes(buffer))
            return super().Ibcast(buffer, root)

        def Igatherv(self, given: Any, result: Any, root: int) -> Any:
            called(nbytes(given) + (0 if result is None else nbytes(result)))
            return super().Igatherv(given, result, root)

        def Igather(self, given: Any, result: Any, root: int) -> Any:
            called(nbytes(given) + (0 if result is None else nbytes(result)))
            return super().Igather(given, result, root)

        def Ibarrier(self) -> Any:
            called(0)
            return super().Ibarrier()

        def Dup(self) -> Any:
            called(0)
            return Counting(super().Dup())

        def Split(self, color: int, key: int) -> Any:
            called(0)
            part = super().Split(color, key)
            return part if part == MPI.COMM_NULL else Counting(part)

        def Split_type(self, kind: int, key: int) -> Any:
            called(0)
            return Counting(super().Split_type(kind, key=key))

    class Module:
        COMM_WORLD = Counting(MPI.COMM_WORLD)

        def __getattr__(self, name: str) -> Any:
            return getattr(MPI, name)

    return Module()


def nbytes(spec: Any) -> int:
    """Of the memory that mpi4py is given."""
    array = spec[0] if isinstance(spec, list) else spec
    return int(array.nbytes)


class Notes(threading.Thread):
    """Writes down what this rank has done and holds when a file asks for it."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.rank = folder, rank

    def run(self) -> None:
        for phase in ("begin", "start", "step", "meeting"):
            while not (self.folder / phase).exists():
                time.sleep(0.02)
            draft = self.folder / f".{self.rank}"
            draft.write_text(json.dumps(self.now()))
            draft.rename(self.folder / f"{phase}-{self.rank}")

    def now(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            **counts,
            "sent to": dict(sent_to),
            "CPU time": usage.ru_utime + usage.ru_stime - time.thread_time(),
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,
            "threads": len(os.listdir("/proc/self/task")) - 1,
            "memory": _private(),
        }


def _private() -> int:
    """Bytes of memory that this process alone has."""
    with open("/proc/self/smaps_rollup") as lines:
        rows = [line.split() for line in lines if line.startswith("Private_")]
    return 1024 * sum(int(row[1]) for row in rows)


def ask(folder: pathlib.Path, phase: str, size: int) -> None:
    """Have all ranks write down what they have done and hold; on the chief."""
    (folder / phase).touch()
    late = time.monotonic() + LIMIT_S
    while any(not (folder / f"{phase}-{rank}").exists() for rank in range(size)):
        if time.monotonic() > late:
            raise SystemExit(f"not all {size} ranks have told what they hold at {phase!r}")
        time.sleep(0.02)


def main() -> None:
    folder, rows = pathlib.Path(sys.argv[1]), sys.argv[2:] == ["rows"]
    from hpcflow.comm import mpi_library

    plain = mpi_library.initialized_mpi()
    world, size = plain.COMM_WORLD, plain.COMM_WORLD.size
    notes = Notes(folder, world.rank)
    notes.start()
    world.Barrier()  # so that MPI has its own connections
    if world.rank == 0:
        ask(folder, "begin", size)
    world.Barrier()
    counting = count_calls(plain)
    mpi_library.mpi_module = lambda: counting
    mpi_library.initialized_mpi.cache_clear()

    from growth_program import training

    from hpcflow.runtime.job.job_membership import current_context

    context = current_context()  # a server does not come back from here
    step = training(rows)
    drivers = world.Create_group(world.Get_group().Incl(context.roles.drivers))

    def meet() -> None:
        request = drivers.Ibarrier()
        while not request.Test():
            time.sleep(0.005)

    def take(phase: str) -> None:
        meet()
        if context.is_chief:
            ask(folder, phase, size)
        meet()

    step(), step()
    take("start")
    for _ in range(STEPS):
        step()
    take("step")
    for _ in range(MEETINGS):
        context.barrier()
    take("meeting")
    if context.is_chief:
        tell(folder, context)


def tell(folder: pathlib.Path, context: Any) -> None:
    """Write down which rank is what, and the files that this job has now."""
    ledgers = os.listdir(context.watching.ledger.directory)
    run = [path for path in pathlib.Path(context.settings.run_dir).rglob("*") if path.is_file()]
    told: Mapping[str, Any] = {
        "servers": context.roles.servers,
        "files of the job": len(run),
        "files of the node": len(ledgers),
    }
    (folder / "job").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
