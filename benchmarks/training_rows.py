"""Files of benchmarks/training_times.py: rows of measured steps and tables of all-reduces.

What is wrong with a file is a `FileError`, which names the file and the line.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import pathlib
import re

import numpy as np

from hpcflow.errors import HpcflowError, PlacementError
from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.parallel_strategy import LayeredModel, ParallelStrategy, TrainingSetup

GPUS, GLOBAL_BATCH, MICRO_BATCH = "# GPUs", "global batch", "micro batch"
HIDDEN, HEADS, LAYERS = "hidden size", "attention heads", "# layers"
SEQUENCE = "sequence length"
TENSOR, DATA, PIPELINE = (f"{kind} parallelism" for kind in ("tensor", "data", "pipeline"))
COLUMNS = (
    *(GPUS, GLOBAL_BATCH, MICRO_BATCH, HIDDEN, HEADS, LAYERS, SEQUENCE),
    *(TENSOR, DATA, PIPELINE),
)
MEASURED, PREDICTED = "iteration time (ms)", "predicted time (ms)"
TABLE_FILES = re.compile(r"AR_GPU(\d{1,6})_")
SIZE, TIME = "size(B)", "time(ns)"


class FileError(HpcflowError):
    """A file that cannot be used."""

    def __init__(self, file: pathlib.Path, line: int, problem: str) -> None:
        where = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{where}: {problem}")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a file in their order: text, line, setup, seconds of a step if measured."""

    file: pathlib.Path
    head: list[str]
    cells: list[list[str]]
    lines: list[int]
    setups: list[TrainingSetup]
    seconds: list[float]

    def groups(self) -> list[list[int]]:
        """Rows with the same model, number of GPUs and global batch."""
        found: dict[tuple[object, int, int], list[int]] = {}
        for row, setup in enumerate(self.setups):
            strategy = setup.strategy
            key = (setup.model, strategy.devices, strategy.global_batch)
            found.setdefault(key, []).append(row)
        return list(found.values())

    def check_tables(self, tables: AllreduceTables) -> None:
        """Errors: FileError for the first row that needs a table which is missing."""
        for line, setup in zip(self.lines, self.setups, strict=True):
            for degree in (setup.strategy.tensor, setup.strategy.data):
                if degree > 1 and degree not in tables.by_ranks:
                    raise FileError(self.file, line, f"no all-reduce table of {degree} GPUs")


def read_rows(file: pathlib.Path, vocabulary: int, measured: bool) -> Rows:
    """The rows of a CSV file with COLUMNS, and MEASURED if that is asked for.

    Errors: FileError.
    """
    head, lines = read_csv(file)
    needed = (*COLUMNS, MEASURED) if measured else COLUMNS
    for name in needed:
        if head.count(name) != 1:
            problem = "is missing" if name not in head else "is there twice"
            raise FileError(file, 1, f"the column {name!r} {problem}")
    rows = Rows(file, head, [], [], [], [])
    for line, cells in lines:
        row = dict(zip(head, cells, strict=True))
        counts = {name: _count(file, line, name, row[name]) for name in COLUMNS}
        rows.setups.append(_setup(file, line, counts, vocabulary))
        if measured:
            rows.seconds.append(1e-3 * _positive(file, line, MEASURED, row[MEASURED]))
        rows.cells.append(cells)
        rows.lines.append(line)
    return rows


def read_csv(file: pathlib.Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and the rows that are not empty with their lines.

    Errors: FileError if there is no row, or one has another number of cells.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(file, 0, str(getattr(error, "strerror", None) or error)) from None
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        found = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise FileError(file, reader.line_num, str(error)) from None
    if len(found) < 2:
        raise FileError(file, 0, "there are no rows" if found else "the file is empty")
    head = [name.strip() for name in found[0][1]]
    for line, cells in found[1:]:
        if len(cells) != len(head):
            raise FileError(file, line, f"{len(cells)} cells, but {len(head)} columns")
    return head, found[1:]


def _setup(file: pathlib.Path, line: int, counts: dict[str, int], vocabulary: int) -> TrainingSetup:
    tensor, data, pipeline = counts[TENSOR], counts[DATA], counts[PIPELINE]
    if tensor * data * pipeline != counts[GPUS]:
        product = f"{tensor} x {data} x {pipeline}"
        problem = f"the degrees {product} do not make {counts[GPUS]} GPUs"
        raise FileError(file, line, problem)
    micro_batches, rest = divmod(counts[GLOBAL_BATCH], counts[MICRO_BATCH] * data)
    if rest or not micro_batches:
        shares = f"{data} replicas in micro-batches of {counts[MICRO_BATCH]}"
        problem = f"a global batch of {counts[GLOBAL_BATCH]} cannot be split over {shares}"
        raise FileError(file, line, problem)
    model = LayeredModel(
        counts[LAYERS], counts[HIDDEN], counts[HEADS], counts[SEQUENCE], vocabulary
    )
    strategy = ParallelStrategy(data, tensor, pipeline, counts[MICRO_BATCH], micro_batches)
    try:
        return TrainingSetup(model, strategy)
    except PlacementError as error:
        raise FileError(file, line, error.message) from None


def _positive(file: pathlib.Path, line: int, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise FileError(file, line, f"{name}: {text!r} is not a positive number")
    return number


def _count(file: pathlib.Path, line: int, name: str, text: str) -> int:
    number = _positive(file, line, name, text)
    if number != int(number) or number > 2**40:
        raise FileError(file, line, f"{name}: {text!r} is not a count")
    return int(number)


def read_tables(folder: pathlib.Path) -> AllreduceTables:
    """The tables AR_GPU{n}_* of a folder: SIZE in bytes, the first TIME in nanoseconds.

    Errors: FileError.
    """
    found = {}
    for file in sorted(folder.glob("AR_GPU*")):
        if match := TABLE_FILES.match(file.name):
            found[int(match[1])] = _read_table(file)
    if not found:
        raise FileError(folder, 0, "no file AR_GPU{n}_* is in this folder")
    return AllreduceTables(found)


def _read_table(file: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    head, lines = read_csv(file)
    for name in (SIZE, TIME):
        if name not in head:
            raise FileError(file, 1, f"the column {name!r} is missing")
    size, time = head.index(SIZE), head.index(TIME)
    sizes = [_positive(file, line, SIZE, cells[size]) for line, cells in lines]
    times = [_positive(file, line, TIME, cells[time]) for line, cells in lines]
    for i in range(1, len(sizes)):
        if sizes[i] <= sizes[i - 1]:
            raise FileError(file, lines[i][0], "sizes do not ascend")
    if len(sizes) < 2:
        raise FileError(file, 0, "a table needs two sizes")
    return np.array(sizes), 1e-9 * np.array(times)
