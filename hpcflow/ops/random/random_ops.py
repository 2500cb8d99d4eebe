"""Random ops: counter-based numbers determined by key, ordinal of the draw, and position.

The key is a hash of the graph's seed and of the op's seed, or without one of its name. It is
computed with the op, so that all ranks that build the same graph draw the same numbers. If neither
graph nor op has a seed, each session draws other numbers: the key is mixed with a number that all
ranks of the session have (`SessionSeed` in `runtime/session/session_seed.py`). The ordinal of the
draw is the number of earlier draws of the op (stored by the kernel, one series for each fetched
op). The position is the element's index, in the global batch if axis 0 is the batch.

Axis 0 is the batch if its size is unknown at graph construction, as in `hf.shape(x)` of a
placeholder [None, 784]. `batch=True` or `batch=False` overrides this. Replicas over which `hf.data`
shards a global batch then draw what one replica would draw for all of it, and other replicas draw
different numbers. If axis 0 is not the batch, all replicas draw the same numbers, as initial values
require. If another axis is the batch (time first), pass `batch=False`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, RangeError, ShapeError
from hpcflow.graph.dtypes import (
    as_dtype,
    bfloat16,
    float32,
    float64,
    int64,
    is_floating,
    limits,
    uint64,
)
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, broadcast_shapes, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import constant, shape_argument
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.math.arithmetic_ops import add, cast, divide, maximum, minimum, multiply, subtract
from hpcflow.ops.replicas.replica_ops import replica_offset
from hpcflow.ops.shape_inference import Attrs, first_output, integer_argument, require, told_shape

_DRAW = NoGrad("a random draw does not depend on its inputs")
_GAMMA = NoGrad("its derivative with respect to the shape parameter is not implemented")
_POISSON = NoGrad("its output is integers")
_SEEDED = NoGrad("its output is integers", none=True)
STATELESS = "Stateless"  # prefix of the stateless variant, with a seed tensor


# -- rows: inputs are [shape,] parameters, [seed,] [offset]


def _requested_shape(inputs: Sequence[Spec], attrs: Attrs, parameters: int) -> Shape:
    """The requested shape, before the axes of the parameters."""
    trailing_count = parameters + ("key" not in attrs) + bool(attrs.get("batch"))
    if "key" not in attrs:
        seed = inputs[-2 if attrs.get("batch") else -1]
        require("the seed of a stateless draw", seed, "iu")
        if seed.shape is not None and seed.shape != (2,) and seed.shape != (None,):
            raise ShapeError(f"a seed must be two integers, not shape {shape_text(seed.shape)}")
    return told_shape(inputs[: len(inputs) - trailing_count], 0, attrs)


def _plain(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(attrs["dtype"], _requested_shape(inputs, attrs, 0))]


def _parameters(inputs: Sequence[Spec], attrs: Attrs, count: int) -> Sequence[Spec]:
    end = len(inputs) - ("key" not in attrs) - bool(attrs.get("batch"))
    return inputs[end - count : end]


def _infer_integers(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    for spec in _parameters(inputs, attrs, 2):
        require("a limit of integers", spec, "iu")
    requested = _requested_shape(inputs, attrs, 2)
    shapes = [spec.shape for spec in _parameters(inputs, attrs, 2)]
    return [Spec(attrs["dtype"], merge_shapes(requested, broadcast_shapes([requested, *shapes])))]


def _draws_per_parameter(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    (parameter,) = _parameters(inputs, attrs, 1)
    require("the parameter of a draw", parameter, "f")
    requested = _requested_shape(inputs, attrs, 1)
    both = None if requested is None or parameter.shape is None else requested + parameter.shape
    return [Spec(attrs["dtype"], both)]


for _type, _infer, _grad, _stateless in (
    ("RandomUniform", _plain, _DRAW, _DRAW),
    ("RandomNormal", _plain, _DRAW, _DRAW),
    ("TruncatedNormal", _plain, _DRAW, _DRAW),
    ("RandomUniformInt", _infer_integers, _DRAW, _DRAW),
    ("RandomGamma", _draws_per_parameter, _GAMMA, _GAMMA),
    ("RandomPoisson", _draws_per_parameter, _POISSON, _SEEDED),
    ("RandomPermutation", _plain, _DRAW, _DRAW),
):
    _by_rows = _type != "RandomPermutation"
    op(_type, infer=_infer, grad=_grad, stateful=True, draws_rows=_by_rows)
    op(STATELESS + _type, infer=_infer, grad=_stateless)


# -- construction


def set_random_seed(seed: int | None) -> None:
    """Set the seed of the default graph for random ops created after this call; None unsets it.

    Ops without a seed in a graph without a seed draw other numbers in each session.
    """
    get_default_graph().root.seed = None if seed is None else integer_argument(seed, "seed")


def _key(graph_seed: int, source: int | str) -> int:
    digest = hashlib.blake2b(f"{graph_seed}:{source!r}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def by_session(seed: Any) -> Attrs:
    """The attribute `unseeded` of an op with this seed: neither it nor its graph has a seed."""
    is_set = seed is not None or get_default_graph().root.seed is not None
    return {} if is_set else {"unseeded": True}


class RandomSource:
    """The source of a draw, an op's state or a seed tensor, and whether axis 0 is the batch."""

    def __init__(self, seed: Any, batch: bool | None, stateless: bool = False) -> None:
        self.seed, self.batch, self.stateless = seed, batch, stateless

    def draw(
        self,
        type: str,
        shape: Any,
        dtype: Any,
        name: str | None,
        parameters: Sequence[Tensor] = (),
        kinds: str = "f",
        **facts: Any,
    ) -> Tensor:
        """A random op of the table; `shape` are the axes before those of `parameters`."""
        dtype = as_dtype(dtype)
        if dtype == bfloat16:
            draws = self.draw(type, shape, float32, name, parameters, kinds, **facts)
            return _in_bfloat16(draws, facts)
        if dtype.kind not in kinds:
            raise DTypeError(f"{type} does not draw {dtype}", hint="draw float32 and hf.cast it")
        known_shape, inputs = shape_argument(shape)
        graph = get_default_graph()
        full = graph.unique_name(name or type)
        attrs: Attrs = {"shape": known_shape, "dtype": dtype, **facts}
        inputs = [*inputs, *parameters]
        if self.stateless:
            inputs.append(convert_to_tensor(self.seed))
        else:
            source = full if self.seed is None else int(self.seed)
            attrs |= {"key": _key(graph.root.seed or 0, source), **by_session(self.seed)}
        if self._is_by_sample(type, known_shape, parameters):
            attrs["batch"] = True
            inputs.append(replica_offset())
        return first_output(STATELESS * self.stateless + type, inputs, attrs, full + "/")

    def _is_by_sample(self, type: str, known_shape: Shape, parameters: Sequence[Tensor]) -> bool:
        """Whether axis 0 is the batch: as given, by default if its size is unknown."""
        if type in ("RandomGamma", "RandomPoisson") and known_shape == ():
            known_shape = parameters[0].shape
        if self.batch is None:
            return known_shape is None or (len(known_shape) > 0 and known_shape[0] is None)
        if self.batch and known_shape == ():
            raise ShapeError(
                "batch=True needs a shape with an axis 0, not a scalar", line=user_line()
            )
        return self.batch


def _in_bfloat16(draws: Tensor, facts: Attrs) -> Tensor:
    """Float32 draws rounded to bfloat16, kept below the limit of a uniform draw."""
    rounded = cast(draws, bfloat16)
    if "maxval" not in facts:
        return rounded
    low, high = (bfloat16.type(facts[name]) for name in ("minval", "maxval"))
    return minimum(rounded, np.nextafter(high, low))


def uniform(
    source: RandomSource, shape: Any, minval: Any, maxval: Any, dtype: Any, name: str | None
) -> Tensor:
    """Uniform floats or integers from `source`."""
    dtype = as_dtype(dtype)
    if dtype.kind in "iu":
        return _uniform_int(source, shape, minval, maxval, dtype, name)
    maxval = 1 if maxval is None else maxval
    if _are_numbers(minval, maxval):
        return source.draw("RandomUniform", shape, dtype, name, minval=minval, maxval=maxval)
    with get_default_graph().name_scope(name or "random_uniform"):
        low = convert_to_tensor(minval, dtype)
        unit = source.draw("RandomUniform", shape, dtype, None, minval=0, maxval=1)
        return add(multiply(unit, subtract(convert_to_tensor(maxval, dtype), low)), low)


def _uniform_int(
    source: RandomSource, shape: Any, minval: Any, maxval: Any, dtype: np.dtype, name: str | None
) -> Tensor:
    if maxval is None:
        raise DTypeError("random_uniform of integers needs maxval")
    wide = uint64 if dtype == uint64 else int64
    info = np.iinfo(dtype)
    ends = []
    for value, most in ((minval, info.max), (maxval, info.max + 1)):
        if isinstance(value, Tensor) or hasattr(value, "as_tensor"):
            ends.append(cast(value, wide))
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "iu" or (array.size and not _in_range(array, info.min, most)):
            raise DTypeError(
                f"{value!r} is not an integer in the range of {dtype}", line=user_line()
            )
        ends.append(constant(array.astype(wide)))
    low, high = (t.constant for t in ends)
    if low is not None and high is not None and low.size and (low >= high).any():
        raise RangeError(
            f"random_uniform of integers: the range [{minval}, {maxval}) is empty",
            line=user_line(),
        )
    return source.draw("RandomUniformInt", shape, dtype, name, ends, "iu")


def _in_range(array: np.ndarray, lower: int, upper: int) -> bool:
    return lower <= int(array.min()) and int(array.max()) <= min(upper, np.iinfo(np.uint64).max)


def normal(
    source: RandomSource,
    type: str,
    shape: Any,
    mean: Any,
    stddev: Any,
    dtype: Any,
    name: str | None,
) -> Tensor:
    """Normal numbers, optionally truncated, from `source`."""
    if _are_numbers(mean, stddev):
        return source.draw(type, shape, dtype, name, mean=float(mean), stddev=float(stddev))
    dtype = as_dtype(dtype)
    with get_default_graph().name_scope(name or type):
        drawn = source.draw(type, shape, dtype, None, mean=0.0, stddev=1.0)
        scaled = multiply(drawn, convert_to_tensor(stddev, dtype))
        return add(scaled, convert_to_tensor(mean, dtype))


def gamma(
    source: RandomSource, shape: Any, alpha: Any, beta: Any, dtype: Any, name: str | None
) -> Tensor:
    """Gamma numbers from `source`."""
    dtype = as_dtype(dtype)
    with get_default_graph().name_scope(name or "random_gamma"):
        alpha = convert_to_tensor(alpha, dtype)
        if beta is None:
            return source.draw("RandomGamma", shape, dtype, None, [alpha])
        beta = convert_to_tensor(beta, dtype)
        every = add(alpha, zeros_like(beta))
        drawn = divide(source.draw("RandomGamma", shape, dtype, None, [every]), beta)
        return maximum(drawn, float(limits(dtype).tiny))


def poisson(source: RandomSource, shape: Any, lam: Any, dtype: Any, name: str | None) -> Tensor:
    """Poisson numbers from `source`."""
    lam = convert_to_tensor(lam)
    rate = lam if is_floating(lam.dtype) else cast(lam, float64)
    return source.draw("RandomPoisson", shape, dtype, name, [rate], "iuf")


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, (int, float, np.integer, np.floating)) for v in values)


# -- public functions


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Uniform in [minval, maxval): floats (default maxval 1) or integers (maxval required).

    The same `seed` and graph give the same numbers on every rank; without a seed the op's name is
    used. Numbers are bitwise equal on CPU and GPU. Integers are unbiased.
    Shapes: `shape` may be a tensor. Limits may be tensors that broadcast to it; floats between
            tensor limits may round to `maxval`. `batch`: axis 0 is the batch, over which replicas
            draw what one replica would; by default if its size is unknown.
    Errors: RangeError if there is no integer between the limits.
    """
    return uniform(RandomSource(seed, batch), shape, minval, maxval, dtype, name)


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Normal with `mean` and `stddev`, which may be tensors; seeds and `batch` as `random_uniform`.

    It uses the Box-Muller method; CPU and GPU differ by at most 4 ulp.
    """
    return normal(RandomSource(seed, batch), "RandomNormal", shape, mean, stddev, dtype, name)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Normal truncated to two `stddev` from `mean`; otherwise as `random_normal`.

    It uses the inverse distribution function.
    """
    return normal(RandomSource(seed, batch), "TruncatedNormal", shape, mean, stddev, dtype, name)


def random_gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Gamma numbers of shape `alpha` and rate `beta` (None: 1): `shape` of them for each.

    Shapes:   `shape`, then those of `alpha` and `beta`, broadcast; seeds and `batch` as in
              `random_uniform`.
    Rounding: rejection sampling by Marsaglia and Tsang; CPU and GPU differ by rounding, and
              entirely if an attempt is within rounding of acceptance.
    Gradient: by `beta` only.
    Errors:   NumericError unless `alpha` is positive and finite.
    """
    return gamma(RandomSource(seed, batch), shape, alpha, beta, dtype, name)


def random_poisson(
    lam: Any,
    shape: Any,
    dtype: Any = float32,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """Poisson numbers of rate `lam`: `shape` of them for each rate, in `dtype`.

    Shapes:   `shape`, then that of `lam`; seeds and `batch` as in `random_uniform`.
    Rounding: rates below 10 invert the distribution function, others use rejection sampling
              (Hoermann); CPU and GPU differ where a word is within rounding of a limit.
    Errors:   NumericError unless `lam` is nonnegative and finite.
    """
    return poisson(RandomSource(seed, batch), shape, lam, dtype, name)
