"""TensorFlow 1's `TensorShape` and `Dimension`, which are also tuples and integers.

`Tensor.shape` is a `Sizes`: a tuple in which an unknown size is None, with the methods of a
TensorShape. `Tensor.get_shape()` is a `TensorShape`, in which an unknown size is `Dimension(None)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.static_shape import Shape, as_shape, merge_shapes, shape_text, size_of

MAX_RANK = 1 << 16  # upper limit of a rank


class Dimension(int):
    """A size: an integer with a `value`. `Dimension(None)` and arithmetic with it are unknown."""

    def __new__(cls, value: Any) -> Dimension:
        """A Dimension of an integer, another Dimension, or None."""
        if isinstance(value, Dimension):
            return value
        shape = as_shape([value])
        assert shape is not None
        return _sized(shape[0])

    @property
    def value(self) -> int | None:
        """The size, None if it is unknown."""
        return int(self)

    def is_compatible_with(self, other: Any) -> bool:
        """Whether the two may be the same size."""
        return None in (self.value, Dimension(other).value) or self.value == Dimension(other).value

    def assert_is_compatible_with(self, other: Any) -> None:
        """ShapeError unless the two may be the same size."""
        self.merge_with(other)

    def merge_with(self, other: Any) -> Dimension:
        """The size that the two give together; ShapeError if they differ."""
        if not self.is_compatible_with(other):
            raise ShapeError(f"sizes {self.value} and {Dimension(other).value} do not agree")
        return Dimension(other) if self.value is None else self

    def __add__(self, other: Any) -> Any:
        return _as_size(int.__add__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _as_size(int.__sub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _as_size(int.__mul__(self, other))

    def __floordiv__(self, other: Any) -> Any:
        return _as_size(int.__floordiv__(self, other))

    def __mod__(self, other: Any) -> Any:
        return _as_size(int.__mod__(self, other))

    def __radd__(self, other: Any) -> Any:
        return _as_size(int.__radd__(self, other))

    def __rsub__(self, other: Any) -> Any:
        return _as_size(int.__rsub__(self, other))

    def __rmul__(self, other: Any) -> Any:
        return _as_size(int.__rmul__(self, other))

    def __rfloordiv__(self, other: Any) -> Any:
        return _as_size(int.__rfloordiv__(self, other))

    def __rmod__(self, other: Any) -> Any:
        return _as_size(int.__rmod__(self, other))

    def __reduce__(self) -> tuple[Any, ...]:
        return Dimension, (self.value,)


class _Unknown(Dimension):
    """`Dimension(None)`; as an integer it is -1, which means "unknown" in a given shape."""

    @property
    def value(self) -> None:
        """None."""
        return None

    def _unknown(self, *others: Any) -> Any:
        return self

    __add__ = __sub__ = __mul__ = __floordiv__ = __mod__ = _unknown
    __radd__ = __rsub__ = __rmul__ = __rfloordiv__ = __rmod__ = _unknown

    def _undecided(self, other: Any) -> Any:
        return None

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _undecided

    def __hash__(self) -> int:
        return hash(None)

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "Dimension(None)"

    def __str__(self) -> str:
        return "?"


UNKNOWN = int.__new__(_Unknown, -1)
_SIZES: dict[int, Dimension] = {}  # cached dimensions, up to a limit


def _sized(size: int | None) -> Dimension:
    if size is None:
        return UNKNOWN
    cached = _SIZES.get(size)
    if cached is None:
        cached = int.__new__(Dimension, size)
        if len(_SIZES) < 1 << 16:
            _SIZES[size] = cached
    return cached


def _as_size(result: Any) -> Any:
    """The result of arithmetic with a size: a size, unless it is negative or no integer."""
    return _sized(result) if isinstance(result, int) and result >= 0 else result


class TensorShape(tuple[Any, ...]):
    """A static shape: a tuple of `Dimension`s, or `TensorShape(None)` if the rank is not known.

    It equals a tuple or list of the same sizes, with None for unknown sizes.
    """

    __slots__ = ()

    def __new__(cls, dims: Any) -> TensorShape:
        """A shape of a list of sizes, another shape, or None."""
        sizes = as_shape(dims)
        if sizes is None:
            return tuple.__new__(_UnknownRank)
        return tuple.__new__(TensorShape, [_sized(d) for d in sizes])

    @property
    def plain(self) -> Shape:
        """A tuple of integers and None, None for an unknown rank."""
        return tuple([None if d is None or d is UNKNOWN else int(d) for d in tuple.__iter__(self)])

    @property
    def dims(self) -> list[Dimension] | None:
        """A list of its sizes, None if the rank is unknown."""
        plain = self.plain
        return None if plain is None else [_sized(d) for d in plain]

    @property
    def ndims(self) -> int | None:
        """The rank, None if it is unknown."""
        return None if self.plain is None else len(self.plain)

    rank = ndims

    def as_list(self) -> list[int | None]:
        """The sizes as a list, None for those that are unknown; ShapeError for an unknown rank."""
        return list(self._ranked("as_list()"))

    def _ranked(self, label: str) -> tuple[int | None, ...]:
        plain = self.plain
        if plain is None:
            raise ShapeError(
                f"{label} needs a shape of known rank", hint="call x.set_shape([...]) first"
            )
        return plain

    def is_fully_defined(self) -> bool:
        """Whether the rank and all sizes are known."""
        return self.plain is not None and None not in self.plain

    def num_elements(self) -> int | None:
        """The number of elements of such a tensor, None if it is not known."""
        return size_of(self.plain) if self.is_fully_defined() else None

    def merge_with(self, other: Any) -> TensorShape:
        """The shape that the two give together; ShapeError if they contradict."""
        return TensorShape(merge_shapes(self.plain, as_shape(other)))

    def concatenate(self, other: Any) -> TensorShape:
        """The sizes of both shapes, one after the other."""
        a, b = self.plain, as_shape(other)
        return TensorShape(None if a is None or b is None else (*a, *b))

    def is_compatible_with(self, other: Any) -> bool:
        """Whether a tensor may have both shapes."""
        try:
            merge_shapes(self.plain, as_shape(other))
        except ShapeError:
            return False
        return True

    def assert_is_compatible_with(self, other: Any) -> None:
        """ShapeError unless a tensor may have both shapes."""
        merge_shapes(self.plain, as_shape(other))

    def assert_same_rank(self, other: Any) -> None:
        """ShapeError unless the ranks may be the same."""
        a, b = self.plain, as_shape(other)
        if a is not None and b is not None and len(a) != len(b):
            raise ShapeError(f"shapes {shape_text(a)} and {shape_text(b)} have different ranks")

    def with_rank(self, rank: int) -> TensorShape:
        """This shape with this rank; ShapeError if it has another."""
        return self.merge_with([None] * _rank(rank))

    assert_has_rank = with_rank

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape; ShapeError if its rank is smaller."""
        if self.plain is not None and len(self.plain) < _rank(rank):
            raise ShapeError(f"shape {shape_text(self.plain)} must have rank {rank} or more")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape; ShapeError if its rank is larger."""
        if self.plain is not None and len(self.plain) > _rank(rank):
            raise ShapeError(f"shape {shape_text(self.plain)} must have rank {rank} or less")
        return self

    def assert_is_fully_defined(self) -> None:
        """ShapeError unless the rank and all sizes are known."""
        if not self.is_fully_defined():
            raise ShapeError(f"shape {shape_text(self.plain)} is not fully known")

    def __getitem__(self, key: Any) -> Any:
        selected = tuple.__getitem__(self, key)
        return tuple.__new__(type(self), selected) if isinstance(key, slice) else selected

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, list, type(None))):
            return NotImplemented
        plain = other.plain if isinstance(other, TensorShape) else other
        return self.plain == (tuple(plain) if isinstance(plain, list) else plain)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return hash(self.plain)

    def __bool__(self) -> bool:
        return True  # as in TensorFlow, also for a scalar

    def __repr__(self) -> str:
        return f"TensorShape({self.dims})"

    def __str__(self) -> str:
        sizes = ["?" if d is None else str(d) for d in self.plain or ()]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape, (self.plain,)


def _rank(shape: Any) -> int:
    if not isinstance(shape, int) or not 0 <= shape < MAX_RANK:
        raise ShapeError(f"{shape!r} is not a rank", hint="give a small integer of at least 0")
    return shape


class _UnknownRank(TensorShape):
    """`TensorShape(None)`."""

    __slots__ = ()

    @property
    def plain(self) -> Shape:
        """None."""
        return None

    def __len__(self) -> int:
        return len(self._ranked("len()"))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ranked("the sizes"))

    def __getitem__(self, key: Any) -> Any:
        return self if isinstance(key, slice) else UNKNOWN

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, _UnknownRank)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "TensorShape(None)"

    def __str__(self) -> str:
        return "<unknown>"


class Sizes(TensorShape):
    """A static shape of known rank, as `Tensor.shape`: a tuple in which an unknown size is None."""

    __slots__ = ()

    def __new__(cls, sizes: tuple[int | None, ...]) -> Sizes:
        """A shape whose elements are integers and None; `shape[i]` is a Dimension."""
        return tuple.__new__(cls, sizes)

    @property
    def plain(self) -> Shape:
        """A tuple of integers and None."""
        return tuple(self)

    def __getitem__(self, key: Any) -> Any:
        selected = tuple.__getitem__(self, key)
        if isinstance(key, slice):
            return tuple.__new__(Sizes, selected)
        return selected if selected is None else _sized(selected)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (TensorShape, list)):
            return TensorShape.__eq__(self, other)
        return tuple.__eq__(self, other)

    def __bool__(self) -> bool:
        return len(self) > 0  # as a tuple

    __hash__ = tuple.__hash__
    __repr__ = tuple.__repr__
    __str__ = tuple.__repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return Sizes, (self.plain,)


def to_plain(value: Any) -> Any:
    """`value` with integers and tuples in place of dimensions and shapes, also in nested lists."""
    if isinstance(value, Dimension):
        return value.value
    if isinstance(value, TensorShape):
        return value.plain
    if type(value) in (tuple, list) and any(isinstance(v, (Dimension, tuple, list)) for v in value):
        return type(value)(to_plain(v) for v in value)
    return value
