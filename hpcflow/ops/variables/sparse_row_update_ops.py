"""Sparse row update ops: read and update rows of variables in place."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import innermost_graph
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, require_known, shape_text, size_of
from hpcflow.ops.array.array_ops import sizes
from hpcflow.ops.array.broadcast_ops import broadcast_to
from hpcflow.ops.shape_inference import Attrs, require
from hpcflow.ops.variables.indexed_slices import IndexedSlices, rows_of
from hpcflow.platform.exception_translation import value_text

_UPDATE = NoGrad("an update of state is not a function of its inputs")


def _read_rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("the indices of rows", inputs[1], "iu")
    dtype, shape = np.dtype(attrs["dtype"]), tuple(attrs["shape"])
    if not shape:
        raise ShapeError("a variable that is a scalar has no rows")
    at = inputs[1].shape
    return [Spec(dtype, None if at is None else (*at, *shape[1:]))]


def _read_rows_back(op: Operation, g: Tensor) -> list[Any]:
    shape = op.attrs["shape"]
    return [rows_of(g, op.inputs[1], shape[1:], shape), None]


def _updates(values: Spec, need: Shape, attrs: Attrs) -> None:
    dtype = np.dtype(attrs["dtype"])
    if values.dtype != dtype:
        raise DTypeError(f"the updates are {values.dtype}; the variable is {dtype}")
    if values.shape == ():
        return
    try:
        merge_shapes(values.shape, need)
    except ShapeError:
        raise ShapeError(
            f"updates have shape {shape_text(values.shape)}; the indices need {shape_text(need)}"
        ) from None


def _scatter(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _, indices, values = inputs[:3]  # the fourth input is a factor of all values
    require("the indices of rows", indices, "iu")
    shape = tuple(attrs["shape"])
    if not shape:
        raise ShapeError("a variable that is a scalar has no rows")
    _updates(values, None if indices.shape is None else (*indices.shape, *shape[1:]), attrs)
    return []


def _scatter_div(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("scatter_div", inputs[2], "iufc")
    return _scatter(inputs, attrs)


def _scatter_nd(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _, indices, values = inputs
    require("the indices of slices", indices, "iu")
    shape = tuple(attrs["shape"])
    if indices.shape == ():
        raise ShapeError("scatter_nd needs indices of at least rank 1")
    need: Shape = None
    if indices.shape is not None and indices.shape[-1] is not None:
        depth = indices.shape[-1]
        if depth > len(shape):
            raise ShapeError(
                f"index vectors of length {depth} do not fit a variable of shape "
                f"{shape_text(shape)}"
            )
        need = (*indices.shape[:-1], *shape[depth:])
    _updates(values, need, attrs)
    return []


ROW_KERNELS = (
    "sparse_row_update_kernels kernels.llvm_row_gather_scatter kernels.ptx_row_gather_scatter"
)
SCATTERS = ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")
op(
    "ReadRows",
    infer=_read_rows,
    grad=_read_rows_back,
    reads=(0,),
    by_rows=True,
    variable="read_rows",
    work="pick",
    kernels=ROW_KERNELS,
)
for _name in SCATTERS:
    _row: Attrs = {"grad": _UPDATE, "writes": (0,), "by_rows": True}
    if _name == "Update":
        _row |= {"overwrites": True, "work": "move"}
    op(
        f"Scatter{_name}",
        infer=_scatter_div if _name == "Div" else _scatter,
        kernels=ROW_KERNELS,
        **_row,
    )
    if _name in ("Update", "Add", "Sub"):
        op(f"ScatterNd{_name}", infer=_scatter_nd, whole_variable=True, **_row)

MOST_TABLES = 6  # updated by one formula
for _n in range(
    1, MOST_TABLES + 1
):  # tables, indices and operands: see lowering/fusion/sparse_optimizer_fusion.py
    _writes = tuple(range(_n))
    op(
        f"UpdateRows{_n}",
        infer=lambda *_: [],
        grad=_UPDATE,
        writes=_writes,
        by_rows=True,
        generated=True,
        kernels="kernels.llvm_row_gather_scatter",
    )


def _places(shape: tuple[int, ...]) -> np.ndarray:
    """The index vector of each element of a tensor."""
    grid = np.indices(shape, np.int32 if size_of(shape) < 2**31 else np.int64)
    return np.moveaxis(grid, 0, -1)


class RowUpdates:
    """Operations on rows of a variable."""

    dtype: np.dtype
    shape: Shape
    op: Operation
    handle: Tensor
    name: str

    def after(self, update: Operation) -> Tensor:
        """Its value after `update`."""
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Tensor:
        """`x[key]` of its value; its method `assign(value, name=None)` sets this part."""
        part: Tensor = OPERATORS["getitem"](self, key)
        part.assign = partial(self._assign_part, key, part)
        return part

    def _assign_part(self, key: Any, part: Tensor, value: Any, name: str | None = None) -> Tensor:
        """Set `part`, which is `x[key]`, to `value`, broadcast; returns its whole new value."""
        parts = key if isinstance(key, tuple) else (key,)
        full = any(k is Ellipsis for k in parts)
        indexed = sum(k is not None and k is not Ellipsis for k in parts)
        places = _places(require_known(self.shape if full else self.shape and self.shape[:indexed]))
        at = OPERATORS["getitem"](places, (*parts, builtins.slice(None)))
        values = broadcast_to(convert_to_tensor(value, self.dtype), sizes(part))
        return self.after(self._rows("ScatterNdUpdate", at, values, name))

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """Its rows `indices`, read on its device after the control dependencies in force.

        Shapes: indices.shape + shape[1:].
        Gradient: IndexedSlices of the variable.
        Errors: RangeError for an index outside [0, shape[0]).
        """
        return self._with_rows("ReadRows", [convert_to_tensor(indices)], name).outputs[0]

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Set the rows of `sparse_delta` (of equal indices the last); returns its new value."""
        return self._slices("ScatterUpdate", sparse_delta, name)

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Add the rows of `sparse_delta`; returns its new value."""
        return self._slices("ScatterAdd", sparse_delta, name)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Subtract the rows of `sparse_delta`; returns its new value."""
        return self._slices("ScatterSub", sparse_delta, name)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Multiply rows by those of `sparse_delta`; returns its new value."""
        return self._slices("ScatterMul", sparse_delta, name)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Divide rows by those of `sparse_delta`; returns its new value."""
        return self._slices("ScatterDiv", sparse_delta, name)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Replace rows by the minimum with those of `sparse_delta`; returns its new value."""
        return self._slices("ScatterMin", sparse_delta, name)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Replace rows by the maximum with those of `sparse_delta`; returns its new value."""
        return self._slices("ScatterMax", sparse_delta, name)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Set the slices at index vectors `indices` [..., k]; returns its new value."""
        return self.after(self._rows("ScatterNdUpdate", indices, updates, name))

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Add to the slices at index vectors `indices` [..., k]; returns its new value."""
        return self.after(self._rows("ScatterNdAdd", indices, updates, name))

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Subtract from the slices at index vectors `indices` [..., k]; returns its new value."""
        return self.after(self._rows("ScatterNdSub", indices, updates, name))

    def _slices(self, type: str, delta: IndexedSlices, name: str | None) -> Tensor:
        if not isinstance(delta, IndexedSlices):
            raise ShapeError(
                f"{type} takes hf.IndexedSlices(values, indices), not {delta!r}",
                op=self.name,
                hint="use hf.scatter_add(variable, indices, updates) for two tensors",
            )
        return self.after(self._rows(type, delta.indices, delta.given_values, name))

    def _rows(
        self, type: str, indices: Any, updates: Any, name: str | None, distinct: bool = False
    ) -> Operation:
        values = convert_to_tensor(updates, self.dtype)
        return self._with_rows(type, [convert_to_tensor(indices), values], name, distinct)

    def _with_rows(
        self, type: str, inputs: Sequence[Tensor], name: str | None, distinct: bool = False
    ) -> Operation:
        attrs: Attrs = {"dtype": self.dtype, "shape": self.shape}
        if distinct:
            attrs["distinct"] = True
        assert self.handle.dtype == resource
        graph = innermost_graph(self.op.graph)
        with graph.colocate_with(self.op):
            return graph.create_op(
                type, [self.handle, *inputs], attrs, name or f"{self.name}/{type}"
            )


def the_variable(op_name: str, ref: Any) -> Any:
    """`ref`, checked to be a variable.

    Errors: ArgumentError, which names `op_name`.
    """
    if not isinstance(ref, RowUpdates):
        message = f"{op_name} needs a variable, not {value_text(ref)}"
        raise ArgumentError(message, line=user_line(), hint="give an hf.Variable")
    return ref


Scatter = Callable[..., Tensor]


def _function(type: str, doc: str) -> Scatter:
    def function(
        ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        variable = the_variable(type, ref)
        return variable.after(variable._rows(type, indices, updates, name))

    function.__doc__ = f"""{doc}

    Equal indices are applied one after the other, in their order. `updates` may be a scalar. The
    value of all of `ref` after that is returned.
    Errors: RangeError for an index out of range, when it runs.
    """
    function.__name__ = function.__qualname__ = type
    return function


scatter_update = _function("ScatterUpdate", "`ref[indices] = updates`.")
scatter_add = _function("ScatterAdd", "`ref[indices] += updates`.")
scatter_sub = _function("ScatterSub", "`ref[indices] -= updates`.")
scatter_mul = _function("ScatterMul", "`ref[indices] *= updates`.")
scatter_div = _function("ScatterDiv", "`ref[indices] /= updates`.")
scatter_min = _function("ScatterMin", "`ref[indices] = min(ref[indices], updates)`.")
scatter_max = _function("ScatterMax", "`ref[indices] = max(ref[indices], updates)`.")
scatter_nd_update = _function("ScatterNdUpdate", "Set the slices of `ref` at `indices` [..., k].")
scatter_nd_add = _function("ScatterNdAdd", "Add to the slices of `ref` at `indices` [..., k].")
scatter_nd_sub = _function(
    "ScatterNdSub", "Subtract from the slices of `ref` at `indices` [..., k]."
)
