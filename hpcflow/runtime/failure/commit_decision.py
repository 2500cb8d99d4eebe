"""What the chief decides when a replica has died: a state machine that never blocks.

A replica's *place* is the number of joint steps that it has made, and whether it has voted for the
next one: started its last sum (`plan/communication/atomic_step_commit.py`), which it does when it
has all others. Once it
has seen the death it makes no step and votes for none by itself, so a place that it has told holds
until the chief says otherwise:

    COMMIT  make the step that you have voted for: someone has made it, or all have voted
    SHRINK  all stand at the same step, which nobody has made or will: make it without the dead

Who has made a step was in its last sum, so everyone had voted for it then. Hence replicas are never
more than one step apart, and who is behind has voted: it has all the sums and needs nobody.
"""

from __future__ import annotations

from collections.abc import Collection

COMMIT, SHRINK = 1, 2


class Verdicts:
    """The places of the replicas that live, as far as they have told them."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, bool]] = {}

    def hear(self, rank: int, steps: int, voted: bool) -> None:
        """`rank` has made `steps` joint steps, and has voted for the next one or not."""
        self._places[rank] = (steps, voted)

    def decide(self, living: Collection[int]) -> dict[int, int]:
        """What to say to whom now; nothing while some of the `living` have not told their place.

        Errors: ValueError if the places cannot be: the replicas' variables would differ.
        """
        places = {rank: self._places[rank] for rank in living if rank in self._places}
        if len(places) < len(living):
            return {}
        fewest = min(steps for steps, _ in places.values())
        behind = [rank for rank in living if places[rank][0] == fewest]
        have_all = all(places[rank][1] for rank in behind)
        if len(behind) == len(living) and not have_all:
            self._places.clear()
            return dict.fromkeys(living, SHRINK)
        if not have_all or max(steps for steps, _ in places.values()) > fewest + 1:
            raise ValueError(f"replicas stand at {sorted(places.items())}")
        for rank in behind:
            del self._places[rank]  # it tells its next one
        return dict.fromkeys(behind, COMMIT)
