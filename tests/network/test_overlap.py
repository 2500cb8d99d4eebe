"""Sums over replicas move while backward still computes, between hosts with a slow network."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hosts import Hosts, missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

WHERE = """
import socket
import hpcflow as hf

context = hf.Session().context
print("here", context.rank, socket.gethostname(), len(set(context.hosts)), flush=True)
"""


def test_each_rank_has_a_host_of_its_own(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    with Hosts(3, "80mbit") as three:
        done = three.run([sys.executable, str(script)], {"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        said = sorted(line.split()[1:] for line in done.stdout.splitlines() if "here" in line)
        assert said == [[str(rank), name, "3"] for rank, name in enumerate(three.names)]


@pytest.mark.limit(600)
def test_backward_hides_communication(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "overlap.json"
    program = [sys.executable, str(ROOT / "benchmarks" / "overlap.py"), "--out", str(out)]
    done = subprocess.run([*program, "--rounds", "1", "--repeats", "3"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    checks = json.loads(out.read_text())["checks"]
    bad = [row for row in checks if row["met"] is False]
    assert not bad
    assert sum(row["met"] is True for row in checks) == 2
