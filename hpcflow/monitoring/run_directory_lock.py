"""Run directory lock: one job at a time uses a folder; the lock file is `.running.json`.

For run directories and checkpoint folders, which two jobs must not share. The file describes the
process that uses the folder, which touches the file every TOUCH_S. Whether that process is alive is
decided by the processes of this host, by SLURM, and last by the age of the file, each where it is
known.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.errors import LaunchError
from hpcflow.launch import slurm_requeue
from hpcflow.monitoring.stack_dump import process_state
from hpcflow.monitoring.wait_ledger import DEAD_S, alive
from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_line

NAME = ".running.json"
TAKING, TAKING_S = f"{NAME}.taking", 0.02  # the job that replaces a dead one's file; a short wait
RUN_DIR, CHECKPOINTS = "the run directory", "the folder of checkpoints"  # for messages
TOUCH_S = 30.0
MOST_BYTES = 1 << 16  # of the file
MOST_PID = 1 << 22  # Linux
ATTEMPTS = 5  # to replace the lock of a dead job, as other jobs may do the same
_held: dict[str, int] = {}  # folder -> number of claims of this process
_made: set[str] = set()  # folders that this process has created
_lock = threading.Lock()
_over = threading.Event()  # nothing is held: the touching thread ends


def claim_directory(folder: Path, label: str) -> None:
    """Lock a folder, called `label` in messages, until `release` or the end of this process.

    Errors: LaunchError that names the job which uses it; OSError if it cannot be written.
    """
    key = os.path.realpath(folder)
    with _lock:
        if key not in _held:
            is_new = not os.path.isdir(key)
            os.makedirs(key, exist_ok=True)
            _try_claim(folder, label)
            if is_new:
                _made.add(key)
            if not _held:
                _begin_touching()
        _held[key] = _held.get(key, 0) + 1


def release_directory(folder: Path) -> None:
    """Undo one `claim`. A folder that `claim` created is removed if it is empty."""
    key = os.path.realpath(folder)
    with _lock:
        if key not in _held:
            return
        _held[key] -= 1
        if not _held[key]:
            del _held[key]
            _release(key)
        if not _held:
            _over.set()


def refuse_directory(folder: Path, label: str) -> None:
    """LaunchError if another job uses the folder; does not claim it, and it need not exist."""
    try:
        claim = _read(folder / NAME)
    except OSError:  # reported by the next claim
        return
    if claim is not None and os.path.realpath(folder) not in _held:
        owner = claim[0]
        if _is_alive(owner, this_job(), folder / NAME, None):
            raise _is_in_use(folder, label, owner)


def is_free(folder: Path) -> bool:
    """Whether no other job uses the folder."""
    try:
        refuse_directory(folder, "")
    except LaunchError:
        return False
    return True


def this_job(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The content of the lock file for this process."""
    pid = os.getpid()
    return {
        "job": slurm_requeue.job_of(environ),
        "restarts": environ.get("SLURM_RESTART_COUNT", "0"),
        "step": environ.get("SLURM_STEP_ID"),
        "cluster": environ.get("SLURM_CLUSTER_NAME"),
        "host": os.uname().nodename,
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "processes": _link("/proc/self/ns/pid"),  # the PID namespace; a container has its own
        "pid": pid,
        "begun": _start_time(pid),
        "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def describe(who: Mapping[str, Any]) -> str:
    """Description of a job for messages, from its lock file."""
    job = f"SLURM job {who['job']}, " if who.get("job") else ""
    place = f"process {who.get('pid', '?')} on {who.get('host', 'an unknown host')}"
    return escape_line(f"{job}{place}, since {who.get('since', 'an unknown time')}")


# -- the file


def _try_claim(folder: Path, label: str) -> None:
    mark, own_job = folder / NAME, this_job()
    draft = folder / f"{NAME}.{own_job['host']}.{own_job['pid']}"
    draft.unlink(missing_ok=True)
    with draft.open("x") as file:  # does not follow links
        file.write(json.dumps(own_job, indent=1) + "\n")
    try:
        for _ in range(ATTEMPTS):
            if _write_claim(draft, mark):
                return
            claim = _other_claim(mark, label)
            if claim is None:  # just released
                continue
            owner, text = claim
            if _is_alive(owner, own_job, mark, draft):
                raise _is_in_use(folder, label, owner)
            if _take_over(draft, mark, text, own_job):
                return
        raise LaunchError(f"{label} {folder}: several jobs begin in it at once", hint="start one")
    finally:
        draft.unlink(missing_ok=True)


def _other_claim(mark: Path, label: str) -> tuple[dict[str, Any], str] | None:
    """`_read`, with a LaunchError if the lock file cannot be read."""
    try:
        return _read(mark)
    except OSError as error:
        raise LaunchError(
            f"{label} {mark.parent}: whether a job uses it is not known, for {NAME} cannot be "
            f"read: {error.strerror}",
            hint=f"remove {mark} if no job runs there",
        ) from None


def _write_claim(draft: Path, mark: Path) -> bool:
    """Create the lock file atomically; False if it exists."""
    try:
        os.link(draft, mark)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with mark.open("x") as file:
                file.write(draft.read_text())
        except FileExistsError:
            return False
    return True


def _take_over(draft: Path, mark: Path, text: str, own_job: Mapping[str, Any]) -> bool:
    """Replace the lock file of a dead job, which has this text, by `draft`.

    False if another job replaces it or has replaced it: one job at a time may, that which has the
    file `TAKING`. So the lock file is never absent, and no other job's is overwritten.
    """
    taking = mark.with_name(TAKING)
    if not _write_claim(draft, taking):
        other = _read(taking)
        if other is not None and not _is_alive(other[0], own_job, taking, draft):
            _set_aside(taking, other[1])
        else:
            time.sleep(TAKING_S)
        return False
    try:
        claim = _read(mark)
        if claim is None or claim[1] != text:
            return False
        os.replace(draft, mark)
        return True
    finally:
        taking.unlink(missing_ok=True)


def _set_aside(mark: Path, text: str) -> None:
    """Remove the file of a job that died while it took over, unless another has replaced it."""
    away = mark.with_name(f"{NAME}.{os.uname().nodename}.{os.getpid()}.old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(mark, away)
        claim = _read(away)
        if claim is not None and claim[1] != text:
            _write_claim(away, mark)
        away.unlink()


def _read(mark: Path) -> tuple[dict[str, Any], str] | None:
    """The content of the lock file, and its text; None if there is none; {} if malformed.

    Errors: OSError if it cannot be read, or is not a regular file.
    """
    try:
        with open(open_plain(mark), "rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        owner = None
    return (owner if isinstance(owner, dict) else {}), text


def _is_in_use(folder: Path, label: str, who: Mapping[str, Any]) -> LaunchError:
    return LaunchError(
        f"{label} {folder} is in use by another job: {describe(who)}",
        hint=f"wait for its end, or name another folder; if it has ended, remove {folder / NAME}",
    )


# -- whether its writer is alive


def _is_alive(
    who: Mapping[str, Any], own_job: Mapping[str, Any], mark: Path, draft: Path | None
) -> bool:
    """Whether the writer of `mark`, not this process, is alive; `draft` was written just now."""
    here = ("boot", "processes") if own_job["boot"] else ("host", "boot")
    if all(who.get(name) == own_job[name] for name in here):
        return who.get("pid") != own_job["pid"] and _is_running(who.get("pid"), who.get("begun"))
    if str(who.get("job")).isdecimal() and who.get("cluster") == own_job["cluster"]:
        if who["job"] == own_job["job"] and who.get("restarts") != own_job["restarts"]:
            return False  # an earlier start of this job
        is_running = slurm_requeue.is_job_running(str(who["job"]), who.get("step"))
        if is_running is not None:
            return is_running
    return _seconds_silent(mark, draft) < DEAD_S


def _is_running(pid: Any, begun: Any) -> bool:
    """Whether process `pid` of this host is alive and started at `begun`."""
    if (
        not isinstance(pid, int)
        or not 0 < pid <= MOST_PID
        or not alive(pid)
        or process_state(pid) in "ZX"
    ):
        return False
    now = _start_time(pid)
    return now is None or begun is None or now == begun


def _seconds_silent(mark: Path, draft: Path | None) -> float:
    """Seconds since the file was touched, by the file system's clock if `draft` is given."""
    try:
        touched = mark.stat().st_mtime
        now = draft.stat().st_mtime if draft is not None else datetime.datetime.now().timestamp()
    except OSError:  # just released
        return DEAD_S
    return now - touched


def _start_time(pid: int) -> int | None:
    """The start time of a process, in clock ticks since boot; None if unknown."""
    line = _first_line(f"/proc/{pid}/stat")
    return int(line.rpartition(")")[2].split()[19]) if line else None


def _first_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


# -- while it is held


def _begin_touching() -> None:
    _over.clear()
    threading.Thread(target=_touch, name="hpcflow-in-use", daemon=True).start()


def _touch() -> None:
    while not _over.wait(TOUCH_S):
        for folder in list(_held):
            with contextlib.suppress(OSError):
                os.utime(os.path.join(folder, NAME))


def _release(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, NAME))
        if folder in _made:
            os.rmdir(folder)
    _made.discard(folder)


@atexit.register
def _release_all() -> None:
    while _held:
        _release(_held.popitem()[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)  # a forked child holds no folder
