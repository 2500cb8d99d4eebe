"""The contract over MPI: `mpirun -n N python -m pytest --with-mpi tests/comm`, N = 1, 2, 3, 4."""

from __future__ import annotations

import pytest

from .comm_contract import CHECKS, done

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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(comm, check):
    """MPI keeps the contract."""
    check(comm)
    done(comm.barrier())
