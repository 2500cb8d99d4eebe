"""Simulated workers of one parameter server, behind as much of mpi4py's MPI as a server calls.

All is in one process and one thread: a worker is a function that is called with each message that
the server sends it, and puts messages of its own on their way. They arrive, in the order in which
they were sent, when the server next asks for progress and finds nothing. A message and a receive
meet in constant time; `Testsome` looks at all requests that it is given, as MPI's does.
"""

from __future__ import annotations

import collections
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ANY = -1
Worker = Callable[[int, np.ndarray], None]  # called with the tag and the bytes of a message


class Status:
    """Of a message that was received."""

    source, tag, count, error = ANY, ANY, 0, 0

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_elements(self, kind: object) -> int:
        return self.count


class Request:
    """A send or receive of bytes, as often as it is started."""

    __slots__ = ("array", "count", "over", "peer", "sends", "source", "tag", "world")

    def __init__(self, world: World, buffer: Any, peer: int, tag: int, sends: bool) -> None:
        array = buffer[0] if isinstance(buffer, list) else buffer
        self.world, self.array = world, array.reshape(-1).view(np.uint8)
        self.peer, self.tag, self.sends = peer, tag, sends
        self.over, self.source, self.count = False, ANY, 0

    def Start(self) -> None:
        world, key = self.world, (self.peer, self.tag)
        if self.sends:
            self.over = True
            world.workers[self.peer](self.tag, self.array)
        elif key in world.early:
            self.take(*world.early[key].popleft())
            if not world.early[key]:
                del world.early[key]
        else:
            world.posted[key] = self

    def take(self, source: int, data: np.ndarray) -> None:
        self.array[: data.size] = data
        self.source, self.count, self.over = source, data.size, True

    def Test(self, status: Status | None = None) -> bool:
        if not self.over:
            self.world.progress()
            if not self.over:
                return False
        self.end(status)
        return True

    def end(self, status: Status | None) -> None:
        self.over = False
        if status is not None:
            status.source, status.tag, status.count = self.source, self.tag, self.count

    def Cancel(self) -> None:
        self.world.posted.pop((self.peer, self.tag), None)
        self.over = True

    def Free(self) -> None:
        pass


def test_some(requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int]:
    """As MPI.Request.Testsome: the places of those that are over."""
    if requests:
        requests[0].world.progress()
    over = [place for place, request in enumerate(requests) if request.over]
    if statuses is None:
        for place in over:
            requests[place].over = False
        return over
    statuses.extend(Status() for _ in range(len(over) - len(statuses)))
    for place, status in zip(over, statuses, strict=False):
        requests[place].end(status)
    return over


def test_all(requests: Sequence[Request]) -> bool:
    """As MPI.Request.Testall."""
    return all(request.over for request in requests)


class World:
    """The communicator of the server, which is the last of its ranks."""

    def __init__(self, workers: int, think_s: float = 0.0) -> None:
        """What a worker sends arrives when it has thought for so long."""
        self.size, self.rank, self.think_s = workers + 1, workers, think_s
        self.workers: list[Worker] = []
        self.posted: dict[tuple[int, int], Request] = {}  # (source, tag) -> who receives
        self.early: dict[tuple[int, int], collections.deque] = {}  # messages nobody has asked for
        # messages on their way: when they arrive, the worker, the tag, the bytes
        self.coming: collections.deque[tuple[float, int, int, np.ndarray]] = collections.deque()
        self.from_any: set[int] = set()  # tags of receives from any rank
        self.probes = 0

    def mpi(self) -> Any:
        """What stands for mpi4py's MPI."""
        request = types.SimpleNamespace(Testsome=test_some, Testall=test_all)
        return types.SimpleNamespace(
            **{"COMM_WORLD": self, "Request": request, "Status": Status, "BYTE": None},
            **{"ANY_SOURCE": ANY, "ANY_TAG": ANY, "TAG_UB": None, "Is_initialized": lambda: True},
            Get_library_version=lambda: "simulated",
        )

    def send(self, source: int, tag: int, data: np.ndarray) -> None:
        """A worker sends bytes, which must stay as they are until they have come."""
        due = time.perf_counter() + self.think_s if self.think_s else 0.0
        self.coming.append((due, source, tag, data))

    def progress(self) -> None:
        """What was sent arrives, when its time has come."""
        coming, posted = self.coming, self.posted
        now = time.perf_counter() if self.think_s else 0.0
        while coming and coming[0][0] <= now:
            _, source, tag, data = coming.popleft()
            key = (ANY if tag in self.from_any else source), tag
            if key in posted:
                posted.pop(key).take(source, data)
            else:
                self.early.setdefault(key, collections.deque()).append((source, data))

    # -- what a server calls

    def Iprobe(self, source: int, tag: int, status: Status) -> bool:
        self.probes += 1
        self.progress()
        for at in [(source, tag)] if source != ANY else list(self.early)[:1]:
            if at in self.early:
                status.source, message = self.early[at][0]
                status.tag, status.count = at[1], message.size
                return True
        return False

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_attr(self, name: object) -> int:
        return 1 << 30

    def Get_group(self) -> Any:
        return types.SimpleNamespace(Translate_ranks=lambda ranks, group: range(self.size))

    def Recv_init(self, buffer: Any, source: int, tag: int) -> Request:
        if source == ANY:
            self.from_any.add(tag)
        return Request(self, buffer, source, tag, sends=False)

    def Send_init(self, buffer: Any, dest: int, tag: int) -> Request:
        return Request(self, buffer, dest, tag, sends=True)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Request:
        made = self.Recv_init(buffer, source, tag)
        made.Start()
        return made

    def Isend(self, buffer: Any, dest: int, tag: int) -> Request:
        made = self.Send_init(buffer, dest, tag)
        made.Start()
        return made
