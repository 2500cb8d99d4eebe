"""Distributions `hf.distributions`: names of TensorFlow 1's `tf.distributions`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.random.probability_distributions import (
    Bernoulli,
    Categorical,
    Normal,
    Uniform,
    kl_divergence,
)
from hpcflow.platform.exception_translation import guard_module

__all__ = ["Bernoulli", "Categorical", "Normal", "Uniform", "kl_divergence"]

guard_module(globals(), __all__)
