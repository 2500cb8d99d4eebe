"""The hosts on which the paper's experiments run: jobs of several sizes, limited by their ports."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hosts import missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
PORT = 10e6  # bytes a second
BURST = 16 << 10  # bytes that a port may send at once


@pytest.mark.limit(300)
def test_a_null_step_is_limited_by_the_ports(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "null_step.json"
    script = ROOT / "benchmarks" / "paper" / "null_step.py"
    command = [sys.executable, str(script), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {(row["workers"], row["servers"]) for row in rows} == {(1, 1), (2, 1)}
    assert len({row["case"] for row in rows}) == 5 and all(0 <= row["cpu"] <= 1 for row in rows)
    for row in rows:
        if row["case"] == "dense 1 MB":  # one way, then the other; two workers share the server's
            ways = 2 if row["workers"] == 1 else row["workers"]
            least = ways * (1e6 - BURST) / PORT
            assert row["median_ms"] >= 1e3 * least * 0.9, row
