# ruff: noqa: E402
"""hpcflow trains models on supercomputers as one dataflow graph over MPI ranks.

`import hpcflow as hf`; this page is the public API. Names are TensorFlow 1's where the thing is the
same (docs/tf1.md lists them all). Importing it loads the standard library and numpy only; what
runs graphs is loaded when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcflow import errors, threads

threads.chosen()  # the pools of BLAS and OpenMP are sized when numpy loads, which is next

from hpcflow import nn
from hpcflow.autodiff import gradients, hessians
from hpcflow.graph.dtypes import (
    as_dtype,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from hpcflow.graph.dtypes import bool_ as bool
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    reset_default_graph,
)
from hpcflow.graph.scopes import (
    add_to_collection,
    colocate_with,
    control_dependencies,
    device,
    get_collection,
    name_scope,
)
from hpcflow.graph.shape import Spec
from hpcflow.ops.array import (
    constant,
    expand_dims,
    identity,
    placeholder,
    placeholder_with_default,
    range,
    rank,
    reshape,
    shape,
    size,
    squeeze,
    stop_gradient,
    transpose,
)
from hpcflow.ops.broadcast import broadcast_to, fill, ones, ones_like, zeros, zeros_like
from hpcflow.ops.comm import replica_share, replica_sum
from hpcflow.ops.control import group, no_op, tuple
from hpcflow.ops.custom import (
    NoGradient,
    NotDifferentiable,
    RegisterGradient,
    custom_gradient,
    identity_n,
)
from hpcflow.ops.custom import own_op as op
from hpcflow.ops.host import (
    Assert,
    Print,
    add_check_numerics_ops,
    py_func,
    verify_tensor_all_finite,
)
from hpcflow.ops.initializers import glorot_normal, glorot_uniform, he_normal, he_uniform
from hpcflow.ops.join import concat, pad, split, stack, tile, unstack
from hpcflow.ops.math import (
    abs,
    add,
    add_n,
    cast,
    check_numerics,
    clip_by_value,
    cos,
    divide,
    equal,
    exp,
    floordiv,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mod,
    multiply,
    negative,
    not_equal,
    pow,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
    truediv,
    where,
)
from hpcflow.ops.matmul import matmul
from hpcflow.ops.random import random_normal, random_uniform, set_random_seed, truncated_normal
from hpcflow.ops.reduce import (
    argmax,
    argmin,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from hpcflow.ops.slicing import gather, one_hot, slice
from hpcflow.ops.state import (
    Variable,
    assign,
    assign_add,
    assign_sub,
    global_variables,
    global_variables_initializer,
    trainable_variables,
    variables_initializer,
)
from hpcflow.recompute import recompute

if TYPE_CHECKING:
    from hpcflow import data, train
    from hpcflow.kernels.table import kernel
    from hpcflow.runtime.device import Device, register_device
    from hpcflow.runtime.session import Session

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "Assert", "Device", "Graph", "NoGradient", "NotDifferentiable", "Operation", "Print",
    "RegisterGradient", "Session", "Spec", "Tensor", "Variable", "abs", "add",
    "add_check_numerics_ops", "add_n", "add_to_collection", "argmax", "argmin", "as_dtype",
    "assign", "assign_add", "assign_sub", "bool", "broadcast_to", "cast", "check_numerics",
    "clip_by_value", "colocate_with", "complex64", "complex128", "concat", "constant",
    "control_dependencies", "convert_to_tensor", "cos", "custom_gradient", "data", "device",
    "divide", "equal", "errors", "exp", "expand_dims", "fill", "float16", "float32", "float64",
    "floordiv", "gather", "get_collection", "get_default_graph", "global_variables",
    "global_variables_initializer", "glorot_normal", "glorot_uniform", "gradients", "greater",
    "greater_equal", "group", "he_normal", "he_uniform", "hessians", "identity", "identity_n",
    "int8", "int16", "int32", "int64", "kernel", "less", "less_equal", "log", "log1p",
    "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "maximum", "minimum",
    "mod", "multiply", "name_scope", "negative", "nn", "no_op", "not_equal", "one_hot", "ones",
    "ones_like", "op", "pad", "placeholder", "placeholder_with_default", "pow", "py_func",
    "random_normal", "random_uniform", "range", "rank", "recompute", "reduce_all", "reduce_any",
    "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum",
    "register_device", "replica_share", "replica_sum", "reset_default_graph", "reshape", "rsqrt",
    "set_random_seed", "shape", "sigmoid", "sign", "sin", "size", "slice", "split", "sqrt",
    "square", "squeeze", "stack", "stop_gradient", "subtract", "tanh", "tile", "train",
    "trainable_variables", "transpose", "truediv", "truncated_normal", "tuple", "uint8", "uint16",
    "uint32", "uint64", "unstack", "variables_initializer", "verify_tensor_all_finite", "where",
    "zeros", "zeros_like",
]
# fmt: on

# Public names that need the runtime -> where they are; a module's own name stands for all of it.
_RUNTIME = {
    "Device": "hpcflow.runtime.device",
    "Session": "hpcflow.runtime.session",
    "data": "hpcflow.data",
    "kernel": "hpcflow.kernels.table",
    "register_device": "hpcflow.runtime.device",
    "train": "hpcflow.train",
}


def __getattr__(name: str) -> Any:
    if name not in _RUNTIME:
        raise AttributeError(f"module 'hpcflow' has no attribute {name!r} (see docs/tf1.md)")
    import importlib

    module = importlib.import_module(_RUNTIME[name])
    value = module if module.__name__ == f"hpcflow.{name}" else getattr(module, name)
    globals()[name] = value
    return value
