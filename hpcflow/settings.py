"""What a user may set, in one frozen record; `HPCFLOW_<FIELD>` in the environment sets a field."""

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
SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) *(?:([kmgt])(i)?)?b?", re.ASCII)
KINDS = {int: "a whole number", float: "a number", bool: "1 or 0", str: "a text"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of one run; every field may come from the environment as `HPCFLOW_<FIELD>`."""

    ps: int = 0  # ranks that serve variables; 0 is collective mode
    serve: bool = False  # this rank serves variables: set on some of the ranks, in place of ps
    tasks_per_replica: int = 1  # worker ranks that one driver's graph spans
    sync: str = ""  # how workers of servers keep step: async (default), all, backup:K or stale:S
    run_dir: str = ""  # folder for all a run writes; "": the current one, and no records of the run
    log_files: bool = False  # every rank writes all it logs to rank-N.log in the run directory
    tensorboard: bool = False  # metrics also as TensorBoard's events in the run directory
    threads: int = 0  # BLAS and OpenMP threads per rank; 0: by the rank's own cores
    comm: str = "auto"  # how replicas sum: auto, mpi, shared or nccl
    bucket_bytes: int = 1 << 20  # gradients are summed in buckets of about this size
    overlap: bool = True  # start summing while backward still runs
    dense: str = "servers"  # where variables are that are not read by rows: servers or replicas
    shard_bytes: int = 16 << 20  # variables above this are cut by rows over the servers
    prefetch: bool = False  # pull what the next step reads from servers when a step has ended
    placement: str = ""  # result.json of a run: variables are placed by the bytes they moved there
    memory_limit: str = ""  # of each device of a rank: 8GiB, 500MB; "": as much as there is
    max_in_flight: int = 4  # instances of one plan that may run at once on a rank
    survive: bool = False  # go on if a worker other than the chief dies, under an MPI that can
    replace: bool = False  # and then save, stop and come back with all workers
    stall_s: float = 60.0  # seconds a wait may last before it is reported
    stall_abort_s: float = 600.0  # seconds after which a stalled job ends
    crowded: bool = False  # ranks share their cores with others unseen: wait politely
    mtbf_h: float = 6300.0  # mean hours between failures of one node, for how often to save
    time_limit: str = ""  # after which the job is ended: 90m, 2:00:00; "": SLURM is asked
    max_restarts: int = -1  # a job that goes on does so this often at most; -1: any number
    requeue: bool = True  # SLURM is asked to queue again a job that was stopped
    checkpoints: str = ""  # folder that takes the place of the script's own; the job goes on there
    default_checkpoints: str = ""  # the same for a script that names no folder of its own
    stop_at: int = 0  # stop before this step, of all starts, as a signal does; 0: never
    part_bytes: int = 64 << 20  # of what replicas share each writer of a checkpoint has so much
    writers_per_node: int = 4  # so many replicas of a node write a share of a checkpoint, at most
    save: str = "background"  # training goes on while checkpoints are written; or: foreground
    check_numerics: bool = False  # look at every float result for NaN and infinity
    verify_passes: bool = False  # check behind each pass of the planner that no effect was lost
    random_seed: int = -1  # of draws without one, told in result.json; -1: another in each job
    exact: bool = False  # forbid rewrites and kernels that change rounding
    allow_tf32: bool = False  # float32 products on GPUs multiply numbers of 10 bits (help gpu)
    kernels: str = "auto"  # who provides kernels: auto, plain (NumPy, CuPy), or names, best first
    cuda_graphs: bool = True  # steps on a GPU are captured and replayed (help gpu)
    kernel_cache: str = ""  # folder of compiled kernels, "": of the user's caches; none: no folder
    plan_cache: str = ""  # folder of plans with their code, as kernel_cache
    inject: str = ""  # faults to suffer as a rehearsal (help faults): `;` between them
    profile: bool = False  # say where the time of some steps goes, by operation (help profiling)
    trace: str = ""  # a file for what ran and waited when, one a rank (FILE.RANK.json)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ, /, **given: object) -> Settings:
        """Defaults, then `HPCFLOW_*`, then `given`; an unreadable value is an error naming it."""
        found: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(PREFIX + field.name.upper())
            if text is not None:
                found[field.name] = _parse(field.name, type(field.default), text)
        _check_spelling(environ)
        found.update({k: v for k, v in given.items() if v is not None})
        settings = cls(**found)  # type: ignore[arg-type]
        settings._check()
        return settings

    @property
    def one_by_one(self) -> bool:
        """Whether each operation's values are looked at, or poisoned: none may go into another."""
        return self.check_numerics or any(
            f.kind == "nan" for f in fault_specification.parse(self.inject)
        )

    def changed(self) -> dict[str, object]:
        """The fields that differ from their defaults, to be printed at the start of a run."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            f.name: values[f.name] for f in dataclasses.fields(self) if values[f.name] != f.default
        }

    def _check(self) -> None:
        choices = {
            "comm": ("auto", "mpi", "shared", "nccl"),
            "dense": ("servers", "replicas"),
            "save": ("background", "foreground"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise HpcflowError(
                    f"setting {name}={getattr(self, name)!r} is not one of {', '.join(allowed)}",
                    hint=f"set {PREFIX}{name.upper()} to one of them",
                )
        rule(self.sync or "async")
        as_bytes(self.memory_limit)
        fault_specification.parse(self.inject)
        least = {
            "ps": 0,
            "tasks_per_replica": 1,
            "bucket_bytes": 1,
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
    """A value of `random_seed`, by chance."""
    return int.from_bytes(os.urandom(7), "little")


def as_bytes(text: str) -> int:
    """Bytes of `8GiB`, `500 MB` or `1.5e9`; 0 of an empty text.

    Errors: HpcflowError if it is no size.
    """
    found = SIZE.fullmatch(text.strip().lower() or "0")
    if found is not None:
        number, unit, binary = found.groups()
        nbytes = float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " ")
        if nbytes < 2**63:
            return int(nbytes)
    raise HpcflowError(
        f"setting memory_limit={text!r} is not a size", hint="write it as 8GiB or 500MB"
    )


def _check_spelling(environ: Mapping[str, str]) -> None:
    """An unknown `HPCFLOW_*` is an error if it looks like a field; HPCFLOW_ROOT is a module's."""
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
