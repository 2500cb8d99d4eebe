"""Shared windows: reuse under slow ranks, room, turns; and what is too large for MPI's counts."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from .comm_contract import done

pytestmark = pytest.mark.mpi


PLACES = {
    "one node": (None, None),
    "two nodes": (lambda rank: rank // 2, False),
    "two nodes, rings": (lambda rank: rank // 2, True),
}
ALONE = (lambda rank: rank, True)  # on a node each, with rings


@pytest.fixture(params=PLACES.values(), ids=PLACES)
def comm(request):
    from hpcflow.comm.mpi_communicator import world
    from hpcflow.comm.shared_memory_allreduce import SharedCommunicator

    comm = SharedCommunicator(world(), *request.param)
    yield comm
    comm.close()


@pytest.mark.parametrize(
    "comm", [*PLACES.values(), ALONE], ids=[*PLACES, "a node each"], indirect=True
)
def test_a_slow_rank_reads_what_it_was_promised(comm):
    """Ranks write, start, poll and read at random moments; every word read is of its own step.

    The output is read twice, before and after a pause in which the others run ahead as far as
    they may; the input is written at once after reading, while others may still be slow.
    """
    chance = random.Random(100 + comm.rank)

    def dawdle():
        if chance.random() < 0.4:
            time.sleep(chance.random() * 0.004)

    sizes = (70_000, 300_000, 12_345)
    buckets = [comm.bucket(size, np.dtype("i8")) for size in sizes]
    for step in range(40):
        for i, bucket in enumerate(buckets):
            bucket.input[:] = 1000 * step + i + comm.rank
            dawdle()
            bucket.start()
        for i, bucket in sorted(enumerate(buckets), key=lambda _: chance.random()):
            while not bucket.test():
                dawdle()
            want = comm.size * (1000 * step + i) + comm.size * (comm.size - 1) // 2
            assert (bucket.output == want).all()
            dawdle()
            assert (bucket.output == want).all()
    for bucket in buckets:
        bucket.close()


@pytest.mark.mpi(min_size=2)
def test_one_call_of_test_takes_about_a_turn(comm, monkeypatch):
    """A large sum is done in many turns, so that the engine can look at other things."""
    from hpcflow.comm import shared_memory_allreduce

    monkeypatch.setattr(
        shared_memory_allreduce, "TURN_S", 0.0
    )  # a tile each turn, however fast the machine
    if comm.node_count > 1:
        pytest.skip("MPI's own turns are as long as it likes")
    bucket = comm.bucket(2_000_000, np.dtype("f4"))
    for _ in range(2):
        turns, finished = 0, False
        bucket.input[:] = comm.rank
        bucket.start()
        while not finished:
            finished = bucket.test()
            turns += 1
        assert turns >= 2_000_000 // comm.size // shared_memory_allreduce.TILE
    bucket.close()


def test_without_room_all_ranks_use_mpi_and_say_so(comm, monkeypatch, caplog):
    """One node without room decides for all; the sum is the same."""
    from hpcflow.comm import shared_memory_allreduce

    room = 0 if comm.rank == comm.size - 1 else 1 << 40
    monkeypatch.setattr(shared_memory_allreduce, "free_bytes", lambda: room)
    caplog.set_level("INFO", "hpcflow")
    buckets = [comm.bucket(count, np.dtype("f8")) for count in (100_000, 9_000_000)]
    for bucket in buckets:
        assert type(bucket).__name__ == "_MpiBucket"
        bucket.input[:] = comm.rank
        bucket.start()
        done(bucket)
        assert (bucket.output == comm.size * (comm.size - 1) / 2).all()
        bucket.close()
    lines = [record.message for record in caplog.records if "has no room" in record.message]
    assert len(lines) == (1 if comm.size > 1 else 0)


def shared_memory():
    """Bytes of shared memory that this process maps, and the files; others have theirs."""
    total, files = 0, set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, kind, _, _, _, *name = line.split(maxsplit=5)
        if kind[3] == "s":
            begin, end = (int(word, 16) for word in addresses.split("-"))
            total += end - begin
            files.update(name)
    return total, files


def test_shared_memory_is_given_back(comm):
    """A closed bucket's window is unmapped on every rank, and its file is removed."""
    before, others = shared_memory()
    for _ in range(3):
        bucket = comm.bucket(500_000, np.dtype("f8"))
        mapped, files = shared_memory()
        assert mapped > before + 4_000_000 or comm.local.size == 1
        bucket.close()
        done(comm.barrier())
        assert shared_memory()[0] < before + 2_000_000
        assert not [file for file in files - others if Path(file).exists()]
        done(comm.barrier())


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_a_message_above_two_gigabytes(persistent):
    """Counts that do not fit 32 bits, from rank 0 to the last rank."""
    from hpcflow.comm import mpi_communicator

    comm = mpi_communicator.world()
    if comm.size > 2:
        pytest.skip("two ranks are enough, and memory for more may be missing")
    size = (1 << 31) + (1 << 20) + 3
    requests, into = [], None
    if comm.rank == comm.size - 1:
        into = np.zeros(size, np.uint8)
        requests.append((comm.recv_channel if persistent else comm.recv)(into, 0, 1))
    if comm.rank == 0:
        out = np.zeros(size, np.uint8)
        out[-1], out[1 << 20], out[0] = 3, 2, 1
        requests.append((comm.send_channel if persistent else comm.send)(out, comm.size - 1, 1))
    for request in requests if persistent else ():
        request.start()
    done(*requests)
    if into is not None:
        assert (into[-1], into[1 << 20], into[0]) == (3, 2, 1)
    for request in requests if persistent else ():
        request.close()


def test_sums_in_pieces(monkeypatch):
    """What is larger than MPI counts is summed piece by piece; here the piece is small."""
    from hpcflow.comm import mpi_communicator

    comm = mpi_communicator.world()
    monkeypatch.setattr(mpi_communicator, "LARGEST_PIECE", 1000)
    array = np.arange(3456.0)
    done(comm.all_reduce(array))
    assert (array == comm.size * np.arange(3456.0)).all()
    bucket = comm.bucket(2001, np.dtype("i4"))
    bucket.input[:] = np.arange(2001)
    bucket.start()
    done(bucket)
    assert (bucket.output == comm.size * np.arange(2001)).all()
    bucket.close()
