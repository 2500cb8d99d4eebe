"""Check table: all checks, each a function from the facts of a job to findings, without MPI."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hpcflow.doctor import node_checks as node
from hpcflow.doctor import startup_checks as start
from hpcflow.doctor.rank_facts import Finding, JobFacts

Check = Callable[[JobFacts], list[Finding]]
CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", start.python),
    ("packages", start.packages),
    ("launcher", start.launcher),
    ("MPI", start.library),
    ("libmpi", start.libmpi),
    ("thread level", start.thread_level),
    ("ULFM", start.ulfm),
    ("CUDA-aware", start.cuda_aware),
    ("HDF5", start.hdf5),
    ("kernels", start.kernels),
    ("cores", node.cores),
    ("BLAS", node.blas),
    ("speed", node.speed),
    ("GPUs", node.gpus),
    ("GPU kernels", node.gpu_kernels),
    ("disk", node.disk),
    ("clocks", node.clock),
    ("network", node.links),
    ("waiting", node.waiting),
)


def run_checks(job: JobFacts) -> list[Finding]:
    """All findings, in the order of the table."""
    return [
        dataclasses.replace(finding, check=name) for name, check in CHECKS for finding in check(job)
    ]
