"""A stall between hosts is told with what the rank on the other one does; a long wait is none."""

from __future__ import annotations

import pathlib
import sys

import pytest
from hosts import Hosts, missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

# Each host keeps its ledgers in a folder of its own, as real ones do.
JOB = """
import os, time
import hpcflow as hf
import numpy as np
from hpcflow.platform.rank_logging import logger
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.runtime.job import rank_monitoring as module

folder = os.path.join({folder!r}, os.uname().nodename)
os.makedirs(folder)
module.ledger_folder = lambda: folder
context = hf.Session().context
for _ in range(3):
    logger.warning("the disk is slow")
x = hf.placeholder(hf.float32, [3], name="x")
v = hf.Variable(np.zeros(3, np.float32), name="v")
step, own, feeds = v.assign_add(replica_sum(x)), x * 2.0, {{x: np.ones(3, np.float32)}}
session = hf.Session()
session.run([v.initializer])
session.run(step, feeds)
until = time.time() + 5
while context.rank == 1 and time.time() < until:
    session.run(own, feeds)
context.barrier()
print("HEALTHY", flush=True)
if context.rank == 1:
    time.sleep(100)
session.run(step, feeds)
"""


def test_a_stall_between_hosts_names_the_line_on_the_other_one(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(JOB.format(folder=str(tmp_path / "ledgers")))
    run = tmp_path / "run"
    settings = {"RUN_DIR": run, "STALL_S": 2, "STALL_ABORT_S": 4}
    env = {f"HPCFLOW_{name}": str(value) for name, value in settings.items()}
    with Hosts(2, "1gbit") as two:
        done = two.run([sys.executable, str(script)], {"PYTHONPATH": str(ROOT), **env})
        there = two.names[1]
    assert done.returncode != 0
    assert done.stdout.count("HEALTHY") == 2, "one waited 5 s for the other, which moved"
    (report,) = run.glob("stall-*.txt")
    line = JOB.splitlines().index("    time.sleep(100)") + 1
    assert f"missing  1 on {there}, /job:worker/task:1: waits for nothing" in report.read_text()
    assert f"at {script}:{line} in <module>" in report.read_text()
    assert (run / "failure.json").exists()
    said = [row for row in done.stderr.splitlines() if row.endswith("the disk is slow")]
    assert len(said) == 1, "by the first of both hosts; a count may follow"
