"""Planned steps: an executable plan of this rank, run by the cheapest applicable path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcflow.errors import FetchError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.program import Plan
from hpcflow.runtime.device.shared_arena import SharedArena
from hpcflow.runtime.dynamic_types import Feeds, Fetches, Given, KernelFunction, Rebuild, Value
from hpcflow.runtime.executor.progress_lock import SHELL
from hpcflow.runtime.job.job_membership import Planned
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.profile.step_stats import Trace
from hpcflow.runtime.session.config_proto import RunMetadata
from hpcflow.runtime.step.feed_and_fetch import as_fed
from hpcflow.runtime.step.plan_cache import Outlook
from hpcflow.runtime.step.step_channels import Link
from hpcflow.runtime.step.step_deadline import NOT_BEGUN, Deadline, DeadlineChecks
from hpcflow.runtime.step.step_instance import Compiled, Instance, Take

Runner = Callable[[Feeds], Fetches]


class Step:
    """An executable plan of this rank, which runs any number of times."""

    once = False  # whether to release it after its run: it uses much memory and hardly runs again
    trace: Trace | None = None  # records when its operations run

    def __init__(self, context: Context, compiled: Compiled, tensors: int) -> None:
        self.context, self.engine = context, context.engine
        self.compiled, self.tensors = compiled, tensors
        self._runners: dict[Fetches, Runner] = {}

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Run with feeds in the plan's order; the values of the fetched tensors."""
        raise NotImplementedError

    def run_within(self, deadline: Deadline, *arrays: np.ndarray) -> list[Value]:
        """`run` with a deadline.

        Errors: DeadlineExceededError if it is missed.
        """
        return self.run(*arrays)

    def run_traced(
        self, deadline: Deadline | None, told: RunMetadata, *arrays: np.ndarray
    ) -> list[Value]:
        """`run`, with or without a deadline; stores the times of its operations in `told`."""
        if self.trace is not None:
            self.trace.begin()
        values = self.run(*arrays) if deadline is None else self.run_within(deadline, *arrays)
        if self.trace is not None:
            told.step_stats = self.trace.stats()
        return values

    def cancel(self, why: str) -> None:
        """Fail the steps in flight with CancelledError; a step of a single segment just ends."""

    @property
    def in_flight(self) -> bool:
        """True while one of its steps waits."""
        return False

    def close(self) -> None:
        """Release buffers and channels; it does not run again."""

    def runner(
        self, name: Fetches, fed: Mapping[Tensor, Given], rebuild: Rebuild, other: Runner
    ) -> Runner:
        """A function from a feed_dict to the values of the fetches `name`, built once.

        `fed` maps the fed tensors to their keys in the feed_dict. `other` handles feeds of other
        keys or shapes.

        Errors: TypeError if `name` is not hashable.
        """
        key = (name, tuple(fed.values()))
        if key not in self._runners:
            self._runners[key] = self._runner(fed, rebuild, other) if self.gathers(fed) else other
        return self._runners[key]

    def gathers(self, fed: Mapping[Tensor, Given]) -> bool:
        """Whether the keys, shapes and dtypes of feeds suffice to select this step.

        Feeds of strings do not: each value is checked.
        """
        return all(self._spec(i).sized for i in range(len(fed)))

    def _spec(self, index: int) -> Spec:
        return self.compiled.part.nodes[self.compiled.part.feeds[index]].specs[0]

    def _runner(self, fed: Mapping[Tensor, Given], rebuild: Rebuild, other: Runner) -> Runner:
        gather, run = self.gatherer(fed), self.run

        def runner(feed_dict: Feeds) -> Fetches:
            arrays = gather(feed_dict)
            return other(feed_dict) if arrays is None else rebuild(run(*arrays))

        return runner

    def gatherer(self, fed: Mapping[Tensor, Given]) -> Callable[[Feeds], list[np.ndarray] | None]:
        """A function that collects the arrays of a feed_dict.

        It returns None if their keys or shapes are not those of this step.
        """
        checks = [(t, key, self._spec(i)) for i, (t, key) in enumerate(fed.items())]
        count = len(checks)

        def gather(feed_dict: Feeds) -> list[np.ndarray] | None:
            if len(feed_dict) != count:
                return None
            arrays = []
            for tensor, key, spec in checks:
                if key not in feed_dict:
                    return None
                array = feed_dict[key]
                if array.__class__ is not np.ndarray or array.dtype != spec.dtype:
                    array = as_fed(tensor, array)
                if array.shape != spec.shape:
                    return None
                arrays.append(array)
            return arrays

        return gather


class LocalStep(Step):
    """A step of a single segment on this rank alone; it runs in the calling thread.

    Its buffers lie in an arena that it shares with other local steps, of which one runs at a time.
    """

    def __init__(
        self, context: Context, compiled: Compiled, tensors: int, arena: SharedArena
    ) -> None:
        super().__init__(context, compiled, tensors)
        self.once = compiled.initializes
        self.arena = SharedArena(context) if self.once else arena
        self.instance: Instance | None = None
        self._checks: DeadlineChecks | None = None  # the instance that checks a deadline
        self._shells: list[dict[str, Value]] = []  # globals of the generated runners
        self._closed = False
        self.call: KernelFunction = self._first

    def _bind(self) -> None:
        """Create the instance, in the current arena.

        Errors: FetchError if the session is closed.
        """
        if self._closed:
            raise FetchError("the session is closed", hint="make a new hf.Session()")
        self.instance = Instance(self.compiled, Link(self.engine), 0, self._lent())
        self._runs(self.instance.strands[0])

    def _lent(self) -> Take:
        take = self.arena.lend(self.compiled)
        self.arena.tenants.add(self)
        return take

    def unbind(self) -> None:
        """Release the buffers; the next run allocates them again."""
        if self.instance is not None:
            self.instance.unbind()
        if self._checks is not None:
            self._checks.release()
        self.instance, self._checks = None, None
        self._runs(self._first)

    def _runs(self, call: KernelFunction) -> None:
        self.call = call
        for shell in self._shells:
            shell["call"] = call

    def _first(self, *arrays: np.ndarray) -> Value:
        self._bind()
        return self.call(*arrays)

    def _now(self, *arrays: np.ndarray) -> Value:
        return self.call(*arrays)  # the value of `call` once the progress lock is held

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Run in this thread, or between the segments of the holder of the progress lock."""
        value = self._call(self._now, *arrays)
        return [value] if self.tensors == 1 else list(value)

    def run_within(self, deadline: Deadline, *arrays: np.ndarray) -> list[Value]:
        """`run` with a deadline, which is checked before each kernel until the first update.

        Errors: DeadlineExceededError if it is missed.
        """
        call = functools.partial(self._checking, deadline)
        value = self._call(call, *arrays, deadline=deadline)
        return [value] if self.tensors == 1 else list(value)

    def _checking(self, deadline: Deadline, *arrays: np.ndarray) -> Value:
        if self.instance is None:
            self._bind()
        if self._checks is None:
            assert self.instance is not None
            self._checks = DeadlineChecks(self.instance, self._lent())
        return self._checks.call(deadline, *arrays)

    def _call(
        self, call: KernelFunction, *arrays: np.ndarray, deadline: Deadline | None = None
    ) -> Value:
        engine = self.engine
        if not engine.baton.acquire(False):
            return self._queue(call, *arrays, deadline=deadline)
        try:
            if engine.slices.going:
                engine.settle(self.compiled.touched(0))
            return engine.context.run(call, *arrays)
        except Exception as error:
            raise self._told(error) from error
        finally:
            engine.baton.release()
            if engine.waiters:
                with engine.freed:
                    engine.freed.notify_all()

    def close(self) -> None:
        """Release the buffers; the caller holds the progress lock."""
        self.unbind()
        self.compiled.close()
        self._closed = True
        for shell in self._shells:
            shell.clear()
        self._runners.clear()

    def _told(self, error: Exception) -> BaseException:
        if self.instance is not None:
            self.instance.release()
        told = self.compiled.explain(error, self.engine.rank)
        if told is error:
            raise error
        return told

    def _queue(
        self, call: KernelFunction, *arrays: np.ndarray, deadline: Deadline | None = None
    ) -> Value:
        """Have the holder of the progress lock run this step between its own segments."""
        box: list[Value] = []

        def begin() -> None:
            self.engine.settle(self.compiled.touched(0))
            try:
                box.append(call(*arrays))
            except Exception as error:
                raise self._told(error) from error

        late = None if deadline is None else deadline.passed
        self.engine.with_baton(begin, lambda: bool(box), late=late)
        if not box and deadline is not None:
            raise deadline.error(NOT_BEGUN, self.compiled.label, self.engine.rank)
        return box[0]

    def _runner(self, fed: Mapping[Tensor, Given], rebuild: Rebuild, other: Runner) -> Runner:
        """The runner of a small step, generated for its feeds; it costs about as much as one op."""
        scope: dict[str, Value] = {
            "ndarray": np.ndarray,
            "as_fed": as_fed,
            "acquire": self.engine.baton.acquire,
            "release": self.engine.baton.release,
            "engine": self.engine,
            "going": self.engine.slices.going,
            "touched": self.compiled.touched,
            "enter": self.engine.context.run,
            "call": self.call,
            "queue": functools.partial(self._queue, self._now),
            "told": self._told,
            "other": other,
            "rebuild": rebuild,
        }
        names = [f"f{i}" for i in range(len(fed))]
        takes, fits, tests = [], [], [f"len(feeds) == {len(fed)}"]
        for i, (tensor, key) in enumerate(fed.items()):
            spec = self._spec(i)
            scope.update({f"t{i}": tensor, f"n{i}": key, f"d{i}": spec.dtype, f"z{i}": spec.shape})
            takes.append(f"        f{i} = feeds[n{i}]")
            fits.append(f"    if f{i}.__class__ is not ndarray or f{i}.dtype is not d{i}:")
            fits.append(f"        f{i} = as_fed(t{i}, f{i})")
            tests.append(f"f{i}.shape == z{i}")
        source = _SHELL.format(
            takes="\n".join(takes) or "        pass",
            fits="\n".join(fits),
            tests=" and ".join(tests),
            args=", ".join(["call", *names]),
            given=", ".join(names),
            packed="rebuild((value,))" if self.tensors == 1 else "rebuild(value)",
        )
        self._shells.append(scope)
        exec(compile(source, SHELL, "exec"), scope)
        return scope["runner"]


_SHELL = """
def runner(feeds):
    try:
{takes}
    except KeyError:
        return other(feeds)
{fits}
    if {tests}:
        if acquire(False):
            try:
                if going:
                    engine.settle(touched(0))
                value = enter({args})
            except Exception as error:
                raise told(error) from error
            finally:
                release()
                if engine.waiters:
                    with engine.freed:
                        engine.freed.notify_all()
        else:
            value = queue({given})
        return {packed}
    return other(feeds)
"""


class PlannedStep(Step):
    """A step of which only the plan is computed (`hpcflow plan`)."""

    def __init__(self, context: Context, plan: Plan, outlook: Callable[[], Outlook]) -> None:
        self.context, self.plan, self.outlook = context, plan, outlook

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Report the plan; zeros in place of the fetched values.

        Errors: Planned once a plan has updated state.
        """
        assert self.context.on_plan is not None
        self.context.on_plan(self.plan, self.outlook)
        plans = [self.plan, *([self.plan.round] if self.plan.round else [])]
        parts = [part for plan in plans for part in plan.parts.values()]
        nodes = [n for part in parts for n in part.nodes.values()]
        if any(n.row.writes and not n.attrs.get("initial") for n in nodes):
            raise Planned
        part = self.plan.parts[self.plan.driver]
        specs = [part.spec(ref) for ref in part.fetches]
        return [np.zeros([d or 0 for d in spec.shape or ()], spec.dtype) for spec in specs]

    def runner(
        self, name: Fetches, fed: Mapping[Tensor, Given], rebuild: Rebuild, other: Runner
    ) -> Runner:
        """`other`, which plans again each time."""
        return other

    def gathers(self, fed: Mapping[Tensor, Given]) -> bool:
        """False, so that each run plans again."""
        return False


def fetched(wanted: Sequence[Tensor | Operation]) -> str:
    """The label of the fetches: their names."""
    return ",".join(w.name for w in wanted)
