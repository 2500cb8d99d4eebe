"""The file of states of TensorFlow 1, filenames matched once, restoring in another shape."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow import train
from hpcflow.errors import CheckpointError, CheckpointMismatchError, DTypeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def saved(folder: Path, steps: int) -> list[str]:
    """Checkpoints of a variable, each a second older than the next."""
    v = hf.Variable(np.arange(6, dtype=np.float32), name="v")
    saver = train.Saver([v])
    paths = []
    with hf.Session() as session:
        session.run(v.initializer)
        for step in range(steps):
            paths.append(saver.save(session, folder, step))
            for file in Path(paths[-1]).iterdir():
                os.utime(file, (1e9 + step, 1e9 + step))
    return paths


# -- the file of states


def test_the_state_says_which_checkpoint_is_the_newest(tmp_path: Path) -> None:
    first, second, third = saved(tmp_path, 3)
    assert train.latest_checkpoint(tmp_path) == third
    train.update_checkpoint_state(tmp_path, second, [first, second])
    assert train.latest_checkpoint(tmp_path) == second
    state = train.get_checkpoint_state(tmp_path)
    assert state is not None and state.model_checkpoint_path == second
    assert state.all_model_checkpoint_paths == [first, second]
    lines = (tmp_path / "checkpoint").read_text().splitlines()
    assert lines == [
        'model_checkpoint_path: "step-1"',
        'all_model_checkpoint_paths: "step-0"',
        'all_model_checkpoint_paths: "step-1"',
    ]


def test_what_is_saved_later_counts_more(tmp_path: Path) -> None:
    first, _, third = saved(tmp_path, 3)
    train.update_checkpoint_state(tmp_path, first)
    for file in Path(third).iterdir():
        os.utime(file)  # now
    os.utime(tmp_path / "checkpoint", (1e9 + 9, 1e9 + 9))
    assert train.latest_checkpoint(tmp_path) == third


def test_a_state_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 2)
    train.update_checkpoint_state(tmp_path, first, latest_filename="best")
    assert train.latest_checkpoint(tmp_path, latest_filename="best") == first
    assert train.latest_checkpoint(tmp_path) == second
    state = train.get_checkpoint_state(tmp_path, latest_filename="best")
    assert state is not None and state.all_model_checkpoint_paths == [first]
    elsewhere = tmp_path.parent / "elsewhere"
    train.update_checkpoint_state(elsewhere, second)
    assert train.latest_checkpoint(elsewhere) == second


def test_a_state_of_what_is_gone_does_not_count(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 2)
    train.update_checkpoint_state(tmp_path, str(tmp_path / "step-7"))
    assert train.latest_checkpoint(tmp_path) == second
    (tmp_path / "checkpoint").write_bytes(b"\xff no state")
    assert train.latest_checkpoint(tmp_path) == second
    with pytest.raises(CheckpointError, match="cannot be written"):
        train.update_checkpoint_state(Path(first) / os.listdir(first)[0], second)


# -- another shape


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2), (6, 1), (1, 1, 6)])
def test_as_many_elements_in_another_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (path,) = saved(tmp_path, 1)
    with hf.Graph().as_default(), hf.Session() as session:
        v = hf.Variable(np.zeros(shape, np.float32), name="v")
        train.Saver([v], reshape=True).restore(session, path)
        np.testing.assert_array_equal(session.run(v), np.arange(6.0).reshape(shape))
        if shape != (6,):
            with pytest.raises(CheckpointMismatchError, match=r"in the checkpoint float32\[6\]"):
                train.Saver([v]).restore(session, path)


@pytest.mark.parametrize("other", [np.zeros((2, 2), np.float32), np.zeros((2, 3), np.int32)])
def test_other_sizes_and_dtypes_do_not_fit(tmp_path: Path, other: np.ndarray) -> None:
    (path,) = saved(tmp_path, 1)
    with hf.Graph().as_default(), hf.Session() as session:
        v = hf.Variable(other, name="v")
        with pytest.raises(CheckpointMismatchError):
            train.Saver([v], reshape=True).restore(session, path)


# -- filenames


def test_filenames_that_are_matched_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text(name)
    one = train.match_filenames_once(str(tmp_path / "*.txt"))
    both = train.match_filenames_once([str(tmp_path / "*.txt"), str(tmp_path / "c.*")], name="all")
    (tmp_path / "later.txt").write_text("")
    with hf.Session() as session:
        session.run(hf.local_variables_initializer())
        texts = [Path(name.decode()).name for name in session.run(one)]
        assert texts == ["a.txt", "b.txt"]
        assert [Path(n.decode()).name for n in session.run(both)] == ["a.txt", "b.txt", "c.csv"]
        assert one.dtype == hf.string and both.op.name == "all"
    with pytest.raises(DTypeError, match="takes strings"):
        train.match_filenames_once(3)


def test_no_file_matches(tmp_path: Path) -> None:
    with hf.Session() as session:
        assert session.run(train.match_filenames_once(str(tmp_path / "*"))).shape == (0,)
