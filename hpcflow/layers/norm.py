"""Normalization with variables: of batches, layers, groups of channels."""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.keys import GraphKeys
from hpcflow.layers.base import Function, known_size
from hpcflow.ops import norm
from hpcflow.ops.array import as_scalar, squeeze
from hpcflow.ops.comm import replica_share, replica_sum
from hpcflow.ops.initializer_objects import Ones, Zeros
from hpcflow.ops.join import stack
from hpcflow.ops.math import add, cast, divide, maximum, multiply, subtract, where
from hpcflow.ops.rules import normal_axis
from hpcflow.ops.slicing import getitem
from hpcflow.ops.state import Variable, update
from hpcflow.ops.variable_scope import get_variable, variable_scope


def _variable(
    name: str, size: int, start: Any, dtype: Any, regularizer: Any = None, trainable: bool = True
) -> Any:
    return get_variable(name, [size], dtype, start, regularizer, trainable)


def batch_normalization(
    inputs: Any,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    moving_mean_initializer: Any = None,
    moving_variance_initializer: Any = None,
    beta_regularizer: Function | None = None,
    gamma_regularizer: Function | None = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    synchronized: bool = False,
) -> Tensor:
    """`(inputs - mean) / sqrt(variance + epsilon) * gamma + beta` (Ioffe and Szegedy, 2015).

    While `training` (a bool or a scalar tensor) the moments are the batch's, all axes but `axis`
    together, with `synchronized` those of the joined batch of all replicas; otherwise the moving
    averages. These are updated by operations in the collection "update_ops", which the training
    step must run (`with hf.control_dependencies(hf.get_collection(hf.GraphKeys.UPDATE_OPS))`). The
    average variance is, as TensorFlow's, of the unbiased one (divided by n - 1) for images, of
    rank 4, and of the biased one otherwise.

    Variables: `gamma`, `beta`, `moving_mean`, `moving_variance`, one number a channel.
    Ranks:     moving averages are of all replicas, counted by samples, and the same on all; a
               tensor `training` needs the replicas to run together if `synchronized`.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "batch_normalization", [x], reuse=reuse):
        if x.shape is None:
            raise ShapeError("batch_normalization needs a known rank", op=x.op.name)
        at = normal_axis(axis, len(x.shape))
        size = known_size(x, at, "batch_normalization")
        wide = float32 if x.dtype.itemsize == 2 else x.dtype
        facts = (wide, beta_regularizer, trainable)
        beta = _variable("beta", size, beta_initializer or Zeros(), *facts) if center else None
        facts = (wide, gamma_regularizer, trainable)
        gamma = _variable("gamma", size, gamma_initializer or Ones(), *facts) if scale else None
        mean = _moving("moving_mean", size, moving_mean_initializer or Zeros(), wide)
        variance = _moving("moving_variance", size, moving_variance_initializer or Ones(), wide)

        batch = _Batch(x, at, gamma, beta, epsilon)
        training = as_scalar(training) if isinstance(training, Tensor) else training
        known = training.constant if isinstance(training, Tensor) else training
        if known is not None and not bool(known):
            return batch.normalized(mean, variance)
        return _trained(batch, (mean, variance), momentum, training, known, synchronized)


class _Batch(NamedTuple):
    """A batch with its channels along `axis`, and the factors and summands of these."""

    x: Tensor
    axis: int
    gamma: Variable | None
    beta: Variable | None
    epsilon: float

    def normalized(self, mean: Any, variance: Any) -> Tensor:
        """The batch normalized by these moments, times gamma plus beta."""
        given = (mean, variance, self.beta, self.gamma)
        m, v, beta, gamma = (self._spread(t) for t in given)
        return norm.batch_normalization(self.x, m, v, beta, gamma, self.epsilon)

    def scaled(self, y: Tensor) -> Tensor:
        """`y`, a normalized batch, times gamma plus beta."""
        if self.gamma is not None:
            y = multiply(y, self._spread(self.gamma))
        return y if self.beta is None else add(y, self._spread(self.beta))

    def _spread(self, t: Any) -> Any:
        return None if t is None else norm.by_channel(t, self.x, self.axis)


def _trained(
    batch: _Batch,
    moving: tuple[Variable, Variable],
    momentum: float,
    training: Any,
    known: Any,
    synchronized: bool,
) -> Tensor:
    """The batch normalized by its own moments while `training`, which move the averages."""
    rank = len(batch.x.shape or ())
    others = tuple(i for i in range(rank) if i != batch.axis)
    m, v, unbiased, y = _of_batch(batch.x, others, batch.epsilon, synchronized)
    kept = unbiased if rank == 4 and batch.axis in (1, 3) else v  # where TensorFlow's is fused
    mean, variance = moving
    _update([(mean, m), (variance, kept)], momentum, training, known, synchronized)
    if known is None:
        return batch.normalized(where(training, m, mean), where(training, v, variance))
    return batch.normalized(m, v) if synchronized else batch.scaled(y)


def _moving(name: str, size: int, start: Any, dtype: Any) -> Variable:
    made: Variable = _variable(name, size, start, dtype, None, False)
    return made


def _of_batch(
    x: Tensor, others: tuple[int, ...], epsilon: float, synchronized: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance and unbiased variance of the batch, and the batch normalized by them."""
    if synchronized:
        y = x
        m, v, n = norm.joined_moments(x, others)
        n = getitem(squeeze(n, others), 0)
    else:
        y, m, v = norm.normalized(x, others, epsilon)
        n = norm.divided_by(x, m)
    m, v = squeeze(m, others), squeeze(v, others)
    return m, v, multiply(v, divide(n, maximum(subtract(n, 1), 1))), y


def _update(
    pairs: list[tuple[Variable, Tensor]],
    momentum: float,
    training: Any,
    known: Any,
    synchronized: bool,
) -> None:
    """Operations that move the averages towards the moments, in the collection of updates."""
    graph = get_default_graph()
    values = [value for _, value in pairs]
    if not synchronized:  # the mean over replicas, so that all keep the same averages
        share = cast(replica_share(), values[0].dtype)
        joined = replica_sum(multiply(stack(values), share))
        values = [getitem(joined, i) for i in range(len(pairs))]
    step: Any = 1 - momentum
    if known is None:
        step = where(training, step, getitem(multiply(values[0], 0), 0))
    for (variable, _), value in zip(pairs, values, strict=True):
        change = multiply(subtract(variable.value(), value), step)
        done = update("AssignSub", [variable], [change])
        graph.add_to_collection(GraphKeys.UPDATE_OPS, done)


def layer_norm(
    inputs: Any,
    axis: Any = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Tensor:
    """Each sample with mean 0 and variance 1 over `axis`, `* gamma + beta` (Ba et al., 2016).

    Shapes:    `axis` is the last axis, or a list of the last ones.
    Variables: `gamma` and `beta`, of the sizes of these axes.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "layer_norm", [x], reuse=reuse):
        if x.shape is None:
            raise ShapeError("layer_norm needs a known rank", op=x.op.name, line=user_line())
        listed = [axis] if isinstance(axis, int) else list(axis)
        axes = sorted(normal_axis(a, len(x.shape)) for a in listed)
        if axes != list(range(len(x.shape) - len(axes), len(x.shape))):
            raise ShapeError(f"layer_norm over {axis} of {len(x.shape)}: not the last axes")
        sizes = [known_size(x, a, "layer_norm") for a in axes]
        gamma, beta = (
            get_variable(name_, sizes, x.dtype, start, None, trainable) if wanted else None
            for name_, start, wanted in (
                ("gamma", gamma_initializer or Ones(), scale),
                ("beta", beta_initializer or Zeros(), center),
            )
        )
        return norm.layer_normalization(x, gamma, beta, tuple(axes), epsilon)


def group_norm(
    inputs: Any,
    groups: int = 32,
    data_format: str = "channels_last",
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Tensor:
    """Each sample with mean 0 and variance 1 over groups of channels (Wu and He, 2018).

    As many groups as channels is instance normalization, one group layer normalization.

    Variables: `gamma` and `beta`, one number a channel.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "group_norm", [x], reuse=reuse):
        form = "NCHW" if data_format == "channels_first" else "NHWC"
        size = known_size(x, 1 if form == "NCHW" else -1, "group_norm")
        gamma, beta = (
            _variable(name_, size, start, x.dtype, None, trainable) if wanted else None
            for name_, start, wanted in (
                ("gamma", gamma_initializer or Ones(), scale),
                ("beta", beta_initializer or Zeros(), center),
            )
        )
        return norm.group_normalization(x, groups, gamma, beta, epsilon, form)
