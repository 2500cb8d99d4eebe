"""Ranks that write one file together: one that does not come to a call of HDF5 is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection
from hpcflow.runtime.hdf5_library import is_parallel

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal, sys
import numpy as np
import hpcflow as hf
from hpcflow.checkpoint import hdf5_datasets, parallel_hdf5_write
from hpcflow.runtime.job.job_membership import current_context


def stop(*args):
    os.kill(os.getpid(), signal.SIGSTOP)


where, folder = sys.argv[1:]
if current_context().rank == 1:
    if where == "opening":
        parallel_hdf5_write.write_shared = stop
    else:
        hdf5_datasets.write_rows = stop
made = [hf.Variable(np.ones((64, 8), np.float32), name=f"v{i}") for i in range(6)]
session = hf.Session()
session.run(hf.global_variables_initializer())
hf.train.Saver(made, form="parallel").save(session, folder, 1)
"""
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)


@pytest.mark.parametrize("where", ["opening", "closing"])
def test_a_rank_that_does_not_come_to_a_call_of_hdf5_is_named(tmp_path: Path, where: str) -> None:
    """It is stopped, and in the call the interpreters of the others stand: none could tell."""
    if not is_parallel():
        pytest.skip("needs an h5py built with MPI")
    (tmp_path / "script.py").write_text(SCRIPT)
    stall = ["--set", "stall_s=5", "--set", "stall_abort_s=10"]  # a slow start is no stall
    options = [*stall, "--set", "part_bytes=1", "--run-dir", "run", "script.py"]  # all ranks write
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "-n", "3", *options, where, "saved"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode, done.stdout + done.stderr
    (report,) = (tmp_path / "run").glob("stall-*")
    told = report.read_text()
    assert re.search(rf"'{where} step-1\.h5' has waited \d+ s for 1 of 3 ranks", told)
    assert re.search(r"missing  1 on [^\n]*is stopped \(T; kill -CONT", told), told
