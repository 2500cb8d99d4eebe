"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.random.random_ops import random_gamma as gamma
from hpcflow.ops.random.random_ops import random_normal as normal
from hpcflow.ops.random.random_ops import random_poisson as poisson
from hpcflow.ops.random.random_ops import random_uniform as uniform
from hpcflow.ops.random.random_ops import set_random_seed as set_random_seed
from hpcflow.ops.random.random_ops import truncated_normal as truncated_normal
from hpcflow.ops.random.shuffle_multinomial import categorical as categorical
from hpcflow.ops.random.shuffle_multinomial import multinomial as multinomial
from hpcflow.ops.random.shuffle_multinomial import random_shuffle as shuffle
from hpcflow.ops.random.shuffle_multinomial import stateless_categorical as stateless_categorical
from hpcflow.ops.random.shuffle_multinomial import stateless_shuffle as stateless_shuffle
from hpcflow.ops.random.stateless_random import stateless_random_gamma as stateless_gamma
from hpcflow.ops.random.stateless_random import stateless_random_normal as stateless_normal
from hpcflow.ops.random.stateless_random import stateless_random_poisson as stateless_poisson
from hpcflow.ops.random.stateless_random import stateless_random_uniform as stateless_uniform
from hpcflow.ops.random.stateless_random import stateless_truncated_normal as stateless_truncated_normal
