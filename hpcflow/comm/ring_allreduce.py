"""Ring allreduce over point-to-point messages, for sums between nodes.

P. Patarasuk, X. Yuan, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*, JPDC
69(2), 2009. Of n ranks each sends and receives 2 (n - 1) / n of the array, which is the least. An
array is cut into parts, and each part into n chunks. In n - 1 steps a rank receives a chunk from
its left neighbour, adds its own addend, and sends the sum to the right; then it has the whole sum
of one chunk, which goes around in n - 1 more steps. Several parts are on their way at any time:
while one is added, others use the network.

The order of the addends depends only on the number of ranks and the size of the array, and all
ranks receive the same bits.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.contiguous_buffers import CHUNK_BYTES, chunk_of
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError

LEAST_CHUNK_BYTES = 16 << 10  # smaller arrays are cut into fewer parts
LEAST_BYTES = 4 << 10  # a chunk of the smallest array for which a ring is faster than a tree
PARTS_IN_FLIGHT = 16  # the network has work while a rank does not poll
TAGS = 1 << 10  # a rank is never ahead of another by so many parts
SLOW_NETWORK = 2e9  # bytes per second: on faster ones Python between messages would be the limit
PROBE_BYTES, PROBES = 256 << 10, 3


class RingQueue:
    """Sums over all ranks of `comm`, in the order in which they are started, the same on all ranks.

    No one else sends messages on `comm`.
    """

    def __init__(self, comm: Communicator) -> None:
        assert comm.watch is not None, "requests are not tested one by one"
        self._comm, self._watch = comm, comm.watch
        self._waiting: collections.deque[_Part] = collections.deque()
        self._in_flight = self._started = 0  # parts
        self._failure: CommError | None = None
        self.turns = 0  # calls of `advance`

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._comm.rank

    def serves(self, nbytes: int) -> bool:
        """Whether a sum is large enough: the messages of a ring are many."""
        return nbytes >= LEAST_BYTES * self._comm.size

    def start(self, addend: np.ndarray, total: np.ndarray) -> RingSum:
        """Start to sum the one-dimensional `addend` into `total`, which is other memory.

        A message that fails is an error of the request's `test`.
        """
        request = RingSum(self)
        for part in parts_of(addend, self._comm.size):
            steps = self._steps(addend[part], total[part], self._started % TAGS)
            self._waiting.append(_Part(request, steps))
            self._started += 1
            request.parts_left += 1
        with contextlib.suppress(CommError):
            self.advance()
        return request

    def advance(self) -> None:
        """Continue all parts in flight as far as their messages allow.

        Errors: CommError if a message has failed, also in later calls.
        """
        if self._failure is not None:
            raise self._failure
        self.turns += 1
        try:
            self._begin_parts()
            for _ in range(2):  # MPI_Testsome reports in the next call what it receives in one
                completed = self._watch.finished()
                while completed:
                    self._continue(*completed.popleft())
                    self._begin_parts()
        except CommError as error:
            self._failure = error  # what the other parts have received is not a sum
            raise

    def _begin_parts(self) -> None:
        while self._waiting and self._in_flight < PARTS_IN_FLIGHT:
            self._in_flight += 1
            self._continue(self._waiting.popleft(), None)

    def _continue(self, part: _Part, awaited: Request | None) -> None:
        """Continue a part after the message that it has awaited, up to one that is missing."""
        while awaited is None or awaited.test():
            awaited = next(part.steps, None)
            if awaited is None:
                part.request.parts_left -= 1
                self._in_flight -= 1
                return
        self._watch.add(awaited, (part, awaited))

    def _steps(self, addend: np.ndarray, total: np.ndarray, tag: int) -> Iterator[Request]:
        """Sum one part; yields the messages that it awaits."""
        comm, rank, size = self._comm, self._comm.rank, self._comm.size
        left, right = (rank - 1) % size, (rank + 1) % size
        chunks = [chunk_of(addend.size, size, i) for i in range(size)]
        room = np.empty(max(chunk.stop - chunk.start for chunk in chunks), total.dtype)
        sends: dict[int, Request] = {}
        for step in range(size - 1):
            out, into = (rank - step) % size, (rank - step - 1) % size
            came = room[: chunks[into].stop - chunks[into].start]
            received = comm.recv(came, left, tag)
            sends[out] = comm.send((total if step else addend)[chunks[out]], right, tag)
            yield received
            np.add(came, addend[chunks[into]], out=total[chunks[into]])
        for step in range(size - 1):
            out, into = (rank + 1 - step) % size, (rank - step) % size
            if into in sends:
                yield sends.pop(into)
            received = comm.recv(total[chunks[into]], left, tag)
            sends[out] = comm.send(total[chunks[out]], right, tag)
            yield received
        yield from sends.values()


def network_rate(comm: Communicator) -> float:
    """Bytes per second that each rank sends to one neighbour and receives from the other.

    The least of the ranks; collective. No one else sends messages on `comm`.
    """
    sent, came = np.zeros(PROBE_BYTES, np.uint8), np.empty(PROBE_BYTES, np.uint8)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    times = []
    for _ in range(PROBES):
        wait_for_requests(comm.barrier(), label="the other nodes")
        start = time.perf_counter()
        wait_for_requests(
            comm.recv(came, left, 0), comm.send(sent, right, 0), label="a message of another node"
        )
        times.append(time.perf_counter() - start)
    slowest = np.array([min(times)])
    wait_for_requests(comm.all_reduce(slowest, "max"), label="the rates of all nodes")
    return PROBE_BYTES / float(slowest[0])


class RingSum:
    """One sum of a `RingQueue`."""

    def __init__(self, queue: RingQueue) -> None:
        self._queue, self._turn, self.parts_left = queue, queue.turns, 0

    def test(self) -> bool:
        """Whether the total holds the sum and all messages have been sent.

        Of several sums that are tested in turns, one advances the queue.
        """
        if self.parts_left:
            if self._turn == self._queue.turns:
                self._queue.advance()
            self._turn = self._queue.turns
        return not self.parts_left


class _Part(NamedTuple):
    """A part of a sum, and the steps that are left of it."""

    request: RingSum
    steps: Iterator[Request]


def parts_of(array: np.ndarray, size: int) -> list[slice]:
    """The parts of an array that `size` ranks sum, each by a ring of its own."""
    chunk = array.nbytes // size
    count = max(1, chunk // CHUNK_BYTES, min(PARTS_IN_FLIGHT, chunk // LEAST_CHUNK_BYTES))
    return [chunk_of(array.size, count, i) for i in range(count)]
