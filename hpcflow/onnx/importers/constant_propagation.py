"""Constant propagation at import: values of tensors that depend only on constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hpcflow.errors import OnnxError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, require_known
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel


class UnknownValueError(OnnxError):
    """A value must be known at import, but it depends on inputs of the model."""

    def __init__(self, inputs: Iterable[str], label: str) -> None:
        self.inputs = tuple(inputs)
        names = ", ".join(map(repr, self.inputs))
        super().__init__(
            f"{label} must be known when the model is imported; it depends on {names}",
            hint="give import_model {name: an array, or a placeholder of known shape}",
        )


class ConstantValues:
    """Values of tensors that depend only on constants, computed once by NumPy kernels.

    `initializers` are values that count as known although they may be variables.
    """

    def __init__(self) -> None:
        self.initializers: dict[Tensor, np.ndarray] = {}
        self.inputs: dict[Operation, str] = {}  # stand-ins for inputs of the model -> their names
        self._values: dict[Tensor, np.ndarray] = {}

    def evaluate(self, tensor: Tensor, label: str) -> np.ndarray:
        """The value of `tensor`; `label` describes it in errors.

        Errors: UnknownValueError if it depends on inputs of the model, on state, or on random
        numbers.
        """
        missing: dict[str, None] = {}
        for op in _before(tensor.op, self._is_known):
            if any(t in self._values for t in op.outputs):
                continue
            fixed = [
                self.initializers.get(t) if t.spec.value is None else t.spec.value
                for t in op.outputs
            ]
            sources = sources_of(op)
            if fixed and all(value is not None for value in fixed):
                self._values.update(zip(op.outputs, fixed, strict=True))  # type: ignore[arg-type]
            elif op.type == "Parameter" and sources and sources[0] in self._values:
                self._values[op.outputs[0]] = self._values[sources[0]]
            elif (
                op in self.inputs
                or op.type.startswith("Placeholder")
                or not lookup_op(op.type).pure
            ):
                missing[self.inputs.get(op, op.name)] = None
            elif all(t in self._values for t in sources):
                values = compute(op, [self._values[t] for t in sources])
                self._values.update(zip(op.outputs, values, strict=True))
        if tensor not in self._values:
            raise UnknownValueError(missing, label)
        return self._values[tensor]

    def _is_known(self, op: Operation) -> bool:
        return any(t in self._values or t in self.initializers for t in op.outputs)


def sources_of(op: Operation) -> Sequence[Tensor]:
    """The tensors that an operation depends on; for a body's parameter the captured tensor."""
    if op.type != "Parameter":
        return op.inputs
    captures: dict[Tensor, Tensor] = getattr(op.graph, "captures", {})
    return [outer for outer, parameter in captures.items() if parameter is op.outputs[0]]


def _before(last: Operation, is_known: Callable[[Operation], bool]) -> list[Operation]:
    """`last` and the operations it depends on, in topological order."""
    order: list[Operation] = []
    visited: set[Operation] = set()
    stack = [(last, False)]
    while stack:
        op, is_done = stack.pop()
        if is_done:
            order.append(op)
        elif op not in visited:
            visited.add(op)
            stack.append((op, True))
            stack += [(t.op, False) for t in (() if is_known(op) else sources_of(op))]
    return order


def compute(op: Operation, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a pure operation, computed by its NumPy kernel."""
    input_specs = [Spec(x.dtype, x.shape, x) for x in map(np.asarray, inputs)]
    specs = lookup_op(op.type).infer(input_specs, op.attrs)
    row = find_plain_kernel(op.type, "cpu")
    with np.errstate(all="ignore"):
        run = row.make(np, KernelNode(op.type, op.attrs, input_specs, specs))
        if row.form == "out":
            outs = [np.empty(require_known(s.shape), s.dtype) for s in specs]
            run(*inputs, *outs)
            return outs
        output = run(*inputs)
    return [np.asarray(v, order="C") for v in (output if isinstance(output, tuple) else (output,))]
