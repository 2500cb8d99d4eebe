"""Initial values are made by the servers, piece by piece, as one rank would make the whole."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
SHAPE = [37, 5]  # no piece begins at a whole block of random words
INITIALIZERS = {
    "zeros": hf.zeros_initializer(),
    "ones": hf.ones_initializer(),
    "constant": hf.constant_initializer(0.25),
    "values": hf.constant_initializer(np.arange(185.0)),
    "uniform": hf.random_uniform_initializer(-2, 3, seed=1),
    "normal": hf.random_normal_initializer(1.0, 2.0),
    "truncated": hf.truncated_normal_initializer(stddev=0.1),
    "glorot": hf.glorot_uniform_initializer(),
    "glorot_normal": hf.glorot_normal_initializer(),
    "scaling": hf.variance_scaling_initializer(2.0),
    "unit": hf.uniform_unit_scaling_initializer(),
}
VALUES = {
    "scaled": lambda: hf.random_uniform(SHAPE, -1.0, 1.0) * 0.1 + 2.0,
    "by columns": lambda: hf.random_normal(SHAPE) * np.arange(5, dtype="f4") - hf.ones([1, 5]),
    "of whole": lambda: hf.tanh(hf.random_normal(SHAPE)) / hf.sqrt(np.float32(7)),
    "whole numbers": lambda: hf.random_uniform(SHAPE, -9, 1 << 40, hf.int64),
    "gamma": lambda: hf.random_gamma(SHAPE, 0.7),
    "poisson": lambda: hf.random_poisson(4.0, SHAPE),
    "doubles": lambda: hf.random_normal(SHAPE, dtype=hf.float64),
    "halves": lambda: hf.truncated_normal(SHAPE, dtype=hf.float16),
    "narrow": lambda: hf.cast(hf.random_uniform(SHAPE, 0, 9, hf.int32), hf.bfloat16),
    "centered": lambda: (lambda x: x - hf.reduce_mean(x, 0, keepdims=True))(
        hf.random_normal(SHAPE)
    ),
    "orthogonal": lambda: hf.orthogonal_initializer(seed=3)(SHAPE),
    "vector": lambda: hf.random_normal([185]),
}


def start(make, times=1):
    """The variable's value after its initializer ran, and what the plan of that moves."""

    def body(context):
        v = make()
        session = hf.Session()
        for _ in range(times):
            session.run(v.initializer)
        moved = [e.ref for e in session.plan(v.initializer).edges if not e.token]
        return session.run(v), moved

    return body


def alone(make, times=1):
    ((value, _),) = run_ranks(1, start(make, times))
    return value


@pytest.mark.parametrize("name", INITIALIZERS)
def test_values_do_not_depend_on_the_servers(name):
    def make():
        return hf.get_variable("v", SHAPE, initializer=INITIALIZERS[name])

    expected = alone(make)
    for servers, shard_bytes in ((1, 1 << 20), (2, 100), (3, 100), (3, 1 << 20)):
        ((found, moved),) = run_ranks(1 + servers, start(make), ps=servers, shard_bytes=shard_bytes)
        np.testing.assert_array_equal(found, expected)
        assert not moved


@pytest.mark.parametrize("name", VALUES)
def test_nor_do_values_that_are_computed(name):
    def make():
        return hf.Variable(VALUES[name](), name="v")

    expected = alone(make)
    for shard_bytes in (1 << 20, 100):
        ((found, moved),) = run_ranks(4, start(make), ps=3, shard_bytes=shard_bytes)
        np.testing.assert_array_equal(found, expected)
        assert not moved or (name in ("centered", "orthogonal") and shard_bytes == 100)


def test_each_initialization_draws_anew_as_one_rank_does():
    def make():
        return hf.Variable(hf.random_normal(SHAPE), name="v")

    ((found, _),) = run_ranks(3, start(make, times=3), ps=2, shard_bytes=100)
    np.testing.assert_array_equal(found, alone(make, times=3))
    assert (found != alone(make)).all()


def test_variables_that_start_alike_on_several_servers():
    def body(context):
        value = hf.random_normal(SHAPE)
        made = [hf.Variable(value, name=f"v{i}") for i in range(3)]
        session = hf.Session()
        _, drawn = session.run([hf.global_variables_initializer(), value])
        return [drawn, *session.run(made)]

    for shard_bytes in (1 << 20, 100):
        ((drawn, *found),) = run_ranks(3, body, ps=2, shard_bytes=shard_bytes)
        for one in found:
            np.testing.assert_array_equal(one, drawn)


def test_what_cannot_be_made_in_pieces_is_told(caplog):
    def make():
        return hf.Variable(hf.orthogonal_initializer()(SHAPE), name="square")

    with caplog.at_level(logging.INFO, "hpcflow"):
        run_ranks(3, start(make), ps=2, shard_bytes=100)
    told = [r.getMessage() for r in caplog.records if "'square'" in r.getMessage()]
    assert len(told) == 1 and "made as a whole by a worker" in told[0]


def test_an_initial_value_is_made_in_the_variables_own_memory():
    def body(context):
        v = hf.Variable(hf.random_normal([1 << 16]) * 2.0 + 1.0, name="v")
        session = hf.Session()
        session.run(v.initializer)
        return session.run(v), session._families

    ((value, families),) = run_ranks(1, body)
    codes = [s.compiled.code for f in families.values() for s in f._steps.values()]
    assert sum(code.buffer_bytes for code in codes) == 0
    assert abs(value.mean() - 1) < 0.1 and abs(value.std() - 2) < 0.1


PEAKS = """
import json, re, resource
import hpcflow as hf
from hpcflow.runtime.job.job_membership import current_context
table = hf.get_variable("table", [100_000, 1024])
bias = hf.get_variable("bias", [25_000_000], initializer=hf.constant_initializer(0.5))
ids = hf.placeholder(hf.int64, [32])
train = hf.train.GradientDescentOptimizer(0.1).minimize(
    hf.reduce_sum(hf.square(hf.nn.embedding_lookup(table, ids)))
    + hf.reduce_sum(hf.nn.embedding_lookup(bias, ids))
)
session = hf.Session()
session.run(hf.global_variables_initializer())
for i in range(5):
    session.run(train, {ids: range(i, 32 + i)})
peaks = {}
for report in current_context().reports():
    status = open(f"/proc/{report['pid']}/status").read()
    peaks[report["task"]] = int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1)) >> 10
print("PEAKS", json.dumps(peaks), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
def test_no_process_holds_a_table_that_is_not_its_own(tmp_path):
    """500 MB over two servers: the worker never has it, nor a server its half of it twice."""
    script = tmp_path / "script.py"
    script.write_text(PEAKS)
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "-n", "3", "--ps", "2", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    _, peaks, mine = re.search(r"(PEAKS) (\{.*\}) (\d+)", done.stdout).groups()
    peaks = json.loads(peaks)
    assert max(int(mine), peaks.pop("/job:worker/task:0")) < 160  # MB
    assert len(peaks) == 2 and all(250 < peak < 400 for peak in peaks.values()), peaks
