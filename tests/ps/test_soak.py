"""Thousands of steps with random delays on every rank leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection

ROOT = Path(__file__).parents[2]
STEPS = int(os.environ.get("SOAK_STEPS", "2500"))  # of all workers, for each rule
MOST_BLOCKS = 1000  # of Python's memory: less than one in two steps
MOST_BYTES = 16 << 20


@pytest.mark.slow(first=False)
@pytest.mark.limit(500 + STEPS / 20)
@pytest.mark.parametrize(
    ("sync", "servers"), [("async", 1), ("all", 2), ("backup:1", 2), ("stale:2", 1)]
)
def test_steps_leave_no_requests_buffers_or_memory_behind(tmp_path, sync, servers):
    """All ranks hold after thousands of steps what they held after the first hundreds."""
    words = [sys.executable, str(ROOT / "tests/ps/soak.py"), str(STEPS)]
    start = launcher_detection.start_command(3 + servers, words)
    done = subprocess.run(
        start.argv,
        cwd=tmp_path,
        env={
            **start.env,
            "PYTHONPATH": str(ROOT),
            "HPCFLOW_PS": str(servers),
            "HPCFLOW_SYNC": sync,
        },
        capture_output=True,
        text=True,
        timeout=400 + STEPS / 20,
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(re.search(r"TOLD (.*)", done.stdout).group(1))
    assert len(before) == len(after) == 3 + servers
    for early, late in zip(before, after, strict=True):
        assert late["held"] == early["held"], late["task"]
        assert late["held"]["pins"] == late["held"]["old versions"] == 0
        assert late["blocks"] - early["blocks"] < MOST_BLOCKS, late["task"]
        assert late["resident"] - early["resident"] < MOST_BYTES, late["task"]
    updates = [sum(r["updates"].get("layer0/b", 0) for r in told) for told in (before, after)]
    per_update = 1 if sync in ("async", "stale:2") else 3
    assert updates[1] - updates[0] >= STEPS // per_update - 3
