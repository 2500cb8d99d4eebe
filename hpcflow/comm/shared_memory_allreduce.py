"""Shared-memory allreduce: each rank of a node sums a share of the bucket, then nodes are joined.

Within a node MPI's allreduce copies every byte several times. Here a rank reads the addends where
they were produced, adds its share of them tile by tile, and writes the sum once.

Ranks do not poll flags in the shared memory: they synchronize by barriers of messages, with
the window's `Sync` before and after. One use of a bucket has these phases:

    start    the rank's addend is in its own segment
    barrier  all addends are written, and all ranks have read the last sum
    add      each rank adds its share; with several nodes, into its own segment first, and the ranks
             of one lane (the same local rank on each node) allreduce that share into the output:
             by a ring of messages (`ring_allreduce.py`), on fast networks by MPI's allreduce
    barrier  the whole sum is in the output

No rank overwrites data that another rank still reads. The output is written only between the two
barriers of a use. A rank enters the first barrier after `start`, after its last reading of the
output (the contract of Bucket), so at the time of writing all ranks have read it. Other ranks'
segments too are read only between the two barriers. The owner may write its segment again after
`test` returned True, that is after the second barrier, which every rank enters after adding its
share. With lanes a rank writes its own segment between the barriers, but only its share, which no
other rank reads.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcflow.comm.communicator import (
    COLLECTIVE,
    Bucket,
    Communicator,
    Request,
    TrafficCounter,
)
from hpcflow.comm.communicator_wrapper import CommunicatorWrapper
from hpcflow.comm.contiguous_buffers import CHUNK_BYTES, chunk_of, read_only
from hpcflow.comm.mpi_communicator import MpiCommunicator, SharedMemoryWindow
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError
from hpcflow.platform.quantity_text import rounded_bytes
from hpcflow.platform.rank_logging import say_once

if TYPE_CHECKING:
    from hpcflow.comm.ring_allreduce import RingQueue

TILE = 64 * 1024  # elements added at a time: fits a core's cache
TURN_S = 0.5e-3  # time of work in one call of test()
SMALL_BYTES = 8 * 1024  # up to this size MPI is as fast and needs no mapping
PAGE = 4096
SHARED_MEMORY = "/dev/shm"
MAX_MEMORY_SHARE = 0.95  # largest share of the free shared memory to use


def free_bytes() -> int:
    """Free shared memory of this node."""
    state = os.statvfs(SHARED_MEMORY)
    return state.f_bavail * state.f_frsize


class SharedCommunicator(CommunicatorWrapper):
    """Wraps MPI; buckets are summed in shared windows within a node, and by messages between nodes.

    `node_of` maps a rank to a node, to test several nodes on one; it must not join ranks that share
    no memory. With `rings` None, nodes are joined by rings of messages if the network is slow, else
    by MPI's allreduce. If the windows do not fit into the free shared memory of some node, all
    ranks use MPI's bucket, and one line is logged.
    """

    inner: MpiCommunicator

    def __init__(
        self,
        inner: MpiCommunicator,
        node_of: Callable[[int], int] | None = None,
        rings: bool | None = None,
    ) -> None:
        super().__init__(inner)
        self._node_of, self._rings = node_of, rings
        nodes = inner.nodes() if node_of is None else [node_of(r) for r in range(inner.size)]
        numbers = {node: i for i, node in enumerate(sorted(set(nodes)))}
        self.node_numbers = [numbers[node] for node in nodes]
        sizes = collections.Counter(nodes)
        self.node_count, self.lanes = len(sizes), min(sizes.values())
        self._worthwhile = max(sizes.values()) > 1
        self.local = _split_comm(inner, numbers[nodes[inner.rank]])
        self.local.traffic = TrafficCounter()  # barrier messages are not counted as user traffic
        in_lane = self.node_count > 1 and self.local.rank < self.lanes
        self.lane = inner.split_by(self.local.rank if in_lane else -1, inner.rank)
        self.ring = None if self.lane is None else self._ring_of(self.lane)
        self._is_slow = self._any_ring() if self.node_count > 1 else False
        self._tags = itertools.count()
        self.buckets: list[_SharedBucket] = []
        self._active: list[_SharedBucket] = []
        self._failure: CommError | None = None
        self.to_reduce: collections.deque[_SharedBucket] = collections.deque()

    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """A bucket in shared memory if it is large enough and fits, else MPI's; collective."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        if nbytes <= SMALL_BYTES:
            return self.inner.bucket(count, dtype)
        if not self._worthwhile:
            if self.ring is None or not self.ring.serves(nbytes):
                return self.inner.bucket(count, dtype)
            return _RingBucket(self.ring, self.traffic, count, dtype)
        need = (self.local.size + 1) * (nbytes + PAGE)
        fits = np.array([need <= MAX_MEMORY_SHARE * free_bytes()], np.int32)
        wait_for_requests(self.inner.all_reduce(fits, "min"))
        if not fits[0]:
            say_once(
                f"shared memory ({SHARED_MEMORY}) has no room for more buckets on some node: "
                "the others are summed by MPI, which is slower"
            )
            return self.inner.bucket(count, dtype)
        tag = next(self._tags)
        if tag > self.local.max_tag:
            raise CommError("more shared buckets were made than MPI has tags", rank=self.rank)
        self.buckets.append(_SharedBucket(self, count, dtype, tag))
        return self.buckets[-1]

    def _ring_of(self, lane: MpiCommunicator) -> RingQueue | None:
        """The ring of a lane, unless MPI's allreduce is to join the nodes; collective."""
        from hpcflow.comm.ring_allreduce import SLOW_NETWORK, RingQueue, network_rate

        lane.traffic = TrafficCounter()  # a bucket counts as one collective
        if self._rings is None:
            rate = network_rate(lane)
            how = "a ring of messages" if rate < SLOW_NETWORK else "MPI"
            say_once(
                f"sums between nodes: {how}, for a node moves {rounded_bytes(rate)}/s each way"
            )
            return RingQueue(lane) if rate < SLOW_NETWORK else None
        return RingQueue(lane) if self._rings else None

    def _any_ring(self) -> bool:
        """Whether some nodes are joined by rings, the same on all ranks; collective."""
        found = np.array([self.ring is not None], np.int32)
        wait_for_requests(self.inner.all_reduce(found, "max"), label="the kind of the network")
        return bool(found[0])

    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Concatenate the arrays of all ranks; in pieces between nodes on a slow network."""
        return self.inner.all_gather(array, out, rows, self._gather_piece_bytes)

    def _gather_piece_bytes(self, peer: int) -> int:
        """The size of the pieces of messages to or from a rank; 0: whole messages."""
        is_near = self.node_numbers[peer] == self.node_numbers[self.rank]
        return CHUNK_BYTES if self._is_slow and not is_near else 0

    def over_subset(self, part: Communicator, ranks: Sequence[int]) -> CommunicatorWrapper:
        """Shared-memory buckets over a subset of the ranks."""
        assert isinstance(part, MpiCommunicator)
        node_of = self._node_of
        return SharedCommunicator(
            part, node_of and (lambda rank: node_of(ranks[rank])), self._rings
        )

    def close(self) -> None:
        """Free the buckets and communicators; collective."""
        for bucket in list(self.buckets):
            bucket.close()
        self.local.close()
        if self.lane is not None:
            self.lane.close()
        super().close()

    def begin(self, bucket: _SharedBucket) -> None:
        """Append a bucket to the started buckets, which `advance` drives."""
        self._active.append(bucket)
        if self.lane is not None:
            self.to_reduce.append(bucket)

    def advance(self) -> None:
        """Drive all started buckets in the order of starting, for about TURN_S of work.

        Errors: CommError if a message has failed, also in later calls.
        """
        if self._failure is not None:
            raise self._failure
        end = time.perf_counter() + TURN_S
        for bucket in list(self._active):
            try:
                is_over = bucket.advance(end)
            except CommError as error:
                self._failure = error
                raise
            if is_over:
                self._active.remove(bucket)


class _DisseminationBarrier:
    """A dissemination barrier: zero-byte messages in log2(n) rounds, under its own tag.

    Ranks finish started buckets in any order. MPI's barriers match in the order of calls, so they
    would mix up buckets.
    """

    def __init__(self, comm: MpiCommunicator, tag: int) -> None:
        empty = np.zeros(0, np.uint8)
        distances = [1 << i for i in range((comm.size - 1).bit_length())]
        self._rounds = [
            (
                comm.recv_channel(empty, (comm.rank - distance) % comm.size, tag),
                comm.send_channel(empty, (comm.rank + distance) % comm.size, tag),
            )
            for distance in distances
        ]

    def meet(self) -> Iterator[None]:
        """Yields until all ranks have entered the barrier."""
        for receive, send in self._rounds:
            receive.start()
            send.start()
            while not (receive.test() and send.test()):
                yield

    def close(self) -> None:
        for receive, send in self._rounds:
            receive.close()
            send.close()


class _SharedBucket:
    """A bucket in a shared window; the module docstring describes its synchronization."""

    def __init__(self, comm: SharedCommunicator, count: int, dtype: np.dtype, tag: int) -> None:
        self._comm, local = comm, comm.local
        nbytes = count * dtype.itemsize
        padded = -(-nbytes // PAGE) * PAGE
        self._window = SharedMemoryWindow(local, padded * (2 if local.rank == 0 else 1))
        segments = self._window.segments
        self._inputs = [segment[:nbytes].view(dtype) for segment in segments]
        self._sum = segments[0][padded : padded + nbytes].view(dtype)
        unit = max(1, PAGE // dtype.itemsize)
        adds = local.rank < comm.lanes  # on every node as many ranks add as the smallest node has
        self._share = chunk_of(count, comm.lanes, local.rank, unit) if adds else slice(0, 0)
        self._meeting = _DisseminationBarrier(local, tag)
        self._steps: Iterator[None] | None = None
        self._end = 0.0
        self.input, self.output = self._inputs[local.rank], read_only(self._sum)
        self.input[:] = 0  # first touch by their writers, for NUMA locality ...
        self._sum[self._share] = 0
        wait_for_requests(local.barrier())  # ... and before the next bucket reads the free memory

    def start(self) -> None:
        if self._steps is not None:
            raise CommError("a bucket was started again before it was done", rank=self._comm.rank)
        self._comm.traffic.add(COLLECTIVE, self.input.nbytes)
        self._steps = self._run()
        self._comm.begin(self)
        with contextlib.suppress(CommError):  # an error of `test`
            self._comm.advance()

    def test(self) -> bool:
        if self._steps is not None:
            self._comm.advance()
        return self._steps is None

    def close(self) -> None:
        if self not in self._comm.buckets:
            return
        if self._steps is not None:
            raise CommError("a bucket was closed before it was done", rank=self._comm.rank)
        self._comm.buckets.remove(self)
        self._meeting.close()
        self._inputs.clear()
        self.input = self.output = self._sum = np.zeros(0, self._sum.dtype)
        self._window.close()

    def advance(self, end: float) -> bool:
        """Run until a wait or until the time `end`; True when done."""
        self._end = end
        steps = self._steps
        if steps is not None and next(steps, self) is self:
            self._steps = None
        return self._steps is None

    def _run(self) -> Iterator[None]:
        self._window.sync()
        yield from self._meeting.meet()
        self._window.sync()
        if self._comm.lane is None:
            yield from self._add(self._sum)
        else:
            yield from self._add(self.input)
            yield from self._join_nodes(self._comm.lane)
        self._window.sync()
        yield from self._meeting.meet()
        self._window.sync()

    def _add(self, result: np.ndarray) -> Iterator[None]:
        """Sum this rank's share of the node's addends into `result`, a tile at a time."""
        rank = self._comm.local.rank
        peer_inputs = self._inputs[rank + 1 :] + self._inputs[:rank]
        for low in range(self._share.start, self._share.stop, TILE):
            tile = slice(low, min(low + TILE, self._share.stop))
            into, addend = result[tile], self.input[tile]
            for peer_input in peer_inputs:
                np.add(addend, peer_input[tile], out=into)
                addend = into
            if time.perf_counter() > self._end:
                yield

    def _join_nodes(self, lane: MpiCommunicator) -> Iterator[None]:
        """Allreduce this share over the nodes, in the order in which buckets were started.

        Ranks reach this point in any order of buckets, but sums of nodes are matched by the order
        in which they begin.
        """
        queue, ring = self._comm.to_reduce, self._comm.ring
        while queue[0] is not self:
            yield
        queue.popleft()
        addend, total = self.input[self._share], self._sum[self._share]
        request: Request
        if ring is not None and ring.serves(addend.nbytes):
            request = ring.start(addend, total)
        else:
            request = lane.reduce_into(addend, total)
        while not request.test():
            yield


class _RingBucket:
    """A bucket in private memory, of a rank that is alone on its node."""

    def __init__(
        self, ring: RingQueue, traffic: TrafficCounter, count: int, dtype: np.dtype
    ) -> None:
        self._ring, self._traffic = ring, traffic
        self._sum, self.input = np.zeros(count, dtype), np.zeros(count, dtype)
        self.output = read_only(self._sum)
        self._request: Request | None = None

    def start(self) -> None:
        if not self.test():
            raise CommError("a bucket was started again before it was done", rank=self._ring.rank)
        self._traffic.add(COLLECTIVE, self.input.nbytes)
        self._request = self._ring.start(self.input, self._sum)

    def test(self) -> bool:
        return self._request is None or self._request.test()

    def close(self) -> None:
        self.input = self.output = self._sum = np.zeros(0, self._sum.dtype)


def _split_comm(comm: MpiCommunicator, color: int) -> MpiCommunicator:
    part = comm.split_by(color, comm.rank)
    assert part is not None, "the color of a node is not negative"
    return part
