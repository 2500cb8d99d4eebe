"""Learning rate schedules: learning rates as tensors that depend on the global step.

They are computed in float64, which represents every step exactly, and cast to the dtype of the
rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32, float64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.ops.array.array_ops import as_scalar
from hpcflow.ops.math.arithmetic_ops import (
    cast,
    cos,
    equal,
    exp,
    less,
    less_equal,
    log,
    maximum,
    minimum,
    pow,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import ceil, floor


def _number(value: Any) -> Any:
    """A Python number unchanged; a tensor or variable cast to float64."""
    if isinstance(value, (int, float)):
        return float(value)
    return cast(convert_to_tensor(value), float64)


def _decayed_rate(
    rate: Any, global_step: Any, name: str, make: Callable[[Any, Tensor], Any]
) -> Tensor:
    """`make(rate, step)` in float64, cast to the dtype of `rate` (a number: float32)."""
    if global_step is None:
        raise ShapeError(
            f"{name} needs a global_step", hint="give hf.train.get_or_create_global_step()"
        )
    plain = isinstance(rate, (int, float))
    rate = float(rate) if plain else convert_to_tensor(rate)
    dtype = float32 if plain else rate.dtype
    with get_default_graph().name_scope(name):
        step = cast(convert_to_tensor(global_step), float64)
        decayed = make(rate if plain else cast(rate, float64), step)
        return cast(convert_to_tensor(decayed), dtype)


def _power(base: Any, exponent: Tensor) -> Tensor:
    return pow(convert_to_tensor(np.float64(base)) if isinstance(base, float) else base, exponent)


def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * decay_rate ^ (global_step / decay_steps)`; `staircase`: whole periods."""
    steps, base = _number(decay_steps), _number(decay_rate)

    def make(rate: Any, step: Tensor) -> Tensor:
        periods = step / steps
        return rate * _power(base, floor(periods) if staircase else periods)

    return _decayed_rate(learning_rate, global_step, name or "ExponentialDecay", make)


def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`."""
    steps, decay = _number(decay_steps), _number(decay_rate)

    def make(rate: Any, step: Tensor) -> Tensor:
        periods = step / steps
        return rate * exp(-decay * (floor(periods) if staircase else periods))

    return _decayed_rate(learning_rate, global_step, name or "NaturalExpDecay", make)


def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`."""
    steps, decay = _number(decay_steps), _number(decay_rate)

    def make(rate: Any, step: Tensor) -> Tensor:
        periods = step / steps
        return rate / (1.0 + decay * (floor(periods) if staircase else periods))

    return _decayed_rate(learning_rate, global_step, name or "InverseTimeDecay", make)


def piecewise_constant(
    x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None
) -> Tensor:
    """`values[i]` for `boundaries[i - 1] < x <= boundaries[i]`; one more value than boundaries.

    Errors: ShapeError for another number of values, or boundaries that do not increase.
    """
    if len(values) != len(boundaries) + 1:
        raise ShapeError(
            f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}"
        )
    plain = [b for b in boundaries if isinstance(b, (int, float))]
    if len(plain) == len(boundaries) and any(a >= b for a, b in pairwise(plain)):
        raise ShapeError(f"the boundaries {list(boundaries)} do not increase")
    with get_default_graph().name_scope(name or "PiecewiseConstant"):
        step = as_scalar(x)
        rate = convert_to_tensor(values[-1])
        for bound, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
            rate = where(less_equal(step, bound), convert_to_tensor(value, rate.dtype), rate)
        return rate


def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """`(rate - end) * (1 - step / decay_steps) ^ power + end`; constant after `decay_steps`.

    With `cycle` the period is extended by `decay_steps` each time it is reached.
    """
    period, end, exponent = _number(decay_steps), _number(end_learning_rate), _number(power)

    def make(rate: Any, step: Tensor) -> Tensor:
        if cycle:
            span = period * where(equal(step, 0), 1.0, ceil(step / period))
        else:
            span, step = period, minimum(step, period)
        return (rate - end) * pow(1.0 - step / span, exponent) + end

    return _decayed_rate(learning_rate, global_step, name or "PolynomialDecay", make)


def cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    alpha: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Cosine decay from the rate to `alpha` times it (Loshchilov and Hutter, arXiv:1608.03983)."""
    period = _number(decay_steps)

    def make(rate: Any, step: Tensor) -> Tensor:
        fall = 0.5 * (1.0 + cos(math.pi * minimum(step, period) / period))
        return rate * ((1.0 - alpha) * fall + alpha)

    return _decayed_rate(learning_rate, global_step, name or "CosineDecay", make)


def cosine_decay_restarts(
    learning_rate: Any,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Cosine decay with restarts: a period is `t_mul` times as long, the rate `m_mul` times."""
    first = _number(first_decay_steps)

    def make(rate: Any, step: Tensor) -> Tensor:
        progress = step / first
        if t_mul == 1.0:
            number = floor(progress)
            part = progress - number
        else:
            number = floor(log(1.0 - progress * (1.0 - t_mul)) / math.log(t_mul))
            length = _power(float(t_mul), number)
            part = (progress - (1.0 - length) / (1.0 - t_mul)) / length
        fall = 0.5 * _power(float(m_mul), number) * (1.0 + cos(math.pi * part))
        return rate * ((1.0 - alpha) * fall + alpha)

    return _decayed_rate(learning_rate, global_step, name or "SGDRDecay", make)


def linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> Tensor:
    """`(alpha + linear) * cosine + beta`, times the rate (Bello et al., arXiv:1709.07417)."""
    period = _number(decay_steps)

    def make(rate: Any, step: Tensor) -> Tensor:
        part = minimum(step, period) / period
        fall = 0.5 * (1.0 + cos(math.pi * 2.0 * num_periods * part))
        return rate * ((alpha + 1.0 - part) * fall + beta)

    return _decayed_rate(learning_rate, global_step, name or "LinearCosineDecay", make)


def linear_warmup(
    learning_rate: Any,
    global_step: Any,
    warmup_steps: Any,
    start_learning_rate: Any = 0.0,
    name: str | None = None,
) -> Tensor:
    """Linear increase from `start_learning_rate` to `learning_rate`, which may be a schedule."""
    period, start = _number(warmup_steps), _number(start_learning_rate)

    def make(rate: Any, step: Tensor) -> Tensor:
        part = minimum(step / maximum(convert_to_tensor(period, float64), 1.0), 1.0)
        return where(less(step, period), start + (rate - start) * part, rate)

    return _decayed_rate(learning_rate, global_step, name or "LinearWarmup", make)


def noam_decay(
    learning_rate: Any,
    global_step: Any,
    model_size: int,
    warmup_steps: Any = 4000,
    name: str | None = None,
) -> Tensor:
    """`rate * model_size^-0.5 * min(t^-0.5, t * warmup_steps^-1.5)`, t = global_step + 1.

    Source: Vaswani et al., arXiv:1706.03762, section 5.3.
    """
    period = _number(warmup_steps)

    def make(rate: Any, step: Tensor) -> Tensor:
        t = step + 1.0
        return rate * model_size**-0.5 * minimum(pow(t, -0.5), t * period**-1.5)

    return _decayed_rate(learning_rate, global_step, name or "NoamDecay", make)
