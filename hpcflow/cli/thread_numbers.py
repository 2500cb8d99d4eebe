"""Thread numbers: the numbers of threads of a rank by which a comparison or search may predict.

The profile of this machine must have operations that were measured with such a number and with the
given one, and the cores of a node must suffice for the threads of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.cli.thread_calibration import powers_up_to
from hpcflow.plan.cost.thread_ratios import ThreadRatios
from hpcflow.platform.cpu_threads import CpuCores
from hpcflow.platform.measured_costs import OperationCost

OF_RUN = (
    "the run measured its work with its own threads, and a part of it that is not known does not "
    "depend on them; predict its script"
)
OF_TOPOLOGY = "the file of the topology does not say how many cores a node has"


class ThreadNumbers(NamedTuple):
    """The given number of threads of a rank, others that may be predicted, and why not more."""

    given: int
    others: tuple[int, ...]
    left_out: dict[str, str]


def thread_numbers(
    rows: Sequence[OperationCost],
    given: int,
    ranks_per_node: int,
    cores: int | None,
    here: CpuCores,
) -> ThreadNumbers:
    """The numbers that measured rows compare with the given one, on nodes of so many cores.

    None: as many as this machine has, whose rows and cores are given.
    """
    cores = cores or max(1, here.node // here.siblings)
    most = cores // ranks_per_node
    measured = ThreadRatios(rows).others(given)
    others = tuple(number for number in measured if number <= most)
    left_out = {
        f"threads={number}": f"{_ranks(ranks_per_node)} with {number} threads need "
        f"{ranks_per_node * number} cores of the {cores} of a node (--cores)"
        for number in measured
        if number > most
    }
    able = powers_up_to(min(most, here.mask)) if most and given <= here.mask else []
    missing = [number for number in able if number not in (given, *others)]
    if missing:
        words = _listed(sorted({given, *missing}))
        left_out[f"threads={_listed(missing)}"] = (
            f"this machine has no operations that were measured with them and with {given}: "
            f"`hpcflow costs --calibrate --threads {words}`"
        )
    elif not others and not left_out:
        left_out["threads"] = (
            f"nodes have {cores} cores for {_ranks(ranks_per_node)} (--cores, --ranks-per-node), "
            f"and this machine measures with at most {here.mask} threads"
        )
    return ThreadNumbers(given, others, left_out)


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
