"""Activations by name: `activation="relu"`, as in Keras."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.graph import user_line
from hpcflow.ops.array.array_ops import identity
from hpcflow.ops.math.arithmetic_ops import exp, sigmoid, tanh
from hpcflow.ops.nn import activations, nn_ops

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "elu": nn_ops.elu,
    "exponential": exp,
    "gelu": activations.gelu,
    "hard_sigmoid": activations.hard_sigmoid,
    "leaky_relu": activations.leaky_relu,
    "linear": identity,
    "log_softmax": nn_ops.log_softmax,
    "relu": nn_ops.relu,
    "relu6": nn_ops.relu6,
    "selu": activations.selu,
    "sigmoid": sigmoid,
    "silu": activations.swish,
    "softmax": nn_ops.softmax,
    "softplus": nn_ops.softplus,
    "softsign": activations.softsign,
    "swish": activations.swish,
    "tanh": tanh,
}


def activation_of(given: Any) -> Callable[..., Any] | None:
    """The function of a name; functions and None stay.

    Errors: GraphError for another name; it names the nearest.
    """
    if not isinstance(given, str):
        return given
    if given not in ACTIVATIONS:
        near = difflib.get_close_matches(given, ACTIVATIONS, 1)
        raise GraphError(
            f"activation={given!r} is not an activation"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            line=user_line(),
            hint=f"give one of {', '.join(ACTIVATIONS)}, or a function such as hf.nn.relu",
        )
    return ACTIVATIONS[given]
