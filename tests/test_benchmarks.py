"""The list of benchmarks that `make bench` runs, and the page that shows their results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import common  # noqa: E402
import run  # noqa: E402

CONTENDER = """
import common

figures = iter(range(100))

def once():
    if {dies}:
        raise SystemExit("no more")
    return {scale} * (2 + next(figures) % 2)

common.serve({{"case": once}})
"""


def contender(name: str, scale: float, dies: bool = False) -> common.Contender:
    script = CONTENDER.format(scale=scale, dies=dies)
    return common.Contender(name, [[sys.executable, "-c", script]], {"PYTHONPATH": str(BENCHMARKS)})


def test_contenders_take_turns_and_ours_is_set_beside_the_best() -> None:
    cup = common.Tournament()
    players = [contender("ours", 1), contender("slow", 9), contender("fast", 2)]
    cup.play([*players, contender("dead", 1, True)], rounds=2, repeats=3)
    assert cup.figures["case"] == {"ours": [3, 2, 3] * 2, "slow": [27, 18, 27] * 2,
                                   "fast": [6, 4, 6] * 2}  # fmt: skip
    assert "no more" in cup.absent["dead"]
    row = cup.by_best("case", "ours", at_most=0.4)
    assert (row["figure"], row["value"], row["of_minima"], row["met"]) == (
        *("case: by fast", 0.5, 0.5, False),
    )
    assert cup.by_best("another", "ours")["value"] is None
    record = cup.record([row], "ms", 1e3)
    assert record["rows"][0]["median"] == 3000 and record["took_s"] >= 0


def test_every_benchmark_is_run_and_shown() -> None:
    page = (BENCHMARKS / "RESULTS.md").read_text()
    shown = re.findall(r"<!-- figures (\w+) -->", page)
    assert sorted(shown) == sorted(one.name for one in run.PLAN)
    runs = {one.command.split()[0] for one in run.PLAN}
    files = [*BENCHMARKS.glob("*.py"), BENCHMARKS / "nets2" / "run.py"]
    scripts = {str(f.relative_to(BENCHMARKS)) for f in files if "common.finish(" in f.read_text()}
    assert runs == scripts


def test_no_result_is_of_a_benchmark_that_is_gone() -> None:
    names = {one.name for one in run.PLAN}
    assert {file.stem for file in (BENCHMARKS / "results").glob("*.json")} <= names
