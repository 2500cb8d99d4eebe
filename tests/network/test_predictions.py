"""Predictions from small runs on hosts: the steps of `benchmarks/predictions.py`."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from hosts import missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.limit(600)
def test_small_jobs_are_predicted_run_and_scored(tmp_path: pathlib.Path) -> None:
    out, folder = tmp_path / "predictions.json", tmp_path / "predictions"
    program = [sys.executable, str(ROOT / "benchmarks" / "predictions.py"), "--quick"]

    def step(name: str) -> subprocess.CompletedProcess[str]:
        words = [*program, name, "--out", str(out)]
        return subprocess.run(words, capture_output=True, text=True, cwd=ROOT)

    for name in ("calibrate", "predict", "run", "score"):
        done = step(name)
        assert done.returncode == 0, done.stderr
    before = json.loads((folder / "before.json").read_text())
    measured = json.loads((folder / "measured.json").read_text())
    names = ["dense 2 1 async 200", "dense 3 1 all 200", "dense 4 0 - 200"]
    assert list(before["points"]) == list(measured["points"]) == names
    for name in names:
        times, found = before["points"][name]["step_seconds"], measured["points"][name]
        assert times["low"] < times["median"] < times["high"]
        assert abs(times["median"] / found["median"] - 1) < 0.5  # other programs use the cores
    checks = {row["figure"]: row["value"] for row in json.loads(out.read_text())["checks"]}
    assert checks["predicted jobs"] == 3
    before["points"][names[0]]["plan"] = "a" * 32
    (folder / "before.json").write_text(json.dumps(before))
    done = step("run")
    assert done.returncode == 1 and "has another plan than its prediction" in done.stderr
