"""Rank facts: facts of the ranks and timings between them, as plain data: the input of the checks.

`doctor --json` prints them, so their names are a file format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

OK, WARN, ERROR = "ok", "warn", "error"
SLURM, RATES = "SLURM_TOPOLOGY_ADDR", "measured rates"  # sources of racks
NARROW = 0.85  # an uplink with at least this share of its ports' rate is no limit


@dataclasses.dataclass
class RankFacts:
    """The facts of one rank; every field is JSON, and empty if unknown."""

    rank: int = 0
    node: str = ""
    python: str = ""
    executable: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of installed packages
    other_project: str = ""  # version of the package index's unrelated `hpcflow`, if installed
    broken: dict[str, str] = dataclasses.field(default_factory=dict)  # package -> import error
    launcher: str = ""  # "" without a launcher
    launcher_size: int = 0
    launch_error: str = ""  # launcher and MPI do not match
    launch_fix: str = ""
    world_size: int = 0  # 0: MPI did not start
    library: str = ""
    thread_level: str = ""
    ulfm: bool = False  # the library supports ULFM
    ulfm_on: bool = False  # the launcher enabled it
    cuda_aware: bool | None = None  # None: the library does not report it
    libmpi: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # package -> files
    hdf5: str = ""  # version of the HDF5 library in h5py
    hdf5_mpi: bool = False
    cpus: list[int] = dataclasses.field(default_factory=list)  # this rank's CPU mask
    node_cpus: int = 0
    threads: int = 0
    threads_why: str = ""
    threads_warning: str = ""
    blas: str = ""  # the library that numpy calls
    blas_threads: int = 0  # its pool size as it reports it; 0 if it does not
    gemm: float = 0.0  # measured flop/s of float32 matrix products
    copies: float = 0.0  # measured bytes/s, read plus written, of a copy of a large array
    memory: int = 0  # bytes of the node that this job may use
    switches: str = ""  # SLURM's names of the switches above the node, from the top
    gpu_files: int = 0  # number of /dev/nvidia* devices
    gpus: list[str] = dataclasses.field(default_factory=list)  # ids of the visible GPUs
    gpu: str = ""  # id of the GPU that this rank would use
    gpu_error: str = ""
    agreements: list[KernelAgreement] = dataclasses.field(default_factory=list)  # of GPU libraries
    places: list[FolderFacts] = dataclasses.field(default_factory=list)
    clock_s: float = 0.0  # this node's clock minus the first node's
    clock_within_s: float = 0.0

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RankFacts:
        """The inverse of `dataclasses.asdict`."""
        places = [FolderFacts(**place) for place in data.pop("places", [])]
        agreements = [KernelAgreement(**agreement) for agreement in data.pop("agreements", [])]
        return cls(places=places, agreements=agreements, **data)


@dataclasses.dataclass
class KernelAgreement:
    """GPU kernels of a library: how many ran; the wrong and the refused ones with the reason."""

    provider: str
    run: int = 0
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class FolderFacts:
    """A folder: its use, free bytes, and why it cannot be written."""

    name: str
    path: str
    free: int = 0
    problem: str = ""


@dataclasses.dataclass
class NetworkLink:
    """Timings between the first ranks of two nodes, or the first two of a node (a = b).

    Latency, bytes/s each way, and seconds of an allreduce.
    """

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    allreduce_s: float


@dataclasses.dataclass
class MeasuredWait:
    """Seconds from the send of a message until the waiting rank of a node had it, for each message.

    The rank had waited `waited_us` by a policy of `platform/measured_waits.py`.
    """

    node: str
    policy: str
    waited_us: int
    late_s: list[float]


@dataclasses.dataclass
class RackUplink:
    """Measured bytes/s of a rack to and from others, and what the ports alone would allow.

    `ports_bytes_per_s` is the smaller one of both directions.
    """

    out_bytes_per_s: float
    in_bytes_per_s: float
    ports_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The rate of the slower direction."""
        return min(self.out_bytes_per_s, self.in_bytes_per_s)

    @property
    def is_narrow(self) -> bool:
        """Whether the uplink is slower than the ports."""
        return self.bytes_per_s < NARROW * self.ports_bytes_per_s


@dataclasses.dataclass
class JobFacts:
    """All ranks' facts and the timings between them.

    `links` are between nodes. `together` has the seconds of 1 MiB that all nodes send in a ring,
    and of an allreduce of 1 MiB over all ranks.
    """

    ranks: list[RankFacts]
    links: list[NetworkLink] = dataclasses.field(default_factory=list)
    local_links: list[NetworkLink] = dataclasses.field(default_factory=list)  # within a node
    together: dict[str, float] = dataclasses.field(default_factory=dict)  # "ring", "allreduce"
    waits: list[MeasuredWait] = dataclasses.field(default_factory=list)  # of a pair of each node
    skipped: str = ""  # note on pairs that were not timed
    racks: dict[str, str] = dataclasses.field(default_factory=dict)  # node -> rack, if looked for
    racks_from: str = ""  # SLURM, RATES, or "" if the racks are not known
    uplinks: dict[str, RackUplink] = dataclasses.field(default_factory=dict)  # rack -> measured

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, in the order of their first ranks."""
        return list(dict.fromkeys(rank.node for rank in self.ranks))

    @property
    def first(self) -> RankFacts:
        """The facts of rank 0."""
        return self.ranks[0]

    def on(self, node: str) -> list[RankFacts]:
        """The ranks of a node."""
        return [rank for rank in self.ranks if rank.node == node]

    def by_node(self, get: Callable[[RankFacts], Any]) -> list[tuple[Any, list[str]]]:
        """The values of `get` and the nodes that have each; the most common value first."""
        by_value: dict[Any, dict[str, None]] = {}
        for rank in self.ranks:
            by_value.setdefault(get(rank), {})[rank.node] = None
        pairs = [(value, list(nodes)) for value, nodes in by_value.items()]
        return sorted(pairs, key=lambda pair: -len(pair[1]))


@dataclasses.dataclass
class Finding:
    """One row of the report: level, node ("" for all nodes), text and fix."""

    level: str
    node: str
    what: str
    fix: str = ""
    check: str = ""


def shortened_names(names: Iterable[object], max_names: int = 4) -> str:
    """The names as `a, b, c, d and 12 more`."""
    words = [str(name) for name in names]
    suffix = f" and {len(words) - max_names} more" if len(words) > max_names + 1 else ""
    return ", ".join(words[: max_names if suffix else max_names + 1]) + suffix
