"""Both forms of checkpoint over real MPI ranks; `make mpio` has the h5py that writes one file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory, hdf5_datasets
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import equal, variables
from tests.runtime.ranks import run_here

pytestmark = pytest.mark.mpi
FORMS = [
    pytest.param("sharded", marks=pytest.mark.verifies("sharded")),
    pytest.param("parallel", marks=pytest.mark.verifies("mpio", least=2)),
]


@pytest.fixture
def shared():
    """A folder that all ranks know."""
    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    made = tempfile.mkdtemp(prefix="hpcflow-test-") if world.rank == 0 else None
    path = Path(world.broadcast_text(made))
    yield path
    world.all_gather_text("done")  # nobody reads there any more
    if world.rank == 0:
        shutil.rmtree(path)


def size() -> int:
    from hpcflow.comm import mpi_communicator

    return mpi_communicator.world().size


def has_mpi() -> bool:
    from hpcflow.runtime.hdf5_library import is_parallel

    return is_parallel()


def needs(form):
    if form == "parallel" and size() > 1 and not has_mpi():
        pytest.skip("needs an h5py built with MPI")


def places_of(name):
    return {
        "sums": {},
        "servers": {"ps": max(size() - 1, 1), "shard_bytes": 4096},
        "tasks": {"tasks_per_replica": size()},
    }[name]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", ["sums", "servers", "tasks"])
def test_saved_and_loaded_by_mpi_ranks(shared, form, first):
    needs(form)
    if first == "servers" and size() == 1:
        pytest.skip("one rank is no server: does not apply")

    def write(context):
        made = variables(4)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        path = Path(hf.train.Saver(made, form=form).save(session, shared, 5))
        assert path.name == ("step-5.h5" if form == "parallel" else "step-5")
        assert (
            SavedCheckpoint(path).problems() == []
            and not verify_checkpoint(checkpoint_directory.read_entry(path)).faults
        )
        return session.run(made)

    def read(context):
        made = variables(9)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver(made).restore(session, shared)
        return session.run(made)

    values = run_here(write, **places_of(first))
    for second in ("sums", "servers") if size() > 1 else ("sums",):
        found = run_here(read, **places_of(second))
        if found is not None and values is not None:
            assert equal(found, values)
    if values is not None and form == "parallel":
        with h5py.File(shared / "step-5.h5") as file:
            np.testing.assert_array_equal(file["float64/v3"][()], values["float64/v3"])


@pytest.mark.mpi(min_size=2)
def test_without_mpi_in_h5py_one_file_is_refused_with_what_to_do(shared):
    if has_mpi():
        pytest.skip("this h5py can: does not apply")

    def body(context):
        made = variables(1)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        with pytest.raises(CheckpointError, match="built without MPI") as caught:
            hf.train.Saver(made, form="parallel").save(session, shared, 1)
        assert "parallel-hdf5" in caught.value.hint
        assert not any(shared.iterdir())

    run_here(body)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", FORMS)
def test_rows_larger_than_the_staging_buffer(shared, form):
    """A row of 20 MiB is written and digested in pieces, and read in other pieces."""
    needs(form)
    value = np.arange(3 * (5 << 20), dtype=np.float32).reshape(3, -1)

    def write(context):
        v = hf.Variable(hf.zeros(value.shape), name="v")
        x = hf.placeholder(hf.float32, value.shape)
        session = hf.Session(context=context)
        session.run(v.initializer)
        session.run(v.assign(x), {x: value})
        hf.train.Saver([v], form=form).save(session, shared, 1)

    def read(context):
        v = hf.Variable(hf.zeros(value.shape), name="v")
        session = hf.Session(context=context)
        session.run(v.initializer)
        hf.train.Saver([v]).restore(session, shared)
        np.testing.assert_array_equal(session.run(v), value)

    run_here(write)
    run_here(read, ps=1)


@pytest.fixture
def disk(shared):
    """A small disk that all ranks know."""
    from hpcflow.comm import mpi_communicator

    world, words = (
        mpi_communicator.world(),
        ["mount", "-t", "tmpfs", "-o", "size=70m", "tmpfs", str(shared)],
    )
    told = None
    if world.rank == 0:
        can = os.geteuid() == 0 and not subprocess.run(words, capture_output=True).returncode
        told = "yes" if can else "no"
    if world.broadcast_text(told) == "no":
        pytest.skip("needs root that may mount")
    yield shared
    world.all_gather_text("done")  # nobody writes there any more
    if world.rank == 0:
        subprocess.run(["umount", "-l", str(shared)], check=True)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reserves", [True, False])
def test_a_full_disk_is_told_to_all_ranks_and_they_go_on(disk, form, reserves, monkeypatch):
    """Also where the file system cannot reserve space, and MPI-IO meets the end of it."""
    needs(form)
    if not reserves:
        monkeypatch.setattr(hdf5_datasets, "reserve", lambda path: None)
    value = np.arange(10 << 20, dtype=np.float32).reshape(10, -1)

    def body(context):
        v, x = hf.Variable(hf.zeros(value.shape), name="v"), hf.placeholder(hf.float32, value.shape)
        session = hf.Session(context=context)
        session.run(v.initializer)
        session.run(v.assign(x), {x: value})
        saver = hf.train.Saver([v], form=form)
        saver.save(session, disk, 1)
        for _ in range(2):
            with pytest.raises(CheckpointError) as caught:
                saver.save(session, disk, 2)
            assert "No space left" in str(caught.value) or (form == "parallel" and not reserves)
            assert "earlier checkpoints are unchanged" in caught.value.hint
        context.barrier()
        assert len(list(disk.iterdir())) == 2  # and `latest`
        session.run(v.initializer)
        assert saver.restore(session, disk)["step"] == 1
        np.testing.assert_array_equal(session.run(v), value)

    run_here(body)


@pytest.mark.mpi(min_size=2)
def test_slabs_of_one_file_begin_at_stripes(shared):
    needs("parallel")

    def body(context):
        sizes = (1 << 20, 3 << 20, 77, 5 << 20)
        made = [hf.Variable(hf.zeros([n]), name=f"v{n}") for n in sizes]
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        return Path(hf.train.Saver(made, form="parallel").save(session, shared, 1))

    path = run_here(body)
    (file,) = SavedCheckpoint(path).files
    large = [s for s in file["slabs"] if s["name"] != "v77"]
    assert len(large) > 3
    assert {s["offset"] % (1 << 20) for s in large} == {0}
