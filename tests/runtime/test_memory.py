"""Memory of a run: what was predicted, what devices held, limits, and running out."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, OutOfMemoryError
from hpcflow.kernels import onednn_library
from hpcflow.plan.cost.memory_estimate import predict_memory
from hpcflow.runtime.device.memory_accounting import HeldMemory
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import memory_lowering
from hpcflow.settings import Settings, as_bytes

from .ranks import run_ranks

ROWS, WIDTH = 500, 400
CLOSE = 0.05
with_onednn = pytest.mark.skipif(bool(onednn_library.absent()), reason="needs oneDNN")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def net():
    """Two layers trained by Adam; large enough that small things do not count."""
    x = hf.placeholder(hf.float32, [None, WIDTH], name="x")
    w = hf.Variable(hf.random_normal([WIDTH, 3 * WIDTH], seed=1) * 0.01, name="w")
    b = hf.Variable(hf.zeros([3 * WIDTH]), name="b")
    h = hf.nn.relu(hf.matmul(x, w) + b)  # a part of the product where oneDNN computes it
    h = hf.tanh(h, name="hidden")
    loss = hf.reduce_sum(hf.square(hf.matmul(h, w, transpose_b=True)), name="loss")
    step = hf.train.get_or_create_global_step()
    return x, loss, hf.train.AdamOptimizer(1e-3).minimize(loss, step)


def trained(context: RankContext) -> tuple[dict, dict]:
    """What `hpcflow plan` says of the tasks of the plan, and the results of the run."""
    x, loss, train = net()
    given = {x: np.ones((ROWS, WIDTH), "f4")}
    with hf.train.TrainingSession() as session:
        for _ in range(3):
            session.run([loss, train], given)
        plan = session.plan([loss, train], given)
    memory = predict_memory(plan, memory_lowering(context.devices))
    return memory, session.result()


@pytest.mark.slow
@pytest.mark.parametrize("ranks, servers", [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_what_is_predicted_is_what_is_held(ranks, servers, tmp_path):
    told = run_ranks(ranks, trained, ps=servers, run_dir=str(tmp_path))
    memory, result = told[0]
    assert len(result["memory"]) == ranks
    for rank, found in enumerate(result["memory"]):
        worker = rank < ranks - servers
        of = "/job:worker/task:0" if worker else f"/job:ps/task:{rank - ranks + servers}"
        planned = memory[of]
        assert found["peak"] == pytest.approx(planned.total, rel=CLOSE, abs=100)
        assert found["peak"] == pytest.approx(found["predicted"], rel=CLOSE, abs=100)
        assert found.get("variables", 0) == planned.variables
        assert found.get("sums", 0) == planned.sums
    least = 4 * 3 * ROWS * WIDTH  # of one layer
    assert memory["/job:worker/task:0"].buffers > 2 * least


SCRIPT = """
import json, resource, sys
import numpy as np
import hpcflow as hf
from hpcflow.runtime.job.job_membership import current_context

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def products(n):
    w = hf.Variable(hf.zeros([n, n + n // 2]), name="w")
    x = hf.placeholder(hf.float32, [n, n])
    return x, hf.matmul(hf.nn.relu(hf.nn.relu(hf.matmul(x, w))), w, transpose_b=True)

def convolutions(n):
    # small images, many filters: most memory is that of filters in oneDNN's own layouts
    w = hf.Variable(hf.zeros([3, 3, n // 2, n // 2]), name="w")
    x = hf.placeholder(hf.float32, [2, 6, 6, n // 2])
    return x, hf.nn.conv2d(hf.nn.relu(hf.nn.conv2d(x, w, 1, "SAME")), w, 1, "SAME")

def trained(n):
    # what the process grows by when a net of this width is trained
    with hf.Graph().as_default(), hf.Session() as session:
        x, y = globals()[sys.argv[1]](n)
        loss = hf.reduce_sum(hf.square(y))
        train = hf.train.MomentumOptimizer(1e-9, 0.9).minimize(loss)
        fed = {x: np.ones(x.shape, "f4")}
        before = resident()
        session.run(hf.global_variables_initializer())
        for _ in range(2):
            session.run([loss, train], fed)
        return resident() - before

trained(300)  # loads libraries, which take memory of their own at first use
grown = trained(2000)
print(json.dumps([grown, current_context().report()["memory"]["peak"]]))
"""


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("net", ["products", pytest.param("convolutions", marks=with_onednn)])
def test_the_process_grows_by_what_is_counted(net, threads):
    ran(SCRIPT, net, threads=threads)  # compiles the kernels, which takes memory of LLVM's
    grown, peak = json.loads(ran(SCRIPT, net, threads=threads))
    assert peak > 100e6
    assert grown == pytest.approx(peak, rel=0.15)


NETS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nets.of_hpcflow import step
from hpcflow.runtime.job.job_membership import current_context

run = step(sys.argv[2])
for _ in range(2):
    run()
print(json.dumps(current_context().report()["memory"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("net", ["lenet", "alexnet"])
def test_convolutional_nets_hold_what_is_predicted(net, threads):
    found = json.loads(ran(NETS, str(BENCHMARKS), net, threads=threads))
    assert found["peak"] == pytest.approx(found["predicted"], rel=CLOSE)


def ran(script: str, *arguments: str, threads: int) -> str:
    """What a script prints that runs in a process of its own, with so many threads."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"HPCFLOW_THREADS": str(threads)} | RETURNED,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout


RETURNED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # large pieces go back to the system when freed


def limited(text: str) -> RankContext:
    return RankContext(Settings(memory_limit=text))


@pytest.mark.slow
def test_above_the_limit_the_ten_largest_are_named():
    with use_context(limited("20MB")), hf.Graph().as_default(), hf.Session() as session:
        x, loss, train = net()
        session.run(hf.global_variables_initializer())
        with pytest.raises(OutOfMemoryError) as caught:
            session.run([loss, train], {x: np.ones((20_000, WIDTH), "f4")})
        error = caught.value
        assert isinstance(error, MemoryError)
        assert "above its limit of 20 MB (setting memory_limit)" in error.message
        table = error.message.partition("tensors:\n")[2].splitlines()
        assert len(table) == 11
        assert table[0].split() == ["bytes", "is", "op", "name", "made", "at"]
        (hidden,) = (row for row in table if " hidden " in row)
        assert hidden.split()[:5] == ["96", "MB", "float32", "[20000,", "1200]"]
        assert "test_memory.py:" in hidden
        sizes = [float(row.split()[0]) for row in table[1:] if row.split()[1] == "MB"]
        assert sizes == sorted(sizes, reverse=True)
        assert "smaller batches" in error.hint and "hf.recompute" in error.hint
        assert "hpcflow plan" in error.hint and error.rank == 0
        value, _ = session.run([loss, train], {x: np.ones((10, WIDTH), "f4")})  # goes on
        assert np.isfinite(value)


def test_variables_above_the_limit_are_named():
    with use_context(limited("1MB")), hf.Graph().as_default(), hf.Session() as session:
        v = hf.Variable(hf.zeros([10**6]), name="large")
        with pytest.raises(OutOfMemoryError, match=r"4 MB more of variables") as caught:
            session.run(v.initializer)
        assert " large " in caught.value.message and caught.value.op == "large/Assign"


def test_what_no_machine_has():
    with use_context(RankContext(Settings())), hf.Graph().as_default(), hf.Session() as session:
        huge = hf.reduce_sum(hf.tanh(hf.zeros([1 << 45])), name="total")
        with pytest.raises(OutOfMemoryError, match="out of memory") as caught:
            session.run(huge)
        assert "281 TB" in caught.value.message or "141 TB" in caught.value.message


@pytest.mark.slow
def test_what_gives_variables_their_values_is_not_kept():
    with (
        use_context(RankContext(Settings())) as _,
        hf.Graph().as_default(),
        hf.Session() as session,
    ):
        shared = hf.tanh(hf.ones([500, 500]) * 2)
        vs = [hf.Variable(shared + i, name=f"v{i}") for i in range(3)]
        init = hf.global_variables_initializer()
        held = session.context.devices["cpu:0"].held_memory
        for _ in range(2):  # again, by a plan that is made again
            session.run(init)
            assert held.current["variables"] == 3 * 10**6 and not held.current["buffers"]
        assert [float(v[0, 0]) for v in session.run(vs)] == pytest.approx(
            [np.tanh(2) + i for i in range(3)]
        )


def test_values_that_several_variables_begin_with_are_their_own():
    with use_context(RankContext(Settings())), hf.Graph().as_default(), hf.Session() as session:
        vs = [hf.Variable(hf.zeros([50, 40]), name=f"v{i}") for i in range(3)]
        session.run(hf.global_variables_initializer())
        session.run([v.assign_add(np.full((50, 40), i, "f4")) for i, v in enumerate(vs)])
        for i, value in enumerate(session.run(vs)):
            np.testing.assert_array_equal(value, np.full((50, 40), i, "f4"))


@pytest.mark.slow
def test_held_bytes_go_with_their_owners():
    held = HeldMemory("cpu:0")
    one, other = np.empty(100), np.empty(50)
    held.keep("buffers", one, 800)
    held.keep("buffers", one, 800)  # counts once
    held.keep("variables", other, 400)
    assert (held.total, held.peak) == (1200, 1200)
    del one
    gc.collect()
    assert (held.total, held.peak, dict(held.maximum)) == (
        *(400, 1200),
        {"buffers": 800, "variables": 400},
    )
    held.limit = 1000
    held.ask("buffers", 600)
    with pytest.raises(MemoryError, match="cpu:0 holds 400 B of variables; 601 B more of buffers"):
        held.ask("buffers", 601)


def test_sizes():
    assert [as_bytes(t) for t in ("", "0", "8GiB", "500MB", "1.5 kB", "1e9", "2TiB", " 3 b")] == [
        *(0, 0, 8 << 30, 500_000_000, 1500, 10**9, 2 << 40, 3),
    ]
    for wrong in ("8 apples", "-1", "GiB", "1ib", "nan", "1.2.3", "9" * 400):
        with pytest.raises(HpcflowError, match="is not a size"):
            as_bytes(wrong)
    with pytest.raises(HpcflowError, match="memory_limit"):
        Settings.from_environ({"HPCFLOW_MEMORY_LIMIT": "much"})
