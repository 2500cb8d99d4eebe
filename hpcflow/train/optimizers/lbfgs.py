"""L-BFGS: minimizes a loss on full batches, with a line search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import GradientError, NumericError
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.static_shape import size_of
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import cast
from hpcflow.ops.replicas.replica_ops import replica_share, replica_sum
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.variable_ops import Variable, trainable_variables
from hpcflow.train.optimizers.optimizer import Optimizer

Point = tuple[float, np.ndarray]  # a loss and its gradient
Evaluate = Callable[[np.ndarray], Point]
ENOUGH, FLAT = 1e-4, 0.9  # Wolfe conditions: decrease, slope (Nocedal and Wright, 3.1)
TRIES = 30  # evaluations in one line search


class LBFGSResult(NamedTuple):
    """The result of a minimization; `converged` if a tolerance was reached."""

    loss: float
    gradient: float  # its largest element by magnitude
    iterations: int
    evaluations: int
    converged: bool
    reason: str


class LBFGS:
    """Minimizes `loss` over `var_list` by limited-memory BFGS (Nocedal and Wright, algorithm 7.5).

    `minimize` feeds the same batch in every evaluation. Replicas that feed different shards
    minimize the loss of the global batch. `history` pairs of steps approximate the curvature.
    Minimization ends when no element of the gradient is larger than `gradient_tolerance`, when an
    iteration lowers the loss by less than `loss_tolerance` times its value, or after
    `max_iterations`.
    """

    def __init__(
        self,
        loss: Any,
        var_list: Sequence[Variable] | None = None,
        max_iterations: int = 200,
        history: int = 10,
        gradient_tolerance: float = 1e-6,
        loss_tolerance: float = 1e-12,
    ) -> None:
        loss = convert_to_tensor(loss)
        gradients = Optimizer("LBFGS").compute_gradients(
            loss, trainable_variables() if var_list is None else var_list
        )
        pairs = [(g, v) for g, v in gradients if g is not None]
        if not pairs:
            raise GradientError("the loss depends on none of the variables", op=loss.op.name)
        self._variables = [v for _, v in pairs]
        self._loss = replica_sum(loss * cast(replica_share(), loss.dtype))
        self._gradients: list[Tensor] = [
            g.dense() if isinstance(g, IndexedSlices) else g for g, _ in pairs
        ]
        self._feeds = [placeholder(v.dtype, v.shape) for v in self._variables]
        both = zip(self._variables, self._feeds, strict=True)
        self._assign = group(*(v.assign(feed) for v, feed in both))
        self._max_iterations, self._history = max_iterations, history
        self._gradient_tolerance, self._loss_tolerance = gradient_tolerance, loss_tolerance

    def minimize(
        self,
        session: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        step_callback: Callable[[int, float], None] | None = None,
    ) -> LBFGSResult:
        """Minimize the loss of `feed_dict`, starting from the current values of the variables.

        `step_callback(iteration, loss)` is called after each iteration.
        Ranks:  all replicas call it and take the same steps.
        Errors: NumericError if the initial loss is not finite.
        """
        feeds = dict(feed_dict or {})
        calls = 0

        def evaluate(x: np.ndarray) -> Point:
            nonlocal calls
            calls += 1
            self._write(session, x)
            loss, *grads = session.run([self._loss, *self._gradients], feeds)
            return float(loss), _flat(grads)

        x = _flat(session.run(self._variables))
        f, g = evaluate(x)
        if not np.isfinite(f):
            raise NumericError(f"the loss is {f} at the start of the minimization")
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        reason, number = "max_iterations", 0
        for number in range(1, self._max_iterations + 1):
            if _largest(g) <= self._gradient_tolerance:
                number, reason = number - 1, "gradient_tolerance"
                break
            d = direction(g, pairs)
            first = 1.0 if pairs else min(1.0, 1.0 / np.abs(g).sum())
            step = line_search(evaluate, x, d, (f, g), first)
            if step is None:
                number, reason = number - 1, "no step lowers the loss"
                break
            s, (f_new, g_new) = step
            x, y, before = x + s, g_new - g, f
            f, g = f_new, g_new
            if s @ y > 1e-10 * (y @ y):
                pairs = [*pairs, (s, y)][-self._history :]
            if step_callback is not None:
                step_callback(number, f)
            if before - f <= self._loss_tolerance * max(abs(before), abs(f), 1e-30):
                reason = "loss_tolerance"
                break
        self._write(session, x)
        return LBFGSResult(f, _largest(g), number, calls, reason.endswith("tolerance"), reason)

    def _write(self, session: Any, x: np.ndarray) -> None:
        """Assign the flat vector `x` to the variables."""
        session.run(self._assign, dict(zip(self._feeds, self._taken_apart(x), strict=True)))

    def _taken_apart(self, x: np.ndarray) -> list[np.ndarray]:
        sizes = [size_of(v.shape) for v in self._variables]
        parts = np.split(x, np.cumsum(sizes)[:-1])
        both = zip(parts, self._variables, strict=True)
        return [part.reshape(v.shape).astype(v.dtype) for part, v in both]


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(a).astype(np.float64) for a in arrays])


def _largest(gradient: np.ndarray) -> float:
    return float(np.abs(gradient).max(initial=0.0))


def direction(g: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The search direction -H g.

    H approximates the inverse Hessian by `pairs` (step, change of gradient).
    """
    q, factors = g.copy(), []
    for s, y in reversed(pairs):
        a = (s @ q) / (s @ y)
        factors.append(a)
        q -= a * y
    if pairs:
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
    for (s, y), a in zip(pairs, reversed(factors), strict=True):
        q += (a - (y @ q) / (s @ y)) * s
    return -q


def line_search(
    evaluate: Evaluate, x: np.ndarray, d: np.ndarray, start: Point, first: float
) -> tuple[np.ndarray, Point] | None:
    """A step along `d` that satisfies the strong Wolfe conditions, and the point it leads to.

    Source: Nocedal and Wright, algorithms 3.5 and 3.6. None if the loss cannot be lowered. After
    `TRIES` evaluations the lowest point is used.
    """
    f0, slope0 = start[0], float(start[1] @ d)
    if slope0 >= 0:
        return None
    low = _TrialPoint(0.0, start, slope0)
    high: _TrialPoint | None = None
    best: _TrialPoint | None = None
    length = first
    for _ in range(TRIES):
        point = evaluate(x + length * d)
        now = _TrialPoint(length, point, float(point[1] @ d))
        finite = bool(np.isfinite(point[0]) and np.isfinite(now.slope))
        if finite and now.loss < f0 and (best is None or now.loss < best.loss):
            best = now
        worse = not finite or now.loss > f0 + ENOUGH * length * slope0 or now.loss >= low.loss
        if worse:
            high = now
        elif abs(now.slope) <= -FLAT * slope0:
            return length * d, now.point
        else:
            if now.slope * ((high.at if high else np.inf) - low.at) >= 0:
                high = low
            low = now
        length = 2 * length if high is None else _between(low, high)
        if high is not None and abs(high.at - low.at) * np.abs(d).max() < 1e-16:
            break
    return None if best is None else (best.at * d, best.point)


class _TrialPoint:
    """A point on the line: step length, loss and gradient, slope."""

    def __init__(self, at: float, point: Point, slope: float) -> None:
        self.at, self.point, self.loss, self.slope = at, point, point[0], slope


def _between(low: _TrialPoint, high: _TrialPoint) -> float:
    """The minimum of the cubic interpolation, away from the ends (Nocedal and Wright 3.59)."""
    width = high.at - low.at
    middle = low.at + 0.5 * width
    if not (np.isfinite(high.loss) and np.isfinite(high.slope)):
        return middle
    a = low.slope + high.slope - 3 * (low.loss - high.loss) / (low.at - high.at)
    inside = a * a - low.slope * high.slope
    if inside < 0:
        return middle
    b = np.sign(width) * np.sqrt(inside)
    below = high.slope - low.slope + 2 * b
    at = high.at - width * (high.slope + b - a) / below if below else middle
    least, most = sorted((low.at + 0.1 * width, high.at - 0.1 * width))
    return float(min(max(at, least), most)) if np.isfinite(at) else middle
