"""MPICH's wheel between nodes, where its receives from any source cannot be relied on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster import HERE, ROOT, Cluster
from conftest import PYTHONS


def test_a_server_hears_every_sender_over_ucx(slurm: Cluster) -> None:
    python = Path(PYTHONS["MPICH"])
    if not python.exists():
        pytest.skip(f"needs {python}, which `make test-slurm` makes")
    mpich = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ucx"}  # as between nodes
    script = [str(python), str(HERE / "any_source.py"), "channel"]
    argv = [str(python.parent / "mpiexec"), "-n", "4", *script]
    environ = {**slurm.environ, **mpich}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "heard all" in done.stdout, done.stdout + done.stderr


def test_mpirun_of_mpich_loses_a_rank_that_is_named(tmp_path: Path) -> None:
    """It kills all others at once."""
    python = Path(PYTHONS["MPICH"])
    if not python.exists():
        pytest.skip(f"needs {python}, which `make test-slurm` makes")
    words = ["-n", "3", "--run-dir", "run", "--inject", "kill:rank=1@step=93"]
    script = [str(HERE / "steps.py"), "--wait", "--checkpoints", "saved", "--save-every", "5"]
    done = subprocess.run(
        [str(python), "-m", "hpcflow", "run", *words, *script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_SAVE": "foreground"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 86, done.stdout
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"]) == ("death", 1), facts
    assert facts["task"] == "/job:worker/task:1" and facts["host"] == os.uname().nodename
    assert f"process {facts['cause'].split()[1]} " in done.stdout and 0 < facts["step"] < 93
    assert facts["checkpoint"] == str((tmp_path / "saved" / "step-90").resolve())
    assert done.stdout.count("has died") == 1
