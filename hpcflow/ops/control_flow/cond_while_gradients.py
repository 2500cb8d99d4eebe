"""Gradients of conditionals and loops: functions of values kept by the forward operations.

The gradient of a function uses values from inside it. A push added to the forward body stores such
a value in a list. The operation gets an *extension*: another operation of its type, whose first
outputs are those of the original and whose others are the lists. A plan runs the extension in place
of the operation, so that the forward pass runs once (`hpcflow.plan.ir.control_flow_nodes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import GradientError
from hpcflow.graph.dtypes import int32, is_floating, resource, tensor_array
from hpcflow.graph.function_body import (
    Function,
    FunctionBody,
    all_operations,
    bodies,
    close_function,
    last_name,
    needed_operations,
    used_control_inputs,
    variable_operation,
)
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.array.broadcast_ops import zeros, zeros_like
from hpcflow.ops.control_flow import tensor_list_ops
from hpcflow.ops.math.arithmetic_ops import add, greater, subtract
from hpcflow.ops.shape_inference import Attrs, first_output

EARLY = "early"  # attribute of a read that may be scheduled as early as reads of a body


def carries(t: Tensor) -> bool:
    """Whether a gradient may flow through `t`."""
    return is_floating(t.dtype) or t.dtype in (resource, tensor_array)


class GradientBody(FunctionBody):
    """The body of a gradient: maps values of the forward function to kept values.

    `forward` is a function of `owner`, which is a loop if `storage` is given.
    """

    def __init__(
        self, outer: Graph, name: str, owner: Operation, forward: Function, storage: str = ""
    ) -> None:
        super().__init__(outer, name)
        self.owner, self.forward, self.storage, self.loop = owner, forward, storage, bool(storage)
        self.pushes: list[Tensor] = []  # in the forward body: lists after pushes
        self.heads: list[Tensor] = []  # in the forward body: lists before pushes
        self.list_params: list[Tensor] = []  # in this body: list parameters to pop from
        self.rests: list[Tensor] = []  # in this body: lists after pops
        self._adopted: dict[Tensor, Tensor] = {}
        self._changed: set[Operation] | None = None  # variables updated or tested

    def adopt(self, t: Tensor) -> Tensor:
        """The tensor in this body that corresponds to `t`, which may be in the forward body."""
        if t.graph is not self.forward.body:
            return super().adopt(t)
        if t not in self._adopted:
            self._adopted[t] = self._import_forward(t)
        return self._adopted[t]

    def _import_forward(self, t: Tensor) -> Tensor:
        outside = {param: outer for outer, param in self.forward.captures}
        if t in outside:
            return super().adopt(outside[t])
        if t.op.type == "ReadVariable" and self._is_read_once(t.op):
            return super().adopt(self._read_outside(t))
        recomputable = self.storage == "recompute" or not t.op.inputs
        if recomputable and t.op.type != "Parameter" and lookup_op(t.op.type).pure:
            return self._recomputed(t)
        return self._save_and_pop(t)

    def _is_read_once(self, read: Operation) -> bool:
        """Whether a read in the forward body gives the same value as one at the start of the owner.

        A variable whose initialization the owner tests may be uninitialized there.
        """
        if self._changed is None:
            functions = bodies(self.owner) if self.loop else [self.forward]
            inside = [op for f in functions for op in all_operations(f.body)]
            self._changed = {
                variable_operation(op.inputs[i]) for op in inside for i in lookup_op(op.type).writes
            }
            candidates = inside if self.loop else needed_operations(self.owner.inputs[:1])
            tests = (op for op in candidates if op.type == "IsVariableInitialized")
            self._changed.update(variable_operation(op.inputs[0]) for op in tests)
        return variable_operation(read.inputs[0]) not in self._changed

    def _read_outside(self, t: Tensor) -> Tensor:
        """The value of a variable that the forward body reads, read at the start of the owner."""
        variable, graph = variable_operation(t.op.inputs[0]), self.owner.graph
        before = [*(i.op for i in self.owner.inputs), *used_control_inputs(self.owner)]
        with (
            graph.as_default(),
            graph.name_scope(graph.prefix),
            graph.control_dependencies(None),
            graph.control_dependencies(before),
            graph.colocate_with(variable, ignore_existing=True),
        ):
            name = f"{variable.name}/read"
            attrs = {**t.op.attrs, EARLY: True}
            read = graph.create_op("ReadVariable", variable.outputs, attrs, name)
        return read.outputs[0]

    def _recomputed(self, t: Tensor) -> Tensor:
        op = t.op
        inputs = [self.adopt(i) for i in op.inputs]
        with self.inside(), self.beside(op):
            copy = self.create_op(op.type, inputs, op.attrs, last_name(op))
        self._adopted.update(zip(op.outputs, copy.outputs, strict=True))
        return copy.outputs[t.index]

    def _save_and_pop(self, t: Tensor) -> Tensor:
        forward = self.forward.body
        with forward.inside(), forward.beside(t.op):
            name = f"kept_{last_name(t.op)}"
            head = (
                forward.parameter(tensor_list_ops.LIST, name)
                if self.loop
                else tensor_list_ops.empty()
            )
            self.pushes.append(tensor_list_ops.push(head, t, host=self.storage == "host"))
        self.heads.append(head)
        with self.inside():
            param = self.parameter(tensor_list_ops.LIST, name)
            with self.beside(t.op):
                rest, value = tensor_list_ops.pop(param, t, host=self.storage == "host")
        self.list_params.append(param)
        self.rests.append(rest)
        return value

    def get_operation_by_name(self, name: str) -> Operation:
        """An operation of this body, of the forward body, or of the enclosing graphs."""
        if name in self._by_name or name not in self.forward.body:
            return super().get_operation_by_name(name)
        return self.forward.body.get_operation_by_name(name)

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or name in self.forward.body

    def gradients(
        self, output_grads: Sequence[tuple[Tensor, Tensor]], xs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients of `xs` in the forward body, from pairs (result, its gradient)."""
        with self.inside():
            seeds = [self.adopt(g) for _, g in output_grads]
            grads: Any = OPERATORS["gradients"]([y for y, _ in output_grads], list(xs), seeds)
            return [None if g is None else convert_to_tensor(g) for g in grads]


def spec_of(t: Tensor) -> Spec:
    """The spec of the gradient of `t`, which may be a handle."""
    if t.dtype == resource:
        variable = variable_operation(t)
        return Spec(variable.attrs["dtype"], variable.attrs["shape"])
    return Spec(t.dtype, t.shape)


def zeros_of(t: Tensor) -> Tensor:
    """A zero gradient of `t`, with its shape or that of the variable behind a handle."""
    if t.dtype == tensor_array:
        return first_output("TensorArrayEmpty", [t], {}, "zeros")
    if t.dtype == resource:
        spec = spec_of(t)
        return zeros(spec.shape, spec.dtype)
    return zeros_like(t)


def plus(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two gradients; the result may reuse the buffer of `a`."""
    if a.dtype == tensor_array:
        return first_output("TensorArrayAccumulate", [a, b], {}, "accumulate")
    return add(a, b)


def latest(operation: Operation) -> Operation:
    """The newest extension of an operation, or the operation itself."""
    extensions = operation.graph.extensions
    while operation in extensions:
        operation = extensions[operation]
    return operation


def _list_in_graph(graph: Graph, tensor_list: Tensor) -> Tensor:
    """A list as a value of `graph`; one from outside a body is copied, since it may repeat."""
    here = graph.adopt(tensor_list)
    return here if graph.origin(here) is None else tensor_list_ops.copied(here)


def refuse_twice(operation: Operation) -> None:
    """Raise GradientError for a second gradient: kept values are not functions of the inputs."""
    if "of" in operation.attrs:
        raise GradientError(
            f"the gradient of {operation.attrs['of']!r} is not differentiated again",
            hint="take the gradient inside the body, or unroll the loop in Python",
        )


def extend(operation: Operation, attrs: Attrs, inputs: Sequence[Tensor]) -> Operation:
    """An extension of `operation` with more outputs."""
    graph = operation.graph
    with (
        graph.as_default(),
        graph.name_scope(None),
        graph.control_dependencies(None),
        graph.control_dependencies(operation.control_inputs),
        graph.beside(operation),
    ):
        attrs = {**attrs, "extends": operation.name}
        extension = graph.create_op(operation.type, inputs, attrs, f"{operation.name}_kept")
    graph.extensions[operation] = extension
    return extension


# -- cond


def cond_gradient(op: Operation, *grads: Tensor | None) -> list[Any]:
    """The gradient of the captured tensors, from the branch that was taken."""
    refuse_twice(op)
    op = latest(op)
    sides = ("then", "else")
    outers = list(dict.fromkeys(o for s in sides for o, _ in op.attrs[s].captures if carries(o)))
    graph = get_default_graph()
    backs = {s: GradientBody(graph, "cond_grad", op, op.attrs[s]) for s in sides}
    side_grads = {s: _branch_back(backs[s], grads, outers) for s in sides}
    active = [o for o in outers if any(side_grads[s].get(o) is not None for s in sides)]
    if not active:
        return [None] * len(op.inputs)
    saved_lists = _extended_cond(op, backs)
    attrs: Attrs = {"of": op.name}
    for side, back in backs.items():
        with back.inside():
            pairs = [(side_grads[side].get(o), o) for o in active]
            full = [back.adopt(zeros_of(back.adopt(o)) if g is None else g) for g, o in pairs]
        here = [_list_in_graph(graph, t) for t in saved_lists[side]]
        lists_of = tuple(zip(here, back.list_params, strict=True))
        f = close_function(back, [], full)
        attrs[side] = f.but(captures=(*f.captures, *lists_of))
    inputs = [op.inputs[0], *attrs["then"].outer, *attrs["else"].outer]
    answer = graph.create_op("If", inputs, attrs, f"{last_name(op)}_grad")
    by_outer = dict(zip(active, answer.outputs, strict=True))
    return [None] + [by_outer.pop(t, None) for t in op.inputs[1:]]


def _branch_back(
    back: GradientBody, grads: Sequence[Tensor | None], outers: Sequence[Tensor]
) -> dict[Tensor, Tensor | None]:
    f = back.forward
    captured = {outer: param for outer, param in f.captures if outer in outers}
    seeds = [(f.results[i], g) for i, g in enumerate(grads) if g is not None and i < len(f.results)]
    return dict(zip(captured, back.gradients(seeds, list(captured.values())), strict=True))


def _extended_cond(op: Operation, backs: dict[str, GradientBody]) -> dict[str, list[Tensor]]:
    """The lists kept by the branches, as outputs of an extension; empty from the other branch."""
    count = len(op.outputs)
    if not any(back.pushes for back in backs.values()):
        return {side: [] for side in backs}
    attrs: Attrs = dict(op.attrs)
    for side, side_back in backs.items():
        added: list[Tensor] = []
        body = side_back.forward.body
        for other_side, back in backs.items():
            for push in back.pushes:
                with body.inside(), body.beside(push.op):
                    added.append(push if other_side == side else tensor_list_ops.empty())
        results = [*side_back.forward.results, *added]
        attrs[side] = close_function(body, [], results, side_back.forward.targets)
    extension = extend(op, attrs, [op.inputs[0], *attrs["then"].outer, *attrs["else"].outer])
    saved_lists, at = {}, count
    for side, back in backs.items():
        saved_lists[side] = list(extension.outputs[at : at + len(back.pushes)])
        at += len(back.pushes)
    return saved_lists


# -- while


def while_gradient(op: Operation, *grads: Tensor | None) -> list[Any]:
    """A loop over the iterations that ran, in reverse order.

    Its variables are the number of remaining iterations, the gradients of the loop variables, the
    sums of the gradients of captured tensors, and the lists kept by the forward loop.
    """
    refuse_twice(op)
    given_to, op = op, latest(op)
    body: Function = op.attrs["body"]
    if not op.attrs["back_prop"]:
        return [None] * len(given_to.inputs)
    moving = [i for i, p in enumerate(body.params) if carries(p)]
    outer = [(o, p) for o, p in body.captures if carries(o)]
    graph = get_default_graph()
    back = GradientBody(graph, "while_grad", op, body, op.attrs["history"])
    count = back.parameter(Spec(int32, ()), "remaining")
    flows = [back.parameter(spec_of(body.params[i]), "grad") for i in moving]
    seeds = [(body.results[i], g) for i, g in zip(moving, flows, strict=True)]
    body_grads = back.gradients(seeds, [*(body.params[i] for i in moving), *(p for _, p in outer)])
    sums, used = [], []
    with back.inside():
        ends = [back.adopt(subtract(count, 1))]
        for flow, g in zip(flows, body_grads, strict=False):
            ends.append(back.adopt(zeros_of(flow) if g is None else g))
        for (o, _), g in zip(outer, body_grads[len(flows) :], strict=True):
            if g is not None:
                total = back.parameter(spec_of(o), "sum")
                ends.append(plus(total, back.adopt(g)))
                sums.append(total)
                used.append(o)
    saved_lists, ran = _extended_while(op, back)
    inits = [_start(op, i, grads) for i in moving] + [zeros_of(o) for o in used]
    step = close_function(back, [count, *flows, *sums, *back.list_params], [*ends, *back.rests])
    test = _remaining(graph, step)
    inputs = [ran, *inits, *(_list_in_graph(graph, t) for t in saved_lists), *step.outer]
    attrs: Attrs = {"cond": test, "body": step, "lists": 0, "of": op.name}
    answer = graph.create_op("While", inputs, attrs, f"{last_name(op)}_grad").outputs
    first = dict(zip(moving, answer[1:], strict=False))
    totals = dict(zip(used, answer[1 + len(flows) :], strict=False))
    begin = len(given_to.attrs["body"].params) - given_to.attrs["lists"]
    return [
        first.get(i) if i < begin else totals.pop(t, None) for i, t in enumerate(given_to.inputs)
    ]


def _start(op: Operation, i: int, grads: Sequence[Tensor | None]) -> Tensor:
    g = grads[i] if i < len(grads) else None
    return zeros_of(op.outputs[i]) if g is None else g


def _remaining(graph: Graph, step: Function) -> Function:
    """The condition of a backward loop: iterations remain."""
    body = FunctionBody(graph, "while_grad")
    params = [body.parameter(p.spec, "variable") for p in step.params]
    with body.inside():
        return close_function(body, params, [greater(params[0], 0)])


def _extended_while(op: Operation, back: GradientBody) -> tuple[list[Tensor], Tensor]:
    """The lists kept by the forward loop, and its number of iterations, from an extension.

    The extension has additional loop variables: a counter, then the lists, which are initially
    empty.
    """
    attrs: Attrs = dict(op.attrs)
    test, step = op.attrs["cond"], op.attrs["body"]
    old, body = op.attrs["lists"], step.body
    inits = list(op.inputs[: len(step.params) - old])
    params, results = list(step.params), list(step.results)
    if "counter" not in attrs:
        attrs["counter"] = len(inits)
        counter = body.parameter(Spec(int32, ()), "count")
        with body.inside():
            params.append(counter)
            results.append(add(counter, 1))
        with op.graph.as_default(), op.graph.control_dependencies(None):
            inits.append(constant(0))
    params += back.heads
    results += back.pushes
    attrs["body"] = close_function(body, params, results, step.targets)
    attrs["cond"] = close_function(test.body, test.params, test.results)
    attrs["lists"] = old + len(back.heads)
    inputs = [*inits, *attrs["cond"].outer, *attrs["body"].outer]
    extension = extend(op, attrs, inputs)
    saved_lists = list(extension.outputs[len(extension.outputs) - len(back.pushes) :])
    return saved_lists, extension.outputs[attrs["counter"]]
