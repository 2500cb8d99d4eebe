"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.random.probability_distributions import Bernoulli as Bernoulli
from hpcflow.ops.random.probability_distributions import Categorical as Categorical
from hpcflow.ops.random.probability_distributions import Normal as Normal
from hpcflow.ops.random.probability_distributions import Uniform as Uniform
from hpcflow.ops.random.probability_distributions import kl_divergence as kl_divergence
