"""Initializers `hf.initializers`: the names of TensorFlow 1's module."""

from hpcflow.ops.variables.initializer_objects import Constant as constant
from hpcflow.ops.variables.initializer_objects import GlorotNormal as glorot_normal
from hpcflow.ops.variables.initializer_objects import GlorotUniform as glorot_uniform
from hpcflow.ops.variables.initializer_objects import Identity as identity
from hpcflow.ops.variables.initializer_objects import Ones as ones
from hpcflow.ops.variables.initializer_objects import Orthogonal as orthogonal
from hpcflow.ops.variables.initializer_objects import RandomNormal as random_normal
from hpcflow.ops.variables.initializer_objects import RandomUniform as random_uniform
from hpcflow.ops.variables.initializer_objects import TruncatedNormal as truncated_normal
from hpcflow.ops.variables.initializer_objects import UniformUnitScaling as uniform_unit_scaling
from hpcflow.ops.variables.initializer_objects import VarianceScaling as variance_scaling
from hpcflow.ops.variables.initializer_objects import Zeros as zeros
from hpcflow.ops.variables.initializer_objects import (
    he_normal,
    he_uniform,
    lecun_normal,
    lecun_uniform,
)
from hpcflow.ops.variables.variable_ops import global_variables_initializer as global_variables
from hpcflow.ops.variables.variable_ops import local_variables_initializer as local_variables
from hpcflow.ops.variables.variable_ops import variables_initializer as variables
from hpcflow.platform.exception_translation import guard_module

__all__ = [
    "constant",
    "global_variables",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "local_variables",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "uniform_unit_scaling",
    "variables",
    "variance_scaling",
    "zeros",
]

guard_module(globals(), __all__)
