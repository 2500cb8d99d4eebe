"""What needs all replicas fails where one has ended, or waits for them all elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hpcflow.errors import LonelyCollectiveError


class Company:
    """What this rank does that needs all replicas, and what others say of where they are."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._needed: tuple[str, str] | None = None  # what now needs all: op, user's line
        self._soon: tuple[str, str] | None = None  # what will
        self.together = 0  # things done so far that need all replicas
        self._closed_by = -1  # a replica that has ended its program,
        self._closed_after = sys.maxsize  # having done as many of these
        self.met = 0  # meetings of all replicas that are over
        self._waits, self._waits_after = "", sys.maxsize  # of one who waits at the next

    @contextlib.contextmanager
    def needed(self, op: str, line: str, later: bool = False) -> Iterator[None]:
        """Inside, all replicas are needed: a replica that has ended is an error.

        With `later` only from `come_together` on: what is waited for first may end the step.
        Errors: LonelyCollectiveError naming `op`.
        """
        self._soon = (op, line)
        try:
            if not later:
                self.come_together()
            yield
        except BaseException:
            if self._needed is not None:
                self.together -= 1  # others may wait for this rank's part of it
            raise
        finally:
            self._soon = self._needed = None

    def come_together(self) -> None:
        """A step starts what needs all replicas."""
        if self._soon is not None and self._needed is None:
            self._needed = self._soon
            self.together += 1
            self._check()

    def closes(self, rank: int, together: int) -> None:
        """`rank` ends its program, having done so many things that need all replicas."""
        self._closed_by, self._closed_after = rank, together
        self._check()

    def meets(self, rank: int, what: str, number: int, together: int) -> None:
        """`rank` has come to meeting `number` of all replicas, for `what`."""
        if number == self.met:  # else it is over
            self._waits, self._waits_after = f"{rank} came to {what}", together
            self._check()

    def over(self) -> None:
        """A meeting of all replicas is over."""
        self.met += 1
        self._waits_after = sys.maxsize

    def _check(self) -> None:
        """Raise LonelyCollectiveError if a replica has ended without what now needs all.

        Or if it waits for all of them elsewhere: to save, or with no steps left.
        """
        if self._needed is None or self.together <= min(self._closed_after, self._waits_after):
            return
        has_ended = self.together > self._closed_after
        raise LonelyCollectiveError(
            "this step sums over all replicas, but rank "
            + (f"{self._closed_by} has ended" if has_ended else f"{self._waits} instead"),
            op=self._needed[0],
            line=self._needed[1],
            rank=self._rank,
            hint="run this fetch the same number of times on every replica: give all of them the "
            "same samples, and have all of them save",
        )
