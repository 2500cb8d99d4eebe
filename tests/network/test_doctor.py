"""A port slower than those of the other nodes is found by the doctor."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hosts import Hosts, missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def throttle(hosts: Hosts, index: int, rate: str) -> None:
    for space, device in ((hosts.names[index], "eth0"), (hosts.switches[0], f"port{index}")):
        command = (
            f"tc -n {space} qdisc change dev {device} root tbf rate {rate} burst 64kb latency 50ms"
        )
        subprocess.run(command.split(), check=True)


@pytest.mark.limit(300)
def test_a_throttled_port_is_named_with_its_node() -> None:
    with Hosts(4, "160mbit") as four:
        throttle(four, 2, "20mbit")
        program = [sys.executable, "-m", "hpcflow", "doctor", "--json"]
        done = four.run(program, {"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        rows = [row for row in told["findings"] if row["check"] == "network"]
        slow = [row for row in rows if row["level"] == "warn" and "link faster" in row["what"]]
        assert [row["node"] for row in slow] == [four.names[2]], rows
        assert slow[0]["fix"]
        assert len(told["links"]) == 6
