"""The NCCL communicator: its logic on a fake NCCL between threads; on a real GPU where one is."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.comm.local import local_world
from hpcflow.comm.nccl import NcclCommunicator
from hpcflow.errors import CommError, DeviceError, MissingPackageError

from .comm_contract import CHECKS, done
from .fake_cuda import fake_packages
from .threads import on_all


def has_gpu() -> bool:
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.is_available())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_on_a_fake(check, n):
    on_all(
        local_world(n, seed=1),
        lambda comm: check(NcclCommunicator(comm, packages=fake_packages(comm.rank))),
    )


@pytest.mark.verifies("NCCL, 1 rank", ranks=1)
@pytest.mark.skipif(not has_gpu(), reason="cupy sees no GPU here")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_on_a_gpu(check):
    comm = NcclCommunicator(local_world(1)[0])
    check(comm)
    comm.close()


def test_two_ranks_on_one_gpu_are_told_so():
    def play(comm):
        with pytest.raises(DeviceError, match="ranks 0, 2 share one GPU"):
            NcclCommunicator(comm, packages=fake_packages(comm.rank % 2))

    on_all(local_world(3), play)


def test_unlike_versions_are_told():
    def play(comm):
        packages = fake_packages(comm.rank, version=22900 + comm.rank)
        with pytest.raises(DeviceError, match="rank 0 22900, rank 1 22901"):
            NcclCommunicator(comm, packages=packages)

    on_all(local_world(2), play)


def test_an_asynchronous_error_aborts_and_stays():
    packages = fake_packages(0)
    comm = NcclCommunicator(local_world(1)[0], packages=packages)
    bucket = comm.bucket(5, np.dtype("f4"))
    bucket.start()
    packages[1].error = "remote process exited"
    for call in (bucket.test, bucket.test, comm.bucket(5, np.dtype("f4")).start):
        with pytest.raises(CommError, match="remote process exited"):
            call()
    comm.close()
    assert packages[1].log == ["abort"]


def test_a_done_bucket_is_polled_not_waited_for():
    comm = NcclCommunicator(local_world(1)[0], packages=fake_packages(0))
    bucket = comm.bucket(5, np.dtype("f4"))
    bucket.start()
    assert not bucket.test()
    done(bucket)
    bucket.close()
    comm.close()


def test_abort_ends_the_job_too():
    packages = fake_packages(0)
    comm = NcclCommunicator(local_world(1)[0], packages=packages)
    with pytest.raises(CommError, match="code 3"):
        comm.abort(3)
    assert packages[1].log == ["abort"]


def test_a_dtype_without_sum_is_refused():
    comm = NcclCommunicator(local_world(1)[0], packages=fake_packages(0))
    with pytest.raises(CommError, match="complex64"):
        comm.bucket(5, np.dtype("c8"))


@pytest.mark.skipif(has_gpu(), reason="cupy is here")
def test_without_cupy_the_package_is_named():
    with pytest.raises(MissingPackageError, match="CuPy"):
        NcclCommunicator(local_world(1)[0])
