"""Checkpoint listing: all, newest and best checkpoint of a folder, by TensorFlow 1's names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.errors import CheckpointError
from hpcflow.platform.artifact_cache import as_path
from hpcflow.train import checkpoint_state
from hpcflow.train.saver import retention_policy


def checkpoint_exists(checkpoint_prefix: str | Path) -> bool:
    """Whether the path is a checkpoint, or a folder with at least one."""
    path = as_path(checkpoint_prefix, "checkpoint_prefix")
    if checkpoint_directory.is_folder(path):
        return latest_checkpoint(path) is not None
    return (path / checkpoint_directory.INDEX).exists()


def latest_checkpoint(checkpoint_dir: str | Path, latest_filename: str | None = None) -> str | None:
    """The newest checkpoint of a folder with a readable index; None if there is none.

    A folder without checkpoints stands for its subfolders, as `saver.save(sess, "DIR/model")`
    creates one. A checkpoint named by `update_checkpoint_state` in the file `latest_filename` takes
    precedence until another is written. The bytes are verified on restore.
    """
    path = as_path(checkpoint_dir, "checkpoint_dir")
    if listed := checkpoint_state.listed_checkpoints(path, latest_filename):
        return str(listed[-1])
    ckpts = _readable(path)
    return str(ckpts[0].path) if ckpts else None


class CheckpointState(NamedTuple):
    """The newest checkpoint of a folder, and all with their times, newest last."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]
    all_model_checkpoint_timestamps: list[float]


def get_checkpoint_state(
    checkpoint_dir: str | Path, latest_filename: str | None = None
) -> CheckpointState | None:
    """The checkpoints of a folder, found as by `latest_checkpoint`; None if there are none."""
    path = as_path(checkpoint_dir, "checkpoint_dir")
    paths = [str(saved) for saved in checkpoint_state.listed_checkpoints(path, latest_filename)]
    paths = paths or [str(ckpt.path) for ckpt in reversed(_readable(path))]
    return CheckpointState(paths[-1], paths, get_checkpoint_mtimes(paths)) if paths else None


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[str | Path]) -> list[float]:
    """The time of each checkpoint in seconds since 1970; missing checkpoints are omitted."""
    indices = [
        checkpoint_directory.index_file(as_path(path, "a checkpoint"))
        for path in checkpoint_prefixes
    ]
    return [os.path.getmtime(index) for index in indices if index.exists()]


def _readable(path: Path) -> list[checkpoint_directory.CheckpointEntry]:
    """The checkpoints of a folder or of its most recent subfolder, newest first."""
    if own := [one for one in checkpoint_directory.find_checkpoints(path) if one.facts is not None]:
        return own
    within = sorted(path.iterdir()) if path.is_dir() else []
    nested = [_readable(one) for one in within if checkpoint_directory.is_folder(one)]
    times = {i: get_checkpoint_mtimes([f[0].path])[0] for i, f in enumerate(nested) if f}
    return nested[max(times, key=lambda i: times[i])] if times else []


def best_metric(checkpoint_dir: str | Path, monitor: str, mode: str) -> float | None:
    """The best value of a metric among the checkpoints of a folder; None if none has it."""
    entries = checkpoint_directory.find_checkpoints(as_path(checkpoint_dir, "checkpoint_dir"))
    readable = [entry for entry in entries if entry.facts is not None]
    best = checkpoint_directory.best_checkpoints(readable, monitor, mode, 1)
    return float(best[0].facts["metrics"][monitor]) if best and best[0].facts else None


def best_checkpoint(
    checkpoint_dir: str | Path, monitor: str | None = None, mode: str | None = None
) -> Path | None:
    """The checkpoint of a folder saved with the best metric; None if none has a metric.

    By default the metric is that of `keep_best` in the newest checkpoint. The bytes are verified on
    restore.

    Errors: CheckpointError if no metric is given and none was saved.
    """
    ckpts = [
        ckpt
        for ckpt in checkpoint_directory.find_checkpoints(as_path(checkpoint_dir, "checkpoint_dir"))
        if ckpt.facts is not None
    ]
    if not ckpts:
        return None
    rules = [ckpt.facts["keep_best"] for ckpt in ckpts if ckpt.facts and "keep_best" in ckpt.facts]
    if monitor is None and not rules:
        raise CheckpointError(
            f"no checkpoint in {checkpoint_dir} names a metric",
            hint='give the metric: best_checkpoint(DIR, "loss", "min")',
        )
    name, sense, _ = retention_policy(rules[0] if monitor is None else (monitor, mode or "min", 1))
    first = checkpoint_directory.best_checkpoints(ckpts, name, sense, 1)
    return first[0].path if first else None
