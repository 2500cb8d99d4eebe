"""Ranks that die without a word, as by kill -9: the job ends, says who it was, and can go on."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hpcflow.errors import DeathError
from hpcflow.monitoring.failure_detector import FailureDetector, death_facts, set_next_advice
from hpcflow.monitoring.launcher_watchdog import LauncherWatchdog
from hpcflow.monitoring.stall_watchdog import StallTimes
from hpcflow.monitoring.startup_processes import StartupProcesses
from hpcflow.monitoring.wait_ledger import PREFIX, WaitLedger, read_all
from hpcflow.report import run_outcome
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.runtime.failure import abort_on_error
from tests.comm.threads import until
from tests.processes import without_summary
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import os, signal, sys
    import hpcflow as hf
    from tests.runtime.nets import data, net

    rank = int(sys.argv[1])
    features, labels = data(48)
    x, y, loss, train, _ = net()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=8, seed=1)
    with hf.train.TrainingSession(checkpoints="saved", save_every=4, resume=True) as session:
        context = session.context
        reports = context.reports()
        for batch in dataset.epochs(12):
            session.step([train, loss], batch)
            if session.steps == 12 and session.is_chief and not os.path.exists("killed"):
                pid = reports[rank]["pid"]
                open("killed", "w").close()
                print("KILLED", pid, flush=True)
                os.kill(pid, signal.SIGKILL)
        session.wait()
        if session.is_chief:
            print("FINISHED", flush=True)
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the job; the same command each time."""
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    head, words = options[:-1], options[-1:]
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", *head, "script.py", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "task", "was"),
    [
        (2, "/job:ps/task:0", "a server: the variables that it held are lost"),
        (1, "/job:worker/task:1", "a worker"),
    ],
)
def test_a_rank_that_is_killed_is_named_and_the_same_command_goes_on(tmp_path, rank, task, was):
    """Whoever it was, all others end, and the checkpoint is taken up."""
    job = ("-n", "3", "--ps", "1", "--run-dir", "run", str(rank))
    code, output = run(tmp_path, *job)
    assert code != 0, output
    pid = re.search(r"KILLED (\d+)", output).group(1)
    assert re.search(rf"rank {rank} \({task}\) on \S+ has died: process {pid} is", output), output
    assert without_summary(output).count("has died") == 1, "once, and of the one alone"
    assert re.search(rf"^  was   {was}", output, re.MULTILINE)
    assert "FINISHED" not in output and "Traceback" not in output
    printed = without_summary(output)
    (where,) = re.findall(r"next  the same command resumes from (\S+)", printed)
    assert f"hpcflow: the job failed on rank {rank}: " in output[len(printed) :], output
    assert (tmp_path / where).exists()
    told = json.loads((tmp_path / "run/failure.json").read_text())
    assert (told["kind"], told["rank"], told["task"]) == ("death", rank, task)
    assert told["checkpoint"] == where and "has died" in told["message"]
    code, output = run(tmp_path, *job)
    assert code == 0, output
    step = int(re.search(r"resumed step=(\d+)", output).group(1))
    named = int(where.rpartition("step-")[2])
    assert 0 < named <= step, "that one, or one that was being written behind training"
    assert "FINISHED" in output


def test_where_the_launcher_does_nothing_those_who_wait_end_the_job(tmp_path, monkeypatch, capsys):
    """Nobody else would: srun without --kill-on-bad-exit."""
    monkeypatch.setattr(abort_on_error, "LET_LAUNCHER_END_S", 0.05)
    monkeypatch.setattr(abort_on_error, "LET_ENGINE_END_S", 0.0)
    ends = []
    monkeypatch.setattr(abort_on_error.os, "_exit", ends.append)
    dead = WaitLedger(tmp_path, 7, "nid1", "/job:worker/task:7")

    def body(context):
        if context.rank:
            until(lambda: ends)  # it never comes to the meeting
            return
        context.executor.ledger = WaitLedger(tmp_path, 0, "nid1")
        abort_on_error.on_death(context, read_all(tmp_path)[1:])
        context.barrier()

    with pytest.raises(DeathError, match=r"rank 7 \(/job:worker/task:7\) on nid1 has died"):
        run_ranks(2, body)
    until(lambda: ends)
    assert ends == [abort_on_error.ABORTED], "and a rank that waits for nothing ends by itself"
    assert capsys.readouterr().err.count("has died") == 1
    dead.close()


def a_rank(folder: Path, rank: int, last: str) -> subprocess.Popen[str]:
    """A process with a ledger, which does `last` when its input ends."""
    program = f"""
        import os, sys
        from hpcflow.monitoring.wait_ledger import WaitLedger
        ledger = WaitLedger({str(folder)!r}, {rank}, "nid1", "/job:ps/task:{rank}")
        print("there", flush=True)
        sys.stdin.read()
        {last}
        os._exit(3)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n"
    return process


@pytest.mark.parametrize("last", ["pass", "ledger.ends()", "ledger.close()"])
def test_only_a_death_without_a_word_is_told(tmp_path, last):
    """Not that of one that has printed its error, and not the end of one that has left."""
    other = a_rank(tmp_path, 0, last)
    told = []
    watch = FailureDetector(tmp_path, "nid1", 1, told.append)
    until(lambda: watch._watched.live_count == 1)
    other.communicate()
    until(lambda: watch._watched.live_count == 0)
    watch.stop()
    assert [entry.task for dead in told for entry in dead] == ["/job:ps/task:0"] * (last == "pass")


def test_a_rank_of_another_node_is_not_looked_for(tmp_path):
    """Its process number may be anything's here."""
    ledger = WaitLedger(tmp_path, 0, "nid2")
    watch = FailureDetector(tmp_path, "nid1", 1, lambda dead: None)
    until(lambda: watch._watched._seen_records)
    assert watch._watched.live_count == 0
    watch.stop()
    ledger.close()


@pytest.mark.parametrize("seen", ["one by one", "together"])
def test_the_launcher_watchdog_reports_the_first_rank_that_dies(tmp_path, seen):
    """The launcher kills the others at once, perhaps before the watchdog has seen the first."""
    program = f"""
        import os, subprocess, sys, time
        from hpcflow.monitoring import failure_detector, launcher_watchdog
        from hpcflow.monitoring.stall_watchdog import StallTimes
        launcher_watchdog.LOOK_S = 0.05
        watched = {str(tmp_path / "watched")!r}
        look = failure_detector.WatchedRanks._look
        def looks(self):
            look(self)
            if self.live_count == 3:
                open(watched, "w").close()
            while {seen == "together"} and os.path.exists(watched) and not killed:
                time.sleep(0.01)
        failure_detector.WatchedRanks._look = looks
        killed = []
        witness = launcher_watchdog.LauncherWatchdog({str(tmp_path)!r}, StallTimes(60, 600))
        rank = '''if True:
            import sys, time
            from hpcflow.monitoring.wait_ledger import WaitLedger
            ledger = WaitLedger({str(tmp_path / (PREFIX + "job"))!r}, int(sys.argv[1]), "n", "t")
            time.sleep(200)'''
        ranks = [subprocess.Popen([sys.executable, "-c", rank, str(r)]) for r in range(3)]
        while not os.path.exists(watched):
            time.sleep(0.01)
        ranks[1].kill()
        ranks[1].wait()
        while {seen == "one by one"} and not witness._dead:
            time.sleep(0.01)
        for process in ranks:
            process.kill()
            process.wait()
        killed.append(True)
        witness.report_failure({str(tmp_path / "run")!r}, 137)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert "hpcflow: rank 1 (t) on n has died" in done.stderr
    assert done.stderr.count("has died") == 1
    ended = "ended: killed by the launcher, or dead as well"
    assert done.stderr.count(ended) == (2 if seen == "together" else 0), done.stderr
    assert "nothing was saved" in done.stderr
    told = json.loads((tmp_path / "run/failure.json").read_text())
    assert (told["kind"], told["rank"], told["checkpoint"]) == ("death", 1, None)
    assert told["ranks"] == [1]
    assert len(read_all(tmp_path / (PREFIX + "job"))) == 3


@pytest.mark.parametrize(("exited", "named"), [(True, None), (False, 1)])
def test_a_rank_that_the_launcher_ends_after_another_has_left_is_not_blamed(
    tmp_path, exited, named
):
    """Rank 0 ends in order with the script's exit code; the launcher then kills rank 1."""
    program = f"""
        import subprocess, sys, time
        from hpcflow.monitoring import failure_detector, launcher_watchdog
        from hpcflow.monitoring.stall_watchdog import StallTimes
        launcher_watchdog.LOOK_S = 0.05
        look, found = failure_detector.WatchedRanks._look, []
        def looks(self):
            look(self)
            found.append(self.live_count)
        failure_detector.WatchedRanks._look = looks
        witness = launcher_watchdog.LauncherWatchdog({str(tmp_path)!r}, StallTimes(60, 600))
        seen = []
        look_at = witness._look_at
        witness._look_at = lambda watched, gone: (seen.extend(gone), look_at(watched, gone))
        rank = '''if True:
            import sys
            from hpcflow.monitoring.wait_ledger import WaitLedger
            ledger = WaitLedger({str(tmp_path / (PREFIX + "job"))!r}, int(sys.argv[1]), "n", "t")
            print(flush=True)
            sys.stdin.read()
            ledger.close()'''
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ranks = [subprocess.Popen([sys.executable, "-c", rank, str(r)], **pipes) for r in range(2)]
        for process in ranks:
            process.stdout.readline()
        while 2 not in found:
            time.sleep(0.01)
        ranks[0].stdin.close()
        while len(seen) < 1:
            time.sleep(0.01)
        ranks[1].kill()
        while len(seen) < 2:
            time.sleep(0.01)
        print(witness.report_failure({str(tmp_path / "run")!r}, 7, {exited}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.stdout.split() == [str(named is not None)], done.stderr
    file = tmp_path / "run" / "failure.json"
    assert file.exists() == (named is not None), done.stderr
    if named is not None:
        assert json.loads(file.read_text())["rank"] == named


@pytest.mark.parametrize("exited", [True, False])
def test_nor_is_a_rank_whose_ledger_is_found_after_the_end(tmp_path, exited):
    """Both ended between two scans of starting ranks: rank 0 left in order and has no ledger."""
    witness = LauncherWatchdog(str(tmp_path), StallTimes(60, 600))
    witness._over.set()
    witness._thread.join()
    ledger = WaitLedger(tmp_path / (PREFIX + "job"), 1, "n", "t")
    witness._early = [(0, 2**22 + 1), (1, os.getpid())]
    witness._look_for_ledgers(None)
    assert witness.report_failure(str(tmp_path / "run"), 7, exited) is not exited
    assert (tmp_path / "run" / "failure.json").exists() is not exited
    ledger.close()


@pytest.mark.parametrize("checkpoint", ["saved/step-12", "saved/step-12.h5"])
@pytest.mark.parametrize(("trained", "step"), [(0, 12), (5, 5)])
def test_the_step_of_a_rank_that_died_before_its_heartbeat_is_that_of_the_checkpoint(
    tmp_path, trained, step, checkpoint
):
    ledger = WaitLedger(tmp_path, 1, "nid1", "/job:worker/task:1")
    (entry,) = read_all(tmp_path)
    entry = dataclasses.replace(entry, trained=trained)
    assert death_facts([entry], tmp_path)["step"] == trained
    set_next_advice(tmp_path, "the same command resumes", checkpoint)
    assert death_facts([entry], tmp_path)["step"] == step
    ledger.close()


def test_ledgers_that_their_job_removes_meanwhile_are_none(tmp_path, monkeypatch):
    """All jobs of a user have their folders side by side; one may go while it is listed."""

    def removed(folder, pattern):
        raise FileNotFoundError(folder)

    monkeypatch.setattr(Path, "glob", removed)
    assert read_all(tmp_path) == []


@pytest.mark.parametrize(("expected", "named"), [(1, 0), (2, None)])
def test_a_witness_does_not_blame_the_one_rank_it_found(
    tmp_path, monkeypatch, capfd, expected, named
):
    """Another may have died first, and the launcher then have ended this one."""
    size = {"OMPI_COMM_WORLD_SIZE": expected, "OMPI_COMM_WORLD_LOCAL_SIZE": expected}
    place = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_LOCAL_RANK": 0} | size
    env = {**os.environ, **{key: str(value) for key, value in place.items()}}
    wait, found = StartupProcesses.wait, []

    def waits(self, seconds):
        gone = wait(self, seconds)
        found.extend(self._watched.values())
        return gone

    monkeypatch.setattr(StartupProcesses, "wait", waits)
    witness = LauncherWatchdog(str(tmp_path), StallTimes(60, 600))
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(sleep, env=env) as rank:
        until(lambda: (0, rank.pid) in found)
        rank.kill()
    assert witness.report_failure(str(tmp_path / "run"), 138)
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert facts["rank"] == named and "SIGUSR1" in facts["cause"], capfd.readouterr().err


@pytest.mark.parametrize(("code", "cause"), [(137, "a process was killed by SIGKILL"), (250, None)])
def test_a_witness_tells_of_ranks_that_were_killed_before_it_found_them(
    tmp_path, capfd, code, cause
):
    """All ranks may be killed as soon as they start; other exit codes are the script's own."""
    witness = LauncherWatchdog(str(tmp_path), StallTimes(60, 600))
    assert witness.report_failure(str(tmp_path / "run"), code) == (cause is not None)
    file = tmp_path / "run" / "failure.json"
    assert file.exists() == (cause is not None)
    if cause is not None:
        facts = json.loads(file.read_text())
        assert (facts["rank"], facts["ranks"], facts["cause"]) == (None, [], cause)
        assert f"hpcflow: a rank on {facts['host']} has died before" in capfd.readouterr().err
        none, read = FileFacts.none(), FileFacts(file, faults := [])
        line = f"died: a rank on {facts['host']}: {cause}"
        assert run_outcome.outcome_of(tmp_path / "run", none, read, none) == ("died", line)
        assert not faults


def test_a_rank_that_dies_unseen_may_be_on_another_node(tmp_path):
    """Then nothing is known of it here."""
    assert not LauncherWatchdog(str(tmp_path), StallTimes(60, 600), all_here=False).report_failure(
        "", 137
    )


@pytest.mark.parametrize("ending", [True, False])
def test_the_ledger_of_an_earlier_process_with_the_same_pid_is_not_that_of_the_dead_rank(
    tmp_path, ending
):
    """PIDs are reused; a job that was killed at once leaves its ledgers for some minutes."""
    earlier = WaitLedger(tmp_path / (PREFIX + "earlier"), 5, "n", "/job:ps/task:5")
    if ending:
        earlier.ends()
    time.sleep(0.01)
    witness = LauncherWatchdog(str(tmp_path), StallTimes(60, 600))
    witness._over.set()
    witness._thread.join()
    witness._early = [(0, os.getpid())]
    witness._look_for_ledgers(None)
    assert not witness.have_joined() and not witness._dead
    assert witness.report_failure(str(tmp_path / "run"), 139)  # SIGSEGV
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert facts["rank"] == 0 and "SIGSEGV" in facts["cause"]
    earlier.close()
