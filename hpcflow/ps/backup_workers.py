"""Backup workers: each update uses the first gradients that arrive and drops the late ones."""

from __future__ import annotations

import dataclasses

from hpcflow.errors import HpcflowError
from hpcflow.ps.sync_rule import SyncRule, require_integer


@dataclasses.dataclass(frozen=True)
class Backup(SyncRule):
    """Synchronous updates that use the first `workers - extra` gradients.

    Later gradients are dropped, so up to `extra` slow workers delay no update.
    Source: Abadi et al., TensorFlow (OSDI'16), section 4.4; Chen et al., Revisiting Distributed
    Synchronous SGD (2016).
    """

    extra: int
    joins = True

    def __post_init__(self) -> None:
        require_integer("Backup", self.extra, 1)

    @property
    def max_deaths(self) -> int | None:
        """As many workers as are in reserve."""
        return self.extra

    def needed(self, workers: int) -> int:
        """The number of gradients in an update."""
        return workers - self.extra

    def check(self, workers: int) -> None:
        """Raise HpcflowError if `extra` is not less than the number of workers."""
        if self.extra >= workers:
            raise HpcflowError(
                f"sync={self}: {self.extra} backup workers of {workers} leave no gradient to use",
                hint=f"start at least {self.extra + 1} workers, or have fewer in reserve",
            )
