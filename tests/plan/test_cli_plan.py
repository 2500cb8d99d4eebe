"""`hpcflow plan`: a script is planned for ranks that do not exist, and nothing runs."""

from __future__ import annotations

import json
import pstats
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.plan.pass_list import PASSES

ROOT = Path(__file__).parent.parent.parent
with_llvm = pytest.mark.skipif(absent() != "", reason="needs llvmlite")
SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

print("the script speaks", sys.argv[1:])
x = hf.placeholder(hf.float32, [None, 64], name="x")
y = hf.placeholder(hf.int32, [None], name="y")
w = hf.Variable(np.zeros((64, 10), "f4"), name="w")
b = hf.Variable(hf.zeros([10]), name="b")
loss = hf.reduce_mean(hf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=hf.matmul(x, w) + b))
train = hf.train.AdamOptimizer(0.01).minimize(loss, hf.train.get_or_create_global_step())
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    feeds = {x: np.zeros((32, 64), "f4"), y: np.zeros(32, "i4")}
    print(session.run(loss, feeds))
    session.run([loss, train], feeds)
    raise AssertionError("the training step ends the script")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def plan(script, *words, code=0, before=()):
    command = [sys.executable, *before, "-m", "hpcflow", "plan", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_table_of_a_job_with_servers(script):
    done = plan(script, "--ranks", "64", "--ps", "4", str(script))
    assert done.stdout.startswith("plan: mode ps, sync=async, 64 ranks = 60 workers + 4 servers")
    assert "proved: " in done.stdout and "w/read:0" in done.stdout
    assert "the script speaks" in done.stderr and "the script speaks" not in done.stdout


def test_json_pictures_and_the_scripts_own_words(script, tmp_path):
    dot, mermaid = tmp_path / "cut.dot", tmp_path / "cut.mmd"
    words = ["--json", "--dot", str(dot), str(script), "--epochs", "3", "--mermaid", str(mermaid)]
    done = plan(script, "--ranks", "4", *words)
    data = json.loads(done.stdout)
    assert data["mode"] == "collective" and data["unproved"] == []
    assert any(node["type"] == "ApplyAdam" for node in data["tasks"][0]["nodes"])
    assert "['--epochs', '3']" in done.stderr
    assert dot.read_text().startswith("digraph") and mermaid.read_text().startswith("flowchart")


def cost(script, *words):
    """What `hpcflow plan` prints, and how many calls of functions it makes: no measured time."""
    with tempfile.NamedTemporaryFile() as profile:
        done = plan(script, *words, before=("-m", "cProfile", "-o", profile.name))
        return done.stdout, pstats.Stats(profile.name).total_calls


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["async", "all", "backup:1", "stale:1"])
def test_a_training_session_is_planned_by_every_rule(rule):
    words = ["--ranks", "4", "--ps", "2", "--sync", rule]
    done = plan(None, *words, str(ROOT / "examples" / "digits.py"))
    assert done.stdout.startswith(f"plan: mode ps, sync={rule}, 4 ranks = 2 workers + 2 servers")


@pytest.mark.slow
@pytest.mark.parametrize("servers", [["--ps", "4"], []], ids=str)
def test_four_thousand_ranks_cost_little_more_than_sixteen(script, servers):
    words = [*servers, "--set", "shard_bytes=512", str(script)]
    _, few = cost(script, "--ranks", "16", *words)
    text, many = cost(script, "--ranks", "4096", *words)
    assert many < 1.2 * few
    assert "4096 ranks" in text and len(text.splitlines()) < 60


@pytest.mark.slow
def test_the_cost_of_one_driver_grows_by_its_tasks_not_by_their_square(tmp_path):
    wide = tmp_path / "wide.py"
    wide.write_text(
        "import sys\nimport numpy as np\nimport hpcflow as hf\n"
        "x = hf.placeholder(hf.float32, [8], name='x')\n"
        "adds = []\n"
        "for k in range(int(sys.argv[1])):\n"
        "    with hf.device(f'/job:worker/task:{k}'):\n"
        "        v = hf.Variable(hf.zeros([8]), name=f'v{k}')\n"
        "        adds.append(v.assign_add(x))\n"
        "hf.Session().run(hf.group(*adds), {x: np.ones(8, 'f4')})\n"
    )
    calls = []
    for tasks in ("256", "2048"):
        words = ["--ranks", tasks, "--tasks-per-replica", tasks]
        text, made = cost(wide, *words, str(wide), tasks)
        calls.append(made)
    assert calls[1] < 8 * calls[0]  # 8 times as many tasks
    assert "/job:worker/task:1..2047" in text


def test_a_script_without_steps(tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("import hpcflow as hf\n")
    assert "ran no step" in plan(empty, str(empty), code=1).stderr


@pytest.mark.slow
def test_whose_kernel_serves_each_operation(script):
    done = plan(
        script, "--ranks", "3", "--ps", "1", "--kernels", "--set", "kernels=plain", str(script)
    )
    told = done.stdout[done.stdout.index("kernel by") :]
    assert any(line.split()[:3] == ["MatMul", "2", "numpy"] for line in told.splitlines()), told
    assert "/job:ps/task:0" in told and "ApplyAdam" in told
    data = json.loads(plan(script, "--kernels", "--json", str(script)).stdout)["kernels"]
    assert {"task", "node", "type", "provider", "instead_of"} == set(data[0])
    assert [one["type"] for one in data].count("MatMul") == 2
    bare = json.loads(plan(script, "--json", str(script)).stdout)
    assert "kernels" not in bare and isinstance(bare["fused"], list)


def used_before_set(code):
    """The names that a partition uses before it sets them, and that are not bound."""
    known, missing = {*code["names"], *(f"f{i}" for i in range(9)), "i"}, set()

    def walk(instructions):
        for one in instructions:
            names = {name for name, access in one["uses"]} | {one["calls"]} - {""}
            missing.update(names - known)
            known.update(one["sets"])
            walk(one.get("body", ()))

    for segment in code["segments"]:
        walk(segment["instructions"])
    return missing


@pytest.mark.parametrize("words", [[], ["--ps", "2", "--sync", "all"]])
def test_the_instructions_of_a_step(script, words):
    ranks = ["--ranks", "6", *words]
    codes = json.loads(plan(script, *ranks, "--code", "--json", str(script)).stdout)["code"]
    tasks = [code["task"] for code in codes]
    assert tasks == ["/job:worker/task:0", *["/job:ps/task:0"] * (2 if words else 0)]
    for code in codes:
        assert not used_before_set(code)
        assert code["segments"][-1]["instructions"][-1]["opcode"] == "return"
    done = [one for code in codes for s in code["segments"] for one in s["instructions"]]
    assert [one["node"] for one in done if one["node"] == "MatMul"] == ["MatMul"]
    updated = {"w", "b", "global_step"} if not words else {"w"}  # the first server has w
    handles = {codes[-1]["names"][n][1] for one in done for n, how in one["uses"]
               if how in ("updated", "written") and n in codes[-1]["names"]}  # fmt: skip
    assert updated <= handles
    text = plan(script, *ranks, "--code", str(script)).stdout
    assert "call_kernel" in text and "/job:worker/task:0\ncode: buffers of" in text


def test_passes_are_listed_as_they_ran(script):
    words = ["--ranks", "3", "--ps", "1", "--sync", "all", "--passes", str(script)]
    lines = [line.split() for line in plan(script, *words).stdout.splitlines()]
    assert lines[0][:2] == ["pass", "form"]
    names = [line[0] for line in lines[1:]]
    assert names == [row.name for row in PASSES]
    (split,) = (line for line in lines if line[0] == "sync_program_split")
    assert split[1:4] == ["program", "1", "1"]
    data = json.loads(plan(script, "--json", *words).stdout)
    assert data["format"] == "hpcflow-passes-1" and "diff" not in data
    placement = next(one for one in data["passes"] if one["name"] == "device_placement")
    assert placement["runs"] == 2 and placement["seconds"] > 0  # the step, the servers' update
    assert placement["nodes_before"] <= placement["nodes_after"]


@pytest.mark.slow
def test_the_example_of_an_own_pass_changes_its_plan_and_trains():
    example = str(ROOT / "examples" / "own_pass.py")
    done = plan(example, "--diff", "subtractions", example)
    assert "~ Add  Sub" in done.stdout and "inputs: MatMul:0, Neg:0 -> MatMul:0, y:0" in done.stdout
    data = json.loads(plan(example, "--passes", "--json", example).stdout)["passes"]
    (own,) = (one for one in data if one["name"] == "subtractions")
    assert own["line"].startswith(example) and own["changed"] == 1
    command = [sys.executable, example]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert "weights [ 1. -2.  3.]" in ran.stdout


def test_an_unknown_pass_is_told_with_similar_names(script):
    done = plan(script, "--diff", "elementwise_fusing", str(script), code=2)
    assert "there is no pass 'elementwise_fusing'" in done.stderr
    assert "similar: elementwise_fusion" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_misuse_is_told_without_a_traceback(script):
    for words in (
        ["--ranks", "2", "--ps", "2", str(script)],
        ["--ranks", "5", "--tasks-per-replica", "2", str(script)],
        ["--ranks", "2", "nowhere.py"],
    ):
        stderr = plan(script, *words, code=2).stderr
        assert stderr.startswith("hpcflow: ") and "Traceback" not in stderr, stderr


def test_a_picture_that_cannot_be_written_is_told(script):
    stderr = plan(script, "--dot", f"{script}/plan.dot", str(script), code=1).stderr
    last = stderr.splitlines()[-1]
    assert last.startswith(f"hpcflow: {script}/plan.dot cannot be written: "), stderr


def test_an_error_of_the_script_shows_its_own_line(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import hpcflow as hf\nhf.Session().run(hf.placeholder(hf.float32, [2]))\n")
    stderr = plan(wrong, "--ranks", "4", str(wrong), code=1).stderr
    assert "FeedError" in stderr and "wrong.py:2" in stderr


def test_a_script_that_ends_by_itself_shows_its_last_plan(tmp_path):
    infer = tmp_path / "infer.py"
    infer.write_text(
        "import sys\nimport hpcflow as hf\n"
        "print(hf.Session().run(hf.add(hf.constant(1.0), 2.0)))\nsys.exit(0)\n"
    )
    assert "mode single" in plan(infer, str(infer)).stdout


def test_queue_runners_of_a_planned_script_do_not_run(tmp_path):
    path = tmp_path / "queued.py"
    path.write_text("""
import numpy as np
import hpcflow as hf

row = hf.train.input_producer(np.zeros((90, 3), "f4"), num_epochs=2).dequeue()
with hf.device("/job:ps/task:0"):
    queue = hf.FIFOQueue(10, hf.float32, shapes=[(3,)], name="shared")
hf.train.add_queue_runner(hf.train.QueueRunner(queue, [queue.enqueue(row)]))
w = hf.Variable(np.zeros((3, 1), "f4"), name="w")
loss = hf.reduce_mean(hf.matmul(queue.dequeue_many(30), w))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
coord, session = hf.train.Coordinator(), hf.Session()
session.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
threads = hf.train.start_queue_runners(session, coord)
while True:
    session.run(train)
""")
    done = plan(path, "--ranks", "3", "--ps", "1", str(path))
    assert "shared_DequeueMany:0" in done.stdout and "enqueue" not in done.stdout
    assert "Traceback" not in done.stderr


DEEP = """
import numpy as np
import hpcflow as hf

h = x = hf.placeholder(hf.float32, [8, 16], name="x")
for i in range(4):
    h = hf.tanh(hf.matmul(h, hf.Variable(np.ones((16, 16), "f4"), name=f"w{i}")))
train = hf.train.MomentumOptimizer(0.1, 0.9).minimize(hf.reduce_sum(h))
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    session.run(train, {x: np.zeros((8, 16), "f4")})
"""


@pytest.mark.slow
@with_llvm
def test_whether_a_run_would_load_the_plan(tmp_path, monkeypatch):
    """The entry that is named is the one that a run then makes, and another run loads."""
    script, folder = tmp_path / "deep.py", tmp_path / "plans"
    script.write_text(DEEP)
    monkeypatch.setenv("HPCFLOW_PLAN_CACHE", str(folder))
    assert f"a run makes it, and caches it in {folder}" in plan(script, str(script)).stdout
    command = [sys.executable, str(script)]
    subprocess.run(command, check=True, timeout=400, cwd=tmp_path)
    (made,) = folder.iterdir()
    data = json.loads(plan(script, "--json", str(script)).stdout)["kept"]
    assert (data["path"], data["bytes"]) == (str(made), made.stat().st_size)
    assert 0 <= data["age_s"] < 300 and data["seconds"] > 0
    assert f"a run loads it: {made} (" in plan(script, str(script)).stdout
    script.write_text(DEEP.replace("0.9", "0.8"))
    assert "a run makes it" in plan(script, str(script)).stdout
    monkeypatch.setenv("HPCFLOW_PLAN_CACHE", "none")
    assert "each run makes it: plans are not cached" in plan(script, str(script)).stdout
    assert list(folder.iterdir()) == [made]


@with_llvm
def test_a_plan_that_is_too_small_to_be_kept(script, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFLOW_PLAN_CACHE", str(tmp_path / "plans"))
    small = "x = hf.Variable(1.0)\nwith hf.Session() as s:\n    s.run(x.assign_add(1.0))\n"
    script.write_text(f"import hpcflow as hf\n{small}")
    assert "fewer than 32 operations" in plan(script, str(script)).stdout
