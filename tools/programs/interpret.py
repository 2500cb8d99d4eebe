"""A graph run operation by operation, without a plan: an independent word on what a step means.

An operation runs when all that it needs, by data and control edges, has run; which of several that
could is left to `pick`. A read of a variable sees what the variable is then, and runs before each
update that it does not follow. Bodies of branches and loops are graphs that run in the same way.
Operations without state are computed by the plain kernels; state, order, branches, loops, lists and
queues are this file's own.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import FeedError, UninitializedError
from hpcflow.graph.dtypes import history, resource, tensor_array
from hpcflow.graph.function_body import Function, variable_operation
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from hpcflow.ops.control_flow.tensor_array_kernels import ArrayElements

Values = dict[Tensor, Any]
Pick = Callable[[list[Operation]], int]
LONG = 200  # iterations of a loop: programs here have few


def earliest(ready: list[Operation]) -> int:
    """The operation made first."""
    return min(range(len(ready)), key=lambda i: ready[i].index)


class StuckError(Exception):
    """A step would not end."""


class Interpreter:
    """Runs steps of a graph; variables and queues live in `state`, by name."""

    def __init__(self, pick: Pick = earliest) -> None:
        self.pick = pick
        self.used: set[int] = set()  # results in use of the operation that runs
        self.state: dict[str, Any] = {}

    def run(self, fetches: Iterable[Any], feeds: Mapping[Tensor, Any]) -> list[Any]:
        """One step: the values of tensors and variables, None for operations."""
        fetched = list(fetches)
        fed = {t: np.asarray(v, t.dtype) for t, v in feeds.items()}
        values = self._graph([f for f in fetched if isinstance(f, (Tensor, Operation))], fed)
        return [self._fetched(f, values) for f in fetched]

    def _fetched(self, fetch: Any, values: Values) -> Any:
        if isinstance(fetch, (Tensor, Operation)):
            return values[fetch] if isinstance(fetch, Tensor) else None
        return self._held(fetch.op)

    def _graph(self, wanted: Sequence[Tensor | Operation], given: Mapping[Tensor, Any]) -> Values:
        """The values in one graph, of which some are given."""
        values: Values = dict(given)
        need = Need(wanted, given)
        before = {op: need.before(op) for op in need.operations()}
        reads_first(before, {op: states(op, need.used[op]) for op in before})
        users: dict[Operation, list[Operation]] = collections.defaultdict(list)
        for op, earlier in before.items():
            for b in earlier:
                users[b].append(op)
        left = {op: len(earlier) for op, earlier in before.items()}
        ready = [op for op, n in left.items() if n == 0]
        while ready:
            op = ready.pop(self.pick(ready))
            self.used = need.used.get(op, set())
            outputs = self._run(op, [values.get(need.now(t)) for t in op.inputs])
            for output, value in zip(op.outputs, outputs, strict=True):
                values.setdefault(output, _fixed(value))
            for user in users[op]:
                left[user] -= 1
                if left[user] == 0:
                    ready.append(user)
            del left[op]
        assert not left, f"operations wait for each other: {[op.name for op in left]}"
        for t in wanted:
            if isinstance(t, Tensor):
                values[t] = values[need.now(t)]
        return values

    def _run(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        own = getattr(self, f"_run_{op.type}", None)
        if own is not None:
            return own(op, inputs)
        row = lookup_op(op.type)
        if row.writes:
            return self._updated(op, row.writes, inputs)
        if row.reads:
            inputs = [self._held(x) if i in row.reads else x for i, x in enumerate(inputs)]
        return call(op, [_copied(x) for x in inputs], row.reads)

    # -- state

    def _held(self, handle: Operation) -> Any:
        if handle.name not in self.state:
            raise UninitializedError(f"variable {handle.name!r} has no value", op=handle.name)
        return self.state[handle.name]

    def _updated(self, op: Operation, at: Sequence[int], inputs: list[Any]) -> Sequence[Any]:
        held = [np.array(self._held(inputs[i])) for i in at]
        given = [x for i, x in enumerate(inputs) if i not in at]
        kernel = find_plain_kernel(op.type, "cpu")
        function = kernel.make(np, KernelNode(op.type, dict(op.attrs), _specs(inputs, at), ()))
        function(*held, *given)
        for i, value in zip(at, held, strict=True):
            self.state[inputs[i].name] = _fixed(value)
        return held[: len(op.outputs)]

    def _run_Variable(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [op]

    def _run_ReadVariable(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [self._held(inputs[0])]

    def _run_Assign(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        self.state[inputs[0].name] = _fixed(inputs[1])
        return [inputs[1]] * len(op.outputs)

    def _run_CountUpTo(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        count = self._held(inputs[0])
        self.state[inputs[0].name] = _fixed(count + np.asarray(1, count.dtype))
        return [count]

    def _run_IsVariableInitialized(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [np.bool_(inputs[0].name in self.state)]

    def _run_Const(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [op.attrs["value"]]

    def _run_NoOp(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return []

    def _run_Placeholder(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        raise FeedError(f"placeholder {op.name!r} is not fed", op=op.name, line=op.line)

    # -- queues

    def _run_FIFOQueue(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        self.state.setdefault(op.name, ())
        return [op]

    def _run_QueueEnqueue(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        self.state[inputs[0].name] += (tuple(inputs[1:]),)
        return []

    def _run_QueueDequeue(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        if not self.state[inputs[0].name]:
            raise StuckError(f"{op.name!r} takes from a queue that is empty")
        first, *rest = self.state[inputs[0].name]
        self.state[inputs[0].name] = tuple(rest)
        return first

    def _run_QueueSize(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [np.int32(len(self.state[inputs[0].name]))]

    # -- lists, which no operation changes here

    def _run_ListEmpty(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [()]

    def _run_ListPush(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [(*inputs[0], inputs[1])]

    def _run_ListPop(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [inputs[0][:-1], inputs[0][-1]]

    # -- replicas: there is one

    def _run_ReplicaSum(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return inputs

    def _run_ReplicaGather(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return inputs

    def _run_ReplicaShare(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        return [np.ones((), op.outputs[0].dtype)]

    # -- branches and loops

    def _function(
        self, f: Function, params: Sequence[Any], captured: Mapping[Tensor, Any], used: set[int]
    ) -> list[Any]:
        given = dict(zip(f.params, params, strict=False))
        given |= {param: captured[outer] for outer, param in f.captures}
        results = [f.results[i] for i in sorted(used)]
        values = self._graph([*results, *f.targets], given)
        return [values[t] if i in used else None for i, t in enumerate(f.results)]

    def _run_If(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        taken = op.attrs["then" if inputs[0] else "else"]
        return self._function(taken, [], dict(zip(op.inputs, inputs, strict=True)), self.used)

    def _run_While(self, op: Operation, inputs: list[Any]) -> Sequence[Any]:
        test, step, empty = op.attrs["cond"], op.attrs["body"], op.attrs["lists"]
        begin, used = len(step.params) - empty, alive(op, self.used)
        captured = dict(zip(op.inputs[begin:], inputs[begin:], strict=True))
        values = [*inputs[:begin], *[()] * empty]
        for _ in range(LONG):
            if not self._function(test, values, captured, {0})[0]:
                return values
            values = self._function(step, values, captured, used)
        raise StuckError(f"{op.name!r} has not ended after {LONG} iterations")


# -- what a step needs


class Need:
    """What must run in one graph: of a branch or loop, only what the used results need.

    A control edge uses all results of the operation that it comes from. Where a loop or branch has
    an extension, which gives the same and what gradients need, that runs in its place.
    """

    def __init__(self, wanted: Sequence[Tensor | Operation], given: Mapping[Tensor, Any]) -> None:
        self.given = given
        self.used: dict[Operation, set[int]] = {}  # the results in use
        self.instead: dict[Operation, Operation] = {}
        self._add(list(wanted))
        while more := self._extended():
            self._add(more)

    def operations(self) -> list[Operation]:
        """Those that run."""
        return [op for op in self.used if op not in self.instead]

    def now(self, t: Tensor) -> Tensor:
        """The tensor that has the value of `t` in this step."""
        if t in self.given or t.op not in self.instead:
            return t
        return self.instead[t.op].outputs[t.index]

    def before(self, op: Operation) -> set[Operation]:
        """The operations that `op` follows."""
        inputs = taken(op, self.used[op])
        found = [t.op for t in inputs if t not in self.given] + control(op, self.used[op])
        return {self.instead.get(b, b) for b in found} & self.used.keys()

    def _add(self, stack: list[Tensor | Operation]) -> None:
        while stack:
            item = stack.pop()
            if item in self.given:
                continue
            op = item if isinstance(item, Operation) else item.op
            if op.type in ("Parameter", "Placeholder") and op.outputs[0] in self.given:
                continue
            all_of = set(range(len(op.outputs)))
            used = {item.index} if isinstance(item, Tensor) else all_of
            if op not in self.used or not used <= self.used[op]:
                self.used.setdefault(op, set()).update(used)
                stack += [*taken(op, self.used[op]), *control(op, self.used[op])]

    def _extended(self) -> list[Tensor | Operation]:
        more: list[Tensor | Operation] = []
        for op in list(self.used):
            newer = op
            while newer in newer.graph.extensions:
                newer = newer.graph.extensions[newer]
                if newer in self.used:
                    self.instead[op] = newer
            if op in self.instead and not self.used[op] <= self.used[self.instead[op]]:
                more += [self.instead[op].outputs[i] for i in self.used[op]]
        return more


def states(op: Operation, used: set[int]) -> tuple[set[str], set[str]]:
    """The variables that an operation, or what it must run of its functions, reads and updates."""
    row = lookup_op(op.type)
    read = {variable_operation(op.inputs[i]).name for i in row.reads}
    updated = {variable_operation(op.inputs[i]).name for i in row.writes}
    for f, results in _functions(op, used):
        need = Need([*(t for i, t in enumerate(f.results) if i in results), *f.targets], {})
        for inside in need.operations():
            more = states(inside, need.used[inside])
            read |= more[0]
            updated |= more[1]
    return read - updated, updated


def reads_first(
    before: dict[Operation, set[Operation]], used: dict[Operation, tuple[set[str], set[str]]]
) -> None:
    """Let each update follow the reads that do not follow it, those made first before others."""
    made = sorted(before, key=lambda op: op.index)
    for read, update in itertools.product(made, made):
        if used[read][0] & used[update][1] and not _follows(read, update, before):
            before[update] = before[update] | {read}


def _follows(op: Operation, other: Operation, before: dict[Operation, set[Operation]]) -> bool:
    seen, stack = {op}, [op]
    while stack:
        more = before[stack.pop()] - seen
        seen |= more
        stack += more
    return other in seen


def taken(op: Operation, used: set[int]) -> Sequence[Tensor]:
    """The inputs of which the results `used` are made."""
    if op.type not in ("If", "While"):
        return op.inputs
    own = [op.inputs[0]]
    if op.type == "While":
        inits = op.inputs[: len(op.attrs["body"].params) - op.attrs["lists"]]
        lives = alive(op, used)
        own = [t for i, t in enumerate(inits) if i in lives]
    captured = [
        outer
        for f, results in _functions(op, used)
        for outer, param in f.captures
        if param in _inside(f, results)[0]
    ]
    return [*own, *captured]


def control(op: Operation, used: set[int]) -> list[Operation]:
    """The operations of its graph that it follows: itself, or what its functions need."""
    return [c for c in _followed(op, used) if c.graph is op.graph]


def _followed(op: Operation, used: set[int]) -> list[Operation]:
    found = list(op.control_inputs)
    for f, results in _functions(op, used):
        found += _inside(f, results)[1]
    return found


def _functions(op: Operation, used: set[int]) -> list[tuple[Function, frozenset[int]]]:
    """The functions of a branch or loop, and which of their results are needed."""
    if op.type == "If":
        return [(op.attrs[side], frozenset(used)) for side in ("then", "else")]
    if op.type == "While":
        lives = frozenset(alive(op, used))
        return [(op.attrs["cond"], frozenset({0})), (op.attrs["body"], lives)]
    return []


def alive(op: Operation, used: set[int]) -> set[int]:
    """The loop variables on which the results `used` and the number of iterations depend."""
    test, step = op.attrs["cond"], op.attrs["body"]
    found = set(used) | {i for i, p in enumerate(test.params) if p in _reached(test, {0})}
    while True:
        more = {i for i, p in enumerate(step.params) if p in _reached(step, found)}
        if more <= found:
            return found
        found |= more


def _reached(f: Function, used: set[int]) -> frozenset[Tensor]:
    return _inside(f, frozenset(used))[0]


@functools.lru_cache(2048)
def _inside(f: Function, used: frozenset[int]) -> tuple[frozenset[Tensor], list[Operation]]:
    """Of what these results of a function need: its parameters, and the operations outside."""
    wanted: list[Tensor | Operation] = [t for i, t in enumerate(f.results) if i in used]
    need = Need([*wanted, *f.targets], {})
    params = frozenset(t for op in need.used if op.type == "Parameter" for t in op.outputs)
    followed = [c for op, results in need.used.items() for c in _followed(op, results)]
    return params, [c for c in dict.fromkeys(followed) if c.graph is not f.body]


# -- operations and values


def call(op: Operation, inputs: list[Any], handles: Sequence[int] = ()) -> list[Any]:
    """The outputs of an operation without state, by its plain kernel."""
    kernel, specs = find_plain_kernel(op.type, "cpu"), _specs(inputs, handles)
    outputs = lookup_op(op.type).infer(specs, dict(op.attrs))
    function = kernel.make(np, KernelNode(op.type, dict(op.attrs), specs, outputs))
    if kernel.form in ("view", "new", "ufunc"):
        made = function(*inputs)
        return list(made) if len(outputs) > 1 else [made]
    arrays = [np.empty([d or 0 for d in spec.shape or ()], spec.dtype) for spec in outputs]
    function(*inputs, *arrays)
    return arrays


def _specs(inputs: Sequence[Any], handles: Sequence[int]) -> list[Spec]:
    return [Spec(resource, ()) if i in handles else _spec(x) for i, x in enumerate(inputs)]


def _spec(value: Any) -> Spec:
    if isinstance(value, (np.ndarray, np.generic)):
        known = value.dtype.kind in "iu" and value.size <= 64
        return Spec(value.dtype, value.shape, np.asarray(value) if known else None)
    kinds = {tuple: history, ArrayElements: tensor_array}
    return Spec(kinds.get(type(value), resource), ())


def _copied(value: Any) -> Any:
    """What a kernel may change: it changes the array of tensors that it is given."""
    if not isinstance(value, ArrayElements):
        return value
    made = copy.copy(value)
    made.items = dict(value.items)
    return made


def _fixed(value: Any) -> Any:
    """An array that nobody can change; other values as they are."""
    if isinstance(value, (np.ndarray, np.generic, float, int, bool)):
        value = np.array(value)
        value.flags.writeable = False
    return value
