"""Conditional accumulators: sum gradients of several workers until enough have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph.dtypes import as_dtype, int32, int64, is_floating, resource
from hpcflow.graph.function_body import innermost_graph
from hpcflow.graph.graph import Graph, Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, is_known, merge_shapes
from hpcflow.ops.math.arithmetic_ops import cast
from hpcflow.ops.shape_inference import Attrs, given_shape, require
from hpcflow.ops.variables.indexed_slices import IndexedSlices

_HANDLE = NoGrad("a handle is not a number")
_NO_GRAD = NoGrad("what is accumulated is not a function of this step's inputs", none=True)
_STATE: dict[str, Any] = {"stateful": True, "device": "cpu"}
_WAITS: dict[str, Any] = {**_STATE, "waits": True}


def _handle(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(resource, ())]


def _scalar(name: str, spec: Spec) -> None:
    require(name, spec, "iu")
    merge_shapes(spec.shape, ())


def _applied(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _scalar("local_step", inputs[1])
    grad, dtype = inputs[-1], attrs["dtype"]
    if grad.dtype != dtype:
        raise DTypeError(f"a gradient is {grad.dtype}; the accumulator takes {dtype}")
    shape: Shape = attrs["shape"]
    if attrs["sparse"]:
        require("the rows of a gradient", inputs[2], "iu")
        merge_shapes(inputs[2].shape, None if grad.shape is None else grad.shape[:1])
        shape = None if shape is None else (None, *shape[1:])
    merge_shapes(grad.shape, shape)
    return []


def _infer_take(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _scalar("num_required", inputs[1])
    shape: Shape = attrs["shape"]
    if not attrs["sparse"]:
        return [Spec(attrs["dtype"], shape)]
    rows = None if shape is None else (None, *shape[1:])
    rank = None if shape is None else len(shape)
    return [Spec(int64, (None,)), Spec(attrs["dtype"], rows), Spec(int64, (rank,))]


def _stepped(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _scalar("the global step", inputs[1])
    return []


op("ConditionalAccumulator", infer=_handle, grad=_HANDLE, **_STATE)
op("SparseConditionalAccumulator", infer=_handle, grad=_HANDLE, **_STATE)
op("AccumulatorApplyGradient", infer=_applied, grad=_NO_GRAD, **_WAITS)
op("AccumulatorTakeGradient", infer=_infer_take, grad=_NO_GRAD, patient=True, **_WAITS)
op("AccumulatorSetGlobalStep", infer=_stepped, grad=_NO_GRAD, **_WAITS)
op("AccumulatorNumAccumulated", infer=lambda i, a: [Spec(int32, ())], grad=_NO_GRAD, **_WAITS)


class ConditionalAccumulatorBase:
    """Base class of gradient accumulators, which are placed on one rank, as queues are.

    A gradient whose `local_step` is less than the accumulator's step is stale and is dropped. A
    take waits for enough gradients, then starts the next step. `reduction_type` is MEAN or SUM.
    """

    _type = ""

    def __init__(
        self, dtype: Any, shape: Any, shared_name: str | None, name: str, reduction_type: str
    ) -> None:
        if reduction_type not in ("MEAN", "SUM"):
            raise GraphError(f"reduction_type {reduction_type!r} is neither MEAN nor SUM")
        self._dtype, self._shape = as_dtype(dtype), given_shape(shape)
        if not is_floating(self._dtype):
            raise DTypeError(f"an accumulator of gradients is of floats, not {self._dtype}")
        graph = get_default_graph()
        attrs: Attrs = {"dtype": self._dtype, "shape": self._shape, "shared_name": shared_name}
        attrs["mean"] = reduction_type == "MEAN"
        with graph.control_dependencies(None):
            self._handle = graph.create_op(self._type, [], attrs, name).outputs[0]

    @property
    def graph(self) -> Graph:
        """The graph of the accumulator."""
        return self._handle.graph

    @property
    def accumulator_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """The name of the handle."""
        return self._handle.op.name

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the gradients."""
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """The number of gradients added since the last take, int32."""
        name = name or f"{self.name}_NumAccumulated"
        return self._run("AccumulatorNumAccumulated", [], name).outputs[0]

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Operation:
        """Set the accumulator's step: gradients of earlier steps are dropped."""
        step = cast(new_global_step, int64)
        return self._run("AccumulatorSetGlobalStep", [step], name or f"{self.name}_SetGlobalStep")

    def _run(self, type: str, inputs: Sequence[Tensor], name: str) -> Operation:
        attrs = {
            "dtype": self._dtype,
            "shape": self._shape,
            "sparse": self._type.startswith("Sparse"),
        }
        graph = innermost_graph(self.graph)
        with graph.colocate_with(self._handle.op):
            return graph.create_op(type, [self._handle, *inputs], attrs, name)

    def _apply(self, local_step: Any, gradient: Sequence[Tensor], name: str | None) -> Operation:
        step = cast(local_step, int64)
        name = name or f"{self.name}_ApplyGradient"
        return self._run("AccumulatorApplyGradient", [step, *gradient], name)

    def _take(self, num_required: Any, name: str | None) -> Sequence[Tensor]:
        count = convert_to_tensor(num_required)
        name = name or f"{self.name}_TakeGradient"
        return self._run("AccumulatorTakeGradient", [count], name).outputs


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Accumulates gradients of one shape; see `ConditionalAccumulatorBase`."""

    _type = "ConditionalAccumulator"

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(dtype, shape, shared_name, name, reduction_type)

    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Operation:
        """Add a gradient computed with the variables of `local_step`."""
        return self._apply(local_step, [convert_to_tensor(grad, self._dtype)], name)

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """Wait for `num_required` gradients; returns the mean or sum of all that have arrived."""
        return self._take(num_required, name)[0]


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Accumulates rows of gradients; the mean of a row is over the gradients that contain it.

    See `ConditionalAccumulatorBase`.
    Errors: RangeError for a row out of range.
    """

    _type = "SparseConditionalAccumulator"

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        if given_shape(shape) == ():
            raise ShapeError("a sparse accumulator has rows; a scalar has none")
        super().__init__(dtype, shape, shared_name, name, reduction_type)

    def apply_grad(
        self,
        grad_indices: Any,
        grad_values: Any,
        grad_shape: Any = None,
        local_step: Any = 0,
        name: str | None = None,
    ) -> Operation:
        """Add rows of a gradient of shape `grad_shape`, computed with variables of `local_step`."""
        rows = IndexedSlices(convert_to_tensor(grad_values, self._dtype), grad_indices, grad_shape)
        return self.apply_indexed_slices_grad(rows, local_step, name)

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: Any = 0, name: str | None = None
    ) -> Operation:
        """Add a gradient given as IndexedSlices."""
        merge_shapes(grad.shape, self._shape)
        return self._apply(local_step, [cast(grad.indices, int64), grad.values], name)

    def take_grad(
        self, num_required: Any, name: str | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Wait for `num_required` gradients; returns row numbers, rows, and shape (-1: unknown)."""
        indices, values, shape = self._take(num_required, name)
        return indices, values, shape

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        """As `take_grad`; returns IndexedSlices."""
        indices, values, shape = self._take(num_required, name)
        dense_shape = self._shape if is_known(self._shape) else shape
        return IndexedSlices(values, indices, dense_shape)
