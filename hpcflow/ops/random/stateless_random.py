"""Stateless random ops: determined by a seed tensor alone, for every rank and run.

`seed` is two integers, a list or a tensor. Neither the graph's seed, nor the op's name, nor the
number of runs matters. `batch` is that of `hf.random_uniform`.
"""

from __future__ import annotations

from typing import Any

from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.ops.random.random_ops import RandomSource, gamma, normal, poisson, uniform


def stateless_random_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = float32,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`random_uniform` determined by `seed`."""
    return uniform(RandomSource(seed, batch, True), shape, minval, maxval, dtype, name)


def stateless_random_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`random_normal` determined by `seed`."""
    source = RandomSource(seed, batch, True)
    return normal(source, "RandomNormal", shape, mean, stddev, dtype, name)


def stateless_truncated_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`truncated_normal` determined by `seed`."""
    source = RandomSource(seed, batch, True)
    return normal(source, "TruncatedNormal", shape, mean, stddev, dtype, name)


def stateless_random_gamma(
    shape: Any,
    seed: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = float32,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`random_gamma` determined by `seed`; `shape` precedes that of `alpha` and `beta`."""
    return gamma(RandomSource(seed, batch, True), shape, alpha, beta, dtype, name)


def stateless_random_poisson(
    shape: Any,
    seed: Any,
    lam: Any,
    dtype: Any = float32,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`random_poisson` determined by `seed`; `shape` precedes that of `lam`."""
    return poisson(RandomSource(seed, batch, True), shape, lam, dtype, name)
