"""The interface of a synchronization rule: how workers of parameter servers keep step.

A rule is plain data and decisions. `SyncCoordinator` (sync_coordinator.py) asks it; it communicates
nothing. The rules: async and all (sync_rules.py), backup_workers.py, bounded_staleness.py.
"""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError


@dataclasses.dataclass(frozen=True)
class Rule:
    """Base of the rules.

    `joins`: gradients of several workers make one update. A rule that joins says how many are
    `needed`. A rule that does not may have a `bound`: how many steps a worker may run ahead of the
    slowest one; None: any number.
    """

    joins = False

    @property
    def max_steps_ahead(self) -> int | None:
        """How many steps a worker may be ahead of the slowest when it begins one."""
        return None

    def needed(self, workers: int) -> int:
        """How many gradients make an update; 0 if each worker makes its own."""
        return 0

    def check(self, workers: int) -> None:
        """HpcflowError if so few workers cannot follow the rule."""


def require_whole(what: str, number: object, least: int) -> None:
    """HpcflowError unless the argument of a rule is a whole number of at least `least`."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise HpcflowError(f"{what}({number!r})", hint=f"give a whole number of at least {least}")
