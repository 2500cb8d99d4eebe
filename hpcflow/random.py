"""Random numbers `hf.random`: names of TensorFlow 1's `tf.random`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.random.random_ops import random_gamma as gamma
from hpcflow.ops.random.random_ops import random_normal as normal
from hpcflow.ops.random.random_ops import random_poisson as poisson
from hpcflow.ops.random.random_ops import random_uniform as uniform
from hpcflow.ops.random.random_ops import set_random_seed, truncated_normal
from hpcflow.ops.random.shuffle_multinomial import (
    categorical,
    multinomial,
    stateless_categorical,
    stateless_shuffle,
)
from hpcflow.ops.random.shuffle_multinomial import random_shuffle as shuffle
from hpcflow.ops.random.stateless_random import stateless_random_gamma as stateless_gamma
from hpcflow.ops.random.stateless_random import stateless_random_normal as stateless_normal
from hpcflow.ops.random.stateless_random import stateless_random_poisson as stateless_poisson
from hpcflow.ops.random.stateless_random import stateless_random_uniform as stateless_uniform
from hpcflow.ops.random.stateless_random import stateless_truncated_normal
from hpcflow.platform.exception_translation import guard_module

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
