"""Export a checkpoint as one file: its arrays (.h5, .npz), or a graph with them (.onnx).

CHECKPOINT is a checkpoint in any format, or a folder, which stands for its newest valid checkpoint.
Every byte is verified first. HDF5 and npz files hold the arrays by name; bfloat16 arrays are stored
as bits in HDF5 and as float32 in npz. FILE.py:FUNCTION builds the graph of an ONNX model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.verify_checkpoint import checkpoint_candidates
from hpcflow.cli.graph_argument import HELP, build
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import CheckpointError, DataError, HpcflowError, LaunchError
from hpcflow.graph.graph import Graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow export`."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a folder of checkpoints"
    )
    parser.add_argument("out", metavar="OUT", help="the file to write: .h5, .npz or .onnx")
    parser.add_argument("--model", metavar="FILE.py:FUNCTION", help=HELP)
    parser.add_argument(
        "--int8",
        nargs="?",
        const=True,
        metavar="DATA.h5",
        help="also write MODEL.int8.onnx, and print size and accuracy of both models; it is "
        "calibrated on the samples in DATA.h5, whose datasets have the names of the inputs",
    )
    parser.add_argument("--labels", metavar="NAME", help="dataset of the classes in DATA.h5")
    parser.add_argument(
        "--calibrate",
        type=int,
        default=256,
        metavar="N",
        help="number of samples for calibration (256)",
    )


def main(args: argparse.Namespace) -> int:
    """Export, quantize if requested, and report what was written."""
    try:
        path = Path(args.out)
        _check(path, args)
        saved = newest(Path(args.checkpoint))
        if args.model is None:
            _write_plain(saved, path)
        else:
            export(saved, args.model, path)
        if args.int8 is not None:
            _quantized(path, args)
    except HpcflowError as error:
        err(f"hpcflow export: {type(error).__name__}: {error}")
        return 1
    except OSError as error:
        err(f"hpcflow export: {args.out} cannot be written: {error_text(error)}")
        return 1
    return 0


def _check(path: Path, args: argparse.Namespace) -> None:
    """Check that the options apply to this file format."""
    from hpcflow.checkpoint.plain_export import SUFFIXES

    if path.suffix not in SUFFIXES and args.model is None:
        raise LaunchError(
            f"{path} would be an ONNX model, but no --model is given",
            hint=f"give --model FILE.py:FUNCTION, or write the arrays only: {', '.join(SUFFIXES)}",
        )
    if path.suffix in SUFFIXES and (args.model, args.int8) != (None, None):
        raise LaunchError(f"{path} holds arrays, not a model", hint="leave --model and --int8 out")


def _write_plain(saved: SavedCheckpoint, path: Path) -> None:
    """Write the arrays and print a summary line."""
    from hpcflow.checkpoint.plain_export import export_arrays

    count = export_arrays(saved, path)
    out(
        f"{path}: {count} arrays, {path.stat().st_size:,} bytes, of {saved.path} "
        f"(step {saved.facts['step']:,})"
    )


def newest(path: Path) -> SavedCheckpoint:
    """The checkpoint at `path`, or the newest valid one of a folder.

    Errors: CheckpointError if there is none whose every byte is verified.
    """
    wrong: list[str] = []
    for candidate in checkpoint_candidates(path):
        if candidate.facts is None:
            wrong.append(str(candidate.error))
            continue
        saved = SavedCheckpoint(candidate.path, candidate.facts)
        problems = saved.problems()
        if not problems:
            return saved
        wrong += problems
    raise CheckpointError(
        f"there is no good checkpoint in {path}" + "".join(f"\n  {text}" for text in wrong[:10]),
        hint="list the checkpoints with hpcflow inspect",
    )


class LazyArrays(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint by name, read on access."""

    def __init__(self, saved: SavedCheckpoint) -> None:
        self.saved = saved

    def __getitem__(self, name: str) -> np.ndarray:
        return self.saved.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.saved.arrays)

    def __len__(self) -> int:
        return len(self.saved.arrays)


def export(saved: SavedCheckpoint, spec: str, path: Path) -> None:
    """Write the model and print a summary line."""
    from hpcflow.onnx import export_model

    with Graph().as_default():
        inputs, outputs = build(spec)
        model = export_model(outputs, inputs, LazyArrays(saved))
    path.write_bytes(model.SerializeToString())
    out(
        f"{path}: {len(model.graph.node)} nodes, {path.stat().st_size:,} bytes, of {saved.path} "
        f"(step {saved.facts['step']:,}); {', '.join(inputs)} -> {', '.join(outputs)}"
    )


def _quantized(path: Path, args: argparse.Namespace) -> None:
    """Also write the model with 8-bit integers, and print the accuracy of both."""
    from hpcflow.onnx import quantization

    small = path.with_suffix(".int8.onnx")
    data = samples(path, args.int8, args.labels) if args.int8 is not True else None
    labels = data.pop(args.labels) if data is not None and args.labels else None
    first = None if data is None else {n: a[: args.calibrate] for n, a in data.items()}
    quantization.quantize(path, small, first)
    rows = [(p, quantization.measure(p, data, labels)) for p in (path, small)]
    for model_path, metrics in rows:
        accuracy = "" if metrics.accuracy is None else f"  accuracy {metrics.accuracy:.4f}"
        out(f"{model_path!s:<40} {metrics.bytes:>12,} bytes{accuracy}")
    if data is not None and labels is None:
        share = quantization.deviation(path, small, data)
        out(f"outputs differ by up to {share:.2%} of their range")


def samples(model: Path, path: str, labels: str | None) -> dict[str, np.ndarray]:
    """The inputs of a model, and the labels, from an HDF5 file.

    Errors: DataError if one is missing, or their lengths differ.
    """
    from hpcflow.data.hdf5_rows import hdf5
    from hpcflow.onnx import quantization

    session = quantization.runtime().InferenceSession(
        str(model), providers=["CPUExecutionProvider"]
    )
    names = [v.name for v in session.get_inputs()] + ([labels] if labels else [])
    arrays = {}
    for name in names:
        rows = hdf5(path, name)
        rows.open()
        arrays[name] = rows.rows(np.arange(len(rows)))
        rows.close()
    if len({len(a) for a in arrays.values()}) > 1:
        raise DataError(
            f"{path}: " + ", ".join(f"{n} has {len(a):,} rows" for n, a in arrays.items())
        )
    return arrays
