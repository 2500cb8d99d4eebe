"""A job listens nowhere: its processes have the sockets that MPI gives any job, no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTENING = """
    import glob, json, os, re, sys

    def listening():
        "The sockets of this process that accept connections, by kind."
        mine = set()
        for fd in glob.glob("/proc/self/fd/*"):
            try:
                mine.update(re.findall(r"socket:\\[(\\d+)\\]", os.readlink(fd)))
            except OSError:
                pass
        found = {}
        for kind in ("tcp", "tcp6", "unix"):
            with open(f"/proc/self/net/{kind}") as file:
                for row in (line.split() for line in file.readlines()[1:]):
                    inode = row[6] if kind == "unix" else row[9]
                    accepts = int(row[3], 16) & 0x10000 if kind == "unix" else row[3] == "0A"
                    if inode in mine and accepts:
                        found[kind] = found.get(kind, 0) + 1
        return found

    def tell(rank):
        with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
            json.dump(listening(), file)
"""
BARE = """
    from mpi4py import MPI
    MPI.COMM_WORLD.allreduce(1)
    tell(MPI.COMM_WORLD.rank)
    MPI.COMM_WORLD.barrier()
"""
JOB = """
    import numpy as np
    import hpcflow as hf
    from tests.runtime.nets import data, net

    features, labels = data(24)
    x, y, loss, step, variables = net()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=8)
    with hf.train.TrainingSession(checkpoints=sys.argv[1] + "/c") as session:
        for batch in dataset.epochs(2):
            session.step([step, loss], batch)
        tell(session.context.rank)
        session.save()
"""


def run(folder: Path, body: str, words: list[str]) -> list[dict[str, int]]:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(textwrap.dedent(LISTENING) + textwrap.dedent(body))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words, str(script), str(folder)],
        **{"cwd": ROOT, "env": environ, "capture_output": True, "text": True, "timeout": 220},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(file.read_text()) for file in sorted(folder.glob("[0-9]"))]


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("mode", [[], ["--ps", "1"]], ids=["sums", "servers"])
def test_a_job_listens_nowhere_but_where_mpi_does(tmp_path: Path, mode: list[str]) -> None:
    ranks = 3 if mode else 2
    bare = run(tmp_path / "bare", BARE, ["tools/mpirun.py", str(ranks), sys.executable])
    words = ["-m", "hpcflow", "run", "-n", str(ranks), "--run-dir", str(tmp_path / "run"), *mode]
    job = run(tmp_path / "job", JOB, words)
    assert len(bare) == ranks and len(job) == 2  # a server runs no script
    assert all(one == bare[0] for one in bare)
    assert all(one == bare[0] for one in job)


def test_the_test_sees_a_socket(tmp_path: Path) -> None:
    body = """
        import socket
        opened = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        opened[1].bind(sys.argv[1] + "/x")
        opened[1].listen()
        tell(0)
    """
    assert run(tmp_path / "alone", body, []) == [{"tcp": 1, "unix": 1}]
