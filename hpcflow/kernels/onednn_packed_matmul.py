"""oneDNN matrix products with packed weights: the weights are in the layout the library prefers.

Where oneDNN does not serve, packing copies the weights unchanged. Both kernels refuse under the
same conditions, so that the product gets the layout that the packing wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hpcflow.errors import KernelError
from hpcflow.graph.dtypes import as_dtype
from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import KernelNode, fast, kernel
from hpcflow.kernels.onednn_convolution import unsupported_reason
from hpcflow.kernels.onednn_library import (
    NAME,
    OnednnHandle,
    PrimitiveProgram,
    PrimitiveStep,
    ProgramMemory,
)

Sizes = tuple[int, ...]


@kernel("Packed", "out", moves=True)
def _packed(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda w, out: xp.copyto(out, w)


@kernel("PackedMatMul", "out")
def _product(xp: Any, node: KernelNode) -> Callable[..., Any]:
    matmul = xp.matmul
    if node.attrs["transpose_b"]:
        return lambda a, w, out: matmul(a, w.T, out)
    return matmul


def _primitive(
    dtype: str, rows: int, w: Sizes, turned: bool
) -> tuple[OnednnHandle, OnednnHandle, OnednnHandle, OnednnHandle]:
    """The primitive descriptor of `rows` rows times w or w', and the layouts of rows, w, result."""
    sizes, strides = (w[::-1], (1, w[1])) if turned else (w, (w[1], 1))
    src, dst = (onednn_library.strided((rows, n), (n, 1), dtype) for n in sizes)
    weights = onednn_library.strided(sizes, strides, dtype)
    primitive = onednn_library.create(
        "primitive_desc", "dnnl_matmul_primitive_desc_create", onednn_library.engine(),
        src, onednn_library.free_layout(sizes, dtype), None, dst, onednn_library.attributes(),
    )  # fmt: skip
    return primitive, src, weights, dst


def pack(dtype: str, rows: int, w: Sizes, turned: bool) -> PrimitiveProgram:
    """The program of w and packed w."""
    primitive, _, weights, _ = _primitive(dtype, rows, w, turned)
    layout = onednn_library.layout_of(primitive, onednn_library.OF_WEIGHTS)
    places = [ProgramMemory(weights), ProgramMemory(layout)]
    memories = {onednn_library.SRC: places[0], onednn_library.DST: places[1]}
    return PrimitiveProgram(
        places, [PrimitiveStep(onednn_library.reorder(weights, layout), memories)]
    )


def product(dtype: str, rows: int, w: Sizes, turned: bool) -> PrimitiveProgram:
    """The program of rows, packed w, and their product."""
    primitive, src, _, dst = _primitive(dtype, rows, w, turned)
    places = [
        ProgramMemory(src),
        ProgramMemory(onednn_library.layout_of(primitive, onednn_library.OF_WEIGHTS)),
        ProgramMemory(dst),
    ]
    names = (onednn_library.SRC, onednn_library.WEIGHTS, onednn_library.DST)
    return PrimitiveProgram(
        places, [PrimitiveStep(primitive, dict(zip(names, places, strict=True)))]
    )


def _key(node: KernelNode) -> tuple[str, int, Sizes, bool]:
    w = node.inputs[-1]  # the weights, packed or not
    return str(w.dtype), node.attrs["rows"], tuple(w.shape), bool(node.attrs["transpose_b"])


def _refuses(node: KernelNode) -> str:
    if why := unsupported_reason(node.inputs, 0, halves=True):
        return why
    return _unsupported_reason(*_key(node))


@functools.lru_cache(maxsize=1024)
def _unsupported_reason(dtype: str, rows: int, w: Sizes, turned: bool) -> str:
    """Why weights of this shape are not packed for products of so many rows; "" if they are."""
    if 0 in w or rows == 0:
        return "it is empty"
    try:
        primitive = _primitive(dtype, rows, w, turned)[0]
    except KernelError as error:
        return str(error)
    if onednn_library.implementation(primitive).startswith("ref"):
        return "oneDNN has no fast implementation for it"
    if (
        onednn_library.nbytes(onednn_library.layout_of(primitive, onednn_library.OF_WEIGHTS))
        != as_dtype(dtype).itemsize * w[0] * w[1]
    ):
        return "packed it would take more room"
    return ""


def _row(type: str, program: Callable[..., PrimitiveProgram]) -> None:
    @fast(
        NAME, type, "out", on="cpu", refuses=_refuses,
        scratch=lambda node: onednn_library.scratch(program, *_key(node)),
    )  # fmt: skip
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        return onednn_library.kernel(program, *_key(node))


_row("Packed", pack)
_row("PackedMatMul", product)
