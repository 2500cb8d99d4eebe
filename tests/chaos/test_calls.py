"""SIGKILL at every call of a save that changes the disk, in both forms and modes, by strace.

Not only Python's calls: those of HDF5 too, and in whatever thread. One is killed always,
`make test-chaos` kills at all of them.
"""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import sys

import pytest

from hpcflow.launch import launcher_detection
from tests.chaos.jobs import END_S, JOB, environ, good, same, weights

CALLS = "write,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,mkdir,"
CALLS += "mkdirat,unlink,unlinkat,rmdir,link,linkat"
SHARE = 0.9  # of the calls must be met: those of other threads may come in another order
EVERY = 4
PLACES = {  # form, ranks, settings, and the rank that is killed
    "alone": ("sharded", 1, {}, 0),
    "alone, one file": ("parallel", 1, {}, 0),
    "sums, the chief": ("auto", 2, {}, 0),
    "sums, the other": ("auto", 2, {}, 1),
    "a server": ("auto", 2, {"HPCFLOW_PS": "1"}, 1),
    "the worker of a server": ("auto", 2, {"HPCFLOW_PS": "1"}, 0),
}
pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


class Saves:
    """A job that has saved three times and saves three times more, each in place of the oldest."""

    def __init__(self, folder, form, ranks, settings, victim):
        self.folder, self.form, self.ranks, self.victim = folder, form, ranks, victim
        self.environ = {**environ(), **settings}
        self.before, self.whole = folder / "before", folder / "whole"
        self.run(self.before, epochs=1)
        shutil.copytree(self.before, self.whole)
        self.run(self.whole)

    def program(self, where, epochs):
        return [sys.executable, str(JOB), str(where), str(epochs), str(EVERY), self.form]

    def run(self, where, epochs=2, *strace):
        """Run it in a folder, the victim under strace; its exit code and what it printed."""
        program = self.program(where, epochs)
        if strace and self.ranks == 1:
            program = [*strace, *program]
        elif strace:
            chosen = f'[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = {self.victim} ] || exec "$@"'
            traced = f'{chosen}; exec {" ".join(strace)} "$@"'
            program = ["sh", "-c", traced, "sh", *program]
        env = self.environ
        if self.ranks > 1:
            start = launcher_detection.start_command(self.ranks, program, env)
            program, env = start.argv, start.env
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(program, env=env, cwd=self.folder, timeout=END_S, **pipes)
        assert strace or done.returncode == 0, done.stdout
        return done.returncode, done.stdout

    def calls(self):
        """(name, number) of each call of the victim that changes the folder of the checkpoints.

        As strace counts them: of each name, thread by thread. Where each save has a thread of its
        own, a number is first met in the first of them.
        """
        where, log = self.folder / "looked", self.folder / "calls"
        shutil.copytree(self.before, where)
        code, text = self.run(where, 2, "strace", "-f", "-y", "-e", CALLS, "-o", str(log))
        assert code == 0, text
        counts, found = collections.Counter(), {}
        for line in log.read_text(errors="replace").splitlines():
            call = re.match(r"(\d+) +(\w+)\(", line)
            if call is not None:
                counts[call.groups()] += 1
                if f"{where}/" in line and "weights.npz" not in line:
                    found[call[2], counts[call.groups()]] = None
        return list(found)

    def killed_at(self, call, number):
        """Kill the victim when it makes this call, let the job go on; whether it met the call."""
        where = self.folder / f"{call}-{number}"
        shutil.copytree(self.before, where)
        kill = f"inject={call}:signal=KILL:when={number}"
        code, text = self.run(where, 2, "strace", "-f", "-qq", "-e", f"trace={call}", "-e", kill)
        assert code or "ENDED" in text, text
        steps = [one.step for one in good(where)]  # what has a name is whole
        assert steps and steps[0] >= 12, steps
        self.run(where)
        same(weights(where), weights(self.whole))
        assert not list(where.glob("*.tmp")) and not list(where.glob("*.old"))
        shutil.rmtree(where)
        return code != 0


@pytest.mark.slow
def test_killed_when_the_checkpoint_is_named_the_job_goes_on(tmp_path):
    saves = Saves(tmp_path, *PLACES["alone"])
    number = min(n for call, n in saves.calls() if call == "rename")
    assert saves.killed_at("rename", number)


@pytest.mark.chaos
@pytest.mark.limit(5400)
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_every_call_of_a_save_the_job_goes_on(tmp_path, place):
    saves = Saves(tmp_path, *PLACES[place])
    calls = saves.calls()
    assert {"pwrite64", "fsync"} <= {call for call, _ in calls}
    met = [saves.killed_at(*call) for call in calls]
    assert sum(met) >= SHARE * len(calls)
