"""Strided matrix products: operands and result have any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.graph.dtypes import as_dtype
from hpcflow.kernels import onednn_library
from hpcflow.kernels.cuda_graph_restrictions import CALLS_CUBLAS
from hpcflow.kernels.kernel_registry import KernelNode, fast, kernel
from hpcflow.kernels.onednn_convolution import no_fast_one, unsupported_reason
from hpcflow.kernels.onednn_library import (
    NAME,
    OnednnHandle,
    PrimitiveProgram,
    PrimitiveStep,
    ProgramMemory,
    element_type,
)
from hpcflow.kernels.onednn_matmul import slow

Lay = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, sizes, strides, in elements


def view(xp: Any, x: Any, lay: Lay) -> Any:
    """The view of a C-contiguous array with this layout."""
    start, sizes, strides = lay
    steps = [step * x.itemsize for step in strides]
    return xp.lib.stride_tricks.as_strided(x.reshape(-1)[start:], sizes, steps)


def _begin(xp: Any, before: Any, out: Any) -> None:
    """Copy what earlier products have written of the result, if it is in other memory."""
    if not xp.may_share_memory(before, out):
        xp.copyto(out, before)


@kernel("StridedMatMul", "out", uncaptured=CALLS_CUBLAS)
def _product(xp: Any, node: KernelNode) -> Callable[..., Any]:
    lays = node.attrs["lays"]

    def run(a: Any, b: Any, *rest: Any) -> None:
        for before in rest[:-1]:
            _begin(xp, before, rest[-1])
        arrays = (xp.ascontiguousarray(a), xp.ascontiguousarray(b), rest[-1])
        xp.matmul(*(view(xp, x, lay) for x, lay in zip(arrays, lays, strict=True)))

    return run


def _primitive(*layouts: OnednnHandle) -> OnednnHandle:
    return onednn_library.create(
        "primitive_desc", "dnnl_matmul_primitive_desc_create", onednn_library.engine(),
        *layouts[:2], None, layouts[2], onednn_library.attributes(),
    )  # fmt: skip


def _layouts(dtype: str, *lays: Lay) -> list[OnednnHandle]:
    return [onednn_library.strided(sizes, strides, dtype) for _, sizes, strides in lays]


def program(dtype: str, a: Lay, b: Lay, c: Lay) -> PrimitiveProgram:
    """The program of the arrays that contain a, b and c; c = a b."""
    layouts = _layouts(dtype, a, b, c)
    places = [ProgramMemory(layout) for layout in layouts]
    for place, (start, *_) in zip(places, (a, b, c), strict=True):
        place.offset = as_dtype(dtype).itemsize * start
    names = (onednn_library.SRC, onednn_library.WEIGHTS, onednn_library.DST)
    return PrimitiveProgram(
        places, [PrimitiveStep(_primitive(*layouts), dict(zip(names, places, strict=True)))]
    )


def _refuses(node: KernelNode) -> str:
    """Why oneDNN does not serve a strided matrix product; "" if it does."""
    sizes = [sizes for _, sizes, _ in node.attrs["lays"]]
    specs = (*node.inputs[:2], node.outputs[0])
    why = unsupported_reason(specs, 0, halves=True) or slow(
        element_type(node), False, False, *sizes
    )
    return why or no_fast_one(lambda: _primitive(*_layouts(*_key(node))))


def _key(node: KernelNode) -> tuple[Any, ...]:
    return (element_type(node), *node.attrs["lays"])


@fast(
    NAME, "StridedMatMul", "out", on="cpu", refuses=_refuses,
    scratch=lambda node: onednn_library.scratch(program, *_key(node)),
)  # fmt: skip
def _matmul(xp: Any, node: KernelNode) -> Callable[..., Any]:
    multiply = onednn_library.kernel(program, *_key(node))

    def run(a: Any, b: Any, *rest: Any, room: Any = ()) -> None:
        for before in rest[:-1]:
            _begin(xp, before, rest[-1])
        multiply(as_contiguous(a), as_contiguous(b), rest[-1], room=room)

    return run
