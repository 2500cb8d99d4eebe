"""Jobs of thousands of ranks in one process: a few ranks are hpcflow's, the others their echo.

Rank 0 (the chief), rank 1 (a worker) and the server run hpcflow in a thread each, over its
communicator between threads. What rank 1 brings to a collective, or sends to one of these, all
further workers bring and send too, each in its own name; what is sent to them is counted and
dropped. So the ranks that live see as many neighbours, names and messages as in a real job. What
MPI does below the communicator is not simulated: that is counted on real ranks.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import growth_program
import numpy as np

import hpcflow
from hpcflow.comm.communicator import TrafficCounter
from hpcflow.comm.polling_backoff import CORES_TAG, crowded_hosts
from hpcflow.comm.thread_communicator import LocalCommunicator
from hpcflow.comm.thread_mailbox import (
    CollectiveCall,
    MessageDelays,
    ThreadGroup,
    ThreadMessage,
    ThreadTransfer,
)
from hpcflow.errors import CommError
from hpcflow.graph.graph import Graph
from hpcflow.plan.distribution.task_assignment import assign_tasks
from hpcflow.runtime.job import job_membership
from hpcflow.runtime.job.message_headers import BODY_TAG, BODY_WORD, HEADER_TAG, HeaderKind
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

CHIEF, MODEL = 0, 1
NODE = 16  # ranks of a node
EAGER_BYTES = 1 << 62  # each message is copied when it is sent
IDLE_POLLS = 40  # a server that has polled so often and found nothing has nothing to do
LIMIT_S = 300.0
FRAMES = 4  # of who has allocated memory
STEPS, MEETINGS = 4, 2
MESSAGES, BYTES = "messages", "bytes"
CALLS, CALL_BYTES = "collective calls", "collective bytes"
CPU, MEMORY = "CPU time", "memory"
SOURCES = str(pathlib.Path(hpcflow.__file__).parent)
DOUBLES = tuple(f"{SOURCES}/comm/{name}.py" for name in ("thread_communicator", "thread_mailbox"))

Numbers = collections.Counter[str]


class World:
    """`n` ranks with `servers` servers, and what those that live have done so far."""

    def __init__(self, n: int, servers: int, all_live: bool = False) -> None:
        self.hosts = tuple(f"node{rank // NODE:04d}" for rank in range(n))
        self.roles = assign_tasks(self.hosts, servers)
        few = (CHIEF, MODEL, *self.roles.servers)
        self.live = tuple(range(n)) if all_live else few
        self.done: dict[int, Numbers] = {rank: collections.Counter() for rank in self.live}
        self.played = dict.fromkeys(self.live, 0.0)  # CPU time of its thread for the simulation
        self.threads: dict[int, threading.Thread] = {}
        group = Echoing(self, range(n))
        self.comms = {
            rank: Simulated(self, group, rank, range(n), TrafficCounter()) for rank in self.live
        }

    @contextlib.contextmanager
    def playing(self, rank: int) -> Iterator[None]:
        """Inside, the thread of `rank` does what MPI or other ranks would do."""
        start = time.thread_time()
        yield
        self.played[rank] += time.thread_time() - start

    def now(self) -> dict[int, Numbers]:
        """What each rank has done, when the servers have answered all that has come."""
        for rank in self.roles.servers:
            self.comms[rank].idle = 0
            while self.comms[rank].idle < IDLE_POLLS and self.threads[rank].is_alive():
                time.sleep(0.001)
        found = {}
        for rank, thread in self.threads.items():
            clock = time.pthread_getcpuclockid(thread.ident or 0)
            spent: Any = time.clock_gettime(clock) - self.played[rank]
            found[rank] = collections.Counter({**self.done[rank], CPU: spent})
        return found


class Echoing(ThreadGroup):
    """What `ranks` of the world share; those that do not live bring what rank 1 brings."""

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(len(ranks), MessageDelays(None, 0), EAGER_BYTES)
        self.world, self.ranks = world, ranks
        self.echoes = [place for place, rank in enumerate(ranks) if rank not in world.live]

    def bring(
        self, key: object, rank: int, label: str, local_input: Any, combine: Callable[[list], Any]
    ) -> CollectiveCall:
        with self.lock, self.world.playing(self.ranks[rank]):
            if self.ranks[rank] == MODEL and self.echoes:
                inputs = self.rounds[key].inputs
                inputs.update(dict.fromkeys(self.echoes, (label, local_input)))
                if (own := _own_place(local_input, rank, self.size)) is not None:
                    inputs.update(dict.fromkeys(self.echoes, (label, np.zeros_like(local_input))))
                    table = np.zeros_like(local_input).reshape(self.size, -1)
                    table[self.echoes] = own
                    inputs[self.echoes[0]] = label, table.reshape(-1)
            return super().bring(key, rank, label, local_input, combine)


def _own_place(local_input: Any, rank: int, size: int) -> np.ndarray | None:
    """What `rank` wrote into its place of a table of all ranks, if `local_input` is one."""
    if (
        not isinstance(local_input, np.ndarray)
        or local_input.dtype != np.int64
        or local_input.size % size
    ):
        return None
    table = local_input.reshape(size, -1)
    return None if np.delete(table, rank, 0).any() else table[rank]


class Simulated(LocalCommunicator):
    """The communicator of a rank that lives."""

    max_tag = (1 << 31) - 1
    _group: Echoing

    def __init__(
        self, world: World, group: Echoing, rank: int, ranks: Sequence[int], traffic: TrafficCounter
    ) -> None:
        super().__init__(group, rank, traffic, ranks)
        self._world, self.hosts = world, tuple(world.hosts[rank] for rank in ranks)
        self._done = world.done[ranks[rank]]
        self._heads: dict[int, np.ndarray] = {}  # receiver -> the header whose body follows
        self.idle = 0  # polls since it has sent or been sent something

    def poll(self) -> None:
        super().poll()
        self.idle += 1

    # -- messages

    def _send(self, data: np.ndarray, dest: int, tag: int) -> ThreadTransfer:
        self._count(1, data.nbytes)
        place = self._top[dest]
        if place not in self._world.live:
            transfer = ThreadTransfer(self, data, dest, tag)
            transfer.completed = True
            self._close_ring(data, place, tag)
            return transfer
        with self._group.lock:
            self._world.comms[place]._count(1, data.nbytes, "received")
            transfer = super()._send(data, dest, tag)
            if self._top[self.rank] == MODEL:
                with self._world.playing(MODEL):
                    self._echo(data.copy(), dest, tag)
        return transfer

    def _close_ring(self, data: np.ndarray, place: int, tag: int) -> None:
        """What rank 1 tells the next worker the last worker tells the chief."""
        *_, last = self._world.roles.workers
        if self._top[self.rank] == MODEL and place == MODEL + 1 and last not in self._world.live:
            with self._group.lock, self._world.playing(MODEL):
                self._put(self._top.index(last), data.copy(), self._top.index(CHIEF), tag)

    def _count(self, messages: int, nbytes: int, way: str = "sent") -> None:
        self._done[f"{MESSAGES} {way}"] += messages
        self._done[f"{BYTES} {way}"] += nbytes
        self.idle = 0

    def _echo(self, data: np.ndarray, dest: int, tag: int) -> None:
        """All workers that do not live send what rank 1 sends."""
        if tag == HEADER_TAG and data.view(np.int64)[BODY_WORD]:
            self._heads[dest] = data
            return
        for echo in self._group.echoes:
            if tag == CORES_TAG and self.hosts[echo] != self.hosts[dest]:
                continue  # they tell the first rank of their own host
            if tag != BODY_TAG:
                self._put(echo, data, dest, tag)
            elif (body := self._in_the_name_of(echo, self._heads[dest][:8], data)) is not None:
                head = self._heads[dest].view(np.int64).copy()
                head[BODY_WORD] = body.nbytes
                self._put(echo, head.view(np.uint8), dest, HEADER_TAG)
                self._put(echo, body, dest, tag)

    def _put(self, source: int, data: np.ndarray, dest: int, tag: int) -> None:
        self._world.comms[self._top[dest]]._count(1, data.nbytes, "received")
        self._group.boxes[dest].put(ThreadMessage(source, tag, data, None), 0)

    def _in_the_name_of(self, echo: int, kind: np.ndarray, body: np.ndarray) -> np.ndarray | None:
        """The body of a message of rank 1 as `echo` would send it; None if one rank alone does."""
        text, replica = body.tobytes(), self._world.roles.workers.index(self._top[echo])
        number = int(kind.view(np.int64)[0])
        if number in (HeaderKind.CALL, HeaderKind.POST):
            request = json.loads(text)
            request |= {"worker": replica} if "worker" in request else {}
            text = json.dumps(request).encode()
        elif number == HeaderKind.REGISTER:
            size = 8 + int.from_bytes(text[:8], "little")
            facts = json.loads(text[8:size])
            if "driver" in facts:  # a plan that servers repeat, of which one rank tells them
                return None
            facts["ranks"] = self._world.roles.ranks_of(replica)
            facts["replica"] = replica
            head = json.dumps(facts).encode()
            text = len(head).to_bytes(8, "little") + head + text[size:]
        return np.frombuffer(text, np.uint8)

    # -- collectives

    def _collective(self, label: str, what: Any, *more: Any, **given: Any) -> Any:
        self._called(0 if what is None else 2 * what.nbytes)
        return super()._collective(label, what, *more, **given)

    def _blocking(self, label: str, what: Any, *more: Any, **given: Any) -> Any:
        self._called(len(what.encode()) if isinstance(what, str) else 0)
        return super()._blocking(label, what, *more, **given)

    def _called(self, nbytes: int) -> None:
        self._done[CALLS] += 1
        self._done[CALL_BYTES] += nbytes
        self.idle = 0

    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Any:
        self._done[CALL_BYTES] += out.nbytes - array.nbytes
        return super().all_gather(array, out, rows)

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        found = super().gather_text(text, root)
        self._done[CALL_BYTES] += sum(len(row.encode()) for row in found or ())
        return found

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        found = super().broadcast_text(text, root)
        self._done[CALL_BYTES] += 0 if self.rank == root else len(found.encode())
        return found

    def split(self, ranks: Sequence[int]) -> LocalCommunicator | None:
        world, top = self._world, [self._top[rank] for rank in ranks]
        make = lambda _: Echoing(world, top)  # noqa: E731
        group = self._blocking(f"splits off {len(ranks)} ranks from {ranks[0]}", None, make)
        if self.rank not in ranks:
            return None
        return Simulated(world, group, list(ranks).index(self.rank), top, self.traffic)


def counted(
    n: int,
    servers: int = 0,
    rows: bool = False,
    trace: bool = False,
    all_live: bool = False,
    program: Callable[[bool], Callable[[], Any]] = growth_program.training,
    **settings: Any,
) -> dict[str, dict[str, Numbers]]:
    """What a job of `n` ranks costs the chief, a worker and the server: role -> phase -> numbers.

    The phases are the start, with two steps, and each one of STEPS steps and of MEETINGS meetings
    of all drivers. With `trace` the start has the memory that hpcflow's objects hold. `all_live`
    ranks have no echo.
    """
    world = World(n, servers, all_live)
    taken: list[dict[int, Numbers]] = []
    held: list[int] = []
    errors: list[BaseException] = []
    drivers = threading.Barrier(len(world.live) - servers)

    def take() -> None:
        if drivers.wait(LIMIT_S) == 0:
            taken.append(world.now())
            if trace and not held:
                held.append(_traced())
        drivers.wait(LIMIT_S)

    def drive(context: RankContext) -> None:
        step = program(rows)
        for phase in (2, STEPS):
            for _ in range(phase):
                step()
            take()
        for _ in range(MEETINGS):
            context.barrier()
        take()

    def live(rank: int) -> None:
        comm = world.comms[rank]
        try:
            given = {"ps": servers, "random_seed": 1, **settings}
            comm.all_gather_text(comm.hosts[rank])  # as MpiCommunicator does when it begins
            crowded_hosts(comm)
            context = RankContext(Settings(**given), comm, crowded=True)
            context.table()
            with job_membership.use_context(context), Graph().as_default():
                if context.is_driver:
                    drive(context)
                    context.leave()
                else:
                    context.serve()
        except BaseException as error:
            errors.append(error)
            drivers.abort()
            with contextlib.suppress(CommError):  # every call of the others fails from now on
                comm.abort(1)

    if trace:
        tracemalloc.start(FRAMES)
    for rank in world.live:
        world.threads[rank] = threading.Thread(target=live, args=(rank,), daemon=True)
    for thread in world.threads.values():
        thread.start()
    for thread in world.threads.values():
        thread.join(LIMIT_S)
    if trace:
        tracemalloc.stop()
    if errors:
        raise errors[0]
    if len(taken) < 3:
        raise TimeoutError(f"{n} simulated ranks do not end")
    start, stepped, met = taken
    names = {CHIEF: "chief", MODEL: "worker", **dict.fromkeys(world.roles.servers, "server")}
    found = {}
    for rank, name in names.items():
        found[name] = {
            "start": start[rank],
            "step": _each(stepped[rank], start[rank], STEPS),
            "meeting": _each(met[rank], stepped[rank], MEETINGS),
        }
        if held:
            found[name]["start"][MEMORY] = held[0]
    return found


def _each(after: Numbers, before: Numbers, times: int) -> Numbers:
    found: Any = {key: (after[key] - before[key]) / times for key in after}
    return collections.Counter(found)


def _traced() -> int:
    """Bytes that were allocated by hpcflow and are held, those of the communicator apart."""
    total = 0
    for trace in tracemalloc.take_snapshot().traces:
        files = [frame.filename for frame in reversed(trace.traceback)]
        mine = next((name for name in files if name.startswith(SOURCES)), None)
        if mine is not None and mine not in DOUBLES and __file__ not in files:
            total += trace.size
    return total
