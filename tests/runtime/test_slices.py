"""Beside an update that takes long others are served, and nobody sees half of it."""

import signal
import sys
import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import KernelError
from hpcflow.kernels import kernel_registry
from hpcflow.lowering import python_codegen, update_tiling
from hpcflow.ops.variables import sparse_row_update_kernels
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.step import cooperative_scheduling, kernel_selection
from hpcflow.runtime.step.cooperative_scheduling import RunningSegment, SliceScheduler, VariableUses
from tests.runtime.ranks import run_ranks

LONG_WAIT_S = 30.0
A, B = object(), object()


class Torn:
    """An instance that nobody waits for."""

    is_broken = True


def touched(reads=(), writes=()):
    return VariableUses(frozenset(reads), frozenset(writes))


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (touched(writes=[A]), touched(writes=[A]), True),
        (touched(writes=[A]), touched(reads=[A]), True),
        (touched(reads=[A]), touched(writes=[A]), True),
        (touched(reads=[A]), touched(reads=[A]), False),
        (touched([A], [B]), touched([A]), False),
        (touched(writes=[A]), touched([B], [B]), False),
    ],
)
def test_what_may_run_at_one_time(one, other, clash):
    assert one.conflicts_with(other) == clash


def test_who_was_put_off_first_runs_first():
    """Readers of what is only read are not put off, unless someone waits to update it."""
    going = SliceScheduler()
    first = RunningSegment(None, 0, iter(()), touched(reads=[A]))
    going.running.append(first)
    assert not going.defer_on_conflict(touched(reads=[A]), ("reader",))
    assert going.defer_on_conflict(touched(writes=[A]), ("writer",))
    assert going.defer_on_conflict(touched(reads=[A]), ("late reader",))
    assert not going.defer_on_conflict(touched(writes=[B]), ("other",))
    assert going.end(first) == [("writer",), ("late reader",)]


def test_segments_take_turns(monkeypatch):
    monkeypatch.setattr(cooperative_scheduling, "SLICE_S", 0.0)
    going = SliceScheduler()
    ran = []

    def tiles_of(name):
        for i in range(3):
            ran.append(f"{name}{i}")
            yield

    for name in "ab":
        going.running.append(RunningSegment(None, 0, tiles_of(name), touched()))
    while going.running:
        one = going.running[0]
        if going.run_slice_of_first():
            going.end(one)
    assert ran == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_ctrl_c_waits_for_the_end_of_a_slice():
    executor = Executor()

    def half_and_half():
        signal.raise_signal(signal.SIGINT)
        yield
        done.append(True)

    done = []
    executor.slices.running.append(RunningSegment(Torn, 0, half_and_half(), touched()))
    with pytest.raises(KeyboardInterrupt):
        executor.run_slice()
    executor.finish_tiled()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# -- engines


@pytest.fixture(params=["generated", "plain"])
def always(request, monkeypatch):
    """Every update that can stops after every tile, of generated loops or plain kernels."""
    if request.param == "plain":
        monkeypatch.setattr(kernel_selection, "absent", lambda: "it is not here")
    monkeypatch.setattr(python_codegen, "LONG_S", -1.0)
    monkeypatch.setattr(cooperative_scheduling, "SLICE_S", 0.0)
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    monkeypatch.setattr(update_tiling, "TILE", 16)
    return monkeypatch


def slow(monkeypatch, tiles_of):
    """ApplyGradientDescent does `tiles_of(var)` instead."""

    def make(xp, node):
        return kernel_registry.TiledUpdate(lambda var, lr, grad: tiles_of(var))

    kernel_registry.names()  # all kernels are imported
    row = kernel_registry.Kernel("update", make, tiles=True)
    monkeypatch.setattr(kernel_selection, "absent", lambda: "it is not here")
    monkeypatch.setitem(kernel_registry._TABLE, ("ApplyGradientDescent", "xp"), row)


def descend(variable):
    """A step that updates `variable` on its server."""
    gradient = hf.ones(variable.shape)
    return hf.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, variable)])


def depth():
    frame, n = sys._getframe(1), 0
    while frame is not None:
        frame, n = frame.f_back, n + 1
    return n


def test_null_steps_end_while_an_update_is_on_its_way(always):
    """The update ends only when they have: an engine that does it in one go waits in vain.

    Who uses the variable meanwhile gets all of the update. Several updates on their way at once
    stand no deeper in the stack than one.
    """
    begun, over = threading.Event(), threading.Event()
    started, depths, late = [], set(), []

    def tiles_of(var):
        started.append(True)
        if len(started) == 2:
            begun.set()
        var[:2] += 1
        limit = time.monotonic() + LONG_WAIT_S
        while not over.is_set():
            depths.add(depth())
            late.append(time.monotonic() > limit)
            if late[-1]:
                break
            yield
        var[2:] += 1

    slow(always, tiles_of)

    def body(context):
        big = [hf.Variable(np.zeros(4, np.float32), name=f"big{i}") for i in range(2)]
        count = hf.Variable(np.float32(0), name="count")
        updates, null = [descend(v) for v in big], count.assign_add(1.0)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        context.barrier()  # or who initializes late waits for an update that waits for the chief
        if context.replica:
            session.run(updates[context.replica - 1])
            return session.run(big)
        assert begun.wait(LONG_WAIT_S)
        for _ in range(5):
            session.run(null)
        seen = []
        reader = threading.Thread(target=lambda: seen.append(session.run(big[0])))
        reader.start()
        session.run(null)
        unread = not seen
        over.set()
        reader.join()
        return unread, seen[0]

    (unread, seen), *others = run_ranks(4, body, ps=1)
    assert not any(late)
    assert unread
    assert seen.tolist() == [1, 1, 1, 1]
    for i, values in enumerate(others):
        assert values[i].tolist() == [1, 1, 1, 1]
    assert len(depths) == 1


@pytest.mark.parametrize("seed", range(6))
def test_nobody_sees_half_an_update(always, seed):
    """Workers read, send, assign and update two variables that every update makes equal.

    In place, into second buffers while reads are sent, and by formulas with slots.
    """
    n = 2000
    always.setattr(update_tiling, "TILE", 256)
    always.setattr(python_codegen, "COPIED_SEND_BYTES", 0)

    def body(context):
        v = hf.Variable(np.zeros(n, np.float32), name="v")
        with hf.device("/job:worker/task:0"):
            ones = hf.constant(1.0) * hf.ones([n])
            slow_copy = v.read_value() * 1.0
        grow, fill = v.assign_add(ones), v.assign(hf.identity(ones) * 7.0)
        rms = hf.train.RMSPropOptimizer(0.1).apply_gradients([(-ones, v)])
        adam = hf.train.AdamOptimizer(0.1).apply_gradients([(-ones, v)])
        steps = [grow, fill, rms, adam]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        rng = np.random.default_rng(seed + context.replica)
        for _ in range(12):
            session.run(steps[rng.integers(len(steps))])
            for found in session.run([v, slow_copy]):
                assert found.min() == found.max(), found
        context.barrier()
        return session.run(hf.global_variables())

    for values in run_ranks(4, body, ps=1, seed=seed):
        for value in values:
            assert value.min() == value.max()


@pytest.mark.parametrize("seed", range(3))
def test_every_update_counts_once(always, seed):
    def body(context):
        v = hf.Variable(np.zeros((50, 2), np.float32), name="v")
        add = v.assign_add(hf.ones([50, 2]))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        context.barrier()
        threads = [threading.Thread(target=session.run, args=(add,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            session.run(add)
        for thread in threads:
            thread.join()
        context.barrier()
        return session.run(v)

    for value in run_ranks(4, body, ps=2, seed=seed, shard_bytes=200):
        np.testing.assert_array_equal(value, np.full((50, 2), 12.0))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_sees_half_of_an_update_of_rows(always, seed):
    always.setattr(sparse_row_update_kernels, "SCATTER_BLOCK", 4)
    n = 60

    def body(context):
        v = hf.Variable(np.zeros((n, 2), np.float32), name="v")
        with hf.device("/job:worker/task:0"):
            rows = hf.constant(np.random.default_rng(seed).permutation(n))
            ones = hf.constant(np.ones((n, 2), np.float32))
        steps = [v.scatter_add(hf.IndexedSlices(ones, rows, v.shape))]
        steps.append(v.scatter_update(hf.IndexedSlices(ones * 5, rows, v.shape)))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        rng = np.random.default_rng(seed + context.replica)
        for _ in range(8):
            session.run(steps[rng.integers(2)])
            found = session.run(v)
            assert found.min() == found.max(), found
        context.barrier()
        return float(session.run(v)[0, 0])

    ends = run_ranks(4, body, ps=1, seed=seed)
    assert len(set(ends)) == 1


def test_a_tile_that_fails_ends_its_step_alone(always):
    fails = [True]

    def tiles_of(var):
        yield
        if fails.pop():
            raise ValueError("by test")
        yield
        fails.append(False)
        var += 1

    slow(always, tiles_of)

    def body(context):
        v = hf.Variable(np.zeros(4, np.float32), name="v")
        update = descend(v)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(KernelError, match="by test") as caught:
            session.run(update)
        assert caught.value.rank == 1
        fails.append(False)
        session.run(update)
        return session.run(v).tolist()

    assert run_ranks(2, body, ps=1) == [[1, 1, 1, 1]]


def test_an_update_of_a_cancelled_step_is_done_to_its_end(always):
    """The step fails on the worker while its server is in the midst of the update."""
    begun, failed = threading.Event(), threading.Event()

    def tiles_of(var):
        begun.set()
        var[:2] += 1
        limit = time.monotonic() + LONG_WAIT_S
        while not failed.is_set() and time.monotonic() < limit:
            yield
        for _ in range(50):  # by then it is told
            yield
        var[2:] += 1

    slow(always, tiles_of)

    def body(context):
        v = hf.Variable(np.zeros(4, np.float32), name="v")

        def fail(x):
            assert begun.wait(LONG_WAIT_S)
            failed.set()
            raise ValueError("by test")

        with hf.device("/job:worker/task:0"):
            worse = hf.py_func(fail, [hf.constant(1.0)], hf.float32)
        update = descend(v)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(KernelError, match="by test"):
            session.run([update, worse])
        return session.run(v).tolist()

    assert run_ranks(2, body, ps=1) == [[1, 1, 1, 1]]


def test_a_checkpoint_has_whole_updates(always, tmp_path):
    begun = threading.Event()

    def tiles_of(var):
        var[:2] += 1
        begun.set()
        for _ in range(300):
            time.sleep(1e-4)
            yield
        var[2:] += 1

    slow(always, tiles_of)

    def body(context):
        v = hf.Variable(np.zeros(4, np.float32), name="v")
        update = descend(v)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        other = threading.Thread(target=session.run, args=(update,))
        other.start()
        assert begun.wait(LONG_WAIT_S)
        saver = hf.train.Saver()
        path = saver.save(session, str(tmp_path / "saved"))
        other.join()
        session.run(v.assign(np.full(4, 9, np.float32)))
        saver.restore(session, path)
        return session.run(v).tolist()

    assert run_ranks(2, body, ps=1) == [[1, 1, 1, 1]]


def test_a_small_step_of_this_rank_finishes_what_it_would_clash_with():
    v = hf.Variable(np.zeros(4), name="v")
    w = hf.Variable(np.zeros(4), name="w")
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    executor, states = session.context.executor, session.store.states
    session.run([v.value(), w.value()])

    def half_and_half():
        states[v.name].array[:2] += 1
        yield
        states[v.name].array[2:] += 1

    tiles = half_and_half()
    next(tiles)
    executor.slices.running.append(RunningSegment(Torn, 0, tiles, touched(writes=[states[v.name]])))
    assert session.run(w.value()).tolist() == [0, 0, 0, 0]
    assert executor.slices.running
    assert session.run(v.value()).tolist() == [1, 1, 1, 1]
    assert not executor.slices.running
