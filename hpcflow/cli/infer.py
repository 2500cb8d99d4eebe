"""Run a trained graph on all samples of an HDF5 file and write an HDF5 file; data parallel.

FILE.py:FUNCTION builds the graph, with the variables of a checkpoint; or the graph is an ONNX
model. The datasets of DATA.h5 are named after its inputs, those of OUT.h5 after its outputs, in the
same order of rows. Under a launcher (srun, mpirun) this process is one rank; otherwise -n N starts
N ranks. Exit code: 0 if the file was written, 1 if a file or the graph is not usable, 2 for wrong
arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.cli.graph_argument import HELP, NamedTensors, build, is_onnx
from hpcflow.cli.run import check_folder, enter
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import DataError, HpcflowError, LaunchError
from hpcflow.launch import launcher_detection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow infer`."""
    parser.add_argument(
        "checkpoint", metavar="CKPT", help="a checkpoint, a folder of checkpoints, or MODEL.onnx"
    )
    parser.add_argument("data", metavar="DATA.h5", help="the samples")
    parser.add_argument("--model", metavar="FILE.py:FUNCTION", help=HELP)
    parser.add_argument("--out", default="out.h5", metavar="OUT.h5", help="the file to write")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="batch size (256)")
    parser.add_argument("-n", dest="ranks", type=int, metavar="N", help="number of ranks")


def main(args: argparse.Namespace) -> int:
    """Join the job as a rank, or start the launcher that starts the ranks."""
    try:
        place = launcher_detection.detect_launcher()
        _check(args)
        if place is None and args.ranks is not None:
            _start(args)
        serving = enter()
    except HpcflowError as error:
        err(f"hpcflow infer: {type(error).__name__}: {error}")
        return 2
    if serving is not None:
        serving()
        return 0
    try:
        InferenceJob(args).run()
    except (HpcflowError, OSError) as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    """Report an error; with several ranks the first failing rank reports it and ends the job."""
    from hpcflow.runtime.job.job_membership import current_context

    if current_context().size == 1:
        err(f"hpcflow infer: {type(error).__name__}: {error}")
    else:
        error.__cause__ = error.__context__ = None
        sys.excepthook(type(error), error.with_traceback(None), None)
    return 1


def _check(args: argparse.Namespace) -> None:
    if is_onnx(args.checkpoint) == bool(args.model):
        raise LaunchError(
            "--model is needed for a checkpoint, but not for an ONNX model",
            hint="use hpcflow infer CKPT DATA.h5 --model FILE.py:FUNCTION, or infer "
            "MODEL.onnx DATA.h5",
        )
    if args.batch < 1:
        raise LaunchError(f"--batch {args.batch}: the batch size must be at least 1")
    for path in (args.checkpoint, args.data):
        if not os.path.exists(path):
            raise LaunchError(f"there is no {path}", hint="check the path")


def _start(args: argparse.Namespace) -> None:
    """Replace this process by the launcher of the ranks."""
    options = [f"--out={args.out}", f"--batch={args.batch}"]
    options += [f"--model={args.model}"] if args.model else []
    check_folder()
    program = [sys.executable, "-m", "hpcflow", "infer", args.checkpoint, args.data, *options]
    start = launcher_detection.start_command(args.ranks, program)
    err(f"hpcflow: starting {args.ranks} ranks by {start.reason}")
    start.become()


class InferenceJob:
    """Inference on this rank's share of the samples; the chief merges the outputs into one file."""

    def __init__(self, args: argparse.Namespace) -> None:
        from hpcflow.checkpoint.participating_ranks import ParticipatingRanks
        from hpcflow.runtime.job.job_membership import current_context

        self.args, self.out = args, Path(args.out)
        self.team = ParticipatingRanks(current_context())
        self.part = self.out.with_name(f"{self.out.name}.part-{self.team.number:05d}")

    def run(self) -> None:
        """Compute and write this rank's share; the chief merges the shares."""
        session, inputs, outputs = self._session()
        rows = {name: _opened(self.args.data, name) for name in inputs}
        count = _length(self.args.data, rows)
        rank, of = self.team.number, self.team.size
        start, stop = count * rank // of, count * (rank + 1) // of
        with _writing(self.part) as file:
            for low in range(start, stop, self.args.batch):
                high = min(low + self.args.batch, stop)
                batch = {inputs[name]: r.rows(np.arange(low, high)) for name, r in rows.items()}
                arrays = session.run(list(outputs.values()), _cast(batch))
                for name, array in zip(outputs, arrays, strict=True):
                    _write_batch(file, name, array, low - start, stop - start, high - low)
        shares = self.team.gather({"part": str(self.part), "rows": stop - start})
        if shares is not None:
            self._join([Path(row["part"]) for row in shares if row["rows"]], count)
        self.team.broadcast()  # barrier: no rank leaves before the file exists

    def _session(self) -> tuple[Any, NamedTensors, NamedTensors]:
        from hpcflow.ops.variables.variable_ops import (
            global_variables,
            global_variables_initializer,
        )
        from hpcflow.runtime.session.session import Session
        from hpcflow.train.saver import Saver

        if is_onnx(self.args.checkpoint):
            from hpcflow.onnx import import_model

            imported = import_model(self.args.checkpoint, trainable=False)
            return Session(), imported.inputs, imported.outputs
        inputs, outputs = build(self.args.model)
        session = Session()
        if global_variables():
            session.run(global_variables_initializer())  # absent from the checkpoint: not restored
            Saver().restore(session, self.args.checkpoint)
        return session, inputs, outputs

    def _join(self, parts: list[Path], count: int) -> None:
        """Merge the files of all ranks into one, and rename it when it is complete."""
        draft = self.out.with_name(f"{self.out.name}.tmp")
        with _writing(draft) as file:
            at = 0
            for part in parts:
                with _reading(part) as part_file:
                    for name in part_file:
                        _copy(part_file[name], file, name, at, count)
                    at += max((len(part_file[name]) for name in part_file), default=0)
        os.replace(draft, self.out)
        for path in self.out.parent.glob(f"{self.out.name}.part-*"):
            path.unlink()
        out(f"{self.out}: {count:,} rows by {self.team.size} ranks")


def _opened(path: str, name: str) -> Any:
    from hpcflow.data.hdf5_rows import hdf5

    rows = hdf5(path, name)
    rows.open()
    return rows


def _length(path: str, rows: dict[str, Any]) -> int:
    """The number of samples.

    Errors: DataError if the inputs have different numbers.
    """
    counts = {name: len(r) for name, r in rows.items()}
    if len(set(counts.values())) != 1:
        raise DataError(f"{path}: " + ", ".join(f"{n} has {c:,} rows" for n, c in counts.items()))
    return next(iter(counts.values()))


def _cast(batch: dict[Any, np.ndarray]) -> dict[Any, np.ndarray]:
    """Convert samples to the dtypes of the inputs, within the same kind of numbers."""
    return {t: a.astype(t.dtype, casting="same_kind", copy=False) for t, a in batch.items()}


def _writing(path: Path) -> Any:
    from hpcflow.runtime.hdf5_library import library

    return library().File(path, "w")


def _reading(path: Path) -> Any:
    from hpcflow.data.hdf5_rows import open_hdf5

    return open_hdf5(path)


def _write_batch(file: Any, name: str, array: np.ndarray, at: int, rows: int, batch: int) -> None:
    """Write the outputs of one batch.

    Errors: DataError if the output has no row for each sample.
    """
    if array.ndim == 0 or len(array) != batch:
        raise DataError(
            f"output {name!r} has shape {list(array.shape)}, but needs one row for each "
            f"of {batch} samples"
        )
    if name not in file:
        file.create_dataset(name, (rows, *array.shape[1:]), array.dtype)
    file[name][at : at + batch] = array


STRIPE = 16 << 20  # bytes per copy


def _copy(source: Any, file: Any, name: str, at: int, count: int) -> None:
    """Copy the rows of a rank's file to their position in the output file."""
    if name not in file:
        file.create_dataset(name, (count, *source.shape[1:]), source.dtype)
    for low, high in _stripes(source):
        file[name][at + low : at + high] = source[low:high]


def _stripes(source: Any) -> Iterator[tuple[int, int]]:
    size = max(1, int(np.prod(source.shape[1:])) * source.dtype.itemsize)
    step = max(1, STRIPE // size)
    for low in range(0, len(source), step):
        yield low, min(low + step, len(source))
