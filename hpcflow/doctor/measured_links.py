"""Measured links: the network benchmark of a job as rows of the profile of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.doctor.rank_facts import JobFacts, NetworkLink
from hpcflow.kernels.machine_facts import own_profile_file
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_costs import (
    OTHER_NODE,
    SAME_NODE,
    CollectiveCost,
    CollectiveKey,
    LinkCost,
    SampleSummary,
)
from hpcflow.platform.measured_waits import WaitCost, WaitKey

ALL_REDUCE = "all_reduce"


def keep_links(job: JobFacts, summed_bytes: int, folder: str) -> bool:
    """Add the measurements to the profile of this node; whether there were any and they are kept.

    `summed_bytes` are those of one rank in the measured allreduces; `folder` is the setting
    `cost_cache`. If the file cannot be written, a warning tells it.
    """
    measured = link_profile(job, summed_bytes)
    if not measured.links and not measured.collectives:
        return False
    file = own_profile_file(folder)
    return file is not None and file.add(measured)


def link_profile(job: JobFacts, summed_bytes: int) -> MachineProfile:
    """Latency and bandwidth by kind of link, allreduces by ranks and nodes, waits by policy."""
    links, collectives = list[LinkCost](), list[CollectiveCost]()
    for kind, pairs, nodes in ((SAME_NODE, job.local_links, 1), (OTHER_NODE, job.links, 2)):
        if pairs:
            links.append(_link(kind, pairs))
            key = CollectiveKey(ALL_REDUCE, summed_bytes, 2, nodes)
            seconds = SampleSummary.of([pair.allreduce_s for pair in pairs])
            collectives.append(CollectiveCost(key, seconds))
    if "allreduce" in job.together:
        key = CollectiveKey(ALL_REDUCE, summed_bytes, len(job.ranks), len(job.nodes))
        seconds = SampleSummary.of([job.together["allreduce"]])
        collectives.append(CollectiveCost(key, seconds))
    waits = tuple(
        WaitCost(WaitKey(row.policy, row.waited_us), SampleSummary.of(row.late_s))
        for row in job.waits
    )
    measured = MachineProfile((), tuple(links), tuple(collectives), waits=waits)
    return MachineProfile().merged(measured)


def _link(kind: str, pairs: Sequence[NetworkLink]) -> LinkCost:
    latency = SampleSummary.of([pair.latency_s for pair in pairs])
    return LinkCost(kind, latency, SampleSummary.of([pair.bytes_per_s for pair in pairs]))
