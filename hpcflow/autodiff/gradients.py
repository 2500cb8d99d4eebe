"""Reverse-mode automatic differentiation: adds gradient operations to the graph.

It applies the gradient functions of the op registry from the last operation to the first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, GradientError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import history, is_floating, resource, tensor_array
from hpcflow.graph.function_body import depth
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    user_line,
)
from hpcflow.graph.op_registry import NoGrad, lookup_op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import is_known, merge_shapes, shape_text, size_of
from hpcflow.ops.array.array_ops import reshape
from hpcflow.ops.array.broadcast_ops import ones_like, zeros, zeros_like
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.control_flow.control_dependencies import in_order
from hpcflow.ops.math.arithmetic_ops import add_n
from hpcflow.ops.shape_inference import first_output
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import join_slices
from hpcflow.platform.rank_logging import say_once

LARGE_TABLE = 1 << 20  # elements: making sparse gradients of larger tensors dense is logged
Gradient = Tensor | IndexedSlices


@accepts_and_ignores("colocate_gradients_with_ops", "gate_gradients", "aggregation_method")
def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    stop_gradients: Any = None,
    unconnected_gradients: Any = "none",
) -> list[Any]:
    """The derivative of the sum of `ys` by each of `xs`, as new operations of the graph.

    `xs` are tensors or variables; a variable's gradient is that of its value, summed over all its
    reads. `grad_ys` are the weights of the elements of `ys` (ones if None). `stop_gradients` are
    held constant.

    Shapes:   as `xs`; None where no `ys` depends on it, or only through integers or operations
              without gradient, as `py_func`, which is logged once; or zeros with
              `unconnected_gradients` "zero" (`hf.UnconnectedGradients`). IndexedSlices for a
              variable of which only rows are read (`gather`, `embedding_lookup`).
    Gradient: also of gradients, where the gradient functions are differentiable.
    Errors:   GradientError names an op on the path that has no gradient, and says why.

    The results follow the control dependencies in force; the operations that compute them do not.
    """
    zero = as_unconnected_gradients(unconnected_gradients) == UnconnectedGradients.ZERO
    graph, grads = get_default_graph(), free_gradients(ys, xs, grad_ys, name, stop_gradients)
    if zero:
        grads = [_zeros_of(x) if g is None else g for g, x in zip(grads, _as_list(xs), strict=True)]
    return [_in_scope(graph, g) for g in grads] if graph.is_ordering else grads


class UnconnectedGradients(enum.Enum):
    """The gradient by a tensor that no `ys` depends on: None, or zeros."""

    NONE = "none"
    ZERO = "zero"


def as_unconnected_gradients(value: Any) -> UnconnectedGradients:
    """The member for `value`, a member or its value."""
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise ArgumentError(
            f"unconnected_gradients {value!r} is not known",
            line=user_line(),
            hint='use "none" or "zero"',
        ) from None


def _zeros_of(x: Any) -> Tensor:
    """Zeros like a tensor or the value of a variable."""
    if isinstance(x, Tensor):
        return zeros_like(x)
    return zeros(x.shape, x.dtype)


def _in_scope(graph: Graph, g: Gradient | None) -> Gradient | None:
    if g is None:
        return None
    with graph.beside(g.op):
        ordered: Gradient = in_order(g)
    return ordered


def free_gradients(
    ys: Any, xs: Any, grad_ys: Any = None, name: str = "gradients", stop_gradients: Any = None
) -> list[Any]:
    """As `gradients`, without control dependencies."""
    targets = [convert_to_tensor(y) for y in _as_list(ys)]
    sources = [_gradient_source(x) for x in _as_list(xs)]
    stops = {_gradient_source(t) for t in _as_list(stop_gradients)}
    graph = get_default_graph()
    reached = _reached_from(sources, targets, stops)
    with graph.name_scope(name) as scope, graph.control_dependencies(None):
        contributions = _GradientContributions()
        for y, g in _seed_gradients(targets, grad_ys):
            contributions.add(y, g)
        ops = {t.op for t in reached}
        for op in sorted(ops, key=_creation_order, reverse=True):
            _backward(op, contributions, reached, stops, scope)
        return [_with_static_shape(_as_requested(contributions.total(x), x), x) for x in sources]


OPERATORS["gradients"] = free_gradients  # gradients of function bodies call it


@accepts_and_ignores("colocate_gradients_with_ops", "gate_gradients", "aggregation_method")
def hessians(ys: Any, xs: Any, name: str = "hessians") -> list[Tensor]:
    """The second derivatives of the sum of `ys` by the elements of each of `xs`.

    Shapes:   x.shape + x.shape, which must be known; one gradient graph for each element.
    Errors:   ShapeError for unknown sizes; GradientError as for `gradients`.
    """
    graph = get_default_graph()
    matrices = []
    with graph.name_scope(name):
        for x in _as_list(xs):
            if not is_known(x.shape):
                raise ShapeError(
                    f"hessians needs known shapes; {x.name!r} has shape {shape_text(x.shape)}",
                    line=user_line(),
                    hint="use set_shape, or reshape to a known shape",
                )
            size, dtype = size_of(x.shape), x.dtype
            (slope,) = gradients(ys, x)
            rows: list[Any] = []
            for hot in np.eye(size, dtype=dtype).reshape(size, *x.shape):
                row = None if slope is None else gradients(slope, x, hot)[0]
                rows.append(zeros(x.shape, dtype) if row is None else row)
            stacked = stack(rows) if rows else zeros((0, *x.shape), dtype)
            matrices.append(reshape(stacked, (*x.shape, *x.shape)))
    return matrices


def _as_list(argument: Any) -> list[Any]:
    if argument is None:
        return []
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def _gradient_source(x: Any) -> Tensor:
    """The tensor itself, or a variable's handle, which all reads of the variable take."""
    x = getattr(x, "handle", x)
    if not isinstance(x, Tensor):
        raise GradientError(f"{x!r} is not a tensor or a variable of the graph")
    return x


def _creation_order(op: Operation) -> tuple[int, int]:
    """The order of an operation among those of all graphs: a body follows the graphs around it."""
    return depth(op.graph), op.index


def _inputs(op: Operation) -> Sequence[Tensor]:
    """The inputs of an operation; that of a capture is the captured tensor of the outer graph."""
    if not op.inputs and op.outputs:
        outer = op.graph.origin(op.outputs[0])
        return op.inputs if outer is None else (outer,)
    return op.inputs


def _is_differentiable(t: Tensor) -> bool:
    """True if a gradient flows through `t`: floats, handles, TensorArrays, loop histories."""
    return is_floating(t.dtype) or t.dtype in (resource, tensor_array, history)


def _seed_gradients(targets: list[Tensor], grad_ys: Any) -> Iterator[tuple[Tensor, Tensor]]:
    graph = get_default_graph()
    seeds = _as_list(grad_ys) or [None] * len(targets)
    if len(seeds) != len(targets):
        raise GradientError(f"grad_ys has {len(seeds)} entries, but ys has {len(targets)}")
    for y, g in zip(targets, seeds, strict=True):
        if not (is_floating(y.dtype) or (y.dtype == tensor_array and g is not None)):
            continue  # integers, booleans and strings have no gradient
        if g is None and y.dtype.kind == "c":
            raise DTypeError(
                f"{y.name!r} is {y.dtype}: gradients of complex values need grad_ys",
                op=y.op.name,
                line=y.op.line,
                hint="use a real loss, e.g. hf.abs(y) or hf.real(y), or give "
                "grad_ys=hf.ones_like(y)",
            )
        with graph.beside(y.op):
            g = ones_like(y) if g is None else convert_to_tensor(g, y.dtype)
        merge_shapes(g.shape, y.shape)
        yield y, g


def _reached_from(
    sources: list[Tensor], targets: list[Tensor], stops: set[Tensor]
) -> dict[Tensor, None]:
    """The tensors between `sources` and `targets` through which a gradient flows."""
    behind: set[Operation] = set()
    stack = [y.op for y in targets]
    while stack:
        op = stack.pop()
        if op not in behind:
            behind.add(op)
            stack.extend(t.op for t in _inputs(op))
    reached = {x: None for x in sources if _is_differentiable(x)}
    for op in sorted(behind, key=_creation_order):
        if any(t in reached and (t not in stops or t in sources) for t in _inputs(op)):
            reached.update(
                {t: None for t in op.outputs if _is_differentiable(t) and t not in stops}
            )
    return reached


class _GradientContributions:
    """The gradients that the consumers of each tensor have contributed so far."""

    def __init__(self) -> None:
        self.parts: dict[Tensor, list[Gradient]] = {}

    def add(self, t: Tensor, g: Gradient) -> None:
        self.parts.setdefault(t, []).append(g)

    def total(self, t: Tensor) -> Gradient | None:
        """The sum of the contributions, created once.

        It is placed on the device of the tensor if one contribution is there.
        """
        parts = self.parts.get(t, [])
        if len(parts) > 1:
            places = {(g.op.device, g.op.colocate): g.op for g in reversed(parts)}
            home = places.get((t.op.device, t.op.colocate), parts[0].op)
            parts = self.parts[t] = [_add_contributions(t, parts, home)]
        return parts[0] if parts else None

    def dense_total(self, t: Tensor, reason: str) -> Tensor | None:
        """The sum as a dense tensor, for a gradient function that cannot take slices."""
        total = self.total(t)
        if isinstance(total, IndexedSlices):
            total = _dense(t, total, reason)
            self.parts[t] = [total]
        return total


def _add_contributions(t: Tensor, parts: Sequence[Gradient], op: Operation) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    rows = [g for g in parts if isinstance(g, IndexedSlices)]
    with get_default_graph().beside(op):
        if len(rows) == len(parts):
            return join_slices(rows)
        if t.dtype == tensor_array:
            return first_output("TensorArrayAddN", [g for g in parts if isinstance(g, Tensor)])
        why = "is added to dense gradients"
        return add_n([_dense(t, g, why) if isinstance(g, IndexedSlices) else g for g in parts])


def _dense(t: Tensor, rows: IndexedSlices, reason: str) -> Tensor:
    """The gradient of `t` made dense. This is logged of variables and of large tensors."""
    is_read, shape = t.op.type == "ReadVariable", rows.shape
    large = not is_known(shape) or size_of(shape) >= LARGE_TABLE
    if is_read or t.dtype == resource or large:
        name = t.op.inputs[0].op.name if is_read else t.op.name
        say_once(
            f"the gradient of {name!r} {shape_text(shape)} (made at {t.op.line}) is sparse; it is "
            f"made dense, since it {reason}"
        )
    with get_default_graph().beside(rows.op):
        return rows.dense()


def _as_requested(g: Gradient | None, x: Tensor) -> Gradient | None:
    """IndexedSlices for variables and reads of them; a dense tensor otherwise."""
    if isinstance(g, IndexedSlices) and x.dtype != resource and x.op.type != "ReadVariable":
        with get_default_graph().beside(g.op):
            return g.dense()
    return g


def _backward(
    op: Operation,
    contributions: _GradientContributions,
    reached: dict[Tensor, None],
    stops: set[Tensor],
    scope: str,
) -> None:
    """Propagate the gradients of the outputs of `op` to its inputs."""
    needs_grad = [t in reached for t in _inputs(op)]
    if not any(needs_grad):
        return
    take = (
        contributions.total
        if lookup_op(op.type).slices
        else lambda t: contributions.dense_total(t, f"is used by {op.type}")
    )
    outputs = [None if t in stops else take(t) for t in op.outputs]
    if all(g is None for g in outputs):
        return
    if not op.inputs:
        (outer,), (g,) = _inputs(op), outputs
        assert g is not None
        contributions.add(outer, g)
        return
    rule = lookup_op(op.type).grad
    if isinstance(rule, NoGrad):
        _refuse_missing_gradient(op, rule, zip(_inputs(op), needs_grad, strict=True))
        return
    # What reads a variable is where the variable is. Its gradient stays where it was computed, and
    # is sent once, by the update.
    near = next(g.op for g in outputs if g is not None) if lookup_op(op.type).reads else op
    graph = get_default_graph()  # not that of `op` inside a gradient function
    with graph.name_scope(f"{scope}{op.name}_grad/"), graph.beside(near):
        grads = rule(op, *outputs)
        if len(grads) != len(op.inputs):
            raise GradientError(
                f"the gradient rule of {op.type} gives {len(grads)} gradients for "
                f"{len(op.inputs)} inputs",
                op=op.name,
            )
        for t, needed, grad in zip(op.inputs, needs_grad, grads, strict=True):
            g = grad() if needed and callable(grad) else grad
            if isinstance(g, NoGrad):
                _refuse_missing_gradient(op, g, [(t, needed)])
            elif needed and isinstance(g, (Tensor, IndexedSlices)):
                contributions.add(t, g)


def _refuse_missing_gradient(
    op: Operation, no_grad: NoGrad, inputs: Iterable[tuple[Tensor, bool]]
) -> None:
    """Raise for inputs that need a gradient but have none; with `none`, log floating ones.

    A handle, as that of a queue, has no gradient that could be missing.
    """
    needed = [t for t, is_needed in inputs if is_needed]
    if needed and not no_grad.none:
        raise GradientError(
            f"{op.type} has no gradient with respect to "
            f"{', '.join(repr(t.name) for t in needed)}: {no_grad.reason}",
            op=op.name,
            line=op.line,
            hint="apply hf.stop_gradient to that input to treat it as a constant",
        )
    if any(is_floating(t.dtype) for t in needed):
        say_once(f"no gradient goes through {op.name!r} (made at {op.line}): {no_grad.reason}")


def _with_static_shape(g: Gradient | None, x: Tensor) -> Gradient | None:
    """`g` with the known sizes of the shape of `x`."""
    if isinstance(g, Tensor) and x.dtype != resource and g.shape != x.shape:
        try:
            g.set_shape(x.shape)
        except ShapeError:
            raise ShapeError(
                f"the gradient of {x.name!r} {shape_text(x.shape)} has shape {shape_text(g.shape)}",
                op=g.op.name,
                hint="the gradient rule is wrong: please report it",
            ) from None
    return g
