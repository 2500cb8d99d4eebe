"""Neural network ops: activations, bias_add, dropout, losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ArgumentError, GraphError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import bool_
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.graph.tensor_shape import Dimension
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import as_scalar, expand_dims, identity, reshape, shape
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math import reduction_ops
from hpcflow.ops.math.arithmetic_ops import (
    add,
    add_n,
    divide,
    exp,
    less,
    multiply,
    negative,
    sigmoid,
    subtract,
    unary,
    where_v2,
)
from hpcflow.ops.random.random_ops import random_uniform
from hpcflow.ops.shape_inference import (
    Attrs,
    count_argument,
    elementwise_shape,
    first_output,
    integer_argument,
    like,
    make,
    normal_axis,
    operand,
    operands,
    require,
    require_alike,
    require_equal,
    require_rank,
    with_shape_of,
)

# -- activations


_of_features = accepts_aliases(features="x")


def _activation(type: str, doc: str) -> Any:
    """An activation whose gradient is one op of (g, output), linear in g."""
    return _of_features(unary(type, "f", lambda x, y, g: first_output(f"{type}Grad", [g, y]), doc))


def _masked_back(type: str) -> Any:
    """The gradient of a gradient that depends only on the sign or range of its second input."""
    return lambda op, gg: [first_output(type, [gg, op.inputs[1]]), None]


def _elu_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y = op.inputs  # g (1 + min(y, 0))
    below = less(y, 0)
    return [
        lambda: first_output("EluGrad", [gg, y]),
        lambda: where_v2(below, multiply(gg, g), 0),
    ]


relu = _activation("Relu", "`max(x, 0)`.")
relu6 = _activation("Relu6", "`min(max(x, 0), 6)`.")
elu = _activation("Elu", "`x` above 0, `exp(x) - 1` below.")
softplus = _of_features(
    unary("Softplus", "f", lambda x, y, g: multiply(g, sigmoid(x)), "`log(1 + exp(x))`.")
)


def log_sigmoid(x: Any, name: str | None = None) -> Tensor:
    """`log(sigmoid(x))`, without overflow."""
    return negative(softplus(negative(x)), name)


op(
    "ReluGrad",
    infer=elementwise_shape("ReluGrad", "f"),
    grad=_masked_back("ReluGrad"),
    elementwise=True,
)
op(
    "Relu6Grad",
    infer=elementwise_shape("Relu6Grad", "f"),
    grad=_masked_back("Relu6Grad"),
    elementwise=True,
)
op("EluGrad", infer=elementwise_shape("EluGrad", "f"), grad=_elu_grad_back, elementwise=True)


def _softmax(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("softmax", inputs[0], "f")
    input_shape = inputs[0].shape
    if input_shape is not None:
        if not input_shape:
            raise ShapeError("softmax takes a tensor of rank 1 or more, not a scalar")
        normal_axis(attrs["axis"], len(input_shape))
    return [Spec(inputs[0].dtype, input_shape)]


def _softmax_back(op: Operation, g: Tensor) -> list[Tensor]:
    return [first_output("SoftmaxGrad", [g, op.outputs[0]], op.attrs)]


def _softmax_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y = op.inputs  # y (g - sum(g y))

    def of_y() -> Tensor:
        axis = op.attrs["axis"]
        total = reduction_ops.reduce_sum(multiply(g, y), axis, True)
        gg_total = reduction_ops.reduce_sum(multiply(gg, y), axis, True)
        return subtract(multiply(gg, subtract(g, total)), multiply(g, gg_total))

    return [lambda: first_output("SoftmaxGrad", [gg, y], op.attrs), of_y]


def _log_softmax_back(op: Operation, g: Tensor) -> list[Tensor]:
    return [first_output("LogSoftmaxGrad", [g, op.outputs[0]], op.attrs)]


def _log_softmax_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    g, y = op.inputs  # g - exp(y) sum(g)
    axis = op.attrs["axis"]

    def of_g() -> Tensor:
        return subtract(gg, reduction_ops.reduce_sum(multiply(gg, exp(y)), axis, True))

    def of_y() -> Tensor:
        total = reduction_ops.reduce_sum(g, axis, True)
        return multiply(multiply(gg, exp(y)), multiply(total, -1))

    return [of_g, of_y]


op("Softmax", infer=_softmax, grad=_softmax_back, flops=flop_counts.per_output(5))
op("LogSoftmax", infer=_softmax, grad=_log_softmax_back, flops=flop_counts.per_output(6))
op("SoftmaxGrad", infer=_softmax, grad=_softmax_grad_back, flops=flop_counts.per_output(4))
op("LogSoftmaxGrad", infer=_softmax, grad=_log_softmax_grad_back, flops=flop_counts.per_output(4))


@accepts_aliases(dim="axis")
def softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along `axis`, without overflow."""
    return first_output(
        "Softmax", [convert_to_tensor(logits)], {"axis": integer_argument(axis, "axis")}, name
    )


@accepts_aliases(dim="axis")
def log_softmax(logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """The logarithm of `softmax`, without underflow to zero."""
    return first_output(
        "LogSoftmax", [convert_to_tensor(logits)], {"axis": integer_argument(axis, "axis")}, name
    )


# -- bias_add, dropout


def _bias_add(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("bias_add", inputs)
    require_rank("bias_add's bias", inputs[1], 1)
    value, bias = inputs[0].shape, inputs[1].shape
    if value is None:
        return [Spec(inputs[0].dtype, None)]
    if not value:
        raise ShapeError("bias_add takes a value of rank 1 or more, not a scalar")
    last = merge_shapes(value[-1:], bias)
    assert last is not None
    return [Spec(inputs[0].dtype, (*value[:-1], *last))]


def _bias_add_back(op: Operation, g: Tensor) -> list[Any]:
    value = op.inputs[0]
    if value.shape is None:

        def of_bias() -> Tensor:
            sizes = shape(g)
            rows = reduction_ops.reduce_prod(getitem(sizes, slice(None, -1)))
            return reduction_ops.reduce_sum(reshape(g, [rows, getitem(sizes, -1)]), 0)

        return [g, of_bias]
    return [g, lambda: reduction_ops.reduce_sum(g, tuple(range(len(value.shape or ()) - 1)))]


op("BiasAdd", infer=_bias_add, grad=_bias_add_back, elementwise=True)


def bias_add(
    value: Any, bias: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """`value + bias`, with the vector `bias` along the channel axis of `value`.

    The channels are the last axis, or axis 1 with a `data_format` such as NCHW.
    """
    a, b = operands(value, bias)
    if data_format is None or not data_format.startswith("NC"):
        return first_output("BiasAdd", [a, b], {}, name)
    if a.shape is None:
        raise ShapeError(f"bias_add with {data_format} needs a known rank", op=a.op.name)
    return add(a, reshape(b, [-1] + [1] * (len(a.shape) - 2)), name)


def dropout(
    x: Any,
    keep_prob: Any = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: Any = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Dropout: an element is kept, divided by `keep_prob`, with this probability, else it is 0.

    `rate` is 1 - `keep_prob` and may be given instead; either is a number or a scalar tensor. Along
    axes where `noise_shape` is 1, all elements are kept or dropped together; None there means the
    size of `x`. If axis 0 is the batch, replicas draw for their shards what one replica would draw
    for the global batch: `batch`, by default true if its size is unknown (see `random_uniform`).
    """
    if (keep_prob is None) == (rate is None):
        raise GraphError("dropout takes keep_prob or rate, one of them", line=user_line())
    probability = keep_prob if rate is None else rate
    if isinstance(probability, (int, float)):
        kept_part = probability if rate is None else 1 - probability
        if not 0 < kept_part <= 1:
            argument = "keep_prob" if rate is None else "rate"
            inside = "(0, 1]" if rate is None else "[0, 1)"
            raise ArgumentError(f"{argument} {probability} is not in {inside}", line=user_line())
        if kept_part == 1:
            return x if isinstance(x, Tensor) else identity(x, name)
        probability = kept_part
    elif rate is not None:
        probability = subtract(1, rate)
    x = convert_to_tensor(x)
    keep = as_scalar(like(probability, x))
    sizes = shape(x) if noise_shape is None else _noise_sizes(noise_shape, x)
    mask = less(random_uniform(sizes, dtype=x.dtype, seed=seed, batch=batch), keep)
    return with_shape_of(where_v2(mask, divide(x, keep), 0, name or "dropout"), x, "dropout")


def _noise_sizes(noise_shape: Any, x: Tensor) -> Any:
    """The noise shape, with the sizes of `x` for None."""
    if not isinstance(noise_shape, (list, tuple)):
        return noise_shape
    free = [n is None or (isinstance(n, Dimension) and n.value is None) for n in noise_shape]
    if not any(free):
        return noise_shape
    if x.shape is None or len(x.shape) != len(noise_shape):
        raise ShapeError(
            f"noise_shape {list(noise_shape)} does not fit a tensor of shape {shape_text(x.shape)}",
            line=user_line(),
            hint="give the same rank; None stands for the size of that axis",
        )
    x_sizes = [getitem(shape(x), i) if d is None else d for i, d in enumerate(x.shape)]
    return [t if unknown else n for n, t, unknown in zip(noise_shape, x_sizes, free, strict=True)]


# -- losses


def _cross_entropy(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    logits, labels = inputs
    require_equal("softmax_cross_entropy_with_logits", inputs)
    require("softmax_cross_entropy_with_logits", logits, "f")
    both = merge_shapes(logits.shape, labels.shape)
    return [Spec(logits.dtype, _but_last(both)), Spec(logits.dtype, both)]


def _sparse_cross_entropy(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    logits, labels = inputs
    require("sparse_softmax_cross_entropy_with_logits", logits, "f")
    require("its labels", labels, "iu")
    batch = merge_shapes(_but_last(logits.shape), labels.shape)
    classes = None if logits.shape is None else logits.shape[-1]
    logits_shape = None if batch is None else (*batch, classes)
    return [Spec(logits.dtype, batch), Spec(logits.dtype, logits_shape)]


def _but_last(logits_shape: Shape) -> Shape:
    if logits_shape == ():
        raise ShapeError("logits need a last axis of classes, not a scalar")
    return None if logits_shape is None else logits_shape[:-1]


def _cross_entropy_back(op: Operation, g: Tensor | None, of_grad: Tensor | None) -> list[Any]:
    def of_logits() -> Tensor:
        parts = []
        if g is not None:
            parts.append(multiply(expand_dims(g, -1), op.outputs[1]))
        if of_grad is not None:  # output 1 is softmax(logits) - labels
            y = softmax(op.inputs[0])
            parts.append(first_output("SoftmaxGrad", [of_grad, y], {"axis": -1}))
        return add_n(parts)

    def of_labels() -> Tensor:
        parts = []
        if g is not None:
            parts.append(multiply(expand_dims(g, -1), negative(log_softmax(op.inputs[0]))))
        if of_grad is not None:
            parts.append(negative(of_grad))
        return add_n(parts)

    return [of_logits, of_labels if op.type == "SoftmaxCrossEntropy" else None]


op(
    "SoftmaxCrossEntropy",
    infer=_cross_entropy,
    grad=_cross_entropy_back,
    flops=flop_counts.per_input(9),
)
op(
    "SparseSoftmaxCrossEntropy",
    infer=_sparse_cross_entropy,
    grad=_cross_entropy_back,
    flops=flop_counts.per_input(5),
)


def sparse_softmax_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """The cross entropy of softmax of `logits` for class numbers `labels`.

    Shapes: `logits` [..., classes], integer `labels` [...]; the loss is shaped as `labels`.
    Errors: RangeError at run time for a label outside [0, classes).
    """
    inputs = [convert_to_tensor(logits), convert_to_tensor(labels)]
    return make("SparseSoftmaxCrossEntropy", inputs, {}, name).outputs[0]


def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """The elementwise cross entropy of independent binary labels (0 to 1)."""
    x, z = operands(logits, labels)
    require_alike("sigmoid_cross_entropy_with_logits", x, z)
    return subtract(softplus(x), multiply(x, z), name)


def _l2_loss(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("l2_loss", inputs[0], "f")
    return [Spec(inputs[0].dtype, ())]


op(
    "L2Loss",
    infer=_l2_loss,
    grad=lambda op, g: [multiply(g, op.inputs[0])],
    flops=flop_counts.per_input(2),
)


def l2_loss(t: Any, name: str | None = None) -> Tensor:
    """Half the sum of squares of `t`."""
    return first_output("L2Loss", [convert_to_tensor(t)], {}, name)


def _in_top_k(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("in_top_k", inputs[0], "f")
    require("in_top_k's targets", inputs[1], "iu")
    require_rank("in_top_k", inputs[0], 2)
    require_rank("in_top_k's targets", inputs[1], 1)
    batch = merge_shapes(_but_last(inputs[0].shape), inputs[1].shape)
    return [Spec(bool_, merge_shapes(batch, (None,)))]


op("InTopK", infer=_in_top_k, grad=NoGrad("its output is booleans"))


def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Tensor:
    """Whether each target class is among the `k` largest predictions, ties included."""
    static, dynamic = count_argument(k, "k")
    inputs = [convert_to_tensor(predictions), operand(targets, "iu"), *dynamic]
    return first_output("InTopK", inputs, {"k": static}, name)
