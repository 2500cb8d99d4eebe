"""Optimizers by name for `Model.compile`, with the defaults of Keras's of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.train.optimizers.adagrad import AdadeltaOptimizer, AdagradOptimizer, RMSPropOptimizer
from hpcflow.train.optimizers.adam import (
    AdamaxOptimizer,
    AdamOptimizer,
    AdamWOptimizer,
    NadamOptimizer,
)
from hpcflow.train.optimizers.gradient_descent import GradientDescentOptimizer

EPSILON = 1e-7  # Keras's, where TensorFlow 1 has 1e-8 or 1e-10


class RMSprop(RMSPropOptimizer):
    """Keras's: the mean square of the gradients begins at 0, not at 1 as in TensorFlow 1."""

    def _start(self, name: str, var: Variable) -> float:
        return 0


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adadelta": lambda: AdadeltaOptimizer(0.001, epsilon=EPSILON),
    "adagrad": lambda: AdagradOptimizer(0.001),
    "adam": lambda: AdamOptimizer(0.001, epsilon=EPSILON),
    "adamax": lambda: AdamaxOptimizer(0.001, epsilon=EPSILON),
    "adamw": lambda: AdamWOptimizer(0.004, 0.001, epsilon=EPSILON),
    "nadam": lambda: NadamOptimizer(0.001, epsilon=EPSILON),
    "rmsprop": lambda: RMSprop(0.001, epsilon=EPSILON),
    "sgd": lambda: GradientDescentOptimizer(0.01),
}
