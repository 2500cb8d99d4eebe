"""`hpcflow doctor --topology` on hosts of unlike ports: the file has their rates."""

from __future__ import annotations

import pathlib
import sys

import pytest
from hosts import Hosts, missing

from hpcflow.placement.topology import read_topology

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.limit(300)
def test_a_slow_port_is_found_and_does_not_slow_those_of_others(tmp_path: pathlib.Path) -> None:
    """In a ring of messages all three ports would seem slow."""
    file = tmp_path / "topology.json"
    program = [sys.executable, "-m", "hpcflow", "doctor", "--topology", str(file)]
    with Hosts(3, "80mbit", {1: "16mbit"}) as three:
        done = three.run(program, {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    topology = read_topology(file)
    assert topology.nodes == (0, 1, 2)
    for found, rate in zip(topology.ports, (10e6, 2e6, 10e6), strict=True):
        assert rate / 2 < found < 2 * rate, topology.ports
