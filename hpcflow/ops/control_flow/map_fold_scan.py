"""Map, fold and scan: loops over the first axis of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.ops.array.array_ops import shape as shape_of
from hpcflow.ops.array.slice_ops import gather
from hpcflow.ops.control_flow.cond_while import while_loop
from hpcflow.ops.control_flow.tensor_array import TensorArray
from hpcflow.ops.math.arithmetic_ops import add, greater_equal, less, subtract
from hpcflow.platform.exception_translation import user_line, value_text

Function = Callable[..., Any]


class _ElementArrays:
    """Structures of tensors with a common first axis, as TensorArrays."""

    def __init__(self, elems: Any) -> None:
        self.structure = elems
        leaves = [convert_to_tensor(leaf) for leaf in nested_structure.flatten_structure(elems)]
        if not leaves:
            raise ShapeError(
                f"elems must hold at least one tensor, not {value_text(elems)}", line=user_line()
            )
        for leaf in leaves:
            if leaf.shape == ():
                raise ShapeError(f"{leaf.name!r} is a scalar and has no elements", op=leaf.op.name)
        self.count = _length(leaves[0])
        self.arrays = [
            TensorArray(t.dtype, self.count, infer_shape=True).unstack(t) for t in leaves
        ]

    def at(self, i: Tensor) -> Any:
        """The elements at index `i`, in the structure."""
        return nested_structure.pack_structure(
            self.structure, [array.read(i) for array in self.arrays]
        )


def _length(t: Tensor) -> Any:
    if t.shape is not None and t.shape[0] is not None:
        return convert_to_tensor(t.shape[0])
    return gather(shape_of(t), 0)


def _arguments(back_prop: bool, parallel_iterations: int | None, swap_memory: bool) -> Any:
    return {
        "back_prop": back_prop,
        "parallel_iterations": parallel_iterations or 1,
        "swap_memory": swap_memory,
    }


def map_fn(
    fn: Function,
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """`fn` applied to each element of `elems` along the first axis; the results are stacked.

    `elems` may be a structure of tensors of one length. `dtype` is the structure of result dtypes
    if it differs from that of `elems`. Elements of different shapes need infer_shape=False.
    Gradient: through `fn`.
    """
    with get_default_graph().name_scope(name or "map"):
        elements = _ElementArrays(elems)
        kinds = (
            dtype
            if dtype is not None
            else nested_structure.map_structure(lambda x: convert_to_tensor(x).dtype, elems)
        )
        outputs = [
            TensorArray(as_dtype(d), elements.count, infer_shape=infer_shape)
            for d in nested_structure.flatten_structure(kinds)
        ]

        def step(i: Tensor, arrays: Sequence[TensorArray]) -> Any:
            values = fn(elements.at(i))
            nested_structure.check_same_structure(
                kinds, values, "dtype and the result of the function"
            )
            pairs = zip(arrays, nested_structure.flatten_structure(values), strict=True)
            return add(i, 1), [array.write(i, value) for array, value in pairs]

        options = _arguments(back_prop, parallel_iterations, swap_memory)
        _, ends = while_loop(lambda i, _: less(i, elements.count), step, [0, outputs], **options)
        count = elements.count.constant
        stacked = [_stacked(array, None if count is None else int(count)) for array in ends]
        return nested_structure.pack_structure(kinds, stacked)


def _stacked(array: TensorArray, count: int | None) -> Tensor:
    tensor = array.stack()
    if count is not None and tensor.shape is not None:
        tensor.set_shape((count, *tensor.shape[1:]))
    return tensor


def foldl(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """`fn(...fn(fn(initializer, e0), e1)..., en)`; the default initializer is e0."""
    options = _arguments(back_prop, parallel_iterations, swap_memory)
    return _folded(fn, elems, initializer, False, name or "foldl", options)


def foldr(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """As `foldl`, from the last element to the first."""
    options = _arguments(back_prop, parallel_iterations, swap_memory)
    return _folded(fn, elems, initializer, True, name or "foldr", options)


def _folded(
    fn: Function, elems: Any, initializer: Any, reverse: bool, name: str, loop_options: Any
) -> Any:
    with get_default_graph().name_scope(name):
        elements = _ElementArrays(elems)
        start, first, test, move = _walk(elements, initializer, reverse)

        def step(i: Tensor, value: Any) -> Any:
            return move(i), fn(value, elements.at(i))

        return while_loop(lambda i, _: test(i), step, [start, first], **loop_options)[1]


def _walk(
    elements: _ElementArrays, initializer: Any, reverse: bool
) -> tuple[Tensor, Any, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The first index, the initial value, the loop condition, and the index step."""
    begin = subtract(elements.count, 1) if reverse else convert_to_tensor(0)
    step: Callable[[Tensor], Tensor]
    test: Callable[[Tensor], Tensor]
    step = (lambda i: subtract(i, 1)) if reverse else (lambda i: add(i, 1))
    test = (lambda i: greater_equal(i, 0)) if reverse else (lambda i: less(i, elements.count))
    if initializer is None:
        return step(begin), elements.at(begin), test, step
    return begin, nested_structure.map_structure(convert_to_tensor, initializer), test, step


def scan(
    fn: Function,
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """All intermediate values of `foldl` (with `reverse`, of `foldr`), stacked by element.

    Shapes: the axis of elements, then the shape of a value. Without an initializer the first value
            is the first element.
    """
    with get_default_graph().name_scope(name or "scan"):
        elements = _ElementArrays(elems)
        start, first, test, move = _walk(elements, initializer, reverse)
        leaves = nested_structure.flatten_structure(first)
        outputs = [TensorArray(t.dtype, elements.count, infer_shape=infer_shape) for t in leaves]
        if initializer is None:
            at = subtract(elements.count, 1) if reverse else convert_to_tensor(0)
            outputs = [array.write(at, t) for array, t in zip(outputs, leaves, strict=True)]

        def step(i: Tensor, value: Any, arrays: Sequence[TensorArray]) -> Any:
            new = fn(value, elements.at(i))
            nested_structure.check_same_structure(
                first, new, "the initializer and the result of the function"
            )
            pairs = zip(arrays, nested_structure.flatten_structure(new), strict=True)
            return move(i), new, [array.write(i, v) for array, v in pairs]

        options = _arguments(back_prop, parallel_iterations, swap_memory)
        ends = while_loop(lambda i, *_: test(i), step, [start, first, outputs], **options)[2]
        count = elements.count.constant
        stacked = [_stacked(array, None if count is None else int(count)) for array in ends]
        return nested_structure.pack_structure(first, stacked)
