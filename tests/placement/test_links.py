"""Placement over unlike ranks and links: the schedule by hand, and what the search chooses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpcflow.placement.device_links import Links
from hpcflow.placement.placement_search import search
from hpcflow.placement.step_problem import Device, StepProblem, Value
from hpcflow.placement.topology import topology_of
from tests.placement.list_schedules import list_makespan


def problem(topology: dict[str, Any], seconds: list[float], values: list[Value]) -> StepProblem:
    ranks = topology_of({"format": "hpcflow-topology-1", **topology})
    devices = tuple(Device(slowdown=1 / speed) for speed in ranks.speeds)
    group = tuple(range(len(seconds)))
    held = (0.0,) * len(seconds)
    fixed = (0, *[None] * (len(seconds) - 1))
    links = Links.of_topology(ranks, 0.0)
    return StepProblem(
        tuple(seconds), tuple(values), devices, group, fixed, held, links, ranks.size
    )


def time_of(made: StepProblem, *placement: int) -> float:
    return list_makespan(made, placement)


KB = 1000
NODES = [
    {"bytes_per_s": 10 * KB},
    {"bytes_per_s": 2 * KB},
    {"ranks": 2, "bytes_per_s": 10 * KB, "speed": [1, 2]},
]
FABRIC = {
    "latency_s": 1,
    "memory_latency_s": 0,
    "memory_bytes_per_s": 100 * KB,
    "racks": [{"nodes": NODES[:2], "uplink_bytes_per_s": 5 * KB}, {"nodes": NODES[2:]}],
}


def test_a_message_takes_the_slowest_link_of_its_route() -> None:
    made = problem(FABRIC, [0, 4], [Value(0, 20 * KB, (1,))])
    assert time_of(made, 0, 0) == 4
    assert time_of(made, 0, 1) == 1 + 20 / 2 + 4  # the port of rank 1
    assert time_of(made, 0, 2) == 1 + 20 / 5 + 4  # the uplink
    assert time_of(made, 0, 3) == 1 + 20 / 5 + 4 / 2  # twice as fast
    assert time_of(made, 3, 2) == 20 / 100 + 4  # the memory of their node


def test_ranks_of_a_node_share_its_port_and_racks_share_an_uplink() -> None:
    values = [Value(0, 20 * KB, (1,)), Value(0, 20 * KB, (2,))]
    made = problem(FABRIC, [0, 0, 0], values)
    assert time_of(made, 0, 2, 3) == 2 * (1 + 20 / 5)
    made = problem({**FABRIC, "racks": [{"nodes": NODES}]}, [0, 0, 0], values)
    assert time_of(made, 0, 2, 3) == 2 * (1 + 20 / 10)


def test_a_slow_link_is_free_for_others_before_a_fast_one() -> None:
    values = [Value(0, 20 * KB, (1,)), Value(0, 20 * KB, (2,))]
    made = problem({**FABRIC, "racks": [{"nodes": NODES}]}, [0, 0, 0], values)
    made = dataclasses.replace(made, fixed=(0, 1, 2))
    # Rank 0 sends to the slow port for 1 + 10 s, but its own port only takes 1 + 2 s.
    assert time_of(made, 0, 1, 2) == pytest.approx(max(1 + 10, 3 + 3))


@pytest.mark.parametrize(
    ("speeds", "chosen"), [([1, 1, 1], {1}), ([1, 0.2, 1], {2}), ([1, 0.2, 0.2], {0})]
)
def test_the_search_takes_the_fast_ranks(speeds: list[float], chosen: set[int]) -> None:
    racks = [{"nodes": [{"speed": speed, "bytes_per_s": 1000} for speed in speeds]}]
    made = problem({"racks": racks, "latency_s": 0.1}, [10, 10, 10], [])
    made = dataclasses.replace(made, fixed=(0, 0, None))
    assert set(search(made, [[0], [1], [2]], [[2]], 0).devices[2:]) == chosen


def test_the_search_avoids_a_slow_port() -> None:
    racks = [{"nodes": [{"bytes_per_s": rate * KB} for rate in (1000, 1, 1000)]}]
    made = problem({"racks": racks, "latency_s": 0}, [10, 10], [Value(0, KB, (1,))])
    made = dataclasses.replace(
        made, seconds=(10, 5, 10), values=(Value(0, 10 * KB, (1, 2)),), group=(0, 1, 2),
        fixed=(0, 0, None), state_bytes=(0.0,) * 3,
    )  # fmt: skip
    assert search(made, [[0], [1], [2]], [[2]], 0).devices == (0, 0, 2)
