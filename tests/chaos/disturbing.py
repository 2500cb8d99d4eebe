"""Disturbances of a job, drawn from a seed: to whom, what, when, and how it is done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.jobs import JOB, environ

EPOCHS, EVERY = 2, 3
SIZE = "8m"  # of the disks
MARK = "HPCFLOW_TESTS_DISTURBED"  # a variable that all processes of a job inherit
BUSY_S = 20.0  # for a remount while files are open
COMES_S = 100.0  # for a moment
PAUSE_S = 0.03  # between two steps of the job, so that it is there when its moment comes
STALL_S, STALL_ABORT_S = 5.0, 15.0
MODES = {
    "sums of 2": ("-n", "2"),
    "sums of 3": ("-n", "3"),
    "async": ("-n", "3", "--ps", "1"),
    "async, 2 servers": ("-n", "4", "--ps", "2"),
    "all": ("-n", "3", "--ps", "1", "--sync", "all"),
    "backup": ("-n", "3", "--ps", "1", "--sync", "backup:1"),
}
SAME_BITS = ("sums of 2", "sums of 3", "all")  # of a job that was not disturbed
MOMENTS = ("start", "joining", "steps", "steps", "saving", "end")
SIGNALS = {
    "kill a rank": "KILL",
    "kill all ranks": "KILL",
    "stop a rank": "STOP",
    "SIGTERM to a rank": "TERM",
    "SIGUSR1 to a rank": "USR1",
    "SIGINT to a rank": "INT",
    "SIGTERM to the launcher": "TERM",
    "SIGUSR1 to the launcher": "USR1",
    "SIGHUP to the launcher": "HUP",
    "Ctrl-C": "INT",
    "Ctrl-C twice": "INT",
    "kill the launcher": "KILL",
    "kill mpirun": "KILL",
}
DISKS = {  # the disks, and what happens to them
    "full disk of the checkpoints": (("saved",), "fill"),
    "full disk of the run directory": (("run",), "fill"),
    "full disks": (("saved", "run"), "fill"),
    "read-only checkpoints": (("saved",), "close"),
    "read-only run directory": (("run",), "close"),
    "read-only disks": (("saved", "run"), "close"),
}


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """One disturbance of one job."""

    seed: int
    kind: str
    mode: str
    moment: str
    rank: int  # the victim, where there is one
    count: int  # of the chief's steps before the moment comes
    delay: float  # seconds after the moment
    setting: str  # by which the checkpoints have their folder

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.kind} {self.rank} ({self.mode}), {self.moment} "

    @property
    def ranks(self) -> int:
        """Of the job."""
        return int(MODES[self.mode][1])


def draw(seed: int, disks: bool) -> Disturbance:
    """The disturbance of a seed; with `disks` those of disks are among them."""
    chance = random.Random(seed)
    kind = chance.choice([*SIGNALS, *(DISKS if disks else ())])
    mode = chance.choice(list(MODES))
    moment = chance.choice(MOMENTS)
    rank = chance.randrange(int(MODES[mode][1]))
    longest = {"start": 2.0, "joining": 2.0, "end": 0.5}.get(moment, 0.05)
    setting = chance.choice(["checkpoints", "default_checkpoints"])
    count, delay = chance.randint(1, 20), chance.random() * longest
    return Disturbance(seed, kind, mode, moment, rank, count, delay, setting)


class Disk:
    """A folder on a small file system of its own, which can be filled and made read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"
        folder.mkdir(parents=True)
        mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder))

    def fill(self) -> None:
        """Leave no byte."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def close(self) -> None:
        """Nothing can be written any more, once no file is open for writing."""
        until(lambda: mounted("-o", "remount,ro", str(self.folder)), BUSY_S)

    def heal(self) -> None:
        """As it was in the beginning."""
        mount("-o", "remount,rw", str(self.folder))
        self._filler.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount."""
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


def mount(*words: str) -> None:
    """Mount. Errors: CalledProcessError."""
    subprocess.run(["mount", *words], check=True, capture_output=True)


def mounted(*words: str) -> bool:
    """Whether a mount can be made."""
    try:
        mount(*words)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def can_mount(folder: Path) -> bool:
    """Whether this user may."""
    try:
        disk = Disk(folder)
    except (OSError, subprocess.CalledProcessError):
        return False
    disk.remove()
    return True


class Job:
    """A running job in a session of its own; what it prints is read as it comes."""

    def __init__(self, where: Path, one: Disturbance) -> None:
        self.mark = f"{MARK}={where}"
        self.said, self.news = "", threading.Event()
        self._pids: dict[int, int] = {}  # rank -> process, as the chief has told
        env = {**environ(), MARK: str(where)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        words = ["env", "--default-signal", *command(where, one)]  # nohup ignores some
        self.process = subprocess.Popen(words, cwd=where, env=env, start_new_session=True, **pipes)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said += line
            if line.startswith("RANKS"):
                self._pids = dict(enumerate(map(int, line.split()[1:])))
            self.news.set()

    def lines(self, word: str) -> int:
        """How many begin with it."""
        return len(re.findall(rf"^{word}\b", self.said, re.MULTILINE))

    def end(self, seconds: float) -> int | None:
        """Its exit code; None if it has not ended in so many seconds."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(seconds)
        return code

    def processes(self) -> list[int]:
        """All processes of the job that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"\0{self.mark}\0".encode() in b"\0" + (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def mpirun(self) -> int:
        """mpirun's process; 0 while there is none."""
        return next((pid for pid in self.processes() if is_child(pid, self.process.pid)), 0)

    def ranks(self) -> dict[int, int]:
        """rank -> process, of those that run."""
        if self._pids:
            return self._pids
        found, parent = {}, self.mpirun()
        for pid in self.processes() if parent else ():
            if is_child(pid, parent):
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                    told = re.search(r"\0(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)\0", text)
                    found |= {int(told[1]): pid} if told else {}
        return found

    def kill(self) -> None:
        """End what is left of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(BUSY_S)
        self.process.stdout.close()


def is_child(pid: int, parent: int) -> bool:
    """Whether the parent of a process is that one."""
    try:
        return f"\nPPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def command(where: Path, one: Disturbance) -> list[str]:
    """The command line of the job, which is also that with which it goes on."""
    settings = {one.setting: "saved/here", "stall_s": STALL_S, "stall_abort_s": STALL_ABORT_S}
    words = [sys.executable, "-m", "hpcflow", "run", *MODES[one.mode], "--run-dir", "run/here"]
    words += [f"--set={name}={value}" for name, value in settings.items()]
    return [*words, str(JOB), str(where), str(EPOCHS), str(EVERY), "auto", str(PAUSE_S)]


def until(true: Callable[[], object], seconds: float) -> bool:
    """Wait for it so long; whether it is true."""
    late = time.monotonic() + seconds
    while not true():
        if time.monotonic() > late:
            return False
        time.sleep(0.02)
    return True


def await_moment(job: Job, one: Disturbance, saves: Path) -> None:
    """Return when the moment has come, or the job has ended."""
    late = time.monotonic() + COMES_S
    while job.process.poll() is None and time.monotonic() < late and not has_come(job, one, saves):
        job.news.wait(0.002 if one.moment == "saving" else 0.05)
        job.news.clear()
    time.sleep(one.delay)


def has_come(job: Job, one: Disturbance, saves: Path) -> bool:
    """Whether it is the moment."""
    if one.moment == "joining":
        return len(job.ranks()) == one.ranks
    if one.moment == "end":
        return job.lines("TRAINED") > 0
    if one.moment == "saving" and not any(saves.glob("step-*.tmp")):
        return False
    return one.moment == "start" or job.lines("STEP") >= one.count


def disturb(job: Job, one: Disturbance, disks: dict[str, Disk]) -> None:
    """Do it."""
    if one.kind in DISKS:
        names, what = DISKS[one.kind]
        for name in names:
            getattr(disks[name], what)()
        return
    number = getattr(signal, f"SIG{SIGNALS[one.kind]}")
    for pid in victims(job, one):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if one.kind.startswith("Ctrl-C"):  # a terminal signals the group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, number)
            if one.kind.endswith("twice"):
                time.sleep(0.2)
                os.killpg(job.process.pid, number)


def victims(job: Job, one: Disturbance) -> list[int]:
    """The processes that get a signal; a rank that is not there yet is waited for."""
    if one.kind.startswith("Ctrl-C"):
        return []
    if one.kind.endswith("launcher"):
        return [job.process.pid]
    if one.kind == "kill mpirun":
        until(lambda: job.process.poll() is not None or job.mpirun(), BUSY_S)
        return [pid for pid in [job.mpirun()] if pid]
    until(lambda: job.process.poll() is not None or one.rank in job.ranks(), BUSY_S)
    ranks = job.ranks()
    return (
        list(ranks.values()) if "all" in one.kind else [ranks[r] for r in [one.rank] if r in ranks]
    )
