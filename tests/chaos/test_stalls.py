"""Jobs that stall in ten ways: the report names what waits, for whom, and where that one is.

One runs always, and a job that waits long without a stall; `make test-chaos` stalls 200.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection

ROOT = Path(__file__).parents[2]
STALLING, HEALTHY = (Path(__file__).with_name(f"{name}.py") for name in ("stalling", "healthy"))
STALL_S = 2.0  # the job ends after twice as long
RUNS = 200
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A way to stall: on which ranks, and what the report has to say of it.

    `waits` is what waits and for whom, `does` what the rank does that is at fault; in both {bad} is
    the rank that the seed chose. Where there are `servers` the last rank, 2, is one.
    """

    waits: str
    does: str
    servers: int = 0
    sync: str = "async"


MADE = r"'[^']+' \(made at \S+stalling.py:\d+\) at step \d+ has waited \d+ s for "
SUM = f"AllReduce {MADE}1 of 3 ranks"
SERVED = f"Recv {MADE}rank 2"
AT = r"missing  {bad} on \S+ /job:worker/task:{bad}: waits for nothing.* at \S+stalling.py:\d+ in "
KINDS = {
    "withheld": Kind(SERVED, r"ring     (0, 2|1, 2) wait for each other: a message", servers=1),
    "late": Kind(SUM, AT + "lateness > .*threading.py"),
    "queue": Kind(
        r"'taken[^']*' \(made at \S+stalling.py:\d+\) at step 1 has waited \d+ s for rank 2",
        r"missing  2 on .* in queue 'taken'",
        servers=1,
    ),
    "server": Kind(SERVED, r"missing  2 on .*is stopped \(T; kill -CONT", servers=1),
    "worker": Kind(
        SERVED, r"behind   {bad} on .*is stopped \(T; kill -CONT", servers=1, sync="all"
    ),
    "loop": Kind(SUM, AT + "an_endless_loop"),
    "kernel": Kind(
        SUM, r"missing  {bad} on .*(in kernel > op 'slow'|in a call that keeps the GIL \(S\))"
    ),
    "sleep": Kind(SUM, AT + "a_sleep"),
    "save": Kind(r"'saving or loading' has waited \d+ s for 1 of 3 ranks", AT + "a_read"),
    "lonely": Kind(r"LonelyCollectiveError", r"but rank \d [^\n]*(has ended|came to)"),
}


def job(folder: Path, words: list[str], **settings: object) -> tuple[int, str]:
    """Exit code and all output of a job of three ranks, with its reports."""
    folder.mkdir(exist_ok=True)
    start = launcher_detection.start_command(3, [sys.executable, *words])
    given = {"run_dir": str(folder), "threads": "1", **settings}
    env = {f"HPCFLOW_{name.upper()}": str(value) for name, value in given.items()}
    done = subprocess.run(
        start.argv,
        env={**start.env, **env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=220,
    )
    return done.returncode, done.stdout + "".join(p.read_text() for p in folder.glob("stall-*"))


def bad_rank(seed: int) -> int:
    """The choice of stalling.py."""
    chance = random.Random(seed)
    chance.randint(1, 5)
    return chance.randrange(2)


def wrong(folder: Path, kind: str, seed: int, stall_s: float = STALL_S) -> str:
    """What is wrong with what a stall was told as; "" if nothing is."""
    case = KINDS[kind]
    times = {"stall_s": stall_s, "stall_abort_s": 2 * stall_s}
    words = [str(STALLING), kind, str(seed)]
    code, output = job(folder, words, ps=case.servers, sync=case.sync, **times)
    bad = str(bad_rank(seed))
    missing = [
        pattern
        for pattern in (case.waits, case.does)
        if not re.search(pattern.replace("{bad}", bad), output)
    ]
    reports = list(folder.glob("stall-*"))
    if code == 0:
        missing.append("an exit code")
    if len(reports) != (kind != "lonely"):
        missing.append(f"one report, not {[path.name for path in reports]}")
    return f"{kind} {seed}: there is no {missing} in\n{output}" if missing else ""


@pytest.mark.slow
def test_a_stopped_worker_is_found_behind_the_server_that_others_wait_for(tmp_path):
    assert wrong(tmp_path, "worker", 2, stall_s=3.0) == ""


@pytest.mark.slow
def test_a_healthy_job_is_no_stall_however_long_one_waits(tmp_path):
    """Slow data, a long evaluation, a worker with far more steps than another."""
    times = {"stall_s": 4, "stall_abort_s": 8}  # a third of it is waited in a step, with a margin
    code, output = job(tmp_path, [str(HEALTHY), "4"], ps=1, **times)
    assert code == 0 and output.count("ENDED") == 2, output
    assert "StallError" not in output and not list(tmp_path.glob("*fail*"))


@pytest.mark.chaos
@pytest.mark.limit(7200)
def test_stalls_of_ten_kinds(tmp_path):
    """All are told right, and within twice the time after which they are to be."""
    runs = int(os.environ.get("STALLS", RUNS))
    found, late = [], 0
    for number in range(runs):
        kind = list(KINDS)[number % len(KINDS)]
        folder = tmp_path / f"{number}"
        told = wrong(folder, kind, number)
        found += [told] if told else []
        for report in folder.glob("stall-*"):
            late += float(re.search(r"has waited (\d+) s", report.read_text())[1]) > 2 * STALL_S
    print(f"\n{runs - len(found)} of {runs} told right, {late} late")
    assert not found, "\n\n".join(found)
