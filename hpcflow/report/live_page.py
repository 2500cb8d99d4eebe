"""Live page: `report.html` of a run directory, written again every ten seconds by a thread.

The thread reads the files that the run writes. It holds no lock of the training and makes no MPI
call; a page takes some hundredths of a second. Before its first page after the first training step
it writes `plan.json`, once. The end of a run adds its steps to the machine profile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.platform.rank_logging import logger
from hpcflow.train.result_files import write_text

if TYPE_CHECKING:
    from hpcflow.plan.ir.program import Plan
    from hpcflow.platform.machine_profile import ProfileFile
    from hpcflow.platform.measured_step_costs import StepFeatures

NAME, PLAN = "report.html", "plan.json"
REFRESH_S = 10  # between pages
LONGEST_S = 10.0  # wait for a page that is being written, at the end of the job
MOST_SHARE = 1 / 200  # of the time: pages that take longer are written less often


class LivePage:
    """Writes the page of a run until `close`, which writes the last one."""

    def __init__(self, run_dir: str, every_s: float = REFRESH_S) -> None:
        self._folder, self._every_s = Path(run_dir).absolute(), every_s
        self._ends = threading.Event()
        # until the thread has used it
        self._plan: tuple[Plan, Callable[[], StepFeatures]] | None = None
        self._features: StepFeatures | None = None
        self._thread = threading.Thread(target=self._write_repeatedly, daemon=True, name="page")
        self._thread.start()

    def take_plan(self, plan: Plan, step: Callable[[], StepFeatures]) -> None:
        """Keep the training plan until the thread has written its picture, and no longer."""
        self._plan = plan, step

    def close(self) -> None:
        """Write the page of the ended run."""
        self._ends.set()
        self._thread.join(LONGEST_S)
        if not self._thread.is_alive():
            _write(self._folder, is_over=True)

    def keep_step(self, file: ProfileFile | None) -> None:
        """Add the steps of the run, which has ended well, to the machine profile, after `close`."""
        if self._features is not None and file is not None:
            with no_failure_of_the_job("the machine profile"):
                from hpcflow.report.step_record import keep_step

                keep_step(self._folder, self._features, file)

    def _write_repeatedly(self) -> None:
        pause = self._every_s
        while not self._ends.wait(pause):
            self._write_plan()
            start = time.thread_time()
            _write(self._folder, is_over=False)
            pause = max(self._every_s, (time.thread_time() - start) / MOST_SHARE)
        self._write_plan()

    def _write_plan(self) -> None:
        taken, self._plan = self._plan, None
        if taken is not None:
            plan, step = taken
            with no_failure_of_the_job(PLAN):
                from hpcflow.report.plan_file import write_plan

                write_plan(self._folder, plan)
            with no_failure_of_the_job("the machine profile"):
                self._features = step()


def write_last_page(folder: Path) -> None:
    """Write the page of a run whose ranks have ended."""
    _write(folder, is_over=True, replays=True)


def _write(folder: Path, is_over: bool, replays: bool = False) -> None:
    with no_failure_of_the_job(NAME):
        from hpcflow.report.run_page import page_of  # not before: training ranks start with less

        refresh_s = 0 if is_over else REFRESH_S
        made = page_of(
            [folder], refresh_s=refresh_s, is_over=is_over, asks_slurm=is_over, replays=replays
        )
        write_text(folder / NAME, made.text)


@contextlib.contextmanager
def no_failure_of_the_job(name: str) -> Iterator[None]:
    """Log what prevents a file, which does not concern the training."""
    try:
        yield
    except OSError:  # a full disk, or a folder that was removed
        return
    except Exception as error:
        logger.debug("%s is not written: %s: %s", name, type(error).__name__, error)
