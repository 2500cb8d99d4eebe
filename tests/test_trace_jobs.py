"""Traces of real jobs: one file for all ranks, also if they have no common disk, or die."""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpcflow.cli.main import main
from hpcflow.runtime.profile import trace_part
from hpcflow.runtime.profile.trace_part import PartFacts, TracePart
from tests.trace_format import Trace

ROOT = Path(__file__).parent.parent
STEPS = 9
SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import hpcflow as hf
    from hpcflow.runtime.step import distributed_step

    def note(context, plan, *args):
        step = made(context, plan, *args)
        trains = "GradientDescent" in getattr(step.compiled, "label", "")
        if trains:
            print("EDGES", context.rank, len(plan.edges), len(plan.collectives), flush=True)
        return step

    made = distributed_step.make_step
    for module in list(sys.modules.values()):
        if getattr(module, "make_step", None) is made:
            module.make_step = note

    x = hf.placeholder(hf.float32, [None, 6], name="x")
    w = hf.Variable(np.ones((6, 3), np.float32), name="w")
    b = hf.Variable(np.zeros(3, np.float32), name="b")
    loss = hf.reduce_mean(hf.square(hf.matmul(x, w) + b))
    train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for step in range(int(sys.argv[1])):
        session.run([loss, train], {x: np.ones((4, 6), np.float32)})
        if step == 400 and session.context.rank == 1:
            open("dies", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        while step == 450 and session.context.rank == 0 and not os.path.exists("dies"):
            time.sleep(0.01)  # a worker of servers does not wait for the other
"""


def run(
    folder: Path, *words: str, steps: int = STEPS, script: str = SCRIPT, **more: str
) -> tuple[int, str]:
    """The exit code and the output of a job with the trace `out/t`."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    words = ("hpcflow", "run", *words, "--set", "trace=out/t", "script.py", str(steps))
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder for a job, and one for the local disks of its hosts."""
    (tmp_path / "tmp").mkdir()
    return tmp_path


def steps_of(trace: Trace, label: str = "GradientDescent") -> collections.Counter:
    """How many steps of the plan that trains each rank has run, by rank."""
    seen = {
        (e["pid"], e["args"]["step"], e["ts"])
        for e in trace.of("X")
        if label in e["args"].get("plan", "") and e["name"] == "segment 0"
    }
    return collections.Counter(rank for rank, _, _ in seen)


@pytest.mark.slow
def test_a_server_and_its_workers_have_one_file(folder):
    code, output = run(folder, "-n", "3", "--ps", "1", HPCFLOW_PREFETCH="0")
    assert code == 0, output
    assert [file.name for file in (folder / "out").iterdir()] == ["t.json"]
    assert not list((folder / "tmp").rglob("*.part"))
    assert "trace of 3 of 3 ranks: out/t.json" in output
    trace = Trace(folder / "out" / "t.json")
    edges = {int(r): int(n) for r, n in re.findall(r"EDGES (\d) (\d+) 0", output)}
    assert sorted(edges) == [0, 1], output
    steps = steps_of(trace)
    assert steps == {0: STEPS, 1: STEPS, 2: 2 * STEPS}
    ends = collections.Counter()
    trained = {
        (e["pid"], e["args"]["step"])
        for e in trace.of("X")
        if "GradientDescent" in e["args"].get("plan", "")
    }
    for start, end in trace.arrows["message"]:
        if "GradientDescent" in trace.slice_at(start)["args"]["plan"]:
            ends[min(start["pid"], end["pid"])] += 1
    assert len(trained) >= 2 * STEPS
    assert ends == {rank: n * STEPS for rank, n in edges.items()}
    assert trace.about["messages_received_before_sent"] == 0
    assert trace.about["messages_without_arrow"] == 0
    assert {one["how"] for one in trace.about["clocks"]} == {"the same clock as rank 0"}


@pytest.mark.slow
def test_replicas_have_a_slice_of_each_sum(folder):
    code, output = run(folder, "-n", "2")
    assert code == 0, output
    sums = [int(n) for n in re.findall(r"EDGES \d 0 (\d+)", output)]
    assert len(sums) == 2 and sums[0] == sums[1] > 0
    trace = Trace(folder / "out" / "t.json")
    found = collections.Counter(
        (e["pid"], e["name"]) for e in trace.of("X") if "bucket" in e["name"]
    )
    assert set(found.values()) == {STEPS} and len(found) == 2 * sums[0]
    buckets = [
        (s, e) for s, e in trace.arrows["sum"] if "bucket" in trace.slice_at(s)["name"]
    ]  # fmt: skip
    assert len(buckets) == STEPS * sums[0]
    assert all({s["pid"], e["pid"]} == {0, 1} for s, e in buckets)


# Makes a host of each rank: its clock is ahead, its machine and its folder of files are its own.
HOST = """
import os, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
if rank is not None:
    from hpcflow.comm import polling_backoff
    polling_backoff.machine_id = lambda: "machine " + rank
    real = time.monotonic_ns
    time.monotonic_ns = lambda: real() + int(rank) * AHEAD
    os.environ["TMPDIR"] = os.path.join(os.getcwd(), "tmp", rank)
    os.makedirs(os.environ["TMPDIR"], exist_ok=True)
"""
AHEAD_NS = 10**12


@pytest.mark.slow
@pytest.mark.parametrize("serving", [1, 0])
def test_hosts_without_a_common_disk_or_clock_have_one_file(folder, serving):
    (folder / "hosts").mkdir()
    (folder / "hosts" / "sitecustomize.py").write_text(HOST.replace("AHEAD", str(AHEAD_NS)))
    path = os.pathsep.join([str(folder / "hosts"), str(ROOT)])
    code, output = run(folder, "-n", "3", "--ps", str(serving), PYTHONPATH=path)
    assert code == 0, output
    assert len(list((folder / "tmp").glob("?"))) == 3, "as many disks as ranks"
    assert [file.name for file in (folder / "out").iterdir()] == ["t.json"]
    assert not list((folder / "tmp").rglob("*.part"))
    trace = Trace(folder / "out" / "t.json")
    assert set(steps_of(trace)) == {0, 1, 2}
    errors = {}
    for fact in trace.about["clocks"]:
        rank = fact["rank"]
        errors[rank] = fact["error_ns"] / 1e3
        assert (fact["how"] == "measured by ping-pong") == bool(rank)
        for offset in fact["offset_ns"]:
            assert abs(offset - rank * AHEAD_NS) <= fact["error_ns"] < AHEAD_NS / 100
    arrows = [*trace.arrows["message"], *trace.arrows["sum"]]
    assert {s["pid"] for s, _ in arrows} | {e["pid"] for _, e in arrows} == {0, 1, 2}
    for start, end in arrows:
        assert end["ts"] - start["ts"] >= -errors[start["pid"]] - errors[end["pid"]]


@pytest.mark.slow
def test_a_job_with_a_killed_rank_leaves_its_trace(folder):
    code, output = run(folder, "-n", "2", steps=500)
    assert code not in (0, 1), output
    assert "trace of 2 of 2 ranks until the failure: out/t.json" in output
    assert not list((folder / "tmp").rglob("*.part"))
    trace = Trace(folder / "out" / "t.json")
    steps = steps_of(trace)
    assert 0 < steps[1] <= 401 and 0 < steps[0] <= 402
    unfinished = [e for e in trace.events if e.get("args", {}).get("unfinished")]
    assert any(e["pid"] == 0 for e in unfinished), "what it waited for when rank 1 was gone"


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
def test_a_job_that_survives_has_the_dead_rank_too(folder):
    code, output = run(folder, "-n", "3", "--ps", "1", "--survive", steps=600)
    assert "has died: 1 of 2 workers go on without it" in output
    assert "trace of 3 of 3 ranks: out/t.json" in output
    assert not list((folder / "tmp").rglob("*.part"))
    trace = Trace(folder / "out" / "t.json")
    steps = steps_of(trace)
    assert steps[0] == 600 and 0 < steps[1] <= 401
    assert code == 0, output


SHRINK = """
    import os, signal
    import numpy as np
    import hpcflow as hf
    x = hf.placeholder(hf.float32, [None, 6], name="x")
    w = hf.Variable(np.ones((6, 3), np.float32), name="w")
    loss = hf.reduce_mean(hf.square(hf.matmul(x, w)))
    count = hf.train.get_or_create_global_step()
    train = hf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=count)
    with hf.train.TrainingSession() as session:
        for i in range(30):
            session.step(train, {x: np.ones((4, 6), np.float32)})
            if i == 15 and session.context.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
def test_sums_after_a_recovery_have_the_members_that_are_left(folder):
    code, output = run(folder, "-n", "3", "--survive", script=SHRINK)
    assert code == 0, output
    trace = Trace(folder / "out" / "t.json")
    sums = [e for e in trace.of("X") if e["cat"] == "sum" and "bucket" in e["name"]]
    broken = [e["ts"] for e in sums if "unfinished" in e["args"] and e["pid"] != 1]
    later = collections.defaultdict(set)
    for e in sums:
        if e["ts"] > max(broken):
            later[e["args"]["step"], e["args"]["number"]].add(e["pid"])
    assert len(later) >= 14 and all(ranks == {0, 2} for ranks in later.values())
    arrows = [trace.slice_at(f) for _, f in trace.arrows["sum"] if f["ts"] > max(broken)]
    found = collections.Counter(e["args"]["step"] for e in arrows if "bucket" in e["name"])
    assert found == dict.fromkeys((step for step, _ in later), 1)


# -- `hpcflow trace`


def part(folder: Path, rank: int, machine: str, rows: list[list[object]], job: str = "job") -> Path:
    """A part as a rank that was killed has left it: its last line is incomplete."""
    facts = PartFacts(job, rank, 2, f"/job:worker/task:{rank}", 0, "here", machine, not rank)
    written = TracePart(folder, facts, 1000)
    for row in rows:
        written.add(row, 0)
    written.close()
    with open(written.path, "a") as file:
        file.write('["segment", "never wri')
    return written.path


CHIEF = [
    ["clock", "other", 1000, 5_000_000, 20],
    ["send", "s", 1, 16, 3, 1_500],
    ["segment", "segment 0", "plan", 3, 1_400, 1_700],
    ["clock", "other", 101_000, 5_000_100, 10],  # in 100 us the other gains 100 ns
    ["send", "lost", 1, 17, 3, 1_600],
]
OTHER = [
    ["segment", "segment 0", "plan", 3, 5_060_000, 5_070_000],
    ["receive", "r", 0, 16, 3, 5_051_050],
    ["wait", 1, "r", 3, 5_003_000],
]


def test_parts_are_merged_by_a_command_on_one_clock(tmp_path, capsys):
    part(tmp_path / "a", 0, "machine", CHIEF)
    part(tmp_path / "b", 1, "other", OTHER)
    part(tmp_path / "b", 0, "machine", [], job="earlier")
    os.utime(tmp_path / "b" / "rank-0.part", (1, 1))
    assert main(["trace", str(tmp_path / "a"), str(tmp_path / "b"), "-o", f"{tmp_path}/t"]) == 0
    assert "2 of 2 ranks, 1 messages, 0 sums" in capsys.readouterr().out
    trace = Trace(tmp_path / "t")
    ((start, end),) = trace.arrows["message"]
    assert start["ts"] == 0.1  # the trace begins at 1.4 us of rank 0
    # when the other's clock showed 5,051,050, that of rank 0 showed 51,000
    assert end["ts"] == pytest.approx((51_000 - 1_400) / 1e3, abs=2e-3)
    assert trace.about["messages_without_arrow"] == 1
    (fact,) = (one for one in trace.about["clocks"] if one["rank"] == 1)
    assert fact["offset_ns"] == [5_000_000, 5_000_100] and fact["error_ns"] == 10
    assert fact["drift_ppm"] == 1000.0


def test_without_the_part_of_the_chief_clocks_of_others_are_unknown(tmp_path, capsys):
    path = part(tmp_path, 1, "other", OTHER)
    assert main(["trace", str(path), "-o", f"{tmp_path}/t.json"]) == 0
    trace = Trace(tmp_path / "t.json")
    assert trace.about["missing_ranks"] == [0] and "1 of 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, says",
    [
        ('["segment", 3]\n', "is no row of a trace"),
        ('["\\u001b[31m", 3]\n', "is no row of a trace"),
        ("[]\n", "damaged at line 2"),
        ("{\n", "damaged at line 2"),
        ('["end", true, 3]\n', "is no row of a trace"),
        ("[" * 100_000 + "\n", "damaged at line 2"),
    ],
)
def test_a_damaged_part_is_named(tmp_path, capsys, text, says):
    path = part(tmp_path, 0, "machine", [])
    path.write_text(path.read_text().partition("\n")[0] + "\n" + text)
    assert main(["trace", str(tmp_path), "-o", f"{tmp_path}/t.json"]) == 1
    said = capsys.readouterr().err
    assert says in said and "rank-0.part" in said and "\x1b" not in said
    assert not (tmp_path / "t.json").exists()


def test_what_is_no_part_is_refused(tmp_path, capsys):
    for text in ("", "[]\n", '{"format": "other"}\n', json.dumps({"rank": 0}) + "\n"):
        (tmp_path / "rank-0.part").write_text(text)
        assert main(["trace", str(tmp_path), "-o", f"{tmp_path}/t.json"]) == 1
        assert "is no part of a trace" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "no.part"), "-o", "t.json"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "nothing"), "-o", "t.json"]) == 1
    assert str(trace_part.node_folder(str(tmp_path / "nothing"))) in capsys.readouterr().err
