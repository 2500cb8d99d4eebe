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
from hpcflow.plan.cost.cost_model import seconds_in
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.executor.async_ops import waiting
from hpcflow.runtime.step.step_instance import Instance

Run = KernelFunction


class Held:
    """The instances of a frame's partitions, for one step instance."""

    def __init__(self, instance: Instance, node: Node) -> None:
        self.node = node
        compiled = instance.compiled.inner[node.name]
        self.compiled = compiled
        self.parts = {k: instance.inside(c, node.name) for k, c in compiled.items()}
        self.feeds = {key: node.attrs[f"{key}_feeds"] for key in self.parts}
        device = instance.compiled.device(node)
        self.variables = len(node.specs)
        self.empty = node.attrs["empty"]
        self.own = [_kept if s.dtype in OPAQUE else _copier(device) for s in node.specs]

    def slots(self, inputs: Sequence[Value]) -> list[Value]:
        """The loop variables, each in an array of the loop's own, followed by the captures."""
        begin = self.variables - self.empty
        inits = [own(x) for own, x in zip(self.own, inputs[:begin], strict=False)]
        return [*inits, *([] for _ in range(self.empty)), *inputs[begin:]]

    def explain(self, error: BaseException, rank: int) -> BaseException:
        """`error` with the operation in the frame that raised it."""
        for compiled in self.compiled.values():
            error = compiled.explain(error, rank)
        return error


def _kept(value: Value) -> Value:
    return value


def _copier(device: Device) -> KernelFunction:
    xp = device.xp
    return xp.array if xp is not None else lambda value: value


# -- inline


def inline(instance: Instance, node: Node) -> Run:
    """The function of a frame that never waits."""
    held = Held(instance, node)
    run = _branch(held) if node.row.control_flow == "branch" else _loop(held, instance)
    rank = instance.link.engine.rank

    def guarded(*inputs: Value) -> Value:
        try:
            return run(*inputs)
        except HpcflowError as error:
            raise held.explain(error, rank) from error.__cause__
        except Exception as error:
            raise held.explain(error, rank) from error

    return guarded


def _branch(held: Held) -> Run:
    then, other = (held.parts[key].strands[0] for key in ("then", "else"))
    mine, its = held.feeds["then"], held.feeds["else"]

    def run(pred: Value, *slots: Value) -> Value:
        if pred:
            return then(*[slots[i] for i in mine])
        return other(*[slots[i] for i in its])

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


def _loop(held: Held, instance: Instance) -> Run:
    """A loop over the code of condition and body, generated for its variables."""
    outside = len(held.node.inputs) + held.empty
    names = [f"v{i}" for i in range(outside)]
    variables = names[: held.variables]
    polls = "", "pass"
    if not instance.code.simple:  # a step with messages or waits: the loop polls them
        body = held.compiled["body"]
        seconds = sum(map(seconds_in(body.part), body.part.nodes.values()))
        if seconds:
            every = max(1, int(POLL_EVERY_S / seconds))
            polls = "n = 0", f"n += 1\n        if n % {every} == 0: poll()"
    source = _LOOP.format(
        slots=_listed(names) if names else "_",
        count=polls[0],
        test=", ".join(names[i] for i in held.feeds["cond"]),
        variables=f"{_target(variables)} = " if variables else "",
        step=", ".join(names[i] for i in held.feeds["body"]),
        poll=polls[1],
        results=_target(variables) if variables else "()",
    )
    scope: dict[str, Value] = {
        "slots": held.slots,
        "test": held.parts["cond"].strands[0],
        "step": held.parts["body"].strands[0],
        "poll": instance.link.engine.poll,
    }
    exec(compile(source, "<hpcflow loop>", "exec"), scope)
    # popped: a reference cycle with its globals would delay their release to a collection
    run: Run = scope.pop("run")
    return run


def _listed(names: Sequence[str]) -> str:
    return "".join(f"{name}, " for name in names)


def _target(names: Sequence[str]) -> str:
    """The names as an assignment target for a partition's results; one alone is no tuple."""
    return names[0] if len(names) == 1 else _listed(names)


# -- across waits


class _Across:
    """A frame that waits: it runs its partitions one after the other, and is over with the last."""

    def __init__(self, instance: Instance, node: Node) -> None:
        if node.name not in instance.frames:
            instance.frames[node.name] = Held(instance, node)
        self.outer, self.node = instance, node
        self.held: Held = instance.frames[node.name]
        self.engine = instance.link.engine
        self.over = False
        self.running: Instance | None = None

    def test(self) -> bool:
        return self.over and (self.running is None or self.running.finished)

    def cancel(self) -> None:
        """The step fails: fail the running partition too."""
        self.over = True
        if self.running is not None and self.outer.error is not None:
            self.engine.fail(self.running, self.outer.error)

    def start(
        self, key: str, slots: Sequence[Value], then: Callable[[tuple[Value, ...]], None]
    ) -> None:
        """Run a partition with values of `slots`; `then` is called with its results."""
        part = self.held.parts[key]
        feeds = tuple(slots[i] for i in self.held.feeds[key])
        if part.code.simple:
            self.engine.settle(part.compiled.touched(0))
            try:
                values = part.strands[0](*feeds)
            except Exception as error:
                told = self.held.explain(error, self.engine.rank)
                told.__cause__ = None if told is error else error
                self.fail(told)
                return
            then(values if len(part.part.fetches) != 1 else (values,))
            return
        self.running = part
        part.patient = self.outer.patient
        part.done = functools.partial(self._done, then)
        self.engine.start(part, self.outer.step, feeds)

    def fail(self, error: BaseException) -> None:
        """The frame has failed: fail the step."""
        self.over = True
        self.engine.fail(self.outer, error)

    def _done(self, then: Callable[[tuple[Value, ...]], None], part: Instance) -> None:
        self.running = None
        values = () if part.torn else part.release()
        if part.error is not None:
            self.fail(part.error)
        elif not self.over:
            self.engine.inbox.append(functools.partial(self._go_on, then, values))

    def _go_on(self, then: Callable[[tuple[Value, ...]], None], values: tuple[Value, ...]) -> None:
        if not self.over:
            then(values)

    def end(self, values: Sequence[Value]) -> None:
        """Store the outputs; the frame is over."""
        self.outer.put(self.node.name, *values)
        self.over = True


@waiting("BranchAcross")
class _BranchAcross(_Across):
    def __init__(self, instance: Instance, node: Node, pred: Value, *slots: Value) -> None:
        super().__init__(instance, node)
        self.start("then" if pred else "else", slots, self.end)


@waiting("LoopAcross")
class _LoopAcross(_Across):
    def __init__(self, instance: Instance, node: Node, *inputs: Value) -> None:
        super().__init__(instance, node)
        self.slots = self.held.slots(inputs)
        self.again = False
        self.test_it()

    def test_it(self, _: tuple[Value, ...] = ()) -> None:
        """Evaluate the condition; iterative, so that short iterations do not nest calls."""
        self.again = True
        while self.again:
            self.again = False
            self.start("cond", self.slots, self.decided)

    def decided(self, values: tuple[Value, ...]) -> None:
        if not values[0]:
            self.end(self.slots[: self.held.variables])
            return
        self.start("body", self.slots, self.stepped)

    def stepped(self, values: tuple[Value, ...]) -> None:
        self.slots[: self.held.variables] = values
        if self.held.parts["cond"].code.simple and self.held.parts["body"].code.simple:
            self.again = True
        else:
            self.engine.inbox.append(functools.partial(self._go_on, self.test_it, ()))
