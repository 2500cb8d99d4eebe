"""`hf.distributions`: names of TensorFlow 1's `tf.distributions`; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.distributions import (
    Bernoulli,
    Categorical,
    Normal,
    Uniform,
    kl_divergence,
)

__all__ = ["Bernoulli", "Categorical", "Normal", "Uniform", "kl_divergence"]

guard_module(globals(), __all__)
