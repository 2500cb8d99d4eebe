"""Large-batch optimizers LARS and LAMB: the step of a layer is scaled by the layer's norm.

They need norms of whole variables, so that IndexedSlices are converted to dense gradients, which is
logged.
"""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor
from hpcflow.ops.math.arithmetic_ops import greater, logical_and, sqrt, square, where
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.train.optimizers.adam import bias_corrections
from hpcflow.train.optimizers.update_formula import Cells, FormulaOptimizer


def _norm(x: Tensor) -> Tensor:
    return sqrt(reduce_sum(square(x)))


class LARSOptimizer(FormulaOptimizer):
    """LARS (You, Gitman, Ginsburg, arXiv:1708.03888): momentum with a rate for each layer.

    The rate is `learning_rate * eeta * |w| / (|g| + weight_decay * |w| + epsilon)`, or
    `learning_rate` if a norm is zero. The gradient with decay is `g + weight_decay * w`.
    `skip_list` has substrings of the names of variables that are neither scaled nor decayed, such
    as biases.
    """

    SLOTS = ("momentum",)
    ROWS = False

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: Any = 0.0001,
        eeta: Any = 0.001,
        epsilon: Any = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Any = None,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            name,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            eeta=eeta,
            epsilon=epsilon,
        )
        self._skipped, self._nesterov = tuple(skip_list or ()), bool(use_nesterov)

    def _formula(self, c: Cells, g: Tensor) -> None:
        rate, momentum, accum = c.number("learning_rate"), c.number("momentum"), c.slot("momentum")
        if not any(part in c.name for part in self._skipped):
            value, decay = c.value, c.number("weight_decay")
            w, size = _norm(value), _norm(g)
            trust = c.number("eeta") * w / (size + decay * w + c.number("epsilon"))
            rate = rate * where(logical_and(greater(w, 0), greater(size, 0)), trust, 1)
            g = g + decay * value
        accum = momentum * accum + rate * g
        c.keep("momentum", accum)
        c.subtract(momentum * accum + rate * g if self._nesterov else accum)


class LAMBOptimizer(FormulaOptimizer):
    """LAMB (You et al., arXiv:1904.00962): Adam with weight decay and a scaled step for each layer.

    `r = m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w; w -= learning_rate * |w| / |r| * r`;
    the factor is 1 if a norm is zero. `exclude_from_weight_decay` and
    `exclude_from_layer_adaptation` have substrings of variable names; None for the second means the
    same as the first.
    """

    SLOTS = ("m", "v")
    STEP = True
    ROWS = False

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay_rate: Any = 0.0,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: Any = 1e-6,
        exclude_from_weight_decay: Any = None,
        exclude_from_layer_adaptation: Any = None,
        name: str = "LAMB",
    ) -> None:
        super().__init__(
            name,
            learning_rate=learning_rate,
            weight_decay=weight_decay_rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
        )
        self._undecayed = tuple(exclude_from_weight_decay or ())
        excluded = exclude_from_layer_adaptation
        self._unscaled = self._undecayed if excluded is None else tuple(excluded)

    def _formula(self, c: Cells, g: Tensor) -> None:
        m, v, value = c.slot("m"), c.slot("v"), c.value
        m = m + (g - m) * c.rest("beta1")
        v = v + (square(g) - v) * c.rest("beta2")
        c.keep("m", m)
        c.keep("v", v)
        first, second = (c.rounded(x) for x in bias_corrections(c, c.step()))
        step = m / first / (sqrt(v / second) + c.number("epsilon"))
        if not any(part in c.name for part in self._undecayed):
            step = step + c.number("weight_decay") * value
        rate = c.number("learning_rate")
        if not any(part in c.name for part in self._unscaled):
            w, size = _norm(value), _norm(step)
            rate = rate * where(logical_and(greater(w, 0), greater(size, 0)), w / size, 1)
        c.subtract(rate * step)
