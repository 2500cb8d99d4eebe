"""Checkpoint directory: names, publishing by rename, order by age, retention policy."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.checkpoint import header_digests
from hpcflow.checkpoint.hdf5_datasets import sync
from hpcflow.errors import CheckpointCorruptError, CheckpointStorageError, HpcflowError

LATEST, INDEX = "latest", "index.h5"
_NAME = re.compile(r"step-(\d+)(\.h5)?(\.old)?\Z")
_DRAFT = re.compile(r"(step-\d+(\.h5)?|latest)\.tmp\Z")


class CheckpointEntry(NamedTuple):
    """A checkpoint in a folder; if it cannot be read, `facts` is None and `error` says why."""

    path: Path  # the directory or the file
    facts: dict[str, Any] | None
    error: HpcflowError | None

    @property
    def step(self) -> int:
        """The step in its name."""
        return step_of(self.path)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint, -1 if it has none."""
    match = _NAME.match(path.name)
    return int(match.group(1)) if match else -1


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder of checkpoints, not one of them."""
    return os.path.isdir(path) and not os.path.exists(path / INDEX)


def index_file(path: Path) -> Path:
    """The file that holds a checkpoint's index; `path` itself may be a link."""
    return path / INDEX if os.path.isdir(path) else Path(os.path.realpath(path))


def find_checkpoints(folder: Path) -> list[CheckpointEntry]:
    """The checkpoints of a folder, newest first, without drafts.

    The order is that of the saves' serial numbers. An unreadable checkpoint comes before the
    readable ones of its step or an earlier step.
    """
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    entries = [_entry(folder / name) for name in names if _NAME.match(name)]
    serials = [(entry.step, entry.facts["serial"]) for entry in entries if entry.facts]

    def order(entry: CheckpointEntry) -> tuple[float, int]:
        if entry.facts:
            return entry.facts["serial"], 0
        return max((s for step, s in serials if step <= entry.step), default=0) + 0.5, entry.step

    return sorted(entries, key=order, reverse=True)


def _entry(path: Path) -> CheckpointEntry:
    """The checkpoint at `path` in a folder; a symbolic link is an error."""
    if not path.is_symlink():
        return read_entry(path)
    error = CheckpointCorruptError(
        f"{path} is a symbolic link: checkpoints must be in the folder itself",
        hint=f"give the target of the link: {os.path.realpath(path)}",
    )
    return CheckpointEntry(path, None, error)


def read_entry(path: Path) -> CheckpointEntry:
    """The checkpoint at `path`, from the user block of its index."""
    try:
        facts = header_digests.read_user_block(index_file(path))
        if facts.get("kind") not in ("index", "whole"):
            raise header_digests.foreign_file_error(
                index_file(path), f"it is a {facts.get('kind')}"
            )
        return CheckpointEntry(path, facts, None)
    except HpcflowError as error:
        return CheckpointEntry(path, None, error)


def new_draft(folder: Path, step: int, single: bool) -> Path:
    """A new path for the draft of a step's checkpoint; created if it is a directory."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
    name = f"step-{step}" + (".h5" if single else "")
    path = folder / (name + ".tmp")
    remove_checkpoint(path)
    if not single:
        path.mkdir()
    return path


def publish_draft(path: Path) -> Path:
    """Rename a finished draft to its final name and return that path.

    It replaces another checkpoint of the same step. If there was one, then at every moment a
    complete checkpoint of that step has a name that `find` recognizes.
    """
    folder, final = path.parent, path.with_name(path.name.removesuffix(".tmp"))
    single = final.name.endswith(".h5")
    other_form = final.with_name(final.name.removesuffix(".h5") if single else final.name + ".h5")
    old = final.with_name(final.name + ".old")
    if not single:
        sync(path)
        if final.exists():
            remove_checkpoint(old)
            os.rename(final, old)
    os.replace(path, final)
    sync(folder)
    write_latest(final)
    remove_checkpoint(old)
    remove_checkpoint(other_form)
    return final


def write_latest(path: Path) -> None:
    """Write the checkpoint's name into the file `latest` of its folder."""
    folder, text = path.parent, path.name + "\n"
    pointer = folder / (LATEST + ".tmp")
    with contextlib.suppress(OSError):
        if (folder / LATEST).read_text() == text:
            return
    with open(pointer, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(pointer, folder / LATEST)
    sync(folder)


def apply_retention(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints; 0 keeps all. Unreadable ones are not removed.

    Checkpoints whose facts have `keep` also remain, and so do the best ones by the policy
    `keep_best` in the facts of the newest checkpoint.
    """
    readable = [entry for entry in find_checkpoints(folder) if entry.facts is not None]
    policy = (readable[0].facts or {}).get("keep_best") if readable else None
    retained = [
        entry.path
        for entry in (*readable[:count], *(best_checkpoints(readable, *policy) if policy else ()))
    ]
    retained += [entry.path for entry in readable if (entry.facts or {}).get("keep")]
    for entry in [entry for entry in readable if entry.path not in retained] if count else []:
        gone = entry.path.with_name(entry.path.name.removesuffix(".old") + ".tmp")
        remove_checkpoint(gone)
        os.rename(entry.path, gone)  # so that no reader sees it half removed
        remove_checkpoint(gone)


def best_checkpoints(
    entries: Iterable[CheckpointEntry], monitor: str, mode: str, count: int
) -> list[CheckpointEntry]:
    """The `count` checkpoints with the smallest ("min") or largest ("max") `monitor`, best first.

    Checkpoints without this metric, or with a non-finite one (stored as None), are left out.
    """

    def value(entry: CheckpointEntry) -> float | None:
        return (entry.facts or {}).get("metrics", {}).get(monitor)

    judged = [(v, entry) for entry in entries if (v := value(entry)) is not None]
    sign = {"min": 1, "max": -1}[mode]
    judged.sort(key=lambda row: (sign * row[0], (row[1].facts or {})["serial"]))
    return [entry for _, entry in judged[:count]]


def remove_drafts(folder: Path) -> None:
    """Remove the drafts of interrupted saves; rename `.old` back if its final name is missing."""
    for name in os.listdir(folder) if folder.is_dir() else []:
        path = folder / name
        with contextlib.suppress(OSError):
            if _DRAFT.match(name):
                remove_checkpoint(path)
            elif _NAME.match(name) and name.endswith(".old"):
                final = folder / name.removesuffix(".old")
                if not final.exists():
                    os.rename(path, final)
                elif read_entry(final).error is None:
                    remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a file or a directory if it exists; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def next_serial(folder: Path) -> int:
    """A serial number larger than that of every readable checkpoint in this folder."""
    return 1 + max(
        (entry.facts["serial"] for entry in find_checkpoints(folder) if entry.facts), default=0
    )


def with_storage_errors(doing: str, run: Callable[[], Any]) -> Any:
    """`run()`; an OSError becomes a CheckpointStorageError with a hint for the user."""
    try:
        return run()
    except OSError as error:
        raise CheckpointStorageError(
            f"{doing}: {error.strerror or error}",
            hint=_NEXT.get(error.errno or 0, "choose another folder for the checkpoints")
            + "; earlier checkpoints are unchanged",
        ) from error


_NEXT = {
    28: "free some space, keep fewer checkpoints (max_to_keep), or choose another disk",
    122: "your quota is used up: free some space, or choose another disk",
    27: "the file exceeds the size limit: raise it (ulimit -f)",
    30: "the file system is read-only: choose a writable folder",
    13: "choose a folder with write permission",
}
