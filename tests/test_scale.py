"""`hpcflow scale`: laws that fit, intervals, and a study of real runs that can be stopped."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import scaling_limits, scaling_study
from hpcflow.report.run_view import views_of
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState
from tests.test_report import write

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("part", [0.0, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("first", [1, 2])
def test_the_parallel_part_of_runs_that_follow_a_law(part: float, kind: str, first: int) -> None:
    def speedup(n: float) -> float:
        return 1 / (1 - part + part / n) if kind == "strong" else n - (1 - part) * (n - 1)

    rates = {(first * n, first * n): [100.0 * speedup(n)] for n in (1, 2, 4, 8)}
    found = scaling_study.study(rates, kind)
    assert found.parallel_part == pytest.approx(part)
    for point in found.points:
        assert point.speedup == pytest.approx(speedup(point.workers / first))
        assert point.efficiency == pytest.approx(point.speedup * first / point.workers)


def test_servers_do_not_count_as_workers() -> None:
    found = scaling_study.study({(3, 2): [200.0], (5, 4): [400.0]}, "strong")
    assert [point.efficiency for point in found.points] == [1.0, 1.0]


def test_intervals_are_of_the_slowest_and_the_fastest_repeats() -> None:
    found = scaling_study.study({(1, 1): [90.0, 100.0, 110.0], (2, 2): [150.0, 180.0]}, "strong")
    point = found.points[1]
    assert point.rate == 165.0 and point.efficiency == pytest.approx(0.825)
    assert point.efficiency_low == pytest.approx(150 / 110 / 2)
    assert point.efficiency_high == pytest.approx(180 / 90 / 2)
    assert "fewer than three runs" in scaling_study.as_text(found)


def test_an_efficiency_above_one_is_not_passed_over() -> None:
    rates = {(1, 1): [100.0] * 3, (2, 2): [260.0] * 3}
    assert "above 1; cause unknown" in scaling_study.as_text(scaling_study.study(rates, "strong"))
    rates = {(1, 1): [100.0, 90.0, 150.0], (2, 2): [210.0] * 3}  # within the noise
    assert "above 1" not in scaling_study.as_text(scaling_study.study(rates, "strong"))


def test_the_time_to_the_first_step_is_the_median_by_number_of_ranks() -> None:
    rates = {(1, 1): [100.0] * 3, (4, 4): [300.0] * 3}
    found = scaling_study.study(rates, "strong", {(4, 4): [3.0, 9.0, 4.0]})
    assert [point.seconds_to_first_step for point in found.points] == [None, 4.0]
    rows = [line.split() for line in scaling_study.as_text(found).splitlines()]
    assert rows[2][-1] == "-" and rows[3][-2:] == ["4", "s"]
    table = list(csv.DictReader(scaling_study.as_csv(found).splitlines()))
    assert [row["seconds_to_first_step"] for row in table] == ["", "4.0"]


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "0,1"],
        ["--ranks", "two"],
        ["--ranks", "1,2", "--ps", "1"],
        ["--ranks", "1", "--repeats", "0"],
        ["--ranks", "1", "--weak", "batch"],
        ["--ranks", "1", "--run-dir", "x"],
        ["--ranks", "1", "--set", "nonsense=1"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_arguments(words: list[str], capsys: Any) -> None:
    assert cli.main(["scale", *words, "train.py"]) == 2
    assert "hpcflow scale: " in capsys.readouterr().err


TRAIN = """
import argparse, os, sys
import hpcflow as hf
import numpy as np
options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, default=16)
options = options.parse_args()
model = hf.Sequential([hf.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 2), "f4"), np.ones(64, "f4"), batch_size=options.batch, verbose=2)
if os.environ.get("FAIL") and model.session.context.size > 1:
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_study_of_real_runs_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    folder = tmp_path / "study"
    command = [sys.executable, "-m", "hpcflow", "scale", "--ranks", "1,2", "--repeats", "2"]
    command += ["--out", str(folder), "--weak=--batch=8", str(tmp_path / "train.py")]

    def study(*more: str, fail: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more],
            cwd=ROOT,
            env={**os.environ, "FAIL": fail},
            capture_output=True,
            text=True,
            timeout=200,
        )

    failed = study(fail="1")
    assert failed.returncode == 1 and "n2-1 failed: " in failed.stderr, failed.stderr
    again = study()
    assert again.returncode == 1 and "run " not in again.stdout  # what has failed stays failed
    done = study("--retry")
    assert done.returncode == 0, done.stderr
    assert "run 3 of 4: 2 ranks, n2-1, done" in done.stdout  # those of one rank stay
    assert "run 1 of 4" not in done.stdout
    assert "weak scaling" in done.stdout
    data = json.loads((folder / "scaling.json").read_text())
    assert [(p["workers"], p["runs"]) for p in data["points"]] == [(1, 2), (2, 2)]
    rows = list(csv.DictReader((folder / "scaling.csv").read_text().splitlines()))
    assert [row["workers"] for row in rows] == ["1", "2"]
    assert "weak scaling" in (folder / "report.html").read_text()
    (tmp_path / "train.py").write_text(TRAIN + "\n")  # another script: nothing is mixed
    other = study()
    assert other.returncode == 2 and "train.py has changed" in other.stderr
    assert cli.main(["scale", str(folder)]) == 0  # the old one is still there


def view(folder: Path, ranks: int, work: float, wait: float, seconds: float) -> Any:
    """A run of so many workers, each with that own work and waiting."""
    said = {"work_seconds": [work] * ranks, "wait_seconds": [wait] * ranks, "seconds": seconds}
    path = write(folder, ranks, 64, 1.0, said=said, waits=[0.0] * ranks)
    return views_of([path], is_over=True)[0]


@pytest.mark.parametrize(
    ("kind", "work", "wait", "cores", "words"),
    [
        ("strong", 9.0, 0.5, None, r"66% of n4 is lost by own work .* 9 s, ideally 2.5 s \(1/4"),
        ("strong", 9.0, 0.5, 2, "4 ranks share 2 cores"),
        ("strong", 2.5, 7.0, 2, "71% of n4 is lost by waiting for other ranks: 7 s"),
        ("weak", 9.9, 0.1, None, "^$"),  # nothing is lost
        ("weak", 14.0, 0.1, None, "ideally 10 s .that of one worker."),
    ],
)
def test_what_limits_a_scaling_is_told(
    kind: str, work: float, wait: float, cores: int | None, words: str, tmp_path: Path
) -> None:
    first = view(tmp_path / "n1", 1, 10.0, 0.0, 10.0)
    last = view(tmp_path / "n4", 4, work, wait, 9.85)
    found = scaling_limits.scaling_limits(first, last, 4.0, kind, cores)
    assert re.search(words, found[0] if found else ""), found


def test_batches_that_do_not_fit_the_kind_are_told() -> None:
    remark = scaling_limits.batch_remark
    assert "no weak scaling" in remark([(1, 50), (2, 50)], "--batch=50")
    assert "does the script use --batch=50?" in remark([(1, 50), (2, 50)], "--batch=50")
    assert remark([(1, 50), (2, 100), (4, 200)], "--batch=50") == ""
    assert remark([(1, 50), (2, 50), (4, 48)], None) == ""
    assert "no strong scaling" in remark([(1, 64), (4, 256)], None)
    assert remark([(1, 0), (2, 0)], None) == ""  # unknown


def test_a_study_that_gains_nothing_has_no_parallel_part() -> None:
    text = scaling_study.as_text(scaling_study.study({(1, 1): [10.0], (2, 2): [9.0]}, "strong"))
    assert "no parallel part fits Amdahl's law" in text
    assert re.search(r"45% +- ", text)  # one run has no interval


def test_a_study_has_no_best_run(tmp_path: Path, capsys: Any) -> None:
    ledger = Ledger.create(tmp_path / "s", {"repeats": 1, "metric": "rate"}, Path("a.py"), {})
    ledger.add([LedgerRun(f"n{n}-1", n, {}, [], {"ranks": n}) for n in (1, 2)])
    for n in (1, 2):
        ledger.record(f"n{n}-1", RunState("done", 1, value=n * 100.0))
    assert cli.main(["watch", str(tmp_path / "s"), "--once"]) == 0
    text = capsys.readouterr().out
    assert "best:" not in text and text.index("n1-1") < text.index("n2-1") and "200" in text


def test_a_sweep_does_not_go_on_with_a_study(tmp_path: Path, capsys: Any) -> None:
    ledger = Ledger.create(tmp_path / "s", {"repeats": 1, "metric": "x"}, tmp_path / "t.py", {})
    ledger.add([LedgerRun("n1-1", 1, {}, [], {})])
    assert cli.main(["sweep", str(tmp_path / "s")]) == 2
    assert f"hpcflow scale {tmp_path / 's'}" in capsys.readouterr().err
