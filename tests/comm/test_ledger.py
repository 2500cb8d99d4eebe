"""The ledger of waits and the watchdog over it."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from subprocess import PIPE

import pytest

from hpcflow.errors import CommError
from hpcflow.monitoring import stack_dump, wait_for_report
from hpcflow.monitoring import wait_ledger as ledger_module
from hpcflow.monitoring.stall_watchdog import StallTimes, StallWatchdog
from hpcflow.monitoring.wait_ledger import (
    DEAD_S,
    INSIDE,
    PREFIX,
    WaitLedger,
    read_all,
    remove_stale,
)
from tests.comm import watching
from tests.comm.threads import until


@pytest.fixture
def ledgers(tmp_path):
    made = [WaitLedger(tmp_path / "ledger", rank, "nid1") for rank in range(4)]
    yield made
    for ledger in made:
        ledger.close()


def watch(
    ledger, run_dir, stall_s=1.0, abort_s=60.0, abort=lambda error: None, of=StallWatchdog, **more
):
    return of(ledger, 4, run_dir, StallTimes(stall_s, abort_s), abort, watch_gil=False, **more)


def test_others_read_what_a_rank_writes(ledgers):
    ledgers[2].enter(7, "grads/bucket3", 1, "recv")
    entry = read_all(ledgers[0].directory)[2]
    assert (entry.rank, entry.step, entry.op, entry.peer) == (2, 7, "grads/bucket3", 1)
    assert (entry.kind, entry.host, entry.pid) == ("recv", "nid1", os.getpid())
    assert entry.waits and abs(entry.since - time.time()) < 100
    ledgers[2].leave()
    assert not read_all(ledgers[0].directory)[2].waits


def test_the_watchdog_writes_down_how_far_training_is(ledgers, tmp_path):
    steps = iter(range(100_000))
    dog = watch(ledgers[1], tmp_path, stall_s=0.1, steps=lambda: next(steps))
    until(lambda: read_all(ledgers[0].directory)[1].trained > 2)
    dog.stop()


def test_long_names_are_cut_and_files_removed(ledgers):
    ledgers[0].enter(1, "ö" * 100, -1, "k" * 40)
    entry = ledgers[0].read()
    assert entry.op == "ö" * 72 and entry.kind == "k" * 16
    ledgers[0].close()
    ledgers[0].close()
    assert [entry.rank for entry in read_all(ledgers[1].directory)] == [1, 2, 3]


def test_what_dead_jobs_left_is_swept_away(tmp_path, monkeypatch):
    """Gone are those with old heartbeats and no process; one of the two is not enough."""
    names = ["dead", "silent", "fresh", "elsewhere"]
    for name in names:
        host = "nid2" if name == "elsewhere" else "nid1"
        WaitLedger(tmp_path / (PREFIX + name), 0, host)
        (tmp_path / (PREFIX + name) / "stacks-000000").touch()
    monkeypatch.setattr(ledger_module, "alive", lambda pid: False)
    remove_stale(tmp_path, "nid1")
    assert len(list(tmp_path.iterdir())) == len(names)  # none is old
    now = time.time
    for name in names:
        old = now() - 2 * DEAD_S
        os.utime(tmp_path / (PREFIX + name), (old, old))
    monkeypatch.setattr(time, "time", lambda: now() + (2 * DEAD_S))
    fresh = WaitLedger(tmp_path / (PREFIX + "fresh"), 0, "nid1")
    silent = str(tmp_path / (PREFIX + "silent"))
    read = ledger_module.read_all
    monkeypatch.setattr(
        ledger_module,
        "read_all",
        lambda d: [dataclasses.replace(e, pid=1 if str(d) == silent else 2) for e in read(d)],
    )
    monkeypatch.setattr(ledger_module, "alive", lambda pid: pid == 1)
    remove_stale(tmp_path, "nid1")
    assert {p.name for p in tmp_path.iterdir()} == {PREFIX + n for n in names[1:]}
    fresh.close()


def test_enter_and_leave_call_almost_nothing(ledgers):
    """They format nothing and call nobody but the clock and the writer of a record."""
    calls = []

    def count(frame, event, argument):
        if event in ("call", "c_call"):
            calls.append(getattr(argument, "__name__", frame.f_code.co_name))

    ledgers[0].enter(0, "grads/bucket3", 2, "recv")
    ledgers[0].leave()
    sys.setprofile(count)
    try:
        ledgers[0].enter(1, "grads/bucket3", 2, "recv")
        ledgers[0].leave()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 20, calls


def test_no_torn_record_is_read(ledgers):
    """A reader beside a writer sees only records that were written as a whole."""
    stop = threading.Event()

    def write():
        step = 0
        while not stop.is_set():
            step += 1
            ledgers[0].enter(step, f"op{step}", step, f"k{step % 1000}")

    writer = threading.Thread(target=write)
    writer.start()
    whole = []

    def has_read():
        entries = (ledgers[0].read() for _ in range(1000))
        whole.extend(entry for entry in entries if entry is not None and entry.step > 0)
        return len({entry.step for entry in whole}) > 100

    until(has_read)
    stop.set()
    writer.join()
    for entry in whole:
        want = (f"op{entry.step}", entry.step, f"k{entry.step % 1000}")
        assert (entry.op, entry.peer, entry.kind) == want


def test_a_stall_is_reported_once_with_who_is_missing(ledgers, tmp_path, caplog, monkeypatch):
    clock = watching.Clock(monkeypatch)
    for ledger in ledgers[:2]:
        ledger.enter(1204, "grads/bucket3", -1, "collective")
    ledgers[2].enter(1204, "read_batch (data.py:88)", -1, INSIDE)
    dogs = [watch(ledger, tmp_path, stall_s=4.0, of=watching.Watchdog) for ledger in ledgers]
    clock.run(dogs, 3.5)
    assert not list(tmp_path.glob("stall-*"))
    clock.run(dogs, 2.5)
    text = (tmp_path / "stall-1204.txt").read_text()
    assert "collective 'grads/bucket3' at step 1204 has waited" in text
    assert "for 2 of 4 ranks" in text and "2 on nid1: is inside 'read_batch (data.py:88)'" in text
    assert text.count("\nranks\n") == 1
    assert all(text.count(f"stacks of rank {rank}") == 1 for rank in range(4))
    assert "test_a_stall_is_reported_once" in text, "the main thread's stack is in it"
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    (told,) = [line for line in said if "StallError" in line]
    assert "written" in told
    where = [line for line in said if line.startswith("others wait for this rank, which is at ")]
    assert len(where) == 2


def test_an_idle_rank_and_a_short_wait_are_no_stall(ledgers, tmp_path, monkeypatch):
    clock = watching.Clock(monkeypatch)
    dogs = [watch(ledger, tmp_path, of=watching.Watchdog) for ledger in ledgers]
    ledgers[1].enter(3, "slow host function", -1, INSIDE)
    for step in range(10):  # together they last longer than a stall
        ledgers[0].enter(step, "x", 1, "recv")
        clock.run(dogs, 0.75)
        ledgers[0].leave()
    assert not list(tmp_path.glob("stall-*"))
    ledgers[0].enter(10, "x", 1, "recv")
    clock.run(dogs, 1.25)
    assert [path.name for path in tmp_path.glob("stall-*")] == ["stall-10.txt"]


def test_abort_is_called_once_with_the_error(ledgers, tmp_path):
    errors = []
    ledgers[0].enter(5, "pull/w", 3, "recv")
    dog = watch(ledgers[0], tmp_path, 0.1, 0.3, errors.append)
    until(lambda: errors)
    time.sleep(0.3)
    dog.stop()
    assert len(errors) == 1 and "for rank 3" in str(errors[0])


def test_a_rank_that_holds_the_gil_is_seen_with_its_stack(tmp_path):
    """Rank 1 sits in C with the GIL; rank 0's report names it and shows where."""
    program = textwrap.dedent("""
        import ctypes, os, sys, time
        from hpcflow.monitoring.wait_ledger import WaitLedger
        from hpcflow.monitoring.stall_watchdog import StallTimes, StallWatchdog
        rank, base = int(sys.argv[1]), sys.argv[2]
        ledger = WaitLedger(base + "/ledger", rank, "nid1")
        StallWatchdog(ledger, 2, base, StallTimes(2 if rank == 0 else 0.5, 99), print)
        def keeps_the_gil():
            ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
        if rank:
            while not ledger.read().line:  # the watchdog has looked
                time.sleep(0.01)
            open(base + "/kept", "w").close()
            keeps_the_gil()
        else:
            stacks = base + "/ledger/stacks-000001"  # which it writes half a second later
            while not (os.path.exists(base + "/kept") and os.path.getsize(stacks)):
                time.sleep(0.01)
            ledger.enter(9, "grads/bucket0", -1, "collective")
            sys.stdin.read()
    """)
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(r), str(tmp_path)], stdin=PIPE)
        for r in range(2)
    ]
    report = tmp_path / "stall-9.txt"
    until(lambda: report.exists() and "stacks of silent rank 1" in report.read_text())
    for rank in ranks:
        rank.communicate()
        assert rank.returncode == 0
    text = report.read_text()
    assert re.search(r"missing  1 on nid1: .*in a call that keeps the GIL \(S\)", text)
    assert "in keeps_the_gil" in text.partition("stacks of silent rank 1")[2]


def test_a_stall_tells_who_is_behind_whom_it_waits_for(tmp_path):
    """A worker waits for a server, that for another worker, which is stopped: as by kill -STOP."""
    ranks = [
        WaitLedger(tmp_path, rank, "nid1", f"/job:{'ps' if rank == 1 else 'worker'}/task:0")
        for rank in range(4)
    ]
    ranks[0].enter(7, "v/recv", 1, "Recv")
    ranks[1].enter(3, "gradient/recv", 2, "Recv")
    stopped = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.kill(stopped.pid, signal.SIGSTOP)
    until(lambda: stack_dump.process_state(stopped.pid) == "T")
    entries = read_all(tmp_path)
    entries[2] = dataclasses.replace(entries[2], pid=stopped.pid)
    said = wait_for_report.describe_stall(entries[0], entries, 4, tmp_path / "stall-7.txt").split(
        "\n"
    )
    told = r"Recv 'v/recv' at step 7 has waited \d+ s for rank 1 \(/job:ps/task:0\)"
    assert re.search(told, said[0])
    assert said[1].startswith("  missing  1 on nid1, /job:ps/task:0: waits for rank 2 in Recv")
    assert said[2].startswith("  behind   2 on nid1, /job:worker/task:0: waits for nothing")
    assert f"process {stopped.pid} is stopped (T; kill -CONT {stopped.pid}" in said[2]
    assert len(said) == 5, "rank 3 has nothing to do with it"
    stopped.kill()
    stopped.wait()
    stopped.stdin.close()
    for ledger in ranks:
        ledger.close()


# -- what others may have put there: names in /dev/shm can be seen, and made, by every user


def test_ledgers_are_this_users_alone(tmp_path):
    with_umask = os.umask(0)
    try:
        made = WaitLedger(tmp_path / (PREFIX + "a"), 0, "nid1")
    finally:
        os.umask(with_umask)
    assert stat.S_IMODE(os.lstat(made.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.lstat(made.directory / "rank-000000").st_mode) == 0o600
    made.close()


def foreign(path, how):
    """A folder that is there already when a job comes: another user's way to be written or read."""
    if how == "link":
        (path.parent / "victim").mkdir()
        path.symlink_to(path.parent / "victim")
    elif how == "open to all":
        path.mkdir()
        path.chmod(0o777)
    else:
        path.write_text("")


@pytest.mark.parametrize("how", ["link", "open to all"])
def test_a_folder_that_others_may_write_into_is_refused(tmp_path, how):
    path = tmp_path / (PREFIX + "a")
    foreign(path, how)
    with pytest.raises(CommError, match="not this user's own") as caught:
        WaitLedger(path, 3, "nid1")
    assert caught.value.rank == 3 and caught.value.hint
    assert list(path.iterdir()) == []


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / (PREFIX + "a")
    folder.mkdir(mode=0o700)
    (folder / "rank-000000").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        WaitLedger(folder, 0, "nid1")
    assert victim.read_text() == "precious" and read_all(folder) == []


@pytest.mark.parametrize("how", ["link", "open to all", "file"])
def test_what_others_have_put_there_is_neither_read_nor_removed(tmp_path, how):
    """A pipe would have every job on the node wait for its writer."""
    path = tmp_path / (PREFIX + "a")
    foreign(path, how)
    if how == "open to all":
        os.mkfifo(path / "rank-000000")
    old = time.time() - 2 * DEAD_S
    os.utime(path, (old, old), follow_symlinks=False)
    remove_stale(tmp_path, "nid1")
    assert os.path.lexists(path)
    assert ledger_module.user_ledgers(tmp_path) == []


def test_a_pipe_in_the_place_of_a_record_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "rank-000000")
    assert read_all(tmp_path) == []
