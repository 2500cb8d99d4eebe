"""Gradient compression: fewer bytes from each replica to the device of the variables.

A replica's contribution to a gradient is compressed before it is sent and decompressed where the
variable is updated. Model and optimizer do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import bfloat16, float32, float64
from hpcflow.graph.function_body import root_as_default
from hpcflow.graph.graph import Operation, Tensor, user_line
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import size_of
from hpcflow.ops.array.array_ops import constant, identity, reshape
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.cumulative_ops import top_k
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.math.arithmetic_ops import abs, cast
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import add_entries
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.train.optimizers.loss_scaling import LossScaleOptimizer
from hpcflow.train.optimizers.optimizer import (
    Optimizer,
    Pairs,
    combined_update,
    compute_gradients_for,
)

MIN_BYTES = 1024  # smaller gradients are not compressed: latency dominates
MOST_ENTRIES = 1 << 31  # of one variable: indices are int32


class Compression:
    """A method to send dense gradients of at least `min_bytes` bytes; others are uncompressed.

    A subclass lists its dtypes and implements the sum over replicas in `_sum`.
    """

    DTYPES: tuple[Any, ...] = (float32, float64)

    def __init__(self, min_bytes: int = MIN_BYTES) -> None:
        self.min_bytes = int(min_bytes)

    def joined(self, grad: Any, var: Variable) -> Any:
        """The sum over replicas of the gradients `grad` of `var`, on the device of `var`."""
        rows = grad is None or isinstance(grad, IndexedSlices)
        nbytes = size_of(var.shape) * var.dtype.itemsize
        if rows or nbytes < self.min_bytes or var.dtype not in self.DTYPES:
            return combined_update(grad, var)
        return self._sum(grad, var)

    def variables(self) -> list[Variable]:
        """The variables that each replica keeps from step to step."""
        return []

    def _sum(self, grad: Tensor, var: Variable) -> Tensor:
        raise NotImplementedError


class BFloat16Compression(Compression):
    """Sends gradients of float32 and float64 as bfloat16: a half or a quarter of the bytes.

    Each element is rounded to nearest, ties to even: a relative error of at most 2^-8. Servers sum
    in the variable's dtype. Synchronous replicas also round the partial sums of the allreduce.
    """

    def _sum(self, grad: Tensor, var: Variable) -> Tensor:
        with _where_made(grad, var), var.here.name_scope(f"{var.name}/compressed"):
            small = cast(grad, bfloat16)
        with var.here.colocate_with(var.op):
            wide = cast(small, grad.dtype)
        return combined_update(wide, var, wire=bfloat16)


class TopKCompression(Compression):
    """Sends only the largest entries of a gradient; the rest is added to the next gradient.

    A step sends the `fraction` of the entries of gradient + residual that are largest in magnitude,
    at least one, as indices (int32) and values. The unsent part is the residual of the next step,
    so that everything is sent eventually (error feedback: Seide et al. 2014; Stich et al. 2018,
    Algorithm 1; Lin et al. 2018, section 3.1, without its momentum correction). The residual is a
    local variable of each replica. Checkpoints contain the residuals of all replicas; a restart
    with fewer replicas adds them up.
    """

    def __init__(self, fraction: float = 0.01, min_bytes: int = MIN_BYTES) -> None:
        super().__init__(min_bytes)
        if not 0 < fraction <= 0.5:
            raise GraphError(
                f"fraction must be above 0 and at most 0.5, not {fraction}",
                line=user_line(),
                hint="each entry is sent as index and value, so a larger fraction saves nothing",
            )
        self.fraction = float(fraction)
        self._residuals: dict[Variable, Variable] = {}

    def count(self, var: Variable) -> int:
        """The number of entries of the gradient of `var` that a step sends."""
        return max(1, round(self.fraction * size_of(var.shape)))

    def residual(self, var: Variable) -> Variable | None:
        """The unsent part of this replica's gradients of `var`, flattened."""
        return self._residuals.get(var)

    def variables(self) -> list[Variable]:
        """The residuals."""
        return list(self._residuals.values())

    def _sum(self, grad: Tensor, var: Variable) -> Tensor:
        if size_of(var.shape) >= MOST_ENTRIES:
            raise GraphError(
                f"variable {var.name!r} has {size_of(var.shape)} elements: too many for an index "
                "of four bytes",
                op=var.name,
                line=var.op.line,
                hint="split it with a partitioner",
            )
        with _where_made(grad, var):
            at, values = self._largest(grad, var)
        entries = combined_update(IndexedSlices(values, at, [size_of(var.shape)]), var)
        with var.here.colocate_with(var.op):
            return add_entries(entries.indices, entries.values, var.shape)

    def _largest(self, grad: Tensor, var: Variable) -> tuple[Tensor, Tensor]:
        """The indices and values to send, which are subtracted from the residual."""
        graph, residual = var.here, self._residual_of(var)
        with graph.name_scope(f"{var.name}/compressed"):
            with graph.control_dependencies([residual.assign_add(reshape(grad, [-1]))]):
                total = residual.read_value()
            _, at = top_k(abs(total), self.count(var))
            values = gather(total, at)
            with graph.control_dependencies([values]):
                zero = constant(0, residual.dtype)
                zeroed = residual._rows("ScatterUpdate", at, zero, None, distinct=True)
            with graph.control_dependencies([zeroed]):
                return at, identity(values)

    def _residual_of(self, var: Variable) -> Variable:
        if var not in self._residuals:
            with root_as_default(var.graph) as root, root.name_scope(None):
                self._residuals[var] = Variable(
                    lambda: zeros([size_of(var.shape)], compute_gradients_for(var)),
                    trainable=False,
                    collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.SUMMED_VARIABLES],
                    name=f"{var.name}/residual",
                )
        return self._residuals[var]


class CompressedOptimizer(Optimizer):
    """`optimizer` with compressed gradients: `BFloat16Compression()`, `TopKCompression()`.

    It wraps other wrappers. `compute_gradients` returns the gradients after transport, which may be
    clipped as usual. Sparse gradients are sent as rows, without compression.
    """

    def __init__(self, optimizer: Optimizer, compression: Compression) -> None:
        super().__init__("Compressed")
        if not isinstance(compression, Compression):
            raise GraphError(
                f"{compression!r} is not a compression of gradients",
                line=user_line(),
                hint="give hf.train.BFloat16Compression() or hf.train.TopKCompression(0.01)",
            )
        if type(optimizer).compute_gradients is not Optimizer.compute_gradients:
            raise GraphError(
                f"{type(optimizer).__name__} already sums its gradients over replicas",
                line=user_line(),
                hint="compress the gradients of the optimizer inside it",
            )
        dynamic = isinstance(optimizer, LossScaleOptimizer) and optimizer._dynamic is not None
        if dynamic and isinstance(compression, TopKCompression):
            raise GraphError(
                "a dynamic loss scale skips updates whose gradients are not finite, which "
                "top-k compression would keep in its residuals",
                line=user_line(),
                hint="give a number as loss_scale, or hf.train.BFloat16Compression()",
            )
        self._optimizer, self._compression = optimizer, compression

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None, grad_loss: Any = None
    ) -> list[tuple[Any, Variable]]:
        """The gradients of the wrapped optimizer, after compression."""
        pairs = self._optimizer._own_gradients(loss, var_list, grad_loss)
        return [(self._compression.joined(g, v), v) for g, v in pairs]

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """The method of the wrapped optimizer."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """The slots of the wrapped optimizer, and the variables of the compression."""
        return [*self._optimizer.variables(), *self._compression.variables()]


@contextlib.contextmanager
def _where_made(grad: Tensor, var: Variable) -> Iterator[None]:
    """The device of `grad` if it is a worker, otherwise the driver; never a server."""
    device = parse_device(grad.op.device)
    with var.here.device(None), var.here.device(str(device) if device.job != "ps" else None):
        yield
