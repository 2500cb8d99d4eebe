"""Step correction: the own work of a step, by regression on steps that this machine has run.

Own work is the time of a driver's step without waiting. The model is linear, with non-negative
coefficients: seconds = sum of c_i x_i. The features x_i (`TERMS`) are the predicted seconds of the
operations, and costs that this sum leaves out. A row is a measured step. The coefficients minimize
two sums:

- the Huber loss of the relative errors of the rows (Huber, Annals of Mathematical Statistics 35(1),
  1964), so that a row of an unusual program moves them little;
- squared distances from the uncorrected model (ridge regression: Hoerl and Kennedy, Technometrics
  12(1), 1970), so that without rows they are that model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hpcflow.plan.cost.cost_model import MESSAGE_BYTES_PER_S
from hpcflow.plan.cost.operation_costs import operation_costs
from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.platform.measured_costs import OperationCost
from hpcflow.platform.measured_step_costs import CountedOperation, StepCost, StepFeatures
from hpcflow.platform.quantity_text import counted

OperationSeconds = Callable[[CountedOperation, int], float]  # of one call, with so many threads


class Term(NamedTuple):
    """A feature; `usual` is its coefficient without rows, `width` how far rows usually move it."""

    name: str
    usual: float
    width: float


TERMS = (
    Term("operations", 1.0, 1.0),  # seconds of all operations
    Term("step", 0.0, 1.0),  # STEP_S
    Term("exchange", 0.0, 1.0),  # EXCHANGE_S a message or collective, and their bytes
    Term("neighbours", 0.0, 0.5),  # operations times the share of the node's ranks that are others
)
STEP_S, EXCHANGE_S = 1e-4, 2e-5  # seconds; bytes take 1 / MESSAGE_BYTES_PER_S
USUAL = np.array([term.usual for term in TERMS])
WIDTHS = np.array([term.width for term in TERMS])
RIDGE = 0.2  # weight of the distances from the uncorrected model; a row weighs 1
SAME_PLAN = 10.0  # weight of a row of the predicted plan
ITERATIONS = 20  # of the reweighted least squares
USUAL_ERROR = 0.1  # threshold of the Huber loss, relative
LEAST_SPREAD = math.log(1.1)
SHARE = 0.9  # of the held-out rows that the interval covers


@dataclasses.dataclass(frozen=True)
class StepCorrection:
    """Coefficients of `TERMS`, and the runs, programs and threads of a rank that they are from.

    `spread` is the logarithm of high / median of the interval.
    """

    coefficients: tuple[float, ...]
    runs: int
    programs: int
    threads: int
    spread: float

    def __str__(self) -> str:
        runs, programs = counted(self.runs, "run"), counted(self.programs, "program")
        threads = counted(self.threads, "thread")
        return f"corrected by {runs} of {programs} on this machine, {threads} a rank"


class HeldOutRow(NamedTuple):
    """A row and the seconds of its own work: measured, and predicted by rows of other programs."""

    row: StepCost
    measured: float
    uncorrected: float
    corrected: float


def seconds_from_rows(rows: Iterable[OperationCost]) -> OperationSeconds:
    """Return the seconds of operations by measured rows; without rows, by the cost model."""
    known = tuple(rows)
    if not known:
        return lambda one, threads: one.constant_s
    costs = operation_costs(known)

    def seconds(one: CountedOperation, threads: int) -> float:
        if not one.known:
            return one.constant_s
        features = OperationFeatures(one.type, one.dtypes, one.flops, one.nbytes)
        return costs.seconds_of(features, one.device, threads).median

    return seconds


def feature_vector(
    step: StepFeatures, seconds: OperationSeconds, threads: int, ranks_on_node: int
) -> np.ndarray:
    """The values of `TERMS` for a step: 4 features, in seconds.

    Ranks of a node share its memory bandwidth, caches and power, hence the term `neighbours`.
    """
    operations = sum_of_operations(step, seconds, threads)
    moved = step.message_bytes + step.collective_bytes
    exchange = (step.messages + step.collectives) * EXCHANGE_S + moved / MESSAGE_BYTES_PER_S
    return np.array([operations, STEP_S, exchange, operations * (1 - 1 / ranks_on_node)])


def sum_of_operations(step: StepFeatures, seconds: OperationSeconds, threads: int) -> float:
    """The predicted seconds of the operations of a step, one after the other."""
    return sum(one.calls * seconds(one, threads) for one in step.operations)


def fit(columns: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The coefficients for `columns` (rows x features) and measured seconds; USUAL without rows.

    The relative error of a row is (predicted - measured) / sqrt(predicted measured), the same for a
    factor either way. Iteratively reweighted least squares (Holland and Welsch, Communications in
    Statistics 6(9), 1977) minimizes their Huber loss with the threshold USUAL_ERROR: the weights,
    and the predicted seconds under the root, are those of the iteration before.
    """
    found = USUAL
    for _ in range(ITERATIONS if len(measured) else 0):
        predicted = np.maximum(columns @ found, 1e-12)
        root = np.sqrt(predicted * measured)
        errors = np.abs(predicted - measured) / root
        scale = np.sqrt(weights * USUAL_ERROR / np.maximum(errors, USUAL_ERROR)) / root
        scaled, target = columns * scale[:, None], measured * scale
        ridge = RIDGE / WIDTHS**2
        found = _non_negative(scaled.T @ scaled + np.diag(ridge), scaled.T @ target + ridge * USUAL)
    return found


def correction(
    rows: Sequence[StepCost], seconds: OperationSeconds, step: StepFeatures, plan: str, threads: int
) -> StepCorrection | None:
    """The correction for a step of the plan with the digest `plan`; None without comparable rows.

    Rows are comparable if their operations are on the same kinds of devices as those of the step.
    Of these only the rows with the number of threads nearest to `threads` count.
    """
    rows = _comparable(rows, step, threads)
    if not rows:
        return None
    columns, measured = _table(rows, seconds)
    weights = np.array([SAME_PLAN if row.key.plan == plan else 1.0 for row in rows])
    found = fit(columns, measured, weights)
    errors = sorted(
        abs(math.log(one.corrected / one.measured)) for one in cross_validation(rows, seconds)
    )
    spread = errors[min(len(errors) - 1, int(SHARE * (len(errors) + 1)))]
    return StepCorrection(
        tuple(map(float, found)),
        len(rows),
        len({row.script for row in rows}),
        rows[0].key.threads,
        max(LEAST_SPREAD, spread),
    )


def corrected_own_work(
    found: StepCorrection,
    step: StepFeatures,
    seconds: OperationSeconds,
    threads: int,
    ranks_on_node: int,
) -> float:
    """The corrected own work of a step."""
    return float(
        np.array(found.coefficients) @ feature_vector(step, seconds, threads, ranks_on_node)
    )


def cross_validation(rows: Sequence[StepCost], seconds: OperationSeconds) -> list[HeldOutRow]:
    """Predict each row from the rows of the other scripts (leave one group out).

    If all rows are of one script, the groups are plans.
    """
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
            found.append(
                HeldOutRow(rows[i], float(measured[i]), *(max(p, 1e-12) for p in predicted))
            )
    return found


def _comparable(rows: Sequence[StepCost], step: StepFeatures, threads: int) -> list[StepCost]:
    def devices(features: StepFeatures) -> set[str]:
        return {one.device for one in features.operations}

    alike = [row for row in rows if devices(row.features) == devices(step)]
    distances = [abs(math.log(row.key.threads / threads)) for row in alike]
    least = min(distances, default=0.0)
    return [row for row, far in zip(alike, distances, strict=True) if far == least]


def _table(rows: Sequence[StepCost], seconds: OperationSeconds) -> tuple[np.ndarray, np.ndarray]:
    keys = [row.key for row in rows]
    columns = np.array([
        feature_vector(row.features, seconds, key.threads, key.ranks_on_node)
        for row, key in zip(rows, keys, strict=True)
    ])  # fmt: skip
    return columns, np.array([row.work.median for row in rows])


def _non_negative(gram: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimizes x G x - 2 s x (non-negative least squares); G is positive definite.

    Exact: it tries all sets of non-zero entries, from the largest on, until the solution on one
    meets the conditions of Karush, Kuhn and Tucker. Only the optimum meets them.
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
