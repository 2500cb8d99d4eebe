"""Communicators between threads of one process, for tests and for single-rank runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.communicator import (
    COLLECTIVE,
    REDUCTIONS,
    Bucket,
    Channel,
    Communicator,
    CompletionQueue,
    Request,
    TrafficCounter,
)
from hpcflow.comm.contiguous_buffers import byte_view, check_rows, flat_view, read_only
from hpcflow.comm.thread_mailbox import (
    CollectiveCall,
    MessageDelays,
    ThreadCompletionQueue,
    ThreadGroup,
    ThreadMessage,
    ThreadTransfer,
)
from hpcflow.errors import CommError, StallError

EAGER_BYTES = 4096  # larger messages are copied from the sender's array at receive
SET_UP_S = 60.0  # timeout of a blocking call


def thread_world(
    n: int, seed: int | None = None, max_delay: int = 8, eager_bytes: int = EAGER_BYTES
) -> list[LocalCommunicator]:
    """`n` communicators, one for each of `n` threads.

    With a `seed` each message and collective arrives only after the receiver has polled up to
    `max_delay` times. The number depends only on the seed, the sender, the tag and the order of
    sending.
    """
    group = ThreadGroup(n, MessageDelays(seed, max_delay), eager_bytes)
    traffic = [TrafficCounter() for _ in range(n)]
    return [LocalCommunicator(group, rank, traffic[rank], range(n)) for rank in range(n)]


class _Collective:
    """One rank's request of a collective: done some polls after the last rank has called it."""

    def __init__(
        self,
        comm: LocalCommunicator,
        round_: CollectiveCall,
        delay: int,
        take: Callable[[Any], None],
    ) -> None:
        self._comm, self._round, self._delay, self._take = comm, round_, delay, take
        self._completed = False

    def test(self) -> bool:
        if self._completed:
            return True
        self._comm.poll()
        if not self._round.completed:
            return False
        self._delay -= 1
        if self._delay >= 0:
            return False
        self._completed = True
        if self._round.error:
            raise CommError(self._round.error, rank=self._comm.rank)
        self._take(self._round.result)
        return True


class _ThreadChannel:
    """A persistent send or receive."""

    def __init__(self, comm: LocalCommunicator, begin: Callable[[], ThreadTransfer]) -> None:
        self._comm, self._begin = comm, begin
        self._transfer: ThreadTransfer | None = None
        self.source, self.nbytes = -1, 0

    def start(self) -> None:
        if self._transfer is not None:
            raise CommError("a channel was started again before it was done", rank=self._comm.rank)
        self._transfer = self._begin()

    def test(self) -> bool:
        if self._transfer is None:
            return True
        transfer = self._transfer
        try:
            if not transfer.test():
                return False
        except CommError:
            self._transfer = None
            raise
        self.source, self.nbytes, self._transfer = transfer.source, transfer.nbytes, None
        return True

    def watched_by(self, watch: CompletionQueue, token: Any) -> None:
        assert self._transfer is not None, "watched before it was started"
        watch.add(self._transfer, token)

    def close(self) -> None:
        if self._transfer is not None:
            self._comm._withdraw(self._transfer)
            self._transfer = None


class _LocalBucket:
    """A bucket whose output all ranks share, as in a shared window."""

    def __init__(self, comm: LocalCommunicator, label: str, total: np.ndarray) -> None:
        self._comm, self._label, self._sum = comm, label, total
        self.input = np.zeros_like(total)
        self.output = read_only(total)
        self._request: Request | None = None

    def start(self) -> None:
        if self._request is not None:
            raise CommError("a bucket was started again before it was done", rank=self._comm.rank)
        self._comm.traffic.add(COLLECTIVE, self.input.nbytes)
        self._request = self._comm._collective(self._label, self.input, self._combine)

    def test(self) -> bool:
        if self._request is not None and self._request.test():
            self._request = None
        return self._request is None

    def close(self) -> None:
        self.input = self.output = self._sum = np.zeros(0, self._sum.dtype)

    def _combine(self, inputs: list[np.ndarray]) -> None:
        self._sum[:] = inputs[0]
        for addend in inputs[1:]:
            self._sum += addend


class LocalCommunicator(Communicator):
    """The Communicator interface between threads; one thread makes all calls of a rank."""

    max_tag = 32767

    def __init__(
        self,
        group: ThreadGroup,
        rank: int,
        traffic: TrafficCounter,
        top: Sequence[int],
        host: str = "local",
    ) -> None:
        self._group, self._top = group, top
        self.rank, self.size, self.hosts = rank, group.size, (host,) * group.size
        self.traffic = traffic
        self._calls = itertools.count()
        self.watch = ThreadCompletionQueue(group.lock, group.boxes[rank], self.poll)

    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`."""
        return self._send(byte_view(array), self._peer(dest), tag)

    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`."""
        return self._recv(byte_view(array, writable=True), self._peer(source, any_too=True), tag)

    def send_channel(self, array: np.ndarray, dest: int, tag: int) -> Channel:
        """A persistent send of `array`."""
        data, dest = byte_view(array), self._peer(dest)
        return _ThreadChannel(self, lambda: self._send(data, dest, tag))

    def recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> Channel:
        """A persistent receive into `array`."""
        data, source = byte_view(array, writable=True), self._peer(source, any_too=True)
        return _ThreadChannel(self, lambda: self._recv(data, source, tag, short))

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None."""
        self.poll()
        with self._group.lock:
            message = self._group.boxes[self.rank].probe(source, tag)
        return None if message is None else (message.source, message.data.nbytes)

    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """Allocate storage for a sum of `count` elements over all ranks."""
        number, kind = next(self._calls), np.dtype(dtype)
        label = f"makes a bucket of {count} {kind}"
        total = self._blocking(label, None, lambda _: np.zeros(count, kind))
        return _LocalBucket(self, f"sums bucket {number} of {count} {kind}", total)

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Allreduce `array` in place."""
        data = flat_view(array)
        if op not in REDUCTIONS:
            raise CommError(f"a reduction by {op!r} is not one of {', '.join(REDUCTIONS)}")

        def combine(arrays: list[np.ndarray]) -> np.ndarray:
            total = arrays[0].copy()
            for addend in arrays[1:]:
                REDUCTIONS[op](total, addend, out=total)
            return total

        self.traffic.add(COLLECTIVE, array.nbytes)
        label = f"reduces {data.size} {data.dtype} by {op}"
        return self._collective(label, data, combine, lambda total: np.copyto(data, total))

    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Broadcast `root`'s array in place."""
        data = byte_view(array, writable=self.rank != root)
        if self.rank == root:
            self.traffic.add(COLLECTIVE, array.nbytes)

        def take(sent: np.ndarray) -> None:
            if self.rank != root:
                data[:] = sent

        label = f"broadcasts {data.size} bytes from rank {root}"
        return self._collective(label, data, lambda arrays: arrays[root].copy(), take)

    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Concatenate the arrays of all ranks, in rank order, in `out` on every rank."""
        check_rows(array, out, rows, self.rank)
        data, target = byte_view(array), byte_view(out, writable=True)
        self.traffic.add(COLLECTIVE, array.nbytes)
        label = f"gathers {list(rows)} rows of {out.dtype}{list(out.shape[1:])}"

        def take(gathered: np.ndarray) -> None:
            target[:] = gathered

        return self._collective(label, data, np.concatenate, take)

    def barrier(self) -> Request:
        """Done once all ranks have called it."""
        return self._collective("waits at a barrier", None, lambda _: None)

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere."""
        rows = self._blocking(f"gathers text on rank {root}", text, list)
        return rows if self.rank == root else None

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string on every rank."""
        return self._blocking(f"broadcasts text from rank {root}", text, lambda rows: rows[root])

    def split(self, ranks: Sequence[int]) -> LocalCommunicator | None:
        """A communicator of `ranks`, numbered in that order; None on the others."""
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self.size)):
            raise CommError(f"split: {list(ranks)} are not distinct ranks of {self.size}")
        parent = self._group
        group = self._blocking(
            f"splits off {list(ranks)}",
            None,
            lambda _: ThreadGroup(len(ranks), parent.delays, parent.eager_bytes, parent),
        )
        if self.rank not in ranks:
            return None
        top = [self._top[rank] for rank in ranks]
        return LocalCommunicator(group, list(ranks).index(self.rank), self.traffic, top)

    def abort(self, code: int) -> None:
        """Make every further call of every rank fail, also through communicators split off."""
        self._group.abort(code)
        self._check()

    def close(self) -> None:
        """Withdraw this rank's posted receives."""
        with self._group.lock:
            self._group.boxes[self.rank].posted.clear()

    def _peer(self, rank: int, any_too: bool = False) -> int:
        if 0 <= rank < self.size or (any_too and rank == self.ANY):
            return rank
        raise CommError(f"there is no rank {rank} among {self.size}", rank=self.rank)

    def _check(self) -> None:
        if self._group.aborted is not None:
            raise CommError(f"the job was aborted with code {self._group.aborted}", rank=self.rank)

    def poll(self) -> None:
        """Advance the delays of messages; raise if the job was aborted."""
        self._check()
        with self._group.lock:
            self._group.boxes[self.rank].poll()

    def _send(self, data: np.ndarray, dest: int, tag: int) -> ThreadTransfer:
        self._check()
        self.traffic.add((self._top[dest], tag), data.nbytes)
        group, transfer = self._group, ThreadTransfer(self, data, dest, tag)
        eager = data.nbytes <= group.eager_bytes
        message = ThreadMessage(
            self.rank, tag, data.copy() if eager else data, None if eager else transfer
        )
        transfer.completed = eager
        with group.lock:
            box = group.boxes[dest]
            number = box.count[self.rank, tag] = box.count[self.rank, tag] + 1
            box.put(message, group.delays.draw("message", self.rank, dest, tag, number))
        return transfer

    def _recv(self, data: np.ndarray, source: int, tag: int, short: bool = False) -> ThreadTransfer:
        self._check()
        transfer = ThreadTransfer(self, data, source, tag, short)
        with self._group.lock:
            self._group.boxes[self.rank].post(transfer)
        return transfer

    def _withdraw(self, transfer: ThreadTransfer) -> None:
        with self._group.lock:
            self._group.boxes[self.rank].withdraw(transfer)

    def _collective(
        self,
        label: str,
        local_input: Any,
        combine: Callable[[list], Any],
        take: Callable[[Any], None] = lambda result: None,
    ) -> _Collective:
        self._check()
        key = next(self._calls)
        delay = self._group.delays.draw("collective", key, self.rank)
        return _Collective(
            self, self._group.bring(key, self.rank, label, local_input, combine), delay, take
        )

    def _blocking(self, label: str, local_input: Any, combine: Callable[[list], Any]) -> Any:
        self._check()
        group = self._group
        round_ = group.bring(next(self._calls), self.rank, label, local_input, combine)
        with group.lock:
            came = group.lock.wait_for(
                lambda: round_.completed or group.aborted is not None, SET_UP_S
            )
        self._check()
        if not came:
            raise StallError(f"not all ranks have come: rank {self.rank} {label}", rank=self.rank)
        if round_.error:
            raise CommError(round_.error, rank=self.rank)
        return round_.result
