"""oneDNN matrix products, where they were measured to be faster than NumPy's BLAS.

That holds for few rows or a short inner dimension; of two matrices also for many. Without
transposes, a product is an inner product primitive of the library, which reads large weights faster
than its matmul primitive. Many rows of few columns use the matmul primitive, which applies the relu
while a tile of the result is in registers. A transposed tall matrix times another is a weights
gradient. On a rank with several threads oneDNN computes all large products, so that there is one
thread pool.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import KernelNode, fast, find_plain_kernel
from hpcflow.kernels.onednn_convolution import Sizes, sizes_known, unsupported_reason
from hpcflow.kernels.onednn_library import (
    NAME,
    OnednnHandle,
    PrimitiveProgram,
    PrimitiveStep,
    ProgramCache,
    ProgramMemory,
    element_type,
)

INFERENCE = 96
COLUMNS_OF_MANY, MANY_MATRICES = 8, 16  # least columns where NumPy calls BLAS for each matrix
SMALL_MATRIX_SIZE = 256  # rows, columns, or inner dimension: with more NumPy may be as fast
MANY_ROWS = 64  # with fewer, or more than 256 columns, the inner product primitive is faster
COLUMNS, WORK = 16, 1 << 20  # least columns, and multiplications in all: below NumPy is faster


def product(
    dtype: str, turn_a: bool, turn_b: bool, a: Sizes, b: Sizes, c: Sizes
) -> PrimitiveProgram:
    """The program of a, b and c = a b; a matrix with `turn` is stored transposed."""
    if len(a) == 2 and not turn_a and not turn_b:
        return as_they_lie(dtype, a, b, c)
    if len(a) == 2 and _is_gradient(turn_a, turn_b, *c):
        return weights_gradient(dtype, a, b, c)
    return _product(_matrices(dtype, a, turn_a), _matrices(dtype, b, turn_b), _matrices(dtype, c))


def _matrices(dtype: str, shape: Sizes, turned: bool = False) -> OnednnHandle:
    """The descriptor of matrices of this shape in memory, transposed if `turned`."""
    sizes, strides = list(shape), list(onednn_library.packed(shape))
    if turned:
        for values in (sizes, strides):
            values[-2:] = values[:-3:-1]
    return onednn_library.strided(sizes, strides, dtype)


def as_they_lie(
    dtype: str, a: Sizes, b: Sizes, c: Sizes, bias: bool = False, relu: bool = False
) -> PrimitiveProgram:
    """The program of a, b, the bias (a number a column) if any, and c = relu(a b + bias)."""
    (rows, columns), (x, w, y) = c, (_matrices(dtype, shape) for shape in (a, b, c))
    if rows >= MANY_ROWS and columns <= SMALL_MATRIX_SIZE:
        each = onednn_library.strided((1, columns), (columns, 1), dtype) if bias else None
        return _product(x, w, y, each, relu)
    w = onednn_library.strided(b[::-1], (1, columns), dtype)
    each = onednn_library.strided((columns,), (1,), dtype) if bias else None
    primitive = onednn_library.create(
        "primitive_desc", "dnnl_inner_product_forward_primitive_desc_create",
        onednn_library.engine(),
        INFERENCE, x, w, each, y, onednn_library.attributes(relu),
    )  # fmt: skip
    return _program(primitive, x, w, y, each, relu)


def _product(
    x: OnednnHandle, w: OnednnHandle, y: OnednnHandle, bias: Any = None, relu: bool = False
) -> PrimitiveProgram:
    """The program of the matmul primitive."""
    primitive = onednn_library.create(
        "primitive_desc", "dnnl_matmul_primitive_desc_create",
        onednn_library.engine(),
        x, w, bias, y, onednn_library.attributes(relu),
    )  # fmt: skip
    return _program(primitive, x, w, y, bias, relu)


def _program(
    primitive: OnednnHandle,
    x: OnednnHandle,
    w: OnednnHandle,
    y: OnednnHandle,
    bias: Any,
    relu: bool,
) -> PrimitiveProgram:
    """The program of x, w, the `bias` if there is one, and y."""
    names = (
        onednn_library.SRC,
        onednn_library.WEIGHTS,
        *([onednn_library.BIAS] if bias else []),
        onednn_library.DST,
    )
    args = [ProgramMemory(layout) for layout in (x, w, *([bias] if bias else []), y)]
    memories = dict(zip(names, args, strict=True))
    if relu:
        memories[onednn_library.POST_OP | onednn_library.WEIGHTS] = onednn_library.zero_slope(2)
    return PrimitiveProgram(args, [PrimitiveStep(primitive, memories)])


def _is_gradient(turn_a: bool, turn_b: bool, rows: int, columns: int) -> bool:
    """Whether a product is computed as the gradient of weights [rows, columns]."""
    return turn_a and not turn_b and rows <= 2 * columns


def weights_gradient(dtype: str, a: Sizes, b: Sizes, c: Sizes) -> PrimitiveProgram:
    """The program of a, b and c = a' b, as the weights gradient of an inner product from a to b."""
    x, y = (_matrices(dtype, shape) for shape in (a, b))
    w = onednn_library.strided(c[::-1], (1, c[1]), dtype)
    forward = onednn_library.create(
        "primitive_desc", "dnnl_inner_product_forward_primitive_desc_create",
        onednn_library.engine(),
        INFERENCE, x, w, None, y, onednn_library.attributes(),
    )  # fmt: skip
    primitive = onednn_library.create(
        "primitive_desc", "dnnl_inner_product_backward_weights_primitive_desc_create",
        onednn_library.engine(), x, w, None, y, forward, onednn_library.attributes(),
    )  # fmt: skip
    args = [ProgramMemory(x), ProgramMemory(y), ProgramMemory(w)]
    names = (onednn_library.SRC, onednn_library.DIFF_DST, onednn_library.DIFF_WEIGHTS)
    return PrimitiveProgram(args, [PrimitiveStep(primitive, dict(zip(names, args, strict=True)))])


def refuses(node: KernelNode) -> str:
    """Why oneDNN does not serve a product of inputs 0 and 1; "" if it does."""
    a, b, c = *node.inputs[:2], node.outputs[0]
    if why := unsupported_reason((*node.inputs, c), 0, halves=True):
        return why
    if not sizes_known((a, b, c)):
        return _refuses_of_the_step(node)
    return slow(element_type(node), *_turns(node), a.shape, b.shape, c.shape)


def _refuses_of_the_step(node: KernelNode) -> str:
    """Why a product whose sizes only the step knows is NumPy's.

    Beside oneDNN's pool of several threads BLAS has one thread.
    """
    ranks = {None if s.shape is None else len(s.shape) for s in node.inputs[:2]}
    if node.type != "MatMul" or ranks != {2} or element_type(node) != onednn_library.FLOAT:
        return "its sizes are known only in the step"
    return "" if onednn_library.several() else "NumPy is as fast for one of unknown sizes"


def slow(dtype: str, turn_a: bool, turn_b: bool, a: Sizes, b: Sizes, c: Sizes) -> str:
    """Why a product of these sizes is not faster than NumPy's; "" if it is."""
    if a[:-2] != b[:-2]:
        return "its matrices are broadcast"
    *lead, rows, columns = c
    summed = a[-2] if turn_a else a[-1]
    if len(lead) > onednn_library.MAX_DIMS - 2:
        return "it has too many axes"
    count = math.prod(lead)
    work = count * rows * columns * summed
    least = COLUMNS_OF_MANY if count >= MANY_MATRICES else COLUMNS
    if min(rows, columns, summed) == 1 or columns < least or work < WORK:
        return "NumPy is as fast for one so small"
    if dtype != onednn_library.FLOAT or onednn_library.several():
        return ""
    if min(rows, columns, summed) <= SMALL_MATRIX_SIZE:
        return ""
    two = not lead and (not turn_a or _is_gradient(turn_a, turn_b, rows, columns))
    return "" if two else "NumPy is as fast for one so large"


def _turns(node: KernelNode) -> tuple[bool, bool]:
    return node.attrs["transpose_a"], node.attrs["transpose_b"]


def _shapes(node: KernelNode) -> list[Sizes]:
    return [tuple(s.shape) for s in (*node.inputs, node.outputs[0])]


def _scratch(node: KernelNode) -> Any:
    if not sizes_known((*node.inputs[:2], node.outputs[0])):
        return []  # the workspace is the thread's
    return onednn_library.scratch(product, element_type(node), *_turns(node), *_shapes(node))


@fast(NAME, "MatMul", "out", on="cpu", refuses=refuses, scratch=_scratch)
def _matmul(xp: Any, node: KernelNode) -> Callable[..., Any]:
    if not sizes_known((*node.inputs[:2], node.outputs[0])):
        return _of_the_step(node, find_plain_kernel("MatMul", "cpu").make(xp, node))
    return onednn_library.kernel(product, element_type(node), *_turns(node), *_shapes(node))


def _of_the_step(node: KernelNode, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The product of matrices whose sizes only the step knows; small ones are NumPy's."""
    turns = _turns(node)
    programs = ProgramCache(functools.partial(product, onednn_library.FLOAT, *turns))

    def run(a: Any, b: Any, out: Any) -> None:
        shapes = a.shape, b.shape, out.shape
        together = a.flags.c_contiguous and b.flags.c_contiguous and out.flags.c_contiguous
        if not together or slow(onednn_library.FLOAT, *turns, *shapes):
            plain(a, b, out)
        else:
            programs.run(shapes, a, b, out)

    return run


def _refuses_bias(node: KernelNode) -> str:
    turned = node.attrs["transpose_a"] or node.attrs["transpose_b"]
    if turned or len(node.inputs[0].shape or ()) != 2:
        return "it is no product of two matrices as they lie"
    return refuses(node)


BIASED = {relu: functools.partial(as_they_lie, bias=True, relu=relu) for relu in (False, True)}


def _of_biased(node: KernelNode) -> Any:
    a, b, _, c = _shapes(node)
    return onednn_library.scratch(BIASED[node.attrs["relu"]], element_type(node), a, b, c)


@fast(NAME, "MatMulBias", "out", on="cpu", refuses=_refuses_bias, scratch=_of_biased)
def _matmul_bias(xp: Any, node: KernelNode) -> Callable[..., Any]:
    a, b, _, c = _shapes(node)
    return onednn_library.kernel(BIASED[node.attrs["relu"]], element_type(node), a, b, c)
