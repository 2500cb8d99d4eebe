"""Four workers send to one server by ports of 12.5 MB/s: the port is named, not the server."""

from __future__ import annotations

import pathlib
import sys

import pytest
from hosts import Hosts, missing

from hpcflow.report.run_view import views_of
from hpcflow.report.server_limits import PORT

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

JOB = """
import hpcflow as hf
import numpy as np

x = hf.placeholder(hf.float32, [None])
ws = [hf.Variable(np.ones((128, 1024), "f4"), name=f"w{i}") for i in range(2)]
loss = hf.add_n([hf.reduce_sum(hf.square(w)) for w in ws]) * hf.reduce_mean(x)
train = hf.train.GradientDescentOptimizer(1e-3).minimize(loss)
data = hf.data.Dataset({x: np.ones(64, "f4")}, batch=16)
with hf.train.TrainingSession() as session:
    for batch in data.epochs(20):
        session.step(train, batch)
    session.wait()
    session.result()
"""


@pytest.mark.parametrize("sync", ["async", "all"])
def test_the_port_of_the_server_is_named(sync: str, tmp_path: pathlib.Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(JOB)
    environ = {"PYTHONPATH": str(ROOT), "HPCFLOW_PS": "1", "HPCFLOW_SYNC": sync}
    with Hosts(5, "100mbit") as five:
        done = five.run([sys.executable, str(script)], environ | {"HPCFLOW_RUN_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    (view,) = views_of([folder], is_over=True)
    first = view.limits[0]
    assert first.resource == PORT and "to which all 4 workers send: /job:ps/task:0" in first.text
    assert first.seconds > 0.5 * view.run.seconds
    assert view.server_facts.busy[0] < 0.3
    (rates,) = view.server_rates
    number, unit = rates.split()[1:3]
    assert unit == "MB/s" and 4 < float(number) < 12.6  # of 12.5
