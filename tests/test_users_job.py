"""A user's script by the job scripts as they are: `srun` here starts the ranks by mpirun.

The same by a real SLURM: tests/slurm/test_users.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection
from tests.reach import NOBODY, reachable
from tests.slurm.users import SCRIPT

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.skipif(
        launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
    ),
    pytest.mark.slow,
]
# Of srun's options those that begin with -- stand before the program; SLURM itself is not there.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export {env}
exec {start} "$@"
"""
SCONTROL = """#!/bin/sh
echo "$@" >> scontrol.log
echo "JobId=7 JobState=RUNNING EndTime=Unknown"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A user's folder with his script, the job scripts, and tools that pretend to be SLURM's."""
    where = Path(tempfile.mkdtemp(prefix="hf-user-"))
    where.chmod(0o755)
    (where / "jobs").symlink_to(ROOT / "jobs")
    (where / "train.py").write_text(SCRIPT)
    start = launcher_detection.start_command(3, [])
    changed = {k: v for k, v in start.env.items() if os.environ.get(k) != v and k != "PATH"}
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in changed.items())
    tools = where / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name, text in {
        "srun": SRUN.format(env=env, start=shlex.join(start.argv)),
        "scontrol": SCONTROL,
        "hpcflow": f'#!/bin/sh\nexec {sys.executable} -m hpcflow "$@"\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    if os.geteuid() == 0:
        os.chown(where, NOBODY, NOBODY)
    yield where
    shutil.rmtree(where)


def job(folder: Path, script: str, *words: str, **more: str) -> tuple[int, str]:
    """Run the job script as SLURM would, as a user without rights; its exit code and output."""
    user: list[str] = []
    if os.geteuid() == 0:
        rights = f"--reuid {NOBODY} --regid {NOBODY} --clear-groups"
        steps = " && ".join([*reachable(folder), f'exec setpriv {rights} "$@"'])
        user = ["unshare", "--mount", "sh", "-ec", steps, "sh"]
    left = ("HPCFLOW_", "SLURM_", "XDG_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(left)}
    environ |= {"PYTHONPATH": str(ROOT), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "7", **more}
    done = subprocess.run(
        [*user, "bash", f"jobs/slurm/{script}.sbatch", "train.py", *words],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def weights(output: str) -> list[str]:
    return re.findall(r"end w=(\w+)", output)


@pytest.mark.parametrize("script", ["train", "ps"])
def test_a_users_script_is_saved_requeued_and_goes_on(folder: Path, script: str) -> None:
    more = {"SYNC": "all"} if script == "ps" else {}
    code, output = job(folder, script, "--signal-rank", "1", **more)
    (stopped,) = re.findall(r"SIGUSR1: stopped before step (\d+); saved", output)
    assert code == 75 and weights(output) == [], output
    assert "requeue 7" in (folder / "scontrol.log").read_text()
    code, output = job(folder, script, "--signal-rank", "1", SLURM_RESTART_COUNT="1", **more)
    assert code == 0 and f"resumed step={stopped} " in output, output
    assert (folder / "runs" / "7" / "checkpoints" / "latest").exists()
    again, whole = job(folder, script, RUN="whole", **more)
    assert again == 0 and weights(whole) == weights(output) != [], whole
    assert (folder / "runs" / "whole" / "result.json").exists()


def test_a_script_that_is_not_there_ends_the_job_before_anything_is_packed(folder: Path) -> None:
    (folder / "train.py").unlink()
    code, output = job(folder, "train")
    assert code == 2 and "no script 'train.py'" in output
    assert list((folder / "runs" / "7").iterdir()) == []
