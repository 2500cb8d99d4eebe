"""Generated kernels of normalization over other axes than the last ones: batch, group, instance.

Normalization over the last axes is fused with its neighbours (`lowering/fusion`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import normalization_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.llvm_builder import HALVES, storage_type_of
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast

BLOCK_BYTES = 1 << 14  # of a block of rows: with a second array it fits into a core's cache
FEWEST_LANES, MOST_LANES = 16, 256  # lanes of several rows are put side by side up to MOST_LANES
LEAST_ELEMENTS = 1 << 10
COMPUTED: dict[str, Any] = {  # dtype of the arrays -> of statistics and sums
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    **{name: np.dtype(np.float32) for name in HALVES if storage_type_of(name) is not None},
}


class Layout(NamedTuple):
    """An array as [outer, rows, sides, kept, inner]: statistics are over rows, sides and inner.

    Its lanes are `sides` (rows side by side), `kept` and `inner`.
    """

    outer: int
    rows: int
    sides: int
    kept: int
    inner: int
    blocks: int

    @property
    def lanes(self) -> int:
        """The number of contiguous elements of a row."""
        return self.sides * self.kept * self.inner

    @property
    def array(self) -> tuple[int, int, int]:
        """The shape of the array for the kernels."""
        return self.outer, self.rows, self.lanes

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """The shape of the partial results."""
        return 2, self.outer, self.blocks, self.lanes

    def of_lanes(self, count: int) -> tuple[int, ...]:
        """The shape of `count` numbers for each lane."""
        return count, self.outer, self.sides, self.kept, self.inner


def layout_of(shape: Sequence[int], axes: Sequence[int], itemsize: int) -> Layout | None:
    """The layout for statistics over `axes`; None if the axes do not fit or the lanes are few."""
    reduced = {a % len(shape) for a in axes}
    sizes = [(i in reduced, n) for i, n in enumerate(shape) if n != 1]
    groups = [
        (summed, int(np.prod([n for _, n in group])))
        for summed, group in itertools.groupby(sizes, lambda pair: pair[0])
    ]
    outer = groups.pop(0)[1] if groups and not groups[0][0] else 1
    if not 2 <= len(groups) <= 3:  # rows, kept, and perhaps inner
        return None
    rows, kept = groups[0][1], groups[1][1]
    inner = groups[2][1] if len(groups) == 3 else 1
    sides = 1
    while rows % 2 == 0 and 2 * sides * kept * inner <= MOST_LANES:
        rows, sides = rows // 2, 2 * sides
    lanes = sides * kept * inner
    block = max(8, BLOCK_BYTES // (lanes * itemsize))
    if lanes < FEWEST_LANES:
        return None
    return Layout(outer, rows, sides, kept, inner, -(-rows // block))


def _layout(node: KernelNode) -> Layout | None:
    spec = node.inputs[0]
    return layout_of(spec.shape, node.attrs["axis"], spec.dtype.itemsize)


def _refuses(node: KernelNode) -> str:
    specs = (*node.inputs, *node.outputs)
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    dtype, shape = node.inputs[0].dtype, node.inputs[0].shape
    if dtype.name not in COMPUTED:
        return f"elements of {dtype}"
    if any(s.dtype != (dtype if s.shape == shape else COMPUTED[dtype.name]) for s in specs):
        return "its arrays are not of one dtype"
    if np.prod(node.inputs[0].shape) < LEAST_ELEMENTS:
        return "it has few elements"
    return "" if _layout(node) is not None else "its axes are neither leading axes nor groups"


def _scratch(count: int) -> Callable[[KernelNode], Sequence[tuple[Any, tuple[int, ...]]]]:
    """The partial results, and `count` numbers for each lane."""

    def arrays(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
        layout, dtype = _layout(node), COMPUTED[node.inputs[0].dtype.name]
        if layout is None:
            return []
        return [(dtype, layout.parts), (dtype, layout.of_lanes(count))]

    return arrays


def _room(node: KernelNode, count: int) -> Any:
    return [np.empty(shape, dtype) for dtype, shape in _scratch(count)(node)]


@fast("llvm", "Normalize", "out", on="cpu", refuses=_refuses, scratch=_scratch(2))
def _normalize(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """(x - mean) scale: two passes over memory, one for the statistics."""
    layout, name = _layout(node), node.inputs[0].dtype.name
    assert layout is not None
    statistics = builtin(normalization_codegen.means_and_squares(name))
    join = builtin(normalization_codegen.joined_statistics(name, node.attrs["epsilon"]))
    apply = builtin(normalization_codegen.normalized(name))

    def run(x: Any, y: Any, mean: Any, variance: Any, room: Any = ()) -> None:
        x = as_contiguous(x).reshape(layout.array)
        parts, lanes = room or _room(node, 2)
        statistics(x, parts)
        join(x, parts, mean, variance, lanes)
        apply(x, *lanes, y.reshape(layout.array))

    return run


@fast("llvm", "NormalizeGrad", "out", on="cpu", refuses=_refuses, scratch=_scratch(3))
def _normalize_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """scale (g - mean(g) - y mean(g y)): two passes over g and y."""
    layout, name = _layout(node), node.inputs[0].dtype.name
    assert layout is not None
    sums = builtin(normalization_codegen.sums_of_gradients(name))
    join = builtin(normalization_codegen.joined_gradient_sums(name, node.attrs["epsilon"]))
    apply = builtin(normalization_codegen.gradient(name))

    def run(g: Any, y: Any, variance: Any, out: Any, room: Any = ()) -> None:
        g, y = (as_contiguous(a).reshape(layout.array) for a in (g, y))
        parts, lanes = room or _room(node, 3)
        sums(g, y, parts)
        join(g, parts, as_contiguous(variance), lanes)
        apply(g, y, *lanes, out.reshape(layout.array))

    return run
