"""Saves behind training: of one step, whatever follows it; and when they are slow or fail."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import (
    background_writer,
    checkpoint_directory,
    checkpoint_service,
    parallel_hdf5_write,
    snapshot_buffers,
)
from hpcflow.checkpoint.async_checkpoint import AsyncSave
from hpcflow.checkpoint.checkpoint_layout import Slab
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.participating_ranks import error_from_answer
from hpcflow.errors import CheckpointError
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.state.state_store import StateStore, VariableState
from tests.checkpoint.jobs import BATCH, SAMPLES, run, train
from tests.runtime.ranks import run_here, run_ranks

STEPS = SAMPLES // BATCH  # of an epoch: after each there is a save
PLACES = {
    "alone": dict(ranks=1),
    "sums": dict(ranks=3),
    "tasks": dict(ranks=4, tasks_per_replica=2),
    "server": dict(ranks=3, ps=1, sync="all"),
    "pieces": dict(ranks=5, ps=2, shard_bytes=64, sync="all"),
}
ASYNC = {
    "one server": dict(ranks=3, ps=1),
    "pieces": dict(ranks=5, ps=2, shard_bytes=64),
}
WAIT_S = 60.0
of_each_place = pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)


class Disk:
    """What writes do: they wait for steps of the chief; those of some checkpoints fail or lie."""

    def __init__(self, monkeypatch):
        self.steps = 0  # the chief has done
        self.opens_at = 0  # writes wait until the chief has done so many
        self.full = range(0)  # of these checkpoints they fail
        self.lies = range(0)  # and of these one bit is lost
        self.pause_s = 0.0
        self.too_late = False
        self.drafts = []  # how many there were, at each step
        self.seen = lambda session: None
        self.moved = threading.Condition()
        self._pwrite, self._step = os.pwrite, hf.train.TrainingSession.step
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(hf.train.TrainingSession, "step", lambda *given: self.step(*given))

    def step(self, session, *given):
        values = self._step(session, *given)
        if session.is_chief:
            keeper = session._checkpoints
            self.drafts.append(len(list(keeper.directory.glob("*.tmp"))) if keeper else 0)
            self.seen(session)
            with self.moved:
                self.steps = session.steps
                self.moved.notify_all()
        return values

    def pwrite(self, fd, data, offset):
        with self.moved:
            self.too_late |= not self.moved.wait_for(lambda: self.steps >= self.opens_at, WAIT_S)
        time.sleep(self.pause_s)
        found = re.search(r"step-(\d+)\.tmp", os.readlink(f"/proc/self/fd/{fd}"))
        step = int(found[1]) if found else -1
        if step in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if step in self.lies and offset:
            data = bytes([data[0] ^ 1]) + bytes(data[1:])
        return self._pwrite(fd, data, offset)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def saved_in(where):
    return {
        one.step: SavedCheckpoint(one.path, one.facts)
        for one in checkpoint_directory.find_checkpoints(where)
    }


def weights_of(saved):
    names = [f"layer{k}/{kind}" for k in range(3) for kind in "wb"]
    return [saved.read(name) for name in names]


def same(mine, theirs):
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@of_each_place
def test_a_checkpoint_is_of_its_step_though_training_went_on(tmp_path, disk, places):
    """The oracle: jobs without checkpoints that end at that step; the disk waits for two more."""
    disk.opens_at = STEPS + 2
    done = run(epochs=3, folder=tmp_path, save_every=STEPS, max_to_keep=0, **places)
    assert not disk.too_late, "a step waited for the disk"
    saved = saved_in(tmp_path)
    assert sorted(saved) == [STEPS, 2 * STEPS, 3 * STEPS]
    for epochs in (1, 2, 3):
        plain = run(epochs=epochs, **places)
        one = saved[epochs * STEPS]
        assert one.problems() == []
        same(weights_of(one), plain[0]["weights"])
        counts = {int(one.read(name)) for name in one.arrays if name.endswith("Adam_step")}
        assert counts == {epochs * STEPS}
    same(done[0]["weights"], plain[0]["weights"])
    assert {one["samples"] for one in run(epochs=3, folder=tmp_path, resume=True, **places)} == {
        3 * SAMPLES
    }


@pytest.mark.slow
@pytest.mark.parametrize("places", ASYNC.values(), ids=ASYNC)
def test_of_asynchronous_workers_every_update_is_in_a_checkpoint_once(tmp_path, disk, places):
    """Adam counts the updates of each piece; the first save is two steps of the chief behind."""
    disk.opens_at = 4
    run(epochs=6, folder=tmp_path, save_every=4, max_to_keep=0, **places)
    assert not disk.too_late, "a step waited for the disk"
    saved = saved_in(tmp_path)
    assert len(saved) > 2
    for step, one in saved.items():
        assert one.problems() == []
        counts = {int(one.read(name)) for name in one.arrays if name.endswith("Adam_step")}
        assert counts == {step}
        assert one.facts["samples"] <= 6 * SAMPLES
    assert saved[max(saved)].facts["samples"] == 6 * SAMPLES


@pytest.mark.slow
@of_each_place
def test_at_most_one_is_being_written(tmp_path, disk, places):
    """Each step saves, and the disk is slow."""
    disk.pause_s = 0.01
    run(epochs=2, folder=tmp_path, max_to_keep=0, **places)
    assert sorted(saved_in(tmp_path)) == list(range(1, 2 * STEPS + 1))
    assert max(disk.drafts) <= 1
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.slow
def test_by_time_none_begins_while_one_is_being_written(tmp_path, disk):
    disk.opens_at = 6
    disk.seen = lambda session: time.sleep(0.005)
    run(1, 6, tmp_path, save_every="0.001s", max_to_keep=0)
    assert not disk.too_late, "a step waited for the disk"
    saved = saved_in(tmp_path)
    assert len([step for step in saved if step < 6]) == 1 and max(saved) == 6 * STEPS


# -- what fails


@pytest.mark.slow
@of_each_place
@pytest.mark.parametrize("fault", ["full", "lies"])
def test_a_save_that_fails_is_told_and_training_goes_on(tmp_path, disk, caplog, places, fault):
    setattr(disk, fault, [STEPS])
    done = run(epochs=3, folder=tmp_path, save_every=STEPS, max_to_keep=0, **places)
    (text,) = [r.getMessage() for r in caplog.records if "is not written" in r.getMessage()]
    assert f"the checkpoint of step {STEPS} is not written" in text
    assert ("No space left" if fault == "full" else "differs from what was written") in text
    assert "Training continues" in text
    assert sorted(saved_in(tmp_path)) == [2 * STEPS, 3 * STEPS]
    assert not list(tmp_path.glob("*.tmp"))
    same(done[0]["weights"], run(epochs=3, **places)[0]["weights"])


@pytest.mark.slow
@of_each_place
def test_what_fails_twice_is_an_error_and_the_checkpoint_before_stays(tmp_path, disk, places):
    disk.full = range(2 * STEPS, 100)
    ended = []
    disk.seen = lambda session: ended.append(session.steps)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        run(epochs=5, folder=tmp_path, save_every=STEPS, max_to_keep=0, **places)
    assert "free some space" in caught.value.hint
    assert max(ended) == 3 * STEPS  # the one after the next was waited for
    assert sorted(saved_in(tmp_path)) == [STEPS]
    assert saved_in(tmp_path)[STEPS].problems() == []
    assert not list(tmp_path.glob("*.tmp"))


def test_the_last_one_that_fails_is_an_error(tmp_path, disk):
    disk.full = range(2 * STEPS, 100)
    with pytest.raises(CheckpointError, match="No space left"):
        run(3, 2, tmp_path, save_every=STEPS)
    assert sorted(saved_in(tmp_path)) == [STEPS]


def test_after_one_that_failed_the_end_saves_what_is_in_none(tmp_path, disk):
    """It was of the last step: nothing is new since, and yet it is saved."""
    calls = []

    def pwrite(fd, data, offset):
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return disk._pwrite(fd, data, offset)

    os.pwrite = pwrite

    def body(context):
        w = hf.Variable(np.zeros(4, np.float32), name="w")
        train = w.assign_add(np.ones(4, np.float32))
        with hf.train.TrainingSession(
            context=context, checkpoints=tmp_path, save_every=2
        ) as session:
            for _ in range(2):
                session.step(train, {})
            session.between_steps()
            session.wait()
            return session.result()

    try:
        (result,) = run_ranks(1, body, run_dir=str(tmp_path))
    finally:
        os.pwrite = disk.pwrite
    assert (result["saves"]["written"], result["saves"]["failed"]) == (1, 1)
    np.testing.assert_array_equal(saved_in(tmp_path)[2].read("w"), np.full(4, 2))
    assert json.loads((tmp_path / "result.json").read_text())["saves"] == result["saves"]


# -- how


def test_in_the_foreground_nothing_is_written_behind_training(tmp_path, disk):
    """Its form is then as h5py allows."""
    disk.seen = lambda session: threads.append(
        [t.name for t in threading.enumerate() if t.name == "hpcflow-save"]
    )
    threads = []
    run_ranks(3, lambda c: train(c, 2, tmp_path), save="foreground")
    assert sorted(saved_in(tmp_path))[-1] == 2 * STEPS
    assert threads and not any(threads)


@pytest.mark.parametrize("save", ["background", "foreground"])
def test_a_save_that_is_asked_for_is_there_when_it_returns(tmp_path, save):
    def body(context):
        w = hf.Variable(np.arange(6, dtype=np.float32), name="w")
        zero = w.assign(np.zeros(6, np.float32))
        session = hf.train.TrainingSession(context=context, checkpoints=tmp_path)
        path = session.save()
        assert SavedCheckpoint(path).problems() == []
        session.run(zero)
        facts = hf.train.Saver([w]).restore(session, path)
        return facts["step"], session.run(w)

    for step, values in run_ranks(3, body, save=save):
        assert step == 0
        np.testing.assert_array_equal(values, np.arange(6))


def state_of(name, value, device=None):
    node = Node(name, "Variable", attrs={"dtype": str(value.dtype), "shape": value.shape})
    state = VariableState(node, device or Device())
    state.adopt(value)
    return state


def test_a_snapshot_keeps_what_is_to_be_written_and_nothing_else():
    """One more buffer for a variable that is updated, however often, and none for others."""
    store, names = StateStore(), {"a": "a", "b": "b"}
    for name in names:
        store.states[name] = state_of(name, np.arange(12.0).reshape(4, 3))
    mine = store.states["a"]
    kept = parallel_hdf5_write.PinnedSnapshot(store, names, [Slab("a", 1, 3)])
    for _ in range(3):
        for state in store.states.values():
            state.write()[...] += 1
    (version,) = kept.versions.values()
    np.testing.assert_array_equal(version.array, np.arange(12.0).reshape(4, 3))
    assert version.array is not mine.read() and mine.read()[0, 0] == 3
    assert len(mine.old) == 1 and mine.spare is None
    assert not store.states["b"].old and store.states["b"].spare is None
    first = version.array
    kept.release()
    kept.release()
    assert not mine.old and mine.spare is first and not kept.versions
    again = parallel_hdf5_write.PinnedSnapshot(store, names, [Slab("a", 1, 3)])
    mine.write()
    assert mine.read() is first  # nothing new is allocated
    again.release()


def test_what_is_written_is_let_go_of_while_the_rest_is_kept():
    store, names = StateStore(), {"a": "a", "b": "b"}
    for name in names:
        store.states[name] = state_of(name, np.arange(12.0).reshape(4, 3))
    a, b = store.states.values()
    kept = parallel_hdf5_write.PinnedSnapshot(store, names, [Slab("a", 0, 4), Slab("b", 1, 3)])
    kept.release(Slab("a", 0, 4))
    assert kept.is_current() and a.write() is a.array and not a.old, "a is changed in its place"
    b.write()
    assert not kept.is_current() and len(b.old) == 1
    kept.release()
    assert not b.old and not kept.is_current()


@pytest.mark.slow
@of_each_place
def test_second_buffers_are_made_before_the_first_save(tmp_path, disk, places, monkeypatch):
    """Of what each rank will write, and of nothing else."""
    asked, here, reserve = {}, snapshot_buffers.reserve_local_buffers, VariableState.reserve
    mine = threading.local()

    def prepare_here(context, store, told):
        mine.names = []
        here(context, store, told)
        asked.setdefault(context.rank, []).extend(told["wanted"][name] for name in mine.names)

    def reserved(state):
        mine.names.append(state.variable)
        return reserve(state)

    for module in (snapshot_buffers, checkpoint_service):
        monkeypatch.setattr(module, "reserve_local_buffers", prepare_here)
    monkeypatch.setattr(VariableState, "reserve", reserved)
    run(epochs=1, folder=tmp_path, save_every=STEPS, **places)
    files = saved_in(tmp_path)[STEPS].facts["files"]
    written = {file["part"]: sorted(slab["name"] for slab in file["slabs"]) for file in files}
    assert {rank: sorted(names) for rank, names in asked.items() if names} == written


def test_a_second_buffer_is_made_once_and_never_a_third():
    state = state_of("a", np.arange(4.0))
    spare = state.reserve()
    assert state.reserve() is spare and spare is not state.array
    first = state.pin()
    assert state.reserve() is None
    assert state.write() is spare
    state.unpin(first)
    assert state.reserve() is first


def test_pages_are_there_and_no_byte_is_changed():
    buffer, full = np.empty(1 << 23), np.arange(1 << 18)
    snapshot_buffers.populate_pages([buffer[1:], full])
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    buffer[1:] = 0.0
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert faults < 8 or os.uname().release < "6"
    np.testing.assert_array_equal(full, np.arange(1 << 18))


@pytest.mark.slow
def test_a_thread_gives_way_to_the_step_that_copies(tmp_path, disk, monkeypatch):
    """Unless training waits for it; here without end."""
    monkeypatch.setattr(background_writer, "GIVE_WAY_S", math.inf)
    sessions, seen = [], set()

    def pwrite(fd, data, offset):
        states = sessions[0].store.states.values()
        seen.add(min(state.updates for state in states if state.name.startswith("layer")))
        return disk.pwrite(fd, data, offset)

    disk.seen = sessions.append
    monkeypatch.setattr(os, "pwrite", pwrite)
    run(epochs=2, ranks=1, folder=tmp_path, save_every=STEPS - 1)
    assert saved_in(tmp_path).keys() >= {STEPS - 1, 2 * STEPS}
    assert STEPS - 1 not in seen and 2 * STEPS in seen


@pytest.mark.slow
@pytest.mark.parametrize("places", [dict(ranks=1), dict(ranks=3)], ids=["alone", "sums"])
def test_training_needs_at_most_as_much_again(tmp_path, disk, places):
    """Several steps go on while the versions are kept, and other saves follow."""
    seen = []

    def look(session):
        states = session.store.states.values()
        buffers = [b for s in states for b in (s.array, s.spare, *(a for a, _ in s.old.values()))]
        most = sum(buffer.nbytes for buffer in buffers if buffer is not None)
        seen.append((most, sum(state.array.nbytes for state in states)))

    disk.opens_at, disk.seen = STEPS + 2, look
    run(epochs=4, folder=tmp_path, save_every=STEPS, **places)
    assert not disk.too_late
    assert all(most <= 2 * held for most, held in seen)
    assert any(most > held for most, held in seen), "something was kept"


def test_who_dies_while_it_writes_is_no_writer_that_is_waited_for():
    """What its part was to be is an error of the save; the thread that names it goes on."""
    world = SimpleNamespace(lost=())
    behind = AsyncSave(SimpleNamespace(world=world), lambda outcome: None)
    behind._writers = {0, 2}
    behind.handle_message({"do": "written", "rank": 0, "answer": {"value": {}}})
    assert not behind._all_reported.is_set()
    world.lost = (2, 5)
    behind._check_writers()
    assert behind._all_reported.is_set()
    error = error_from_answer(next(row for row in behind._rows.values() if "error" in row))
    assert error.rank == 2 and "has died while it wrote its part" in error.message


class Far:
    """An array of a device, which NumPy does not see."""

    def __init__(self, values):
        self.values, self.dtype, self.shape = values, values.dtype, values.shape

    def __setitem__(self, where, value):
        self.values[where] = value

    def __getitem__(self, where):
        return Far(self.values[where])

    def reshape(self, shape):
        return Far(self.values.reshape(shape))


class FarDevice(Device):
    """Copies from it are counted: a thread may make none."""

    def __init__(self):
        super().__init__()
        self.copies = 0

    def to_host(self, array):
        self.copies += 1
        return array.values.copy()


def test_rows_on_another_device_are_copied_at_once():
    far, store = FarDevice(), StateStore()
    store.states["a"] = state = state_of("a", Far(np.arange(12.0).reshape(4, 3)), far)
    slab = Slab("a", 1, 3)
    kept = parallel_hdf5_write.PinnedSnapshot(store, {"a": "a"}, [slab], to_host=True)
    copies = far.copies
    state.write()[...] = 0
    assert not state.old, "nothing is pinned"
    rows = [
        row
        for _, some in parallel_hdf5_write.host_pieces(kept.versions[slab], slab)
        for row in some
    ]
    np.testing.assert_array_equal(rows, np.arange(12.0).reshape(4, 3)[1:3])
    assert far.copies == copies > 0


@pytest.mark.slow
def test_a_script_that_just_ends_has_its_save_written(tmp_path):
    script = """
        import os, sys, threading
        import numpy as np
        import hpcflow as hf
        real, looked = os.pwrite, threading.Event()

        def slow(*given):
            looked.wait(100)
            return real(*given)

        os.pwrite = slow
        w = hf.Variable(np.zeros(4, np.float32), name="w")
        train = w.assign_add(np.ones(4, np.float32))
        session = hf.train.TrainingSession(checkpoints=sys.argv[1], save_every=2)
        for _ in range(3):
            session.step(train, {})
        print([name for name in os.listdir(sys.argv[1]) if name[0] != "."])
        looked.set()
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "saved")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    assert "['step-2.tmp']" in done.stdout
    assert "saved step-2: training waited" in done.stderr
    np.testing.assert_array_equal(saved_in(tmp_path / "saved")[2].read("w"), np.full(4, 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("places", [{}, dict(ps=1, sync="all")], ids=["sums", "server"])
def test_over_mpi_the_checkpoints_are_of_their_steps(places):
    """Each rank writes its own rows; bits are those of a job without checkpoints."""
    import shutil
    import tempfile

    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    made = tempfile.mkdtemp(prefix="hpcflow-test-") if world.rank == 0 else None
    where = Path(world.broadcast_text(made))
    mine = run_here(lambda c: train(c, 3, where, save_every=STEPS, max_to_keep=0), **places)
    for epochs in (1, 2, 3):
        plain = run_here(lambda c, n=epochs: train(c, n), **places)
        one = saved_in(where)[epochs * STEPS]
        assert one.problems() == []
        if plain is not None:
            same(weights_of(one), plain["weights"])
    if mine is not None:
        same(mine["weights"], plain["weights"])
    world.all_gather_text("done")  # nobody reads there any more
    if world.rank == 0:
        shutil.rmtree(where)
