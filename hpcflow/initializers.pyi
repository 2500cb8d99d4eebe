"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
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
from hpcflow.ops.variables.initializer_objects import he_normal as he_normal
from hpcflow.ops.variables.initializer_objects import he_uniform as he_uniform
from hpcflow.ops.variables.initializer_objects import lecun_normal as lecun_normal
from hpcflow.ops.variables.initializer_objects import lecun_uniform as lecun_uniform
from hpcflow.ops.variables.variable_ops import global_variables_initializer as global_variables
from hpcflow.ops.variables.variable_ops import local_variables_initializer as local_variables
from hpcflow.ops.variables.variable_ops import variables_initializer as variables
