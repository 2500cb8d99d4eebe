"""Honest failure: real jobs, in subprocesses with a time limit, that must end and say why."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError
from hpcflow.monitoring.wait_ledger import PREFIX
from hpcflow.runtime.failure import abort_on_error
from tests.processes import without_summary
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
HEAD = """
import sys, time
import numpy as np
import hpcflow as hf
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.runtime.job.job_membership import current_context
context = current_context()
ONE = np.ones(3, np.float32)
v = hf.Variable(np.zeros(3, np.float32), name="v")
x = hf.placeholder(hf.float32, [3], name="x")
total = replica_sum(x)
train = v.assign_add(total)
session = hf.Session()
session.run(hf.global_variables_initializer())
session.run(train, {x: ONE})
"""


STALLS = """
from hpcflow.monitoring.stall_watchdog import StallTimes
context.watching.watchdog._times = StallTimes(2, 10)  # from here on: a slow start is no stall
"""


def job(tmp_path, body, *options, env=None, limit=220):
    """Run a script on ranks, which must end within `limit` seconds; (exit code, all output)."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", *options, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=limit,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_an_exception_on_one_rank_ends_the_job(tmp_path):
    code, output = job(
        tmp_path,
        """
        if context.rank == 2:
            raise ValueError("by test")
        while True:
            session.run(train, {x: ONE})
        """,
        *("-n", "3", "--run-dir", "run"),
    )
    assert code != 0
    told = failure(tmp_path / "run")
    assert (told["kind"], told["rank"], told["task"]) == ("error", 2, "/job:worker/task:2")
    assert (told["error"], told["message"]) == ("ValueError", "by test")
    assert (
        told["line"] == line_of(tmp_path, "raise ValueError")
        and told["host"] == os.uname().nodename
    )
    assert "script.py" in told["traceback"] and told["checkpoint"] is None
    assert "ValueError: by test" in output
    assert "[rank 2" in output
    assert output.index("ValueError: by test") < output.index("ends the job of 3 ranks")


def test_a_rank_that_fails_waits_for_less_than_five_seconds():
    """For others, the launcher, and the end of the job."""
    waits = [
        abort_on_error.PRINT_TIMEOUT_S,
        abort_on_error.LET_OTHERS_SIGN_S,
        abort_on_error.LET_LAUNCHER_READ_S,
    ]
    assert sum([*waits, abort_on_error.LET_ENGINE_END_S]) < 5


def failure(run_dir):
    """What `failure.json` says; there is no other one."""
    assert [path.name for path in run_dir.glob("*failure*")] == ["failure.json"]
    return json.loads((run_dir / "failure.json").read_text())


def line_of(folder, words):
    """Where the script has these words, as errors name it."""
    lines = (folder / "script.py").read_text().splitlines()
    return f"{folder}/script.py:{next(i for i, line in enumerate(lines, 1) if words in line)}"


@pytest.mark.slow
def test_of_ranks_that_fail_together_one_has_the_word(tmp_path):
    """Each with an error of its own, at about the same time: one traceback, one file."""
    code, output = job(
        tmp_path,
        """
        context.barrier()
        raise ValueError(f"of rank {context.rank}")
        """,
        *("-n", "4", "--run-dir", "run"),
    )
    assert code != 0
    assert output.count("Traceback") == 1, output
    assert output.count("ends the job of 4 ranks") == 1
    told = failure(tmp_path / "run")
    assert told["message"] == f"of rank {told['rank']}"
    assert re.search(rf"\[rank {told['rank']} on [^\n]*Traceback", output)
    others = re.findall(r"\[rank (\d) on \S+\] failed after another rank: ValueError: (.*)", output)
    assert all(text == f"of rank {rank}" and int(rank) != told["rank"] for rank, text in others)


def test_a_failure_tells_the_step_of_training_and_the_newest_checkpoint():
    def body(context):
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        session = hf.train.TrainingSession(context=context)
        for _ in range(3):
            session.step(v, {})
        context.set_restart_advice("go on from there", "saved/step-3")
        error = NumericError("no number", op="v", line="train.py:3", hint="look")
        told = abort_on_error.failure_facts(context, error, "the traceback")
        session.wait()
        return told

    for rank, told in enumerate(run_ranks(2, body)):
        assert (told["rank"], told["step"], told["checkpoint"]) == (rank, 3, "saved/step-3")
        assert (told["op"], told["made_at"], told["hint"]) == ("v", "train.py:3", "look")
        assert told["task"] == f"/job:worker/task:{rank}" and told["kind"] == "error"


@pytest.mark.slow
def test_an_error_of_all_ranks_is_printed_once(tmp_path):
    code, output = job(
        tmp_path,
        """
        context.barrier()
        raise ValueError("by test")
        """,
        "-n",
        "4",
        "--run-dir",
        "run",
    )
    assert code != 0
    assert without_summary(output).count("ValueError: by test") == 1, output
    assert re.search(
        r"hpcflow: the job failed on ranks 0-3: ValueError: by test \(.*:18\)$", output
    )
    assert output.count("ends the job of 4 ranks") == 1
    assert re.search(r"\] the same on ranks? [0-3]", output)
    first = re.search(r"\[rank (\d) .*ValueError", output).group(1)
    assert failure(tmp_path / "run")["rank"] == int(first)
    assert "ValueError: by test" in (tmp_path / "run" / f"rank-{first}.log").read_text()


def test_a_note_is_signed_by_those_who_fail_in_the_same_way(tmp_path):
    text = "TypeError: x\n  op    add\n  rank  {}\n"
    first, *others = (abort_on_error.FailureNote(tmp_path, text.format(r), r) for r in range(4))
    assert first.is_first()
    first.mark_printed()
    assert not any(other.is_first() for other in others[::-1])
    assert first.signed_ranks() == [1, 2, 3]
    assert abort_on_error.FailureNote(tmp_path, "TypeError: y\n", 1).is_first()
    assert abort_on_error.FailureNote(tmp_path / "none", text, 1).is_first()


def test_a_rank_prints_what_the_first_one_died_before_printing(tmp_path, monkeypatch):
    monkeypatch.setattr(abort_on_error, "PRINT_TIMEOUT_S", 0.05)
    assert abort_on_error.FailureNote(tmp_path, "TypeError: x\n", 0).is_first()
    assert abort_on_error.FailureNote(tmp_path, "TypeError: x\n", 1).is_first()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["worker", "server"])
def test_an_error_in_a_step_names_op_line_and_rank(tmp_path, where):
    code, output = job(
        tmp_path,
        f"""
        with hf.device("/job:ps" if {where!r} == "server" else None):
            bad = hf.check_numerics(hf.log(v.value() - 2.0), "the loss")
        if context.is_chief:
            session.run(bad)
        while True:
            time.sleep(1)
        """,
        *("-n", "3", "--ps", "1", "--run-dir", "run"),
    )
    assert code != 0
    assert "NumericError" in output
    told = failure(tmp_path / "run")
    assert (told["rank"], told["error"]) == (2 if where == "server" else 0, "NumericError")
    assert told["op"] and told["made_at"] == line_of(tmp_path, "check_numerics"), (
        "where the op was made"
    )
    assert told["line"] == line_of(tmp_path, "session.run(bad)"), "where it was run"
    assert "the loss" in output
    assert "script.py" in output
    assert f"rank     {2 if where == 'server' else 0}" in output


@pytest.mark.slow
def test_sys_exit_with_an_error_code_ends_the_job(tmp_path):
    code, _ = job(
        tmp_path,
        """
        if context.rank == 1:
            sys.exit(3)
        while True:
            session.run(train, {x: ONE})
        """,
        "-n",
        "2",
    )
    assert code != 0


@pytest.mark.slow
def test_a_stalled_wait_is_reported_with_who_waits_for_whom(tmp_path):
    code, output = job(
        tmp_path,
        STALLS
        + """
if context.rank == 1:
    time.sleep(200)
session.run(train, {x: ONE})
""",
        *("-n", "2", "--run-dir", "run"),
    )
    told = failure(tmp_path / "run")
    assert (told["kind"], told["rank"], told["missing"]) == ("stall", 0, [1])
    assert told["step"] == 2 and told["op"] == "replicas/bucket_0"
    assert (tmp_path / told["report"]).exists()
    assert code != 0
    assert "StallError" in output
    assert re.search(r"\[1/2\] others wait for this rank, which is at \S*script.py:\d+", output)
    assert output.count("[rank ") == 1, "who waits says once that the job ends"
    report = next((tmp_path / "run").glob("stall-*.txt")).read_text()
    assert "AllReduce" in report or "replicas/bucket_0" in report
    assert "script.py" in report  # the Python line of the rank that waits


@pytest.mark.slow
def test_a_job_removes_what_one_that_died_left_in_the_run_directory(tmp_path):
    left = tmp_path / "run" / f".{PREFIX}dead"
    left.mkdir(mode=0o700, parents=True)
    os.utime(left, (0, 0))
    code, output = job(tmp_path, "", "-n", "2", "--run-dir", "run")
    assert code == 0, output
    assert not left.exists()


def test_a_mismatched_launcher_is_answered_with_the_right_command(tmp_path):
    """Four processes that think they are ranks of 4, each with an MPI world of one."""
    script = tmp_path / "script.py"
    script.write_text(HEAD)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_"))}
    env.update(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="4", SLURM_NTASKS="4", SLURM_STEP_ID="0")
    env.update(SLURM_JOB_ID="1", SLURM_LOCALID="1", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=220
    )
    assert done.returncode != 0
    assert "LaunchError" in done.stderr
    assert re.search(r"srun --mpi=pm\w+ -n 4", done.stderr)


def test_no_launcher_trains_alone_and_never_loads_mpi(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + "print('mpi4py' in sys.modules, session.run(v))\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_"))}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.stdout.split("\n")[0] == "False [1. 1. 1.]", done.stderr


@pytest.mark.slow
def test_an_uneven_number_of_steps_ends_cleanly_in_ps_mode(tmp_path):
    code, output = job(
        tmp_path,
        """
        for _ in range(5 * (context.replica + 1)):
            session.run(v.assign_add(ONE))
        """,
        "-n",
        "4",
        "--ps",
        "2",
    )
    assert code == 0, output


@pytest.mark.slow
def test_plain_launchers_work_too(tmp_path):
    """`mpirun python script.py` with HPCFLOW_PS=1: the server serves at its first hpcflow call."""
    from hpcflow.launch import launcher_detection

    script = tmp_path / "script.py"
    script.write_text(HEAD + "print('trained', context.rank, session.run(v)[0] >= 1, flush=True)\n")
    start = launcher_detection.start_command(3, [sys.executable, str(script)])
    env = {**start.env, "HPCFLOW_PS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(start.argv, env=env, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"trained (\d) True", done.stdout)) == ["0", "1"]


@pytest.mark.slow
def test_an_idle_server_costs_little(tmp_path):
    """At most 5 % of a core over 1.5 s of waiting, in one of 20 tries; noise only adds."""
    code, output = job(
        tmp_path,
        """
        import os
        server = next(r["pid"] for r in context.reports() if r["task"] == "/job:ps/task:0")
        def used():
            fields = open(f"/proc/{server}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for _ in range(20):
            session.run(train, {x: ONE})
            before = used()
            time.sleep(1.5)
            took = used() - before
            if took <= 0.05 * 1.5 + 0.01:  # one tick more
                print("COSTS LITTLE", flush=True)
                break
        """,
        "-n",
        "2",
        "--ps",
        "1",
    )
    assert code == 0 and "COSTS LITTLE" in output, output


DIFFERENT_ENDS = {
    "exit": "if context.is_chief: sys.exit(0)\n",
    "barrier": "if context.is_chief: context.barrier()\n",
    "reports": "if context.is_chief: context.reports()\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("ps", ["0", "1"])
@pytest.mark.parametrize("end", DIFFERENT_ENDS)
def test_ranks_that_end_in_different_places_are_told_so(tmp_path, end, ps):
    """One rank makes a call that all must make, or leaves one out: nobody hangs."""
    calls = DIFFERENT_ENDS[end] + ("context.barrier()" if end == "exit" else "")
    code, output = job(tmp_path, calls, "-n", "3", "--ps", ps)
    assert code != 0
    assert "LonelyCollectiveError" in output
    assert "the end of the program" in output
