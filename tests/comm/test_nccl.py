"""The NCCL communicator: its logic on a fake NCCL between threads; on a real GPU where one is."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from hpcflow.comm import nccl_allreduce
from hpcflow.comm.nccl_allreduce import NcclCommunicator
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import CommError, DeviceError, MissingPackageError

from .comm_contract import CHECKS, done
from .fake_cuda import fake_packages
from .threads import on_all


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_on_a_fake(check, n):
    on_all(
        thread_world(n, seed=1),
        lambda comm: check(NcclCommunicator(comm, packages=fake_packages(comm.rank))),
    )


@pytest.mark.verifies("NCCL, 1 rank", ranks=1)
@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_on_a_gpu(check):
    comm = NcclCommunicator(thread_world(1)[0])
    check(comm)
    comm.close()


def test_two_ranks_on_one_gpu_are_told_so():
    def play(comm):
        with pytest.raises(DeviceError, match="ranks 0, 2 share one GPU"):
            NcclCommunicator(comm, packages=fake_packages(comm.rank % 2))

    on_all(thread_world(3), play)


def test_unlike_versions_are_told():
    def play(comm):
        packages = fake_packages(comm.rank, version=22900 + comm.rank)
        with pytest.raises(DeviceError, match="rank 0 22900, rank 1 22901"):
            NcclCommunicator(comm, packages=packages)

    on_all(thread_world(2), play)


def test_an_asynchronous_error_aborts_and_stays():
    packages = fake_packages(0)
    comm = NcclCommunicator(thread_world(1)[0], packages=packages)
    bucket = comm.bucket(5, np.dtype("f4"))
    bucket.start()
    packages[1].error = "remote process exited"
    for call in (bucket.test, bucket.test, comm.bucket(5, np.dtype("f4")).start):
        with pytest.raises(CommError, match="remote process exited"):
            call()
    comm.close()
    assert packages[1].log == ["abort"]


def test_a_done_bucket_is_polled_not_waited_for():
    comm = NcclCommunicator(thread_world(1)[0], packages=fake_packages(0))
    bucket = comm.bucket(5, np.dtype("f4"))
    bucket.start()
    assert not bucket.test()
    done(bucket)
    bucket.close()
    comm.close()


def test_abort_ends_the_job_too():
    packages = fake_packages(0)
    comm = NcclCommunicator(thread_world(1)[0], packages=packages)
    with pytest.raises(CommError, match="code 3"):
        comm.abort(3)
    assert packages[1].log == ["abort"]


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_rank_that_never_comes_is_named_by_all_others(monkeypatch, absent):
    """NCCL itself would wait for ever."""
    monkeypatch.setattr(nccl_allreduce, "SET_UP_S", 0.3)
    monkeypatch.setattr(nccl_allreduce, "ANSWER_S", 0.3)
    others = ", ".join(str(rank) for rank in range(3) if rank != absent)

    def play(comm):
        if comm.rank != absent:
            with pytest.raises(CommError, match=f"rank {absent} on .* did not come") as told:
                NcclCommunicator(comm, packages=fake_packages(comm.rank))
            assert f"ranks {others.replace('1, 2', '1-2').replace('0, 1', '0-1')} did" in str(
                told.value
            )

    on_all(thread_world(3), play)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [({"hangs": True}, "has not ended in 0 s"), ({"fails": "no network"}, "failed: no network")],
)
def test_a_start_of_nccl_that_does_not_end_well_is_an_error(monkeypatch, trouble, told):
    monkeypatch.setattr(nccl_allreduce, "SET_UP_S", 0.3)

    def play(comm):
        with pytest.raises(CommError, match=f"NCCL's own start {told}; all of ranks 0-1 came"):
            NcclCommunicator(comm, packages=fake_packages(comm.rank, **trouble))

    on_all(thread_world(2), play)


def test_a_sum_that_others_never_join_is_aborted_at_the_end(monkeypatch, caplog):
    monkeypatch.setattr(nccl_allreduce, "CLOSE_S", 0.1)

    def play(comm):
        packages = fake_packages(comm.rank)
        made = NcclCommunicator(comm, packages=packages)
        if comm.rank == 0:
            made.bucket(5, np.dtype("f4")).start()
        made.close()
        assert packages[1].log == (["destroy"] if comm.rank else ["abort"])

    on_all(thread_world(2), play)


def test_a_process_that_fails_lets_go_of_its_gpu():
    packages = fake_packages(0)
    comm = NcclCommunicator(thread_world(1)[0], packages=packages)
    part = comm.split([0])
    nccl_allreduce.abort_all()
    nccl_allreduce.abort_all()
    assert packages[1].log == ["abort", "abort"], "of both, once"
    for each in (comm, part):
        with pytest.raises(CommError, match="aborted"):
            each.check()


def test_where_cupy_tells_of_no_errors_sums_are_made_and_one_line_says_so(caplog):
    comm = NcclCommunicator(thread_world(1)[0], packages=fake_packages(0, tells=False))
    bucket = comm.bucket(5, np.dtype("f4"))
    bucket.start()
    done(bucket)
    assert [r.message for r in caplog.records if "does not tell of errors of NCCL" in r.message]
    comm.close()


def test_a_dtype_without_sum_is_refused():
    comm = NcclCommunicator(thread_world(1)[0], packages=fake_packages(0))
    with pytest.raises(CommError, match="complex64"):
        comm.bucket(5, np.dtype("c8"))


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is here")
def test_without_cupy_the_package_is_named():
    with pytest.raises(MissingPackageError, match="CuPy"):
        NcclCommunicator(thread_world(1)[0])
