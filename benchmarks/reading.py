"""Reading an HDF5 data set by two ranks, beside plain h5py slices; waiting for input in training.

    python benchmarks/reading.py --out FILE              2 GiB, made in --folder (TMPDIR)
    python benchmarks/reading.py --mebibytes 256         smaller

Each repeat is one epoch of the whole file: both ranks read their share of each joined batch, by
hf.data or by `dataset[a:b]`. Case "cold" drops the file from the page cache before. Then the
network of examples/digits.py trains on rows of 64 numbers, from the file and from memory: how much
longer the steps take, and the part of the time that was spent waiting for input.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import common
from common import Contender, Crew, Tournament, check, role

RANKS, BATCH, WINDOW = 2, 64, 8
COLUMNS = {"4 KiB rows": 1024, "256 B rows": 64}
HDF5, PLAIN, MEMORY = "hpcflow", "h5py slices", "hpcflow, arrays in memory"
STEPS = 3000  # of training


def make(path: pathlib.Path, mebibytes: int) -> None:
    """One dataset for each size of rows, of the same bytes, and labels."""
    import h5py
    import numpy as np

    block = np.random.Generator(np.random.Philox(1)).random((4 << 20) // 4, np.float32)
    with h5py.File(path, "w") as file:
        for name, columns in COLUMNS.items():
            rows = (mebibytes << 20) // (4 * columns)
            stored = file.create_dataset(name, (rows, columns), np.float32)
            step = len(block) // columns
            for start in range(0, rows, step):
                stored[start : start + step] = block.reshape(-1, columns)[: rows - start]
        file["labels"] = np.arange(rows, dtype=np.int32) % 10


def drop(path: str) -> None:
    """Let go of the file's pages."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def share(size: int, rank: int) -> tuple[int, int]:
    return size * rank // RANKS, size * (rank + 1) // RANKS


class Plain:
    """What one writes without hpcflow: slices of each batch; or of blocks, in another order."""

    def __init__(self, arguments: argparse.Namespace, crew: Crew) -> None:
        import h5py

        self.file, self.rank = h5py.File(arguments.file, "r"), crew.rank

    def batches(self, name: str, batch: int) -> Iterator[Any]:
        data = self.file[name]
        low, high = share(batch, self.rank)
        for start in range(0, len(data), batch):
            yield data[start + low : start + high]

    def blocks(self, name: str) -> Iterator[Any]:
        """Whole blocks of 1,024 rows in another order; the rows of a rank's few blocks mixed."""
        import numpy as np

        data = self.file[name]
        random = np.random.Generator(np.random.Philox(3))
        blocks = random.permutation(len(data) // 1024)[self.rank :: RANKS]
        for first in range(0, len(blocks), WINDOW // RANKS):
            few = blocks[first : first + WINDOW // RANKS]
            rows = np.concatenate([data[b * 1024 : (b + 1) * 1024] for b in few])
            rows = rows[random.permutation(len(rows))]
            for start in range(0, len(rows), BATCH // RANKS):
                yield rows[start : start + BATCH // RANKS]


class Ours:
    """The same by hf.data."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import hpcflow as hf

        self.hf, self.file = hf, arguments.file

    def epoch(self, name: str, batch: int, shuffle: Any) -> Iterator[Any]:
        hf = self.hf
        with hf.Graph().as_default():
            x = hf.placeholder(hf.float32, [None, COLUMNS[name]])
            data = hf.data.Dataset({x: hf.data.hdf5(self.file, name)}, batch=batch, shuffle=shuffle)
        with data:
            for found in data.epoch(0):
                yield found[x]


def cases_of(arguments: argparse.Namespace, kind: str, crew: Crew) -> dict[str, Any]:
    """name -> a repeat; each reads the whole file once."""
    if kind == "plain":
        plain = Plain(arguments, crew)
        sequence, mixed = plain.batches, plain.blocks
    else:
        ours = Ours(arguments)
        sequence = lambda name, batch: ours.epoch(name, batch, False)  # noqa: E731
        blocks = ours.hf.data.Blocks(1024, WINDOW)
        mixed = lambda name: ours.epoch(name, BATCH, blocks)  # noqa: E731

    def timed(read: Any, *options: Any, cold: bool = False) -> Any:
        def repeat() -> float:
            if cold:
                if crew.rank == 0:
                    drop(arguments.file)
                crew.barrier()
            begun, total = time.perf_counter(), 0
            for rows in read(*options):
                total += rows.nbytes
                _ = rows[-1, -1]
            spent = time.perf_counter() - begun
            assert abs(total - (arguments.mebibytes << 20) / RANKS) < 16 << 20
            return spent

        return repeat

    found: dict[str, Any] = {}
    for name in COLUMNS:
        for batch in (BATCH, 1024):
            found[f"{name}, batch {batch}"] = timed(sequence, name, batch)
        found[f"{name}, blocks"] = timed(mixed, name)
    found["4 KiB rows, batch 64, cold"] = timed(sequence, "4 KiB rows", BATCH, cold=True)
    return found


def training(arguments: argparse.Namespace, source: str) -> tuple[dict[str, Any], Crew]:
    """Steps of the digits network on batches of the file or of memory, and how long they wait."""
    import hpcflow as hf

    sys.path.append(str(common.ROOT / "examples"))
    import digits
    import numpy as np

    name = "256 B rows"
    images = hf.placeholder(hf.float32, [None, 64])
    labels = hf.placeholder(hf.int32, [None])
    loss, _ = digits.network(images, labels)
    train = hf.train.AdamOptimizer(0.003).minimize(loss)
    rows: Any = hf.data.hdf5(arguments.file, name), hf.data.hdf5(arguments.file, "labels")
    shuffle: Any = hf.data.Blocks(1024, WINDOW)
    if source == "memory":
        random = np.random.Generator(np.random.Philox(1))
        rows = random.random((65536, 64), np.float32), np.arange(65536, dtype=np.int32) % 10
    data = hf.data.Dataset(dict(zip((images, labels), rows, strict=True)), BATCH, shuffle=shuffle)
    session = hf.train.TrainingSession()
    crew = common.crew_of_workers(0) if session.context.world is not None else Crew()
    batches = data.epochs(1000)
    waited: list[float] = []

    def repeat() -> float:
        before, begun = data.input_wait_seconds, time.perf_counter()
        for _ in range(STEPS):
            session.step([train, loss], next(batches))
        spent = time.perf_counter() - begun
        waited.append((data.input_wait_seconds - before) / STEPS)
        return spent / STEPS

    return {"training step": repeat, "training, input wait a step": lambda: waited[-1]}, crew


def act(arguments: argparse.Namespace) -> None:
    """Be one rank."""
    if arguments.role in ("file", "memory"):
        cases, crew = training(arguments, arguments.role)
    else:
        if arguments.role == "hpcflow":
            from hpcflow.runtime.job.job_membership import current_context

            current_context()
        crew = common.crew_of_workers(0)
        cases = cases_of(arguments, arguments.role, crew)
    common.serve(cases, ["h5py", "numpy", "mpi4py"], crew)


def contenders(arguments: argparse.Namespace, path: pathlib.Path) -> tuple[list[Contender], ...]:
    def made(name: str, kind: str) -> Contender:
        options = ["--file", path, "--mebibytes", arguments.mebibytes]
        command, environ = common.ranks(RANKS, role(None, __file__, kind, *options))
        return Contender(name, [command], environ)

    reading = [made(PLAIN, "plain"), made(HDF5, "hpcflow")]
    return reading, [made(HDF5, "file"), made(MEMORY, "memory")]


def checks_of(cup: Tournament, mebibytes: int) -> list[dict[str, Any]]:
    rows = []
    for case in cup.figures:
        if case.startswith("training"):
            continue
        spent = cup.middle(case, HDF5)
        rate = spent and mebibytes / 1024 / spent
        ratio = cup.ratio(case, PLAIN, HDF5)
        rows.append(check(f"{case}: throughput", rate, "GiB/s"))
        rows.append(check(f"{case}: ... by plain h5py", ratio, at_least=0.9))
    step, wait = "training step", "training, input wait a step"
    part = cup.ratio(wait, HDF5, HDF5, step)
    rows.append(check("input wait by time of training, from the file", part, at_most=0.05))
    rows.append(check("training from the file by from memory", cup.ratio(step, HDF5, MEMORY)))
    return rows


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--folder", help="where the file is made")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.set_defaults(rounds=2, repeats=5)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = pathlib.Path(folder) / "data.h5"
        make(path, arguments.mebibytes)
        for group in contenders(arguments, path):
            cup.play(group, arguments.rounds, arguments.repeats)
    common.finish(cup.record(checks_of(cup, arguments.mebibytes), "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
