"""Nonlinear least squares by the Levenberg-Marquardt method (Marquardt, SIAM J. 11(2), 1963)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray

STEP = 1e-5  # of a forward difference; parameters are of order 1
DAMPING, LESS, MORE = 1e-2, 1 / 6, 4.0  # at the start; factors after a descent and a failed try
LEAST_DAMPING = 1e-9
TRIES = 12  # of larger damping until a step descends
ITERATIONS = 60
RELATIVE_GAIN = 1e-7  # the search ends at a smaller one


def minimize(residuals: Callable[[Array], Array], start: Array) -> Array:
    """The parameters of a local minimum of the sum of squares of `residuals(parameters)`.

    It may stop before, after `ITERATIONS` descents or a relative gain below `RELATIVE_GAIN`.
    """
    point, here, damping = start, residuals(start), DAMPING
    for _ in range(ITERATIONS):
        slopes = _jacobian(residuals, point, here)
        normal, gradient = slopes.T @ slopes, slopes.T @ here
        for _ in range(TRIES):
            damped = normal + damping * np.diag(np.diag(normal))
            step = np.linalg.solve(damped, -gradient)
            there = residuals(point + step)
            if np.all(np.isfinite(there)) and there @ there < here @ here:
                break
            damping *= MORE
        else:
            return point
        gain = 1 - (there @ there) / (here @ here)
        point, here, damping = point + step, there, max(damping * LESS, LEAST_DAMPING)
        if gain < RELATIVE_GAIN:
            break
    return point


def _jacobian(residuals: Callable[[Array], Array], point: Array, here: Array) -> Array:
    """The derivatives of the residuals by forward differences: (residuals, parameters)."""
    moved = point + STEP * np.eye(len(point))
    return np.stack([(residuals(row) - here) / STEP for row in moved], axis=1)
