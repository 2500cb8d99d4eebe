"""`hpcflow doctor --topology` on racks with limited uplinks: the file has their rates."""

from __future__ import annotations

import pathlib
import sys

import pytest
from hosts import Hosts, missing

from hpcflow.placement.topology import Topology, read_topology

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
RACKS = (0, 0, 1, 1)
WITHIN = 0.15  # of the configured rate


def measured(hosts: Hosts, folder: pathlib.Path, told: bool) -> tuple[Topology, str]:
    """The topology that the doctor writes on the hosts, and its line; `told`: SLURM has racks."""
    file, wrapper = folder / "topology.json", folder / "wrapper.sh"
    cases = [
        f"{name}) export SLURM_TOPOLOGY_ADDR=root.s{rack}.{name};;"
        for name, rack in zip(hosts.names, RACKS, strict=True)
        if told
    ]
    wrapper.write_text("\n".join(["#!/bin/sh", "case $(hostname) in", *cases, "esac", 'exec "$@"']))
    wrapper.chmod(0o755)
    program = [sys.executable, "-m", "hpcflow", "doctor", "--topology", str(file)]
    environ = {"PYTHONPATH": str(ROOT), "HPCFLOW_COST_CACHE": "none"}
    done = hosts.run([str(wrapper), *program], environ)
    assert done.returncode == 0, done.stderr
    return read_topology(file), done.stderr


@pytest.mark.limit(300)
@pytest.mark.parametrize(
    ("told", "uplink", "rate"), [(True, "40mbit", 5e6), (False, "80mbit", 10e6)]
)
def test_uplinks_of_racks_that_slurm_or_the_rates_tell(
    tmp_path: pathlib.Path, told: bool, uplink: str, rate: float
) -> None:
    """A single pair of nodes would have 10 MB/s between racks, and two pairs 20 MB/s."""
    with Hosts(4, "80mbit", uplink=uplink) as four:
        topology, line = measured(four, tmp_path, told)
    assert topology.racks == RACKS
    assert topology.uplinks == pytest.approx((rate, rate), rel=WITHIN), line
    assert ("SLURM_TOPOLOGY_ADDR" if told else "racks are from measured rates") in line
    assert all(6e6 < port < 14e6 for port in topology.ports), topology.ports


@pytest.mark.limit(300)
def test_an_uplink_that_is_not_narrower_than_its_ports_is_left_out(tmp_path: pathlib.Path) -> None:
    with Hosts(4, "80mbit", uplink="400mbit") as four:
        topology, line = measured(four, tmp_path, told=True)
    assert topology.racks == RACKS and topology.uplinks == (float("inf"),) * 2, line
    assert "no uplink is narrower than the ports of its rack" in line


@pytest.mark.limit(300)
def test_a_slow_port_on_one_switch_is_no_rack(tmp_path: pathlib.Path) -> None:
    with Hosts(4, "80mbit", {1: "16mbit"}) as four:
        topology, line = measured(four, tmp_path, told=False)
    assert topology.racks == (0,) * 4 and topology.uplinks == (float("inf"),), line
    assert "SLURM tells no racks, and the rates between nodes show none" in line
