"""What is a stall and what is none: who moves, is debugged, cannot speak, or is on another node."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import subprocess
import sys
import time

import pytest

from hpcflow.monitoring import stack_dump, stall_watchdog, wait_for_report
from hpcflow.monitoring import wait_ledger as ledgers
from hpcflow.monitoring.cross_node_wait_ledgers import CrossNodeLedgers, remove_stale_folders
from hpcflow.monitoring.stall_watchdog import StallTimes, StallWatchdog
from hpcflow.monitoring.wait_ledger import DEAD_S, OWN, PATIENT, PREFIX, WaitLedger, read_all
from hpcflow.platform.private_files import is_own_folder
from hpcflow.platform.rank_logging import SharedLineBoard
from tests.comm import watching
from tests.comm.threads import until

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


@pytest.fixture
def node(tmp_path):
    """`node(rank, ...)` opens the ledger of a rank."""
    made = []

    def open_one(rank, host="nid1", task="", task_index=0):
        made.append(WaitLedger(tmp_path / f"ledger-{host}", rank, host, task, task_index))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def watch(
    ledger, run_dir, stall_s=2.0, abort_s=60.0, abort=lambda error: None, of=StallWatchdog, **more
):
    return of(ledger, 4, run_dir, StallTimes(stall_s, abort_s), abort, watch_gil=False, **more)


def test_who_waits_for_one_that_moves_does_not_stall(node, tmp_path, monkeypatch):
    """Rank 1 evaluates: its steps end, though it comes to no meeting; then they do not any more."""
    clock = watching.Clock(monkeypatch)
    mine, other = node(0), node(1)
    mine.enter(0, "saving", -1, "request")
    moving = [True]
    dogs = [
        watch(mine, tmp_path, of=watching.Watchdog),
        watch(other, tmp_path, of=watching.Watchdog, moves=lambda seconds: moving[0]),
    ]
    clock.run(dogs, 4.0)
    assert not list(tmp_path.glob("stall-*")), "twice as long as a stall may last"
    moving[0] = False
    clock.run(dogs, 2.5)
    assert list(tmp_path.glob("stall-*"))


def test_a_server_that_serves_others_is_no_movement(node):
    """Only those whose program may come to what is waited for say that they move."""
    mine, server, other = node(0), node(1, task_index=-1), node(2)
    mine.enter(3, "v/recv", 1, "Recv")
    other.moves()
    entries = read_all(mine.directory)
    assert [e.rank for e in wait_for_report.wait_chain(entries[0], entries)] == [1]
    server.enter(9, "what worker 2 is to bring", 2, PATIENT)
    entries = read_all(mine.directory)
    assert [e.rank for e in wait_for_report.wait_chain(entries[0], entries)] == [1, 2]
    assert entries[2].moved and not entries[1].moved


def test_who_waits_for_one_that_writes_a_file_does_not_stall(node, tmp_path, monkeypatch):
    """Rank 1 saves for long, perhaps in a call that keeps the GIL; then it hangs."""
    program = """if True:
        import sys
        with open(sys.argv[1], "wb", buffering=0) as file:
            for line in sys.stdin:  # each asks for a write
                file.seek(0)
                file.write(bytes(2 << 20))
                print("written", flush=True)
    """
    clock = watching.Clock(monkeypatch)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "large")], **pipes)
    mine, other = node(0), node(1)
    mine.enter(0, "what one rank decides", 1, "request")
    other._words[2] = child.pid
    dog = watch(mine, tmp_path, of=watching.Watchdog)
    for _ in range(16):
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "written\n"
        clock.run([dog], 0.25)
    assert not list(tmp_path.glob("stall-*")), "twice as long as a stall may last"
    clock.run([dog], 2.5)
    assert list(tmp_path.glob("stall-*"))
    child.communicate()


def test_a_meeting_misses_ranks_of_the_same_place_alone(node):
    """Workers meet: servers and other tasks of replicas have not to come."""
    node(0).enter(0, "saving", -1, "request")
    node(1)
    node(2, task_index=1)
    node(3, task_index=-1)
    mine, *others = read_all(node(0).directory)
    mine = dataclasses.replace(mine, op="saving", since=1.0, kind="request", step=0)
    assert [entry.rank for entry in wait_for_report.missing_ranks(mine, others)] == [1]


def test_ranks_that_wait_for_each_other_are_told_as_a_ring(node):
    node(0).enter(2, "v/recv", 2, "Recv")
    node(1)
    node(2).enter(2, "g/recv", 0, "Recv")
    entries = read_all(node(3).directory)
    assert wait_for_report.wait_cycle(entries[0], entries) == [0, 2]
    said = wait_for_report.describe_stall(entries[0], entries, 4, "stall-2.txt")
    assert "ring     0, 2 wait for each other: a message of theirs has not left or come" in said
    assert wait_for_report.wait_cycle(entries[1], entries) == []


def test_a_stopped_rank_is_named_whomever_this_rank_waits_for(node):
    """Rank 1, for which it waits, waits for the stopped one in the end of the program."""
    node(0).enter(1, "a message", 1, "Send")
    node(1).enter(1, "the end of the program", -1, "request")
    node(2)
    entries = read_all(node(3).directory)
    entries[3] = dataclasses.replace(entries[3], process="T")
    said = wait_for_report.describe_stall(entries[0], entries, 4, "stall-0.txt")
    assert re.search(r"stopped  3 on .* is stopped \(T", said)
    assert len(re.findall("is stopped", said)) == 1


def test_a_wait_for_state_of_the_rank_itself_misses_nobody_else(node):
    node(0).enter(4, "taken\ntrain.py:9", OWN, "QueueDequeue")
    entries = read_all(node(1).directory)
    said = wait_for_report.describe_stall(entries[0], entries, 2, "stall-4.txt")
    assert said.startswith("QueueDequeue 'taken' (made at train.py:9) at step 4 has waited")
    assert "for a step of this rank, in another thread say" in said and "missing" not in said


def test_a_rank_under_a_debugger_is_no_stall(node, tmp_path):
    """As with gdb: another process traces it, and lets it run or not."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, child.pid, None, None) == 0, os.strerror(ctypes.get_errno())
    node(0).enter(3, "sum", -1, "AllReduce")
    node(1)
    entries = read_all(node(2).directory)
    entries[1] = dataclasses.replace(entries[1], pid=child.pid)
    assert stack_dump.process_state(child.pid) == stack_dump.DEBUGGED
    assert wait_for_report.is_debugged(entries[0], entries)
    child.kill()
    child.wait()
    child.stdin.close()
    assert not wait_for_report.is_debugged(entries[0], entries)


def test_a_rank_that_runs_speaks_for_one_that_keeps_the_gil(node, tmp_path):
    """Rank 0 waits within a call of C; rank 1, for whom it waits, has Python running."""
    mute, speaker = node(0), node(1)
    mute.enter(7, "a collective write", -1, "request")
    mute._times[ledgers._HEARTBEAT] = mute._times[ledgers._SINCE] = time.time() - 100
    dog = watch(speaker, tmp_path)
    until(lambda: list(tmp_path.glob("stall-7.txt")))
    dog.stop()
    text = (tmp_path / "stall-7.txt").read_text()
    assert "request 'a collective write' at step 7 has waited" in text
    assert "told by rank 1" in text


def test_a_stopped_rank_that_waited_is_not_spoken_for(node, tmp_path):
    """It goes on when it is let: who waits for it says so."""
    stopped, speaker = node(0), node(1)
    stopped.enter(7, "sum", -1, "AllReduce")
    stopped._times[ledgers._HEARTBEAT] = stopped._times[ledgers._SINCE] = time.time() - 100
    record = stopped._memory
    record[88:96] = b"T".ljust(8, b"\0")
    dog = watch(speaker, tmp_path, stall_s=0.1)
    time.sleep(0.5)
    dog.stop()
    assert not list(tmp_path.glob("stall-*"))


def test_nodes_tell_each_other_through_the_run_directory(node, tmp_path, monkeypatch):
    """The rank that is missing is alone on another node: its line is in the report all the same."""
    clock = watching.Clock(monkeypatch)
    mine, far = node(0, "nid1"), node(1, "nid2", "/job:worker/task:1")
    folder = tmp_path / "run"
    near = CrossNodeLedgers(mine.directory, folder, "nid1")
    there = CrossNodeLedgers(far.directory, folder, "nid2")
    there.folder = near.folder  # of one name on all nodes
    dog = watch(far, folder, nodes=there, leads=True, of=watching.Watchdog)
    clock.run([dog], 4.0)
    assert not folder.exists(), "as long as nobody waits nothing is written"
    mine.enter(5, "grads", -1, "AllReduce")
    first = watch(mine, folder, nodes=near, leads=True, of=watching.Watchdog)
    clock.run([dog, first], 2.5)
    first.stop()
    dog.stop()
    text = (folder / "stall-5.txt").read_text()
    assert "for 1 of 4 ranks" in text
    assert "missing  1 on nid2, /job:worker/task:1: waits for nothing: it computes" in text
    line = text.partition("missing  1")[2].partition("\n")[0]  # this thread's
    assert any(f"{name}.py:" in line for name in ("test_stalls", "watching")), line
    assert not near.folder.exists(), "nothing is left of a job that ends in order"


def test_what_another_node_says_of_its_processes_is_believed(node, tmp_path):
    """A process number means nothing elsewhere; an old word means nothing anywhere."""
    far = node(3, "nid2")
    there, near = (CrossNodeLedgers(far.directory, tmp_path, host) for host in ("nid2", "nid1"))
    near.folder = there.folder
    there.want()
    there.publish()
    (entry,) = near.remote_entries()
    assert entry.rank == 3 and entry.process in ("R", "S") and not entry.moved
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    there.publish()
    assert near.remote_entries()[0].moved > time.time() - 60, "it has written a file"
    old = time.time() - 100
    os.utime(there.folder / "nid2", (old, old))
    assert near.remote_entries() == []


def test_folders_of_jobs_that_died_are_swept_from_the_run_directory(tmp_path):
    """One node may write there while others are silent; what others may write into is not ours."""
    old = time.time() - 2 * DEAD_S
    for name in ("dead", "told", "begun", "foreign"):
        folder = tmp_path / f".{PREFIX}{name}"
        folder.mkdir(mode=0o700)
        (folder / "nid1").touch()
        for path in (folder / "nid1", folder):
            os.utime(path, (old, old))
    (tmp_path / f".{PREFIX}told" / "nid1").write_bytes(b"")  # which leaves the folder as old
    os.utime(tmp_path / f".{PREFIX}begun")
    (tmp_path / f".{PREFIX}foreign").chmod(0o777)
    (tmp_path / f"{PREFIX}own").mkdir()
    os.utime(tmp_path / f"{PREFIX}own", (old, old))
    (tmp_path / f".{PREFIX}link").symlink_to(tmp_path / f"{PREFIX}own")
    remove_stale_folders(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f".{PREFIX}{n}" for n in ("told", "begun", "foreign", "link")} | {
        PREFIX + "own"
    }
    remove_stale_folders(tmp_path / "missing")


def test_a_warning_makes_the_folder_of_the_nodes_this_users_own(node, tmp_path):
    """Whatever the umask: else nobody would heed what is written there."""
    there = CrossNodeLedgers(node(0).directory, tmp_path, "nid1")
    before = os.umask(0o002)
    try:
        SharedLineBoard(str(there.folder), 0).is_first("slow", 0.0)
    finally:
        os.umask(before)
    there.want()
    assert is_own_folder(there.folder) and there.is_wanted


def test_the_line_of_the_main_thread_is_the_users_own():
    assert stack_dump.main_line().startswith(f"{__file__}:")
    assert "in test_the_line_of_the_main_thread" in stack_dump.main_line()
    assert stack_dump.main_op() == ""


def test_the_operation_of_generated_code_is_told():
    scope = {
        stack_dump.OPS: ["", "dense/MatMul"],
        "tell": lambda: (stack_dump.main_op(), stack_dump.main_line()),
    }
    exec(compile("def s0():\n  return tell()\n", "<hpcflow test>", "exec"), scope)
    op, line = scope["s0"]()
    assert op == "dense/MatMul" and line.endswith("> op 'dense/MatMul'")


def test_a_frame_between_two_lines_has_a_place_too():
    """Python then knows no line of it, which once ended the watch."""

    def tell():
        return sys._getframe().f_lineno, stack_dump.main_op(), stack_dump.main_line()

    code, nowhere = tell.__code__, 0x80 | 15 << 3 | 7  # eight instructions without a line
    tell.__code__ = code.replace(co_linetable=bytes([nowhere]) * len(code.co_code))
    line, op, place = tell()
    assert line is None and op == "" and place.startswith(f"{__file__}:{code.co_firstlineno} in")


def test_a_fault_of_the_watch_does_not_end_it(node, tmp_path, monkeypatch, caplog):
    failed = []

    def faulty():
        failed.append(True)
        raise TypeError("no line")

    monkeypatch.setattr(stall_watchdog, "main_line", faulty)
    mine = node(0)
    dog = watch(mine, tmp_path, stall_s=0.5)
    until(lambda: len(failed) > 1)
    monkeypatch.undo()
    mine.enter(3, "v/recv", 1, "Recv")
    until(lambda: list(tmp_path.glob("stall-*")))
    dog.stop()
    assert caplog.text.count("the watch for stalls failed") == 1
