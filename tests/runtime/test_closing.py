"""What sessions take they give back when they are closed, also after errors."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CancelledError, DeadlineExceededError, FetchError, NumericError
from tests.comm.threads import until
from tests.runtime.ranks import run_here, run_ranks

SIDE = 1000
BYTES = SIDE * SIDE * 4  # of one matrix, which malloc gets from and gives to the system by itself
ROWS = np.ones((7, SIDE), np.float32)


@pytest.fixture(autouse=True)
def no_garbage_collector():
    """What is given back is so at once, not when garbage is collected."""
    gc.collect()
    gc.freeze()  # what other tests have left is looked at no more
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held():
    """What the system counts: threads, files, segments of shared memory."""
    with open("/proc/self/maps") as file:
        shared = file.read().count("/dev/shm")
    return threading.active_count(), len(os.listdir("/proc/self/fd")), shared


class Net:
    """A graph with a large variable, Adam's two beside it, and a queue of large elements."""

    def __init__(self):
        with hf.Graph().as_default() as self.graph:
            start = hf.random_uniform([SIDE, SIDE], seed=1)
            self.w = hf.Variable(start, name="w")
            self.x = hf.placeholder(hf.float32, [None, SIDE])
            y = hf.tanh(hf.matmul(self.x, self.w))
            self.loss = hf.reduce_sum(y * y)
            self.bad = hf.check_numerics(self.loss * np.nan, "the loss")
            self.train = hf.train.AdamOptimizer(1e-3).minimize(self.loss)
            queue = hf.FIFOQueue(2, [hf.float32], shapes=[(SIDE, SIDE)])
            self.put, self.taken = queue.enqueue([self.w.value()]), queue.dequeue()
            loop = hf.while_loop(
                lambda i, h: i < 3, lambda i, h: (i + 1, hf.matmul(h, self.w)), [0, self.x]
            )
            self.last = loop[1]
            self.start = hf.global_variables_initializer()

    def use(self, session, fails):
        """Steps of all kinds; the large arrays that they made, as weak references."""
        session.run(self.start)
        for rows in (7, 5):
            session.run([self.loss, self.train], {self.x: ROWS[:rows]})
        session.run(self.last, {self.x: ROWS})
        session.run(self.last, {self.x: ROWS}, deadline=100)
        session.run(self.put)
        session.run(self.put)
        session.run(self.taken)
        if fails:
            with pytest.raises(NumericError):
                session.run(self.bad, {self.x: ROWS})
            session.run(self.taken)
            with pytest.raises(DeadlineExceededError):
                session.run(self.taken, deadline=0.01)
        found = [state.array for state in session.store.states.values()]
        for family in session._families.values():
            for step in family.steps:
                instances = [step.instance] if hasattr(step, "instance") else step.instances
                found += [room for one in instances for room in one.arenas.values()]
        return [weakref.ref(array.base if array.base is not None else array) for array in found]


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("fails", [False, True])
def test_fifty_sessions_leave_nothing(fails):
    net, before, size = Net(), None, 0
    for i in range(50):
        with hf.Session(graph=net.graph) as session:
            arrays = net.use(session, fails)
            assert len(arrays) > 5 and all(array() is not None for array in arrays)
        session.close()  # once more, which does nothing
        if fails:
            gc.collect()  # tracebacks, whose frames have seen arrays
        assert not any(array() is not None for array in arrays)
        if i == 4:
            before, size = held(), resident()
    assert all(now <= then for now, then in zip(held(), before, strict=True)), (held(), before)
    assert resident() < size + 3 * BYTES  # not 45 times four matrices and more


@pytest.mark.slow
def test_a_session_that_is_closed_says_so():
    net = Net()
    session = hf.Session(graph=net.graph)
    session.run(net.start)
    call = session.make_callable(net.loss, [net.x])
    call(ROWS)
    session.close()
    for run in (lambda: call(ROWS), lambda: session.run(net.start)):
        with pytest.raises(FetchError, match="the session is closed"):
            run()


@pytest.mark.slow
def test_results_and_what_others_see_of_variables_outlive_the_session():
    net = Net()
    session = hf.Session(graph=net.graph)
    session.run(net.start)
    values = session.run(net.w)
    seen = net.w.dlpack(session)
    session.close()
    np.testing.assert_array_equal(seen, values)
    del seen


@pytest.mark.slow
def test_a_step_that_another_thread_waits_for_ends_first():
    net = Net()
    session = hf.Session(graph=net.graph)
    session.run(net.start)
    caught = []

    def wait():
        try:
            session.run(net.taken)
        except CancelledError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any(step.in_flight for f in session._families.values() for step in f.steps))
    array = weakref.ref(session.store.states["w"].array)
    session.close()
    thread.join(60)
    assert len(caught) == 1 and array() is None


def spread(context):
    """Sessions whose steps lie on two ranks; what the channels and plans of both were."""
    with hf.device(context.spread_on):
        v = hf.Variable(np.ones((300, 300), np.float32), name="v")
    x = hf.placeholder(hf.float32, [300, 300])
    y = hf.matmul(x, v) + 1.0
    found = []
    for _ in range(12):
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(3):
            assert session.run(y, {x: np.ones((300, 300), np.float32)})[0, 0] == 301
        session.close()
        context.control.ask_report(1)  # the other rank has heard what was said before
        found.append(channels(context.world))
    return found


def channels(world):
    """How many persistent requests a rank of MPI keeps, or None of ranks as threads."""
    return len(getattr(world, "channels", ()))


@pytest.mark.slow
def test_other_ranks_give_back_what_the_steps_had_there(monkeypatch):
    from hpcflow.runtime.step.remotely_driven_plan import RemotelyDrivenPlan

    served = weakref.WeakSet()
    make = RemotelyDrivenPlan.__init__

    def made(self, *args):
        make(self, *args)
        served.add(self)

    monkeypatch.setattr(RemotelyDrivenPlan, "__init__", made)

    def body(context):
        context.spread_on = "/job:worker/task:1"
        spread(context)
        gc.collect()
        return len(served), [one for one in served if one.instances]

    ((_, left),) = run_ranks(2, body, tasks_per_replica=2)
    assert not left


@pytest.mark.mpi(min_size=2)
def test_requests_of_mpi_are_freed():
    def body(context):
        last = context.world.size - 1
        context.spread_on = f"/job:worker/task:{min(1, last)}"
        return spread(context)

    found = run_here(body, tasks_per_replica=2) if world_size() == 2 else None
    assert found is None or len(set(found[1:])) == 1


def world_size():
    from hpcflow.comm import mpi_communicator

    return mpi_communicator.world().size
