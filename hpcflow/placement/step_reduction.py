"""Step reduction: fewer tasks and edges of a step template, with the same times of its step.

An edge is left out if another path of edges has the same ends (transitive reduction: Aho, Garey and
Ullman, SIAM J. Computing 1(2), 1972). Two tasks of a device that follow each other are joined if no
other task of this device can run between them. A replay takes time for each task and edge.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from hpcflow.placement.durations import total
from hpcflow.placement.step_template import StepTemplate, TemplateTask


def reduced(template: StepTemplate) -> StepTemplate:
    """Return a template with the same times of steps, and in general fewer tasks and edges."""
    ancestors = _ancestors(template.tasks)
    ends = _last_ones(template.ends, ancestors)
    tasks = [
        dataclasses.replace(task, after=_last_ones(task.after, ancestors))
        for task in template.tasks
    ]
    kept = dataclasses.replace(template, tasks=tuple(tasks), ends=ends)
    return _joined(kept, _pairs(kept, ancestors))


def _ancestors(tasks: Sequence[TemplateTask]) -> list[int]:
    """For each task, the tasks that end before it begins, as a bit mask."""
    found: list[int] = []
    for task in tasks:
        bits = 0
        for k in task.after:
            bits |= found[k] | 1 << k
        found.append(bits)
    return found


def _last_ones(numbers: Iterable[int], ancestors: Sequence[int]) -> tuple[int, ...]:
    """The tasks of `numbers` that are no ancestors of other tasks of `numbers`."""
    before = 0
    for number in numbers:
        before |= ancestors[number]
    return tuple(number for number in numbers if not before >> number & 1)


def _pairs(template: StepTemplate, ancestors: Sequence[int]) -> set[int]:
    """The tasks that can be joined with their only predecessor."""
    tasks = template.tasks
    shared = {*template.servers, *(task.rank for task in template.update)}
    users = collections.Counter(k for task in tasks for k in task.after)
    users.update([*template.ends, *template.ready, *template.ticks])
    in_order = _devices_in_order(template, ancestors)

    def works(task: TemplateTask) -> bool:
        is_message = bool(task.to) or task.is_collective
        return not is_message and task.rank not in shared and (task.rank, task.device) in in_order

    return {
        i
        for i, task in enumerate(tasks)
        if len(task.after) == 1 and users[task.after[0]] == 1 and not task.gate and works(task)
        for before in [tasks[task.after[0]]]
        if works(before) and (before.rank, before.device) == (task.rank, task.device)
    }


def _devices_in_order(template: StepTemplate, ancestors: Sequence[int]) -> set[tuple[str, str]]:
    """The devices that run their tasks in one order and are idle between steps: (rank, device).

    Each task follows the one before it by `after`, and the step ends after all of them.
    """
    last: dict[tuple[str, str], int] = {}
    mixed: set[tuple[str, str]] = set()
    over = 0
    for end in template.ends:
        over |= ancestors[end] | 1 << end
    for i, task in enumerate(template.tasks):
        key = task.rank, task.device
        if task.to or task.is_collective or not task.device:
            continue
        if not over >> i & 1 or (key in last and not ancestors[i] >> last[key] & 1):
            mixed.add(key)
        last[key] = i
    return last.keys() - mixed


def _joined(template: StepTemplate, pairs: set[int]) -> StepTemplate:
    """The template with each task of `pairs` joined with its predecessor."""
    numbers: list[int] = []  # of the tasks, in the new template
    tasks: list[TemplateTask] = []
    for i, task in enumerate(template.tasks):
        if i in pairs:
            number = numbers[task.after[0]]
            seconds = total([tasks[number].seconds, task.seconds])
            tasks[number] = dataclasses.replace(tasks[number], seconds=seconds)
        else:
            number = len(tasks)
            tasks.append(dataclasses.replace(task, after=tuple(numbers[k] for k in task.after)))
        numbers.append(number)
    return dataclasses.replace(
        template,
        tasks=tuple(tasks),
        ends=tuple(numbers[k] for k in template.ends),
        ready=tuple(numbers[k] for k in template.ready),
        ticks=tuple(numbers[k] for k in template.ticks),
    )
