"""Commit decision after the death of a replica: the chief's non-blocking state machine.

A replica's *place* is the number of joint steps that it has committed, and whether it has voted for
the next one. It votes by starting the last allreduce of the step, after all others are complete
(`plan/communication/atomic_step_commit.py`). Once it has detected the death, it neither commits nor
votes by itself, so a reported place holds until the verdict of the chief:

    COMMIT  commit the step that you have voted for: a replica has committed it, or all have voted
    SHRINK  all are at the same step, which no replica has or will commit: run it without the dead

A replica that has committed a step completed its last allreduce, so all had voted for it. Hence
replicas are never more than one step apart, and a replica that is behind has voted: it has all sums
and can commit alone.
"""

from __future__ import annotations

from collections.abc import Collection

COMMIT, SHRINK = 1, 2


class CommitDecision:
    """The places that live replicas have reported."""

    def __init__(self) -> None:
        self._positions: dict[int, tuple[int, bool]] = {}

    def add_position(self, rank: int, steps: int, voted: bool) -> None:
        """`rank` has committed `steps` joint steps; `voted`: it has voted for the next one."""
        self._positions[rank] = (steps, voted)

    def decide(self, living: Collection[int]) -> dict[int, int]:
        """The verdicts by rank; none until all of the `living` have reported their places.

        Errors: ValueError if the places are inconsistent: the variables of replicas would differ.
        """
        places = {rank: self._positions[rank] for rank in living if rank in self._positions}
        if len(places) < len(living):
            return {}
        fewest = min(steps for steps, _ in places.values())
        behind = [rank for rank in living if places[rank][0] == fewest]
        have_all = all(places[rank][1] for rank in behind)
        if len(behind) == len(living) and not have_all:
            self._positions.clear()
            return dict.fromkeys(living, SHRINK)
        if not have_all or max(steps for steps, _ in places.values()) > fewest + 1:
            raise ValueError(f"replicas stand at {sorted(places.items())}")
        for rank in behind:
            del self._positions[rank]  # it will report its next place
        return dict.fromkeys(behind, COMMIT)
