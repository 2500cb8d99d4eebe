"""The four-node SLURM of the tests, its jobs, and folders to submit them from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcflow.launch.slurm_requeue import LIVE
from tests.reach import reachable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEEP = "HPCFLOW_SLURM_DIR"  # a folder for a SLURM that stays up between runs of the tests
LIMIT_S = 240.0  # for one command or one job; srun waits for ever if a daemon is not there


def missing() -> str:
    """Why this machine cannot have a SLURM of its own; empty if it can."""
    if os.geteuid() != 0:
        return "needs SLURM: root, for host names and device files of its own"
    if not shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin"):
        if not shutil.which("apt-get"):
            return "needs SLURM: slurmctld, slurmd and munge, or apt-get to install them"
    return ""


class Cluster:
    """A SLURM that is up while the `with` block lasts."""

    def __init__(self) -> None:
        kept = os.environ.get(KEEP)
        # short, as the path of a socket is at most 107 characters, and open to all users
        self.folder = Path(kept or tempfile.mkdtemp(prefix="hf-slurm-", dir="/tmp"))
        self._keeps = kept is not None
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM"))}
        self.environ = {
            **{k: v for k, v in clean.items() if not k.startswith("HPCFLOW_")},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
        }

    def __enter__(self) -> Cluster:
        try:
            way = " && ".join([":", *reachable(self.folder)])
            (self.folder / "reach.sh").write_text(f"{way}\n")
            self._script("up.sh", timeout=300)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._keeps:
            self._script("down.sh", "--wipe")

    def _script(self, name: str, *words: str, timeout: float = 200) -> None:
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:  # a pipe would be kept open by the daemons
            argv = [str(HERE / name), str(self.folder), *words]
            code = subprocess.run(argv, stdout=out, stderr=out, timeout=timeout).returncode
        if code:
            raise OSError(f"{name} ended with {code}:\n{log.read_text()}")

    def run(
        self, *argv: str, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, with `more` in its environment."""
        environ = {**self.environ, **more}
        return subprocess.run(
            argv, cwd=cwd, env=environ, capture_output=True, text=True, timeout=LIMIT_S
        )

    def ask(self, *argv: str) -> str:
        """What a command of SLURM prints; OSError with what it says if it fails."""
        done = self.run(*argv)
        if done.returncode:
            raise OSError(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout.strip()

    def sbatch(self, place: Place, *words: str, **more: str) -> Job:
        """Submit a job from `place`, as its owner."""
        environ = {"PATH": f"{place.folder}/.venv/bin:{self.environ['PATH']}", **more}
        submit = (*place.as_owner, "sbatch", "--parsable", *words)
        done = self.run(*submit, cwd=place.folder, **environ)
        if done.returncode:
            raise OSError(f"sbatch {' '.join(words)}: {done.stderr}")
        return Job(self, place.folder, done.stdout.strip())

    def clear(self) -> None:
        """End all jobs, so that one which hangs does not keep the nodes from the next test."""
        if self.ask("squeue", "-h"):
            self.run("bash", "-c", "scancel --full -s KILL $(squeue -h -o %A); scancel -u root")
            end = time.monotonic() + 30
            while self.ask("squeue", "-h") and time.monotonic() < end:
                time.sleep(0.2)


class Place:
    """A folder as a user's clone: `jobs`, `examples`, and `.venv` with the command `hpcflow`."""

    def __init__(self, folder: Path, python: str = sys.executable, owner: int = 0) -> None:
        self.folder, self.python = folder, python
        rights = ("--reuid", str(owner), "--regid", str(owner), "--clear-groups")
        self.as_owner = ("setpriv", *rights) if owner else ()  # before a command
        for name in ("jobs", "examples"):
            (folder / name).symlink_to(ROOT / name)
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, module in (("hpcflow", "-m hpcflow "), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {python} {module}"$@"\n')
            program.chmod(0o755)
        if owner:
            os.chown(folder, owner, owner)


class Job:
    """A submitted job."""

    def __init__(self, cluster: Cluster, folder: Path, number: str) -> None:
        self.cluster, self.folder, self.number = cluster, folder, number

    @property
    def output(self) -> str:
        """What it has printed so far, all its elements and all its lives together."""
        files = sorted(self.folder.glob(f"*-{self.number}*.out"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def facts(self, name: str) -> list[str]:
        """A field of `scontrol show job`, for each part or element of the job."""
        text = self.cluster.ask("scontrol", "show", "job", self.number)
        return re.findall(rf"\b{name}=(\S+)", text)

    def wait(self, seconds: float = LIMIT_S) -> list[str]:
        """Wait until it has ended; the states of its parts."""
        self.until(lambda: not self.pending(), "end", seconds)
        return self.facts("JobState")

    def pending(self) -> bool:
        """Whether some part waits, runs, or is being cleared away."""
        return not {"PENDING", "REQUEUED", *LIVE}.isdisjoint(self.facts("JobState"))

    def says(self, words: str, seconds: float = LIMIT_S) -> None:
        """Wait until its output contains `words`, a regular expression."""
        self.until(lambda: re.search(words, self.output) is not None, f"say {words!r}", seconds)

    def until(self, true: object, what: str, seconds: float) -> None:
        """Wait until `true()`; TimeoutError with the output of the job after `seconds`."""
        assert callable(true)
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                state = self.cluster.ask("scontrol", "show", "job", self.number)
                raise TimeoutError(f"job {self.number} does not {what}:\n{state}\n{self.output}")
            time.sleep(0.2)

    def processes(self, also: str = "") -> list[int]:
        """Processes of the job that live: those whose environment names it, and has `also`."""
        mark = f"\0SLURM_JOB_ID={self.number}\0".encode()
        conf = f"\0SLURM_CONF={self.cluster.environ['SLURM_CONF']}\0".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = b"\0" + (folder / "environ").read_bytes() + b"\0"
            except OSError:
                continue
            if mark in environ and conf in environ and f"\0{also}".encode() in environ:
                found.append(int(folder.name))
        return found
