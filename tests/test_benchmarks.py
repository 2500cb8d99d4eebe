"""The list of benchmarks that `make bench` runs, and the page that shows their results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import run  # noqa: E402


def test_every_benchmark_is_run_and_shown() -> None:
    page = (BENCHMARKS / "RESULTS.md").read_text()
    shown = re.findall(r"<!-- figures (\w+) -->", page)
    assert sorted(shown) == sorted(one.name for one in run.PLAN)
    runs = {one.command.split()[0] for one in run.PLAN}
    scripts = {f.name for f in BENCHMARKS.glob("*.py") if "common.finish(" in f.read_text()}
    assert runs == scripts


def test_no_result_is_of_a_benchmark_that_is_gone() -> None:
    names = {one.name for one in run.PLAN}
    assert {file.stem for file in (BENCHMARKS / "results").glob("*.json")} <= names
