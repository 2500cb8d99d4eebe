"""Control-flow execution: loops and branches run inline as one call, or across waits as substeps.

A frame on one task that never waits is one function of its inputs, composed of the code of its
partitions. A frame that waits, for other tasks or for state, is a wait of the enclosing step: each
iteration runs as an instance of its own, which the executor drives like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from hpcflow.errors import HpcflowError
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.lowering.python_codegen import POLL_EVERY_S
from hpcflow.plan.cost.cost_model import predicted_seconds_in
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.executor.async_ops import async_op
from hpcflow.runtime.step.step_instance import StepInstance

Run = KernelFunction


class FrameInstances:
    """The instances of a frame's partitions, for one step instance."""

    def __init__(self, instance: StepInstance, node: Node) -> None:
        self.node = node
        compiled = instance.compiled.frames[node.name]
        self.compiled = compiled
        self.parts = {k: instance.inside(c, node.name) for k, c in compiled.items()}
        self.feeds = {key: node.attrs[f"{key}_feeds"] for key in self.parts}
        device = instance.compiled.device(node)
        self.variables = len(node.specs)
        self.empty = node.attrs["empty"]
        self.copiers = [_as_it_is if s.dtype in OPAQUE else device.copied for s in node.specs]

    def slots(self, inputs: Sequence[Value]) -> list[Value]:
        """The loop variables, each in an array of the loop's own, followed by the captures."""
        begin = self.variables - self.empty
        inits = [copy_in(x) for copy_in, x in zip(self.copiers, inputs[:begin], strict=False)]
        return [*inits, *([] for _ in range(self.empty)), *inputs[begin:]]

    def explain(self, error: BaseException, rank: int) -> BaseException:
        """`error` with the operation in the frame that raised it."""
        for compiled in self.compiled.values():
            error = compiled.explain(error, rank)
        return error


def _as_it_is(value: Value) -> Value:
    return value


# -- inline


def inline_frame(instance: StepInstance, node: Node) -> Run:
    """The function of a frame that never waits."""
    instances = FrameInstances(instance, node)
    run = (
        _inline_branch(instances)
        if node.row.control_flow == "branch"
        else _inline_loop(instances, instance)
    )
    rank = instance.link.executor.rank

    def guarded(*inputs: Value) -> Value:
        try:
            return run(*inputs)
        except HpcflowError as error:
            raise instances.explain(error, rank) from error.__cause__
        except Exception as error:
            raise instances.explain(error, rank) from error

    return guarded


def _inline_branch(instances: FrameInstances) -> Run:
    then, otherwise = (instances.parts[key].segments[0] for key in ("then", "else"))
    then_feeds, else_feeds = instances.feeds["then"], instances.feeds["else"]

    def run(pred: Value, *slots: Value) -> Value:
        if pred:
            return then(*[slots[i] for i in then_feeds])
        return otherwise(*[slots[i] for i in else_feeds])

    return run


_LOOP = """
def run(*inputs):
    {slots} = slots(inputs)
    {count}
    while test({test}):
        {variables}step({step})
        {poll}
    return {results}
"""


def _inline_loop(instances: FrameInstances, instance: StepInstance) -> Run:
    """A loop over the code of condition and body, generated for its variables."""
    outside = len(instances.node.inputs) + instances.empty
    names = [f"v{i}" for i in range(outside)]
    variables = names[: instances.variables]
    polls = "", "pass"
    if not instance.code.is_single_segment:  # a step with messages or waits: the loop polls them
        body = instances.compiled["body"]
        seconds = sum(map(predicted_seconds_in(body.part), body.part.nodes.values()))
        if seconds:
            every = max(1, int(POLL_EVERY_S / seconds))
            polls = "n = 0", f"n += 1\n        if n % {every} == 0: poll()"
    source = _LOOP.format(
        slots=_name_list(names) if names else "_",
        count=polls[0],
        test=", ".join(names[i] for i in instances.feeds["cond"]),
        variables=f"{_assignment_target(variables)} = " if variables else "",
        step=", ".join(names[i] for i in instances.feeds["body"]),
        poll=polls[1],
        results=_assignment_target(variables) if variables else "()",
    )
    scope: dict[str, Value] = {
        "slots": instances.slots,
        "test": instances.parts["cond"].segments[0],
        "step": instances.parts["body"].segments[0],
        "poll": instance.link.executor.poll,
    }
    exec(compile(source, "<hpcflow loop>", "exec"), scope)
    # popped: a reference cycle with its globals would delay their release to a collection
    run: Run = scope.pop("run")
    return run


def _name_list(names: Sequence[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _assignment_target(names: Sequence[str]) -> str:
    """The names as an assignment target for a partition's results; one alone is no tuple."""
    return names[0] if len(names) == 1 else _name_list(names)


# -- across waits


class _FrameWait:
    """A frame that waits: it runs its partitions one after the other, and is over with the last."""

    def __init__(self, instance: StepInstance, node: Node) -> None:
        if node.name not in instance.frames:
            instance.frames[node.name] = FrameInstances(instance, node)
        self.outer, self.node = instance, node
        self.frame_instances: FrameInstances = instance.frames[node.name]
        self.executor = instance.link.executor
        self.over = False
        self.running: StepInstance | None = None

    def test(self) -> bool:
        return self.over and (self.running is None or self.running.finished)

    def cancel(self) -> None:
        """The step fails: fail the running partition too."""
        self.over = True
        if self.running is not None and self.outer.error is not None:
            self.executor.fail(self.running, self.outer.error)

    def start(
        self, key: str, slots: Sequence[Value], then: Callable[[tuple[Value, ...]], None]
    ) -> None:
        """Run a partition with values of `slots`; `then` is called with its results."""
        part = self.frame_instances.parts[key]
        feeds = tuple(slots[i] for i in self.frame_instances.feeds[key])
        if part.code.is_single_segment:
            self.executor.finish_tiled(part.compiled.variable_uses(0))
            try:
                values = part.segments[0](*feeds)
            except Exception as error:
                explained = self.frame_instances.explain(error, self.executor.rank)
                explained.__cause__ = None if explained is error else error
                self.fail(explained)
                return
            then(values if len(part.part.fetches) != 1 else (values,))
            return
        self.running = part
        part.run_inside(functools.partial(self._finish_frame, then))
        self.executor.start(part, self.outer.step, feeds)

    def fail(self, error: BaseException) -> None:
        """The frame has failed: fail the step."""
        self.over = True
        self.executor.fail(self.outer, error)

    def _finish_frame(self, then: Callable[[tuple[Value, ...]], None], part: StepInstance) -> None:
        self.running = None
        values = () if part.is_broken else part.release()
        if part.error is not None:
            self.fail(part.error)
        elif not self.over:
            self.executor.inbox.append(functools.partial(self._go_on, then, values))

    def _go_on(self, then: Callable[[tuple[Value, ...]], None], values: tuple[Value, ...]) -> None:
        if not self.over:
            then(values)

    def end(self, values: Sequence[Value]) -> None:
        """Store the outputs; the frame is over."""
        self.outer.put(self.node.name, *values)
        self.over = True


@async_op("BranchAcross")
class _BranchWait(_FrameWait):
    def __init__(self, instance: StepInstance, node: Node, pred: Value, *slots: Value) -> None:
        super().__init__(instance, node)
        self.start("then" if pred else "else", slots, self.end)


@async_op("LoopAcross")
class _LoopWait(_FrameWait):
    def __init__(self, instance: StepInstance, node: Node, *inputs: Value) -> None:
        super().__init__(instance, node)
        self.slots = self.frame_instances.slots(inputs)
        self.repeats = False
        self.test_it()

    def test_it(self, _: tuple[Value, ...] = ()) -> None:
        """Evaluate the condition; iterative, so that short iterations do not nest calls."""
        self.repeats = True
        while self.repeats:
            self.repeats = False
            self.start("cond", self.slots, self.decided)

    def decided(self, values: tuple[Value, ...]) -> None:
        if not values[0]:
            self.end(self.slots[: self.frame_instances.variables])
            return
        self.start("body", self.slots, self.stepped)

    def stepped(self, values: tuple[Value, ...]) -> None:
        self.slots[: self.frame_instances.variables] = values
        if (
            self.frame_instances.parts["cond"].code.is_single_segment
            and self.frame_instances.parts["body"].code.is_single_segment
        ):
            self.repeats = True
        else:
            self.executor.inbox.append(functools.partial(self._go_on, self.test_it, ()))
