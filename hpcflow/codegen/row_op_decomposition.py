"""Decomposition of row-wise operations (softmax, normalization, sums) into steps of a fused kernel.

Sums are in another order than NumPy's, so results differ by a few units in the last place. None of
these operations is used in exact mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_INDEX,
    COLUMN_SUM,
    FULL,
    MAX,
    NUMBER,
    OF_ROWS,
    ONE,
    ROW,
    SUM,
    KernelBody,
    KernelOperand,
    KernelStep,
)

INDEX = np.dtype("int64")


class StepBuilder:
    """A list of steps in the making; values are numbers, those of operands first."""

    def __init__(self, operands: tuple[KernelOperand, ...], cols: int) -> None:
        self.operands, self.cols = operands, cols
        self.steps: list[KernelStep] = []
        self.mappings = [operand.mapping for operand in operands]

    def __call__(self, type: str, *inputs: int, mapping: str = "", **attrs: Any) -> int:
        """Append a step; return its value."""
        return self.add(type, inputs, attrs, mapping or self._infer_mapping(type, inputs))

    def add(self, type: str, inputs: Sequence[int], attrs: Mapping[str, Any], mapping: str) -> int:
        """Append a step with the attributes of an operation; return its value."""
        self.steps.append(KernelStep(type, tuple(inputs), attrs, mapping))
        self.mappings.append(mapping)
        return len(self.mappings) - 1

    def number(self, value: float, like: Any) -> int:
        """A constant of the dtype `like`."""
        return self(NUMBER, mapping=ONE, value=value, dtype=like)

    def body(self, results: tuple[int, ...]) -> KernelBody:
        """The finished body; `results` are stored."""
        return KernelBody(self.operands, tuple(self.steps), results, self.cols)

    def _infer_mapping(self, type: str, inputs: tuple[int, ...]) -> str:
        if type in OF_ROWS:
            return COLUMN
        if type == COLUMN_SUM:
            return ROW
        mappings = {self.mappings[i] for i in inputs}
        if mappings & {FULL, ROW} or type == COLUMN_INDEX:
            return FULL
        return COLUMN if COLUMN in mappings else ONE


# (steps, dtype, attributes, values of the inputs) -> values of the outputs
Expansion = Callable[..., tuple[int, ...]]
EXPANSIONS: dict[str, Expansion] = {}


def expansion(type: str) -> Callable[[Expansion], Expansion]:
    """Decorator: register the decomposition of an operation."""

    def add(write: Expansion) -> Expansion:
        EXPANSIONS[type] = write
        return write

    return add


def exponentials(s: StepBuilder, x: int) -> tuple[int, int, int]:
    """x minus the maximum of its row, the exponentials of that, and their sum."""
    shifted = s("Sub", x, s(MAX, x))
    powers = s("Exp", shifted)
    return shifted, powers, s(SUM, powers)


@expansion("Softmax")
def _softmax(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    _, powers, total = exponentials(s, x)
    return (s("Mul", powers, s("Reciprocal", total)),)


@expansion("SoftmaxGrad")
def _softmax_grad(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, y: int
) -> tuple[int, ...]:
    return (s("Mul", y, s("Sub", g, s(SUM, s("Mul", g, y)))),)


@expansion("LogSoftmax")
def _log_softmax(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    shifted, _, total = exponentials(s, x)
    return (s("Sub", shifted, s("Log", total)),)


@expansion("LogSoftmaxGrad")
def _log_softmax_grad(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, y: int
) -> tuple[int, ...]:
    return (s("Sub", g, s("Mul", s("Exp", y), s(SUM, g))),)


@expansion("SoftmaxCrossEntropy")
def _cross_entropy(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], logits: int, labels: int
) -> tuple[int, ...]:
    shifted, powers, total = exponentials(s, logits)
    normalizer = s("Mul", s("Log", total), s(SUM, labels))
    loss = s("Sub", normalizer, s(SUM, s("Mul", labels, shifted)))
    return loss, s("Sub", s("Mul", powers, s("Reciprocal", total)), labels)


@expansion("SparseSoftmaxCrossEntropy")
def _sparse_cross_entropy(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], logits: int, labels: int
) -> tuple[int, ...]:
    shifted, powers, total = exponentials(s, logits)
    label = s("Cast", labels, dtype=INDEX)
    if attrs.get("device") == "gpu":  # a GPU kernel cannot raise: a wrong label gives NaN
        within = s("GreaterEqual", label, s.number(0, INDEX))
        within = s("LogicalAnd", within, s("Less", label, s.number(s.cols, INDEX)))
        total = s("Select", within, total, s.number(np.nan, dtype))
    mask = s("Equal", s(COLUMN_INDEX), label)
    chosen = s("Select", mask, shifted, s.number(0, dtype))
    share = s("Mul", powers, s("Reciprocal", total))
    return s("Sub", s("Log", total), s(SUM, chosen)), s("Sub", share, s("Cast", mask, dtype=dtype))


@expansion("Normalize")
def _normalize(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    count = s.number(s.cols, dtype)
    mean = s("RealDiv", s(SUM, x), count)
    centered = s("Sub", x, mean)
    variance = s("RealDiv", s(SUM, s("Square", centered)), count)
    return s("Mul", centered, _scale(s, dtype, attrs, variance)), mean, variance


@expansion("NormalizeGrad")
def _normalize_grad(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, y: int, variance: int
) -> tuple[int, ...]:
    count = s.number(s.cols, dtype)
    along = s("RealDiv", s(SUM, s("Mul", g, y)), count)
    centered = s("Sub", s("Sub", g, s("RealDiv", s(SUM, g), count)), s("Mul", y, along))
    return (s("Mul", centered, _scale(s, dtype, attrs, variance)),)


def _scale(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], variance: int) -> int:
    return s("Rsqrt", s("Add", variance, s.number(attrs["epsilon"], dtype)))


@expansion("Sum")
@expansion("SumToShape")
def _sum(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int, *more: int
) -> tuple[int, ...]:
    return (s(SUM if attrs["way"] == COLUMN else COLUMN_SUM, x),)


@expansion("Mean")
def _mean(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    return (s("RealDiv", s(SUM, x), s.number(s.cols, dtype)),)


@expansion("Max")
def _max(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    return (s(MAX, x),)


@expansion("Min")
def _min(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    return (s("Neg", s(MAX, s("Neg", x))),)


@expansion("ExtremeGrad")
def _extreme_grad(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, x: int, y: int
) -> tuple[int, ...]:
    mask = s("Cast", s("Equal", x, y), dtype=dtype)
    count = s("Maximum", s(SUM, mask), s.number(1, dtype))  # 0 only with a NaN
    return (s("Mul", mask, s("RealDiv", g, count)),)


@expansion("LogSumExp")
def _log_sum_exp(s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], x: int) -> tuple[int, ...]:
    """About the maximum if that is finite, else about 0: the result is infinite or NaN."""
    top = s(MAX, x)
    about = s("Select", s("IsFinite", top), top, s.number(0, dtype))
    total = s(SUM, s("Exp", s("Sub", x, about)))
    return (s("Add", s("Log", total), about),)


@expansion("SumGrad")
@expansion("BroadcastTo")
def _spread(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, *more: int
) -> tuple[int, ...]:
    return (s("Identity", g, mapping=FULL),)


@expansion("MeanGrad")
def _mean_grad(
    s: StepBuilder, dtype: Any, attrs: Mapping[str, Any], g: int, *more: int
) -> tuple[int, ...]:
    return (s("Identity", s("RealDiv", g, s.number(attrs["count"], dtype)), mapping=FULL),)
