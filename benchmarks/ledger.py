"""What watching for hangs costs a step: the null step with and without ledger and watchdog.

    python benchmarks/ledger.py --out FILE

One worker reads a scalar from a server, which adds what is sent to it, as in null_step.py, in a job
that is watched and in one that is not. The difference is small beside what other things on the
machine do, so what the watchdog does each second is measured by itself, in time of the processor.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import common
from common import Contender, Repeat, Tournament, check, per_call, role

CALLS, TICKS = 500, 50
WATCHED, ALONE = "watched", "not watched"
STEP, TICK = "null step", "tick of the watchdog"
TICK_S = 1.0  # between two


def worker(watched: bool) -> None:
    """One rank of a job; the server's does not come back from the first call that needs it."""
    import hpcflow as hf
    from hpcflow.runtime.context import Context
    from hpcflow.runtime.job import current

    if not watched:
        Context.watch = lambda self: None  # type: ignore[method-assign]
    context = current()
    if (context.engine.ledger is not None) != watched:
        raise SystemExit("the job is watched if it should not be, or the other way round")
    crew = common.crew_of_workers(servers=1)
    v = hf.Variable(hf.zeros([]), name="v")
    with hf.device("/job:worker/task:0"):
        update = v * 1e-6 + 1.0
    session, step = hf.Session(), v.assign_add(update)
    session.run(hf.global_variables_initializer())
    cases: dict[str, Repeat] = {STEP: lambda: per_call(lambda: session.run(step), CALLS)}
    if context.watchdog is not None:
        cases[TICK] = lambda: tick(context.watchdog)
    common.serve(cases, ["numpy", "mpi4py"], crew)


def tick(watchdog: Any) -> float:
    """Seconds of the processor for one look of a healthy rank."""
    times = []
    for _ in range(TICKS):
        start = time.thread_time()
        watchdog.tick()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    if arguments.role:
        worker(arguments.role == "watched")
        return
    made = []
    for name, kind in ((WATCHED, "watched"), (ALONE, "alone")):
        command, environ = common.ranks(2, role(None, __file__, kind))
        made.append(Contender(name, [command], environ | {"HPCFLOW_PS": "1"}))
    cup = Tournament(arguments.realtime)
    cup.play(made, arguments.rounds, arguments.repeats)
    look = cup.middle(TICK, WATCHED)
    checks = [
        check("null step, watched by not watched", cup.ratio(STEP, WATCHED, ALONE), at_most=1.01),
        check("share of the watchdog", look and 100 * look / TICK_S, "%", at_most=1.0),
    ]
    common.finish(cup.record(checks, "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
