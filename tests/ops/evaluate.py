"""The tests' own interpreter of a graph: op by op, with the kernels of the table, without a plan.

Slow and plain on purpose: what the planner, the generator and the engine make of a graph is checked
against it. Values are read-only and outputs start as garbage, so a kernel that writes an input or
leaves a part of its output alone is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcflow.errors import FeedError, UninitializedError
from hpcflow.graph.dtypes import as_strings, is_floating, resource, string
from hpcflow.graph.graph import Operation, Tensor, as_operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel

State = dict[str, np.ndarray]  # a variable's name -> its value


def evaluate(
    fetches: Any, feeds: Mapping[Any, Any] | None = None, state: State | None = None
) -> Any:
    """The values of `fetches`: a tensor, variable or operation (None), or a list of them.

    A read without control inputs sees `state` as it was before; updates change it.
    """
    state = {} if state is None else state
    listed = fetches if isinstance(fetches, (list, tuple)) else [fetches]
    wanted = [f.value() if hasattr(f, "value") else f for f in listed]
    values = {_fed(t): _fixed(_as_fed(v, t)) for t, v in (feeds or {}).items()}
    for op in _order(wanted, values):
        if not op.outputs or any(t not in values for t in op.outputs):
            results = _run(op, [values[t] for t in op.inputs], state)
            for t, value in zip(op.outputs, results, strict=True):
                values.setdefault(t, _checked(t, value))
    found = [values[f] if isinstance(f, Tensor) else None for f in wanted]
    return found if isinstance(fetches, (list, tuple)) else found[0]


def call(
    type: str, attrs: Mapping[str, Any], inputs: list[Any], share: int | None = None, xp: Any = np
) -> list:
    """One op by its kernel for `xp`; with `share`, output 0 lies in the memory of that input."""
    row, kernel = lookup_op(type), find_plain_kernel(type, "cpu")
    handles = (*row.reads, *row.writes)
    specs = [_spec(x, i in handles) for i, x in enumerate(inputs)]
    outputs = row.infer(specs, dict(attrs))
    function = kernel.make(xp, KernelNode(type, dict(attrs), specs, outputs))
    if kernel.form == "update":
        others = [x for i, x in enumerate(inputs) if i not in row.writes]
        function(*(inputs[i] for i in row.writes), *others)
        return []
    if kernel.form in ("view", "new"):
        value = function(*inputs)
        return list(value) if len(outputs) > 1 else [np.asarray(value)]
    outs = [_garbage(spec) for spec in outputs]
    if share is not None:
        outs[0] = inputs[share]
    if type in ("Maximum", "Minimum"):
        function(*inputs, out=outs[0])
    else:
        function(*inputs, *outs)
    return outs


def _as_fed(value: Any, t: Tensor) -> np.ndarray:
    return as_strings(value) if t.dtype == string else np.asarray(value, t.dtype)


def _fed(t: Any) -> Tensor:
    return t.value() if hasattr(t, "value") else t


def _order(wanted: list[Any], fed: Mapping[Tensor, Any]) -> list[Operation]:
    """What `wanted` needs, in the order made, plain reads of variables first."""
    needed: set[Operation] = set()
    stack = [as_operation(f) for f in wanted if f not in fed]
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [t.op for t in op.inputs if t not in fed] + list(op.control_inputs)
    first = {"Variable": 0, "ReadVariable": 1}
    return sorted(
        needed, key=lambda op: (2 if op.control_inputs else first.get(op.type, 2), op.index)
    )


def _run(op: Operation, inputs: list[Any], state: State) -> list[Any]:
    if op.type == "Placeholder":
        raise FeedError(f"placeholder {op.name!r} is not fed", op=op.name, line=op.line)
    if op.type in ("NoOp", "Variable"):
        return [op.name for _ in op.outputs]
    if op.type == "Const":
        return [op.attrs["value"]]
    if op.type == "ReadVariable":
        if inputs[0] not in state:
            raise UninitializedError(f"variable {inputs[0]!r} has no value", op=op.name)
        return [state[inputs[0]].copy()]
    if op.type == "IsVariableInitialized":
        return [np.bool_(inputs[0] in state)]
    if op.type == "Assign":
        state[inputs[0]] = inputs[1].copy()
        return []
    if op.type in ("ReplicaSum", "ReplicaGather", "ReplicaShare"):
        return inputs or [np.float64(1)]
    if op.type == "ReplicaOffset":
        return [np.int64(0)]
    row = lookup_op(op.type)
    handles = (*row.reads, *row.writes)
    given = [state[x] if i in handles else x for i, x in enumerate(inputs)]
    return call(op.type, op.attrs, given)


def _spec(x: np.ndarray, handle: bool) -> Spec:
    if handle:
        return Spec(resource, ())
    return Spec(x.dtype, x.shape, x if x.dtype.kind in "iu" and x.size <= 64 else None)


def _checked(t: Tensor, value: Any) -> Any:
    """`value`, which must be what the static shape and dtype of `t` promised."""
    if t.dtype == resource:
        return value
    assert value.dtype == t.dtype, (t, value.dtype)
    merge_shapes(t.shape, value.shape)
    if t.constant is not None:
        np.testing.assert_array_equal(t.constant, value)
    return _fixed(value)


def _fixed(value: Any) -> np.ndarray:
    value = np.array(value)
    value.flags.writeable = False
    return value


def _garbage(spec: Spec) -> np.ndarray:
    rubbish = np.nan if is_floating(spec.dtype) else 1
    return np.full(spec.shape, rubbish, spec.dtype)  # type: ignore[arg-type]
