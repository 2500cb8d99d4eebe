"""The kernels of `Fused`: several operations in one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.slicing import check_indices
from hpcflow.kernels.table import Node, fast
from hpcflow.native import grid, kept
from hpcflow.native.call import plain


@fast("llvm", "Fused", "out", on="cpu", exact=True)
def _fused(xp: Any, node: Node) -> Callable[..., Any]:
    loose, run = node.attrs["loose"], kept.builtin(node.attrs["text"])
    operands, labels = node.attrs["body"].operands, node.attrs["labels"]
    if not loose and not labels:
        return run

    def call(*arrays: Any) -> None:
        given = list(arrays)
        for i in loose:
            given[i] = plain(given[i])
        if run(*given):
            for i, op, line in labels:
                try:
                    check_indices(np, given[i], operands[i].limit, "label")
                except RangeError as error:
                    error.op, error.line = op, line
                    raise

    return call


def _slices(node: Node) -> Sequence[tuple[Any, tuple[int, ...]]]:
    """Sums of columns, each of some of the rows, that are still to be added up."""
    body, size = node.attrs["body"], node.attrs["size"]
    slices = grid.launch(body, size).slices
    sums = grid.sums(body) if slices > 1 else []
    return [(node.outputs[y].dtype, (slices, body.cols)) for y in sums]


@fast("llvm", "Fused", "out", on="gpu", scratch=_slices)
def _fused_on_gpu(xp: Any, node: Node) -> Callable[..., Any]:
    """It allocates and copies nothing, and waits for nothing: a CUDA graph may hold it."""
    body, loose, text = node.attrs["body"], node.attrs["loose"], node.attrs["text"]
    how, sums, rooms = grid.launch(body, node.attrs["size"]), grid.sums(body), _slices(node)
    run = kept.on_gpu(xp.cuda, text)
    joins = [kept.on_gpu(xp.cuda, text, f"_join{y}") for y in sums] if rooms else []
    last, first = grid.join(body, how.slices), len(node.inputs)

    def call(*arrays: Any, room: Any = None) -> None:
        given = list(arrays)
        for i in loose:
            given[i] = xp.ascontiguousarray(given[i])
        made = [given[first + y] for y in sums]
        parts = room or [xp.empty(shape, dtype) for dtype, shape in rooms] or made
        run(how.grid, how.block, (*given, *parts, how.length))
        for join, part, whole in zip(joins, parts, made, strict=False):
            join(last.grid, last.block, (part, whole, whole, last.length))

    return call
