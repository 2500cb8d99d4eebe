"""Shape specialization: plans of one fetch for known shapes, then for any; graph growth warning."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Shape, Spec, common_shape
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.runtime.step.planned_step import ExecutableStep
from hpcflow.runtime.step.step_channels import CollectiveBuffers

SPECIALISED = 8  # plans for known shapes of one fetch; then one plan serves any shape
GROWING_RUNS = 100  # consecutive runs with new operations before the warning
_numbers = (
    itertools.count()
)  # family numbers, over all sessions: remote ranks key `CollectiveBuffers` by them


class ShapeSpecializations:
    """The plans of one fetch with the same tensors fed: for each of a few shapes, then for any.

    Their collectives share one storage, because replicas are fed shards of different sizes.
    """

    def __init__(
        self,
        fetches: Sequence[Tensor | Operation],
        completed_ops: frozenset[Operation] = frozenset(),
        untraced_plans: ShapeSpecializations | None = None,
    ) -> None:
        """With `untraced_plans` its steps record the times of operations.

        It shares the collectives of `untraced_plans`, because a replica traces independently of the
        others.
        """
        self.fetches, self.completed_ops, self.untraced_plans = (
            fetches,
            completed_ops,
            untraced_plans,
        )
        self.number: int = next(_numbers) if untraced_plans is None else untraced_plans.number
        self._sums: CollectiveBuffers | None = None
        self._steps: dict[tuple[tuple[int, ...], ...], ExecutableStep] = {}  # shapes -> step
        self._general: list[tuple[tuple[Shape, ...], ExecutableStep]] = []  # the last one is used

    def step(
        self,
        arrays: Mapping[Tensor, np.ndarray],
        make: Callable[[ShapeSpecializations, dict[Tensor, Spec]], ExecutableStep],
    ) -> ExecutableStep:
        """The step for feeds of these shapes, created on first use."""
        shapes = tuple(array.shape for array in arrays.values())
        step = self._steps.get(shapes)
        if step is None and len(self._steps) < SPECIALISED:
            step = make(self, {t: Spec(a.dtype, a.shape) for t, a in arrays.items()})
            self._steps[shapes] = step
        return step if step is not None else self._general_step(arrays, make)

    def _general_step(
        self,
        arrays: Mapping[Tensor, np.ndarray],
        make: Callable[[ShapeSpecializations, dict[Tensor, Spec]], ExecutableStep],
    ) -> ExecutableStep:
        """The step for feeds of any shapes.

        Of a feed of unknown rank, sizes that have not differed so far are fixed: if one differs
        now, another step is made, at most one for each axis and one for the rank.
        """
        shapes = [array.shape for array in arrays.values()]
        if self._general:
            open_shapes, step = self._general[-1]
            if open_shapes == tuple(map(common_shape, open_shapes, shapes)):
                return step
            seen = [open_shapes]
        else:
            names = ", ".join(w.name for w in self.fetches)
            say_once(
                f"{names} was fed {SPECIALISED} different shapes; from now on one plan for any "
                "shape serves the others (slower: pad to a few sizes if it matters)"
            )
            seen = list(self._steps)
        columns = zip(arrays, zip(*seen, shapes, strict=True), strict=True)
        widened = tuple(
            functools.reduce(common_shape, column) if t.shape is None else t.shape
            for t, column in columns
        )
        specs = zip(arrays.items(), widened, strict=True)
        step = make(self, {t: Spec(array.dtype, shape) for (t, array), shape in specs})
        self._general.append((widened, step))
        return step

    def has(self, step: ExecutableStep) -> bool:
        """Whether a step belongs to this family."""
        return step in self.steps

    @property
    def sums(self) -> CollectiveBuffers | None:
        """The storage of its collectives, once the replicas have agreed on them."""
        return self._sums if self.untraced_plans is None else self.untraced_plans.sums

    def agree_on(self, sums: CollectiveBuffers) -> None:
        """The replicas have agreed on its collectives, which `sums` stores."""
        if self.untraced_plans is None:
            self._sums = sums
        else:
            self.untraced_plans.agree_on(sums)

    def cancel(self, reason: str) -> None:
        """Fail the steps in flight with a CancelledError."""
        for step in self.steps:
            step.cancel(reason)

    @property
    def steps(self) -> list[ExecutableStep]:
        """All its steps."""
        return [*self._steps.values(), *(step for _, step in self._general)]


class GraphGrowth:
    """Detects a graph that grows from run to run: a leak of scripts that build ops in the loop."""

    def __init__(self) -> None:
        self._version = 0
        self._runs = 0

    def watch(self, graph: Graph) -> None:
        """Count consecutive runs that found new operations; warn once, with the user's line."""
        grown, self._version = graph.version > self._version, graph.version
        self._runs = self._runs + 1 if grown else 0
        if self._runs == GROWING_RUNS:
            op = graph.get_operations()[-1]
            logger.warning(
                "the graph grew before each of the last %d runs: %r was made at %s; make "
                "operations once, before the loop, or memory and time grow with every step",
                *(GROWING_RUNS, op.name, op.line),
            )
