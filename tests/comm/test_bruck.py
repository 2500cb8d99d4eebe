"""The all-gather of Bruck and others, on as many ranks as one likes, without MPI."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcflow.comm import bruck_allgather
from hpcflow.comm.bruck_allgather import AllGather, block_ranges, bruck_rounds


class Sent:
    """A message on its way: done at once, or once `ready` says so."""

    def __init__(self, ready=lambda: True) -> None:
        self.test = ready


def gather(
    rows: list[int], seed: int, piece: int = 0, awaited: list[int] | None = None
) -> tuple[list[np.ndarray], list[int]]:
    """The result of each rank and how many messages it has sent; ranks are polled in any order.

    Messages have at most `piece` bytes if it is not 0. `awaited` gets the number of messages that a
    rank awaits, at each start of one.
    """
    size, draw = len(rows), np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rows)]).tolist()
    mail: dict[tuple[int, int], list[np.ndarray]] = {}
    results = [np.full(starts[-1], 255, np.uint8) for _ in rows]
    counts = [0] * size

    def rank_of(rank: int) -> AllGather:
        def send(part: np.ndarray, dest: int) -> Sent:
            counts[rank] += 1
            assert part.size <= (piece or part.size)
            mail.setdefault((rank, dest), []).append(part.copy())
            return Sent()

        def recv(part: np.ndarray, source: int) -> Sent:
            number = taken.get(source, 0)
            taken[source] = number + 1
            missing.add((source, number))
            if awaited is not None:
                awaited.append(len(missing))

            def ready() -> bool:
                come = mail.get((source, rank), [])
                if len(come) <= number:
                    return False
                part[:] = come[number]  # fails if the sizes differ
                missing.discard((source, number))
                return True

            return Sent(ready)

        taken: dict[int, int] = {}
        missing: set[tuple[int, int]] = set()
        results[rank][starts[rank] : starts[rank + 1]] = rank
        return AllGather(rank, results[rank], starts, send, recv, lambda peer: piece)

    left = {rank: rank_of(rank) for rank in range(size)}
    polls = 0
    while left:
        rank = int(draw.choice(list(left)))
        if left[rank].test():
            del left[rank]
        polls += 1
        assert polls < 200 * size * size + 100, "it does not end"
    return results, counts


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13, 33])
@pytest.mark.parametrize("even", [True, False])
def test_each_rank_gets_all_blocks_in_few_messages(size: int, even: bool) -> None:
    rows = [3] * size if even else np.random.default_rng(size).integers(0, 4, size).tolist()
    whole = np.repeat(np.arange(size, dtype=np.uint8), rows)
    results, counts = gather(rows, size)
    for result in results:
        np.testing.assert_array_equal(result, whole)
    assert max(counts) <= 2 * math.ceil(math.log2(size))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_messages_in_pieces_are_few_at_a_time(size: int, monkeypatch) -> None:
    monkeypatch.setattr(bruck_allgather, "IN_FLIGHT", 3)
    rows = np.random.default_rng(size).integers(10, 40, size).tolist()
    whole = np.repeat(np.arange(size, dtype=np.uint8), rows)
    awaited: list[int] = []
    results, counts = gather(rows, size, 4, awaited)
    for result in results:
        np.testing.assert_array_equal(result, whole)
    assert max(awaited) == 3 and min(counts) >= sum(rows) * (size - 1) / size / 4 - 40


@pytest.mark.parametrize("size", [1024, 4096, 4097])
def test_messages_grow_with_the_logarithm_and_each_block_comes_once(size: int) -> None:
    for rank in (0, 1, size // 2, size - 1):
        blocks, messages = {rank}, 0
        for dest, source, count in bruck_rounds(rank, size):
            assert (rank - dest) % size == (source - rank) % size
            messages += len(block_ranges(rank, count, size))
            new = {b for low, high in block_ranges(source, count, size) for b in range(low, high)}
            assert len(new) == count and not new & blocks
            blocks |= new
        assert len(blocks) == size
        assert messages <= 2 * math.ceil(math.log2(size))
