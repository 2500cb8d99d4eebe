"""What a wait on a queue is to the watchdog: real jobs, in subprocesses with a time limit."""

import re

import pytest

from tests.runtime.test_failure import STALLS, job

QUEUE = """
import threading
with hf.device("/job:ps/task:0"):
    queue = hf.FIFOQueue(1, hf.float32, shapes=[(3,)], name="elements")
put, taken = queue.enqueue(x, name="put"), queue.dequeue(name="taken")
"""


@pytest.mark.slow
def test_a_runner_that_waits_in_a_full_queue_is_no_stall(tmp_path):
    """Its thread waits for room on a server, for longer than a stall may last."""
    code, output = job(
        tmp_path,
        QUEUE
        + """
if context.is_chief:
    session.run(put, {x: ONE})
    thread = threading.Thread(target=session.run, args=(put, {x: ONE * 2}))
    thread.start()
    time.sleep(4)
    for i in (1, 2):
        assert session.run(taken)[0] == i
    thread.join()
    print("ENDED", flush=True)
""",
        *("-n", "2", "--ps", "1"),
        env={"HPCFLOW_STALL_S": "1"},
    )
    assert code == 0, output
    assert "ENDED" in output
    assert not re.search(r"StallError: .*(put|elements)", output), output


@pytest.mark.slow
def test_a_program_that_waits_in_an_empty_queue_is_told_which(tmp_path):
    """Nobody puts anything in: the report names who waits, and where its server does."""
    code, output = job(
        tmp_path,
        QUEUE + STALLS + "session.run(taken)\n",
        *("-n", "2", "--ps", "1"),
    )
    assert code != 0
    assert "StallError" in output
    report = next(tmp_path.glob("stall-*.txt")).read_text()
    assert "in queue 'taken'" in report and "script.py" in report
