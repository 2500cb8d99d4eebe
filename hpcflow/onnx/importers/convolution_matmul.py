"""ONNX import of convolution, matrix products and Einsum."""

from __future__ import annotations

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.onnx.importers.window_attributes import window
from hpcflow.ops.array.array_ops import expand_dims, reshape, shape, squeeze, transpose
from hpcflow.ops.array.concat_split_ops import pad
from hpcflow.ops.linalg.einsum_ops import einsum
from hpcflow.ops.linalg.linalg_ops import matrix_determinant
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.nn import convolution_ops

FORMATS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _filters(node: OnnxNode, w: Tensor) -> tuple[Tensor, int, str]:
    """Filters with spatial axes first, the number of spatial axes, and the data format."""
    rank = node.rank(w) - 2
    if rank not in FORMATS:
        raise node.declined(f"it has {rank} spatial axes; 1, 2 and 3 are supported")
    return transpose(w, [*range(2, rank + 2), 1, 0]), rank, FORMATS[rank]


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """`y` plus a bias for each channel on axis 1."""
    if bias is None:
        return y
    return arithmetic_ops.add(y, reshape(bias, [-1] + [1] * (len(y.shape or ()) - 2)))


@imports("Conv")
def _conv(node: OnnxNode, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    filters, rank, data_format = _filters(node, w)
    attrs = window(node, x, node.static_shape(w)[2:])
    y = convolution_ops.convolve(
        x,
        filters,
        rank,
        attrs.strides,
        attrs.pads,
        data_format,
        attrs.dilations,
        node.attr("group", 1),
        None,
    )
    return with_bias(y, bias)


@imports("ConvTranspose")
def _conv_transpose(node: OnnxNode, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    filters, rank, data_format = _filters(node, w)
    sizes, kernel = node.static_shape(x)[2:], node.static_shape(w)[2:]
    strides = node.attr("strides", [1] * rank)
    dilations = node.attr("dilations", [1] * rank)
    output_padding = node.attr("output_padding", [0] * rank)
    output_shape = node.attr("output_shape")
    explicit_pads = node.attr("pads", [0] * 2 * rank)
    auto = node.attr("auto_pad", "NOTSET")
    pads, out, late = [], [], []
    for i in range(rank):
        full = (sizes[i] - 1) * strides[i] + output_padding[i] + (kernel[i] - 1) * dilations[i] + 1
        before, after = explicit_pads[i], explicit_pads[i + rank]
        if output_shape is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
            size = output_shape[i] if output_shape is not None else sizes[i] * strides[i]
            total = full - size
            before = max(total // 2 if auto == "SAME_UPPER" else total - total // 2, 0)
            after = total - before
        elif auto == "VALID":
            before = after = 0
        late.append((0, max(-after, 0)))  # outputs without inputs are 0, at the end
        pads.append((before, max(after, 0)))
        out.append(full - before - pads[-1][1])
    groups = node.attr("group", 1)
    channels = node.static_shape(w)[1] * groups
    batch = x.shape[0] if x.shape is not None else None
    y = convolution_ops.transposed(
        x,
        filters,
        [shape(x)[0] if batch is None else batch, channels, *out],
        rank,
        strides,
        pads,
        data_format,
        dilations,
        groups,
        None,
    )
    if any(after for _, after in late):
        y = pad(y, [(0, 0), (0, 0), *late])
    return with_bias(y, bias)


# -- matrix products


@imports("MatMul")
def _matmul(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    """Matrix product; vectors become a row (left) or column (right), removed from the result."""
    left, right = node.rank(a) == 1, node.rank(b) == 1
    y = matmul(expand_dims(a, 0) if left else a, expand_dims(b, 1) if right else b)
    if left:
        y = squeeze(y, -1 if right else -2)
        return squeeze(y, -1) if right else y
    return squeeze(y, -1) if right else y


@imports("Det")
def _det(node: OnnxNode, x: Tensor) -> Tensor:
    return matrix_determinant(x)


@imports("Einsum")
def _einsum(node: OnnxNode, *inputs: Tensor) -> Tensor:
    return einsum(node.attr("equation").replace(" ", ""), *inputs)


@imports("Gemm")
def _gemm(node: OnnxNode, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    y = matmul(a, b, bool(node.attr("transA", 0)), bool(node.attr("transB", 0)))
    y = _times(y, node.attr("alpha", 1.0))
    return y if c is None else arithmetic_ops.add(y, _times(c, node.attr("beta", 1.0)))


def _times(x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    return arithmetic_ops.multiply(x, factor if x.dtype.kind == "f" else int(factor))
