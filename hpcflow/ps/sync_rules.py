"""Synchronization rules `async` and `all`, and the parser of the option `sync=`."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rule import Rule


@dataclasses.dataclass(frozen=True)
class Async(Rule):
    """Asynchronous updates: each worker applies its own gradients as soon as it has them."""

    def __str__(self) -> str:
        return "async"


@dataclasses.dataclass(frozen=True)
class All(Rule):
    """Synchronous updates: each uses the gradients of all workers, that is of the global batch.

    All workers compute them from the same values of the variables.
    """

    joins = True

    def __str__(self) -> str:
        return "all"

    def needed(self, workers: int) -> int:
        """The number of gradients in an update."""
        return workers


def rule(given: str | Rule) -> Rule:
    """Parse a rule: "async", "all", "backup:K" or "stale:S"; a `Rule` is returned as it is.

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
