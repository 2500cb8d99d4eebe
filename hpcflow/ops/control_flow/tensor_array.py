"""TensorArray: an array of tensors that a step writes and reads, mainly in loops.

Its value is a Python object on the task that created it. Operations on it are ordered, since each
takes the array returned by the previous one. An element is written once, so earlier states need no
copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype, int32, tensor_array
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, common_elements, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import identity, shape
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.control_flow.tensor_list_ops import element_spec
from hpcflow.ops.shape_inference import Attrs, first_output, fitted, given_shape, make, require_rank

_INTEGERS = NoGrad("its output is integers")
_GRADIENT = NoGrad("the gradient of an array of tensors is not differentiated again")
ARRAY = Spec(tensor_array, ())


def _array(
    type: str,
    *ranks: tuple[int, ...] | None,
    added: Callable[[Sequence[Spec]], tuple[Spec, ...] | None] = lambda inputs: (),
) -> Any:
    """Shape rule of an op that returns an array: input 0 is one, the others have these ranks.

    `added` gives what the elements that the op adds have in common.
    """

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        _check(type, inputs, ranks)
        elements = common_elements(inputs[0].elements, added(inputs))
        return [inputs[0]._replace(elements=elements)]

    return infer


def _written(inputs: Sequence[Spec]) -> tuple[Spec, ...]:
    """The last input is an element."""
    return (Spec(inputs[-1].dtype, inputs[-1].shape),)


def _rows(at: int) -> Callable[[Sequence[Spec]], tuple[Spec, ...]]:
    """Rows of input `at` are elements."""

    def elements(inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        shape = inputs[at].shape
        return (Spec(inputs[at].dtype, None if shape is None else shape[1:]),)

    return elements


def _pieces(inputs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Pieces of input 1, with the lengths in input 2, are elements."""
    shape = inputs[1].shape
    lengths = {None} if inputs[2].value is None else {*inputs[2].value.ravel().tolist()}
    first = lengths.pop() if len(lengths) == 1 else None
    return (Spec(inputs[1].dtype, None if shape is None else (first, *shape[1:])),)


def _of_array(inputs: Sequence[Spec]) -> tuple[Spec, ...] | None:
    """Elements of the array that is input 1 are added."""
    return inputs[1].elements


def _sum(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [
        inputs[0]._replace(elements=functools.reduce(common_elements, [s.elements for s in inputs]))
    ]


def _check(type: str, inputs: Sequence[Spec], ranks: Sequence[tuple[int, ...] | None]) -> None:
    if inputs[0].dtype != tensor_array:
        raise DTypeError(f"{type} takes a TensorArray, not {inputs[0].dtype}")
    for spec, allowed in zip(inputs[1:], ranks, strict=True):
        if allowed is not None:
            require_rank(type, spec, *allowed)
            if spec.dtype.kind not in "iu":
                raise DTypeError(f"indices of a TensorArray are integers, not {spec.dtype}")


def _new(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_rank("TensorArray", inputs[0], 0)
    return [ARRAY._replace(elements=() if attrs["infer"] else None)]


def _read(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _check("TensorArrayRead", inputs, [(0,)])
    return [element_spec(inputs[0], attrs)]


def _stack(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _check("TensorArrayStack", inputs, [])
    shape = element_spec(inputs[0], attrs).shape
    return [Spec(attrs["dtype"], None if shape is None else (attrs.get("count"), *shape))]


def _gather(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _check("TensorArrayGather", inputs, [(1,)])
    shape, indices = element_spec(inputs[0], attrs).shape, inputs[1].shape
    count = None if indices is None else indices[0]
    return [Spec(attrs["dtype"], None if shape is None else (count, *shape))]


def _concat(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _check("TensorArrayConcat", inputs, [])
    shape, count = element_spec(inputs[0], attrs).shape, attrs.get("count")
    of_all = shape[0] if shape else None
    rows = None if of_all is None or count is None else count * of_all
    joined = None if shape is None else (rows, *shape[1:])
    return [Spec(attrs["dtype"], joined), Spec(int32, (count,))]


def _like(t: Tensor) -> Attrs:
    return {"dtype": t.dtype, "shape": t.shape}


def _zeros(array: Tensor) -> Tensor:
    """The array of a gradient without contributions: missing elements are zeros."""
    return first_output("TensorArrayEmpty", [array], {}, "zeros")


def _first(array: Tensor, elements: Tensor) -> Tensor:
    """The first elements of an array, as many as `elements` has, since it may have grown."""
    return first_output("TensorArrayFirst", [array, shape(elements)[0]], {}, "first")


def _write_back(operation: Operation, g: Tensor) -> list[Any]:
    _, index, value = operation.inputs
    return [g, None, lambda: first_output("TensorArrayRead", [g, index], _like(value))]


def _read_back(operation: Operation, g: Tensor) -> list[Any]:
    array, index = operation.inputs
    return [first_output("TensorArrayWrite", [_zeros(array), index, g]), None]


def _stack_back(operation: Operation, g: Tensor) -> list[Any]:
    return [first_output("TensorArrayUnstack", [_zeros(operation.inputs[0]), g])]


def _unstack_back(operation: Operation, g: Tensor) -> list[Any]:
    value = operation.inputs[1]
    attrs = {"dtype": value.dtype, "shape": None if value.shape is None else value.shape[1:]}
    return [g, lambda: first_output("TensorArrayStack", [_first(g, value)], attrs)]


def _gather_back(operation: Operation, g: Tensor) -> list[Any]:
    array, indices = operation.inputs
    return [first_output("TensorArrayScatter", [_zeros(array), indices, g], {"add": True}), None]


def _scatter_back(operation: Operation, g: Tensor) -> list[Any]:
    _, indices, value = operation.inputs
    attrs = {"dtype": value.dtype, "shape": None if value.shape is None else value.shape[1:]}
    return [g, None, lambda: first_output("TensorArrayGather", [g, indices], attrs)]


def _concat_back(operation: Operation, g: Tensor, _: Tensor | None) -> list[Any]:
    array, lengths = operation.inputs[0], operation.outputs[1]
    return [first_output("TensorArraySplit", [_zeros(array), g, lengths])]


def _split_back(operation: Operation, g: Tensor) -> list[Any]:
    _, value, lengths = operation.inputs
    return [
        g,
        lambda: make("TensorArrayConcat", [_first(g, lengths)], _like(value)).outputs[0],
        None,
    ]


op("TensorArrayNew", infer=_new, grad=NoGrad("it begins empty"), stateful=True)
op(
    "TensorArrayWrite",
    infer=_array("TensorArrayWrite", (0,), None, added=_written),
    grad=_write_back,
    stateful=True,
    keeps=2,
)
op("TensorArrayRead", infer=_read, grad=_read_back, stateful=True, lends=True)
op("TensorArraySize", infer=lambda i, a: [Spec(int32, ())], grad=_INTEGERS, stateful=True)
op("TensorArrayStack", infer=_stack, grad=_stack_back, stateful=True)
op(
    "TensorArrayUnstack",
    infer=_array("TensorArrayUnstack", None, added=_rows(1)),
    grad=_unstack_back,
    stateful=True,
)
op("TensorArrayGather", infer=_gather, grad=_gather_back, stateful=True)
op(
    "TensorArrayScatter",
    infer=_array("TensorArrayScatter", (1,), None, added=_rows(2)),
    grad=_scatter_back,
    stateful=True,
)
op("TensorArrayConcat", infer=_concat, grad=_concat_back, stateful=True)
op(
    "TensorArraySplit",
    infer=_array("TensorArraySplit", None, (1,), added=_pieces),
    grad=_split_back,
    stateful=True,
)
op(
    "TensorArrayFirst",
    infer=_array("TensorArrayFirst", (0,)),
    grad=lambda operation, g: [g, None],
    stateful=True,
)
op("TensorArrayEmpty", infer=_array("TensorArrayEmpty"), grad=_GRADIENT, stateful=True)
op(
    "TensorArrayAccumulate",
    infer=_array("TensorArrayAccumulate", None, added=_of_array),
    grad=_GRADIENT,
    stateful=True,
)
op("TensorArrayAddN", infer=_sum, grad=_GRADIENT, stateful=True)


class TensorArray:
    """An array of `size` tensors of one dtype, written and read one by one, also in loops.

    Each writing method returns the array to continue with. With `dynamic_size` it grows on write.
    `element_shape` is the common static shape of the elements; with `infer_shape` it is inferred
    from the elements written, which must agree.

    Errors: RangeError for an index outside, an element written twice, or read before it is written;
            ShapeError for elements of other shapes.
    """

    @accepts_and_ignores("clear_after_read", "colocate_with_first_write_call")
    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        tensor_array_name: str | None = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        name: str | None = None,
    ) -> None:
        self.dtype, self.infer_shape = as_dtype(dtype), infer_shape
        self.dynamic_size = bool(dynamic_size) if dynamic_size is not None else size is None
        self._inferred: dict[str, Shape] = {
            "shape": given_shape(element_shape)
        }  # shared by its states
        attrs: Attrs = {
            "dtype": self.dtype,
            "shape": given_shape(element_shape),
            "dynamic": self.dynamic_size,
            "infer": bool(infer_shape),
        }
        count = convert_to_tensor(0 if size is None else size)
        self.flow = first_output("TensorArrayNew", [count], attrs, name or tensor_array_name)
        length = None if self.dynamic_size else count.constant
        self._count: Attrs = {} if length is None or length < 0 else {"count": int(length)}

    @property
    def element_shape(self) -> Shape:
        """The static shape of the elements."""
        return self._inferred["shape"]

    @property
    def handle(self) -> Tensor:
        """The tensor that represents the array, for internal operations only."""
        return self.flow

    def parts(self) -> tuple[Tensor, ...]:
        """The component tensors, which loops and branches pass on."""
        return (self.flow,)

    def of(self, parts: Sequence[Tensor]) -> TensorArray:
        """The same array in another state."""
        array = TensorArray.__new__(TensorArray)
        array.__dict__.update(self.__dict__)
        (array.flow,) = parts
        return array

    def identity(self) -> TensorArray:
        """The array after the control dependencies in force."""
        return self.of([identity(self.flow)])

    def grad(self, source: str, flow: Any = None, name: str | None = None) -> TensorArray:
        """An array for the gradients of the elements, initially zero; repeated writes are added.

        Each call creates one, named `source` if it has no `name`. `flow` has no effect.
        """
        return self.of([first_output("TensorArrayEmpty", [self.flow], {}, name or source)])

    # -- writing

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """The array with `value` at `index`."""
        tensor = self._element(value)
        self._learn(tensor.shape)
        return self._next("TensorArrayWrite", [_index(index), tensor], name)

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """The array with the slices of `value` along its first axis as elements."""
        tensor = self._element(value)
        self._learn(None if tensor.shape is None else tensor.shape[1:])
        return self._next("TensorArrayUnstack", [tensor], name)

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """The array with `value[k]` at `indices[k]`."""
        tensor = self._element(value)
        self._learn(None if tensor.shape is None else tensor.shape[1:])
        inputs = [_index(indices), tensor]
        return self._next("TensorArrayScatter", inputs, name, {"add": False})

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """The array with pieces of `value` of these `lengths` as elements."""
        tensor, length_tensor = self._element(value), _index(lengths)
        static = length_tensor.constant  # one length is common to all
        same = len({*static.tolist()}) == 1 if static is not None and static.ndim == 1 else False
        first = int(static[0]) if static is not None and same else None
        self._learn(None if tensor.shape is None else (first, *tensor.shape[1:]))
        return self._next("TensorArraySplit", [tensor, length_tensor], name)

    # -- reading

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at `index`."""
        return first_output("TensorArrayRead", [self.flow, _index(index)], self._attrs(), name)

    def stack(self, name: str | None = None) -> Tensor:
        """All elements, stacked."""
        return first_output("TensorArrayStack", [self.flow], self._attrs() | self._count, name)

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices`, stacked."""
        return first_output("TensorArrayGather", [self.flow, _index(indices)], self._attrs(), name)

    def concat(self, name: str | None = None) -> Tensor:
        """All elements concatenated along their first axes, whose sizes may differ."""
        attrs = self._attrs() | self._count
        if attrs["shape"] and not self.infer_shape:
            attrs["shape"] = (None, *attrs["shape"][1:])
        return make("TensorArrayConcat", [self.flow], attrs, name).outputs[0]

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements, an int32 scalar."""
        return first_output("TensorArraySize", [self.flow], {}, name)

    def close(self, name: str = "close") -> Operation:
        """An operation after all operations on it; its memory is freed with the step."""
        return group(self.flow, name=name)

    # -- shared functions

    def _next(
        self, type: str, inputs: list[Tensor], name: str | None, attrs: Attrs | None = None
    ) -> TensorArray:
        return self.of([first_output(type, [self.flow, *inputs], attrs or {}, name)])

    def _attrs(self) -> Attrs:
        return {"dtype": self.dtype, "shape": self.element_shape}

    def _element(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) and not hasattr(value, "as_tensor"):
            if not isinstance(value, (list, tuple)):
                value = fitted(np.asarray(value), self.dtype, "the TensorArray")
        return convert_to_tensor(value, self.dtype)

    def _learn(self, shape: Shape) -> None:
        try:
            merged = merge_shapes(self.element_shape, shape)
        except ShapeError:
            raise ShapeError(
                f"an element of shape {shape_text(shape)} does not fit a TensorArray with "
                "elements of shape "
                f"{shape_text(self.element_shape)}",
                hint="infer_shape=False lets elements have different shapes",
            ) from None
        if self.infer_shape:
            self._inferred["shape"] = merged

    def __repr__(self) -> str:
        return (
            f"<hf.TensorArray {self.flow.name!r} of {self.dtype}{shape_text(self.element_shape)}>"
        )


def _index(value: Any) -> Tensor:
    return convert_to_tensor(value)
