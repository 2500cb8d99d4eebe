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
        {"nodes": [{"ranks": 2, "speed": [1.0, 0.25], "memory_bytes": 100, "gpus": 1}]},
    ],
}


def test_ranks_are_numbered_by_racks_and_nodes() -> None:
    topology = topology_of(TWO_RACKS)
    assert topology.nodes == (0, 1, 2, 2)
    assert topology.racks == (0, 0, 1)
    assert topology.speeds == (1.0, 1.0, 1.0, 0.25)
    assert topology.memory == (math.inf, math.inf, 100.0, 100.0)
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
        ({"racks": [{"nodes": [{"speed": 0}]}]}, "racks[0].nodes[0].speed is 0"),
        ({"racks": [{"nodes": [{}, {"speed": [1, 1]}]}]}, "nodes[1].speed: 2 numbers for 1 ranks"),
        ({"racks": [{"nodes": [{"count": 1 << 20, "ranks": 2}]}]}, "more than 1,048,576 ranks"),
        ({"latency_s": math.nan}, "latency_s is nan"),
        ({"racks": [{"uplink_bytes_per_s": "1", "nodes": [{}]}]}, "uplink_bytes_per_s is '1'"),
    ],
)
def test_an_error_names_the_place(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(TWO_RACKS | change))
    with pytest.raises(HpcflowError) as caught:
        read_topology(file)
    assert str(file) in caught.value.message and message in caught.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HpcflowError, match="there is no file of a topology"):
        read_topology(tmp_path / "none.json")
