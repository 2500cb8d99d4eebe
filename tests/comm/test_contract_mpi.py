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
