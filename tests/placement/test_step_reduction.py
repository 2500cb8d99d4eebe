"""Reduced step templates; `test_replay_oracle.py` compares the times of their steps."""

from __future__ import annotations

import dataclasses

from hpcflow.placement.durations import Seconds
from hpcflow.placement.step_reduction import reduced
from hpcflow.placement.step_template import StepTemplate, TemplateTask

WORKER, SERVER = "/job:worker/task:0", "/job:ps/task:0"


def work(after: tuple[int, ...] = (), rank: str = WORKER) -> TemplateTask:
    return TemplateTask(rank, after, Seconds(2.0, 1.0, 4.0), "cpu:0")


def sent(after: tuple[int, ...]) -> TemplateTask:
    return TemplateTask(WORKER, after, to=SERVER, nbytes=8.0)


def test_a_chain_on_a_device_becomes_one_task() -> None:
    found = reduced(StepTemplate((work(), work((0,)), work((0, 1))), (0, 1, 2)))
    assert found.tasks == (dataclasses.replace(work(), seconds=Seconds(6.0, 3.0, 12.0)),)
    assert found.ends == (0,)


def test_a_task_stays_if_a_message_a_round_or_a_clock_waits_for_it() -> None:
    tasks = (work(), work((0,)), sent((0,)), work((1, 2)))
    found = reduced(StepTemplate(tasks, (0, 1, 2, 3), servers={SERVER: 1}))
    assert (found.tasks, found.ends) == (tasks, (3,))
    pair = StepTemplate((work(), work((0,))), (1,))
    assert len(reduced(pair).tasks) == 1
    for waits in ({"ready": (0,)}, {"ticks": (0,)}):
        kept = dataclasses.replace(pair, **waits)  # type: ignore[arg-type]
        assert reduced(kept) == kept


def test_tasks_stay_if_another_may_run_between_them() -> None:
    beside = StepTemplate((work(), sent(()), work((1,)), work((0,))), (2, 3), servers={SERVER: 1})
    on_server = StepTemplate((work(rank=SERVER), work((0,), SERVER)), (1,), servers={SERVER: 1})
    of_last_step = StepTemplate((work(), work((0,)), work((1,))), (0,))
    for template in (beside, on_server, of_last_step):
        assert len(reduced(template).tasks) == len(template.tasks)


def test_numbers_are_those_of_the_reduced_template() -> None:
    tasks = (work(), work((0,)), sent((1,)), work((2,)), work((3,)))
    found = reduced(StepTemplate(tasks, (4,), servers={SERVER: 1}, ready=(2,), ticks=(2, 4)))
    assert [task.after for task in found.tasks] == [(), (0,), (1,)]
    assert (found.ends, found.ready, found.ticks) == ((2,), (1,), (1, 2))
