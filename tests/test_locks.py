"""Locks of a node: no other user can hold one or make us wait, and a wait says for whom."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcflow.platform import file_locks, rank_logging
from hpcflow.platform.private_files import is_own_folder

ROOT = Path(__file__).parents[1]
NOBODY = 65534
# Once it has imported what it needs, for the interpreter may lie where only root may look.
BECOMES = "import fcntl, os, sys; os.setgroups([]); os.setgid({0}); os.setuid({0})\n"
HOLDS = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
fcntl.flock(file, fcntl.LOCK_EX)
print("holds", flush=True)
sys.stdin.read()
"""
# What another user does to all names that can be guessed: a folder with locks that it holds.
SQUATS = """
import fcntl, os, sys
os.umask(0)
os.makedirs(sys.argv[1], 0o777)
for name in ("kernels", *(f"plans-{n:x}" for n in range(16))):
    file = os.open(f"{sys.argv[1]}/{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(file, fcntl.LOCK_EX)
print("holds", flush=True)
sys.stdin.read()
"""
TURN = """
import sys, time
from pathlib import Path
from hpcflow.platform import file_locks
with file_locks.build_turn("kernels", Path(sys.argv[1])):
    print("has its turn", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, as /tmp is: all users may make files there."""
    made = Path(tempfile.mkdtemp(prefix="hpcflow-test-locks-"))
    made.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr(file_locks, "_in_vain", {})
    monkeypatch.setattr(rank_logging, "_said", set())
    yield made
    shutil.rmtree(made)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir(mode=0o700)
    return tmp_path / "kernels"


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sleeps of those who wait for a lock; they sleep as ever."""
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(seconds)
        time.sleep(seconds)

    names = {"monotonic": time.monotonic, "strftime": time.strftime, "sleep": sleep}
    monkeypatch.setattr(file_locks, "time", SimpleNamespace(**names))
    return found


@contextlib.contextmanager
def child(
    code: str, *words: str | Path, user: int | None = None, temp: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` and has printed a line; it ends with the block."""
    command = [sys.executable, "-c", (BECOMES.format(user) if user else "") + code]
    command += map(str, words)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temp or tempfile.gettempdir())}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    job = subprocess.Popen(command, env=env, cwd="/", text=True, **pipes)  # type: ignore[call-overload]
    try:
        assert job.stdout.readline().strip() in ("holds", "has its turn")
        yield job
    finally:
        job.kill()
        job.communicate()


def holds(path: Path) -> bool:
    """Whether somebody has the lock now."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_folder_and_its_files_are_this_users_alone(temp: Path, own: Path) -> None:
    before = os.umask(0)
    try:
        with file_locks.build_turn("kernels", own):
            (lock,) = file_locks.folder().iterdir()
            assert holds(lock)
    finally:
        os.umask(before)
    assert not holds(lock) and lock.parent.parent == temp
    assert lock.parent.stat().st_mode & 0o777 == 0o700 and lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a second user")
def test_another_user_who_holds_all_names_delays_nothing(
    temp: Path, own: Path, caplog: pytest.LogCaptureFixture, sleeps: list[float]
) -> None:
    with child(SQUATS, file_locks.folder(), user=NOBODY):
        with file_locks.build_turn("kernels", own):
            (lock,) = own.iterdir()
            assert holds(lock), "the own processes of the node still wait for each other"
        assert sleeps == []
        assert f"belongs to another user (uid {NOBODY})" in caplog.text
        assert "set TMPDIR to a folder of yours" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a second user")
def test_another_user_cannot_hold_a_lock_of_ours(temp: Path, own: Path) -> None:
    with file_locks.build_turn("kernels", own):
        pass
    (lock,) = file_locks.folder().iterdir()
    with pytest.raises(AssertionError), child(HOLDS, lock, user=NOBODY):
        pass  # it printed nothing, for it could not open the file
    os.chown(lock, NOBODY, NOBODY)  # as if it had been put there
    with file_locks.build_turn("kernels", own):
        assert not holds(lock) and holds(next(own.iterdir()))


@pytest.mark.parametrize("how", ["link", "open to all", "file", "pipe", "a folder for the lock"])
def test_what_stands_in_the_place_of_locks_is_not_used(
    temp: Path, own: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = file_locks.folder()
    victim = temp / "victim"
    victim.mkdir(mode=0o700)
    if how == "link":
        place.symlink_to(victim)
    elif how == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif how == "file":
        place.write_text("")
    elif how == "pipe":
        place.mkdir(mode=0o700)
        os.mkfifo(place / "kernels.lock")
    else:
        (place / "kernels.lock").mkdir(mode=0o700, parents=True)
        place.chmod(0o700)
    with file_locks.build_turn("kernels", own):
        assert holds(next(own.iterdir()))
    assert list(victim.iterdir()) == []
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    assert str(place) in caplog.text


def test_without_any_lock_each_goes_on_and_says_so(
    temp: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_locks.folder().write_text("")
    own.chmod(0o777)
    with file_locks.build_turn("kernels", own):
        pass
    assert list(own.iterdir()) == []
    assert [str(place) in caplog.text for place in (file_locks.folder(), own)] == [True, True]


def test_a_file_system_without_locks_is_no_lock_that_is_held(
    temp: Path,
    own: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    sleeps: list[float],
) -> None:
    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(file_locks.fcntl, "flock", none)
    with file_locks.build_turn("kernels", own):
        assert sleeps == []
    assert "Function not implemented" in caplog.text


def test_a_wait_says_once_for_which_process(
    temp: Path, own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(file_locks, "SAY_S", 0.2)
    monkeypatch.setattr(file_locks, "PATIENCE_S", 0.6)
    with child(TURN, own) as job:
        job.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        with file_locks.build_turn("kernels", own):
            assert time.monotonic() - since >= 0.6
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2
        for line in told:
            assert f"process {job.pid} on {os.uname().nodename}" in line and "TURN" not in line
            assert str(file_locks.folder() / "kernels.lock") in line and sys.executable in line
        levels = [record.levelno for record in caplog.records]
        assert levels == [logging.INFO, logging.WARNING] and "goes on without" in told[1]
        with file_locks.build_turn("kernels", own):  # nobody waits twice in vain for one process
            assert len(caplog.records) == 2
    with child(TURN, own) as other:  # it is another that has the lock now
        with file_locks.build_turn("kernels", own):
            pass
        assert f"process {other.pid}" in caplog.records[-1].getMessage()


def test_who_waits_alone_waits_on_and_says_for_whom(
    temp: Path, own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder ends when the other has slept ten times more after its warning."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(file_locks, "SAY_S", 0.1)
    monkeypatch.setattr(file_locks, "PATIENCE_S", 0.3)
    path = own / "copy.lock"
    path.write_text("0" * file_locks.NOTE_BYTES + "process 7 \x1b[2J\nforged\u202e")
    path.chmod(0o600)
    with child(HOLDS, path) as job:
        late = []

        def sleep(seconds: float) -> None:
            time.sleep(seconds)
            late.extend([seconds] * (len(caplog.records) >= 2))
            if len(late) == 10:
                job.kill()

        monkeypatch.setattr(
            file_locks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep,
                                                strftime=time.strftime)
        )  # fmt: skip
        with file_locks.exclusive(path, "the copy of x.h5") as notes:
            assert len(late) >= 10
            assert os.pread(notes, file_locks.NOTE_BYTES, 0) == b"0" * file_locks.NOTE_BYTES
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "goes on waiting" in told[1] and "the copy of x.h5" in told[0]
    assert "\x1b" not in caplog.text and "\u202e" not in caplog.text
    assert r"process 7 \x1b[2J\nforged\u202e" in told[0]


def test_who_dies_lets_the_next_one_in(temp: Path, own: Path) -> None:
    with child(TURN, own):
        assert holds(file_locks.folder() / "kernels.lock")
    with file_locks.build_turn("kernels", own):
        said = (file_locks.folder() / "kernels.lock").read_bytes()[file_locks.NOTE_BYTES :].decode()
    assert f"process {os.getpid()} " in said


# -- boards on which ranks tell what they have said: another user's folder in their place


@pytest.mark.parametrize("how", ["link", "open to all"])
def test_a_board_in_a_folder_of_others_is_not_used(tmp_path: Path, how: str) -> None:
    """Its files would be theirs: a link to a file of ours, or a pipe that nobody reads."""
    (tmp_path / "victim").mkdir(mode=0o700)
    (tmp_path / "precious").write_text("precious\n")
    place = tmp_path / "board"
    if how == "link":
        place.symlink_to(tmp_path / "victim")
    else:
        place.mkdir()
        place.chmod(0o777)
    board = rank_logging.SharedLineBoard(str(place), 0)
    path = Path(board._path("a line"))
    path.symlink_to(tmp_path / "precious")
    assert board.is_first("a line", 0.0) and board.is_first("another", 0.0)
    assert (tmp_path / "precious").read_text() == "precious\n"
    path.unlink()
    os.mkfifo(path)
    assert board.is_first("a line", 0.0)
    assert not is_own_folder(place) and list(place.iterdir()) == [path]
