"""The contract over MPI: `mpirun -n N python -m pytest --with-mpi tests/comm`, N = 1, 2, 3, 4."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.errors import CommError

from .comm_contract import CHECKS, any_source_is_named, done

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["mpi", "shared", "shared on two nodes", "shared, uneven"])
def comm(request):
    """The communicator under test, on all ranks; shared windows also for the smallest buckets."""
    from hpcflow.comm import shared
    from hpcflow.comm.mpi import world

    node_of = {
        "shared": None,
        "shared on two nodes": lambda rank: rank // 2,
        "shared, uneven": lambda rank: ("b", "a", "b", "b")[rank],
    }
    if request.param == "mpi":
        yield world()
        return
    everyone = world().split(range(world().size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "SMALL_BYTES", 0)
        yield (comm := shared.SharedCommunicator(everyone, node_of[request.param]))
    comm.close()
    everyone.close()


@pytest.mark.parametrize("misses", [False, True], ids=["posted", "probed"])
def test_any_source_by_either_way(monkeypatch, misses):
    """A channel from any rank names the sender, whether its receives are posted or probed for."""
    from hpcflow.comm import mpi

    monkeypatch.setattr(mpi, "_misses_any_source", lambda: misses)
    any_source_is_named(mpi.world())
    channel = mpi.world().recv_channel(np.zeros(1), mpi.world().ANY, 6)
    assert channel.test()
    channel.start()
    assert not channel.test()
    with pytest.raises(CommError, match="started again"):
        channel.start()
    channel.close()
    done(mpi.world().barrier())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(comm, check):
    """MPI keeps the contract."""
    check(comm)
    done(comm.barrier())
