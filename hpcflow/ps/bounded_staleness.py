"""Bounded staleness (stale synchronous parallel): a limit on how far workers run ahead."""

from __future__ import annotations

import dataclasses

from hpcflow.ps.sync_rule import SyncRule, require_integer


@dataclasses.dataclass(frozen=True)
class Stale(SyncRule):
    """Asynchronous updates; no worker runs more than `bound` steps ahead of the slowest worker.

    Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server (2013).
    """

    bound: int

    def __post_init__(self) -> None:
        require_integer("Stale", self.bound, 0)

    @property
    def max_steps_ahead(self) -> int:
        """The number of steps a worker may be ahead of the slowest when it begins a step."""
        return self.bound
