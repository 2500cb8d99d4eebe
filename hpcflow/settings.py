"""Settings: one frozen record; the environment variable `HPCFLOW_<FIELD>` sets a field."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Mapping

from hpcflow.errors import HpcflowError
from hpcflow.platform import fault_specification
from hpcflow.ps.sync_rules import rule

PREFIX = "HPCFLOW_"
AUTOMATIC = "auto"  # the value of placement that is no file
# those that report/setting_advice.py judges after a run
JUDGED = ("bucket_bytes", "overlap", "ps", "shard_bytes")
SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) *(?:([kmgt])(i)?)?b?", re.ASCII)
KINDS = {int: "a whole number", float: "a number", bool: "1 or 0", str: "a text"}
CHOICES = {  # the values of settings that have few
    "comm": ("auto", "mpi", "shared", "nccl"),
    "dense": ("servers", "replicas"),
    "save": ("background", "foreground"),
    "pack": ("auto", "on", "off"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one run; the environment variable `HPCFLOW_<FIELD>` sets any field."""

    ps: int = 0  # number of parameter servers; 0: collective mode
    serve: bool = False  # this rank is a parameter server; for some ranks, in place of ps
    tasks_per_replica: int = 1  # worker ranks over which one driver's graph is placed
    sync: str = ""  # synchronization rule: async (default), all, backup:K, stale:S or your own
    run_dir: str = ""  # output folder of a run; "": the current one, and no run records
    log_files: bool = False  # every rank writes its whole log to rank-N.log in the run directory
    page: bool = (
        True  # `hpcflow run` writes report.html to the run directory, while the run goes on
    )
    tensorboard: bool = False  # write metrics also as TensorBoard events to the run directory
    threads: int = 0  # BLAS and OpenMP threads per rank; 0: as many as the rank has cores
    comm: str = "auto"  # allreduce backend of replicas: auto, mpi, shared or nccl
    bucket_bytes: int = 0  # bytes of gradients in an allreduce; 0: 1 MiB, or by the topology
    overlap: bool = True  # start the allreduce of gradients during the backward pass
    dense: str = "servers"  # location of variables not read by rows: servers or replicas
    shard_bytes: int = 16 << 20  # larger variables are sharded by rows over the servers
    prefetch: bool = False  # after a step, pull the variables that the next step reads from servers
    placement: str = ""  # auto: over the tasks of a replica; FILE: servers as result.json measured
    topology: str = ""  # file of the job's ranks, nodes and links (help placement)
    memory_limit: str = ""  # for each device of a rank: 8GiB, 500MB; "": all available memory
    max_in_flight: int = 4  # concurrent instances of one plan on a rank
    survive: bool = False  # continue after a worker dies (not the chief), if the MPI supports it
    replace: bool = False  # after the death of a worker save, stop and restart with all workers
    stall_s: float = 60.0  # seconds; a longer wait is reported
    stall_abort_s: float = 600.0  # seconds; a longer wait ends the job
    crowded: bool = False  # other programs use the cores of the ranks: yield the CPU while waiting
    mtbf_h: float = 6300.0  # mean hours between failures of one node, for the checkpoint interval
    time_limit: str = ""  # time limit of the job: 90m, 2:00:00; "": as SLURM reports
    max_restarts: int = -1  # restarts of a job that resumes; -1: no limit
    requeue: bool = True  # request that SLURM requeues a stopped job
    checkpoints: str = ""  # replaces the script's checkpoint folder; the job resumes from it
    default_checkpoints: str = ""  # as checkpoints, for a script that names no folder
    stop_at: int = 0  # stop before this step, counted over all restarts, as on a signal; 0: never
    part_bytes: int = 64 << 20  # bytes of replicated variables per checkpoint writer
    writers_per_node: int = 4  # most replicas of a node that write a part of a checkpoint
    save: str = "background"  # write checkpoints in the background or in the foreground
    check_numerics: bool = False  # check every float result for NaN and infinity
    verify_passes: bool = False  # check after each pass of the planner that no side effect was lost
    random_seed: int = -1  # seed of unseeded random ops, written to result.json; -1: a new one
    exact: bool = False  # forbid rewrites and kernels that change rounding
    allow_tf32: bool = False  # float32 products on GPUs use 10-bit mantissas (help gpu)
    kernels: str = "auto"  # kernel providers: auto, plain (NumPy, CuPy), or names, best first
    cuda_graphs: bool = True  # capture and replay steps on a GPU (help gpu)
    kernel_cache: str = ""  # folder of compiled kernels; "": in the user's cache folder; none: off
    plan_cache: str = ""  # folder of plans with their code; values as of kernel_cache
    cost_cache: str = ""  # folder of machine profiles (help costs); values as of kernel_cache
    pack: str = "auto"  # `hpcflow run -n`: import hpcflow from one file: on, off, auto (help run)
    pack_cache: str = ""  # folder of these files; values as of kernel_cache
    inject: str = ""  # injected faults for a rehearsal, separated by `;` (help faults)
    profile: bool = False  # profile some steps by operation (help profiling)
    full_traceback: bool = False  # tracebacks of errors also show frames of libraries
    trace: str = ""  # trace of all ranks, FILE.json (help profiling)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ, /, **given: object) -> Settings:
        """The defaults, overridden by `HPCFLOW_*`, overridden by `given`.

        Errors: HpcflowError naming a value that cannot be parsed.
        """
        field_values: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(PREFIX + field.name.upper())
            if text is not None:
                field_values[field.name] = _parse(field.name, type(field.default), text)
        _check_spelling(environ)
        field_values.update({k: v for k, v in given.items() if v is not None})
        settings = cls(**field_values)  # type: ignore[arg-type]
        settings._check()
        return settings

    @property
    def one_by_one(self) -> bool:
        """Whether each operation's values are checked or poisoned; this forbids fusion."""
        return self.check_numerics or any(
            f.kind == "nan" for f in fault_specification.parse_faults(self.inject)
        )

    @property
    def automatic(self) -> bool:
        """Whether the planner chooses the tasks of operations within a replica."""
        return self.placement == AUTOMATIC

    def changed(self) -> dict[str, object]:
        """The fields that differ from their defaults; printed at the start of a run."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            f.name: values[f.name] for f in dataclasses.fields(self) if values[f.name] != f.default
        }

    def _check(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise HpcflowError(
                    f"setting {name}={getattr(self, name)!r} is not one of {', '.join(allowed)}",
                    hint=f"set {PREFIX}{name.upper()} to one of them",
                )
        if self.automatic and self.tasks_per_replica == 1:
            raise HpcflowError(
                "setting placement=auto places operations over the tasks of a replica, which has 1",
                hint="start with --tasks-per-replica 2 or more, or leave placement out",
            )
        rule(self.sync or "async")
        as_bytes(self.memory_limit)
        fault_specification.parse_faults(self.inject)
        least = {
            "ps": 0,
            "tasks_per_replica": 1,
            "bucket_bytes": 0,
            "part_bytes": 1,
            "writers_per_node": 1,
            "max_in_flight": 1,
            "threads": 0,
            "stall_s": 0,
            "stall_abort_s": 0,
            "max_restarts": -1,
            "stop_at": 0,
            "random_seed": -1,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value < low or math.isnan(value):
                raise HpcflowError(f"setting {name}={value} must be at least {low}")
        if not 0 < self.mtbf_h < math.inf:
            raise HpcflowError(f"setting mtbf_h={self.mtbf_h} must be a number of hours above 0")


def new_seed() -> int:
    """A random value for `random_seed`."""
    return int.from_bytes(os.urandom(7), "little")


def as_bytes(text: str) -> int:
    """The number of bytes in `8GiB`, `500 MB` or `1.5e9`; 0 for an empty text.

    Errors: HpcflowError if the text is no size.
    """
    match = SIZE.fullmatch(text.strip().lower() or "0")
    if match is not None:
        number, unit, binary = match.groups()
        nbytes = float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " ")
        if nbytes < 2**63:
            return int(nbytes)
    raise HpcflowError(
        f"setting memory_limit={text!r} is not a size", hint="write it as 8GiB or 500MB"
    )


def _check_spelling(environ: Mapping[str, str]) -> None:
    """Raise an error for an unknown `HPCFLOW_*` variable whose name resembles a field.

    HPCFLOW_ROOT is allowed, since environment modules set it.
    """
    fields = [field.name for field in dataclasses.fields(Settings)]
    for variable in environ:
        name = variable.removeprefix(PREFIX).lower()
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
        if variable.startswith(PREFIX) and name not in fields and near:
            raise HpcflowError(
                f"there is no setting {variable}", hint=f"unset it or set {PREFIX}{near[0].upper()}"
            )


def _parse(name: str, kind: type, text: str) -> object:
    flags = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    try:
        return flags[text.strip().lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise HpcflowError(
            f"setting {name}={text!r} is not {KINDS[kind]}",
            hint=f"give {KINDS[kind]}: --set {name}=..., or {PREFIX}{name.upper()}",
        ) from None
