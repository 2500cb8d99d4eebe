"""What safety costs a step: ledger and watchdog the null step, snapshots a step on the digits.

    python benchmarks/ledger.py --out FILE

One worker reads a scalar from a server, which adds what is sent to it, as in null_step.py, in a job
that is watched and in one that is not. The difference is small beside what other things on the
machine do, so what the watchdog does each second is measured by itself, in time of the processor.

Two replicas train the network of examples/digits.py with a save behind training in every second,
and without any. Automatic saves begin after a minute: their share is what one costs by that.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import common
from common import Contender, Repeat, Tournament, check, per_call, role

CALLS, TICKS, STEPS = 500, 50, 10_000
SAVED, UNSAVED = "a save each second", "no saves"
DIGITS = "step on the digits"
WATCHED, ALONE = "watched", "not watched"
STEP, TICK = "null step", "tick of the watchdog"
TICK_S = SAVED_S = 1.0  # between two
AUTOMATIC_S = 60.0  # the same, of automatic saves at first


def worker(watched: bool) -> None:
    """One rank of a job; the server's does not come back from the first call that needs it."""
    import hpcflow as hf
    from hpcflow.runtime.job.job_membership import current_context
    from hpcflow.runtime.job.rank_context import RankContext

    if not watched:
        RankContext.watch = lambda self: None  # type: ignore[method-assign]
    context = current_context()
    if (context.executor.ledger is not None) != watched:
        raise SystemExit("the job is watched if it should not be, or the other way round")
    crew = common.crew_of_workers(servers=1)
    v = hf.Variable(hf.zeros([]), name="v")
    with hf.device("/job:worker/task:0"):
        update = v * 1e-6 + 1.0
    session, step = hf.Session(), v.assign_add(update, read_value=False)
    session.run(hf.global_variables_initializer())
    cases: dict[str, Repeat] = {STEP: lambda: per_call(lambda: session.run(step), CALLS)}
    if context.watching is not None:
        cases[TICK] = lambda: tick(context.watching.watchdog)
    common.serve(cases, ["numpy", "mpi4py"], crew)


def trains(folder: str) -> None:
    """A replica of the digits job, which saves into `folder` if that is not empty."""
    import hpcflow as hf

    sys.path.append(str(common.ROOT / "examples"))
    import digits

    hf.set_random_seed(0)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    train = hf.train.AdamOptimizer(0.003).minimize(digits.network(images, labels)[0])
    pixels, names = digits.load()
    batches = hf.data.Dataset({images: pixels, labels: names}, batch=64).epochs(10**6)
    session = hf.train.TrainingSession(checkpoints=folder or None, save_every="1s")
    crew = common.crew_of_workers(servers=0)
    each = lambda: session.step(train, next(batches))  # noqa: E731
    common.serve({DIGITS: lambda: per_call(each, STEPS)}, ["numpy", "mpi4py", "h5py"], crew)
    session.wait()


def tick(watchdog: Any) -> float:
    """Seconds of the processor for one look of a healthy rank."""
    times = []
    for _ in range(TICKS):
        start = time.thread_time()
        watchdog.tick()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def checks_of_saves(cup: Tournament) -> list[dict[str, Any]]:
    """What a save each second costs, and one a minute."""
    ratio = cup.ratio(DIGITS, SAVED, UNSAVED)
    more = ratio["value"] and ratio["value"] - 1
    share = more and 100 * more * SAVED_S / AUTOMATIC_S
    return [
        check("digits, a save each second by none", ratio),
        check("share of automatic saves", share, "%", at_most=1.0),
    ]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "trains":
        trains(arguments.folder)
        return
    if arguments.role:
        worker(arguments.role == "watched")
        return
    made = []
    for name, kind in ((WATCHED, "watched"), (ALONE, "alone")):
        command, environ = common.ranks(2, role(None, __file__, kind))
        made.append(Contender(name, [command], environ | {"HPCFLOW_PS": "1"}))
    cup = Tournament(arguments.realtime)
    cup.play(made, arguments.rounds, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        job = role(None, __file__, "trains")
        pair = [common.ranks(2, [*job, "--folder", folder]), common.ranks(2, job)]
        jobs = [Contender(n, [c], e) for n, (c, e) in zip((SAVED, UNSAVED), pair, strict=True)]
        cup.play(jobs, arguments.rounds, arguments.repeats)
        if SAVED not in cup.absent and not list(pathlib.Path(folder).glob("step-*/index.h5")):
            raise SystemExit("nothing was saved")
    look = cup.middle(TICK, WATCHED)
    checks = [
        check("null step, watched by not watched", cup.ratio(STEP, WATCHED, ALONE), at_most=1.01),
        check("share of the watchdog", look and 100 * look / TICK_S, "%", at_most=1.0),
        *checks_of_saves(cup),
    ]
    common.finish(cup.record(checks, "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
