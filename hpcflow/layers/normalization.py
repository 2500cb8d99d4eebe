"""Normalization with variables: of batches, layers, groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import also_takes
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

    what = "batch_normalization"

    @also_takes("fused")
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
        self._tell(
            beta=(beta_initializer, beta_regularizer, beta_constraint),
            gamma=(gamma_initializer, gamma_regularizer, gamma_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Make `gamma`, `beta` and the moving averages, in float32 for narrow inputs."""
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
        """The inputs normalized."""
        at = normal_axis(_axis(self.axis), len(_ranked(inputs.shape)))
        batch = _Batch(inputs, at, self.gamma, self.beta, self.epsilon)
        training = as_scalar(training) if isinstance(training, Tensor) else training
        known = training.constant if isinstance(training, Tensor) else training
        moving = (self.moving_mean, self.moving_variance)
        if known is not None and not bool(known):
            return batch.normalized(*moving)
        y, done = _trained(batch, moving, self.momentum, training, known, self.synchronized)
        self.add_update(done)
        return y


def _axis(axis: Any) -> Any:
    """The axis, which may be in a list of one."""
    return axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis


def _ranked(shape: Any) -> Sequence[Any]:
    """`shape`, whose rank must be known."""
    sizes = as_shape(shape)
    if sizes is None:
        raise ShapeError("batch_normalization needs a known rank", line=user_line())
    return sizes


batch_normalization = function(BatchNormalization)


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
    known: Any,
    synchronized: bool,
) -> tuple[Tensor, list[Any]]:
    """The batch normalized by its own moments while `training`, and what moves the averages."""
    rank = len(batch.x.shape or ())
    others = tuple(i for i in range(rank) if i != batch.axis)
    m, v, unbiased, y = _of_batch(batch.x, others, batch.epsilon, synchronized)
    kept = unbiased if rank == 4 and batch.axis in (1, 3) else v  # where TensorFlow's is fused
    mean, variance = moving
    done = _updates([(mean, m), (variance, kept)], momentum, training, known, synchronized)
    if known is None:
        m, v = where(training, m, mean), where(training, v, variance)
        return batch.normalized(m, v), done
    return batch.normalized(m, v) if synchronized else batch.scaled(y), done


def _of_batch(
    x: Tensor, others: tuple[int, ...], epsilon: float, synchronized: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance and unbiased variance of the batch, and the batch normalized by them."""
    if synchronized:
        y = x
        m, v, n = normalization_ops.joined_moments(x, others)
        n = getitem(squeeze(n, others), 0)
    else:
        y, m, v = normalization_ops.normalized(x, others, epsilon)
        n = normalization_ops.divided_by(x, m)
    m, v = squeeze(m, others), squeeze(v, others)
    return m, v, multiply(v, divide(n, maximum(subtract(n, 1), 1))), y


def _updates(
    pairs: list[tuple[Variable, Tensor]],
    momentum: float,
    training: Any,
    known: Any,
    synchronized: bool,
) -> list[Any]:
    """Operations that move the averages towards the moments."""
    values = [value for _, value in pairs]
    if not synchronized:  # the mean over replicas, so that all keep the same averages
        share = cast(replica_share(), values[0].dtype)
        joined = replica_sum(multiply(stack(values), share))
        values = [getitem(joined, i) for i in range(len(pairs))]
    step: Any = 1 - momentum
    if known is None:
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
    """Each sample with mean 0 and variance 1 over groups of channels (Wu and He, 2018).

    As many groups as channels is instance normalization, one group layer normalization.

    Variables: `gamma` and `beta`, one number a channel.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "group_norm", [x], reuse=reuse):
        form = "NCHW" if data_format == "channels_first" else "NHWC"
        size = known_size(x, 1 if form == "NCHW" else -1, "group_norm")
        gamma, beta = (
            get_variable(name_, [size], x.dtype, start, None, trainable) if wanted else None
            for name_, start, wanted in (
                ("gamma", gamma_initializer or Ones(), scale),
                ("beta", beta_initializer or Zeros(), center),
            )
        )
        return normalization_ops.group_normalization(x, groups, gamma, beta, epsilon, form)
