"""FLOPs and bytes of a node: one table of formulas by op type.

One addition, multiplication, comparison, root or exponential of an element counts as one operation.
Complex products are counted like real ones. The letters at the rows name the sources:

G  Golub and Van Loan, Matrix Computations, 4th edition: 1.1.15 (products), 3.2 and 3.3 (LU,
   triangular systems), 4.2 (Cholesky), 5.2 (QR), 8.3 and 8.6 (eigenvalues, singular values).
F  benchFFT's convention for a transform of n complex numbers: 5 n log2 n, of real ones half.
D  Direct convolution: a multiplication and an addition for each window element that is not
   padding, for any algorithm (Dumoulin and Visin, A guide to convolution arithmetic, 2016).
K  The formula in the comment of the op's own kernel, operation by operation.

Bytes are the minimum that must move: each input is read once and each output written once. For
large tables only the used rows count. An update in place counts as a read and a write. Work is None
where sizes are known only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    JOIN,
    JOINED,
    NUMBER,
    OF_ROWS,
    ONE,
    PLACE,
    ROW,
)
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec, size_of
from hpcflow.plan.ir.program import Node, Part


class Work(NamedTuple):
    """FLOPs, and bytes that are read or written."""

    flops: int
    nbytes: int


Count = Callable[[Node, Sequence[Spec]], float]

# No FLOPs and no bytes: aliases, handles, order, messages (counted as traffic).
NOTHING = frozenset(
    "AroundAxis Branch BranchAcross CheckSizes Const DotAxes EnsureShape ExpandDims Feed "
    "FromParcel Identity JoinedShapes Loop LoopAcross NoOp PlaceholderWithDefault Rank "
    "ReadVariable Recv ReducedAxes Reshape Send Shape Size Squeeze StopGradient Variable".split()
)
# Bytes, but no FLOPs.
MOVES = frozenset(
    "Assign BroadcastTo Cast Concat Copy DynamicPartition DynamicStitch Fill Gather GatherNd "
    "JoinRows OneHot OnesLike Pack Pad Parcel PieceRows Range ReadRows Reverse ReverseSequence "
    "ReverseTold Roll ScatterNdUpdate ScatterUpdate Select Slice SliceGrad SparseToDense Split "
    "StridedSlice StridedSliceGrad TensorScatterUpdate Tile Transpose TransposeTold Unpack "
    "Where ZerosLike".split()
)
# Reads only as many bytes of the first input as it outputs.
PICKS = frozenset("Gather GatherNd ReadRows Slice StridedSlice".split())


def work(node: Node, inputs: Sequence[Spec]) -> Work | None:
    """Return the work of `node` on `inputs`; a handle has the spec of its variable.

    None if a size is unknown, or if the table does not cover this form of the op.
    """
    if node.type in NOTHING:
        return Work(0, 0)
    if not all(spec.known for spec in (*inputs, *node.specs) if spec.dtype not in OPAQUE):
        return None
    try:
        return Work(round(_flops(node, inputs)), _moved(node, inputs))
    except (IndexError, KeyError):
        return None  # a form of the op that the table does not cover


def given(node: Node, part: Part) -> list[Spec]:
    """Return the specs of the inputs of a node; for a handle the spec of its variable."""
    specs = []
    for ref in node.inputs:
        source = part.nodes[ref.node]
        if source.type == "Variable":
            specs.append(Spec(source.attrs["dtype"], tuple(source.attrs["shape"])))
        else:
            specs.append(source.specs[ref.index])
    return specs


class Product(NamedTuple):
    """Matrix products, each of [rows, summed] by [summed, columns]."""

    products: int
    rows: int
    summed: int
    columns: int


def product(node: Node, inputs: Sequence[Spec]) -> Product | None:
    """Return the size of a matrix product, or of a convolution as windows times filters.

    None for other nodes and where sizes are known only at run time.
    """
    if not all(spec.known for spec in (*inputs, *node.specs)):
        return None
    if FLOPS.get(node.type) is _product:
        *lead, rows, columns = _product_of(node)
        return Product(math.prod(lead), rows, _summed(node, inputs), columns)
    if node.type not in FILTERS:
        return None
    filters, y = ((*inputs, *node.specs)[i].shape for i in FILTERS[node.type])
    assert filters is not None and y is not None
    groups = node.attrs["groups"] or 1
    window, pixels, each = size_of(filters[:-1]), size_of(y[:-1]), (filters[-1] or 0) // groups
    if node.attrs["first"]:
        pixels = size_of((y[0], *y[2:]))
    if node.type == "ConvInputGrad":
        return Product(groups, pixels, each, window)
    if node.type == "ConvFilterGrad":
        return Product(groups, window, pixels, each)
    return Product(groups, pixels, window, each)


def _flops(node: Node, inputs: Sequence[Spec]) -> float:
    if node.type in MOVES or any(spec.dtype.kind in "OSU" for spec in node.specs):
        return 0
    if node.type in FLOPS:
        return FLOPS[node.type](node, inputs)
    if node.row.by_rows and node.row.writes:
        return _size(inputs[2])
    # one per element of the largest value: the output of elementwise ops, the input of reductions
    sizes = [_size(spec) for spec in (*inputs, *node.specs) if spec.dtype not in OPAQUE]
    return max(sizes, default=0)


def _moved(node: Node, inputs: Sequence[Spec]) -> int:
    if node.row.by_rows and node.row.writes:
        indices, updates = inputs[1], inputs[2]  # rows are read, changed and written
        old = 0 if node.type.endswith("Update") else updates.nbytes
        return indices.nbytes + old + 2 * updates.nbytes
    if node.type == "StridedMatMul":  # reads and writes parts of arrays
        return sum(size_of(sizes) for _, sizes, _ in node.attrs["lays"]) * inputs[0].dtype.itemsize
    outputs = sum(spec.nbytes for spec in node.specs)
    if node.type in PICKS:
        return 2 * node.specs[0].nbytes + sum(spec.nbytes for spec in inputs[1:])
    written = sum(inputs[i].nbytes for i in node.row.writes)
    read = sum(spec.nbytes for spec in inputs)
    return outputs + written + (read - written if node.type == "Assign" else read)


# -- FLOP counts of the table


def _size(spec: Spec) -> int:
    return size_of(spec.shape)


def _of_output(factor: float) -> Count:
    return lambda node, inputs: factor * _size(node.specs[0])


def _of_input(factor: float, index: int = 0) -> Count:
    return lambda node, inputs: factor * _size(inputs[index])


def _product(node: Node, inputs: Sequence[Spec]) -> float:
    return 2 * size_of(_product_of(node)) * _summed(node, inputs)


def _product_of(node: Node) -> tuple[Any, ...]:
    """Return the output shape of a matrix product."""
    if node.type == "StridedMatMul":
        return tuple(node.attrs["lays"][2][1])
    assert node.specs[0].shape is not None
    return node.specs[0].shape


def _summed(node: Node, inputs: Sequence[Spec]) -> int:
    if node.type == "StridedMatMul":
        return int(node.attrs["lays"][0][1][-1])
    assert inputs[0].shape is not None
    return inputs[0].shape[-2 if node.attrs.get("transpose_a") else -1] or 0


def _sparse_product(node: Node, inputs: Sequence[Spec]) -> float:
    _, values, _, dense = inputs
    assert dense.shape is not None
    return 2 * _size(values) * (dense.shape[-1] or 0)


def _convolution(x: int, filters: int, y: int) -> Count:
    """Count a convolution; `x`, `filters` and `y` index inputs followed by outputs.

    The forward op and both gradients have the same count.
    """

    def count(node: Node, inputs: Sequence[Spec]) -> float:
        values, attrs = (*inputs, *node.specs), node.attrs
        taken, given, kernel = (values[i].shape for i in (x, y, filters))
        assert taken is not None and given is not None and kernel is not None
        space = slice(2, None) if attrs["first"] else slice(1, -1)
        products = (given[0] or 0) * size_of(kernel[-2:])
        for axis, sizes in enumerate(zip(taken[space], kernel, given[space], strict=False)):
            n, k, outs = (size or 0 for size in sizes)
            stride, dilation = attrs["strides"][axis], attrs["dilations"][axis]
            if isinstance(attrs["padding"], str):
                reach = (outs - 1) * stride + (k - 1) * dilation + 1
                before = max(reach - n, 0) // 2 if attrs["padding"] == "SAME" else 0
            else:
                before = attrs["padding"][axis][0]
            products *= sum(_inside(n, outs, stride, before - t * dilation) for t in range(k))
        return 2 * products

    return count


def _inside(n: int, outs: int, stride: int, before: int) -> int:
    """Return how many of `outs` windows have an element, not padding, at one filter tap."""
    first, last = -(-before // stride), (n - 1 + before) // stride
    return max(0, min(last, outs - 1) - max(first, 0) + 1)


def _windows(pooled: int) -> Count:
    """Count one operation per window element; the `pooled` value has one element per window."""

    def count(node: Node, inputs: Sequence[Spec]) -> float:
        return math.prod(node.attrs["window"]) * _size((*inputs, *node.specs)[pooled])

    return count


def _einsum(node: Node, inputs: Sequence[Spec]) -> float:
    terms = node.attrs["equation"].partition("->")[0].split(",")
    if "..." in node.attrs["equation"] or len(terms) > 2:
        raise KeyError("einsum")
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, inputs, strict=True):
        assert spec.shape is not None
        for label, size in zip(term, spec.shape, strict=True):
            sizes[label] = max(sizes.get(label, 0), size or 0)
    every = math.prod(sizes.values())
    return len(terms) * every if every > _size(node.specs[0]) else (len(terms) - 1) * every


def _transform(each: float, whole: int) -> Count:
    """Count an FFT over the last `rank` axes of `whole`: 0 for input 0, -1 for output -1."""

    def count(node: Node, inputs: Sequence[Spec]) -> float:
        spec = (*inputs, *node.specs)[whole]
        assert spec.shape is not None
        points = size_of(spec.shape[-node.attrs["rank"] :])
        return each * _size(spec) * math.log2(max(points, 2))

    return count


def _matrix(count: Callable[[int, int, int], float], index: int = 0) -> Count:
    """Sum `count(m, n, k)` over the matrices [m, n] of input `index`.

    k is the number of columns of the last input.
    """

    def every(node: Node, inputs: Sequence[Spec]) -> float:
        shape, last = inputs[index].shape, inputs[-1].shape
        assert shape is not None and last is not None
        m, n, columns = shape[-2] or 0, shape[-1] or 0, last[-1] if last else 0
        return size_of(shape[:-2]) * count(m, n, columns or 0)

    return every


def _of_body(node: Node, inputs: Sequence[Spec]) -> float:
    """Count the operations of a `Fused` node; a row or column sum is one addition per element."""
    body, size = node.attrs["body"], node.attrs["size"]
    sizes = {FULL: size, ROW: size, COLUMN: size // (body.cols or size), ONE: 1, JOINED: size}
    values, count = [*inputs], 0.0
    for step in body.steps:
        summed = step.type in (*OF_ROWS, COLUMN_SUM)
        specs = [values[i] for i in step.inputs]
        dtype = specs[0].dtype if specs else np.dtype(np.float32)
        values.append(Spec(dtype, (sizes[step.way],)))
        made = Node(node.name, step.type, attrs=dict(step.attrs), specs=(values[-1],))
        if step.type not in (JOIN, NUMBER, PLACE):
            count += size if summed else _flops(made, specs)
    return count


def _singular(node: Node, inputs: Sequence[Spec]) -> float:
    def count(m: int, n: int, _: int) -> float:
        m, n = max(m, n), min(m, n)
        vectors = node.attrs["compute_uv"]
        return 14 * m * n**2 + 8 * n**3 if vectors else 4 * m * n**2 - 4 / 3 * n**3

    return _matrix(count)(node, inputs)


def _eigen(node: Node, inputs: Sequence[Spec]) -> float:
    return _matrix(lambda m, n, _: (9 if node.attrs["compute_v"] else 4 / 3) * n**3)(node, inputs)


def _momentum(node: Node, inputs: Sequence[Spec]) -> float:
    return (6 if node.attrs.get("use_nesterov") else 4) * _size(inputs[0])


FLOPS: dict[str, Count] = {
    "Fused": _of_body,
    "MatMul": _product,  # G: 2 m n k
    "SparseTensorDenseMatMul": _sparse_product,  # G: 2 for each entry and column
    "Einsum": _einsum,  # G: a multiplication and an addition per combination of labels
    "MatMulBias": _product,  # the bias is negligible
    "PackedMatMul": _product,
    "StridedMatMul": _product,
    "ConvBias": _convolution(0, 1, -1),
    "Conv": _convolution(0, 1, -1),  # D, same count for forward and gradients
    "ConvInputGrad": _convolution(-1, 1, 0),
    "ConvFilterGrad": _convolution(0, -1, 1),
    "MaxPool": _windows(-1),  # D
    "MaxPoolReluGrad": _windows(1),
    "MaxPoolWithArgmax": _windows(-2),
    "AvgPool": _windows(-1),
    "MaxPoolGrad": _windows(1),
    "MaxPoolGradGrad": _windows(1),
    "AvgPoolGrad": _windows(0),
    "Softmax": _of_output(5),  # K: maximum, difference, exponential, sum, quotient
    "LogSoftmax": _of_output(6),  # K: the difference twice, and that of the logarithm
    "SoftmaxGrad": _of_output(4),  # K: y (g - sum(g y))
    "LogSoftmaxGrad": _of_output(4),  # K: g - exp(y) sum(g)
    "SoftmaxCrossEntropy": _of_input(9),  # K: a softmax, the sum of labels, loss 2, gradient 1
    "SparseSoftmaxCrossEntropy": _of_input(5),  # K: a softmax; the rest is per row
    "LogSumExp": _of_input(4),  # K: maximum, difference, exponential, sum
    "L2Loss": _of_input(2),  # K: squares and their sum
    "Normalize": _of_output(5),  # K: sum, difference, square, sum, scale
    "NormalizeGrad": _of_output(7),  # K: r (g - mean(g) - y mean(g y))
    "AddN": lambda node, inputs: (len(inputs) - 1) * _size(node.specs[0]),  # K
    "GatherGrad": _of_input(1),  # K: an addition per element of a row
    "SigmoidGrad": _of_output(3),  # K: g y (1 - y)
    "TanhGrad": _of_output(3),  # K: g (1 - y y)
    "ApplyGradientDescent": _of_input(2),  # K: var -= lr g
    "ApplyMomentum": _momentum,  # K: accum = accum momentum + g; var -= lr accum
    "ApplyAdam": _of_input(12),  # K: 3 for m, 4 for v, 5 for var
    "Fft": _transform(5, 0),  # F
    "Rfft": _transform(2.5, 0),
    "Irfft": _transform(2.5, -1),
    "Cholesky": _matrix(lambda m, n, _: n**3 / 3),  # G
    "MatrixInverse": _matrix(lambda m, n, _: 2 * n**3),
    "MatrixDeterminant": _matrix(lambda m, n, _: 2 / 3 * n**3),
    "LogMatrixDeterminant": _matrix(lambda m, n, _: 2 / 3 * n**3),
    "MatrixSolve": _matrix(lambda m, n, k: 2 / 3 * n**3 + 2 * n**2 * k),
    "MatrixTriangularSolve": _matrix(lambda m, n, k: n**2 * k),
    "Qr": _matrix(lambda m, n, _: 4 * m * min(m, n) ** 2 - 4 / 3 * min(m, n) ** 3),
    "Svd": _singular,
    "SelfAdjointEig": _eigen,
}

# Indices of filters and results of convolutions in inputs followed by outputs.
FILTERS = {"Conv": (1, -1), "ConvBias": (1, -1), "ConvInputGrad": (1, 0), "ConvFilterGrad": (-1, 1)}
