"""Step correction: the own work of a step, learned from steps that this machine has run.

seconds = sum of coefficients times features, all non-negative. The features are predicted seconds
of three kinds of operations, and fixed costs that a sum of operations leaves out. The coefficients
minimize the squared relative errors of the measured rows plus squared distances from the
uncorrected model (ridge regression: Hoerl and Kennedy, Technometrics 12(1), 1970). So without rows
they are the uncorrected model, and few rows move them little.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hpcflow.plan.cost.cost_model import BYTES, MESSAGE_BYTES_PER_S
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.platform.measured_costs import OperationCost
from hpcflow.platform.measured_steps import (
    ELEMENTWISE,
    OTHER,
    PRODUCT,
    PlannedOperation,
    PlannedStep,
    StepCost,
)

OperationSeconds = Callable[[PlannedOperation, int], float]  # of one operation, by threads


class Term(NamedTuple):
    """A feature: its coefficient without rows, and the width of the ridge around it."""

    name: str
    usual: float
    width: float


TERMS = (
    Term("matrix products", 1.0, 1.0),
    Term("elementwise", 1.0, 1.0),
    Term("other operations", 1.0, 1.0),
    Term("calls", 0.0, 3.0),  # of CALL_S
    Term("step", 0.0, 1.0),  # of STEP_S
    Term("feeds and fetches", 0.0, 1.0),  # at BYTES
    Term("exchange", 0.0, 1.0),  # of EXCHANGE_S, and at MESSAGE_BYTES_PER_S
)
KINDS = (PRODUCT, ELEMENTWISE, OTHER)  # of the first terms
CALL_S, STEP_S, EXCHANGE_S = 1e-6, 1e-4, 2e-5
USUAL = np.array([term.usual for term in TERMS])
WIDTHS = np.array([term.width for term in TERMS])
RIDGE = 0.2  # of all distances; a row weighs 1
SAME_PLAN = 10.0  # weight of a row of the predicted plan
ITERATIONS = 5  # of the weights of the relative errors
LEAST_SPREAD = math.log(1.1)
SHARE = 0.9  # of the programs that the interval holds


@dataclasses.dataclass(frozen=True)
class StepCorrection:
    """Coefficients of TERMS, and from how many runs; `spread` is the logarithm of high / median."""

    coefficients: tuple[float, ...]
    runs: int
    programs: int
    threads: int
    spread: float


class LeftOut(NamedTuple):
    """A row and the seconds of its own work: measured, and predicted without its program."""

    row: StepCost
    measured: float
    uncorrected: float
    corrected: float


def seconds_by(rows: Iterable[OperationCost]) -> OperationSeconds:
    """Seconds of an operation by measured rows; by the constants of the cost model without rows."""
    known = tuple(rows)
    if not known:
        return lambda one, threads: one.constant_s
    costs = OperationCosts(known)

    def seconds(one: PlannedOperation, threads: int) -> float:
        if not one.known:
            return one.constant_s
        features = OperationFeatures(one.type, one.dtypes, one.flops, one.nbytes)
        return costs.seconds_of(features, one.device, threads).median

    return seconds


def features(step: PlannedStep, seconds: OperationSeconds, threads: int) -> np.ndarray:
    """The values of TERMS for a step, in seconds."""
    times = dict.fromkeys(KINDS, 0.0)
    for one in step.operations:
        times[one.kind] += one.calls * seconds(one, threads)
    moved = step.message_bytes + step.collective_bytes
    fixed = [
        sum(one.calls for one in step.operations) * CALL_S,
        STEP_S,
        (step.fed_bytes + step.fetched_bytes) / BYTES,
        (step.messages + step.collectives) * EXCHANGE_S + moved / MESSAGE_BYTES_PER_S,
    ]
    return np.array([*times.values(), *fixed])


def fit(columns: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The coefficients for rows of features and their measured seconds; USUAL without rows.

    The relative error of a row is (predicted - measured) / sqrt(predicted measured), which is the
    same for a factor either way; the predicted seconds under the root are those of the iteration
    before.
    """
    found = USUAL
    for _ in range(ITERATIONS if len(measured) else 0):
        predicted = np.maximum(columns @ found, 1e-12)
        scale = np.sqrt(weights / (predicted * measured))
        scaled, target = columns * scale[:, None], measured * scale
        ridge = RIDGE / WIDTHS**2
        found = _non_negative(scaled.T @ scaled + np.diag(ridge), scaled.T @ target + ridge * USUAL)
    return found


def correction(
    rows: Sequence[StepCost], seconds: OperationSeconds, step: PlannedStep, plan: str, threads: int
) -> StepCorrection | None:
    """The correction for the step of a plan with this digest; None without rows that fit to it.

    Rows count if their operations are on the same kinds of devices and if their number of threads
    is the nearest one to `threads`.
    """
    rows = _comparable(rows, step, threads)
    if not rows:
        return None
    columns, measured = _table(rows, seconds)
    weights = np.array([SAME_PLAN if row.key.plan == plan else 1.0 for row in rows])
    found = fit(columns, measured, weights)
    errors = sorted(abs(math.log(one.corrected / one.measured)) for one in left_out(rows, seconds))
    spread = errors[min(len(errors) - 1, int(SHARE * (len(errors) + 1)))]
    return StepCorrection(
        tuple(map(float, found)),
        len(rows),
        len({row.script for row in rows}),
        rows[0].key.threads,
        max(LEAST_SPREAD, spread),
    )


def corrected_seconds(
    found: StepCorrection, step: PlannedStep, seconds: OperationSeconds, threads: int
) -> float:
    """The corrected own work of a step."""
    return float(np.array(found.coefficients) @ features(step, seconds, threads))


def left_out(rows: Sequence[StepCost], seconds: OperationSeconds) -> list[LeftOut]:
    """Each row predicted from the rows of other scripts; of other plans if there is one script."""
    if not rows:
        return []
    columns, measured = _table(rows, seconds)
    scripts = [row.script for row in rows]
    programs = np.array(scripts if len(set(scripts)) > 1 else [row.key.plan for row in rows])
    found = []
    for program in dict.fromkeys(programs):
        out = programs == program
        coefficients = fit(columns[~out], measured[~out], np.ones(int((~out).sum())))
        for i in map(int, np.flatnonzero(out)):
            predicted = float(columns[i] @ USUAL), float(columns[i] @ coefficients)
            found.append(LeftOut(rows[i], float(measured[i]), *(max(p, 1e-12) for p in predicted)))
    return found


def _comparable(rows: Sequence[StepCost], step: PlannedStep, threads: int) -> list[StepCost]:
    def devices(planned: PlannedStep) -> set[str]:
        return {one.device for one in planned.operations}

    alike = [row for row in rows if devices(row.planned) == devices(step)]
    distances = [abs(math.log(row.key.threads / threads)) for row in alike]
    least = min(distances, default=0.0)
    return [row for row, far in zip(alike, distances, strict=True) if far == least]


def _table(rows: Sequence[StepCost], seconds: OperationSeconds) -> tuple[np.ndarray, np.ndarray]:
    columns = np.array([features(row.planned, seconds, row.key.threads) for row in rows])
    return columns, np.array([row.work.median for row in rows])


def _non_negative(gram: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimizes x G x - 2 s x, of a positive definite G.

    Exact: the only set of non-zero entries whose solution meets the conditions of Karush, Kuhn and
    Tucker, sought from the largest set on.
    """
    size = len(sums)
    for number in range(size, 0, -1):
        for kept in map(list, combinations(range(size), number)):
            x = np.zeros(size)
            x[kept] = np.linalg.solve(gram[np.ix_(kept, kept)], sums[kept])
            slope = gram @ x - sums
            if (
                x.min() >= 0.0
                and np.delete(slope, kept).min(initial=0.0) >= -1e-9 * abs(sums).max()
            ):
                return x
    return np.zeros(size)
