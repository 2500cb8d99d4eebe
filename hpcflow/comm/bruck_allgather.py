"""Allgather by Bruck's algorithm, with a logarithmic number of messages.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, *Efficient Algorithms for All-to-All
Communications in Multiport Message-Passing Systems*, IEEE TPDS 8(11), 1997, section 4. A rank sends
at most 2 ceil(log2 n) messages. Blocks may have different sizes. Each block is received directly at
its place in the result, so no final rotation is needed: a transfer that would wrap around the end
of the result is two messages. Each rank receives each block once.

Over TCP a message that waits for an answer of its receiver leaves the network idle meanwhile. So
messages may be cut into pieces, of which a limited number is on its way at any time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from hpcflow.comm.communicator import Request

Start = Callable[[np.ndarray, int], Request]  # starts a message (bytes, peer rank)
IN_FLIGHT = 64  # pieces to or from a peer


def bruck_rounds(rank: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(dest, source, count) of each round.

    `rank` sends `count` blocks, starting with its own, to `dest`. It receives `count` blocks,
    starting with the block of `source`, from `source`. Blocks are numbered modulo `size`.
    """
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        yield (rank - distance) % size, (rank + distance) % size, count
        distance *= 2


def block_ranges(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """The `count` blocks from `first` on, as (begin, end) ranges that do not wrap around."""
    end = first + count
    return [(first, end)] if end <= size else [(first, size), (0, end - size)]


class AllGather:
    """One allgather into `result`, a byte array in which block r begins at `starts[r]`.

    `starts` has one more element, the end of `result`. The block of `rank` must already be in
    place. `send` and `recv` start messages; those of two ranks arrive in order. `piece_bytes(peer)`
    is the size of the pieces of messages to or from a rank, the same on both; 0: whole messages.
    `test` starts a round when the previous round has completed.
    """

    def __init__(
        self,
        rank: int,
        result: np.ndarray,
        starts: Sequence[int],
        send: Start,
        recv: Start,
        piece_bytes: Callable[[int], int] = lambda peer: 0,
    ) -> None:
        self._rank, self._result, self._starts = rank, result, starts
        self._send, self._recv, self._piece_bytes = send, recv, piece_bytes
        self._rounds = bruck_rounds(rank, len(starts) - 1)
        self._pending: list[_PiecesInFlight] = []

    def test(self) -> bool:
        """Whether all blocks have been received and this rank's sends have completed."""
        while True:
            self._pending = [pieces for pieces in self._pending if not pieces.test()]
            if self._pending:
                return False
            following = next(self._rounds, None)
            if following is None:
                return True
            dest, source, count = following
            self._pending = [
                _PiecesInFlight(self._recv, source, self._pieces(source, count, source)),
                _PiecesInFlight(self._send, dest, self._pieces(self._rank, count, dest)),
            ]

    def _pieces(self, first: int, count: int, peer: int) -> Iterator[np.ndarray]:
        """The pieces of the messages of a round to or from `peer`: of `count` blocks."""
        size = self._piece_bytes(peer) or len(self._result)
        for begin, end in block_ranges(first, count, len(self._starts) - 1):
            low, high = self._starts[begin], self._starts[end]
            for at in range(low, high, max(size, 1)):  # none of empty blocks: the peer knows sizes
                yield self._result[at : min(at + size, high)]


class _PiecesInFlight:
    """Messages to or from a peer, at most `IN_FLIGHT` at any time, which complete in order."""

    def __init__(self, start: Start, peer: int, pieces: Iterable[np.ndarray]) -> None:
        self._start, self._peer, self._pieces = start, peer, iter(pieces)
        self._requests: collections.deque[Request] = collections.deque()
        self._fill()

    def _fill(self) -> None:
        while len(self._requests) < IN_FLIGHT:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._requests.append(self._start(piece, self._peer))

    def test(self) -> bool:
        """Whether all have completed; starts others in place of those that have."""
        while self._requests and self._requests[0].test():
            self._requests.popleft()
            self._fill()
        return not self._requests
