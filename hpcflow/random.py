"""`hf.random`: the names of TensorFlow 1's `tf.random` that hpcflow has; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.random import random_gamma as gamma
from hpcflow.ops.random import random_normal as normal
from hpcflow.ops.random import random_poisson as poisson
from hpcflow.ops.random import random_uniform as uniform
from hpcflow.ops.random import set_random_seed, truncated_normal
from hpcflow.ops.random_order import (
    categorical,
    multinomial,
    stateless_categorical,
    stateless_shuffle,
)
from hpcflow.ops.random_order import random_shuffle as shuffle
from hpcflow.ops.random_stateless import stateless_random_gamma as stateless_gamma
from hpcflow.ops.random_stateless import stateless_random_normal as stateless_normal
from hpcflow.ops.random_stateless import stateless_random_poisson as stateless_poisson
from hpcflow.ops.random_stateless import stateless_random_uniform as stateless_uniform
from hpcflow.ops.random_stateless import stateless_truncated_normal

__all__ = [
    "categorical",
    "gamma",
    "multinomial",
    "normal",
    "poisson",
    "set_random_seed",
    "shuffle",
    "stateless_categorical",
    "stateless_gamma",
    "stateless_normal",
    "stateless_poisson",
    "stateless_shuffle",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]

guard_module(globals(), __all__)
