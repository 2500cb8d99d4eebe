"""The Communicator interface, implemented over MPI, shared windows, NCCL and threads (tests)."""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import DeathError

GATHER_TAGS = 1024  # limit of allgathers in flight


class Request(Protocol):
    """A nonblocking operation; `test` makes progress and says whether it has completed."""

    def test(self) -> bool:
        """True once completed, and on every later call; blocks for at most about 1 ms."""
        ...


def has_ended(request: Request) -> bool:
    """Whether a request needs no more tests; a DeathError is left to the code that waits."""
    try:
        return request.test()
    except DeathError:
        return True


class Channel(Request, Protocol):
    """A persistent send or receive of one fixed array; `start` it once per step, then `test`."""

    source: int  # of a receive: sender of the last message (-1 before the first)
    nbytes: int  # of a receive: the bytes of the last message

    def start(self) -> None:
        """Begin the transfer; the array must not be touched until `test` returns True."""
        ...

    def close(self) -> None:
        """Cancel a receive in flight and release the array; used when a plan is dropped."""
        ...


class CompletionQueue(Protocol):
    """Completion queue of requests in flight, so that the caller need not test each request.

    A request with a method `watched_by(watch, token)` adds itself; other requests are tested. A
    reported request has completed or can make progress: its `test` says which, and raises its
    error.
    """

    def add(self, transfer: Any, token: Any) -> None:
        """Watch a transfer of this communicator that has been started."""
        ...

    def expect(self, source: int, tag: int, receive: Callable[[int], Any], token: Any) -> None:
        """When a matching message is available, start its receive by `receive(bytes)`; watch it."""
        ...

    def finished(self) -> collections.deque[Any]:
        """Make progress; returns the queue of tokens of completed requests.

        The caller pops each token once.
        """
        ...

    def tokens(self) -> list[Any]:
        """Tokens of all requests that have not completed, or were not popped."""
        ...

    def drop_tokens(self, predicate: Callable[[Any], bool]) -> None:
        """Remove the tokens for which `predicate` is true."""
        ...

    def __len__(self) -> int:
        """The number of tokens."""
        ...


class Bucket(Protocol):
    """An allreduce (sum) with its own storage, allocated once and used every step.

    Write this rank's addend to `input`, call `start`, call `test` until True, then read `output`,
    which holds the sum until this rank starts the bucket again. After `start`, `input` is
    undefined; it may be written again once `test` returned True and `output` was read. `output` is
    read-only to the caller. It may be shared between ranks, and may be the same memory as `input`.
    All ranks of the communicator start their buckets in the same order.
    """

    input: Any
    output: Any

    def start(self) -> None:
        """Start the sum; this rank has written its addend and no longer reads the last `output`."""
        ...

    def test(self) -> bool:
        """True once `output` holds the sum, until the next `start`."""
        ...

    def close(self) -> None:
        """Free the storage; collective where it is shared. `input` and `output` become invalid."""
        ...


# What a reduction by name computes of two arrays.
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
COLLECTIVE = ("collective", 0)  # the key of collectives in Traffic


class TrafficCounter:
    """Bytes and messages sent by this rank, by key (destination, tag).

    Collectives count under the key COLLECTIVE with the bytes of their input. Communicators
    made by `split` count into the same record, with destinations numbered as in the first
    communicator.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[int | str, int], list[int]] = {}

    def tally(self, key: tuple[int | str, int]) -> list[int]:
        """[messages, bytes] of a key: a mutable counter for frequent senders."""
        return self._sent.setdefault(key, [0, 0])

    def add(self, key: tuple[int | str, int], nbytes: int) -> None:
        """Count one message."""
        tally = self.tally(key)
        tally[0] += 1
        tally[1] += nbytes

    @property
    def messages(self) -> collections.Counter[tuple[int | str, int]]:
        """Messages so far, by key."""
        return collections.Counter({key: n for key, (n, _) in self._sent.items() if n})

    @property
    def bytes(self) -> collections.Counter[tuple[int | str, int]]:
        """Bytes so far, by key."""
        return collections.Counter({key: size for key, (n, size) in self._sent.items() if n})

    @property
    def total_bytes(self) -> int:
        """All bytes sent by this rank."""
        return sum(size for _, size in self._sent.values())


class Communicator(abc.ABC):
    """A group of ranks with point-to-point and collective operations.

    Arrays are C-contiguous and hold no Python objects (zero-size ones always fit); anything else is
    a CommError. One thread at a time makes the calls of a rank (progress lock); implementations
    take no lock. All ranks of the communicator call collectives, `bucket` and `split` in the same
    order. Point-to-point messages match by (peer, tag) in the order sent. ANY (-1) as source
    receives from any rank. A zero-byte message is a message.
    """

    ANY = -1
    rank: int
    size: int
    hosts: tuple[str, ...]  # host name of each rank
    machines: tuple[str, ...] = ()  # of each rank, as all ranks of the job know it; () of others
    traffic: TrafficCounter
    max_tag: int  # largest usable tag, at least 32767; all_gather uses the GATHER_TAGS below it
    tolerant = False  # the job survives a rank's death, which raises DeathError
    lost: tuple[int, ...] = ()  # dead ranks known to this rank
    watch: CompletionQueue | None = None  # None: the caller tests each request

    def tolerate_deaths(self) -> None:
        """Let later calls raise DeathError where a rank has died; the job survives it."""
        self.tolerant = True

    @abc.abstractmethod
    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`; the caller must not change it until the request has completed.

        The receiver calls `recv`. To a receiving channel, send by `send_to_channel`.
        """

    def send_to_channel(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """`send` to a rank that receives by a channel."""
        return self.send(array, dest, tag)

    @abc.abstractmethod
    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`; `test` raises CommError if the message has another size."""

    @abc.abstractmethod
    def send_channel(self, array: np.ndarray, dest: int, tag: int) -> Channel:
        """A persistent send of `array`."""

    @abc.abstractmethod
    def recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> Channel:
        """A persistent receive into `array`; if `source` is ANY, `.source` is the last sender.

        With `short` (and a fixed source) a message may be shorter than `array`: `.nbytes` is its
        size.
        """

    @abc.abstractmethod
    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None; never blocks."""

    @abc.abstractmethod
    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """Allocate storage for a sum of `count` elements over all ranks; collective."""

    @abc.abstractmethod
    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Allreduce `array` in place ("sum", "max", "min"); for small arrays."""

    @abc.abstractmethod
    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Broadcast `root`'s array in place."""

    @abc.abstractmethod
    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Concatenate the arrays of all ranks, in rank order, in `out` on every rank.

        `rows[r]` is the number of rows of `out` from rank r; `array` has `rows[rank]` rows.
        """

    @abc.abstractmethod
    def barrier(self) -> Request:
        """Done once all ranks have called it."""

    @abc.abstractmethod
    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere; blocks; for setup and reports."""

    @abc.abstractmethod
    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string on every rank; blocks; for setup and reports."""

    def all_gather_text(self, text: str) -> list[str]:
        """All ranks' strings, without NUL, on every rank; blocks; for setup and reports."""
        rows = self.gather_text(text)
        return self.broadcast_text(None if rows is None else "\0".join(rows)).split("\0")

    @abc.abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of `ranks`, numbered in that order, or None on other ranks; collective."""

    def is_last(self) -> bool:
        """Whether all other ranks have died, or die within a moment."""
        return self.size == 1

    @abc.abstractmethod
    def abort(self, code: int) -> None:
        """End every rank of the job now with exit code `code`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resources; collective where the implementation needs it."""
