"""CPU threads per rank: sizes the BLAS and OpenMP pools by the rank's cores, before numpy loads."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import sys
from collections.abc import Mapping, MutableMapping

from hpcflow.errors import HpcflowError
from hpcflow.launch import launcher_detection

# Every thread pool that a kernel may use; all get the same size, as pools of different sizes
# compete for cores.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Polls for work of a thread of libgomp's pool before it sleeps. libgomp's default, 300,000, takes
# milliseconds of a core from other processes, and from the thread that libgomp waits for:
# benchmarks/busy_neighbour.py, docs/speed.md.
SPIN_COUNT = 3_000
# "number variable variable ...", as chosen here: child processes inherit these variables, and must
# not take them for the user's.
MOST_DIGITS = 9  # of a number of threads
CHOSEN = "_HPCFLOW_THREADS"


@dataclasses.dataclass(frozen=True)
class CpuCores:
    """Number of CPUs: in this process's mask, of its job on this node, and of the node."""

    mask: int
    owned: int
    node: int
    siblings: int = 1  # CPUs of one core in the mask (2 with hyper-threading)


@dataclasses.dataclass(frozen=True)
class ThreadChoice:
    """Pool size of this rank, its number of cores, the reason, and a warning.

    With `is_late` NumPy was imported before, so that its BLAS pool has another size. `is_given`
    says whether the user has set the number.
    """

    threads: int
    cores: int
    reason: str
    warning: str | None = None
    is_late: bool = False
    is_given: bool = False


def set_up_threads(
    environ: MutableMapping[str, str] = os.environ,
    cores: CpuCores | None = None,
    local_size: int | None = None,
) -> ThreadChoice:
    """Choose the number of threads and their spin count; set the variables not set by the user.

    Precedence: `HPCFLOW_THREADS`, then the user's `OMP_NUM_THREADS` and similar variables, then the
    rank's share of the cores, which `local_size` ranks have: by default as many as the launcher
    says. Call it before numpy is imported: pools are sized when they load.
    """
    cores = cores or find_cores(environ)
    place = launcher_detection.detect_launcher(environ)
    local_size = local_size or (place.local_size if place is not None else None) or 1
    number, *names = environ.get(CHOSEN, "0").split()
    ours = dict.fromkeys(names, number)
    users = {v: environ[v] for v in VARIABLES if v in environ and environ[v] != ours.get(v)}
    # Masks that together exceed the job's CPUs overlap: `sharing` ranks share each CPU.
    sharing = max(1, -(-cores.mask * local_size // cores.owned))
    share = max(1, cores.mask // cores.siblings // sharing)
    is_setting = environ.get("HPCFLOW_THREADS", "0") != "0"
    is_given = is_setting or bool(users)
    if is_setting:
        threads, why = _number("HPCFLOW_THREADS", environ["HPCFLOW_THREADS"]), "HPCFLOW_THREADS"
        users = {}
    elif users:
        name, text = next(iter(users.items()))
        threads, why = _number(name, text.split(",")[0]), f"your {name}"
    else:
        threads, why = share, _reason(cores, sharing)
    chosen = [v for v in VARIABLES if v not in users]
    environ.update(dict.fromkeys(chosen, str(threads)))
    environ[CHOSEN] = " ".join([str(threads), *chosen])
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    is_late = "numpy" in sys.modules and threads != cores.mask
    warning = _late_import_warning(threads) if is_late else None
    if warning is None and why == "one core":
        warning = _narrow_mask_warning(cores, environ)
    own_cores = max(1, cores.mask // cores.siblings)
    return ThreadChoice(threads, own_cores, why, warning, is_late, is_given)


@functools.cache
def chosen_threads() -> ThreadChoice:
    """The threads that `import hpcflow` chose for this process, before numpy was imported."""
    return set_up_threads()


def planned_threads(ranks: int, threads: int = 0) -> int:
    """The threads that each of `ranks` ranks would choose if all were on this machine.

    `threads` is the setting, 0 if it is not given.
    """
    environ = {**os.environ, **({"HPCFLOW_THREADS": str(threads)} if threads else {})}
    return set_up_threads(environ, local_size=ranks).threads


def thread_shares(ranks: int) -> list[int]:
    """Possible thread counts of each of `ranks` ranks that share this process's cores.

    Largest first. Ranks on other nodes do not share these cores, so a rank may have any of these
    counts.
    """
    here = chosen_threads()
    if here.threads != here.cores:  # set by the user
        return [here.threads]
    return sorted({max(1, here.cores // n) for n in range(1, ranks + 1)}, reverse=True)


def find_cores(environ: Mapping[str, str] = os.environ) -> CpuCores:
    """Read the CPU mask, the control group and SLURM's count: a few system calls, no subprocess."""
    node = os.cpu_count() or 1
    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(node))
    shares = [_cpus_of_group(), environ.get("SLURM_CPUS_ON_NODE", "")]
    owned = min([node, *(int(share) for share in shares if share.isdigit() and share != "0")])
    count = min(len(mask), owned)
    # If SLURM's count limits the mask it may already count cores: do not divide by siblings.
    return CpuCores(count, owned, node, _siblings(mask) if count == len(mask) else 1)


def _reason(cores: CpuCores, sharing: int) -> str:
    if cores.mask == 1 and sharing == 1:
        return "one core"
    cpu_set = "all CPUs" if cores.mask == cores.node else "the CPUs of its mask"
    return f"{cpu_set}, shared by {sharing} ranks" if sharing > 1 else cpu_set


def _narrow_mask_warning(cores: CpuCores, environ: Mapping[str, str]) -> str | None:
    """Warning about a one-core mask on a node with more CPUs, unless the user asked for it."""
    place = launcher_detection.detect_launcher(environ)
    ranks = (place.local_size if place is not None else None) or 1
    if cores.node <= ranks or environ.get("SLURM_CPUS_PER_TASK") == "1":
        return None
    if place is not None and place.launcher == "srun":
        ask = f"srun --cpus-per-task={cores.node // ranks}"
    else:
        ask = "mpirun --bind-to none" if place is not None else "no taskset"
    return (
        f"this rank may use 1 of the node's {cores.node} CPUs, and the node has {ranks} rank"
        f"{'s' if ranks > 1 else ''}: start with `{ask}` to use more, or set HPCFLOW_THREADS=1 "
        "if one is meant"
    )


def _late_import_warning(threads: int) -> str | None:
    """Warning that the pool of BLAS keeps its size, unless a package can change it."""
    if importlib.util.find_spec("threadpoolctl") is not None:
        return None
    return (
        f"numpy was imported before hpcflow, so its pool keeps its own size instead of {threads} "
        "threads: import hpcflow first, install the package threadpoolctl, or set OMP_NUM_THREADS "
        "in the job script"
    )


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        raise HpcflowError(
            f"{name}={text!r} is not a number of threads", hint=f"unset {name} or give 1 or more"
        )
    return int(text)


def _cpus_of_group() -> str:
    """Number of CPUs of this process's control group (container, batch job); "" if unknown."""
    for line in _read("/proc/self/cgroup").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0":
            files = (f"/sys/fs/cgroup{path}/cpuset.cpus.effective",
                     "/sys/fs/cgroup/cpuset.cpus.effective")  # fmt: skip
        elif "cpuset" in kinds.split(","):
            files = (f"/sys/fs/cgroup/cpuset{path}/cpuset.cpus",
                     "/sys/fs/cgroup/cpuset/cpuset.cpus")  # fmt: skip
        else:
            continue
        text = next((text for text in map(_read, files) if text), "")
        if text:
            return str(len(_parse_cpu_list(text)))
    return ""


def _siblings(mask: set[int]) -> int:
    """How many CPUs of the mask share the core of the mask's first CPU; assumed for all cores."""
    first = min(mask)
    text = _read(f"/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list")
    return max(1, len(_parse_cpu_list(text) & mask))


def _parse_cpu_list(text: str) -> set[int]:
    """The CPU set of a list such as `0-3,8`."""
    spans = [span.partition("-") for span in text.split(",") if span]
    return {cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)}


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
