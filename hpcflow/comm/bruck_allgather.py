"""All-gather whose number of messages grows with the logarithm of the number of ranks.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, *Efficient Algorithms for All-to-All
Communications in Multiport Message-Passing Systems*, IEEE TPDS 8(11), 1997, section 4. A rank sends
at most 2 ceil(log2 n) messages. Blocks may have different sizes. They are received where they
belong in the result, so nothing is rotated: a message that would go round the end of the result is
two. Each block comes to each rank once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcflow.comm.communicator import Request

Start = Callable[[np.ndarray, int], Request]  # of a message: its bytes and the other rank


def rounds(rank: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(dest, source, count) of each round.

    `rank` sends the `count` blocks from its own on to `dest`, and receives as many, from that of
    `source` on. Blocks are numbered modulo `size`.
    """
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        yield (rank - distance) % size, (rank + distance) % size, count
        distance *= 2


def runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """The blocks from `first` on as runs (begin, end) that do not go round the end."""
    end = first + count
    return [(first, end)] if end <= size else [(first, size), (0, end - size)]


class AllGather:
    """One all-gather into `result`, bytes of which block r begins at `starts[r]`.

    `starts` has one more element, the end; the block of `rank` is there. `send` and `recv` start
    messages. A round starts when the one before is over, in `test`.
    """

    def __init__(
        self, rank: int, result: np.ndarray, starts: Sequence[int], send: Start, recv: Start
    ) -> None:
        self._rank, self._result, self._starts = rank, result, starts
        self._send, self._recv = send, recv
        self._rounds = rounds(rank, len(starts) - 1)
        self._left: list[Request] = []

    def test(self) -> bool:
        """Whether all blocks are there and this rank's messages have left."""
        while True:
            self._left = [request for request in self._left if not request.test()]
            if self._left:
                return False
            following = next(self._rounds, None)
            if following is None:
                return True
            dest, source, count = following
            arrive = [self._recv(part, source) for part in self._parts(source, count)]
            leave = [self._send(part, dest) for part in self._parts(self._rank, count)]
            self._left = arrive + leave

    def _parts(self, first: int, count: int) -> Iterator[np.ndarray]:
        for begin, end in runs(first, count, len(self._starts) - 1):
            low, high = self._starts[begin], self._starts[end]
            if low < high:  # the other end knows, too, which parts are empty
                yield self._result[low:high]
