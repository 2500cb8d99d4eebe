"""What the ranks of other nodes do: each node writes its ledgers down when one of them is in want.

Through a folder in the run directory, which all nodes see, for no message can be relied on while
ranks hang. As long as nobody waits for long the folder does not exist, and one rank of each node
looks for it now and then. Where the run directory is each node's own, other nodes stay unknown.
A job that ends in order removes its folder, a later one those of jobs that failed.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil

from hpcflow.monitoring.stack_dump import Files, process_state
from hpcflow.monitoring.wait_ledger import (
    DEAD_S,
    PREFIX,
    RECORD_BYTES,
    Entry,
    decode,
    for_others,
    is_younger,
    raw,
)
from hpcflow.platform.private_files import is_own_folder, make_folder

WANTED = "wanted"
FRESH_S = 30.0  # a wish, or what a node wrote, is heeded for so long: clocks differ


class Nodes:
    """This node among those of a job, whose ledgers are in `directory` on each of them."""

    def __init__(self, directory: pathlib.Path, run_dir: pathlib.Path, host: str) -> None:
        self._directory, self._host = directory, host
        self._files = Files()
        self.folder = run_dir / f".{directory.name}"

    def want(self) -> None:
        """Somebody here may stall: have all nodes tell what their ranks do, for a while."""
        with contextlib.suppress(OSError):  # a full disk, another's folder: others stay unknown
            make_folder(self.folder)
            (self.folder / WANTED).touch()

    @property
    def is_wanted(self) -> bool:
        """Whether a rank of any node may stall."""
        return is_own_folder(self.folder) and is_younger(self.folder / WANTED, FRESH_S)

    def tell(self) -> None:
        """Write down what the ranks of this node do."""
        records = [raw(path) for path in sorted(self._directory.glob("rank-*"))]
        whole = [record for record in records if record is not None]
        told = b"".join(self._copy(record) for record in whole)
        draft = self.folder / f".{self._host}"
        with contextlib.suppress(OSError):
            draft.write_bytes(told)
            draft.replace(self.folder / self._host)

    def _copy(self, record: bytes) -> bytes:
        pid = decode(record).pid
        return for_others(record, process_state(pid), self._files.moved(pid))

    def others(self) -> list[Entry]:
        """The ranks of the other nodes, as these have written them down."""
        found: list[Entry] = []
        if not is_own_folder(self.folder):
            return found
        for path in sorted(self.folder.glob("[!.]*")):
            if path.name in (WANTED, self._host) or not is_younger(path, FRESH_S):
                continue
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                parts = range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES)
                found += [decode(data[at : at + RECORD_BYTES]) for at in parts]
        return found

    def close(self) -> None:
        """Remove the folder: the job ends in order."""
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep(run_dir: pathlib.Path) -> None:
    """Remove the folders of jobs that died: those in which nobody has written for long.

    A job that lives, and has had nothing to write, makes its own again when it needs it.
    """
    for folder in run_dir.glob(f".{PREFIX}*"):
        with contextlib.suppress(OSError):  # another job was first
            written = (folder, *folder.iterdir()) if is_own_folder(folder) else ()
            if written and not any(is_younger(path, DEAD_S) for path in written):
                shutil.rmtree(folder, ignore_errors=True)
