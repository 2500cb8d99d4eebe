"""Outcome of a run: running, finished, ended, stopped, cancelled, died, failed or stalled."""

from __future__ import annotations

from pathlib import Path

from hpcflow.monitoring import run_directory_lock
from hpcflow.platform.rank_logging import rank_spans
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.train.run_records import EARLY

UNREADABLE, RUNNING, FINISHED, ENDED = "unreadable", "running", "finished", "ended"
STOPPED, CANCELLED, DIED, FAILED, STALLED = "stopped", "cancelled", "died", "failed", "stalled"
KINDS = {"death": DIED, "stall": STALLED}  # "kind" of failure.json; others mean FAILED
BY_SOMEBODY = ("SIGTERM", "SIGINT", "SIGHUP", "KeyboardInterrupt")  # scancel, kill, Ctrl-C
STOP = {"by": str, "step": int}


def goes_on(folder: Path, is_over: bool | None = None) -> bool:
    """Whether a run goes on: as `is_over` says, else if its folder is locked by another process."""
    return not run_directory_lock.is_free(folder) if is_over is None else not is_over


def outcome_of(
    folder: Path,
    manifest: FileFacts,
    failure: FileFacts,
    result: FileFacts,
    is_over: bool | None = None,
) -> tuple[str, str]:
    """The outcome, one of the words above, and a line with details, "" if nothing is known.

    `is_over` says whether it has ended; by default a run whose folder is locked goes on.
    """
    if goes_on(folder, is_over):
        return RUNNING, ""
    if failure.is_there:
        return _failed(failure)
    if manifest.get("finished", bool, not manifest.is_there):
        lost = [row["rank"] for row in result.get("lost", [{"rank": int}], [])]
        details = [f"finished without {rank_spans(lost)}, lost on the way"] if lost else []
        early = manifest.get(EARLY, {"epoch": int, "epochs": int}, {})
        if early:
            details.append(f"finished early: a callback stopped the training after epoch "
                           f"{early['epoch']:,} of {early['epochs']:,}")  # fmt: skip
        return FINISHED, "; ".join(details)
    stop = manifest.get("stopped", STOP, {})
    if stop:
        state = CANCELLED if stop["by"] in BY_SOMEBODY else STOPPED
        return state, f"{state} before step {stop['step']:,}: {stop['by']}"
    if manifest.text("end"):
        return ENDED, "ended: its script has written no result"
    return DIED, "died: no process of it has told why; all were killed, or their node failed"


def _failed(failure: FileFacts) -> tuple[str, str]:
    state = KINDS.get(failure.text("kind"), FAILED)
    if failure.text("error") in BY_SOMEBODY:
        state = CANCELLED
    step, task = failure.count("step"), failure.text("task")
    rank = failure.get("rank", int, None)
    rank_text = ("a rank" if rank is None else f"rank {rank}") + (f" ({task})" if task else "")
    line = f"{state}{f' in step {step:,}' if step else ''}: {rank_text} on {failure.text('host')}: "
    checkpoint = failure.text("checkpoint")
    return state, line + failure.text("cause") + (f"; saved: {checkpoint}" if checkpoint else "")
