"""Static shapes: a tuple of sizes, None for an unknown size; None alone for an unknown rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hpcflow.errors import MALFORMED, ShapeError
from hpcflow.platform.exception_translation import user_line, value_text

Shape: TypeAlias = "tuple[int | None, ...] | None"
MOST_BYTES = 1 << 47  # the address space of a process


class Spec(NamedTuple):
    """The static dtype and shape of a tensor; `value` if it is a known constant.

    `sizes` has the entries of an integer vector of which only some are known. `elements` is of a
    list or array of tensors: what its elements have in common, () if there are none yet, None if
    nothing is known.
    """

    dtype: np.dtype
    shape: Shape
    value: np.ndarray | None = None
    sizes: Shape = None
    elements: tuple[Spec, ...] | None = None

    @property
    def known(self) -> bool:
        """True if every size is known."""
        return is_known(self.shape)

    @property
    def sized(self) -> bool:
        """True if the size in bytes is known: not for strings, which have lengths of their own."""
        return is_known(self.shape) and self.dtype.kind != "O"

    @property
    def nbytes(self) -> int:
        """Bytes of the value; 0 if not known."""
        return self.dtype.itemsize * size_of(self.shape) if self.sized else 0


def as_shape(value: Any) -> Shape:
    """A shape from None, an int, or an iterable of ints, Nones and -1 (unknown)."""
    if value is None or getattr(value, "dims", value) is None:  # also TensorShape(None)
        return None
    if isinstance(value, (int, np.integer)):
        value = (value,)
    try:
        dims = tuple(None if d == -1 else d for d in as_sizes(value))
        check_sizes(dims)
    except ShapeError as error:
        error.line = error.line or user_line()
        raise
    return dims


def check_sizes(shape: Shape, itemsize: int = 1) -> None:
    """ShapeError if a size is negative, or if the elements would exceed the address space."""
    count = itemsize
    for d in shape or ():
        if d is not None:
            if d < 0:
                raise ShapeError(f"shape {shape_text(shape)} has a negative size")
            count *= d
    if count > MOST_BYTES:
        raise ShapeError(f"shape {shape_text(shape)} has {count} bytes, more than any memory")


def as_sizes(sizes_given: Any) -> tuple[int | None, ...]:
    """Sizes as ints, None where one is None; ShapeError if `sizes_given` is no sequence of
    sizes.
    """
    try:
        if isinstance(sizes_given, (str, bytes)):
            raise TypeError("a text is no list")
        sizes = (getattr(d, "value", d) for d in sizes_given)  # of a Dimension
        return tuple(None if d is None else _as_size(d) for d in sizes)
    except MALFORMED:
        raise ShapeError(
            f"{value_text(sizes_given)} is not a shape", hint="use a list such as [None, 784]"
        ) from None


def _as_size(size: Any) -> int:
    if isinstance(size, (str, bytes)) or int(size) != size or not -(2**63) <= size < 2**63:
        raise ValueError("no whole number that 64 bits hold")
    return int(size)


def is_known(shape: Shape) -> bool:
    """True if the rank and every size is known."""
    return shape is not None and None not in shape


def require_known(shape: Shape) -> tuple[int, ...]:
    """`shape` if every size is known; ShapeError otherwise."""
    if shape is None or None in shape:
        raise ShapeError(f"shape {shape_text(shape)} is not known")
    return shape  # type: ignore[return-value]


def size_of(shape: Shape) -> int:
    """The number of elements of a known shape."""
    assert shape is not None
    count = 1
    for d in shape:
        assert d is not None
        count *= d
    return count


def sizes_along(axis: int, shapes: Iterable[Shape]) -> tuple[int, ...] | None:
    """The size of each shape along an axis; None if one is not known."""
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    return None if None in sizes else tuple(sizes)  # type: ignore[arg-type]


def merge_shapes(a: Shape, b: Shape) -> Shape:
    """What two shapes of one tensor say together; ShapeError if they contradict."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ShapeError(f"shapes {shape_text(a)} and {shape_text(b)} have different ranks")
    return tuple(_merge_dim(x, y, a, b) for x, y in zip(a, b, strict=True))


def refine_shape(inferred: Shape, user_shape: Any, op: Any) -> Shape:
    """The known shape of `op` refined by the user's; ShapeError if they contradict."""
    requested = as_shape(user_shape)
    try:
        return merge_shapes(inferred, requested)
    except ShapeError:
        raise ShapeError(
            f"{op.name!r} has shape {shape_text(inferred)}, which cannot be set to "
            f"{shape_text(requested)}",
            op=op.name,
            line=user_line(),
            hint=f"it was made at {op.line}",
        ) from None


def common_shape(a: Shape, b: Shape) -> Shape:
    """The most specific shape that covers both shapes."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def common_elements(
    a: tuple[Spec, ...] | None, b: tuple[Spec, ...] | None
) -> tuple[Spec, ...] | None:
    """What the elements of two lists have in common, or of one list at two times."""
    if a is None or b is None:
        return None
    if not a or not b:
        return a or b
    (first,), (second,) = a, b
    return (common_spec(first, second),) if first.dtype == second.dtype else None


def common_spec(a: Spec, b: Spec) -> Spec:
    """What two tensors of one dtype have in common; no value."""
    elements = common_elements(a.elements, b.elements)
    return Spec(a.dtype, common_shape(a.shape, b.shape), elements=elements)


def _merge_dim(x: int | None, y: int | None, a: Shape, b: Shape) -> int | None:
    if x is not None and y is not None and x != y:
        raise ShapeError(f"shapes {shape_text(a)} and {shape_text(b)} do not agree")
    return y if x is None else x


def broadcast_shapes(shapes: Iterable[Shape]) -> Shape:
    """The shape of NumPy broadcasting; ShapeError if the sizes do not match."""
    shapes = list(shapes)
    if any(s is None for s in shapes):
        return None
    rank = max((len(s) for s in shapes if s is not None), default=0)
    out: list[int | None] = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in shapes if s is not None and len(s) >= -axis]
        fixed = {d for d in dims if d not in (None, 1)}
        if len(fixed) > 1:
            raise ShapeError(
                f"shapes {' and '.join(map(shape_text, shapes))} cannot be broadcast together"
            )
        if fixed:
            out.append(fixed.pop())
        else:
            out.append(None if None in dims else 1)
    return tuple(out)


def normalize_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes as sorted non-negative ints; None means all; ShapeError if one is out of range."""
    if axis is None:
        return tuple(range(rank))
    axes = [axis] if isinstance(axis, (int, np.integer)) else list(axis)
    for a in axes:
        if not -rank <= a < rank:
            raise ShapeError(f"axis {a} is out of range for rank {rank}")
    normalized = sorted({int(a) % rank for a in axes})
    if len(normalized) != len(axes):
        raise ShapeError(f"axes {axes} name one axis twice")
    return tuple(normalized)


def shape_text(shape: Shape) -> str:
    """A shape in the form of messages: `[?, 784]`."""
    if shape is None:
        return "[unknown rank]"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
