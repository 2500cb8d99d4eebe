"""Forked workers are refused in a job with MPI; other children are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcflow.launch import launcher_detection

ROOT = Path(__file__).parents[2]
PROGRAM = """
import multiprocessing, os, subprocess, sys
import numpy as np
import hpcflow as hf
from hpcflow.errors import DataError

x = hf.placeholder(hf.float32, [None])
hf.data.Dataset({x: np.zeros(9, np.float32)}, batch=2)
for _ in range(2):
    try:
        multiprocessing.get_context("fork").Process(target=print).start()
    except DataError as error:
        assert "forkserver" in str(error)
        print("refused", flush=True)
subprocess.run([sys.executable, "-c", "pass"], check=True)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
print("others", flush=True)
"""


def test_forked_workers_are_refused_once_mpi_runs() -> None:
    start = launcher_detection.start_command(1, [sys.executable, "-W", "ignore", "-c", PROGRAM])
    environ = {**start.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        start.argv, env=environ, capture_output=True, text=True, timeout=220, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert [w for w in done.stdout.split() if w in ("refused", "others")] == [
        "refused",
        "refused",
        "others",
    ]
