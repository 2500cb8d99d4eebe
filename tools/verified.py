"""Writes docs/verified.md from the records of tests: `python tools/verified.py > docs/verified.md`.

`make verified` runs the tests that write the records, then this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "docs" / "verified"
HEAD = """# What has really run

The last run of each back end that passed its tests; made by `make verified` (`tools/verified.py`)
from the records in `docs/verified/`. A plus after a commit: the package had been changed since.

| back end | ranks | versions | commit | date |
|---|---|---|---|---|
"""
BACK_ENDS = {
    "Open MPI": "messages and sums between ranks, mpirun of Open MPI",
    "MPICH": "the same, mpirun of MPICH",
    "NCCL, 1 rank": "sums on a GPU, alone",
    "NCCL, 2 or more ranks": "sums between GPUs",
    "mpio": "checkpoints in one file by parallel HDF5",
    "sharded": "checkpoints of a file a rank",
    "srun, Open MPI": "jobs of a real SLURM over two nodes, --mpi=pmix",
    "srun, MPICH": "the same, --mpi=pmi2",
    "srun, a site's Open MPI": "the same, with Debian's library and no wheel",
    "srun, a site's MPICH": "the same, reached by `module load` and MPI4PY_LIBMPI alone",
    "ULFM": "going on without a rank that died",
}


def main() -> None:
    """Print the page."""
    print(page(read(RECORDS)), end="")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The records, by back end."""
    facts = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {record["back_end"]: record for record in facts}


def page(records: dict[str, dict[str, Any]]) -> str:
    """The whole page: every back end, run or not."""
    unknown = set(records) - set(BACK_ENDS)
    if unknown:
        raise SystemExit(
            f"records of {sorted(unknown)}: add them to BACK_ENDS in tools/verified.py"
        )
    return HEAD + "".join(_row(name, records.get(name)) for name in BACK_ENDS)


def _row(name: str, record: dict[str, Any] | None) -> str:
    title = f"**{name}**: {BACK_ENDS[name]}"
    if record is None:
        return f"| {title} | | never run | | |\n"
    versions = ", ".join(f"{what} {number}" for what, number in record["versions"].items())
    versions = versions.replace("MPI Open MPI v", "Open MPI ").replace(
        "MPI MPICH Version: ", "MPICH "
    )
    return f"| {title} | {record['ranks']} | {versions} | {record['commit']} | {record['date']} |\n"


if __name__ == "__main__":
    main()
