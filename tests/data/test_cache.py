"""Copies on the node's disk: made once, by one process; a full disk is said, not fatal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from hpcflow.data import hdf5, node_local_file_cache
from hpcflow.errors import DataError
from hpcflow.platform import file_locks

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time, numpy as np
from hpcflow.data import node_local_file_cache, hdf5
copyfile = node_local_file_cache.shutil.copyfile
def slow(path, draft):
    print("copies", flush=True)
    time.sleep(float(sys.argv[2]))
    copyfile(path, draft)
node_local_file_cache.shutil.copyfile = slow
source = hdf5(sys.argv[1], "x", cache=True)
source.open()
print(source.rows(np.array([7]))[0], source._file.filename, time.process_time())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "far" / "train.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(100.0)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCFLOW_CACHE_DIR", str(tmp_path / "near"))
    return tmp_path / "near"


def opened(path: Path) -> str:
    """The file that is read in place of `path`."""
    source = hdf5(path, "x", cache=True)
    source.open()
    assert source.rows(np.array([7, 99])).tolist() == [7, 99]
    name = str(source._file.filename)
    source.close()
    return name


def start(path: Path, seconds: float = 0) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(path), str(seconds)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def test_one_process_copies_and_the_others_sleep(path: Path, folder: Path) -> None:
    children = [start(path, 1.0) for _ in range(3)]
    told = [child.communicate(timeout=220)[0].split() for child in children]
    assert sorted(words[0] for words in told) == ["7.0", "7.0", "copies"]
    assert {words[-2] for words in told} == {str(next(folder.glob("train-*.h5")))}
    assert opened(path).startswith(str(folder))


def test_a_changed_file_is_copied_again(path: Path) -> None:
    first = opened(path)
    assert opened(path) == first
    os.utime(path, (1, 1))
    assert opened(path) != first


@pytest.mark.parametrize("size", [0, 3000])
def test_a_copy_that_lost_its_end_is_made_again(path: Path, size: int) -> None:
    """The node lost its power after the copy had its name and before its bytes were on the disk."""
    copy = opened(path)
    os.truncate(copy, size)
    assert opened(path) == copy and os.path.getsize(copy) == path.stat().st_size


def test_a_copy_of_another_file_or_changed_later_is_made_again(path: Path) -> None:
    """All have the same size, and `opened` looks at the values."""
    other = path.with_name("test.h5")
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros(100)
    node_local_file_cache.local_copy(other, Path.stat)
    mine, another = Path(opened(path)), Path(node_local_file_cache.local_copy(other, Path.stat))
    another.replace(mine)
    assert opened(path) == str(mine)
    mine.write_bytes(bytes(mine.stat().st_size))
    assert opened(path) == str(mine)


def test_a_disk_that_keeps_seconds_alone_serves_its_copies(path: Path) -> None:
    copy = opened(path)
    facts = os.stat(copy)
    os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns // 10**9 * 10**9))
    before = os.stat(copy).st_ino
    assert opened(path) == copy and os.stat(copy).st_ino == before


def test_who_dies_while_copying_leaves_nothing_behind(path: Path, folder: Path) -> None:
    child = start(path, 600)
    assert child.stdout is not None and child.stdout.readline() == "copies\n"
    (folder / f".train-dead.h5.{child.pid}").touch()
    child.kill()
    child.communicate()
    assert opened(path).startswith(str(folder))


def test_a_full_disk_is_told_and_tried_once(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tries: list[Any] = []
    monkeypatch.setattr(node_local_file_cache, "say_once", said.append)

    def full(*paths: Any) -> None:
        tries.append(paths)
        Path(paths[1]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(node_local_file_cache.shutil, "copyfile", full)
        assert opened(path) == str(path)
        # One that has waited for this does not try again; a later job does.
        with file_locks.exclusive(next(folder.glob("*.lock")), "the copy") as notes:
            assert not node_local_file_cache._fill_copy(
                path, folder / "train-x.h5", notes, time.time() - 60
            )
        assert len(tries) == 1 and "No space left" in said[0]
        assert [f.suffix for f in folder.iterdir()] == [".lock"]
    monkeypatch.setattr(
        node_local_file_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000)
    )
    assert opened(path) == str(path) and "0 MiB are free" in said[-1]
    monkeypatch.undo()
    monkeypatch.setenv("HPCFLOW_CACHE_DIR", str(folder))
    assert opened(path) != str(path)


def test_without_a_folder_it_is_read_where_it_is(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(node_local_file_cache, "say_once", said.append)
    monkeypatch.setenv("HPCFLOW_CACHE_DIR", str(path / "no" / "folder"))
    assert opened(path) == str(path) and str(path) in said[0]
    monkeypatch.delenv("HPCFLOW_CACHE_DIR")
    monkeypatch.setattr(node_local_file_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    assert opened(path).startswith(str(tmp_path / f"hpcflow-cache-{os.getuid()}"))
    assert (tmp_path / f"hpcflow-cache-{os.getuid()}").stat().st_mode & 0o77 == 0


def test_what_is_not_there_is_an_error_with_a_cache_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.h5"):
        hdf5(tmp_path / "absent.h5", "x", cache=True).open()


# -- the names of copies, and of the folder in TMPDIR, can be guessed by others


def test_a_folder_of_another_user_is_not_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCFLOW_CACHE_DIR")
    monkeypatch.setattr(node_local_file_cache.tempfile, "tempdir", str(tmp_path))
    there = node_local_file_cache.cache_folder()
    mine = opened(path)
    assert Path(mine).parent == there and there.stat().st_mode & 0o777 == 0o700
    there.chmod(0o777)
    assert opened(path) == str(path)
    there.rename(tmp_path / "victim")
    (tmp_path / "victim").chmod(0o700)
    there.symlink_to(tmp_path / "victim")
    assert opened(path) == str(path)


def test_where_all_may_write_copies_and_locks_are_in_an_own_folder(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of the node that is everybody's: names in it can be taken by others."""
    folder.mkdir()
    folder.chmod(0o1777)
    mine = folder / f"hpcflow-cache-{os.geteuid()}"
    assert Path(opened(path)).parent == mine and mine.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == [mine]
    mine.rename(folder / "victim")
    mine.symlink_to(folder / "victim")
    assert opened(path) == str(path)


@pytest.mark.parametrize("notes", [b"\x1b[2J not a time", b"", bytes(32), b"\xff" * 40])
def test_notes_in_a_lock_that_are_damaged_are_none(path: Path, folder: Path, notes: bytes) -> None:
    copy = Path(opened(path))
    copy.unlink()
    next(folder.glob("*.lock")).write_bytes(notes)
    assert opened(path) == str(copy)


def test_a_pipe_or_a_link_in_the_place_of_a_lock_is_not_opened(path: Path, folder: Path) -> None:
    copy = Path(opened(path))
    copy.unlink()
    (lock,) = folder.glob("*.lock")
    lock.unlink()
    os.mkfifo(lock)
    assert opened(path) == str(path)
    lock.unlink()
    lock.symlink_to(folder / "victim")
    assert opened(path) == str(path) and not (folder / "victim").exists()


def test_a_copy_that_is_a_link_or_anothers_is_none(
    path: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data of someone else's making under the name that the copy would have."""
    copy = Path(opened(path))
    evil = tmp_path / "evil.h5"
    with h5py.File(evil, "w") as file:
        file["x"] = np.zeros(100)
    assert evil.stat().st_size == path.stat().st_size
    copy.unlink()
    copy.symlink_to(evil)
    assert Path(opened(path)) == copy and not copy.is_symlink()  # `opened` looks at the values
    monkeypatch.setattr(node_local_file_cache.os, "geteuid", lambda: os.getuid() + 1)
    assert not node_local_file_cache._is_complete(copy, path.stat())
