"""Programs of counted effects in jobs of every kind, on ranks that are threads of this process."""

from __future__ import annotations

import copy
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import hpcflow as hf
from hpcflow.errors import HpcflowError
from tests.runtime.ranks import run_ranks

from .effect_programs import EffectMaker, EffectProgram, Statement, needed
from .effects_graph import EffectGraph
from .effects_in_order import Call, InOrder, Result
from .sides import quiet

Job = tuple[int, int, dict[str, Any]]  # ranks, tasks of a replica to choose from, settings
JOBS: dict[str, Job] = {
    "one rank": (1, 1, {}),
    "plain kernels": (1, 1, {"kernels": "plain", "exact": True}),
    "2 tasks": (2, 2, {"tasks_per_replica": 2}),
    "3 tasks": (3, 3, {"tasks_per_replica": 3}),
    "placement=auto": (2, 1, {"tasks_per_replica": 2, "placement": "auto"}),
    "2 replicas": (2, 1, {}),
    "2 replicas of 2 tasks": (4, 2, {"tasks_per_replica": 2}),
    "server": (2, 1, {"ps": 1}),
    "2 servers": (3, 1, {"ps": 2, "shard_bytes": 16}),
    "prefetch": (3, 1, {"ps": 2, "shard_bytes": 32, "prefetch": True}),
    "server, 2 tasks, prefetch": (3, 2, {"ps": 1, "tasks_per_replica": 2, "prefetch": True}),
    "all": (3, 1, {"ps": 2, "sync": "all", "shard_bytes": 16}),
    "all, prefetch": (2, 1, {"ps": 1, "sync": "all", "prefetch": True}),
    "stale": (2, 1, {"ps": 1, "sync": "stale:0", "prefetch": True}),
    "tables on a server": (2, 1, {"ps": 1, "sync": "all", "dense": "replicas"}),
}
REFUSED = ("behind the sum", "a sum over replicas depends on another")


def job_of(seed: int) -> tuple[EffectProgram, str]:
    """The program of a seed, and the job that runs it."""
    name = list(JOBS)[seed // 5 % len(JOBS)]
    return EffectMaker(seed).program(), name


def difference(program: EffectProgram, job: str, seed: int) -> str | None:
    """How a job differs from the statements run in order; None if it does not."""
    expected = InOrder(program).results()
    ranks, tasks, settings = JOBS[job]
    with tempfile.TemporaryDirectory() as folder, quiet():
        body = _body(program, tasks, pathlib.Path(folder) if seed % 3 == 0 else None)
        try:
            found = run_ranks(ranks, body, seed=seed if ranks > 1 else None, plan_cache="none",
                              verify_passes=True, stall_s=30.0, **settings)  # fmt: skip
        except HpcflowError as error:
            told = str(error).splitlines()[0]
            return None if any(text in told for text in REFUSED) else f"error: {told}"
    for rank, results in enumerate(found):
        for step, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
            told = _unlike(mine, theirs, program.runs[step][0])
            if told:
                return f"replica {rank}, run {step}: {told}"
    return None


def _body(
    program: EffectProgram, tasks: int, folder: pathlib.Path | None
) -> Callable[[Any], list[Result]]:
    """What a driver does: all runs. With a folder it repeats the last one from a checkpoint."""

    def body(context: Any) -> list[Result]:
        calls: list[Call] = []
        graph = EffectGraph(program, tasks, calls)
        session, saver = hf.Session(), hf.train.Saver()
        session.run(hf.global_variables_initializer())
        results = []
        for number, (names, x) in enumerate(program.runs):
            fetches, fed = [graph.made[n] for n in names], {graph.x: np.array(x, program.dtype)}
            if folder and number == len(program.runs) - 1 and not program.queue:
                path = saver.save(session, str(folder / "saved"))
                earlier = list(calls)
                session.run(fetches, fed)
                calls[:] = earlier
                session = hf.Session()
                saver.restore(session, path)
            values = session.run(fetches, fed)
            called = list(calls)
            states = session.run(graph.variables)
            results.append(Result(values, states, called))
        return results

    return body


def _unlike(mine: Result, theirs: Result, names: list[str]) -> str:
    """What of a run differs, "" if nothing does."""
    if mine.calls != theirs.calls:
        return f"calls {mine.calls}, expected {theirs.calls}"
    fetched = zip(names, mine.values, theirs.values, strict=True)
    states = ((n, v, theirs.variables.get(n, v)) for n, v in mine.variables.items())
    for name, a, b in itertools.chain(fetched, states):
        if a is None or b is None:
            continue
        rounded = name in ("weights", "average")
        same = np.allclose(a, b, rtol=2e-4, atol=2e-4) if rounded else np.array_equal(a, b)
        if not same:
            return f"{name} is {np.asarray(a).tolist()}, expected {np.asarray(b).tolist()}"
    return ""


def shortest(program: EffectProgram, job: str, seed: int) -> EffectProgram:
    """A shorter program that differs, too."""
    while True:
        for shorter in _shorter(program):
            if difference(shorter, job, seed) is not None:
                program = shorter
                break
        else:
            return program


def _shorter(program: EffectProgram) -> Iterator[EffectProgram]:
    """The program without a run, a fetch, or a statement."""
    for i, (fetches, _) in enumerate(program.runs):
        for fetch in [None, *fetches]:
            made = copy.deepcopy(program)
            rest = [f for f in fetches if fetch is not None and f != fetch]
            made.runs[i : i + 1] = [(rest, program.runs[i][1])] if rest else []
            used = needed(made.statements, [f for run in made.runs for f in run[0]])
            made.statements = [s for s in made.statements if s.name in used]
            if made.runs:
                yield made
    for i in range(len(list(_lists(program.statements)))):
        for k in range(len(list(_lists(program.statements))[i])):
            made = copy.deepcopy(program)
            gone = list(_lists(made.statements))[i].pop(k)
            if not any(gone.name in run[0] for run in made.runs):
                _forget(made.statements, gone)
                yield made


def _lists(statements: list[Statement]) -> Iterator[list[Statement]]:
    """All lists of statements, those of bodies behind their owners'."""
    yield statements
    for s in statements:
        for body, _, _ in s.bodies:
            yield from _lists(body)


def _forget(statements: list[Statement], gone: Statement) -> None:
    """Let what used a statement use x, and what followed it follow what it followed."""
    for s in statements:
        s.inputs = tuple("x" if n == gone.name else n for n in s.inputs)
        after = (a for n in s.after for a in (gone.after if n == gone.name else (n,)))
        s.after = tuple(dict.fromkeys(after))
        s.bodies = [(b, "x" if r == gone.name else r, v) for b, r, v in s.bodies]
        for body, _, _ in s.bodies:
            _forget(body, gone)
