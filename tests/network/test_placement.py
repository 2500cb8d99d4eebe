"""Placements of a program on hosts with unlike ranks and a slow port, measured by real steps."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hosts import missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.limit(300)
def test_automatic_placement_beside_placements_by_hand(tmp_path: pathlib.Path) -> None:
    out, windows = tmp_path / "result.json", tmp_path / "windows.json"
    script = ROOT / "benchmarks" / "placement_testbed.py"
    command = [sys.executable, str(script), "--quick", "--out", str(out), "--all", str(windows)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(windows.read_text()).values()
    assert {"default", "by layer", "by FLOPs", "by bytes", "automatic"} <= cell["windows"].keys()
    first = cell["losses"]["default"]
    for losses in cell["losses"].values():
        assert losses == pytest.approx(first, rel=1e-5) and losses[0] != losses[1]
    medians = {row["contender"]: row["median"] for row in json.loads(out.read_text())["rows"]}
    # The driver has half the speed and the layers with most work fit one fast rank.
    assert medians["automatic"] < 0.75 * medians["default"]
    assert medians["automatic"] < 1.3 * medians["best by hand"]
