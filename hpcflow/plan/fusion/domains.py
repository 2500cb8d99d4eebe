"""Over what a node computes: rows of so many elements each, and how its values lie in them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.graph.shape import is_known, normalize_axes, size_of
from hpcflow.native import formulas
from hpcflow.native.expansions import EXPANSIONS, Steps
from hpcflow.native.loop import COLUMN, FULL, ONE, ROW
from hpcflow.native.words import Lines, Value, type_of
from hpcflow.plan.attrs import Same
from hpcflow.plan.ir import Node, Part

LONGEST = 1 << 15  # elements of a row that is summed: some of its values are kept on the stack
IGNORED = ""  # the way of an input that tells a shape only


class Domain(NamedTuple):
    """`size` elements in rows of `cols`, 0 if any rows will do."""

    size: int
    cols: int
    device: str
    strand: int

    def joined(self, other: Domain) -> Domain | None:
        """The one domain of what is computed over either, if there is one."""
        if self._replace(cols=0) != other._replace(cols=0):
            return None
        if self.cols and other.cols and self.cols != other.cols:
            return None
        return self._replace(cols=self.cols or other.cols)


class Reading(NamedTuple):
    """A node as part of a kernel: how its inputs and outputs lie in the rows of a domain."""

    size: int
    cols: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]

    def by_rows(self, cols: int) -> Reading | None:
        """The same over the rows of a larger domain, a value a row; None if that cannot be."""
        if self.cols or not set(self.inputs) <= {FULL, ONE} or self.outputs != (FULL,):
            return None
        inputs = tuple(COLUMN if way == FULL else way for way in self.inputs)
        return Reading(self.size * cols, cols, inputs, (COLUMN,), self.attrs)


def read(part: Part, node: Node, exact: bool) -> Reading | None:
    """How `node` can be part of a kernel; None if it cannot, or would not be `exact`."""
    given = [part.spec(ref) for ref in node.inputs]
    types = [type_of(spec.dtype) for spec in (*given, *node.specs)]
    if None in types:
        return None
    if not all(is_known(s.shape) and size_of(s.shape) for s in (*given, *node.specs)):
        return None
    shapes = [tuple(spec.shape or ()) for spec in given]
    made = [tuple(spec.shape or ()) for spec in node.specs]
    if node.type in EXPANSIONS:
        found = None if exact else _over_rows(node, shapes, made)
        if found is None or found.cols == 1 or found.cols > LONGEST:
            return None
        return found if {*types[:1], *types[len(given) :]} == {"float"} else None
    if formulas.find(node.type, exact) is None:
        return None
    found = _by_elements(node, shapes, made[0])
    kind = _made(node.type, tuple(types[: len(given)]), Same(node.attrs), exact)
    return found if kind == types[len(given)] else None


@functools.lru_cache(4096)
def _made(type: str, given: tuple[str, ...], attrs: Same, exact: bool) -> str | None:
    """The type of what an operation makes of values of these types; None if it has no formula."""
    values = [Value(f"%x{i}", of) for i, of in enumerate(given)]
    value = formulas.written(Lines(), type, values, attrs.value, exact)
    return value and value.type


def steps_of(steps: Steps, node: Node, reading: Reading, inputs: Sequence[int]) -> tuple[int, ...]:
    """Add what a node does to the steps of a kernel; the values of its outputs."""
    if node.type in EXPANSIONS:
        expand = EXPANSIONS[node.type]
        return expand(steps, node.specs[0].dtype, {**node.attrs, **reading.attrs}, *inputs)
    return (steps.add(node.type, inputs, node.attrs, reading.outputs[0]),)


def way_of(shape: Sequence[int], whole: Sequence[int]) -> tuple[str, int] | None:
    """How an operand's elements go with those of `whole`, and how long rows are then (0: any).

    None: in another way than by rows and columns.
    """
    shape, whole = tuple(shape), tuple(whole)
    if shape == whole:
        return FULL, 0
    if size_of(shape) == 1:
        return ONE, 0
    padded = (1,) * (len(whole) - len(shape)) + shape
    for k in range(1, len(whole)):
        if size_of(padded[:k]) == 1 and padded[k:] == whole[k:]:
            return ROW, size_of(whole[k:])
        if padded[:k] == whole[:k] and size_of(padded[k:]) == 1:
            return COLUMN, size_of(whole[k:])
    return None


def _by_elements(node: Node, shapes: list[tuple], made: tuple) -> Reading | None:
    ways = [way_of(shape, made) for shape in shapes]
    cols = {way[1] for way in ways if way is not None} - {0}
    if None in ways or len(cols) > 1:
        return None
    named = tuple(way[0] for way in ways if way is not None)
    return Reading(size_of(made), max(cols, default=0), named, (FULL,), {})


def _over_rows(node: Node, shapes: list[tuple], made: list[tuple]) -> Reading | None:
    """The reading of an operation with an expansion."""
    x, type = shapes[0], node.type
    if type in ("SumGrad", "MeanGrad", "BroadcastTo"):
        return _spread(node, x, made[0])
    if type in ("Sum", "Mean", "SumToShape"):
        return _summed(node, shapes, made[0])
    if not x:
        return None
    size, cols = size_of(x), x[-1]
    full = tuple(FULL for _ in shapes)
    if type == "SparseSoftmaxCrossEntropy":
        return Reading(size, cols, (FULL, COLUMN), (COLUMN, FULL), {"device": node.kind})
    if type == "SoftmaxCrossEntropy":
        return Reading(size, cols, full, (COLUMN, FULL), {}) if shapes[1] == x else None
    axes = node.attrs["axis"]
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if sorted(a % len(x) for a in axes) != list(range(len(x) - len(axes), len(x))):
        return None
    cols = size_of(x[len(x) - len(axes) :])
    if type == "Normalize":
        return Reading(size, cols, full, (FULL, COLUMN, COLUMN), {})
    if type == "NormalizeGrad":
        return Reading(size, cols, (FULL, FULL, COLUMN), (FULL,), {})
    return Reading(size, cols, full, (FULL,), {})


def _summed(node: Node, shapes: list[tuple], made: tuple) -> Reading | None:
    """Sums over the last axes, or over the first."""
    x = shapes[0]
    if node.type == "SumToShape":
        kept = (1,) * (len(x) - len(made)) + made
        axes = [i for i, n in enumerate(x) if n != kept[i]]
    else:
        axes = [i for i in normalize_axes(node.attrs["axis"], len(x)) if x[i] > 1]
    long = [i for i, n in enumerate(x) if n > 1]
    if not axes or len(axes) == len(long):
        return None
    ignored = tuple(IGNORED for _ in shapes[1:])
    if axes == long[-len(axes) :]:
        cols = math.prod(x[i] for i in axes)
        return Reading(size_of(x), cols, (FULL, *ignored), (COLUMN,), {"way": COLUMN})
    if axes == long[: len(axes)] and node.type != "Mean":
        cols = size_of(x) // math.prod(x[i] for i in axes)
        return Reading(size_of(x), cols, (FULL, *ignored), (ROW,), {"way": ROW})
    return None


def _spread(node: Node, g: tuple, made: tuple) -> Reading | None:
    """What is the same for all elements of some axes."""
    if node.type != "BroadcastTo":
        axes = normalize_axes(node.attrs["axis"], len(made))
        g = tuple(1 if i in axes else n for i, n in enumerate(made))
    way = way_of(g, made)
    if way is None or way[0] == FULL:
        return None
    count = size_of(made) // size_of(g)
    ignored = tuple(IGNORED for _ in node.inputs[1:])
    return Reading(size_of(made), way[1], (way[0], *ignored), (FULL,), {"count": count})
