"""Arithmetic, comparison, logic, casts and activations: one value at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import float64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx import dtypes
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops import bits, elementwise, math, nn, special
from hpcflow.ops.array import identity

# -- operators that are functions of ours, input by input

_SAME: dict[str, Callable[..., Tensor]] = {
    **{"Abs": math.abs, "Neg": math.negative, "Sign": math.sign, "Sqrt": math.sqrt},
    **{"Exp": math.exp, "Log": math.log, "Sin": math.sin, "Cos": math.cos, "Tanh": math.tanh},
    **{"Sigmoid": math.sigmoid, "Relu": nn.relu, "Softplus": nn.softplus, "Erf": special.erf},
    **{"Tan": elementwise.tan, "Asin": elementwise.asin, "Acos": elementwise.acos},
    **{"Atan": elementwise.atan, "Sinh": elementwise.sinh, "Cosh": elementwise.cosh},
    **{"Asinh": elementwise.asinh, "Acosh": elementwise.acosh, "Atanh": elementwise.atanh},
    **{"Floor": elementwise.floor, "Ceil": elementwise.ceil, "Round": elementwise.rint},
    **{"Reciprocal": elementwise.reciprocal, "IsNaN": elementwise.is_nan},
    **{"Add": math.add, "Sub": math.subtract, "Mul": math.multiply},
    **{"Equal": math.equal, "Less": math.less, "LessOrEqual": math.less_equal},
    **{"Greater": math.greater, "GreaterOrEqual": math.greater_equal},
    **{"And": math.logical_and, "Or": math.logical_or, "Xor": math.logical_xor},
    **{"Not": math.logical_not, "Where": math.where_v2},
    **{"BitwiseAnd": bits.bitwise_and, "BitwiseOr": bits.bitwise_or},
    **{"BitwiseXor": bits.bitwise_xor, "BitwiseNot": bits.invert},
}


def _same(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def build(node: Node, *inputs: Tensor) -> Tensor:
        return function(*inputs)


for _name, _function in _SAME.items():
    _same(_name, _function)


# -- of any number of inputs


def _variadic(name: str, function: Callable[[Any, Any], Tensor]) -> None:
    @imports(name)
    def build(node: Node, *inputs: Tensor) -> Tensor:
        return functools.reduce(function, inputs) if len(inputs) > 1 else identity(inputs[0])


_variadic("Max", math.maximum)
_variadic("Min", math.minimum)
_variadic("Sum", math.add)


@imports("Mean")
def _mean(node: Node, *inputs: Tensor) -> Tensor:
    return math.divide(functools.reduce(math.add, inputs), float(len(inputs)))


# -- arithmetic that differs from ours for integers


@imports("Div")
def _div(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Integers are divided towards zero."""
    return math.divide(x, y) if x.dtype.kind in "fc" else elementwise.truncatediv(x, y)


@imports("Mod")
def _mod(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The sign is the divisor's, with fmod=1 the dividend's."""
    return (elementwise.truncatemod if node.attr("fmod", 0) else math.mod)(x, y)


@imports("Pow")
def _pow(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The result is as the base; a whole base with a broken exponent is raised as float64."""
    if x.dtype.kind in "iu" and y.dtype.kind == "f":
        return math.cast(math.pow(math.cast(x, float64), math.cast(y, float64)), x.dtype)
    return math.pow(x, math.cast(y, x.dtype))


@imports("BitShift")
def _bit_shift(node: Node, x: Tensor, y: Tensor) -> Tensor:
    left = node.attr("direction") == "LEFT"
    return (bits.left_shift if left else bits.right_shift)(x, y)


@imports("IsInf")
def _is_inf(node: Node, x: Tensor) -> Tensor:
    found = elementwise.is_inf(x)
    if not node.attr("detect_positive", 1):
        found = math.logical_and(found, math.less(x, 0))
    if not node.attr("detect_negative", 1):
        found = math.logical_and(found, math.greater(x, 0))
    return found


# -- casts and bounds


@imports("Cast")
def _cast(node: Node, x: Tensor) -> Tensor:
    return _cast_to(node, x, node.attr("to"))


@imports("CastLike")
def _cast_like(node: Node, x: Tensor, target: Tensor) -> Tensor:
    return _cast_to(node, x, node.elem_type(target))


@imports("BitCast")
def _bit_cast(node: Node, x: Tensor) -> Tensor:
    elem_type = node.attr("to")
    if dtypes.is_narrow(elem_type) or dtypes.is_narrow(node.elem_type(x)):
        raise node.declined("the bits of narrow types are not kept")
    return bits.bitcast(x, dtypes.from_onnx(elem_type))


@imports("Binarizer", domain="ai.onnx.ml")
def _binarizer(node: Node, x: Tensor) -> Tensor:
    return math.cast(math.greater(x, x.dtype.type(node.attr("threshold", 0.0))), x.dtype)


def _cast_to(node: Node, x: Tensor, elem_type: int) -> Tensor:
    saturate = bool(node.attr("saturate", 1))
    return node.marked(identity(dtypes.cast(x, elem_type, saturate)), elem_type)


@imports("Clip")
def _clip_by_attributes(node: Node, x: Tensor) -> Tensor:
    return _clip(node, x, node.attr("min"), node.attr("max"))


@imports("Clip", since=11)
def _clip(node: Node, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is not None:
        x = math.maximum(x, low)
    return identity(x) if high is None else math.minimum(x, high)


# -- activations


@imports("LeakyRelu")
def _leaky_relu(node: Node, x: Tensor) -> Tensor:
    return math.where(math.less(x, 0), math.multiply(x, node.attr("alpha", 0.01)), x)


@imports("PRelu")
def _prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return math.where(math.less(x, 0), math.multiply(x, slope), x)


@imports("Elu")
def _elu(node: Node, x: Tensor) -> Tensor:
    alpha = node.attr("alpha", 1.0)
    return nn.elu(x) if alpha == 1 else scaled_elu(x, alpha, 1.0)


@imports("Selu")
def _selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = 1.67326319217681884765625, 1.05070102214813232421875
    return scaled_elu(x, node.attr("alpha", alpha), node.attr("gamma", gamma))


def scaled_elu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """`gamma x` above 0, `gamma alpha (exp(x) - 1)` below."""
    below = math.multiply(nn.elu(math.minimum(x, 0)), alpha)
    y = math.add(math.maximum(x, 0), below)
    return y if gamma == 1 else math.multiply(y, gamma)


@imports("HardSigmoid")
def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return hard_sigmoid(x, node.attr("alpha", 0.2), node.attr("beta", 0.5))


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """`alpha x + beta`, cut at 0 and 1."""
    return math.clip_by_value(math.add(math.multiply(x, alpha), beta), 0.0, 1.0)


@imports("HardSwish")
def _hard_swish(node: Node, x: Tensor) -> Tensor:
    return math.multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


@imports("Gelu")
def _gelu(node: Node, x: Tensor) -> Tensor:
    if node.attr("approximate", "none") == "tanh":
        inner = math.add(x, math.multiply(math.multiply(math.square(x), x), 0.044715))
        share = math.tanh(math.multiply(inner, float(np.sqrt(2 / np.pi))))
    else:
        share = special.erf(math.multiply(x, float(np.sqrt(0.5))))
    return math.multiply(math.multiply(x, 0.5), math.add(share, 1.0))


@imports("Softsign")
def _softsign(node: Node, x: Tensor) -> Tensor:
    return math.divide(x, math.add(math.abs(x), 1.0))


@imports("ThresholdedRelu")
def _thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return math.where(math.greater(x, node.attr("alpha", 1.0)), x, 0.0)
