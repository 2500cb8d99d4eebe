"""Replicas whose graphs differ in what servers hold: refused by name, with both lines and ranks."""

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
from hpcflow.errors import CommError, GraphMismatchError
from hpcflow.runtime.state import variable_declarations
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]


def zeros(shape, dtype=np.float32, name="v"):
    return hf.Variable(np.zeros(shape, dtype), name=name)


def first(context):
    """What replica 0 builds."""
    return zeros([3, 2])


DIFFERENT = {
    "shape": (lambda: zeros([4, 2]), "variable float32[3, 2]", "variable float32[4, 2]"),
    "rank": (lambda: zeros([3]), "variable float32[3, 2]", "variable float32[3]"),
    "dtype": (lambda: zeros([3, 2], np.int32), "variable float32[3, 2]", "variable int32[3, 2]"),
    "size": (lambda: zeros([30, 2]), "variable float32[3, 2]", "variable float32[30, 2]"),
}


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("servers", [1, 2])
def test_another_shape_or_dtype_is_refused_with_both_lines_and_ranks(case, servers):
    """Also where one replica's variable is cut into pieces of other names (30 rows)."""
    other, mine, theirs = DIFFERENT[case]

    def body(context):
        if servers > 1:
            zeros([1], name="before")  # so that v is not on the server that compares
        v = other() if context.replica else first(context)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        while True:
            session.run(v.assign_add(v.value()))

    with pytest.raises(GraphMismatchError) as caught:
        run_ranks(2 + servers, body, ps=servers, shard_bytes=100, seed=5)
    said = str(caught.value)
    assert "'v' is" in said and mine in said and theirs in said
    assert len(re.findall(r"on rank [01] \(made at \S*test_differing_graphs\.py:\d+\)", said)) == 2
    assert said.index("on rank 0") < said.index("on rank 1") or servers > 1


def test_a_declaration_is_compared_with_one_other_however_many_drivers_there_are(monkeypatch):
    compared = []
    compare = variable_declarations.check_compatible
    monkeypatch.setattr(
        variable_declarations,
        "check_compatible",
        lambda *args: compared.append(args) or compare(*args),
    )
    said = lambda what: json.dumps(  # noqa: E731
        [["v", "v", 0, what, "/job:ps/task:0", [], f"a.py:{line}"] for line in (1, 2)]
    )
    server = variable_declarations.ServerDeclarations()
    for driver in range(1000):
        server.add(driver, said("variable float32[3]").encode())
    assert len(compared) == 2 * 999
    for driver in (0, 500, 1000):  # also one that declared the same before
        with pytest.raises(GraphMismatchError, match=f"on rank {driver} "):
            server.add(driver, said("variable float32[4]").encode())


def test_variables_that_would_lie_on_different_servers_are_refused():
    """One more variable shifts all that follow: each replica would train a copy of its own."""

    def body(context):
        if context.replica:
            zeros([2], name="extra")
        variables = [zeros([5], name=f"v{i}") for i in range(3)]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        while True:
            session.run(variables[0].assign_add(np.ones(5, np.float32)))

    with pytest.raises(GraphMismatchError, match="their shares over the servers differ") as caught:
        run_ranks(4, body, ps=2, seed=3)
    said = str(caught.value)
    assert "/job:ps/task:0 on rank" in said and "/job:ps/task:1 on rank" in said


def test_other_state_of_one_name_is_refused():
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(4 + context.replica, [hf.float32], shapes=[[]], name="waiting")
        session = hf.Session()
        while True:
            session.run(queue.size())

    with pytest.raises(GraphMismatchError, match=r"'waiting' is .*capacity.*4.*on rank 0"):
        run_ranks(3, body, ps=1)


def test_replicas_that_fetch_different_things_of_one_graph_are_none():
    def body(context):
        v, w = zeros([3]), zeros([40, 2], name="w")
        sums = [hf.reduce_sum(v), hf.reduce_sum(w), hf.reduce_sum(hf.gather(w, [0, 39]))]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for fetch in sums[:: 1 - 2 * (context.replica % 2)]:
            session.run(fetch)
        context.barrier()
        return True

    assert run_ranks(5, body, ps=2, shard_bytes=100, seed=1) == [True] * 3


def test_one_replica_may_have_several_graphs_with_the_same_names():
    def body(context):
        for size in (3,) if context.replica else (3, 5):
            with hf.Graph().as_default(), hf.Session() as session:
                v = zeros([3], name="v")
                zeros([size], name=f"w{size}")
                session.run(hf.global_variables_initializer())
                session.run(v.value())
        return True

    assert run_ranks(3, body, ps=1) == [True] * 2


def test_a_message_of_a_wrong_size_names_its_edge():
    """A rank that follows another plan, as another version of hpcflow might make it."""
    wrong = {}

    def body(context):
        v = zeros([3])
        session = hf.Session()
        session.run(v.initializer)
        real = type(context.world).send_channel

        def send_channel(comm, array, dest, tag):
            if array is not None and array.nbytes == 12 and comm.rank == 1:
                wrong["sent"] = array = np.zeros(2, np.float32)
            return real(comm, array, dest, tag)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(context.world), "send_channel", send_channel)
            with hf.device("/job:worker/task:0"):
                session.run(hf.identity(v.value() * 2.0) * 1.0)

    with pytest.raises(CommError, match=r"rank 1 sent 8 bytes .* float32\[3\], 12 bytes"):
        run_ranks(2, body, ps=1)


@pytest.mark.slow
def test_a_job_of_differing_graphs_ends_and_says_why(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np
            import hpcflow as hf
            from hpcflow.runtime.job.job_membership import current_context
            v = hf.Variable(np.zeros(3 + current_context().replica, np.float32), name="v")
            update = v.assign_add(v.value())
            with hf.train.TrainingSession() as session:
                while True:
                    session.step(update, {})
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "-n", "3", "--ps", "1", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode != 0
    assert re.search(
        r"GraphMismatchError: 'v' is variable float32\[3\] on rank 0 \(made at \S*script.py:5\), "
        r"but variable float32\[4\] on rank 1 \(made at \S*script.py:5\)",
        done.stderr,
    ), done.stderr
