"""Normalization layers: batch, layer and group normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import as_shape
from hpcflow.layers.layer_builder import Function, OfTensor, function, known_size
from hpcflow.ops.array.array_ops import as_scalar, squeeze
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import add, cast, divide, maximum, multiply, subtract, where
from hpcflow.ops.nn import normalization_ops
from hpcflow.ops.nn.layer_objects import InputSpec
from hpcflow.ops.replicas.replica_ops import replica_share, replica_sum
from hpcflow.ops.shape_inference import normal_axis
from hpcflow.ops.variables.initializer_objects import Ones, Zeros
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.ops.variables.variable_scope import get_variable, variable_scope


class BatchNormalization(OfTensor):
    """Batch normalization: `(inputs - mean) / sqrt(variance + epsilon) * gamma + beta`.

    Source: Ioffe and Szegedy, 2015. While `training` (a bool or a scalar tensor), mean and variance
    are those of the batch over all axes but `axis`; with `synchronized`, of the global batch of all
    replicas. Otherwise they are the moving averages. By default `training` is true in `fit` of a
    model of the outputs, and only there. The update operations of the moving averages
    are in the collection "update_ops". The training step must run them (`with
    hf.control_dependencies(hf.get_collection(hf.GraphKeys.UPDATE_OPS))`). As in TensorFlow, the
    moving variance averages the unbiased variance (divided by n - 1) for images of rank 4, and the
    biased one otherwise.

    Variables: `gamma`, `beta`, `moving_mean`, `moving_variance`, one element per channel.
    Ranks: moving averages are averages over all replicas, weighted by samples, and the same on all.
           If `training` is a tensor and `synchronized` is set, all replicas must run the step
           together.
    """

    what = "batch_normalization"

    @accepts_and_ignores("fused")
    def __init__(
        self,
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
        beta_constraint: Function | None = None,
        gamma_constraint: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        synchronized: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        self.axis, self.momentum, self.epsilon = axis, momentum, epsilon
        self.center, self.scale, self.synchronized = center, scale, synchronized
        self.beta = self.gamma = None
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self._store_weight_options(
            beta=(beta_initializer, beta_regularizer, beta_constraint),
            gamma=(gamma_initializer, gamma_regularizer, gamma_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Create `gamma`, `beta` and the moving averages; float32 for 16-bit inputs."""
        at = normal_axis(_axis(self.axis), len(_ranked(input_shape)))
        size = known_size(input_shape, at, self.what)
        self.input_spec = InputSpec(ndim=len(_ranked(input_shape)), axes={at: size})
        wide = float32 if self.dtype is None or self.dtype.itemsize == 2 else self.dtype
        if self.scale:
            self.gamma = self._weight("gamma", [size], Ones(), wide)
        if self.center:
            self.beta = self._weight("beta", [size], Zeros(), wide)
        start = self.moving_mean_initializer or Zeros()
        self.moving_mean = self.add_weight("moving_mean", [size], wide, start, None, False)
        start = self.moving_variance_initializer or Ones()
        self.moving_variance = self.add_weight("moving_variance", [size], wide, start, None, False)
        super().build(input_shape)

    def call(self, inputs: Tensor, training: Any = False) -> Tensor:
        """The normalized inputs."""
        at = normal_axis(_axis(self.axis), len(_ranked(inputs.shape)))
        batch = _Batch(inputs, at, self.gamma, self.beta, self.epsilon)
        training = as_scalar(training) if isinstance(training, Tensor) else training
        known = training.constant if isinstance(training, Tensor) else training
        moving = (self.moving_mean, self.moving_variance)
        if known is not None and not bool(known):
            return batch.normalized(*moving)
        y, updates = _trained(batch, moving, self.momentum, training, known, self.synchronized)
        self.add_update(updates)
        return y


def _axis(axis: Any) -> Any:
    """The axis; it may be given as a list of one."""
    return axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis


def _ranked(shape: Any) -> Sequence[Any]:
    """`shape`.

    Errors: ShapeError if its rank is unknown.
    """
    sizes = as_shape(shape)
    if sizes is None:
        raise ShapeError("batch_normalization needs a known rank", line=user_line())
    return sizes


batch_normalization = function(BatchNormalization)


class _Batch(NamedTuple):
    """A batch with channels along `axis`, and its gamma and beta."""

    x: Tensor
    axis: int
    gamma: Variable | None
    beta: Variable | None
    epsilon: float

    def normalized(self, mean: Any, variance: Any) -> Tensor:
        """The batch normalized with the given mean and variance, times gamma plus beta."""
        parameters = (mean, variance, self.beta, self.gamma)
        m, v, beta, gamma = (self._spread(t) for t in parameters)
        return normalization_ops.batch_normalization(self.x, m, v, beta, gamma, self.epsilon)

    def scaled(self, y: Tensor) -> Tensor:
        """`y`, a normalized batch, times gamma plus beta."""
        if self.gamma is not None:
            y = multiply(y, self._spread(self.gamma))
        return y if self.beta is None else add(y, self._spread(self.beta))

    def _spread(self, t: Any) -> Any:
        return None if t is None else normalization_ops.by_channel(t, self.x, self.axis)


def _trained(
    batch: _Batch,
    moving: tuple[Variable, Variable],
    momentum: float,
    training: Any,
    static_training: Any,
    synchronized: bool,
) -> tuple[Tensor, list[Any]]:
    """The batch normalized with its own moments while `training`, and updates of the averages."""
    rank = len(batch.x.shape or ())
    reduced_axes = tuple(i for i in range(rank) if i != batch.axis)
    m, v, unbiased, y = _of_batch(batch.x, reduced_axes, batch.epsilon, synchronized)
    sample_var = unbiased if rank == 4 and batch.axis in (1, 3) else v  # as TensorFlow, fused
    mean, variance = moving
    updates = _updates(
        [(mean, m), (variance, sample_var)], momentum, training, static_training, synchronized
    )
    if static_training is None:
        m, v = where(training, m, mean), where(training, v, variance)
        return batch.normalized(m, v), updates
    return batch.normalized(m, v) if synchronized else batch.scaled(y), updates


def _of_batch(
    x: Tensor, reduced_axes: tuple[int, ...], epsilon: float, synchronized: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, unbiased variance, and the batch normalized with the first two."""
    if synchronized:
        y = x
        m, v, n = normalization_ops.joined_moments(x, reduced_axes)
        n = getitem(squeeze(n, reduced_axes), 0)
    else:
        y, m, v = normalization_ops.normalized(x, reduced_axes, epsilon)
        n = normalization_ops.divided_by(x, m)
    m, v = squeeze(m, reduced_axes), squeeze(v, reduced_axes)
    return m, v, multiply(v, divide(n, maximum(subtract(n, 1), 1))), y


def _updates(
    pairs: list[tuple[Variable, Tensor]],
    momentum: float,
    training: Any,
    static_training: Any,
    synchronized: bool,
) -> list[Any]:
    """Operations that update the moving averages with the moments."""
    values = [value for _, value in pairs]
    if not synchronized:  # averaged over replicas, so that all have the same moving averages
        share = cast(replica_share(), values[0].dtype)
        joined = replica_sum(multiply(stack(values), share))
        values = [getitem(joined, i) for i in range(len(pairs))]
    step: Any = 1 - momentum
    if static_training is None:
        step = where(training, step, getitem(multiply(values[0], 0), 0))
    return [
        update("AssignSub", [variable], [multiply(subtract(variable.value(), value), step)])
        for (variable, _), value in zip(pairs, values, strict=True)
    ]


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
    """Layer normalization: mean 0, variance 1 over `axis` of a sample, `* gamma + beta`.

    Source: Ba et al., 2016.

    Shapes:    `axis` is the last axis, or a list of the last axes.
    Variables: `gamma` and `beta`, with the sizes of these axes.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "layer_norm", [x], reuse=reuse):
        if x.shape is None:
            raise ShapeError("layer_norm needs a known rank", op=x.op.name, line=user_line())
        listed = [axis] if isinstance(axis, int) else list(axis)
        axes = sorted(normal_axis(a, len(x.shape)) for a in listed)
        if axes != list(range(len(x.shape) - len(axes), len(x.shape))):
            raise ShapeError(
                f"layer_norm takes the last axes only, not {axis} of rank {len(x.shape)}"
            )
        sizes = [known_size(x, a, "layer_norm") for a in axes]
        gamma, beta = (
            get_variable(name_, sizes, x.dtype, start, None, trainable) if enabled else None
            for name_, start, enabled in (
                ("gamma", gamma_initializer or Ones(), scale),
                ("beta", beta_initializer or Zeros(), center),
            )
        )
        return normalization_ops.layer_normalization(x, gamma, beta, tuple(axes), epsilon)


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
    """Group normalization: mean 0, variance 1 over groups of channels of each sample.

    Source: Wu and He, 2018. With one channel per group this is instance normalization, with one
    group layer normalization.

    Variables: `gamma` and `beta`, one element per channel.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "group_norm", [x], reuse=reuse):
        form = "NCHW" if data_format == "channels_first" else "NHWC"
        size = known_size(x, 1 if form == "NCHW" else -1, "group_norm")
        gamma, beta = (
            get_variable(name_, [size], x.dtype, start, None, trainable) if enabled else None
            for name_, start, enabled in (
                ("gamma", gamma_initializer or Ones(), scale),
                ("beta", beta_initializer or Zeros(), center),
            )
        )
        return normalization_ops.group_normalization(x, groups, gamma, beta, epsilon, form)
