"""ONNX import of elementwise arithmetic, comparison, logic, casts and activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import float64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx import element_types
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import identity
from hpcflow.ops.math import arithmetic_ops, bitwise_ops, elementwise_math_ops, special_function_ops
from hpcflow.ops.nn import nn_ops

# -- operators equal to an op with the same inputs

_SAME: dict[str, Callable[..., Tensor]] = {
    **{
        "Abs": arithmetic_ops.abs,
        "Neg": arithmetic_ops.negative,
        "Sign": arithmetic_ops.sign,
        "Sqrt": arithmetic_ops.sqrt,
    },
    **{
        "Exp": arithmetic_ops.exp,
        "Log": arithmetic_ops.log,
        "Sin": arithmetic_ops.sin,
        "Cos": arithmetic_ops.cos,
        "Tanh": arithmetic_ops.tanh,
    },
    **{
        "Sigmoid": arithmetic_ops.sigmoid,
        "Relu": nn_ops.relu,
        "Softplus": nn_ops.softplus,
        "Erf": special_function_ops.erf,
    },
    **{
        "Tan": elementwise_math_ops.tan,
        "Asin": elementwise_math_ops.asin,
        "Acos": elementwise_math_ops.acos,
    },
    **{
        "Atan": elementwise_math_ops.atan,
        "Sinh": elementwise_math_ops.sinh,
        "Cosh": elementwise_math_ops.cosh,
    },
    **{
        "Asinh": elementwise_math_ops.asinh,
        "Acosh": elementwise_math_ops.acosh,
        "Atanh": elementwise_math_ops.atanh,
    },
    **{
        "Floor": elementwise_math_ops.floor,
        "Ceil": elementwise_math_ops.ceil,
        "Round": elementwise_math_ops.rint,
    },
    **{"Reciprocal": elementwise_math_ops.reciprocal, "IsNaN": elementwise_math_ops.is_nan},
    **{"Add": arithmetic_ops.add, "Sub": arithmetic_ops.subtract, "Mul": arithmetic_ops.multiply},
    **{
        "Equal": arithmetic_ops.equal,
        "Less": arithmetic_ops.less,
        "LessOrEqual": arithmetic_ops.less_equal,
    },
    **{"Greater": arithmetic_ops.greater, "GreaterOrEqual": arithmetic_ops.greater_equal},
    **{
        "And": arithmetic_ops.logical_and,
        "Or": arithmetic_ops.logical_or,
        "Xor": arithmetic_ops.logical_xor,
    },
    **{"Not": arithmetic_ops.logical_not, "Where": arithmetic_ops.where_v2},
    **{"BitwiseAnd": bitwise_ops.bitwise_and, "BitwiseOr": bitwise_ops.bitwise_or},
    **{"BitwiseXor": bitwise_ops.bitwise_xor, "BitwiseNot": bitwise_ops.invert},
}


def _register_direct(name: str, function: Callable[..., Tensor]) -> None:
    @imports(name)
    def build(node: OnnxNode, *inputs: Tensor) -> Tensor:
        return function(*inputs)


for _name, _function in _SAME.items():
    _register_direct(_name, _function)


# -- variadic operators


def _variadic(name: str, function: Callable[[Any, Any], Tensor]) -> None:
    @imports(name)
    def build(node: OnnxNode, *inputs: Tensor) -> Tensor:
        return functools.reduce(function, inputs) if len(inputs) > 1 else identity(inputs[0])


_variadic("Max", arithmetic_ops.maximum)
_variadic("Min", arithmetic_ops.minimum)
_variadic("Sum", arithmetic_ops.add)


@imports("Mean")
def _mean(node: OnnxNode, *inputs: Tensor) -> Tensor:
    return arithmetic_ops.divide(functools.reduce(arithmetic_ops.add, inputs), float(len(inputs)))


# -- arithmetic with other rules for integers than here


@imports("Div")
def _div(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """Integer division truncates towards zero."""
    return (
        arithmetic_ops.divide(x, y)
        if x.dtype.kind in "fc"
        else elementwise_math_ops.truncatediv(x, y)
    )


@imports("Mod")
def _mod(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """The sign is that of the divisor, with fmod=1 that of the dividend."""
    return (elementwise_math_ops.truncatemod if node.attr("fmod", 0) else arithmetic_ops.mod)(x, y)


@imports("Pow")
def _pow(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    """The result has the base's type; an integer base with a float exponent uses float64."""
    if x.dtype.kind in "iu" and y.dtype.kind == "f":
        return arithmetic_ops.cast(
            arithmetic_ops.pow(arithmetic_ops.cast(x, float64), arithmetic_ops.cast(y, float64)),
            x.dtype,
        )
    return arithmetic_ops.pow(x, arithmetic_ops.cast(y, x.dtype))


@imports("BitShift")
def _bit_shift(node: OnnxNode, x: Tensor, y: Tensor) -> Tensor:
    is_left = node.attr("direction") == "LEFT"
    return (bitwise_ops.left_shift if is_left else bitwise_ops.right_shift)(x, y)


@imports("IsInf")
def _is_inf(node: OnnxNode, x: Tensor) -> Tensor:
    mask = elementwise_math_ops.is_inf(x)
    if not node.attr("detect_positive", 1):
        mask = arithmetic_ops.logical_and(mask, arithmetic_ops.less(x, 0))
    if not node.attr("detect_negative", 1):
        mask = arithmetic_ops.logical_and(mask, arithmetic_ops.greater(x, 0))
    return mask


# -- casts and bounds


@imports("Cast")
def _cast(node: OnnxNode, x: Tensor) -> Tensor:
    return _cast_to(node, x, node.attr("to"))


@imports("CastLike")
def _cast_like(node: OnnxNode, x: Tensor, target: Tensor) -> Tensor:
    return _cast_to(node, x, node.elem_type(target))


@imports("BitCast")
def _bit_cast(node: OnnxNode, x: Tensor) -> Tensor:
    elem_type = node.attr("to")
    if element_types.is_narrow(elem_type) or element_types.is_narrow(node.elem_type(x)):
        raise node.declined("narrow types are not supported: their bits are not kept")
    return bitwise_ops.bitcast(x, element_types.from_onnx(elem_type))


@imports("Binarizer", domain="ai.onnx.ml")
def _binarizer(node: OnnxNode, x: Tensor) -> Tensor:
    return arithmetic_ops.cast(
        arithmetic_ops.greater(x, x.dtype.type(node.attr("threshold", 0.0))), x.dtype
    )


def _cast_to(node: OnnxNode, x: Tensor, elem_type: int) -> Tensor:
    saturate = bool(node.attr("saturate", 1))
    return node.marked(identity(element_types.cast(x, elem_type, saturate)), elem_type)


@imports("Clip")
def _clip_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    return _clip(node, x, node.attr("min"), node.attr("max"))


@imports("Clip", since=11)
def _clip(node: OnnxNode, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is not None:
        x = arithmetic_ops.maximum(x, low)
    return identity(x) if high is None else arithmetic_ops.minimum(x, high)


# -- activations


@imports("LeakyRelu")
def _leaky_relu(node: OnnxNode, x: Tensor) -> Tensor:
    return arithmetic_ops.where(
        arithmetic_ops.less(x, 0), arithmetic_ops.multiply(x, node.attr("alpha", 0.01)), x
    )


@imports("PRelu")
def _prelu(node: OnnxNode, x: Tensor, slope: Tensor) -> Tensor:
    return arithmetic_ops.where(arithmetic_ops.less(x, 0), arithmetic_ops.multiply(x, slope), x)


@imports("Elu")
def _elu(node: OnnxNode, x: Tensor) -> Tensor:
    alpha = node.attr("alpha", 1.0)
    return nn_ops.elu(x) if alpha == 1 else scaled_elu(x, alpha, 1.0)


@imports("Selu")
def _selu(node: OnnxNode, x: Tensor) -> Tensor:
    alpha, gamma = 1.67326319217681884765625, 1.05070102214813232421875
    return scaled_elu(x, node.attr("alpha", alpha), node.attr("gamma", gamma))


def scaled_elu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """Selu: `gamma x` for x > 0, otherwise `gamma alpha (exp(x) - 1)`."""
    below = arithmetic_ops.multiply(nn_ops.elu(arithmetic_ops.minimum(x, 0)), alpha)
    y = arithmetic_ops.add(arithmetic_ops.maximum(x, 0), below)
    return y if gamma == 1 else arithmetic_ops.multiply(y, gamma)


@imports("HardSigmoid")
def _hard_sigmoid(node: OnnxNode, x: Tensor) -> Tensor:
    return hard_sigmoid(x, node.attr("alpha", 0.2), node.attr("beta", 0.5))


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """HardSigmoid: `alpha x + beta`, clipped to [0, 1]."""
    return arithmetic_ops.clip_by_value(
        arithmetic_ops.add(arithmetic_ops.multiply(x, alpha), beta), 0.0, 1.0
    )


@imports("HardSwish")
def _hard_swish(node: OnnxNode, x: Tensor) -> Tensor:
    return arithmetic_ops.multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


@imports("Gelu")
def _gelu(node: OnnxNode, x: Tensor) -> Tensor:
    if node.attr("approximate", "none") == "tanh":
        inner = arithmetic_ops.add(
            x,
            arithmetic_ops.multiply(arithmetic_ops.multiply(arithmetic_ops.square(x), x), 0.044715),
        )
        share = arithmetic_ops.tanh(arithmetic_ops.multiply(inner, float(np.sqrt(2 / np.pi))))
    else:
        share = special_function_ops.erf(arithmetic_ops.multiply(x, float(np.sqrt(0.5))))
    return arithmetic_ops.multiply(arithmetic_ops.multiply(x, 0.5), arithmetic_ops.add(share, 1.0))


@imports("Softsign")
def _softsign(node: OnnxNode, x: Tensor) -> Tensor:
    return arithmetic_ops.divide(x, arithmetic_ops.add(arithmetic_ops.abs(x), 1.0))


@imports("ThresholdedRelu")
def _thresholded_relu(node: OnnxNode, x: Tensor) -> Tensor:
    return arithmetic_ops.where(arithmetic_ops.greater(x, node.attr("alpha", 1.0)), x, 0.0)
