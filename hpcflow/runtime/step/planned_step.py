"""Planned steps: an executable plan of this rank, run by the cheapest applicable path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcflow.errors import FetchError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.node_effects import plan_trains
from hpcflow.runtime.device.shared_arena import SharedArena
from hpcflow.runtime.dynamic_types import Feeds, FeedValue, Fetches, KernelFunction, Rebuild, Value
from hpcflow.runtime.executor.progress_lock import SHELL
from hpcflow.runtime.job.job_membership import PlanningFinished
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile.step_stats import StepTrace
from hpcflow.runtime.session.config_proto import RunMetadata
from hpcflow.runtime.step.feed_and_fetch import feed_array
from hpcflow.runtime.step.plan_cache import PlanPreview
from hpcflow.runtime.step.step_channels import PartitionPeers
from hpcflow.runtime.step.step_deadline import NOT_BEGUN, DeadlineChecks, StepDeadline
from hpcflow.runtime.step.step_instance import Allocator, CompiledPartition, StepInstance

Runner = Callable[[Feeds], Fetches]


class ExecutableStep:
    """An executable plan of this rank, which runs any number of times."""

    released_after_run = (
        False  # whether to release it after its run: it uses much memory and hardly runs again
    )
    trace: StepTrace | None = None  # records when its operations run

    def __init__(self, context: RankContext, compiled: CompiledPartition, tensors: int) -> None:
        self.context, self.executor = context, context.executor
        self.compiled, self.tensors = compiled, tensors
        self._runners: dict[Fetches, Runner] = {}

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Run with feeds in the plan's order; the values of the fetched tensors."""
        raise NotImplementedError

    def run_within(self, deadline: StepDeadline, *arrays: np.ndarray) -> list[Value]:
        """`run` with a deadline.

        Errors: DeadlineExceededError if it is missed.
        """
        return self.run(*arrays)

    def run_traced(
        self, deadline: StepDeadline | None, metadata: RunMetadata, *arrays: np.ndarray
    ) -> list[Value]:
        """`run`, with or without a deadline; stores the times of its operations in `metadata`."""
        if self.trace is not None:
            self.trace.begin()
        values = self.run(*arrays) if deadline is None else self.run_within(deadline, *arrays)
        if self.trace is not None:
            metadata.step_stats = self.trace.stats()
        return values

    def cancel(self, reason: str) -> None:
        """Fail the steps in flight with CancelledError; a step of a single segment just ends."""

    @property
    def in_flight(self) -> bool:
        """True while one of its steps waits."""
        return False

    def close(self) -> None:
        """Release buffers and channels; it does not run again."""

    def runner(
        self, name: Fetches, fed: Mapping[Tensor, FeedValue], rebuild: Rebuild, other: Runner
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

    def gathers(self, fed: Mapping[Tensor, FeedValue]) -> bool:
        """Whether the keys, shapes and dtypes of feeds suffice to select this step.

        Feeds of strings do not: each value is checked.
        """
        return all(self._spec(i).sized for i in range(len(fed)))

    def _spec(self, index: int) -> Spec:
        return self.compiled.part.nodes[self.compiled.part.feeds[index]].specs[0]

    def _runner(self, fed: Mapping[Tensor, FeedValue], rebuild: Rebuild, other: Runner) -> Runner:
        gather, run = self.gatherer(fed), self.run

        def runner(feed_dict: Feeds) -> Fetches:
            arrays = gather(feed_dict)
            return other(feed_dict) if arrays is None else rebuild(run(*arrays))

        return runner

    def gatherer(
        self, fed: Mapping[Tensor, FeedValue]
    ) -> Callable[[Feeds], list[np.ndarray] | None]:
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
                    array = feed_array(tensor, array)
                if array.shape != spec.shape:
                    return None
                arrays.append(array)
            return arrays

        return gather


class LocalStep(ExecutableStep):
    """A step of a single segment on this rank alone; it runs in the calling thread.

    Its buffers lie in an arena that it shares with other local steps, of which one runs at a time.
    """

    def __init__(
        self, context: RankContext, compiled: CompiledPartition, tensors: int, arena: SharedArena
    ) -> None:
        super().__init__(context, compiled, tensors)
        self.released_after_run = compiled.initializes_large
        self.arena = SharedArena(context) if self.released_after_run else arena
        self.instance: StepInstance | None = None
        self._checks: DeadlineChecks | None = None  # the instance that checks a deadline
        self._shells: list[dict[str, Value]] = []  # globals of the generated runners
        self._closed = False
        self.call: KernelFunction = self._run_first

    def _bind(self) -> None:
        """Create the instance, in the current arena.

        Errors: FetchError if the session is closed.
        """
        if self._closed:
            raise FetchError("the session is closed", hint="make a new hf.Session()")
        self.instance = StepInstance(
            self.compiled, PartitionPeers(self.executor), 0, self._borrowed_memory()
        )
        self._run_in_executor(self.instance.segments[0])

    def _borrowed_memory(self) -> Allocator:
        take = self.arena.allocator_for(self.compiled)
        self.arena.bound_steps.add(self)
        return take

    def unbind(self) -> None:
        """Release the buffers; the next run allocates them again."""
        if self.instance is not None:
            self.instance.unbind()
        if self._checks is not None:
            self._checks.release()
        self.instance, self._checks = None, None
        self._run_in_executor(self._run_first)

    def _run_in_executor(self, call: KernelFunction) -> None:
        self.call = call
        for shell in self._shells:
            shell["call"] = call

    def _run_first(self, *arrays: np.ndarray) -> Value:
        self._bind()
        return self.call(*arrays)

    def _run_now(self, *arrays: np.ndarray) -> Value:
        return self.call(*arrays)  # the value of `call` once the progress lock is held

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Run in this thread, or between the segments of the holder of the progress lock."""
        value = self._call(self._run_now, *arrays)
        return [value] if self.tensors == 1 else list(value)

    def run_within(self, deadline: StepDeadline, *arrays: np.ndarray) -> list[Value]:
        """`run` with a deadline, which is checked before each kernel until the first update.

        Errors: DeadlineExceededError if it is missed.
        """
        call = functools.partial(self._checking, deadline)
        value = self._call(call, *arrays, deadline=deadline)
        return [value] if self.tensors == 1 else list(value)

    def _checking(self, deadline: StepDeadline, *arrays: np.ndarray) -> Value:
        if self.instance is None:
            self._bind()
        if self._checks is None:
            assert self.instance is not None
            self._checks = DeadlineChecks(self.instance, self._borrowed_memory())
        return self._checks.call(deadline, *arrays)

    def _call(
        self, call: KernelFunction, *arrays: np.ndarray, deadline: StepDeadline | None = None
    ) -> Value:
        executor = self.executor
        if not executor.lock.acquire(False):
            return self._queue(call, *arrays, deadline=deadline)
        try:
            if executor.slices.running:
                executor.finish_tiled(self.compiled.variable_uses(0))
            return executor.context.run(call, *arrays)
        except Exception as error:
            raise self._explained(error) from error
        finally:
            executor.lock.release()
            if executor.waiters:
                with executor.lock_freed:
                    executor.lock_freed.notify_all()

    def close(self) -> None:
        """Release the buffers; the caller holds the progress lock."""
        self.unbind()
        self.compiled.close()
        self._closed = True
        for shell in self._shells:
            shell.clear()
        self._runners.clear()

    def _explained(self, error: Exception) -> BaseException:
        if self.instance is not None:
            self.instance.release()
        explained = self.compiled.explain(error, self.executor.rank)
        if explained is error:
            raise error
        return explained

    def _queue(
        self, call: KernelFunction, *arrays: np.ndarray, deadline: StepDeadline | None = None
    ) -> Value:
        """Have the holder of the progress lock run this step between its own segments."""
        box: list[Value] = []

        def begin() -> None:
            self.executor.finish_tiled(self.compiled.variable_uses(0))
            try:
                box.append(call(*arrays))
            except Exception as error:
                raise self._explained(error) from error

        late = None if deadline is None else deadline.has_passed
        self.executor.run_locked(begin, lambda: bool(box), late=late)
        if not box and deadline is not None:
            raise deadline.error(NOT_BEGUN, self.compiled.label, self.executor.rank)
        return box[0]

    def _runner(self, fed: Mapping[Tensor, FeedValue], rebuild: Rebuild, other: Runner) -> Runner:
        """The runner of a small step, generated for its feeds; it costs about as much as one op."""
        scope: dict[str, Value] = {
            "ndarray": np.ndarray,
            "as_fed": feed_array,
            "acquire": self.executor.lock.acquire,
            "release": self.executor.lock.release,
            "engine": self.executor,
            "going": self.executor.slices.running,
            "touched": self.compiled.variable_uses,
            "enter": self.executor.context.run,
            "call": self.call,
            "queue": functools.partial(self._queue, self._run_now),
            "told": self._explained,
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
                    engine.finish_tiled(touched(0))
                value = enter({args})
            except Exception as error:
                raise told(error) from error
            finally:
                release()
                if engine.waiters:
                    with engine.lock_freed:
                        engine.lock_freed.notify_all()
        else:
            value = queue({given})
        return {packed}
    return other(feeds)
"""


class PlannedStep(ExecutableStep):
    """A step of which only the plan is computed (`hpcflow plan`)."""

    def __init__(self, context: RankContext, preview: PlanPreview) -> None:
        self.context, self.preview = context, preview

    def run(self, *arrays: np.ndarray) -> list[Value]:
        """Report the plan; zeros in place of the fetched values.

        Errors: Planned once a plan has updated state.
        """
        assert self.context.on_plan is not None
        plan = self.preview.plan
        self.context.on_plan(self.preview)
        if plan_trains(plan):
            raise PlanningFinished
        part = plan.parts[plan.driver]
        specs = [part.spec(ref) for ref in part.fetches]
        return [np.zeros([d or 0 for d in spec.shape or ()], spec.dtype) for spec in specs]

    def runner(
        self, name: Fetches, fed: Mapping[Tensor, FeedValue], rebuild: Rebuild, other: Runner
    ) -> Runner:
        """`other`, which plans again each time."""
        return other

    def gathers(self, fed: Mapping[Tensor, FeedValue]) -> bool:
        """False, so that each run plans again."""
        return False


def fetch_label(fetches: Sequence[Tensor | Operation]) -> str:
    """The label of the fetches: their names."""
    return ",".join(w.name for w in fetches)
