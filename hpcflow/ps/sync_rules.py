"""The synchronization rules that `sync=` names, and the two that need no file of their own."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rule import Rule


@dataclasses.dataclass(frozen=True)
class Async(Rule):
    """Each worker updates the variables with its own gradients when it has them."""

    def __str__(self) -> str:
        return "async"


@dataclasses.dataclass(frozen=True)
class All(Rule):
    """Each update is by the gradients of all workers, from the same values: the global batch's."""

    joins = True

    def __str__(self) -> str:
        return "all"

    def needed(self, workers: int) -> int:
        """How many gradients make an update."""
        return workers


def rule(given: str | Rule) -> Rule:
    """The rule that a user names: "async", "all", "backup:K", "stale:S", or itself.

    Errors: HpcflowError listing the rules.
    """
    if isinstance(given, Rule):
        return given
    name, _, number = str(given).partition(":")
    if name in ("async", "all") and not number:
        return Async() if name == "async" else All()
    if name in ("backup", "stale") and number.isdecimal() and len(number) < 10:
        return Backup(int(number)) if name == "backup" else Stale(int(number))
    raise HpcflowError(
        f"sync={given!r} is no rule",
        hint="choose async, all, backup:K (hf.Backup(K)) or stale:S (hf.Stale(S))",
    )
