"""Live page: `report.html` of a run directory, written again every ten seconds by a thread.

The thread reads the files that the run writes. It holds no lock of the training and makes no MPI
call; a page takes some hundredths of a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from hpcflow.errors import HpcflowError
from hpcflow.report.run_page import REFRESH_S, page_of, write_text

NAME = "report.html"
MOST_SHARE = 1 / 200  # of the time: pages that take longer are written less often


class LivePage:
    """Writes the page of a run until `close`, which writes the last one."""

    def __init__(self, run_dir: str, every_s: float = REFRESH_S) -> None:
        self._folder, self._every_s = Path(run_dir), every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write_repeatedly, daemon=True, name="page")
        self._thread.start()

    def close(self) -> None:
        """Write the page of the ended run."""
        self._ends.set()
        self._thread.join()
        write_last_page(self._folder)

    def _write_repeatedly(self) -> None:
        pause = self._every_s
        while not self._ends.wait(pause):
            start = time.thread_time()
            with contextlib.suppress(HpcflowError, OSError):  # the next one may be possible
                write_text(self._folder / NAME, page_of([self._folder], refresh=True).text)
            pause = max(self._every_s, (time.thread_time() - start) / MOST_SHARE)


def write_last_page(folder: Path) -> None:
    """Write the page of a run that has ended; a full disk is ignored."""
    with contextlib.suppress(HpcflowError, OSError):
        write_text(folder / NAME, page_of([folder], is_over=True).text)
