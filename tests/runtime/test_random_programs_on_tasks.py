"""Random programs with each operation on any task give, bit for bit, what one rank gives."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.placement.placement_search import ScoredPlacement, score
from hpcflow.placement.start_placements import default_placement
from hpcflow.placement.step_problem import StepProblem
from hpcflow.plan.distribution import automatic_placement, variable_tasks
from tests.runtime.ranks import run_ranks
from tools.programs import sides
from tools.programs.lines import Line, Program
from tools.programs.make import Maker

SCOPED = ("variable", "line", "with", "gradient", "branch", "loop")


def anywhere(
    problem: StepProblem, layers: Sequence[Any], units: Sequence[Any], seed: int, *start: Any
) -> ScoredPlacement:
    """A placement at random, in place of the best: each that is allowed must be right."""
    rng, devices = random.Random(len(problem.seconds)), default_placement(problem)
    for g, device in enumerate(problem.fixed):
        if device is None:
            devices[g] = rng.choice(list(problem.allowed.get(g, range(problem.candidate_count))))
    return score(problem, devices)


def scattered(lines: list[Line], rng: random.Random, tasks: int) -> list[Line]:
    """The lines, a third of them in device scopes, also those of bodies."""
    made = []
    for line in lines:
        new = Line(**{**vars(line), "body": scattered(line.body, rng, tasks)})
        if new.role in SCOPED and rng.random() < 0.3:
            text = f"with tf.device('/job:worker/task:{rng.randrange(tasks)}'):"
            new = Line(text, role="with", body=[new])
        made.append(new)
    return made


def outcome(program: Program) -> sides.Outcome:
    """What the program gives in the context in force."""
    names: dict[str, Any] = {"tf": hf, "np": np}
    with sides.quiet():
        exec(program.graph_text(), names)
        with hf.Session() as session:
            init = hf.global_variables_initializer()
            return sides._steps(program, names, session.run, init)


def without_lines(error: str) -> str:
    """An error without the numbers of its lines, which device scopes change."""
    return re.sub(r":\d+", ":", error)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_tasks_give_what_one_rank_gives(seed, monkeypatch):
    for module in (variable_tasks, automatic_placement):
        monkeypatch.setattr(module, "search", anywhere)
    program, rng, tasks = Maker(seed, reads_first=seed % 5 == 1).program(), random.Random(seed), 3
    options: dict[str, Any] = {"exact": True, "plan_cache": "none"}
    (expected,) = run_ranks(1, lambda context: outcome(program), **options)
    cut = Program(
        scattered(program.lines, rng, tasks) if seed % 2 else program.lines,
        program.variables,
        program.runs,
    )
    options |= {"tasks_per_replica": tasks, "placement": "auto", "verify_passes": True}
    (found,) = run_ranks(tasks, lambda context: outcome(cut), seed=seed, **options)
    assert without_lines(found.error) == without_lines(expected.error)
    for step, (mine, theirs) in enumerate(zip(found.steps, expected.steps, strict=True)):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"step {step}")
