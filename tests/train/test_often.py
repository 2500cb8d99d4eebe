"""How often a job saves, and that its last save begins in time."""

from __future__ import annotations

import math
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcflow.errors import HpcflowError
from hpcflow.launch import slurm_requeue, time_limit
from hpcflow.launch.time_limit import seconds
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.settings import Settings
from hpcflow.train import checkpoint_interval
from hpcflow.train.checkpoint_interval import CheckpointInterval, daly_interval
from hpcflow.train.every_n_steps_or_secs import parse_interval

MINUTE = 60.0


@pytest.mark.parametrize(
    ("mtbf_min", "best_min", "digits"), [(24 * 60, 117, 0), (6 * 60, 57, 0), (15, 9.1, 1)]
)
def test_the_figures_of_dalys_paper(mtbf_min: float, best_min: float, digits: int) -> None:
    """Its figures 3 to 5: a save takes 5 minutes."""
    found = daly_interval(5 * MINUTE, mtbf_min * MINUTE) / MINUTE
    assert round(found, digits) == best_min


def test_cheap_saves_are_youngs_formula_and_dear_ones_the_time_between_failures() -> None:
    assert daly_interval(1e-3, 1e6) == pytest.approx(math.sqrt(2 * 1e-3 * 1e6), rel=1e-3)
    assert daly_interval(200, 100) == daly_interval(1e6, 100) == 100
    assert daly_interval(199.9999, 100) == pytest.approx(100 * (2 + 2 / 3 + 2 / 9) - 200, rel=1e-4)


def job_s(between: float, save: float, mtbf: float, random: np.random.Generator) -> float:
    """Seconds until 3,000 hours of training are saved, failing at random: the events one by one."""
    done = now = 0.0
    fails = random.exponential(mtbf)
    while done < 3000 * 3600:
        if now + between + save <= fails:
            now += between + save
            done += between
        else:  # all since the last save is lost
            now = fails + 10 * MINUTE
            fails = now + random.exponential(mtbf)
    return now


def test_a_simulated_job_is_done_soonest() -> None:
    save, mtbf, random = 5 * MINUTE, 6 * 60 * MINUTE, np.random.default_rng(5)
    best = daly_interval(save, mtbf)
    means = {
        f: np.mean([job_s(f * best, save, mtbf, random) for _ in range(8)]) for f in (0.4, 1, 2.5)
    }
    assert means[1] < 0.97 * min(means[0.4], means[2.5])


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_save_measures_and_then_daly_says() -> None:
    one = CheckpointInterval(None, mtbf_s=1e5, clock=Clock())
    assert one.seconds == checkpoint_interval.FIRST_S
    one.record_save(4.0, 4.0)
    assert one.seconds == pytest.approx(daly_interval(4, 1e5))
    one.record_save(8.0, 8.0)  # the mean of the last ones
    assert one.seconds == pytest.approx(daly_interval(6, 1e5))
    for _ in range(checkpoint_interval.AVERAGED_SAVES):
        one.record_save(1.0, 1.0)
    assert one.seconds == pytest.approx(daly_interval(1, 1e5))


def test_a_save_that_was_measured_before_counts_at_once() -> None:
    assert CheckpointInterval(None, 1e5, before=(4.0, 9.0), clock=Clock()).seconds == pytest.approx(
        daly_interval(4, 1e5)
    )


def test_what_the_user_says_stays() -> None:
    for every in (0.0, 25.0):
        one = CheckpointInterval(every, 1e5, clock=Clock())
        one.record_save(4.0, 4.0)
        assert one.seconds == every


def test_on_one_node_saves_are_an_hour_apart_at_most_or_a_hundredth_of_the_time() -> None:
    year = 365 * 86400.0
    cheap, dear = (
        CheckpointInterval(None, year, before=(cost, cost), clock=Clock()) for cost in (10.0, 600.0)
    )
    assert cheap.seconds == 3600 and dear.seconds == 60_000  # both less than the formula's
    assert daly_interval(10, year) > 3600 and daly_interval(600, year) > 60_000


def test_a_save_in_the_background_costs_what_it_holds_up_and_is_over_before_the_next() -> None:
    one = CheckpointInterval(None, 1e5, clock=Clock())
    one.record_save(0.5, 40.0)
    assert one.seconds == pytest.approx(daly_interval(0.5, 1e5))
    one.record_save(0.5, 4000.0)
    assert one.seconds == 4000


def test_a_save_that_all_waited_for_on_purpose_is_no_measure_of_what_others_cost() -> None:
    one = CheckpointInterval(None, 1e5, clock=Clock())
    one.record_save(None, 40.0)
    assert (
        one.seconds == checkpoint_interval.FIRST_S
        and one.save_s is None
        and one.durations == (None, 40.0)
    )
    one.record_save(0.5, 40.0)
    one.record_save(None, 42.0)
    assert one.seconds == pytest.approx(daly_interval(0.5, 1e5)) and one.durations == (0.5, 42.0)


@pytest.mark.parametrize(("held", "times"), [(20.0, 2), (0.5, 3)])
def test_a_save_behind_training_may_be_under_way_at_the_end(held: float, times: int) -> None:
    clock = Clock()
    one = CheckpointInterval(600.0, 1e5, left_s=1000.0, clock=clock)
    one.record_save(held, 20.0)
    clock.now = 2000.0 - checkpoint_interval.SPARE_S - times * 20 - 0.1
    assert not one.leaves_no_time()
    clock.now += 0.2
    assert one.leaves_no_time()


def test_training_stops_while_a_save_and_the_last_steps_fit() -> None:
    clock = Clock()
    one = CheckpointInterval(600.0, 1e5, left_s=1000.0, clock=clock)
    steps = [0.0]
    while not one.leaves_no_time():
        one.begin_step()
        clock.now += 7.0
        steps.append(clock.now)
        if len(steps) == 20:
            one.record_save(20.0, 20.0)
            one.exclude_pause()
            clock.now += 20.0
    left = 2000.0 - clock.now
    # three more steps of 7 s, and twice the time of a save, and what is left for the end
    assert (
        checkpoint_interval.SPARE_S + 3 * 7 + 40 - 7
        <= left
        <= checkpoint_interval.SPARE_S + 3 * 7 + 40
    )


def test_the_time_of_a_save_is_not_a_steps() -> None:
    clock = Clock()
    one = CheckpointInterval(600.0, 1e5, left_s=10_000.0, clock=clock)
    for _ in range(3):
        one.begin_step()
        clock.now += 3000.0
        one.exclude_pause()
        one.record_save(10.0, 10.0)
    clock.now = 1000.0 + 10_000 - checkpoint_interval.SPARE_S - 21
    assert not one.leaves_no_time()
    clock.now += 2
    assert one.leaves_no_time()


def test_a_long_first_step_counts_less_and_less() -> None:
    clock = Clock()
    one = CheckpointInterval(600.0, 1e5, left_s=1e5, clock=clock)
    for step in range(5000):
        one.begin_step()
        clock.now += 600.0 if step == 0 else 1.0
    clock.now = 1000.0 + 1e5 - checkpoint_interval.SPARE_S - checkpoint_interval.UNKNOWN_S - 3 * 10
    assert not one.leaves_no_time()


def test_without_an_end_nothing_is_over() -> None:
    clock = Clock()
    one = CheckpointInterval(None, 1e5, clock=clock)
    clock.now += 1e12
    assert not one.leaves_no_time()


def test_it_says_what_and_why() -> None:
    one = CheckpointInterval(None, 264 * 86400 / 32, before=(0.8, 0.8), clock=Clock())
    said = one.explain(32)
    assert "a save takes 800 ms" in said and "one of 32 nodes fails every 8 days" in said
    assert (
        f"every {format_seconds(daly_interval(0.8, 264 * 86400 / 32))}:" in said
        and "mtbf_h" in said
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("5400", 5400), ("90m", 5400), ("1.5h", 5400), ("1:30:00", 5400), ("45s", 45)],
        *[("2d", 172_800), ("2-12:00:00", 216_000), (" 3600 ", 3600)],
    ],
)
def test_time_limits(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["soon", "1:30", "-5m", "5 minutes", "h"])
def test_what_is_no_time_limit_is_told(text: str) -> None:
    with pytest.raises(HpcflowError, match="is no time"):
        seconds(text)


def test_a_time_limit_runs_from_when_the_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "seconds_running", lambda: 100.0)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(slurm_requeue, "job_end_time", lambda: 1050.0)
    assert time_limit.seconds_left(Settings(time_limit="10m")) == 500
    assert time_limit.seconds_left(Settings()) == 50
    monkeypatch.setattr(slurm_requeue, "job_end_time", lambda: None)
    assert time_limit.seconds_left(Settings()) == math.inf


def test_the_age_of_a_process() -> None:
    begun = time.monotonic()
    words = [
        sys.executable,
        "-c",
        "from hpcflow.launch.time_limit import seconds_running; print(seconds_running())",
    ]
    age = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert 0 < age <= time.monotonic() - begun + 0.02  # the kernel's clock ticks a hundred times


@pytest.mark.parametrize("hours", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_between_failures_is_told(hours: float) -> None:
    with pytest.raises(HpcflowError, match="mtbf_h"):
        Settings.from_environ({}, mtbf_h=hours)


def test_intervals() -> None:
    assert parse_interval("auto") == (0, None) and parse_interval("500") == (500, 0.0)
    assert parse_interval("10m") == (0, 600.0)


SCONTROL = """#!/bin/sh
[ "$SLURM_TIME_FORMAT" = standard ] || exit 1
cat <<'END'
JobId=7 JobName=train
   StartTime=2031-05-06T07:08:09 EndTime={first} Deadline=N/A
   PreemptEligibleTime=2031-05-06T07:08:09
JobId=8 HetJobId=7
   StartTime=2031-05-06T07:08:09 EndTime={second} Deadline=N/A
END
"""


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    program = folder / "scontrol"
    program.write_text(SCONTROL.format(first=first, second=second))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_slurm_says_when_the_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path, monkeypatch, "2031-05-06T09:08:09", "2031-05-06T08:08:09")
    job = {"SLURM_JOB_ID": "7"}
    ends = time.mktime((2031, 5, 6, 8, 8, 9, 0, 0, -1))  # the first component's, of local time
    assert slurm_requeue.job_end_time(job) == ends
    assert slurm_requeue.job_end_time({**job, "SLURM_JOB_END_TIME": "1935900000"}) == 1935900000
    past = {**job, "SLURM_JOB_END_TIME": "1700000000"}  # the limit was raised since
    assert slurm_requeue.job_end_time(past) == ends
    assert slurm_requeue.job_end_time({}) is None
    asked(tmp_path, monkeypatch, "Unknown", "Unknown")
    assert slurm_requeue.job_end_time(job) is None
