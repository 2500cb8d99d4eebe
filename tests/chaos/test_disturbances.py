"""Jobs that are disturbed at random: killed, stopped, signalled, with full and read-only disks.

Each ends within its limit with a documented exit code, the cause is named, no process is left, and
the same command goes on from a checkpoint at least as new as the last that the log has told of. A
few run always; `make test-disturbances` draws 100 and keeps what came of them.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import os
import re
import shutil
import signal
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

from hpcflow.errors import ABORTED
from hpcflow.launch import launcher_detection
from tests.chaos.disturbing import (
    DISKS,
    EPOCHS,
    MODES,
    SAME_BITS,
    SIGNALS,
    STALL_ABORT_S,
    Disk,
    Disturbance,
    Job,
    await_moment,
    can_mount,
    command,
    disturb,
    draw,
    until,
)
from tests.chaos.jobs import SAMPLES, finish, good, loss_of, same, weights
from tests.chaos.jobs import command as plain
from tools.about import about

pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
FEW, MANY = (1, 1055), 100
FIRST_SEED = 1000
END_S = 60.0 + 3 * STALL_ABORT_S  # for a job to end after it was disturbed
GO_S = 10.0  # for processes to go after their launcher has
STOPPED = 75
KEYS = {"rank", "task", "host", "cause", "step", "checkpoint"}


class Trials:
    """Jobs that are disturbed; those that nobody disturbs are run once, to compare with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks = can_mount(folder / "probe")
        self._wholes: dict[str, dict[str, np.ndarray]] = {}
        self._lock = threading.Lock()

    def whole(self, mode: str) -> dict[str, np.ndarray]:
        """The weights of a job that was not disturbed."""
        with self._lock:
            if mode not in self._wholes:
                where = self.folder / f"whole {mode}"
                finish(plain(where, *MODES[mode], epochs=EPOCHS, every=10**6))
                self._wholes[mode] = weights(where)
            return self._wholes[mode]

    def run(self, seed: int) -> tuple[Disturbance, str, str]:
        """One trial: what was done, how the job ended, and what is wrong, "" if nothing is."""
        one = draw(seed, self.disks)
        trial = Trial(self.folder / str(seed), one)
        try:
            trial.suffer()
            trial.goes_on(self.whole(one.mode))
        except Exception:
            wrong = f"{one}: {traceback.format_exc()}\n{trial.said}"
            return one, trial.outcome, wrong
        finally:
            trial.clear()
        shutil.rmtree(trial.where)
        return one, trial.outcome, ""


class Trial:
    """A job that is disturbed once, and goes on."""

    def __init__(self, where: Path, one: Disturbance) -> None:
        self.where, self.one = where, one
        self.run_dir, self.saves = where / "run" / "here", where / "saved" / "here"
        names = DISKS[one.kind][0] if one.kind in DISKS else ()
        self.disks = {name: Disk(where / name) for name in names}
        where.mkdir(exist_ok=True)
        self.said, self.outcome, self.acknowledged = "", "is running", 0
        self.job: Job | None = None

    def suffer(self) -> None:
        """Start the job, disturb it, and look at how it has ended."""
        one = self.one
        if one.kind in DISKS and one.moment == "start":
            for disk in self.disks.values():
                getattr(disk, DISKS[one.kind][1])()
        self.job = job = Job(self.where, one)
        if one.kind not in DISKS or one.moment != "start":
            await_moment(job, one, self.saves)
            self.acknowledged = acknowledged(job.said)
            disturb(job, one, self.disks)
        code = job.end(END_S)
        self.said = job.said
        assert code is not None, f"it has not ended {END_S} s later"
        assert until(lambda: not job.processes(), GO_S), f"left: {job.processes()}"
        self.said = job.said
        self.outcome = outcome(code)
        for disk in self.disks.values():
            disk.heal()
        self.judge(code)
        self.acknowledged = acknowledged(self.said)

    def judge(self, code: int) -> None:
        """Whether the job might end like this, and says why."""
        kind, trained = self.one.kind, "TRAINED" in self.said
        if code == 0:
            assert "ENDED" in self.said and (self.one.moment == "end" or kind in DISKS)
        elif code == STOPPED:
            assert "SIG" in kind or "Ctrl-C" in kind, "nobody asked it to stop"
            assert re.search(r"stopped before step \d+; saved", self.said)
        elif code < 0:  # of the launcher, before it acts on signals
            assert kind.endswith("launcher") or "Ctrl-C" in kind
            assert kind == "kill the launcher" or "RANKS" not in self.said
        elif kind == "kill mpirun":
            assert code == 128 + signal.SIGKILL and "mpirun was killed by SIGKILL" in self.said
        elif "launcher" in kind or "Ctrl-C" in kind:  # too early or too late to save
            assert code > 128 and (trained or kind == "Ctrl-C twice" or "STEP" not in self.said)
            assert trained or re.search(r"hpcflow: .*(at once|had begun to train)", self.said)
        elif trained and code > 128:  # its rank has left the job
            assert re.search(r"noticed that process rank \d", self.said)
        else:
            assert code in (1, 2, ABORTED) or code > 128, f"exit code {code}"
            self.named(code)

    def named(self, code: int) -> None:
        """The cause is told, in failure.json where the run directory can be written."""
        one, file = self.one, self.run_dir / "failure.json"
        if one.kind in DISKS:
            assert re.search(r"Read-only file system|No space left on device", self.said)
            if "run" in self.disks and not file.exists():
                return
        facts = json.loads(file.read_text())
        assert facts.keys() >= KEYS, facts
        assert facts["host"] == os.uname().nodename and facts["cause"]
        if one.kind == "stop a rank":
            stopped = rf"\b{one.rank} on .* is stopped \(T"
            assert re.search(stopped, facts["message"]), facts
        elif one.kind.endswith(" a rank"):
            unseen = one.moment == "start" and facts["rank"] is None  # nobody saw it in time
            assert unseen or facts["rank"] == one.rank, facts
        if self.acknowledged:
            assert facts["task"].startswith("/job:"), facts
            assert facts["step"] > 0 or "does not leave" in facts["message"], facts
            step = int(re.search(r"step-(\d+)", facts["checkpoint"])[1])
            assert step >= self.acknowledged, facts

    def goes_on(self, whole: dict[str, np.ndarray]) -> None:
        """The same command goes on from what was acknowledged, or something newer, to the end."""
        newest = [found.facts["step"] for found in good(self.saves)]
        assert max(newest, default=0) >= self.acknowledged, newest
        text = finish(command(self.where, self.one), cwd=self.where)
        self.said += f"\n--- and once more\n{text}"
        resumed = re.findall(r"resumed step=(\d+)", text)
        assert list(map(int, resumed)) == newest[:1]
        last, mine = good(self.saves)[0].facts, weights(self.where)
        if self.one.mode in SAME_BITS:
            same(mine, whole)
        else:
            assert last["samples"] == EPOCHS * SAMPLES
            assert loss_of(mine) < 1.6 * loss_of(whole)  # untrained it is 2.7 times as large

    def clear(self) -> None:
        """No process and no mount is left."""
        if self.job is not None:
            self.job.kill()
        for disk in self.disks.values():
            disk.remove()


def acknowledged(said: str) -> int:
    """The last step of which the log says that it is saved."""
    return max(map(int, re.findall(r"saved step-(\d+)", said)), default=0)


def outcome(code: int) -> str:
    """An exit code for people."""
    known = {0: "trained to the end", STOPPED: "saved and stopped", ABORTED: "ended by a rank"}
    known |= {-9: "launcher killed", 2: "did not start", 1: "script's error"}
    return f"{known.get(code, 'ended by a signal')} ({code})"


@pytest.mark.slow
@pytest.mark.limit(900)
def test_a_few_disturbances_end_well(tmp_path):
    trials = Trials(tmp_path)
    assert [wrong for seed in FEW if (wrong := trials.run(seed)[2])] == []


def test_the_draws_meet_every_kind_in_every_mode():
    drawn = [draw(seed, disks=True) for seed in range(2000)]
    assert {one.kind for one in drawn} == {*SIGNALS, *DISKS}
    assert len({(one.kind, one.mode) for one in drawn}) == (len(SIGNALS) + len(DISKS)) * len(MODES)


@pytest.mark.chaos
@pytest.mark.limit(14400)
def test_a_hundred_disturbances_end_well(tmp_path):
    """DISTURBANCES and DISTURBANCES_SEED say how many and from which seed on, DISTURBANCES_JSON
    where to keep what came of them."""
    count = int(os.environ.get("DISTURBANCES", MANY))
    first = int(os.environ.get("DISTURBANCES_SEED", FIRST_SEED))
    trials, found = Trials(tmp_path), []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for one, how, wrong in pool.map(trials.run, range(first, first + count)):
            found.append((one, how, wrong))
            print(one, how, "WRONG" if wrong else "", flush=True)
    wrong = [text for _, _, text in found if text]
    record = {**about(), "seed": first, "count": count, "wrong": len(wrong)}
    for name in ("kind", "mode", "moment"):
        counts = collections.Counter(getattr(one, name) for one, _, _ in found)
        record[name] = dict(sorted(counts.items()))
    record["outcome"] = dict(sorted(collections.Counter(how for _, how, _ in found).items()))
    if "DISTURBANCES_JSON" in os.environ:
        text = json.dumps(record, indent=1)
        Path(os.environ["DISTURBANCES_JSON"]).write_text(text + "\n")
    assert not wrong, "\n\n".join(wrong)
