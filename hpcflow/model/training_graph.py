"""Training graph of a model: labels, loss, metrics and the update, added to the model's graph."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.static_shape import shape_text
from hpcflow.model.loss_names import LabelsSpec, Loss, find_loss, labels_spec, operand_of
from hpcflow.model.metric_names import ModelMetric, build_metric, mean_metric
from hpcflow.model.optimizer_names import OPTIMIZERS
from hpcflow.model.training_ends import Ends
from hpcflow.ops.array.array_ops import placeholder, shape
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import add, add_n, cast, greater, multiply, where
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.math.reduction_ops import reduce_mean, reduce_sum
from hpcflow.ops.nn.layer_objects import Layer
from hpcflow.ops.nn.training_calls import accepts_training, call_in_phase
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import say_once
from hpcflow.train.optimizers.update_formula import FormulaOptimizer


class Compiled(NamedTuple):
    """The arguments of `Model.compile`, checked."""

    optimizer: Any
    loss: Loss
    metrics: tuple[Any, ...]


class TrainingGraph(NamedTuple):
    """Placeholders of labels and weights, what a step runs, and what an evaluation fetches."""

    labels: Tensor
    weights: Tensor
    loss: Tensor  # the mean over the batch, with regularization
    is_scalar: bool  # the user's loss is one value for a batch
    train: Operation
    trained: list[ModelMetric]  # of the training graph: the loss, then the user's metrics
    evaluated: list[ModelMetric]  # the same of the inference graph
    rate: Variable | None


def compiled(optimizer: Any, loss: Any, metrics: Any) -> Compiled:
    """The checked arguments of `Model.compile`. Errors: GraphError."""
    if isinstance(optimizer, str):
        if optimizer.lower() not in OPTIMIZERS:
            near = difflib.get_close_matches(optimizer.lower(), OPTIMIZERS, 1)
            raise GraphError(
                f"optimizer={optimizer!r} is not an optimizer"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"give one of {', '.join(OPTIMIZERS)}, or one of hf.train",
            )
        optimizer = OPTIMIZERS[optimizer.lower()]()
    if not hasattr(optimizer, "minimize"):
        raise GraphError(
            f"optimizer={optimizer!r} is neither a name nor an optimizer of hf.train",
            hint="for example optimizer='adam', or hf.train.AdamOptimizer(0.01)",
        )
    if loss is None:
        raise GraphError("compile() needs a loss", hint="for example loss='mse'")
    listed = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics or []
    items = listed.items() if isinstance(listed, dict) else listed
    return Compiled(optimizer, find_loss(loss), tuple(items))


def training_graph(
    given: Compiled,
    trained: Ends,
    inferred: Ends,
    weights_of: Sequence[Variable],
    name: str,
    data: LabelsSpec | None = None,
    weight_shape: Sequence[int | None] = (),
) -> TrainingGraph:
    """Add labels, loss, metrics and update for what a model computes in training and otherwise.

    `data` are the dtype and the shape of a sample of the labels, if they are known; `weight_shape`
    is that of a sample's weights: (steps,) for sequences, whose loss is [batch, steps].
    """
    _check_output(given.loss, inferred.output)
    labels = placeholder(*labels_spec(given.loss, inferred.output, data), "labels")
    weights = placeholder(float32, [None, *weight_shape], "sample_weight")
    rate = None
    if isinstance(given.optimizer, FormulaOptimizer):
        rate = given.optimizer.rate_variable(f"{name}/learning_rate")
    values = _values(given.loss, labels, trained.output, weights)
    loss = _total(values, trained.penalties)
    metrics = checked = _metrics(given, labels, trained.output, values, trained.penalties)
    if trained is not inferred:
        others = _values(given.loss, labels, inferred.output, weights)
        checked = _metrics(given, labels, inferred.output, others, inferred.penalties)
    with labels.graph.control_dependencies(trained.updates):
        train = given.optimizer.minimize(loss, var_list=[v for v in weights_of if v.trainable])
    is_scalar = values.shape == ()
    return TrainingGraph(labels, weights, loss, is_scalar, train, metrics, checked, rate)


def _check_output(loss: Loss, output: Tensor) -> None:
    """Warn if a loss takes probabilities and the output is none; ShapeError without classes."""
    if loss.kind == "classes" and output.shape is not None and len(output.shape) < 2:
        raise ShapeError(
            f"loss={loss.name!r} needs a value for each class; the output is "
            f"{shape_text(output.shape)}",
            op=output.op.name,
            line=output.op.line,
            hint="give the last layer as many units as there are classes",
        )
    if loss.kind == "values" or loss.takes_logits:
        return
    type, other = ("Softmax", "softmax") if loss.kind == "classes" else ("Sigmoid", "sigmoid")
    if operand_of(output, type) is None:
        same = {
            "binary_crossentropy": "sigmoid_cross_entropy",
            "categorical_crossentropy": "softmax_cross_entropy",
            "sparse_categorical_crossentropy": "sparse_softmax_cross_entropy",
        }[loss.name]
        say_once(
            f"loss={loss.name!r} takes probabilities, but the model does not end in a {other}: "
            f"loss={same!r} takes what it ends in ({output.op.type})",
            logging.WARNING,
        )


def _values(loss: Loss, labels: Tensor, output: Tensor, weights: Tensor) -> Tensor:
    """The loss of each sample times its weight; of a function of the batch, its one value.

    Weights may have more axes, such as [batch, steps]: they weight the values before the mean over
    these axes.
    """
    values = loss.formula(labels, output)
    if not isinstance(values, Tensor):
        raise GraphError(f"the loss {loss.name!r} returned {values!r}, which is no tensor")
    if values.shape == ():
        return values
    axes, rank = len(weights.shape or ()), 1 if values.shape is None else len(values.shape)
    if axes > rank:
        raise ShapeError(
            f"the weights of samples are {shape_text(weights.shape)}, the loss {loss.name!r} is "
            f"{shape_text(values.shape)}",
            op=values.op.name,
            line=values.op.line,
            hint="give one weight for each sample, or for each value of the loss",
        )
    if rank > axes:
        values = reduce_mean(values, list(range(axes, rank)))
    values = multiply(values, cast(weights, values.dtype))
    return reduce_mean(values, list(range(1, axes))) if axes > 1 else values


def _total(values: Tensor, extra: Sequence[Tensor]) -> Tensor:
    """The mean loss with the penalties of the weights."""
    mean = values if values.shape == () else reduce_mean(values)
    return add(mean, cast(add_n(extra), mean.dtype)) if extra else mean


def _metrics(
    given: Compiled, labels: Tensor, output: Tensor, values: Tensor, extra: Sequence[Tensor]
) -> list[ModelMetric]:
    """The mean loss, and the metrics of `compile`."""
    count = cast(getitem(shape(output), 0), float32)
    if values.shape == ():  # a batch without samples has no mean
        summed = where(greater(count, 0.0), multiply(cast(values, float32), count), 0.0)
    else:
        summed = cast(reduce_sum(values), float32)
    if extra:
        summed = add(summed, multiply(cast(add_n(extra), float32), count))
    metrics = [mean_metric("loss", div_no_nan(summed, count), count)]
    names = {"loss"}
    for one in given.metrics:
        made = build_metric(one, given.loss, labels, output)
        if made.name in names:
            raise GraphError(f"two metrics are named {made.name!r}", hint="give (name, function)")
        names.add(made.name)
        metrics.append(made)
    return metrics


def several_layers(layers: Sequence[Any], x: Any, training: bool | None) -> Any:
    """`x` through layers in order; those with an argument `training` get it.

    None leaves it to the model of the outputs.
    """
    for layer in layers:
        takes = not isinstance(layer, Layer) and accepts_training(layer)
        if isinstance(layer, Layer) and accepts_training(layer.call):
            x = layer(x, training=training)
        elif takes:
            label = f"the layer {getattr(layer, '__name__', layer)!r}"
            x = call_in_phase(layer, layer, layer, (x,), {"training": training}, label)
        else:
            x = layer(x)
    return x
