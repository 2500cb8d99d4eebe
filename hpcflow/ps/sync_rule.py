"""Synchronization rule: the interface of the rules for workers of parameter servers.

A rule is plain data and does not communicate. `Rounds` (sync_coordinator.py) queries it. The
implementations are in sync_rules.py (async, all), backup_workers.py and bounded_staleness.py.
"""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError


@dataclasses.dataclass(frozen=True)
class Rule:
    """Base class of the synchronization rules.

    `joins` is True if one update combines gradients of several workers; `needed` is then their
    number. Other rules may limit `max_steps_ahead`.
    """

    joins = False

    @property
    def max_steps_ahead(self) -> int | None:
        """The steps a worker may be ahead of the slowest when it begins one; None: no limit."""
        return None

    def needed(self, workers: int) -> int:
        """The number of gradients in an update; 0 if each worker makes its own updates."""
        return 0

    def check(self, workers: int) -> None:
        """Raise HpcflowError if there are too few workers for the rule."""


def require_whole(what: str, number: object, least: int) -> None:
    """Raise HpcflowError unless the argument of a rule is an integer of at least `least`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise HpcflowError(f"{what}({number!r})", hint=f"give a whole number of at least {least}")
