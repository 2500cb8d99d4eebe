"""The Communicator contract: what the engine asks of MPI, shared windows, NCCL and the double."""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

GATHER_TAGS = 1024  # of all_gathers in flight at once


class Request(Protocol):
    """Something that finishes by itself; `test` makes progress and says whether it has."""

    def test(self) -> bool:
        """True once finished, and ever after; never blocks longer than about 1 ms."""
        ...


class Channel(Request, Protocol):
    """A persistent send or receive of one fixed array; `start` it once per step, then `test`."""

    source: int  # of a receive: who sent the last message (-1 before the first)
    nbytes: int  # of a receive: the bytes of the last message

    def start(self) -> None:
        """Begin the transfer; the array must not be touched until `test` says True."""
        ...

    def close(self) -> None:
        """Cancel a receive in flight and let go of the array; for plans that are dropped."""
        ...


class Watch(Protocol):
    """Requests in flight of which those that are over are told of, so that nobody tests each.

    A request that has a method `watched_by(watch, token)` enters itself; the others are tested. One
    that is told of is over, or has more to do: its `test` says so, and raises what it failed by.
    """

    def add(self, transfer: Any, token: Any) -> None:
        """Tell of a transfer of this communicator that has begun."""
        ...

    def expect(self, source: int, tag: int, receive: Callable[[int], Any], token: Any) -> None:
        """When a message waits, tell of the transfer that `receive(bytes)` begins."""
        ...

    def finished(self) -> collections.deque[Any]:
        """Let messages move. The tokens of those that are over, each to be taken out once."""
        ...

    def tokens(self) -> list[Any]:
        """Those of all that are not over, or were not taken out."""
        ...

    def drop(self, gone: Callable[[Any], bool]) -> None:
        """Forget the tokens for which `gone` is true."""
        ...

    def __len__(self) -> int:
        """How many tokens there are."""
        ...


class Bucket(Protocol):
    """A sum over ranks with storage of its own, made once and used every step.

    Write this rank's addend to `input`, `start`, `test` until True, then read `output`, which holds
    the sum until this rank starts the bucket again. From `start` on `input` is undefined; it may be
    written anew once `test` said True and `output` was read. `output` may be shared between ranks
    and is read-only to the caller; it may be the same memory as `input`. `start` is called in the
    same order of buckets on every rank of the communicator.
    """

    input: Any
    output: Any

    def start(self) -> None:
        """This rank's addend is complete and its last reading of `output` is over."""
        ...

    def test(self) -> bool:
        """True once `output` holds the sum, and until the next `start`."""
        ...

    def close(self) -> None:
        """Let go of the storage; collective where it is shared; `input` and `output` are gone."""
        ...


class Traffic:
    """Bytes and messages this rank has sent, counted where they leave; key: (destination, tag).

    Collectives count under the key ("collective", 0) with the bytes of their input. What `split`
    makes counts into the same record, with destinations numbered as in the first communicator.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[int | str, int], list[int]] = {}

    def tally(self, key: tuple[int | str, int]) -> list[int]:
        """[messages, bytes] of a key, for who counts there often."""
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
    """Ranks that can reach each other.

    Arrays are C-contiguous and free of objects (zero-size ones always fit); anything else is a
    CommError. Calls of one rank come from one thread at a time (the engine's baton);
    implementations take no lock. Collectives and `bucket`/`split` are called by all ranks of the
    communicator in one order. Point-to-point messages match by (peer, tag) in the order sent. ANY
    (-1) as source receives from any rank. A zero-byte message is a message.
    """

    ANY = -1
    rank: int
    size: int
    hosts: tuple[str, ...]  # host name of each rank
    traffic: Traffic
    max_tag: int  # largest tag usable, at least 32767; GATHER_TAGS below it are all_gather's
    tolerant = False  # the job survives a rank's death, which its messages meet as a DeathError
    lost: tuple[int, ...] = ()  # ranks that have died, as far as this one knows
    watch: Watch | None = None  # None: each request is to be tested

    @abc.abstractmethod
    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`; the caller keeps it unchanged until the request is done.

        `recv` of the other side takes it; what a channel takes is sent by `send_to_channel`.
        """

    def send_to_channel(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """`send` to a rank that receives it by a channel."""
        return self.send(array, dest, tag)

    @abc.abstractmethod
    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`; a message of another size is a CommError when tested."""

    @abc.abstractmethod
    def send_channel(self, array: np.ndarray, dest: int, tag: int) -> Channel:
        """A persistent send of `array`."""

    @abc.abstractmethod
    def recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> Channel:
        """A persistent receive into `array`; `source` may be ANY: then `.source` says who sent.

        With `short` (and a source) a message may be shorter: `.nbytes` says how long it was.
        """

    @abc.abstractmethod
    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that waits to be received, or None; never blocks."""

    @abc.abstractmethod
    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """Storage for a sum of `count` elements over all ranks; collective."""

    @abc.abstractmethod
    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Combine `array` in place over all ranks ("sum", "max", "min"); for small things."""

    @abc.abstractmethod
    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Give every rank `root`'s array, in place."""

    @abc.abstractmethod
    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Give every rank the arrays of all ranks, one after the other in `out`.

        `rows[r]` is how many rows of `out` are rank r's; `array` has `rows[rank]`.
        """

    @abc.abstractmethod
    def barrier(self) -> Request:
        """Done once all ranks have called it."""

    @abc.abstractmethod
    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere; blocks; for set-up and reports."""

    @abc.abstractmethod
    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string everywhere; blocks; for set-up and reports."""

    def all_gather_text(self, text: str) -> list[str]:
        """All ranks' strings, free of NUL, on every rank; blocks; for set-up and reports."""
        rows = self.gather_text(text)
        return self.broadcast_text(None if rows is None else "\0".join(rows)).split("\0")

    @abc.abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of `ranks`, numbered in that order; None on the others; all call."""

    def is_last(self) -> bool:
        """Whether all others have died, or do within a moment."""
        return self.size == 1

    @abc.abstractmethod
    def abort(self, code: int) -> None:
        """End every rank of the job now with exit code `code`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what this communicator holds; collective where the implementation needs it."""
