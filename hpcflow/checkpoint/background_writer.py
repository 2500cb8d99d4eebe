"""Background writer: a thread writes this rank's part of a save while training continues.

The thread makes no MPI calls. It returns its result through the executor's inbox, so the holder of
the progress lock unpins the versions and reports to the chief.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.checkpoint import checkpoint_directory, parallel_hdf5_write
from hpcflow.checkpoint.checkpoint_layout import Slab
from hpcflow.checkpoint.participating_ranks import run_or_error
from hpcflow.checkpoint.save_plan import SavePlan
from hpcflow.errors import CheckpointError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.hdf5_library import library
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore

Answer = dict[str, Any]  # as `attempt` returns it
GIVE_WAY_S = 0.2  # longest wait for a step that copies: both need the memory bandwidth
NICE = 5  # niceness of a writing thread, below the threads of training


class BackgroundWriter:
    """Pins the current values of the slabs `duty` and writes them with digests to its own file.

    Host memory is pinned and not copied. Rows on another device are copied to the host now. The
    thread starts to write when training has copied all variables that it updates, after GIVE_WAY_S
    at the latest, because both need the memory bandwidth. If training waits (`plan.waits`), it
    starts immediately.

    The thread reads the file back and then reports to the chief: the file's record, and the seconds
    until it was durable and until it was verified. An error, also one of the pinning, is reported
    instead.

    Constructed under the progress lock, between steps.
    """

    def __init__(
        self, context: RankContext, store: StateStore, plan: SavePlan, duty: Sequence[Slab]
    ) -> None:
        library()  # imported on this thread: an h5py built with MPI calls MPI when imported
        self._context, self._plan, self._duty = context, plan, duty
        self._since = time.perf_counter()
        self._pinned: parallel_hdf5_write.PinnedSnapshot | None = None
        pin_answer = run_or_error(context, lambda: self._pin_rows(store))
        self.nbytes = sum((s.stop - s.start) * plan.by_name[s.name].row_bytes for s in duty)
        run_in_thread(lambda: self._run(pin_answer))

    def _pin_rows(self, store: StateStore) -> int:
        try:
            self._pinned = parallel_hdf5_write.PinnedSnapshot(
                store, self._plan.wanted, self._duty, to_host=True
            )
        except MemoryError as error:
            raise CheckpointError(
                f"there is not enough memory to copy variables to the host: {error}"
            ) from error
        return len(self._duty)

    def _run(self, pin_answer: Answer) -> None:
        answer = pin_answer
        if "error" not in pin_answer:
            answer = write_result(self._context, f"writing {self._plan.draft}", self._write)
        self._context.executor.call_in_holder(lambda: self._end(answer))

    def _write(self) -> dict[str, Any]:
        snapshot, plan, hand_over = self._pinned, self._plan, self._context.executor.call_in_holder
        assert snapshot is not None
        late = self._since + (0 if plan.waits else GIVE_WAY_S)
        while snapshot.is_current() and time.perf_counter() < late:
            time.sleep(0.002)
        rank = self._context.rank
        path = Path(plan.draft) / f"part-{rank:05d}.h5"
        record = parallel_hdf5_write.write_part(
            path,
            plan,
            rank,
            self._duty,
            snapshot.versions,
            on_written=lambda slab: hand_over(lambda: snapshot.release(slab)),
        )
        durable = time.perf_counter() - self._since
        parallel_hdf5_write.check_file(path, record)
        parallel_hdf5_write.check_part(path, plan, rank, record)
        return {
            "record": record,
            "durable": durable,
            "verified": time.perf_counter() - self._since,
        }

    def _end(self, answer: Answer) -> None:
        if self._pinned is not None:
            self._pinned.release()
        report_to_chief(self._context, answer)


def run_in_thread(run: Callable[[], None]) -> None:
    """Call `run` in a thread of lower priority than training."""

    def nicely() -> None:
        if sys.platform == "linux":  # there the priority belongs to a thread
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        run()

    threading.Thread(target=nicely, name="hpcflow-save", daemon=True).start()


def write_result(context: RankContext, doing: str, run: Callable[[], Any]) -> Answer:
    """The result of `run()` as `attempt` returns it; any Exception becomes a CheckpointError."""

    def safely() -> Any:
        try:
            return checkpoint_directory.with_storage_errors(doing, run)
        except CheckpointError:
            raise
        except Exception as error:
            logger.warning("%s", traceback.format_exc())
            raise CheckpointError(f"{doing}: {type(error).__name__}: {error}") from error

    return run_or_error(context, safely)


def report_to_chief(context: RankContext, answer: Answer) -> None:
    """Report the result of this rank's part to the chief; the caller holds the progress lock."""
    message = {"service": "checkpoint", "do": "written", "rank": context.rank, "answer": answer}
    if context.is_chief:
        assert context.saving is not None
        context.saving.handle_message(message)
    else:
        assert context.control is not None
        context.control.post(context.roles.drivers[0], message)
