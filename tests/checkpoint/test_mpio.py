"""Both forms of checkpoint over real MPI ranks; `make mpio` has the h5py that writes one file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint.saved import Saved
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
    from hpcflow.comm import mpi

    world = mpi.world()
    made = tempfile.mkdtemp(prefix="hpcflow-test-") if world.rank == 0 else None
    path = Path(world.broadcast_text(made))
    yield path
    world.broadcast_text("done" if world.rank == 0 else None)
    if world.rank == 0:
        shutil.rmtree(path)


def size() -> int:
    from hpcflow.comm import mpi

    return mpi.world().size


def has_mpi() -> bool:
    from hpcflow.runtime.hdf5 import is_parallel

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
        path = hf.train.Saver(made, form=form).save(session, shared, 5)
        assert path.name == ("step-5.h5" if form == "parallel" else "step-5")
        assert Saved(path).problems() == []
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
        assert "make mpio" in caught.value.hint
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
