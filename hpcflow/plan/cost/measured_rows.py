"""Measured rows: the measured operations by which `placement=auto` makes a plan.

Rank 0 reads them from its machine profile and broadcasts them, so that all ranks make one plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from hpcflow.platform.measured_costs import OperationCost
from hpcflow.platform.quantity_text import counted


@dataclasses.dataclass(frozen=True)
class MeasuredRows:
    """Rows of one machine, for ranks of `threads` threads; equal if `digest`, their digest, is.

    `device` is the kind of device, `cpu` or `gpu`, of operations without one of their own.
    """

    digest: str
    threads: int
    device: str
    rows: tuple[OperationCost, ...] = dataclasses.field(repr=False, compare=False)

    @classmethod
    def of(cls, rows: Sequence[Any], threads: int, device: str) -> MeasuredRows:
        """Return the rows, which are JSON. Errors: ValueError if one is malformed."""
        digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        return cls(digest, threads, device, tuple(map(OperationCost.from_data, rows)))

    def __str__(self) -> str:
        """Return where the times are from, for a forecast."""
        threads = counted(self.threads, "thread")
        return f"{len(self.rows)} operations measured on this machine, {threads} a rank"
