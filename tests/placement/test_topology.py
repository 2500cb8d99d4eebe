"""Files of topologies: numbering of ranks, routes of messages, and errors that name the place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpcflow.errors import HpcflowError
from hpcflow.placement.topology import Link, read_topology, topology_of

TWO_RACKS = {
    "format": "hpcflow-topology-1",
    "latency_s": 1e-3,
    "memory_latency_s": 0,
    "memory_bytes_per_s": 1e9,
    "racks": [
        {"uplink_bytes_per_s": 5e6, "nodes": [{"count": 2, "ranks": 1, "bytes_per_s": 1e7}]},
        {"nodes": [{"ranks": 2, "speed": [1.0, 0.25], "memory_bytes": 1e8, "gpus": 1}]},
    ],
}


def test_ranks_are_numbered_by_racks_and_nodes() -> None:
    topology = topology_of(TWO_RACKS)
    assert topology.nodes == (0, 1, 2, 2)
    assert topology.racks == (0, 0, 1)
    assert topology.speeds == (1.0, 1.0, 1.0, 0.25)
    assert topology.memory == (math.inf, math.inf, 1e8, 1e8)
    assert topology.gpus == (0, 0, 1, 1)
    assert topology.uplinks == (5e6, math.inf)


def test_a_message_passes_ports_and_the_uplinks_of_two_racks() -> None:
    topology = topology_of(TWO_RACKS)
    assert topology.route(2, 3) == (Link("memory", 2),)
    assert topology.route(0, 1) == (Link("send", 0), Link("receive", 1))
    across = (Link("send", 0), Link("uplink out", 0), Link("uplink in", 1), Link("receive", 2))
    assert topology.route(0, 3) == across
    assert topology.message_seconds(2, 3, 1e6) == pytest.approx(1e-3)
    assert topology.message_seconds(0, 1, 1e6) == pytest.approx(1e-3 + 0.1)
    assert topology.message_seconds(0, 3, 1e6) == pytest.approx(1e-3 + 0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "format is 'x'"),
        ({"rack": []}, "rack is unknown; known are format"),
        ({"racks": []}, "racks is no list of objects"),
        ({"racks": [3]}, "racks[0] is no object"),
        ({"racks": [{"nodes": [{"ranks": 0}]}]}, "racks[0].nodes[0].ranks is 0"),
        ({"racks": [{"nodes": [{"ranks": True}]}]}, "racks[0].nodes[0].ranks is True"),
        ({"racks": [{"nodes": [{"speed": 0}]}]}, "nodes[0].speed is 0: give 0.001 to 1000"),
        ({"racks": [{"nodes": [{"speed": 1e30}]}]}, "racks[0].nodes[0].speed is 1e+30: give 0.001"),
        ({"racks": [{"nodes": [{"ranks": 2, "speed": [1, 0]}]}]}, "nodes[0].speed is 0"),
        ({"racks": [{"nodes": [{"speed": None}]}]}, "nodes[0].speed is None"),
        ({"racks": [{"nodes": [{"bytes_per_s": 1}]}]}, "bytes_per_s is 1: give 1000 to 1e+15"),
        ({"racks": [{"nodes": [{"bytes_per_s": 1e20}]}]}, "bytes_per_s is 1e+20: give 1000"),
        ({"racks": [{"nodes": [{"memory_bytes": -1}]}]}, "memory_bytes is -1: give 1e+06 to 1e+18"),
        ({"racks": [{"nodes": [{"memory_bytes": math.nan}]}]}, "memory_bytes is nan"),
        ({"racks": [{"nodes": [{"memory_bytes": 64}]}]}, "memory_bytes is 64: give 1e+06"),
        ({"racks": [{"nodes": [{"gpus": 1.5}]}]}, "nodes[0].gpus is 1.5: give 0 to 1,024"),
        ({"racks": [{"nodes": [{"gpus": 10**9}]}]}, "nodes[0].gpus is 1000000000: give 0"),
        ({"racks": [{"nodes": [{"host": "a"}]}]}, "racks[0].nodes[0].host is unknown; known are"),
        ({"racks": [{"uplink_bytes_per_s": 1, "nodes": [{}]}]}, "racks[0].uplink_bytes_per_s is 1"),
        ({"memory_bytes_per_s": 2}, "memory_bytes_per_s is 2: give 1000"),
        ({"latency_s": 7200}, "latency_s is 7200: give 0 to 10"),
        ({"memory_latency_s": -1e-6}, "memory_latency_s is -1e-06: give 0 to 10"),
        ({"racks": [{"nodes": [{}, {"speed": [1, 1]}]}]}, "nodes[1].speed: 2 numbers for 1 ranks"),
        ({"racks": [{"nodes": [{"count": 1 << 20, "ranks": 2}]}]}, "more than 1,048,576 ranks"),
        ({"latency_s": math.nan}, "latency_s is nan"),
        ({"latency_s": 10**400}, "latency_s is 1000"),
        ({"latency_s": -(10**400)}, "latency_s is -1000"),
        ({"latency_s": math.inf}, "latency_s is inf"),
        ({"racks": [{"uplink_bytes_per_s": "1", "nodes": [{}]}]}, "uplink_bytes_per_s is '1'"),
    ],
)
def test_an_error_names_the_place(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(TWO_RACKS | change))
    with pytest.raises(HpcflowError) as caught:
        read_topology(file)
    assert str(file) in caught.value.message and message in caught.value.message


def test_a_name_that_an_object_has_twice_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text(
        '{"format": "hpcflow-topology-1", "racks": [{"nodes": [{"speed": 1, "speed": 2}]}]}'
    )
    with pytest.raises(HpcflowError, match="an object has the name 'speed' twice") as caught:
        read_topology(file)
    assert str(file) in caught.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HpcflowError, match="there is no file of a topology"):
        read_topology(tmp_path / "none.json")
