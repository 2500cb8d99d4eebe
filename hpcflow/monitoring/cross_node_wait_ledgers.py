"""Wait ledgers of other nodes: each node publishes its ledgers when a rank of any node may stall.

The ledgers are exchanged through a folder in the run directory, which all nodes share, because
messages are unreliable while ranks hang. The folder does not exist as long as no rank waits for
long; one rank of each node polls for it. If the run directory is local to each node, other nodes
stay unknown. A job that ends in order removes its folder, and a later job removes the folders of
failed jobs.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil

from hpcflow.monitoring.stack_dump import ProgressFiles, process_state
from hpcflow.monitoring.wait_ledger import (
    DEAD_S,
    PREFIX,
    RECORD_BYTES,
    LedgerEntry,
    decode,
    files_in,
    is_younger,
    raw_entries,
    shared_folder,
)
from hpcflow.platform.private_files import is_own_folder, make_folder

REQUEST_FILE = "wanted"
FRESH_S = 30.0  # validity of a request or a node's file, generous as clocks differ


class CrossNodeLedgers:
    """This node among the nodes of a job; each has its ledgers in the local `directory`."""

    def __init__(self, directory: pathlib.Path, run_dir: pathlib.Path, host: str) -> None:
        self._directory, self._host = directory, host
        self._files = ProgressFiles()
        self.folder = run_dir / f".{directory.name}"

    def want(self) -> None:
        """A rank here may stall: ask all nodes to publish their ledgers, for FRESH_S."""
        with contextlib.suppress(OSError):  # full disk or foreign folder: other nodes stay unknown
            make_folder(self.folder)
            (self.folder / REQUEST_FILE).touch()

    @property
    def is_wanted(self) -> bool:
        """Whether a rank of any node may stall."""
        return is_own_folder(self.folder) and is_younger(self.folder / REQUEST_FILE, FRESH_S)

    def publish(self) -> None:
        """Publish the ledgers of this node."""
        records = [raw_entries(path) for path in files_in(self._directory, "rank-*")]
        complete_records = [record for record in records if record is not None]
        payload = b"".join(self._copy(record) for record in complete_records)
        draft = self.folder / f".{self._host}"
        with contextlib.suppress(OSError):
            draft.write_bytes(payload)
            draft.replace(self.folder / self._host)

    def _copy(self, record: bytes) -> bytes:
        pid = decode(record).pid
        return shared_folder(record, process_state(pid), self._files.last_io_time(pid))

    def remote_entries(self) -> list[LedgerEntry]:
        """The published records of the ranks of other nodes."""
        entries: list[LedgerEntry] = []
        if not is_own_folder(self.folder):
            return entries
        for path in files_in(self.folder, "[!.]*"):
            if path.name in (REQUEST_FILE, self._host) or not is_younger(path, FRESH_S):
                continue
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                parts = range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES)
                entries += [decode(data[at : at + RECORD_BYTES]) for at in parts]
        return entries

    def close(self) -> None:
        """Remove the folder when the job ends in order."""
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_stale_folders(run_dir: pathlib.Path) -> None:
    """Remove the folders of dead jobs: those without a write for DEAD_S.

    A live job that had nothing to write creates its folder again when it needs it.
    """
    for folder in run_dir.glob(f".{PREFIX}*"):
        with contextlib.suppress(OSError):  # another job has removed it
            written = (folder, *folder.iterdir()) if is_own_folder(folder) else ()
            if written and not any(is_younger(path, DEAD_S) for path in written):
                shutil.rmtree(folder, ignore_errors=True)
