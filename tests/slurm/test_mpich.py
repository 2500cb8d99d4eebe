"""MPICH's wheel between nodes, where its receives from any source cannot be relied on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cluster import HERE, Cluster
from conftest import PYTHONS


def test_a_server_hears_every_sender_over_ucx(slurm: Cluster) -> None:
    python = Path(PYTHONS["MPICH"])
    if not python.exists():
        pytest.skip(f"needs {python}, which `make test-slurm` makes")
    mpich = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ucx"}  # as between nodes
    script = [str(python), str(HERE / "any_source.py"), "channel"]
    argv = [str(python.parent / "mpiexec"), "-n", "4", *script]
    environ = {**slurm.environ, **mpich}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "heard all" in done.stdout, done.stdout + done.stderr
