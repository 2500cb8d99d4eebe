"""What the ranks found out, as plain data: all that the checks know."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable
from typing import Any

OK, WARN, ERROR = "ok", "warn", "error"


@dataclasses.dataclass
class Facts:
    """One rank's; every field is JSON, and empty where nothing is known."""

    rank: int = 0
    node: str = ""
    python: str = ""
    executable: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of installed packages
    other_project: str = ""  # the version of the index's own `hpcflow`, where it is installed too
    broken: dict[str, str] = dataclasses.field(default_factory=dict)  # package: why no import
    launcher: str = ""  # "" if none started this rank
    launcher_size: int = 0
    launch_error: str = ""  # launcher and MPI do not belong together
    launch_fix: str = ""
    world_size: int = 0  # 0: MPI did not start
    library: str = ""
    thread_level: str = ""
    ulfm: bool = False  # the library has it
    ulfm_on: bool = False  # and the launcher switched it on
    cuda_aware: bool | None = None  # None: the library does not say
    libmpi: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # who mapped which files
    hdf5: str = ""  # its version, of h5py
    hdf5_mpi: bool = False
    cpus: list[int] = dataclasses.field(default_factory=list)  # this rank's mask
    node_cpus: int = 0
    threads: int = 0
    threads_why: str = ""
    threads_warning: str = ""
    blas: str = ""  # the library that numpy calls
    blas_threads: int = 0  # of its pool, as it says itself; 0 where it does not
    gemm: float = 0.0  # operations a second in products of float32 matrices, measured
    copies: float = 0.0  # bytes a second, read and written, when a large array is copied
    gpu_files: int = 0  # /dev/nvidia0 and its like
    gpus: list[str] = dataclasses.field(default_factory=list)  # ids of those this rank sees
    gpu: str = ""  # the id of the one it would take
    gpu_error: str = ""
    agreements: list[Agreement] = dataclasses.field(default_factory=list)  # of its libraries
    places: list[Place] = dataclasses.field(default_factory=list)
    clock_s: float = 0.0  # this node's clock minus the first one's
    clock_within_s: float = 0.0

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Facts:
        """The inverse of `dataclasses.asdict`."""
        places = [Place(**place) for place in data.pop("places", [])]
        agreements = [Agreement(**one) for one in data.pop("agreements", [])]
        return cls(places=places, agreements=agreements, **data)


@dataclasses.dataclass
class Agreement:
    """A library's kernels for GPUs: how many have run; which are wrong, which refused, and why."""

    provider: str
    run: int = 0
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Place:
    """A folder: what a job keeps there, what is free, and why it cannot be written."""

    name: str
    path: str
    free: int = 0
    problem: str = ""


@dataclasses.dataclass
class Link:
    """Between the first ranks of two nodes: half a round trip, bytes a second, time of a sum."""

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    allreduce_s: float


@dataclasses.dataclass
class Job:
    """All ranks' facts and what was timed between them."""

    ranks: list[Facts]
    links: list[Link] = dataclasses.field(default_factory=list)
    together: dict[str, float] = dataclasses.field(default_factory=dict)  # "ring", "allreduce": s
    skipped: str = ""  # why not all pairs were timed

    @property
    def nodes(self) -> list[str]:
        """The nodes' names, in the order of their first ranks."""
        return list(dict.fromkeys(rank.node for rank in self.ranks))

    @property
    def first(self) -> Facts:
        """Rank 0."""
        return self.ranks[0]

    def on(self, node: str) -> list[Facts]:
        """The ranks of a node."""
        return [rank for rank in self.ranks if rank.node == node]

    def by_node(self, get: Callable[[Facts], Any]) -> list[tuple[Any, list[str]]]:
        """What `get` says and the nodes where it says so; the most common answer first."""
        found: dict[Any, dict[str, None]] = {}
        for rank in self.ranks:
            found.setdefault(get(rank), {})[rank.node] = None
        pairs = [(value, list(nodes)) for value, nodes in found.items()]
        return sorted(pairs, key=lambda pair: -len(pair[1]))


@dataclasses.dataclass
class Finding:
    """One row of the page: where it holds ("" for all nodes), and the line that would fix it."""

    level: str
    node: str
    what: str
    fix: str = ""
    check: str = ""


def some(names: Iterable[object], most: int = 4) -> str:
    """`a, b, c, d and 12 more`."""
    words = [str(name) for name in names]
    more = f" and {len(words) - most} more" if len(words) > most + 1 else ""
    return ", ".join(words[: most if more else most + 1]) + more


def middle(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)


def size(count: float) -> str:
    """Bytes as people write them: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 1000 else f"{count:.0f} TB"
