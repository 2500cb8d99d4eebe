"""What listens to a step hears its events in order, and replaces nothing of other objects."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections import Counter

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.comm.mpi_communicator import MpiCommunicator
from hpcflow.comm.thread_communicator import LocalCommunicator
from hpcflow.errors import DeathError
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile import profiler
from hpcflow.runtime.step import cooperative_scheduling, observer
from hpcflow.runtime.step.cooperative_scheduling import RunningSegment, VariableUses
from hpcflow.runtime.step.step_instance import CompiledPartition, StepInstance, StepObserver
from hpcflow.settings import Settings
from tests.runtime.nets import trained
from tests.runtime.ranks import run_ranks
from tests.runtime.test_many_workers import Job

MODES = {"sums": (2, {}), "server": (2, {"ps": 1}), "spread": (3, {"tasks_per_replica": 3})}
WATCHED = (Executor, CompiledPartition, StepInstance, MpiCommunicator, LocalCommunicator)


class Heard(StepObserver):
    """Writes down what it hears."""

    def __init__(self, name="", into=None):
        self.name, self.events = name, [] if into is None else into

    def note(self, *what):
        self.events.append((*what, self.name) if self.name else what)

    def bind_partition(self, partition):
        self.note("partition", partition)

    def bind_kernel(self, instance, node, kernel):
        self.note("kernel", instance, node.type)
        return kernel

    def bind_hook(self, instance, name, hook):
        self.note("hook", instance, name)
        return hook

    def bind_segments(self, instance, segments, objects):
        self.note("segments", instance, len(segments[0]))
        return segments

    def unbind(self, instance):
        self.note("unbind", instance)

    def step_begin(self, instance):
        self.note("step", instance)

    def segment_begin(self, instance, index):
        self.note("begin", instance, index)

    def segment_end(self, instance, index):
        self.note("end", instance, index)

    def slice_begin(self, instance, index):
        self.note("slice", instance, index)

    def slice_end(self, instance, index):
        self.note("slice end", instance, index)

    def wait_begin(self, request, instance, what):
        self.note("wait", instance, what, request)

    def wait_end(self, request, instance, what):
        self.note("over", instance, what, request)

    def idle(self, start, end):
        assert start <= end
        self.note("idle", None)


@pytest.mark.parametrize("mode", MODES)
def test_the_events_of_a_step_come_in_the_order_that_is_said(mode):
    size, settings = MODES[mode]

    def body(context):
        heard = Heard()
        context.observe(heard)
        context.executor.observe(heard)
        trained(cut=mode == "spread")
        context.executor.ignore(heard)
        assert context.executor.observer is None
        return heard.events

    events = run_ranks(size, body, prefetch=False, **settings)[0]
    instances = {e[1] for e in events if isinstance(e[1], StepInstance)}
    waiting = [one for one in instances if not one.code.is_single_segment]
    assert waiting and any(e[0] == "idle" for e in events)
    compiled = [e[1] for e in events if e[0] == "partition"]
    for one in waiting:
        mine = [e for e in events if e[1] is one]
        kinds = [e[0] for e in mine]
        first = kinds.index("segments")
        assert set(kinds[:first]) <= {"kernel", "hook"} and kinds[first + 1] == "step"
        assert compiled.count(one.compiled) == 1 and mine[first][2] == len(one.segments)
        pending, run, steps = Counter(), [], 0
        for kind, _, *more in mine[first + 1 :]:
            if kind == "step":
                assert not run and not pending, "the last step is over"
                steps, left = steps + 1, Counter(range(len(one.segments)))
            elif kind == "begin":
                run.append(more[0])
                left[more[0]] -= 1
            elif kind == "end":
                assert run.pop() == more[0]
            elif kind == "wait":
                pending[id(more[1])] += 1
            elif kind == "over":
                pending[id(more[1])] -= 1
                pending += Counter()  # without zeros
        assert steps and not any(left.values()), "each segment has run once in the last step"


def test_a_local_step_has_the_events_of_set_up_alone():
    context = RankContext(Settings())
    heard = Heard()
    context.observe(heard)
    context.executor.observe(heard)
    with use_context(context), hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [2], name="x")
        y = hf.matmul([[1.0, 2.0]], hf.reshape(x, [2, 1]))
        with hf.Session() as session:
            for _ in range(3):
                assert session.run(y, {x: [1, 2]}) == [[5.0]]
            kinds = [e[0] for e in heard.events]
            assert kinds[0] == "partition" and set(kinds[1:-1]) == {"kernel"}
            assert kinds[-1] == "segments"
        assert [e[0] for e in heard.events[len(kinds) :]] == ["unbind"]


class Torn:
    """An instance that nobody waits for."""

    is_broken = True


def test_tiles_run_between_the_events_of_slices(monkeypatch):
    monkeypatch.setattr(cooperative_scheduling, "SLICE_S", -1.0)
    executor, heard = Executor(), Heard()
    executor.observe(heard)

    def tiles():
        for i in range(2):
            heard.note("tile", i)
            yield

    nothing = VariableUses(frozenset(), frozenset())
    executor.slices.running.append(RunningSegment(Torn, 7, tiles(), nothing))
    executor.finish_tiled()
    begin, end = ("slice", Torn, 7), ("slice end", Torn, 7)
    tile = [[begin, ("tile", i), end] for i in range(2)]
    assert heard.events == [*tile[0], *tile[1], begin, end]


@pytest.mark.parametrize("survives", [True, False])
def test_a_sum_that_a_death_breaks_has_no_end(survives):
    """The replicas that are left complete or abandon it later; a receive has failed for good."""
    executor, heard = Executor(goes_on=lambda: survives), Heard()
    executor.observe(heard)

    def of_a_dead_rank():
        raise DeathError("rank 1 has died")

    for target in ("sum", "receive"):
        instance = types.SimpleNamespace(buckets={"sum"}, is_broken=True, tear=lambda _: None)
        request = types.SimpleNamespace(test=of_a_dead_rank)
        executor.wait_for(request, instance, target)
        with contextlib.nullcontext() if survives else pytest.raises(DeathError):
            executor.poll()
        ended = ("over", instance, target, request) in heard.events
        assert ended is (target == "receive" or not survives)
        executor.polled_waits.clear()


def test_several_are_called_in_order_and_at_an_end_in_reverse():
    executor, events = Executor(), []
    listeners = [Heard(name, events) for name in "abc"]
    for one in listeners:
        executor.observe(one)
    heard = executor.observer
    for call, ends in [
        (lambda: heard.segment_begin(None, 0), False),
        (lambda: heard.segment_end(None, 0), True),
        (lambda: heard.slice_begin(None, 0), False),
        (lambda: heard.slice_end(None, 0), True),
        (lambda: heard.wait_begin(None, None, ""), False),
        (lambda: heard.wait_end(None, None, ""), True),
        (lambda: heard.idle(0, 1), False),
    ]:
        events.clear()
        call()
        assert "".join(e[-1] for e in events) == ("cba" if ends else "abc")
        assert len({e[0] for e in events}) == 1
    executor.ignore(listeners[1])
    events.clear()
    executor.observer.idle(0, 1)
    assert [e[-1] for e in events] == ["a", "c"]
    composite = {name for name, _ in inspect.getmembers(observer.Observers, inspect.isfunction)}
    assert composite >= {
        name for name in vars(observer.Observer) if name.endswith(("_begin", "_end"))
    }


def calls_into(play, file):
    """How many functions of a file are called."""
    seen = Counter()

    def hook(frame, event, arg):
        if event == "call":
            seen[frame.f_code.co_filename] += 1

    sys.setprofile(hook)
    try:
        play()
    finally:
        sys.setprofile(None)
    assert sum(seen.values()) > 10, "something has been called"
    return seen[file]


def test_without_listeners_a_step_calls_nothing_for_them():
    job = Job(4)

    def step():
        for rank in range(4):
            job.begin(rank)
        job.turn()
        for rank in range(4):
            job.update(rank)
        job.turn()

    step()
    assert calls_into(step, observer.__file__) == 0
    job.executor.observe(StepObserver())
    assert calls_into(step, observer.__file__) > 0


# -- nothing is replaced


def functions():
    """The methods of the watched classes, and of all classes that they inherit from."""
    return {
        (cls, name): value
        for cls in WATCHED
        for name, value in inspect.getmembers(cls, inspect.isfunction)
    }


def methods_in(objects):
    """The names in `vars` of objects that are methods of their classes."""
    return [
        (type(one).__name__, name)
        for one in objects
        for name in vars(one)
        if callable(getattr(type(one), name, None))
    ]


@pytest.mark.parametrize("mode", ["sums", "server"])
def test_with_all_listeners_on_no_method_is_replaced(tmp_path, monkeypatch, mode):
    size, settings = MODES[mode]
    monkeypatch.setattr(profiler, "SKIPPED", 2)
    monkeypatch.setattr(
        profiler, "measure", lambda *_, **__: profiler.RooflinePeaks({"float32": 1e9}, 1e9, 1)
    )
    before, objects, lock = functions(), [], threading.Lock()

    def keep(of, made):
        def init(self, *args, **options):
            made(self, *args, **options)
            with lock:
                objects.append(self)

        monkeypatch.setattr(of, "__init__", init)

    for cls in (Executor, CompiledPartition, StepInstance, LocalCommunicator):
        keep(cls, cls.__init__)
    patched = functions()
    assert {name for key, name in patched if patched[key, name] is not before[key, name]} == {
        "__init__"
    }

    def body(context):
        x = hf.placeholder(hf.float32, [2], name="x")
        session = hf.Session()
        for _ in range(3):
            session.run(x + 1, {x: np.ones(2, np.float32)}, deadline=60.0)
        values = trained()
        assert context.profile.is_open and len(context.observers) == 3
        assert functions() == patched and not methods_in(objects)
        return values

    run_ranks(
        size, body, trace=str(tmp_path / "t"), profile=True, run_dir=str(tmp_path),
        inject=f"slow:rank={size - 1}x1.01;stall:rank=0@step=999", **settings,
    )  # fmt: skip
    assert {type(one) for one in objects} == {
        Executor,
        CompiledPartition,
        StepInstance,
        LocalCommunicator,
    }
    assert functions() == patched and not methods_in(objects)
