"""Setting search: the best combination of settings of a job, by predictions of its step.

Starts are the numbers of servers, tasks and replicas (`CombinationSpace.layouts`) with the given
values of the other settings. From the best `BEAM` of them, and the best of each way to combine
gradients, coordinate descent changes one setting at a time to its best value until none is better.
Then the number of servers moves by one while that is better. Last, values go back to the given ones
where that costs next to nothing. All predictions have the same draws of noise, so the search is
deterministic. What it chooses is predicted to be at least as fast as the given settings, if these
fit the memory.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from typing import Protocol

from hpcflow.cli.memory_excess import Excess, memory_excess
from hpcflow.cli.setting_combinations import Combination, CombinationSpace
from hpcflow.errors import HpcflowError, PlacementError
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.plan.cost.memory_estimate import MemoryEstimate
from hpcflow.plan.cost.step_prediction import StepPrediction
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.settings import as_bytes

BEAM = 3  # starts of the coordinate descent
EQUAL = 0.01  # relative: smaller gains are within the accuracy of a replay


class Predicted(Protocol):
    """A predicted job; without a plan of it `prediction` is None."""

    @property
    def prediction(self) -> StepPrediction | None:
        """The prediction, which may have no memory and no interval."""

    @property
    def memory(self) -> dict[str, MemoryEstimate]:
        """The memory of each task."""


Predict = Callable[[argparse.Namespace], Predicted]


class Outcome:
    """A combination with its prediction.

    `seconds` are those of the samples of the given step, which other replicas divide otherwise.
    """

    def __init__(
        self,
        combination: Combination,
        job: Predicted,
        prediction: StepPrediction,
        limit: int,
        share: float = 1.0,
    ) -> None:
        """`limit` is that of a task in bytes, 0 for none. `share` is `seconds` by the median."""
        self.combination, self.prediction = combination, prediction
        self.seconds = prediction.median * share
        self._job, self._limit = job, limit
        self._excess: list[Excess] | None = None

    @property
    def excess(self) -> Excess | None:
        """The task that exceeds its memory by most; None if all fit."""
        if self._excess is None:
            mapping = self.prediction.network
            is_limited = self._limit or isinstance(mapping, RankMapping)
            memory = self._job.memory if is_limited else {}
            needs = {task: estimate.total for task, estimate in memory.items()}
            self._excess = memory_excess(needs, mapping, self._limit)
        return self._excess[0] if self._excess else None


@dataclasses.dataclass(frozen=True)
class Change:
    """A chosen value; `without` is the outcome with the given one, None if it is not allowed.

    `why` says why not.
    """

    name: str
    value: str
    given: str
    without: Outcome | None
    why: str


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search: the given and the best combination, and what was predicted."""

    given: Outcome
    best: Outcome
    changes: list[Change]
    count: int  # combinations predicted
    left_out: dict[str, str]


class SettingSearch:
    """The search for one job."""

    def __init__(self, args: argparse.Namespace, space: CombinationSpace, predict: Predict) -> None:
        """`predict(args)` predicts the job of `args` with other ranks and settings."""
        self.space, self._args, self._predict = space, args, predict
        self._limit = as_bytes(space.settings.memory_limit)
        self._known: dict[Combination, Outcome | str] = {}
        self._given: Outcome | None = None

    def run(self) -> Found:
        """Search.

        Errors: PlacementError with the cheapest remedies if no combination fits the memory;
        HpcflowError if the given settings cannot be planned.
        """
        given = self._given = self._given_outcome()
        starts = self._starts() or self._repaired()
        if not starts:
            raise self._nothing_fits()
        best = min((self._descended(one) for one in starts), key=_order)
        while (better := self._better(best, self.space.neighbors(best.combination))) is not None:
            best = self._descended(better)
        if given.excess is None and given.seconds <= best.seconds:
            best = given
        best = self._settled(best, given)
        return Found(given, best, self._changes(best), len(self._all()), self._left_out())

    # -- predictions

    def outcome(self, one: Combination) -> Outcome | str:
        """The outcome of a combination, or why it is not allowed."""
        one = self.space.normalized(one)
        refusal = self.space.refusal(one)
        if refusal:
            return refusal
        if one not in self._known:
            self._known[one] = self._predicted(one)
        return self._known[one]

    def _given_outcome(self) -> Outcome:
        found = self.outcome(self.space.given)
        if isinstance(found, str):
            raise HpcflowError(f"the given settings cannot be predicted: {found}")
        return found

    def arguments(self, one: Combination) -> argparse.Namespace:
        """The arguments of the command, with a combination."""
        words = [f"{name}={value}" for name, value in self.space.fields(one).items()]
        changed = {"ranks": one.ranks, "set": [*self._args.set, *words]}
        return argparse.Namespace(**{**vars(self._args), **changed})

    def _predicted(self, one: Combination) -> Outcome | str:
        try:
            job = self._predict(self.arguments(one))
        except HpcflowError as error:
            return escape_line(error.message)
        prediction = job.prediction
        if prediction is None:
            return "the script fails with it"
        if why := self.space.refusal_of_plan(prediction.plan, one):
            return why
        share = 1.0
        if self._given is not None and one.replicas != self.space.given.replicas:
            if not prediction.samples:
                return "the samples of a step are unknown: no array with samples is fed"
            given = self._given.prediction.samples * self.space.given.replicas
            share = given / (prediction.samples * one.replicas)
        return Outcome(one, job, prediction, self._limit, share)

    def _outcomes(self, some: Iterable[Combination]) -> list[Outcome]:
        """The different outcomes of combinations, without those that are not allowed."""
        found = [self.outcome(one) for one in some]
        return list({id(one): one for one in found if isinstance(one, Outcome)}.values())

    def _all(self) -> list[Outcome]:
        """The outcomes of all combinations that were predicted."""
        return [one for one in self._known.values() if isinstance(one, Outcome)]

    def _fitting(self, some: Iterable[Outcome], most: int) -> list[Outcome]:
        """The best `most` outcomes that fit the memory, best first."""
        found: list[Outcome] = []
        for one in sorted(some, key=_order):
            if len(found) < most and one.excess is None:
                found.append(one)
        return found

    def _better(self, than: Outcome, some: Iterable[Combination]) -> Outcome | None:
        """The best of some combinations that fits the memory, if it is faster."""
        faster = [one for one in self._outcomes(some) if one.seconds < than.seconds]
        return next(iter(self._fitting(faster, 1)), None)

    # -- moves

    def _starts(self) -> list[Outcome]:
        """The starts of coordinate descent, best first."""
        layouts = self._outcomes(self.space.layouts())
        kinds: dict[tuple[bool, str], list[Outcome]] = {}
        for one in layouts:
            kind = one.combination.ps > 0, one.combination.dense
            kinds.setdefault(kind, []).append(one)
        starts = self._fitting(layouts, BEAM)
        starts += [best for some in kinds.values() for best in self._fitting(some, 1)]
        return sorted({id(one): one for one in starts}.values(), key=_order)

    def _repaired(self) -> list[Outcome]:
        """Starts that fit the memory by another value of one more setting, best first."""
        layouts = self._outcomes(self.space.layouts())
        others = (
            one
            for layout in layouts
            for values in self.space.alternatives(layout.combination)
            for one in values
        )
        return self._fitting(self._outcomes(others), BEAM)

    def _descended(self, one: Outcome) -> Outcome:
        """The end of coordinate descent from an outcome."""
        before = None
        while before is not one:
            before = one
            for some in self.space.alternatives(one.combination):
                one = self._better(one, some) or one
        return one

    def _settled(self, best: Outcome, given: Outcome) -> Outcome:
        """An outcome with fewer ranks or changes that is as fast as the best, but for `EQUAL`."""
        most = best.seconds * (1 + EQUAL)
        if given.excess is None:
            most = min(most, given.seconds)

        def order(one: Outcome) -> tuple[int, int, float]:
            changes = one.combination.changed(self.space.given)
            return one.combination.ranks, len(changes), one.seconds

        before = None
        while before is not best:
            before = best
            self._outcomes(self._back(best.combination, name) for name in self._changed(best))
            able = [one for one in self._all() if one.seconds <= most]
            best = next(one for one in sorted(able, key=order) if one.excess is None)
        return best

    def _changed(self, best: Outcome) -> list[str]:
        return best.combination.changed(self.space.given)

    def _back(self, one: Combination, name: str) -> Combination:
        """The combination with the given value of one setting."""
        return dataclasses.replace(one, **{name: getattr(self.space.given, name)})

    def _changes(self, best: Outcome) -> list[Change]:
        """The chosen values that differ from the given ones, the most useful first."""
        found = []
        for name in self._changed(best):
            without = self.outcome(self._back(best.combination, name))
            is_known = isinstance(without, Outcome)
            found.append(
                Change(
                    name,
                    str(getattr(best.combination, name)),
                    str(getattr(self.space.given, name)),
                    without if isinstance(without, Outcome) else None,
                    "" if is_known else str(without),
                )
            )
        return sorted(found, key=lambda one: -(one.without.seconds if one.without else 0.0))

    # -- what is not chosen

    def _left_out(self) -> dict[str, str]:
        """Why settings and combinations were not predicted; one combination for each reason."""
        left_out = dict(self.space.left_out)
        for one, found in self._known.items():
            if isinstance(found, str) and found not in left_out.values():
                words = (f"{name}={getattr(one, name)}" for name in one.changed(self.space.given))
                left_out[", ".join(words)] = found
        return left_out

    def _nothing_fits(self) -> PlacementError:
        """The error that no combination fits, with the fewest ranks and the limit that would."""
        tightest = min(
            (one.excess for one in self._all() if one.excess is not None),
            key=lambda excess: excess.needs - excess.has,
        )
        remedies = []
        if (more := self._with_more_ranks()) is not None:
            remedies.append(f"start {more.ranks} ranks: {_words(more)}")
        where = "memory_limit" if self._limit == tightest.has else "memory_bytes in the topology"
        remedies.append(f"give {tightest.task} {tightest.needs - tightest.has:,} bytes more, "
                        f"{tightest.needs:,} in all ({where})")  # fmt: skip
        return PlacementError(
            f"no combination of settings on {self.space.most_ranks} ranks fits the memory: the "
            f"nearest needs {tightest.needs:,} bytes on {tightest.task}, of {tightest.has:,}",
            hint="; or ".join(remedies),
        )

    def _with_more_ranks(self) -> Combination | None:
        """The combination with the fewest ranks, beyond those of the space, that fits."""
        space = self.space
        if space.is_fixed:
            return None
        wider = {space.normalized(one) for one in space.larger()}
        for one in sorted(wider, key=lambda one: (one.ranks, repr(one))):
            found = self._predicted(one)
            if isinstance(found, Outcome) and found.excess is None:
                return one
        return None


def _order(one: Outcome) -> tuple[float, int, str]:
    return one.seconds, one.combination.ranks, repr(one.combination)


def _words(one: Combination) -> str:
    """The numbers of a combination for a message."""
    return f"ps={one.ps}, tasks_per_replica={one.tasks_per_replica}, dense={one.dense}"
