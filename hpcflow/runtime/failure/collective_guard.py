"""Collective guard: a collective fails, instead of hanging, if a replica cannot take part.

A replica cannot take part after its program has ended, or while it waits at a barrier.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hpcflow.errors import LonelyCollectiveError


class CollectiveGuard:
    """The collectives of this rank, and the positions that other replicas have reported."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._active_collective: tuple[str, str] | None = (
            None  # the collective in progress: op, user's line
        )
        self._is_upcoming: tuple[str, str] | None = None  # the next collective
        self.collectives_begun = 0  # number of collectives begun
        self._closed_by = -1  # rank of a replica whose program has ended
        self._closed_after = sys.maxsize  # the number of its collectives
        self.barriers_passed = 0  # number of completed barriers
        # a replica that waits at the next barrier, and the number of its collectives
        self._waits, self._waits_after = "", sys.maxsize

    @contextlib.contextmanager
    def guard(self, op: str, line: str, later: bool = False) -> Iterator[None]:
        """Guard a collective of operation `op`: inside, it is an error if a replica has ended.

        With `later` the collective begins at `begin_collective`: an earlier wait may end the step.
        Errors: LonelyCollectiveError naming `op`.
        """
        self._is_upcoming = (op, line)
        try:
            if not later:
                self.begin_collective()
            yield
        except BaseException:
            if self._active_collective is not None:
                self.collectives_begun -= 1  # other ranks may still wait for this rank in it
            raise
        finally:
            self._is_upcoming = self._active_collective = None

    def begin_collective(self) -> None:
        """The step begins its collective. Errors: LonelyCollectiveError."""
        if self._is_upcoming is not None and self._active_collective is None:
            self._active_collective = self._is_upcoming
            self.collectives_begun += 1
            self._check()

    def replica_closes(self, rank: int, together: int) -> None:
        """`rank` ends its program after `together` collectives. Errors: LonelyCollectiveError."""
        self._closed_by, self._closed_after = rank, together
        self._check()

    def replica_at_barrier(self, rank: int, purpose: str, number: int, together: int) -> None:
        """`rank` waits at barrier `number` of this `purpose`, after `together` collectives.

        Errors: LonelyCollectiveError.
        """
        if number == self.barriers_passed:  # else that barrier is over
            self._waits, self._waits_after = f"{rank} came to {purpose}", together
            self._check()

    def barrier_over(self) -> None:
        """A barrier is complete."""
        self.barriers_passed += 1
        self._waits_after = sys.maxsize

    def _check(self) -> None:
        """Raise LonelyCollectiveError if a replica cannot take part in the collective in progress.

        Its program has ended, or it waits at a barrier: to save, or with no steps left.
        """
        if self._active_collective is None or self.collectives_begun <= min(
            self._closed_after, self._waits_after
        ):
            return
        has_ended = self.collectives_begun > self._closed_after
        raise LonelyCollectiveError(
            "this step sums over all replicas, but rank "
            + (f"{self._closed_by} has ended" if has_ended else f"{self._waits} instead"),
            op=self._active_collective[0],
            line=self._active_collective[1],
            rank=self._rank,
            hint="run this fetch the same number of times on every replica: give all of them the "
            "same samples, and have all of them save",
        )
