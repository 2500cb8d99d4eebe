"""Random tensors, counter-based: key and run number decide what is drawn, not who draws it.

The key is a hash of the graph's seed and of the op's seed, or without one of its name; it is made
with the op, so that every rank that builds the same graph draws the same. The counter is the
number of draws made before (kept by the kernel, one per plan).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype, float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Spec
from hpcflow.ops.array import shape_argument
from hpcflow.ops.rules import Attrs, as_first, one, told_shape

_DRAW = NoGrad("a random draw does not depend on its inputs")


def _draw(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(attrs["dtype"], told_shape(inputs, 0, attrs))]


def _shuffled(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].shape == ():
        raise ShapeError("a scalar has no rows to shuffle")
    return as_first(inputs, attrs)


op("RandomUniform", infer=_draw, grad=_DRAW, stateful=True)
op("RandomNormal", infer=_draw, grad=_DRAW, stateful=True)
op("TruncatedNormal", infer=_draw, grad=_DRAW, stateful=True)
op(
    "RandomShuffle",
    infer=_shuffled,
    grad=NoGrad("the order of the rows is drawn and not kept"),
    stateful=True,
)


def set_random_seed(seed: int) -> None:
    """The seed of the default graph, for the random ops made after this call."""
    get_default_graph().root.seed = int(seed)


def _key(graph_seed: int, source: int | str) -> int:
    digest = hashlib.blake2b(f"{graph_seed}:{source!r}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def _random(
    type: str, shape: Any, dtype: Any, seed: int | None, name: str | None, kinds: str, **facts: Any
) -> Tensor:
    dtype = as_dtype(dtype)
    if dtype.kind not in kinds:
        raise DTypeError(f"{type} does not draw {dtype}", hint="draw float32 and hf.cast it")
    graph = get_default_graph()
    known, told = shape_argument(shape)
    full = graph.unique_name(name or type)
    key = _key(graph.root.seed, full if seed is None else int(seed))
    attrs: Attrs = {"shape": known, "dtype": dtype, "key": key, **facts}
    return one(type, told, attrs, full + "/")


def random_uniform(
    shape: Any,
    minval: float = 0,
    maxval: float | None = None,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Uniform in [minval, maxval): floats (maxval 1 if None) or integers (maxval needed).

    The same `seed` and graph give the same numbers on every rank; so does no seed, by the op's
    name.
    """
    if maxval is None:
        if np.dtype(dtype).kind != "f":
            raise DTypeError("random_uniform of integers needs maxval")
        maxval = 1
    facts = {"minval": minval, "maxval": maxval}
    return _random("RandomUniform", shape, dtype, seed, name, "iuf", **facts)


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of `value` (along axis 0) in random order; seeds as in `random_uniform`."""
    x = convert_to_tensor(value)
    graph = get_default_graph()
    full = graph.unique_name(name or "RandomShuffle")
    key = _key(graph.seed, full if seed is None else int(seed))
    return one("RandomShuffle", [x], {"key": key}, full + "/")


def random_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal with `mean` and `stddev`; seeds as in `random_uniform`."""
    facts = {"mean": float(mean), "stddev": float(stddev)}
    return _random("RandomNormal", shape, dtype, seed, name, "f", **facts)


def truncated_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normal with values beyond two `stddev` drawn again; seeds as in `random_uniform`."""
    facts = {"mean": float(mean), "stddev": float(stddev)}
    return _random("TruncatedNormal", shape, dtype, seed, name, "f", **facts)
