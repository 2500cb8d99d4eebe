"""Functions of the op table and the inputs at their edges: zeros, infinities, NaN, largest floats.

Of each, `edges_tf.json` holds where TensorFlow's gradient is NaN while the incoming one is 0;
`edges_tf.py` wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ONE = {  # op -> where TensorFlow has its function of one tensor
    **{"Abs": "abs", "Neg": "negative", "Square": "square", "Sqrt": "sqrt", "Rsqrt": "rsqrt"},
    **{"Exp": "exp", "Log": "log", "Log1p": "log1p", "Sin": "sin", "Cos": "cos", "Tanh": "tanh"},
    **{"Sigmoid": "sigmoid", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan"},
    **{"Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh"},
    **{"Expm1": "math.expm1", "Reciprocal": "math.reciprocal", "Erf": "erf", "Erfc": "erfc"},
    **{"Lgamma": "lgamma", "Digamma": "digamma", "Relu": "nn.relu", "Relu6": "nn.relu6"},
    **{"Elu": "nn.elu", "Softplus": "nn.softplus", "Softmax": "nn.softmax"},
    **{"LogSoftmax": "nn.log_softmax", "L2Loss": "nn.l2_loss", "Max": "reduce_max"},
    **{"Min": "reduce_min", "Prod": "reduce_prod", "Sum": "reduce_sum", "Mean": "reduce_mean"},
    **{"LogSumExp": "reduce_logsumexp", "norm": "norm", "selu": "nn.selu"},
}
TWO = {  # op -> where TensorFlow has its function of two tensors
    **{"Add": "add", "Sub": "subtract", "Mul": "multiply", "RealDiv": "realdiv", "Pow": "pow"},
    **{"Maximum": "maximum", "Minimum": "minimum", "FloorMod": "floormod", "Atan2": "atan2"},
    **{"SquaredDifference": "math.squared_difference", "DivNoNan": "div_no_nan"},
    **{"MulNoNan": "math.multiply_no_nan", "Igamma": "igamma", "Igammac": "igammac"},
}
SECOND_ONLY = {"Igamma", "Igammac"}  # no derivative by the first
OVER_ROWS = {"Max", "Min", "Prod", "Sum", "Mean", "LogSumExp", "norm", "Softmax", "LogSoftmax"}


def edges(dtype: np.dtype) -> np.ndarray:
    """Numbers at which a function, its derivative or a product on the way may not be finite."""
    info = np.finfo(dtype)
    far = float(info.max)
    some = [0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, 10, -10, 100, -100, 300, 60000, -60000]
    return np.array([*some, far, -far, np.inf, -np.inf, np.nan], dtype)


def inputs(type: str, dtype: np.dtype) -> list[np.ndarray]:
    """What the function of an op is given; rows of numbers if it is one over rows."""
    x = edges(dtype)
    if type in TWO:
        return [np.ascontiguousarray(a.ravel()) for a in np.meshgrid(x, x)]
    if type in OVER_ROWS:
        first, second = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(x, x))
        return [np.stack([first, second, np.ones_like(first)], 1)]
    return [x]


def gradients(module: Any, type: str, dtype: np.dtype) -> list[np.ndarray]:
    """The gradients by the inputs, of which the incoming one is 0; `module` is TensorFlow or us."""
    function: Callable[..., Any] = module
    for part in {**ONE, **TWO}[type].split("."):
        function = getattr(function, part)
    given = inputs(type, dtype)
    with module.Graph().as_default():
        fed = [module.placeholder(dtype, x.shape) for x in given]
        reduces = type in OVER_ROWS and not type.endswith("oftmax")
        y = function(*fed, **({"axis": 1} if reduces else {}))
        by = fed[1:] if type in SECOND_ONLY else fed
        found = module.gradients(y, by, module.zeros_like(y))
        with module.Session() as session:
            return session.run(found, dict(zip(fed, given, strict=True)))


def where_nan(module: Any, type: str, dtype: np.dtype) -> list[list[int]]:
    """The flat positions at which each gradient is NaN; the others must be 0."""
    places = []
    for g in gradients(module, type, dtype):
        is_nan = np.isnan(g)
        assert (g[~is_nan] == 0).all(), f"{type} of {dtype}: the gradient is not 0 times something"
        places.append(np.flatnonzero(is_nan).tolist())
    return places
