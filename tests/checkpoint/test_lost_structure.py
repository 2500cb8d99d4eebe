"""Writes of HDF5's own that never reach the file: the save fails, whatever its digests say.

HDF5 writes by the C library, so what it wrote is overwritten here when it has closed the file and
before the digests are made, as on a disk that has lost a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory, hdf5_datasets
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import save_some
from tests.runtime.ranks import run_ranks

Lose = Callable[[Path, int], None]
FORMS = {
    "sharded": dict(ranks=2, form="sharded"),
    "served": dict(ranks=2, ps=1, form="sharded"),
    "one file": dict(ranks=1, form="parallel"),
}


def superblock(path: Path, block: int) -> None:
    overwrite(path, block, 96)


def name_of_an_array(path: Path, block: int) -> None:
    """A symbol table or local heap without its names."""
    data = path.read_bytes()
    at = data.index(b"HEAP", block)
    overwrite(path, at, 64)


def header_of_an_array(path: Path, block: int) -> None:
    with h5py.File(path, "r") as file:
        at = [int(h5py.h5o.get_info(file[name].id).addr) for name in deep(file)]
    overwrite(path, block + max(at), 40)


def attribute(path: Path, block: int) -> None:
    """The name by which an attribute is found."""
    data = path.read_bytes()
    overwrite(path, data.index(b"step\0", block), 4)


def deep(group: Any) -> Iterator[str]:
    found: list[str] = []
    group.visititems(lambda name, item: found.append(name) if hasattr(item, "shape") else None)
    return iter(found)


def overwrite(path: Path, at: int, count: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(count))


LOST: list[Lose] = [superblock, name_of_an_array, header_of_an_array, attribute]


@contextlib.contextmanager
def losing(monkeypatch: pytest.MonkeyPatch, which: str, lose: Lose) -> Iterator[list[Path]]:
    """Files whose name has `which` lose what `lose` takes when HDF5 has closed them."""
    created, lost = hdf5_datasets.create_file, []

    @contextlib.contextmanager
    def without(path: Path, block: int, *more: int) -> Iterator[Any]:
        with created(path, block, *more) as file:
            yield file
        if which in path.name:
            lose(path, block)
            lost.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(hdf5_datasets, "create_file", without)
        yield lost


@pytest.mark.slow
@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize(
    ("form", "which"),
    [("sharded", "part-"), ("sharded", "index"), ("served", "part-"), ("one file", "step-2")],
)
def test_a_lost_write_of_structure_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, which: str, lose: Lose
) -> None:
    save_some(tmp_path, 1, rows=20, **FORMS[form])
    (older,) = checkpoint_directory.find_checkpoints(tmp_path)
    with losing(monkeypatch, which, lose) as lost, pytest.raises(CheckpointError) as caught:
        save_some(tmp_path, 2, rows=20, **FORMS[form])
    assert lost and "earlier checkpoints are unchanged" in str(caught.value)
    assert [one.path for one in checkpoint_directory.find_checkpoints(tmp_path)] == [older.path]
    assert verify_checkpoint(older).faults == []


def test_a_lost_text_is_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(path: Path, block: int) -> None:
        data = path.read_bytes()
        overwrite(path, data.index(b'"inputs":'), 9)

    with losing(monkeypatch, "index", lose) as lost, pytest.raises(CheckpointError, match="lost"):
        save_some(tmp_path, 2, rows=20, ranks=1, form="sharded")
    assert lost and not checkpoint_directory.find_checkpoints(tmp_path)


@pytest.mark.parametrize("which", ["part-", "index"])
def test_behind_training_it_is_told_and_the_next_save_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    def body(context: Any) -> None:
        w = hf.Variable(np.zeros(4, "f4"), name="w")
        train = w.assign_add(np.ones(4, "f4"))
        with hf.train.TrainingSession(
            context=context, checkpoints=tmp_path, save_every=1
        ) as session:
            for _ in range(4):
                session.step(train, {})

    with losing(monkeypatch, which, name_of_an_array), pytest.raises(CheckpointError) as caught:
        run_ranks(1, body)
    assert "differs from what was written" in caught.value.message
    assert "is not written" in caplog.text and not checkpoint_directory.find_checkpoints(tmp_path)
