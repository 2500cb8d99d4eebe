"""Adam optimizers: moving averages of gradients and of their squares."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.static_shape import shape_text, size_of
from hpcflow.ops.math.arithmetic_ops import abs, maximum, pow, sqrt, square
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import sum_equal_rows
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.platform.rank_logging import say_once
from hpcflow.train.optimizers.update_formula import Cells, FormulaOptimizer

LARGE = 1 << 20  # elements; for a larger table, updates of all rows are logged


class AdamOptimizer(FormulaOptimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980) in the form of its section 2, as in TensorFlow 1.

    `var -= rate * m / (sqrt(v) + epsilon)`, where the rate of update t of the variable is
    `learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`. `epsilon` is the paper's epsilon-hat, not
    that of its Algorithm 1. IndexedSlices update all rows, by their averages, as in TensorFlow.
    `LazyAdamOptimizer` updates only the rows of the gradient; its cost does not depend on the
    table's length.
    """

    SLOTS = ("m", "v")
    STEP = True
    ROWS = False

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        name: str = "Adam",
    ) -> None:
        super().__init__(
            name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon
        )

    def _formula(self, c: Cells, g: Tensor) -> None:
        m, v, rate = self._averages(c, g)
        c.subtract(rate * m / (sqrt(v) + c.number("epsilon")))

    def _averages(self, c: Cells, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The updated averages and the rate of this update."""
        m, v = c.slot("m"), c.slot("v")
        m = m + (g - m) * c.rest("beta1")
        v = v + (square(g) - v) * c.rest("beta2")
        c.keep("m", m)
        c.keep("v", v)
        first, second = bias_corrections(c, c.step())
        return m, v, c.rounded(c.exact("learning_rate") * sqrt(second) / first)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        if self.ROWS:
            return super()._apply_sparse(grad, var)
        if size_of(var.shape) >= LARGE:
            say_once(
                f"AdamOptimizer updates all rows of {var.name!r} {shape_text(var.shape)} in "
                "each step, as in "
                "TensorFlow; LazyAdamOptimizer updates only the rows of the gradient"
            )
        with var.here.colocate_with(var.op):
            rows = sum_equal_rows(grad, f"{var.name}/distinct")
            dense_grad = IndexedSlices(rows.values, rows.indices, var.shape).dense()
        return self._apply_dense(dense_grad, var)

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        slots = [self._slots[var, name] for name in ("m", "v", "step")]
        numbers = [self._scalar(name, value, var) for name, value in self._numbers.items()]
        return update("ApplyAdam", [var, *slots], [*numbers, grad])


class LazyAdamOptimizer(AdamOptimizer):
    """Adam that updates only the rows of IndexedSlices (TensorFlow's contrib).

    Averages of other rows do not decay, and other rows do not change. Dense gradients are handled
    as in Adam.
    """

    ROWS = True


def bias_corrections(c: Cells, t: Tensor) -> tuple[Tensor, Tensor]:
    """`1 - beta^t` of both betas: the bias correction for averages that start at zero."""
    return 1.0 - pow(c.exact("beta1"), t), 1.0 - pow(c.exact("beta2"), t)


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).

    Each update also subtracts `learning_rate * weight_decay * var`, as in PyTorch and Keras, so
    that a schedule of the rate also applies to the decay. IndexedSlices update and decay only their
    rows, and the averages of these, as in `LazyAdamOptimizer`.
    """

    ROWS = True

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name)
        self._numbers["weight_decay"] = weight_decay

    def _formula(self, c: Cells, g: Tensor) -> None:
        value = c.value
        m, v, rate = self._averages(c, g)
        moved = rate * m / (sqrt(v) + c.number("epsilon"))
        c.subtract(moved + c.number("learning_rate") * c.number("weight_decay") * value)

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        return None


class NadamOptimizer(AdamOptimizer):
    """Adam with Nesterov momentum (Dozat 2016), as in TensorFlow's contrib: constant betas.

    `var -= rate * (beta1 * m + (1 - beta1) * g) / (sqrt(v) + epsilon)`, with the `rate` of Adam.
    IndexedSlices update only their rows, as in `LazyAdamOptimizer`.
    """

    ROWS = True

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        name: str = "Nadam",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, name)

    def _formula(self, c: Cells, g: Tensor) -> None:
        m, v, rate = self._averages(c, g)
        ahead = c.number("beta1") * m + c.rest("beta1") * g
        c.subtract(rate * ahead / (sqrt(v) + c.number("epsilon")))

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        return None


class AdamaxOptimizer(FormulaOptimizer):
    """Adamax (Kingma and Ba, section 7.1): Adam with the decayed maximum norm in place of sqrt(v).

    `u = max(beta2 * u, |g|); var -= learning_rate / (1 - beta1^t) * m / (u + epsilon)`.
    """

    SLOTS = ("m", "v")
    STEP = True

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        name: str = "AdaMax",
    ) -> None:
        super().__init__(
            name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon
        )

    def _formula(self, c: Cells, g: Tensor) -> None:
        m = c.slot("m")
        m = m + (g - m) * c.rest("beta1")
        u = maximum(c.number("beta2") * c.slot("v"), abs(g))
        c.keep("m", m)
        c.keep("v", u)
        rate = c.rounded(c.exact("learning_rate") / bias_corrections(c, c.step())[0])
        c.subtract(rate * m / (u + c.number("epsilon")))
