"""A job that loses one of four workers for good learns as much as one that does not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.chaos.jobs import finish
from tests.chaos.surviving import BATCH, EPOCHS, TRAINED

JOB = str(Path(__file__).with_name("surviving.py"))
SEEDS = 20
DIED_AFTER = 8  # steps
MODES = {
    "sums": ("-n", "4"),
    "async": ("-n", "5", "--ps", "1"),
    "all": ("-n", "5", "--ps", "1", "--sync", "all"),
    "backup": ("-n", "5", "--ps", "1", "--sync", "backup:1"),
}
pytestmark = pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")


def run(mode: str, *options: str, seeds: range | list[int]) -> str:
    words = [sys.executable, "-m", "hpcflow", "run", *MODES[mode], "--survive", *options, JOB]
    return finish([*words, *map(str, seeds)])


def losses(text: str) -> dict[int, float]:
    return {int(seed): float(loss) for seed, loss in re.findall(r"LOSS (\d+) (\S+)", text)}


@pytest.mark.chaos
@pytest.mark.limit(1800)
@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_loses_a_worker_learns_within_the_range_of_20_others(mode: str) -> None:
    """And each sample is trained once an epoch, apart from what the dead worker had in hand."""
    usual = losses(run(mode, seeds=range(SEEDS)))
    assert len(usual) == SEEDS
    middle = sorted(usual, key=lambda seed: usual[seed])[SEEDS // 2]
    text = run(mode, "--inject", f"kill:rank=2@step={DIED_AFTER + 1}", seeds=[middle])
    assert "has died" in text and "DRAWN 2 " not in text
    (found,) = losses(text).values()
    assert min(usual.values()) <= found <= max(usual.values()), (found, sorted(usual.values()))
    drawn = [len(row.split()) for row in re.findall(r"DRAWN \d+ ([\d ]*)", text)]
    more = sum(drawn) - (EPOCHS * TRAINED - DIED_AFTER * BATCH // 4)
    assert 0 <= more <= (0 if mode == "sums" else BATCH // 4), drawn
