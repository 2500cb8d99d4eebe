"""Measured speeds: the estimate from predicted and measured work, averages, and the file."""

from __future__ import annotations

import json

import pytest

from hpcflow.errors import HpcflowError
from hpcflow.placement.measured_speeds import (
    NAME,
    MeasuredSpeeds,
    RankSpeed,
    averaged,
    compare,
    read_speeds,
    task_speeds,
)


def speeds(predicted, measured):
    return {task: work.speed for task, work in compare(predicted, measured).items()}


def test_a_speed_is_relative_to_the_median_of_the_tasks():
    """Predictions are four times too short for all; task 2 takes three times as long as that."""
    predicted = {0: 0.01, 1: 0.02, 2: 0.01, 3: 0.03}
    measured = {0: 0.04, 1: 0.08, 2: 0.12, 3: 0.12}
    found = speeds(predicted, measured)
    assert found == pytest.approx({0: 1.0, 1: 1.0, 2: 1 / 3, 3: 1.0})
    slow = [task for task, work in compare(predicted, measured).items() if work.is_slow]
    assert slow == [2]


def test_of_two_tasks_the_slow_one_is_named():
    assert speeds({0: 0.01, 1: 0.01}, {0: 0.03, 1: 0.01}) == pytest.approx({0: 1 / 3, 1: 1.0})


def test_what_takes_longer_by_less_than_a_millisecond_is_not_slow():
    assert not any(work.is_slow for work in compare({0: 1, 1: 1}, {0: 1.1e-3, 1: 2e-3}).values())


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [
        ({0: 0.01, 1: 0.01}, {0: 1e-4, 1: 0.01}),  # too short to tell work from overhead
        ({0: 0.01, 1: 0.0}, {0: 0.01, 1: 0.05}),  # a loop: what it takes is not known
        ({0: 0.01, 1: 0.0001}, {0: 0.01, 1: 0.05}),  # hardly any work was predicted
        ({0: 0.01}, {0: 0.05}),
        ({}, {0: 0.05, 1: 0.05}),
    ],
)
def test_a_task_without_comparable_work_is_not_judged(predicted, measured):
    assert compare(predicted, measured) == {}


def test_runs_are_averaged_and_a_rank_that_is_not_measured_recovers_slowly():
    hosts = ["a", "a", "b", "b"]
    earlier = {
        0: RankSpeed("a", 1.0),
        1: RankSpeed("a", 0.5),
        2: RankSpeed("elsewhere", 0.2),
        9: RankSpeed("a", 0.2),
    }
    found = averaged(earlier, hosts, {0: 0.4, 3: 0.3})
    assert {rank: host for rank, (host, _) in found.items()} == {0: "a", 1: "a", 3: "b"}
    assert found[0].speed == pytest.approx(0.7)  # one odd run does not decide alone
    assert found[1].speed == pytest.approx(0.55)
    assert found[3].speed == pytest.approx(0.3)
    for _ in range(5):
        found = averaged(found, hosts, {0: 0.4})
    assert found[0].speed == pytest.approx(0.4, abs=0.02)


def test_speeds_near_one_count_as_one_so_that_equal_ranks_keep_their_plan():
    near = {0: RankSpeed("a", 0.7), 1: RankSpeed("a", 1.4)}
    assert task_speeds(near, [(0,), (1,)], ["a", "a"]) == ()
    slow = {**near, 1: RankSpeed("a", 0.3)}
    assert task_speeds(slow, [(0,), (1,)], ["a", "a"]) == (1.0, 0.3)
    assert task_speeds(slow, [(0,), (1,)], ["a", "b"]) == ()
    assert task_speeds(slow, [(0,), (1,)], None) == (1.0, 0.3)  # planned: the hosts of the file


def test_the_file_is_read_as_it_was_written(tmp_path):
    assert read_speeds(tmp_path) == MeasuredSpeeds()
    speeds = MeasuredSpeeds({3: RankSpeed("n3", 0.34), 0: RankSpeed("n0", 1.0)}, "digest", 0.061)
    (tmp_path / NAME).write_text(json.dumps(speeds.data()))
    assert read_speeds(tmp_path) == speeds


GOOD = {"format": "hpcflow-placement-1", "plan": "", "step_seconds": 1.0, "ranks": []}
ROW = {"rank": 1, "host": "a", "speed": 0.5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": ',
        json.dumps({**GOOD, "format": "hpcflow-placement-2"}),
        json.dumps({**GOOD, "ranks": {}}),
        json.dumps({**GOOD, "ranks": ["rank"]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "rank": True}]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "rank": -1}]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "speed": "0.5"}]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "speed": 0.0}]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "speed": float("nan")}]}),
        json.dumps({**GOOD, "ranks": [{**ROW, "host": None}]}),
        json.dumps({**GOOD, "plan": 3}),
        json.dumps({**GOOD, "step_seconds": 10**400}),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(text, tmp_path):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(HpcflowError, match=NAME):
        read_speeds(tmp_path)


def test_a_rank_that_is_there_twice_is_an_error_that_names_its_row(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({**GOOD, "ranks": [ROW, {**ROW, "rank": 2}, ROW]}))
    with pytest.raises(HpcflowError, match=rf"{NAME} .*ranks\[2\] is rank 1 a second time"):
        read_speeds(tmp_path)
    text = json.dumps({**GOOD, "ranks": [ROW]})
    (tmp_path / NAME).write_text(text.replace('"speed": 0.5', '"speed": 0.5, "speed": 0.1'))
    with pytest.raises(HpcflowError, match=f"{NAME} .*the name 'speed' twice"):
        read_speeds(tmp_path)
