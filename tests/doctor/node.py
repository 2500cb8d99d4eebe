"""Play one node of four, then become the doctor: python node.py FAULT NODE FOLDER ARGS...

Each rank gets a host name of its own; the rank whose number is NODE also gets the fault.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

FULL = (
    "mount -t tmpfs -o size=512k none {0} && (cat /dev/zero > {0}/x 2>&-; true) "
    "&& export TMPDIR={0}"
)
FIND = """
from hpcflow.comm import mpi_library
from hpcflow.doctor import rank_inspection

mpi_library.library_version()
print(rank_inspection.mapped_libmpi()[0])
"""
H5PY = """
import ctypes
ctypes.CDLL({library!r})

class version:
    hdf5_version = "1.14.6"

class Config:
    mpi = True

get_config = Config
"""


def main(fault: str, node: int, folder: pathlib.Path, program: list[str]) -> None:
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    steps = [f"hostname node{rank}"]
    if rank == node and fault == "mask":
        steps.append(f"taskset -cp {min(os.sched_getaffinity(0))} $$ > /dev/null")
    if rank == node and fault == "libmpi":
        path = f"{plant_h5py(folder)}:{os.environ.get('PYTHONPATH', '')}"
        os.environ["PYTHONPATH"] = path
    if rank == node and fault == "tmpdir":
        steps.append(FULL.format(folder))
    command = " && ".join([*steps, 'exec "$@"'])
    os.execvp("unshare", ["unshare", "--uts", "--mount", "sh", "-c", command, "sh", *program])


def plant_h5py(folder: pathlib.Path) -> pathlib.Path:
    """An h5py built for another MPI: a copy of the library elsewhere is another library."""
    launchers = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "HYDI_")
    alone = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    command = [sys.executable, "-c", FIND]
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=True)
    other = folder / "site" / "libmpi.so.40"
    other.parent.mkdir()
    other.write_bytes(pathlib.Path(done.stdout.strip()).read_bytes())
    (folder / "h5py.py").write_text(H5PY.format(library=str(other)))
    return folder


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:])
