"""Einsum ops: einsum and tensordot."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import (
    Shape,
    Spec,
    broadcast_shapes,
    merge_shapes,
    normalize_axes,
    shape_text,
)
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import constant, expand_dims, range, shape, sizes
from hpcflow.ops.array.broadcast_ops import ones, ones_like, sum_to_shape
from hpcflow.ops.array.dynamic_axis_ops import dotted
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import cast, conj, equal
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    has_tensors,
    require,
    require_equal,
    static_axes,
    tensors,
)

# -- the equation; "." stands for "..."


def parse(equation: str, count: int) -> tuple[list[str], str]:
    """The labels of each input and of the output.

    Errors: ShapeError for an invalid equation.
    """
    text = equation.replace(" ", "").replace("...", "\0")
    if "." in text:
        raise ShapeError(f"einsum {equation!r} has dots that are not part of '...'")
    text = text.replace("\0", ".")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise ShapeError(f"einsum {equation!r} has {len(terms)} inputs, but {count} are given")
    if not arrow:
        once = sorted(c for c in set(left) if left.count(c) == 1 and c not in ",.")
        out = ("." if "." in left else "") + "".join(once)
    for term in (*terms, out):
        if set(term) - {".", *string.ascii_letters} or term.count(".") > 1:
            raise ShapeError(f"einsum {equation!r}: {term!r} must be letters and at most one '...'")
    if len(set(out)) != len(out) or set(out) - set(left):
        raise ShapeError(
            f"einsum {equation!r}: each output label must occur in an input, and once in the output"
        )
    return terms, out


def _split(term: str, dims: Shape) -> tuple[list[tuple[str, int | None]], Shape]:
    """The sizes of the labels of an input, and of the axes of its "..."."""
    before, dots, after = term.partition(".")
    if dims is None:
        return [(c, None) for c in before + after], None if dots else ()
    label_count = len(before) + len(after)
    if len(dims) < label_count or (len(dims) > label_count and not dots):
        raise ShapeError(
            f"einsum: labels {term.replace('.', '...')!r} do not fit shape {shape_text(dims)}"
        )
    first, last = dims[: len(before)], dims[len(dims) - len(after) :]
    pairs = list(zip(before + after, (*first, *last), strict=True))
    return pairs, dims[len(before) : len(dims) - len(after)]


def _einsum(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("einsum", inputs)
    require("einsum", inputs[0], "iufc")
    terms, out = parse(attrs["equation"], len(inputs))
    label_sizes: dict[str, int | None] = {}
    ellipses: list[Shape] = []
    for term, spec in zip(terms, inputs, strict=True):
        pairs, ellipsis = _split(term, spec.shape)
        ellipses += [ellipsis] if "." in term else []
        for label, size in pairs:
            (label_sizes[label],) = merge_shapes((label_sizes.get(label),), (size,)) or (None,)
    dots = broadcast_shapes(ellipses)
    if "." in out and dots is None:
        return [Spec(inputs[0].dtype, None)]
    result: list[int | None] = []
    for label in out:
        result += list(dots or ()) if label == "." else [label_sizes[label]]
    return [Spec(inputs[0].dtype, tuple(result))]


# -- the gradient, also an einsum


def _size(x: Tensor, term: str, label: str) -> Any:
    """The size of the axis `label` of `x`: an int if static, else a tensor."""
    before, _, after = term.partition(".")
    at = before.index(label) if label in before else after.index(label) - len(after)
    if x.shape is not None and x.shape[at] is not None:
        return x.shape[at]
    return getitem(shape(x), at)


def _identity(n: Any, dtype: np.dtype) -> Tensor:
    if isinstance(n, int):
        return constant(np.eye(n, dtype=dtype))
    numbers = range(n)
    return cast(equal(expand_dims(numbers, 1), numbers), dtype)


def _back_to(op: Operation, k: int, g: Tensor) -> Tensor:
    """The gradient of input `k`: einsum of output gradient and other inputs to its labels.

    A label repeated in the input gives a diagonal; a label only in this input gives a broadcast.
    """
    terms, out = parse(op.attrs["equation"], len(op.inputs))
    x, term = op.inputs[k], terms[k]
    others = [i for i, _ in enumerate(terms) if i != k]
    inputs = [g, *(conj(op.inputs[i]) for i in others)]
    labels = [out, *(terms[i] for i in others)]
    fresh = iter(sorted(set(string.ascii_letters) - set("".join(terms))))
    x_labels = ""
    for label in term:
        if label in x_labels:
            twin = next(fresh)
            inputs.append(_identity(_size(x, term, label), x.dtype))
            labels.append(label + twin)
            x_labels += twin
        else:
            x_labels += label
            if label != "." and label not in "".join([out, *(terms[i] for i in others)]):
                inputs.append(ones([_size(x, term, label)], x.dtype))
                labels.append(label)
    if "." in x_labels and "." not in "".join(labels):
        inputs.append(ones_like(x))
        labels.append(x_labels)
    if "." not in x_labels:
        return _emit_einsum(inputs, labels, x_labels)
    front = "." + x_labels.replace(".", "")  # broadcast axes are summed, and must come first
    d = _emit_einsum(inputs, labels, front)
    turned = x if x_labels == front else _emit_einsum([x], [x_labels], front)
    if d.shape is None or None in d.shape or d.shape != turned.shape:
        d = sum_to_shape(d, sizes(turned))
    return d if x_labels == front else _emit_einsum([d], [front], x_labels)


def _emit_einsum(inputs: list[Tensor], terms: list[str], out: str) -> Tensor:
    equation = f"{','.join(terms)}->{out}".replace(".", "...")
    return first_output("Einsum", inputs, {"equation": equation})


def _einsum_back(op: Operation, g: Tensor) -> list[Any]:
    return [lambda k=k: _back_to(op, k, g) for k, _ in enumerate(op.inputs)]


op(
    "Einsum",
    infer=_einsum,
    grad=_einsum_back,
    flops=flop_counts.einsum,
    uses_blas=True,
    kernels="einsum_kernels kernels.llvm_einsum",
)


# -- public functions


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Tensor:
    """The tensor contraction given by `equation`, for example "bij,bjk->bik" for batched matmul.

    Labels are letters. "..." stands for further axes, which are broadcast. A label repeated in one
    input is its diagonal. Without "->" the output has the labels that occur once, in alphabetical
    order.
    """
    operands = tensors(inputs, "einsum")
    terms, out = parse(equation, len(operands))
    return first_output(
        "Einsum", operands, {"equation": f"{','.join(terms)}->{out}".replace(".", "...")}, name
    )


def _told_pairs(x: Tensor, y: Tensor, axes: Any) -> tuple[Tensor, Tensor] | None:
    """The contracted axes of each input, where only known at run time; None if all are static."""
    if isinstance(axes, Tensor):
        if axes.shape is not None and len(axes.shape) != 2:
            raise ShapeError(
                f"tensordot: axes {axes.name!r} have shape {shape_text(axes.shape)}",
                line=user_line(),
                hint="give a constant integer, or a tensor of shape [2, pairs]",
            )
        return getitem(axes, 0), getitem(axes, 1)
    if has_tensors(axes):
        axes_x, axes_y = (convert_to_tensor(part) for part in axes)
        if axes_x.constant is None or axes_y.constant is None:
            return axes_x, axes_y
    if x.shape is not None and y.shape is not None:
        return None
    if isinstance(axes, (int, np.integer)):
        if axes < 0:
            raise ShapeError(
                f"tensordot: the number of axes must be at least 0, not {axes}", line=user_line()
            )
        return constant(np.arange(-axes, 0)), constant(np.arange(axes))
    axes_x, axes_y = (constant(np.array(static_axes(part), "i8")) for part in axes)
    return axes_x, axes_y


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """The contraction over the last `axes` of `a` and the first of `b`, or over pairs of axes.

    `axes` is a number, or two lists or tensors: axes of `a` and axes of `b`.
    Shapes: the other axes of `a`, then those of `b`.
    """
    x, y = tensors([a, b], "tensordot")
    if isinstance(axes, Tensor) and axes.constant is not None:
        axes = axes.constant.tolist()
    dynamic_axes = _told_pairs(x, y, axes)
    if dynamic_axes is not None:
        return dotted(x, y, *dynamic_axes, name)
    assert x.shape is not None and y.shape is not None
    left, right = len(x.shape), len(y.shape)
    if isinstance(axes, (int, np.integer)):
        n = int(axes)
        if not 0 <= n <= min(left, right):
            raise ShapeError(
                f"tensordot: {shape_text(x.shape)} and {shape_text(y.shape)} cannot be contracted "
                f"over {n} axes"
            )
        pairs = [(left - n + i, i) for i in map(int, np.arange(n))]
    else:
        first, second = ([int(i) for i in np.atleast_1d(np.asarray(part))] for part in axes)
        if len(first) != len(second):
            raise ShapeError(f"tensordot: axes {first} and {second} have different lengths")
        normalize_axes(first, left), normalize_axes(second, right)
        pairs = [(i % left, j % right) for i, j in zip(first, second, strict=True)]
    labels = string.ascii_letters
    if left + right > len(labels):
        raise ShapeError(
            f"tensordot supports at most {len(labels)} axes in all, not {left + right}"
        )
    x_labels, y_labels = labels[:left], list(labels[left : left + right])
    for i, j in pairs:
        y_labels[j] = x_labels[i]
    out = [c for c in (*x_labels, *y_labels) if (c in x_labels) != (c in y_labels)]
    return first_output(
        "Einsum", [x, y], {"equation": f"{x_labels},{''.join(y_labels)}->{''.join(out)}"}, name
    )
