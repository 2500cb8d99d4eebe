"""Sums around a ring: any sizes, in the order of the ring, the same bits on all ranks; failures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcflow.comm import ring_allreduce
from hpcflow.comm.communicator import Communicator
from hpcflow.comm.contiguous_buffers import chunk_of
from hpcflow.comm.ring_allreduce import RingQueue, network_rate, parts_of
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import CommError
from hpcflow.graph.dtypes import bfloat16

from .comm_contract import done
from .threads import on_all


def on_ranks(size: int, function: Callable[[Communicator], Any]) -> list[Any]:
    """What a function returns on each rank."""
    found: dict[int, Any] = {}
    on_all(thread_world(size), lambda comm: found.update({comm.rank: function(comm)}))
    return [found[rank] for rank in range(size)]


def summed(addends: list[np.ndarray]) -> np.ndarray:
    """The sum as a ring adds: the chunk of rank r begins with its addend, then comes r + 1."""
    size, total = len(addends), np.empty_like(addends[0])
    for part in parts_of(addends[0], size):
        for r in range(size):
            chunk = chunk_of(part.stop - part.start, size, r)
            at = slice(part.start + chunk.start, part.start + chunk.stop)
            total[at] = addends[r][at]
            for k in range(1, size):
                total[at] = total[at] + addends[(r + k) % size][at]
    return total


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_sums_are_those_of_the_ring_on_all_ranks(size: int, dtype: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ring_allreduce, "CHUNK_BYTES", 400)
    monkeypatch.setattr(ring_allreduce, "LEAST_CHUNK_BYTES", 100)
    monkeypatch.setattr(ring_allreduce, "PARTS_IN_FLIGHT", 3)
    rng = np.random.default_rng(size)
    counts = [1, size - 1, size, 97, 1000, 12_345]
    addends = [[(rng.standard_normal(n) * 99).astype(dtype) for n in counts] for _ in range(size)]

    def sums(comm: Communicator) -> list[np.ndarray]:
        ring, mine = RingQueue(comm), addends[comm.rank]
        totals = [np.zeros_like(addend) for addend in mine]
        for _ in range(2):  # all in flight together, and again
            requests = [ring.start(a, t) for a, t in zip(mine, totals, strict=True)]
            done(*requests)
        return totals

    found = on_ranks(size, sums)
    for i in range(len(counts)):
        expected = summed([addends[r][i] for r in range(size)])
        for totals in found:
            assert totals[i].tobytes() == expected.tobytes()


def test_parts_cover_an_array_in_chunks_of_a_message() -> None:
    for nbytes in (4, 100_000, 1_000_000, 10_000_000):
        array = np.zeros(nbytes // 4, "f4")
        for size in (2, 3, 8):
            parts = parts_of(array, size)
            assert parts[0].start == 0 and parts[-1].stop == array.size
            assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
            longest = max(array[part].nbytes for part in parts) / size
            assert longest <= 2 * ring_allreduce.CHUNK_BYTES


def test_a_failed_message_fails_the_sums() -> None:
    """Also when it is tested again: what the other parts have received is not a sum."""

    def fails(comm: Communicator) -> None:
        ring = RingQueue(Cut(comm) if comm.rank == 0 else comm)
        addend, total = np.ones(100_000, "f4"), np.zeros(100_000, "f4")
        if comm.rank == 1:
            ring.start(addend, total)
            return
        with pytest.raises(CommError, match="the cable is out"):
            done(ring.start(addend, total))
        with pytest.raises(CommError, match="the cable is out"):
            ring.advance()
        later = ring.start(addend, total)  # as other requests fail: when they are tested
        with pytest.raises(CommError, match="the cable is out"):
            done(later)

    on_ranks(2, fails)


class Cut:
    """A communicator whose receives fail."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self.rank, self.size, self.watch = comm, comm.rank, comm.size, comm.watch
        self.send: Callable[..., Any] = comm.send

    def recv(self, array: np.ndarray, source: int, tag: int) -> Any:
        class Failed:
            def test(self) -> bool:
                raise CommError("the cable is out")

        return Failed()


def test_the_rate_of_the_network_is_one_number_for_all() -> None:
    rates = on_ranks(3, network_rate)
    assert len(set(rates)) == 1 and rates[0] > 0
