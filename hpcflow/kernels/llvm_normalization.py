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
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast

BLOCK_BYTES = 1 << 14  # of a block of rows: with a second array it fits into a core's cache
FEWEST_LANES, MOST_LANES = 16, 256  # lanes of several rows are put side by side up to MOST_LANES
LEAST_ELEMENTS = 1 << 10


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

    @property
    def size(self) -> int:
        """The number of elements of one statistic."""
        return self.rows * self.sides * self.inner


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
    if any(s.dtype != node.inputs[0].dtype for s in specs):
        return "its arrays are not of one dtype"
    if node.inputs[0].dtype.name not in ("float32", "float64"):
        return f"elements of {node.inputs[0].dtype}"
    if np.prod(node.inputs[0].shape) < LEAST_ELEMENTS:
        return "it has few elements"
    return "" if _layout(node) is not None else "its axes are neither leading axes nor groups"


def _scratch(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    layout = _layout(node)
    return [] if layout is None else [(node.inputs[0].dtype, layout.parts)]


def _of_lanes(layout: Layout, statistic: Any) -> np.ndarray:
    """A statistic [outer, kept] as [outer, lanes]."""
    grouped = statistic.reshape(layout.outer, 1, layout.kept, 1)
    whole = (layout.outer, layout.sides, layout.kept, layout.inner)
    return np.broadcast_to(grouped, whole).reshape(layout.outer, layout.lanes)


def _of_kept(layout: Layout, lanes: Any) -> Any:
    """The sums [outer, kept] of numbers [outer, lanes] of the same statistic."""
    grouped = lanes.reshape(layout.outer, layout.sides, layout.kept, layout.inner)
    return grouped.sum(axis=(1, 3))


@fast("llvm", "Normalize", "out", on="cpu", refuses=_refuses, scratch=_scratch)
def _normalize(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """The statistics of blocks are joined as by Chan, Golub and LeVeque (1979)."""
    layout, dtype = _layout(node), node.inputs[0].dtype
    assert layout is not None
    statistics = builtin(normalization_codegen.means_and_squares(dtype.name))
    apply = builtin(normalization_codegen.normalized(dtype.name))
    epsilon, count = dtype.type(node.attrs["epsilon"]), dtype.type(layout.size)
    rows = np.full(layout.blocks, -(-layout.rows // layout.blocks), dtype)
    rows[-1] = layout.rows - rows[:-1].sum()
    weights = rows / count

    def run(x: Any, y: Any, mean: Any, variance: Any, room: Any = ()) -> None:
        x = as_contiguous(x).reshape(layout.array)
        parts = room[0] if room else np.empty(layout.parts, dtype)
        statistics(x, parts)
        means, squares = parts
        total = _of_kept(layout, np.matmul(weights, means))
        mean[...] = total.reshape(mean.shape)
        of_lanes = _of_lanes(layout, total)
        means -= of_lanes[:, None]
        means *= means
        spread = np.matmul(rows, means) + squares.sum(axis=1)
        variance[...] = (_of_kept(layout, spread) / count).reshape(variance.shape)
        scale = 1 / np.sqrt(variance + epsilon)
        apply(x, of_lanes, _of_lanes(layout, scale), y.reshape(layout.array))

    return run


@fast("llvm", "NormalizeGrad", "out", on="cpu", refuses=_refuses, scratch=_scratch)
def _normalize_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """scale (g - mean(g) - y mean(g y)): two passes over g and y."""
    layout, dtype = _layout(node), node.inputs[0].dtype
    assert layout is not None
    sums = builtin(normalization_codegen.sums_of_gradients(dtype.name))
    apply = builtin(normalization_codegen.gradient(dtype.name))
    epsilon, count = dtype.type(node.attrs["epsilon"]), dtype.type(layout.size)

    def run(g: Any, y: Any, variance: Any, out: Any, room: Any = ()) -> None:
        g, y = (as_contiguous(a).reshape(layout.array) for a in (g, y))
        parts = room[0] if room else np.empty(layout.parts, dtype)
        sums(g, y, parts)
        mean, along = (
            _of_lanes(layout, _of_kept(layout, part.sum(axis=1)) / count) for part in parts
        )
        scale = _of_lanes(layout, 1 / np.sqrt(variance + epsilon))
        apply(g, y, mean, along, scale, out.reshape(layout.array))

    return run
