"""Several hosts send to one port: large messages come one after the other, and none is dropped."""

from __future__ import annotations

import pathlib
import sys

import pytest
from hosts import Hosts, missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

JOB = """
import hpcflow as hf
import numpy as np

variables = [hf.Variable(np.full((256, 256), 1.0, "f4"), name=f"v{i}") for i in range(4)]
loss = hf.add_n([hf.reduce_sum(hf.square(v)) for v in variables])
train = hf.train.GradientDescentOptimizer(0.25).minimize(loss)
session = hf.Session()
if session.context.is_driver:
    session.run(hf.global_variables_initializer())
    for _ in range(10):
        session.run(train)
    print("VALUES", {float(v.ravel()[k]) for v in session.run(variables) for k in (0, -1)})
session.close()
"""


def test_values_of_four_servers_fill_no_queue(tmp_path: pathlib.Path) -> None:
    """Without pacing the port of the worker drops hundreds of packets."""
    script = tmp_path / "script.py"
    script.write_text(JOB)
    with Hosts(5, "80mbit") as five:
        done = five.run([sys.executable, str(script)], {"PYTHONPATH": str(ROOT), "HPCFLOW_PS": "4"})
        dropped = five.dropped()
    assert done.returncode == 0, done.stderr
    assert f"VALUES {{{0.5**10}}}" in done.stdout
    assert dropped < 50
