"""Adagrad optimizers: each element scaled by its squared gradients; Adadelta, RMSProp, FTRL."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import DTypeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.graph import Tensor
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    greater,
    maximum,
    pow,
    rsqrt,
    sign,
    sqrt,
    square,
    where,
)
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.train.optimizers.gradient_descent import shrunk
from hpcflow.train.optimizers.update_formula import Cells, FormulaOptimizer


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise DTypeError(f"{name} must be positive, not {value}")
    return value


class AdagradOptimizer(FormulaOptimizer):
    """Adagrad (Duchi, Hazan, Singer 2011): `accum += g * g; var -= rate * g / sqrt(accum)`."""

    SLOTS = ("accumulator",)

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        name: str = "Adagrad",
    ) -> None:
        super().__init__(name, learning_rate=learning_rate)
        self._initial = _positive("initial_accumulator_value", initial_accumulator_value)

    def _start(self, name: str, var: Variable) -> float:
        return self._initial

    def _formula(self, c: Cells, g: Tensor) -> None:
        accum = c.slot("accumulator") + square(g)
        c.keep("accumulator", accum)
        c.subtract(c.number("learning_rate") * g * rsqrt(accum))


class ProximalAdagradOptimizer(FormulaOptimizer):
    """Adagrad's rate for each element, then the proximal step of L1 and L2 penalties."""

    SLOTS = ("accumulator",)

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "ProximalAdagrad",
    ) -> None:
        super().__init__(
            name,
            learning_rate=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
        )
        self._initial = _positive("initial_accumulator_value", initial_accumulator_value)

    def _start(self, name: str, var: Variable) -> float:
        return self._initial

    def _formula(self, c: Cells, g: Tensor) -> None:
        accum = c.slot("accumulator") + square(g)
        c.keep("accumulator", accum)
        rate = c.number("learning_rate") * rsqrt(accum)
        c.set(shrunk(c.value - rate * g, rate, c))


class AdagradDAOptimizer(FormulaOptimizer):
    """Adagrad with dual averaging (Duchi, Hazan, Singer 2011): weights computed from all gradients.

    `global_step` counts the updates; pass it to `minimize` too.
    """

    SLOTS = ("gradient_accumulator", "gradient_squared_accumulator")

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "AdagradDA",
    ) -> None:
        super().__init__(
            name,
            learning_rate=learning_rate,
            global_step=global_step,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
        )
        self._initial = _positive(
            "initial_gradient_squared_accumulator_value", initial_gradient_squared_accumulator_value
        )

    def _start(self, name: str, var: Variable) -> float:
        return self._initial if name == "gradient_squared_accumulator" else 0

    def _formula(self, c: Cells, g: Tensor) -> None:
        total = c.slot("gradient_accumulator") + g
        squares = c.slot("gradient_squared_accumulator") + square(g)
        c.keep("gradient_accumulator", total)
        c.keep("gradient_squared_accumulator", squares)
        rate, step = c.number("learning_rate"), c.number("global_step") + 1
        cut = sign(total) * maximum(abs(total) - step * c.number("l1"), 0)
        c.set(-rate * cut / (c.number("l2") * step * rate + sqrt(squares)))


class AdadeltaOptimizer(FormulaOptimizer):
    """Adadelta (Zeiler, arXiv:1212.5701), with its step multiplied by `learning_rate`."""

    SLOTS = ("accum", "accum_update")

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-8,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, rho=rho, epsilon=epsilon)

    def _formula(self, c: Cells, g: Tensor) -> None:
        rho, rest, epsilon = c.number("rho"), c.rest("rho"), c.number("epsilon")
        accum, moved = rho * c.slot("accum") + rest * square(g), c.slot("accum_update")
        delta = sqrt(moved + epsilon) * rsqrt(accum + epsilon) * g
        c.keep("accum", accum)
        c.keep("accum_update", rho * moved + rest * square(delta))
        c.subtract(c.number("learning_rate") * delta)


class RMSPropOptimizer(FormulaOptimizer):
    """RMSProp (Tieleman and Hinton 2012) with momentum, as in TensorFlow 1.

    `ms = decay * ms + (1 - decay) * g * g`, from 1; `mom = momentum * mom + rate * g / sqrt(ms +
    epsilon)`; `var -= mom`. With `centered` (Graves, arXiv:1308.0850) the square of the gradients'
    moving average is subtracted from ms.
    """

    SLOTS: tuple[str, ...] = ("rms", "momentum")

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(
            name, learning_rate=learning_rate, decay=decay, momentum=momentum, epsilon=epsilon
        )
        self._centered = bool(centered)
        if centered:
            self.SLOTS = ("rms", "momentum", "mg")

    def _start(self, name: str, var: Variable) -> float:
        return 1 if name == "rms" else 0

    def _formula(self, c: Cells, g: Tensor) -> None:
        decay, rest = c.number("decay"), c.rest("decay")
        ms = decay * c.slot("rms") + rest * square(g)
        c.keep("rms", ms)
        below = ms + c.number("epsilon")
        if self._centered:
            mean = decay * c.slot("mg") + rest * g
            c.keep("mg", mean)
            below = below - square(mean)
        moved = c.number("momentum") * c.slot("momentum") + c.number("learning_rate") * g * rsqrt(
            below
        )
        c.keep("momentum", moved)
        c.subtract(moved)


class FtrlOptimizer(FormulaOptimizer):
    """FTRL-Proximal (McMahan et al. 2013); `l2_shrinkage...` is a penalty on the loss itself.

    `accum` is the sum of squared gradients. `linear` is the sum of gradients, corrected for the
    changes of the weights. A weight is zero while `|linear| <= l1`.
    """

    SLOTS = ("accum", "linear")

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        if learning_rate_power > 0:
            raise DTypeError(f"learning_rate_power must be at most 0, not {learning_rate_power}")
        super().__init__(
            name,
            learning_rate=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
            shrinkage=l2_shrinkage_regularization_strength,
            power=-learning_rate_power,
        )
        self._initial = _positive("initial_accumulator_value", initial_accumulator_value)

    def _start(self, name: str, var: Variable) -> float:
        return self._initial if name == "accum" else 0

    def _formula(self, c: Cells, g: Tensor) -> None:
        rate, power, l1, value = (
            c.number("learning_rate"),
            c.number("power"),
            c.number("l1"),
            c.value,
        )
        before = c.slot("accum")
        accum = before + square(g)
        grown = pow(accum, power)
        sigma = (grown - pow(before, power)) / rate
        linear = c.slot("linear") + g + 2 * c.number("shrinkage") * value - sigma * value
        c.keep("accum", accum)
        c.keep("linear", linear)
        solved = (sign(linear) * l1 - linear) / (grown / rate + 2 * c.number("l2"))
        c.set(where(greater(abs(linear), l1), solved, 0))
