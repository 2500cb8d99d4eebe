"""How fast what a rank holds and sends may grow with the number of ranks, and how fast it does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

CALLS, CALL_BYTES = "collective calls", "collective bytes"
ONE, LOG, NODE, ALL = "O(1)", "O(log n)", "O(ranks of a node)", "O(n)"
WORSE = "more than O(n)"
# quantity -> by which share a value may be off its curve, by how much at least, and at the start,
# where who comes first sends a plan that all repeat
SLACK = {
    "messages": (0.05, 1.0, 4.0),
    "bytes": (0.02, 64.0, 5e3),
    CALLS: (0.05, 0.5, 0.5),
    CALL_BYTES: (0.02, 64.0, 512.0),
    "descriptors": (0.0, 0.1, 1.5),  # one file may be open while ranks look for each other
    "threads": (0.0, 0.1, 0.1),
    "files": (0.0, 0.1, 0.1),
    "memory": (0.2, 1e6, 1e6),
    "CPU time": (0.6, 1e-3, 1e-2),
}

Values = Mapping[int, float]  # number of ranks -> what was counted


@dataclasses.dataclass(frozen=True)
class Limit:
    """The class that what these words name stays within; of O(n) also how much it is a rank.

    `mode`, `role`, `phase`, `quantity` and `source` are the beginnings of words, "" for any.
    What is at most `most` for all numbers of ranks is within, whatever its curve.
    """

    mode: str
    role: str
    phase: str
    quantity: str
    stated: str
    reason: str = ""
    each: float = math.inf
    source: str = ""
    most: float = -math.inf

    def names(self, row: Row) -> bool:
        """Whether `row` is one of these."""
        return all(
            getattr(row, name).startswith(getattr(self, name))
            for name in ("mode", "role", "phase", "quantity", "source")
        )


@dataclasses.dataclass
class Row:
    """One quantity of one kind of rank; `node` is how many ranks a node has, of how many ranks."""

    mode: str
    role: str
    phase: str
    quantity: str
    source: str  # "real" or "simulated"
    values: Values
    node: Callable[[int], int]

    @property
    def found(self) -> str:
        """The least class whose curve goes through the values."""
        slack = next(slack for name, slack in SLACK.items() if self.quantity.startswith(name))
        share, grain = slack[0], slack[2 if self.phase == "start" else 1]
        return found(self.values, self.node, lambda value: max(share * value, grain))

    @property
    def limit(self) -> Limit | None:
        """The first that names it; None if it is shown only."""
        limit = next(limit for limit in LIMITS if limit.names(self))
        return limit if limit.stated else None

    @property
    def within(self) -> bool | None:
        """Whether it stays within its stated class; None if there is none."""
        limit, order = self.limit, (ONE, LOG, NODE, ALL, WORSE)
        if limit is None:
            return None
        if max(self.values.values()) <= limit.most:
            return True
        least, most = min(self.values), max(self.values)
        is_small = self.values[most] - self.values[least] <= limit.each * (most - least)
        return order.index(self.found) <= order.index(limit.stated) and is_small

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        limit = self.limit
        words = {k: getattr(self, k) for k in ("mode", "role", "phase", "quantity", "source")}
        values = {str(n): float(f"{v:.4g}") for n, v in self.values.items()}
        told = {"values": values, "found": self.found, "within": self.within}
        stated = {"stated": "", "reason": "not judged"}
        if limit is not None:
            stated = {"stated": limit.stated, "reason": limit.reason}
            if limit.each < math.inf:
                stated["stated"] += f", {limit.each:g} a rank"
            if limit.most > 0:
                stated["stated"] += f", or at most {limit.most:g}"
        return words | told | stated


def found(values: Values, node: Callable[[int], int], slack: Callable[[float], float]) -> str:
    """The least class by whose curve all values grow, up to `slack(value)`."""
    sizes = sorted(values)
    curves: dict[str, Callable[[int], float]] = {ONE: lambda n: 0.0, LOG: math.log2, NODE: node}
    for name, curve in {**curves, ALL: float}.items():
        if _goes_through([curve(n) - curve(sizes[0]) for n in sizes], sizes, values, slack):
            return name
    return WORSE


def _goes_through(
    curve: Sequence[float], sizes: Sequence[int], values: Values, slack: Callable[[float], float]
) -> bool:
    """Whether a + b * curve, both at least 0, is near all values, or above what becomes less."""
    counted = np.array([values[n] for n in sizes], float)
    slacks = np.array([slack(value) for value in counted])
    columns = np.stack([np.ones(len(sizes)), np.array(curve)], 1) / slacks[:, None]
    for kept in ([0, 1], [0]):
        factors = np.zeros(2)
        factors[kept] = np.linalg.lstsq(columns[:, kept], counted / slacks, rcond=None)[0]
        off = columns @ factors - counted / slacks
        if (factors >= -1e-9).all() and (np.abs(off) <= 1).all():
            return True
    return bool((np.diff(counted) <= 0).all())


_SERVER = "each worker's step has messages of its own"
_PLANS = "each worker registers its plans, and has buffers of its own"
_ROWS = "the rows of all replicas come to each"
_TREE = "drivers meet by a tree of four children"
_NAMES = "names of all hosts"
_CORES = "the first rank of a host is told the cores of its other ranks, 1 KiB each"

# The first that names a row is its limit: what grows faster than the last ones, and why.
LIMITS = (
    # a parameter server
    Limit("ps", "server", "step", "messages", ALL, _SERVER, each=2),
    Limit("ps", "server", "step", "bytes", ALL, _SERVER, each=17e3),
    Limit("ps", "server", "step", "CPU time", ALL, _SERVER, 400e-6, source="simulated"),
    Limit("ps", "server", "meeting", "messages", ALL, "each worker says that it waits", each=2),
    Limit("ps", "server", "meeting", "bytes", ALL, "each worker says that it waits", each=200),
    Limit("ps", "server", "start", "messages", ALL, _PLANS, each=16),
    Limit("ps", "server", "start", "bytes", ALL, _PLANS, each=50e3),
    Limit("ps", "server", "start", "CPU time", ALL, _PLANS, 8e-3, source="simulated"),
    Limit("ps", "server", "start", "memory", ALL, _PLANS, each=200e3),
    # CPU time of those that wait says more of the machine
    Limit("", "", "", "CPU time", ""),
    # the start: of the chief, which is the first rank of its host, and of all
    Limit("collective, rows", "chief", "start", "bytes", ALL, f"{_CORES}; {_ROWS}", each=3.2e3),
    Limit("", "chief", "start", "messages received", NODE, _CORES),
    Limit("", "chief", "start", "bytes received", NODE, _CORES, each=1.2e3),
    Limit("", "", "start", "threads", ONE, "fewer where a node has few ranks", most=4),
    # rows of tables
    Limit("collective, rows", "", "meeting", "", ONE),
    Limit("collective, rows", "", "", "messages", LOG, "Bruck's algorithm"),
    Limit("collective, rows", "", "", "bytes", ALL, _ROWS, each=2e3),
    Limit("collective, rows", "", "", CALL_BYTES, ALL, _ROWS, each=3e3),
    Limit("collective, rows", "", "", "memory", ALL, _ROWS, each=4e3, source="simulated"),
    # replicas that go on without the dead
    Limit("collective, survive", "", "meeting", "messages", ONE, _TREE, most=16),
    Limit("collective, survive", "", "meeting", "bytes", ONE, _TREE, most=600),
    Limit("", "", "start", "files of the node", NODE, "a rank's ledger, and its stacks", each=2),
    Limit("", "", "start", "descriptors", NODE, "a rank hears of the deaths of its node's", each=2),
    Limit("", "", "start", "messages", LOG, "ranks of a node meet in rounds before they sum"),
    Limit("", "chief", "start", CALL_BYTES, ALL, f"{_NAMES}; the table of ranks", each=240),
    Limit("", "", "start", CALL_BYTES, ALL, _NAMES, each=160),
    Limit("", "", "start", "memory", ALL, "names and roles of all", 1e3, source="simulated"),
    # all else
    Limit("", "", "", "messages", LOG, "ranks of a node meet in rounds when they sum"),
    Limit("", "", "", "", ONE),
)
