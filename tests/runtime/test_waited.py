"""Which wait of an engine stands in the ledger, under which name and since when."""

from __future__ import annotations

import types

import pytest

from hpcflow.monitoring.wait_ledger import ANY, OWN, PATIENT, WaitLedger
from hpcflow.runtime.executor import wait_timestamps
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.executor.wait_timestamps import WaitTimestamps, wait_facts


def node(name, type, waits=False, collective=False, **attrs):
    row = types.SimpleNamespace(waits=waits, collective=collective)
    return types.SimpleNamespace(name=name, type=type, line="train.py:7", attrs=attrs, row=row)


def step(number, *nodes, patient=False, sends=()):
    """An instance of a plan with these nodes, of which `sends` are messages to rank 5."""
    return types.SimpleNamespace(
        step=number,
        patient=patient,
        part=types.SimpleNamespace(nodes={n.name: n for n in nodes}),
        link=types.SimpleNamespace(ranks={"/job:ps/task:0": 3}),
        channels=types.SimpleNamespace(sends=list(sends), address=[(5, 20)] * len(sends)),
        code=types.SimpleNamespace(sends_info=[types.SimpleNamespace(node="out") for _ in sends]),
    )


RECV = node("v/recv", "Recv", waits=True, source="/job:ps/task:0")
SUM = node("grads", "AllReduce", waits=True, collective=True)
QUEUE = node("taken", "QueueDequeue", waits=True)


@pytest.mark.parametrize(
    ("one", "peer"), [(RECV, 3), (SUM, ANY), (QUEUE, OWN)], ids=lambda x: getattr(x, "type", "")
)
def test_a_wait_of_a_step_has_its_operation_line_and_peer(one, peer):
    told = wait_facts(object(), step(9, one), one.name)
    assert told == (9, f"{one.name}\ntrain.py:7", peer, one.type)


def test_a_message_that_does_not_leave_is_named_by_its_send():
    channel, other = object(), object()
    sender = step(4, node("out", "Send"), sends=[channel])
    assert wait_facts(channel, sender, None) == (4, "out\ntrain.py:7", 5, "Send")
    assert wait_facts(other, sender, None) == (4, "a message", ANY, "Send")


def test_a_wait_outside_of_steps_has_the_words_of_who_asked():
    request = types.SimpleNamespace(peer=2)
    assert wait_facts(request, None, "the reply of rank 2")[1:3] == ("the reply of rank 2", 2)
    assert wait_facts(object(), None, "saving")[1:3] == ("saving", ANY)


def test_the_wait_that_lasts_is_named_though_others_come_and_go(monkeypatch):
    """A busy server: one worker's message is missing while it serves the others."""
    clock = [100.0]
    monkeypatch.setattr(wait_timestamps.time, "time", lambda: clock[0])
    ages, lost, served = WaitTimestamps(), (object(), None, "lost"), step(1)
    ages.oldest([lost])
    for number in range(20):
        clock[0] += 0.3
        served.step = number  # one channel, step by step
        wait, since = ages.oldest([(served, served, "served"), lost])
    assert wait is lost and since == 100.0
    wait, since = ages.oldest([(served, served, "served")])
    assert wait[2] == "served" and not since, "it begins now"


def test_a_patient_wait_stands_there_as_that_of_whom_it_is_for(tmp_path):
    executor = Executor()
    executor.ledger = WaitLedger(tmp_path, 0, "nid1")
    executor.polled_waits = [(object(), step(6, RECV, patient=True), RECV.name)]
    executor._enter_ledger()
    entry = executor.ledger.read()
    assert (entry.kind, entry.op, entry.peer, entry.step) == (PATIENT, "v/recv", 3, 6)
    executor.blamed_wait = lambda: ("what worker 1 is to bring", 1)
    executor._enter_ledger()
    entry = executor.ledger.read()
    assert (entry.op, entry.peer, entry.step) == ("what worker 1 is to bring", 1, 6)
    executor.polled_waits.append((object(), step(8, SUM), SUM.name))
    executor._enter_ledger()
    entry = executor.ledger.read()
    assert (entry.kind, entry.op, entry.created_at) == ("AllReduce", "grads", "train.py:7")
    assert entry.may_stall
    executor.ledger.close()


def test_many_waits_are_not_looked_at_in_each_pause_between_two_messages(monkeypatch):
    """What is known of the last look is told meanwhile, as long as its step is in flight."""
    clock, looks = [100.0], []
    monkeypatch.setattr(wait_timestamps.time, "time", lambda: clock[0])
    lost, ages = step(6, RECV), WaitTimestamps()
    lost.finished = False
    waits = [(object(), lost, RECV.name)] + [(object(), step(1), "served") for _ in range(99)]

    def look():
        looks.append(clock[0])
        return waits

    def entry():
        return ages.entry(len(waits), look, lambda: None)

    ages.oldest(waits[:1])
    for _ in range(100):
        clock[0] += 0.01
        told = entry()
        assert told is not None and told[:3] == (6, "v/recv\ntrain.py:7", 3)
    assert 2 <= len(looks) <= 4
    lost.finished = True
    assert entry() is None  # until the next look
    clock[0] += wait_timestamps.SAMPLE_INTERVAL_S
    waits[0] = (object(), step(1), "served")
    assert entry()[1] == "served"
    few = WaitTimestamps()
    for _ in range(5):
        few.entry(1, look, lambda: None)
    assert len(looks) >= 8
