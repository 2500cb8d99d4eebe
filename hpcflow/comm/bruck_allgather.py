"""Allgather by Bruck's algorithm, with a logarithmic number of messages.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, *Efficient Algorithms for All-to-All
Communications in Multiport Message-Passing Systems*, IEEE TPDS 8(11), 1997, section 4. A rank sends
at most 2 ceil(log2 n) messages. Blocks may have different sizes. Each block is received directly at
its place in the result, so no final rotation is needed: a transfer that would wrap around the end
of the result is two messages. Each rank receives each block once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcflow.comm.communicator import Request

Start = Callable[[np.ndarray, int], Request]  # starts a message (bytes, peer rank)


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
    place. `send` and `recv` start messages. `test` starts a round when the previous round has
    completed.
    """

    def __init__(
        self, rank: int, result: np.ndarray, starts: Sequence[int], send: Start, recv: Start
    ) -> None:
        self._rank, self._result, self._starts = rank, result, starts
        self._send, self._recv = send, recv
        self._rounds = bruck_rounds(rank, len(starts) - 1)
        self._pending: list[Request] = []

    def test(self) -> bool:
        """Whether all blocks have been received and this rank's sends have completed."""
        while True:
            self._pending = [request for request in self._pending if not request.test()]
            if self._pending:
                return False
            following = next(self._rounds, None)
            if following is None:
                return True
            dest, source, count = following
            arrive = [self._recv(part, source) for part in self._parts(source, count)]
            leave = [self._send(part, dest) for part in self._parts(self._rank, count)]
            self._pending = arrive + leave

    def _parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        for begin, end in block_ranges(first, count, len(self._starts) - 1):
            low, high = self._starts[begin], self._starts[end]
            if low < high:  # no message for empty blocks: the peer knows the sizes
                yield self._result[low:high]
