"""The contract over MPI: `mpirun -n N python -m pytest --with-mpi tests/comm`, N = 1, 2, 3, 4."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.errors import CommError

from .comm_contract import CHECKS, any_source_is_named, done

pytestmark = pytest.mark.mpi


KINDS = ("mpi", "shared", "shared on two nodes", "shared, uneven")
RINGS = ("rings", "rings on two nodes", "rings, uneven")


@pytest.fixture(scope="module", params=[*KINDS, *RINGS])
def comm(request):
    """The communicator under test, on all ranks; shared windows also for the smallest buckets."""
    from hpcflow.comm import ring_allreduce, shared_memory_allreduce
    from hpcflow.comm.mpi_communicator import world

    node_of = {
        "shared": None,
        "shared on two nodes": lambda rank: rank // 2,
        "shared, uneven": lambda rank: ("b", "a", "b", "b")[rank],
        "rings": lambda rank: rank,
        "rings on two nodes": lambda rank: rank // 2,
        "rings, uneven": lambda rank: ("b", "a", "b", "b")[rank],
    }
    if request.param == "mpi":
        yield world()
        return
    everyone = world().split(range(world().size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory_allreduce, "SMALL_BYTES", 0)
        patch.setattr(shared_memory_allreduce, "CHUNK_BYTES", 24)  # of gathers between nodes
        patch.setattr(ring_allreduce, "LEAST_BYTES", 0)
        comm = shared_memory_allreduce.SharedCommunicator(
            everyone, node_of[request.param], rings=request.param in RINGS
        )
        assert (comm.ring is not None) == (request.param in RINGS and comm.lane is not None)
        yield comm
    comm.close()
    everyone.close()


@pytest.mark.parametrize("misses", [False, True], ids=["posted", "probed"])
def test_any_source_by_either_way(monkeypatch, misses):
    """A channel from any rank names the sender, whether its receives are posted or probed for."""
    from hpcflow.comm import mpi_communicator

    monkeypatch.setattr(mpi_communicator, "misses_any_source", lambda: misses)
    any_source_is_named(mpi_communicator.world())
    channel = mpi_communicator.world().recv_channel(np.zeros(1), mpi_communicator.world().ANY, 6)
    assert channel.test()
    channel.start()
    assert not channel.test()
    with pytest.raises(CommError, match="started again"):
        channel.start()
    channel.close()
    done(mpi_communicator.world().barrier())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(comm, check):
    """MPI keeps the contract."""
    check(comm)
    done(comm.barrier())


def test_a_large_message_within_a_node_takes_many_tests():
    """So that a rank that receives it looks after other messages in between."""
    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    into = np.zeros(40 << 20, np.uint8)
    receiver = world.recv_channel(into, before, 7)
    receiver.start()
    sent = world.send_to_channel(np.full(into.size, after, np.uint8), after, 7)
    failed = 0
    while not receiver.test():
        failed += 1
        sent.test()
    assert failed >= 9 and (into == world.rank).all()
    done(sent)
    receiver.close()
    done(world.barrier())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("watched", [False, True])
def test_large_messages_of_other_hosts_are_received_in_turn(monkeypatch, watched):
    """Each has what its sender sent, step after step; a short one stands for a missing value."""
    from hpcflow.comm.mpi_communicator import world
    from hpcflow.comm.mpi_requests import PacedChannel

    comm = world()
    monkeypatch.setattr(comm, "hosts", tuple(f"host{rank}" for rank in range(comm.size)))
    count = 50_000
    if comm.rank:
        data = np.zeros(count)
        send = comm.send_channel(data, 0, 8)
        for step in range(4):
            data[:] = 10 * step + comm.rank
            send.start()
            done(send)
        done(comm.send(np.zeros(0), 0, 8))
        send.close()
        done(comm.barrier())
        return
    arrays = np.zeros((comm.size, count))
    peers = range(1, comm.size)
    channels = {rank: comm.recv_channel(arrays[rank], rank, 8, short=True) for rank in peers}
    assert all(isinstance(channel, PacedChannel) for channel in channels.values())
    for step in range(5):
        for rank, channel in channels.items():
            channel.start()
            with pytest.raises(CommError, match="started again"):
                channel.start()
            if watched:
                channel.watched_by(comm.watch, rank)
        pending = set(channels)
        while pending:
            if watched:
                finished = comm.watch.finished()
                over = {finished.popleft() for _ in range(len(finished))}
                assert all(channels[rank].test() for rank in over)
            else:
                over = {rank for rank in pending if channels[rank].test()}
            pending -= over
        assert {channel.nbytes for channel in channels.values()} == {8 * count if step < 4 else 0}
        expected = 10 * min(step, 3) + np.arange(comm.size)
        assert (arrays[1:] == expected[1:, None]).all()
    for channel in channels.values():
        channel.close()
    done(comm.barrier())
