"""FLOP counts: formulas that rows of the op registry give for their ops.

One addition, multiplication, comparison, root or exponential of an element counts as one operation.
Complex products are counted like real ones. The letters at the formulas name the sources:

G  Golub and Van Loan, Matrix Computations, 4th edition: 1.1.15 (products), 3.2 and 3.3 (LU,
   triangular systems), 4.2 (Cholesky), 5.2 (QR), 8.3 and 8.6 (eigenvalues, singular values).
F  benchFFT's convention for a transform of n complex numbers: 5 n log2 n, of real ones half.
D  Direct convolution: a multiplication and an addition for each window element that is not
   padding, for any algorithm (Dumoulin and Visin, A guide to convolution arithmetic, 2016).
K  The formula of the op's own kernel, operation by operation:
   Softmax 5: maximum, difference, exponential, sum, quotient. LogSoftmax 6: the difference twice,
   and that of the logarithm. SoftmaxGrad 4: y (g - sum(g y)). LogSoftmaxGrad 4: g - exp(y) sum(g).
   SoftmaxCrossEntropy 9: a softmax, the sum of labels, loss 2, gradient 1; sparse 5: a softmax, the
   rest is per row. LogSumExp 4. L2Loss 2: squares and their sum. Normalize 5: sum, difference,
   square, sum, scale. NormalizeGrad 7: r (g - mean(g) - y mean(g y)). SigmoidGrad 3: g y (1 - y).
   TanhGrad 3: g (1 - y y). GatherGrad 1: an addition per element of a row.
   ApplyGradientDescent 2: var -= lr g. ApplyAdam 12: 3 for m, 4 for v, 5 for var.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hpcflow.graph.op_registry import CostNode, Count, MatmulSize
from hpcflow.graph.static_shape import Spec, size_of


def elements(spec: Spec) -> int:
    """Return the number of elements of a value."""
    return size_of(spec.shape)


def per_output(factor: float) -> Count:
    """Count `factor` operations per element of the first output."""
    return lambda node, inputs: factor * elements(node.specs[0])


def per_input(factor: float, index: int = 0) -> Count:
    """Count `factor` operations per element of an input."""
    return lambda node, inputs: factor * elements(inputs[index])


def matmul(node: CostNode, inputs: Sequence[Spec]) -> float:
    """G: 2 m n k."""
    return 2 * elements(node.specs[0]) * _summed(node, inputs)


def _summed(node: CostNode, inputs: Sequence[Spec]) -> int:
    assert inputs[0].shape is not None
    return inputs[0].shape[-2 if node.attrs.get("transpose_a") else -1] or 0


def strided_matmul(node: CostNode, inputs: Sequence[Spec]) -> float:
    """Count a product of matrices that lie by `lays` in the operands and in the result."""
    (_, left, _), _, (_, output_sizes, _) = node.attrs["lays"]
    return 2 * size_of(output_sizes) * int(left[-1])


def strided_bytes(node: CostNode, inputs: Sequence[Spec]) -> float:
    """Count the bytes of a strided product, which reads and writes parts of arrays."""
    return sum(size_of(sizes) for _, sizes, _ in node.attrs["lays"]) * inputs[0].dtype.itemsize


def sparse_matmul(node: CostNode, inputs: Sequence[Spec]) -> float:
    """G: 2 for each entry and column."""
    _, values, _, dense = inputs
    assert dense.shape is not None
    return 2 * elements(values) * (dense.shape[-1] or 0)


def convolution(x: int, filters: int, y: int) -> Count:
    """Count a convolution; `x`, `filters` and `y` index inputs followed by outputs.

    The forward op and both gradients have the same count.
    """

    def count(node: CostNode, inputs: Sequence[Spec]) -> float:
        values, attrs = (*inputs, *node.specs), node.attrs
        x_shape, y_shape, kernel = (values[i].shape for i in (x, y, filters))
        assert x_shape is not None and y_shape is not None and kernel is not None
        space = slice(2, None) if attrs["first"] else slice(1, -1)
        products = (y_shape[0] or 0) * size_of(kernel[-2:])
        for axis, sizes in enumerate(zip(x_shape[space], kernel, y_shape[space], strict=False)):
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


def windows(pooled: int) -> Count:
    """Count one operation per window element; the `pooled` value has one element per window."""

    def count(node: CostNode, inputs: Sequence[Spec]) -> float:
        return math.prod(node.attrs["window"]) * elements((*inputs, *node.specs)[pooled])

    return count


def einsum(node: CostNode, inputs: Sequence[Spec]) -> float:
    """G: a multiplication and an addition per combination of labels."""
    terms = node.attrs["equation"].partition("->")[0].split(",")
    if "..." in node.attrs["equation"] or len(terms) > 2:
        raise KeyError("einsum")
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, inputs, strict=True):
        assert spec.shape is not None
        for label, size in zip(term, spec.shape, strict=True):
            sizes[label] = max(sizes.get(label, 0), size or 0)
    every = math.prod(sizes.values())
    return len(terms) * every if every > elements(node.specs[0]) else (len(terms) - 1) * every


def fft(flops_per_point: float, index: int) -> Count:
    """Count an FFT over the last `rank` axes of tensor `index`: 0 for input 0, -1 for output -1."""

    def count(node: CostNode, inputs: Sequence[Spec]) -> float:
        spec = (*inputs, *node.specs)[index]
        assert spec.shape is not None
        points = size_of(spec.shape[-node.attrs["rank"] :])
        return flops_per_point * elements(spec) * math.log2(max(points, 2))

    return count


def per_matrix(count: Callable[[int, int, int], float], index: int = 0) -> Count:
    """Sum `count(m, n, k)` over the matrices [m, n] of input `index`.

    k is the number of columns of the last input.
    """

    def every(node: CostNode, inputs: Sequence[Spec]) -> float:
        shape, last = inputs[index].shape, inputs[-1].shape
        assert shape is not None and last is not None
        m, n, columns = shape[-2] or 0, shape[-1] or 0, last[-1] if last else 0
        return size_of(shape[:-2]) * count(m, n, columns or 0)

    return every


def svd(node: CostNode, inputs: Sequence[Spec]) -> float:
    """G: 14 m n^2 + 8 n^3 with vectors, else 4 m n^2 - 4/3 n^3."""

    def count(m: int, n: int, _: int) -> float:
        m, n = max(m, n), min(m, n)
        vectors = node.attrs["compute_uv"]
        return 14 * m * n**2 + 8 * n**3 if vectors else 4 * m * n**2 - 4 / 3 * n**3

    return per_matrix(count)(node, inputs)


def eigh(node: CostNode, inputs: Sequence[Spec]) -> float:
    """G: 9 n^3 with vectors, else 4/3 n^3."""
    factor = 9 if node.attrs["compute_v"] else 4 / 3
    return per_matrix(lambda m, n, _: factor * n**3)(node, inputs)


def momentum(node: CostNode, inputs: Sequence[Spec]) -> float:
    """K: accum = accum momentum + g; var -= lr accum."""
    return (6 if node.attrs.get("use_nesterov") else 4) * elements(inputs[0])


def add_n(node: CostNode, inputs: Sequence[Spec]) -> float:
    """K: an addition per element of each input but the first."""
    return (len(inputs) - 1) * elements(node.specs[0])


# -- matrix products and convolutions as products


def matrices(node: CostNode, inputs: Sequence[Spec]) -> MatmulSize:
    """Return the size of a matrix product."""
    *lead, rows, columns = node.specs[0].shape or ()
    return MatmulSize(size_of(tuple(lead)), rows or 0, _summed(node, inputs), columns or 0)


def strided_matrices(node: CostNode, inputs: Sequence[Spec]) -> MatmulSize:
    """Return the size of a product of matrices that lie by `lays`."""
    (_, left, _), _, (_, (*lead, rows, columns), _) = node.attrs["lays"]
    return MatmulSize(size_of(lead), rows, int(left[-1]), columns)


def filters(weights: int, y: int, summed: str) -> Callable[[CostNode, Sequence[Spec]], MatmulSize]:
    """Return a function that gives a convolution as a product of windows and filters.

    `weights` and `y` index inputs followed by outputs. `summed` is the axis that is summed over:
    the "window", the "channels" of the result, or its "pixels".
    """

    def sizes(node: CostNode, inputs: Sequence[Spec]) -> MatmulSize:
        kernel, out = ((*inputs, *node.specs)[i].shape for i in (weights, y))
        assert kernel is not None and out is not None
        groups = node.attrs["groups"] or 1
        window, pixels, each = size_of(kernel[:-1]), size_of(out[:-1]), (kernel[-1] or 0) // groups
        if node.attrs["first"]:
            pixels = size_of((out[0], *out[2:]))
        if summed == "channels":
            return MatmulSize(groups, pixels, each, window)
        if summed == "pixels":
            return MatmulSize(groups, window, pixels, each)
        return MatmulSize(groups, pixels, window, each)

    return sizes
