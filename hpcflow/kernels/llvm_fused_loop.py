"""Generated kernels of `Fused` nodes: several operations in one loop, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.errors import RangeError
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.ops.array.gather_kernels import check_indices


@fast("llvm", "Fused", "out", on="cpu", exact=True)
def _fused(xp: Any, node: KernelNode) -> Callable[..., Any]:
    loose, run = node.attrs["loose"], kernel_cache.builtin(node.attrs["text"])
    operands, labels = node.attrs["body"].operands, node.attrs["labels"]
    if not loose and not labels:
        return run

    def call(*arrays: Any) -> None:
        buffers = list(arrays)
        for i in loose:
            buffers[i] = as_contiguous(buffers[i])
        if run(*buffers):
            for i, op, line in labels:
                try:
                    check_indices(np, buffers[i], operands[i].limit, "label")
                except RangeError as error:
                    error.op, error.line = op, line
                    raise

    return call


def _slices(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    """The workspace of column sums: partial sums of slices of rows, still to be added up."""
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    body, size = node.attrs["body"], node.attrs["size"]
    slices = ptx_codegen.launch(body, size).slices
    sums = ptx_codegen.column_sums(body) if slices > 1 else []
    return [(node.outputs[y].dtype, (slices, body.cols)) for y in sums]


@fast("llvm", "Fused", "out", on="gpu", scratch=_slices)
def _fused_on_gpu(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """It does not synchronize; with `room` and contiguous inputs, it does not allocate.

    So a CUDA graph can capture it.
    """
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    body, loose, text = node.attrs["body"], node.attrs["loose"], node.attrs["text"]
    how, sums, rooms = (
        ptx_codegen.launch(body, node.attrs["size"]),
        ptx_codegen.column_sums(body),
        _slices(node),
    )
    run = kernel_cache.on_gpu(xp.cuda, text)
    join = kernel_cache.on_gpu(xp.cuda, text, "_join") if rooms else None
    last, first = ptx_codegen.join(body, how.slices), len(node.inputs)

    def call(*arrays: Any, room: Any = None) -> None:
        buffers = list(arrays)
        for i in loose:
            buffers[i] = xp.ascontiguousarray(buffers[i])
        totals = [buffers[first + y] for y in sums]
        parts = room or [xp.empty(shape, dtype) for dtype, shape in rooms] or totals
        run(how.grid, how.block, (*buffers, *parts, how.length))
        if join is not None:
            join(last.grid, last.block, (*parts, *totals, last.length))

    return call
