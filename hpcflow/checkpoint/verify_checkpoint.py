"""Checkpoint verification: every byte, then the structure that HDF5 readers see."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import CheckpointFault, SavedCheckpoint
from hpcflow.checkpoint.hdf5_structure_check import structure_faults
from hpcflow.errors import CheckpointError


class VerificationReport(NamedTuple):
    """The faults found at `path`; the checkpoint is good if there are none."""

    path: Path
    facts: dict[str, Any] | None
    faults: list[CheckpointFault]


def checkpoint_candidates(path: Path) -> list[checkpoint_directory.CheckpointEntry]:
    """The checkpoints at `path`, newest first: the one it names, or those of the folder.

    Errors: CheckpointError if there is none, or the folder cannot be read.
    """
    if not os.path.exists(path):
        raise CheckpointError(f"there is no {path}", hint="give a folder of checkpoints")
    if path.name == checkpoint_directory.INDEX:
        return [checkpoint_directory.read_entry(path.parent)]
    if not checkpoint_directory.is_folder(path):
        return [checkpoint_directory.read_entry(path)]
    try:
        entries = checkpoint_directory.find_checkpoints(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if not entries:
        raise CheckpointError(
            f"there is no checkpoint in {path}",
            hint="give the folder of checkpoints, which are named step-N or step-N.h5",
        )
    return entries


def verify_checkpoint(
    entry: checkpoint_directory.CheckpointEntry, threads: int = 1
) -> VerificationReport:
    """Check every byte of a checkpoint on `threads` threads, and then its HDF5 structure."""
    if entry.facts is None:
        text = entry.error.message if entry.error else "it cannot be read"
        return VerificationReport(
            entry.path,
            None,
            [CheckpointFault(checkpoint_directory.index_file(entry.path).name, (), text)],
        )
    saved = SavedCheckpoint(entry.path, entry.facts)
    with ThreadPoolExecutor(threads) as pool:
        shares = pool.map(lambda who: saved.faults(who, threads), range(threads))
        faults = list({fault.text: fault for some in shares for fault in some}.values())
    gone = {fault.file for fault in faults if fault.whole_file}
    faults = [fault for fault in faults if fault.whole_file or fault.file not in gone]
    if not faults:  # HDF5 opens only files whose bytes are good
        faults = list(structure_faults(saved))
    return VerificationReport(entry.path, entry.facts, faults)
