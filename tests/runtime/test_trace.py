"""The trace of a job: one file for all ranks, with arrows that the plans predict."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hpcflow as hf
import hpcflow.data.prefetch_threads
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import LaunchError
from hpcflow.runtime.profile import clock_offset, job_trace, trace_part
from hpcflow.runtime.profile.clock_offset import ClockLine, ClockReading
from hpcflow.runtime.profile.trace_recorder import TraceRecorder
from hpcflow.runtime.step.distributed_step import DistributedStep
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_ranks
from tests.trace_format import Trace

MODES = {
    "sums": (3, {}),
    "server": (2, {"ps": 1}),
    "servers": (4, {"ps": 2}),
    "rounds": (3, {"ps": 1, "sync": "all"}),
    "rounds of two servers": (4, {"ps": 2, "sync": "all"}),
    "spread": (3, {"tasks_per_replica": 3}),
    "spread sums": (6, {"tasks_per_replica": 3}),
}
STEPS = 12


@pytest.fixture
def plans(monkeypatch):
    """For each step that a rank begins, by its plan: messages, collectives, messages of a round."""
    begun, lock = [], threading.Lock()
    made, opened = DistributedStep.__init__, DistributedStep._open

    def init(self, *args, **more):
        made(self, *args, **more)
        self.plan_of_test = args[3]

    def begin(self, instance):
        opened(self, instance)
        plan = self.plan_of_test
        edges = len(plan.round.edges) if plan.round is not None else 0
        with lock:
            begun.append((len(plan.edges), len(plan.collectives), edges))

    monkeypatch.setattr(DistributedStep, "__init__", init)
    monkeypatch.setattr(DistributedStep, "_open", begin)
    return begun


@pytest.mark.parametrize("mode", MODES)
def test_arrows_are_the_messages_and_sums_of_the_plans(tmp_path, plans, mode):
    size, settings = MODES[mode]

    def body(context):
        return trained(STEPS, cut="spread" in mode)

    run_ranks(size, body, trace=str(tmp_path / "t"), **settings)
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
    assert not trace_part.node_folder(str(tmp_path / "t")).exists()
    trace = Trace(tmp_path / "t.json")
    assert trace.about["missing_ranks"] == trace.about["full_ranks"] == []
    messages = trace.arrows["message"]
    driven = sum(edges for edges, _, _ in plans)
    rounds = STEPS * max(edges for _, _, edges in plans)  # all workers share one for each step
    assert bool(rounds) == (mode == "rounds of two servers")
    assert len(messages) == driven + rounds == trace.about["messages"]
    assert trace.about["messages_without_arrow"] == 0
    assert trace.about["messages_received_before_sent"] == 0
    for start, end in messages:
        assert start["ts"] <= end["ts"]
        assert trace.slice_at(start)["name"].startswith("segment ")
        received = trace.slice_at(end)
        assert received["cat"] == "receive" and received["args"]["from rank"] == start["pid"]
        assert received["ts"] == end["ts"]
    check_sums(trace, size - settings.get("ps", 0), settings.get("tasks_per_replica", 1), plans)


def check_sums(trace, workers, tasks, plans):
    """Each member has one slice of each sum; the arrows go from the others to the last."""
    sums = collections.defaultdict(list)
    for event in trace.of("X"):
        if event["cat"] == "sum":
            assert "unfinished" not in event["args"]
            key = event["pid"] % tasks, event["name"], event["args"]["number"]
            sums[key].append(event)
    assert sum(map(len, sums.values())) == sum(sums for _, sums, _ in plans)
    replicas = workers // tasks
    arrows = collections.Counter()
    for start, end in trace.arrows["sum"]:
        first, last = trace.slice_at(start), trace.slice_at(end)
        number = last["args"]["number"]
        assert first["name"] == last["name"] and first["args"]["number"] == number
        arrows[end["pid"] % tasks, last["name"], number] += 1
        assert (start["ts"], end["ts"]) == (first["ts"], last["ts"])
        assert end["ts"] == max(one["ts"] for one in sums[end["pid"] % tasks, last["name"], number])
    for key, members in sums.items():
        assert sorted(one["pid"] for one in members) == list(range(key[0], workers, tasks))
        assert arrows[key] == replicas - 1
        last = max(one["ts"] for one in members)
        assert all(one["ts"] + one["dur"] >= last for one in members), "none ends before all began"
    assert bool(sums) == any(sums for _, sums, _ in plans)


def test_tracks_are_named_and_counters_have_values(tmp_path):
    run_ranks(3, lambda context: trained(STEPS), trace=str(tmp_path / "t.json"), ps=1)
    trace = Trace(tmp_path / "t.json")
    host = threading_host()
    processes = {pid: args["name"] for (pid, _), args in trace.names("process_name").items()}
    assert processes == {
        0: f"rank 0 /job:worker/task:0 {host}",
        1: f"rank 1 /job:worker/task:1 {host}",
        2: f"rank 2 /job:ps/task:0 {host}",
    }
    threads = trace.names("thread_name")
    assert threads[2, 0]["name"] == "segments" and threads[2, 1]["name"] == "receives"
    counters = collections.defaultdict(set)
    for event in trace.of("C"):
        counters[event["name"]].add(event["args"]["value"])
    assert all(1 << 20 < value < 1 << 40 for value in counters["resident memory (bytes)"])
    assert max(counters["held memory of cpu:0 (bytes)"]) > 0
    assert min(counters["batches prefetched"]) >= 0
    assert max(counters["waits pending"]) > 0 and min(counters["segments ready"]) == 0
    plan = {e["args"].get("plan") for e in trace.of("X") if e["pid"] == 2}
    assert {"Mean:0,Adam"} <= plan


def threading_host():
    """The host name of ranks that are threads."""
    return thread_world(1)[0].hosts[0]


def test_a_step_of_one_rank_has_its_segment(tmp_path):
    run_ranks(1, lambda context: trained(STEPS), trace=str(tmp_path / "t"))
    trace = Trace(tmp_path / "t.json")
    names = collections.Counter(e["args"].get("plan") for e in trace.of("X"))
    assert names["Mean:0,Adam"] == STEPS


def test_a_loop_that_spans_tasks_has_an_arrow_for_each_turn(tmp_path):
    turns = 7

    def body(context):
        with hf.device("/job:worker/task:1"):
            step = hf.Variable(1.0)
        session = hf.Session()
        session.run(hf.global_variables_initializer())

        def turn(i, x):
            with hf.device("/job:worker/task:1"):
                x = x + step
            return i + 1, x * 2

        _, x = hf.while_loop(lambda i, x: i < turns, turn, [0, hf.constant(0.0)])
        return session.run(x)

    (value,) = run_ranks(2, body, trace=str(tmp_path / "t"), tasks_per_replica=2)
    assert value == sum(2.0**k for k in range(1, turns + 1))
    trace = Trace(tmp_path / "t.json")
    assert trace.about["messages_without_arrow"] == 0
    pairs = collections.Counter((s["pid"], e["pid"]) for s, e in trace.arrows["message"])
    assert min(pairs[0, 1], pairs[1, 0]) >= turns


def test_all_kinds_of_messages_have_arrows(tmp_path, plans):
    """In a buffer, in place (a large variable), and of a size that only the step knows."""

    def body(context):
        x = hf.placeholder(hf.float32, [8])
        with hf.device("/job:worker/task:1"):
            large = hf.Variable(hf.ones([300, 300]))
            some = hf.boolean_mask(x, x > 2)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        wanted = [hf.reduce_sum(large * 2), some * 2]
        return [session.run(wanted, {x: range(8)}) for _ in range(5)]

    (values,) = run_ranks(2, body, trace=str(tmp_path / "t"), tasks_per_replica=2)
    assert all(total == 180_000 and list(some) == [6, 8, 10, 12, 14] for total, some in values)
    trace = Trace(tmp_path / "t.json")
    assert len(trace.arrows["message"]) == sum(edges for edges, _, _ in plans)
    assert trace.about["messages_without_arrow"] == 0


# -- clocks


class SkewedClock:
    """A clock that is ahead by `ahead` ns at its first look, and gains `gain` of each second."""

    def __init__(self, ahead, gain):
        self.ahead, self.gain, self.begin = ahead, gain, time.monotonic_ns()

    def __call__(self):
        return self.at(time.monotonic_ns())

    def at(self, now):
        return now + self.ahead + int((now - self.begin) * self.gain)


@pytest.mark.parametrize("ahead, gain", [(5_000_000_000, 0.01), (-3_000_000_000_000, -0.02)])
def test_an_offset_is_found_within_half_the_round_trip(ahead, gain):
    here, there = thread_world(2, seed=4)
    mine, theirs = SkewedClock(1_000_000, 0.0), SkewedClock(ahead, gain)
    readings = []
    for _ in range(2):
        answers = threading.Thread(target=clock_offset.answer_pings, args=(there, 0, theirs))
        answers.start()
        readings.append(clock_offset.measure_offset(here, 1, mine))
        answers.join()
        time.sleep(0.2)
    for reading in readings:
        truth = theirs.at(reading.time - mine.ahead) - reading.time
        assert abs(reading.offset - truth) <= reading.round_trip // 2 + 1
    line = ClockLine(*readings)
    for part in (0.0, 0.3, 0.9, 1.0):
        now = readings[0].time + int((readings[1].time - readings[0].time) * part)
        stamp = theirs.at(now - mine.ahead)
        assert abs(line.to_reference(stamp) - now) <= line.error * (1 + abs(gain)) + 2
        assert abs(line.offset_at(now) - (stamp - now)) <= line.error + 2
    assert abs(line.drift - gain) <= 2 * line.error / (readings[1].time - readings[0].time)


def test_the_reading_with_the_least_round_trip_counts(monkeypatch):
    """The peer answers at once in one ping, and late in the others, always on the way back."""
    delays = [9_000_000] * clock_offset.PINGS
    delays[17] = 40
    random.Random(2).shuffle(delays)
    clock, peer = [0], [0]

    class Instant:
        def test(self):
            return True

    class Link:
        sent = 0

        def recv(self, array, source, tag):
            array[0] = peer[0] = clock[0] + 10 + 777  # one way takes 10
            return Instant()

        def send(self, array, dest, tag):
            clock[0] += 10 + delays[self.sent]
            self.sent += 1
            return Instant()

    reading = clock_offset.measure_offset(Link(), 1, lambda: clock[0])
    assert reading.round_trip == 50 and abs(reading.offset - 777) <= 25


def test_a_line_without_drift_and_one_reading():
    once = ClockReading(100, 7, 4)
    assert ClockLine(once, once).to_reference(107) == 100
    assert ClockLine(once, once).offset_at(10**15) == 7 and ClockLine(once, once).drift == 0
    assert ClockLine(once, once).error == 2


AHEAD = {0: 2_000_000_000, 1: -7_000_000_000, 2: 100_000_000_000}
GAIN = {0: 1e-4, 1: -2e-4, 2: 3e-3}


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Ranks that are threads have machines, clocks and local disks of their own."""
    clocks = {rank: SkewedClock(AHEAD[rank], GAIN[rank]) for rank in AHEAD}
    monkeypatch.setattr(job_trace.JobTrace, "clock", lambda self: clocks[self.part_rank]())
    made = job_trace.JobTrace.__init__

    def init(self, context):
        self.part_rank = context.rank
        context.world.machines = tuple(f"machine {rank}" for rank in range(context.size))
        made(self, context)

    monkeypatch.setattr(job_trace.JobTrace, "__init__", init)
    local = tmp_path / "local"
    monkeypatch.setattr(trace_part, "node_folder", lambda file: local / str(threading.get_ident()))
    return clocks


@pytest.mark.parametrize("settings", [{}, {"ps": 1}], ids=["sums", "server"])
def test_hosts_have_one_time_and_their_parts_come_by_messages(tmp_path, hosts, settings):
    def body(context):
        result = trained(STEPS)
        time.sleep(0.3)
        return result

    run_ranks(3, body, trace=str(tmp_path / "out" / "t"), **settings)
    took_ns = time.monotonic_ns() - hosts[0].begin
    assert not list((tmp_path / "local").rglob("*.part")), "all parts are removed"
    trace = Trace(tmp_path / "out" / "t.json")
    facts = {one["rank"]: one for one in trace.about["clocks"]}
    assert facts[0]["offset_ns"] == [0, 0] and facts[0]["error_ns"] == 0
    for rank in (1, 2):
        fact = facts[rank]
        assert fact["how"] == "measured by ping-pong"
        assert 0 < fact["error_ns"] < abs(AHEAD[rank] - AHEAD[0]) / 10
        ahead = AHEAD[rank] - AHEAD[0]
        gained = (GAIN[rank] - GAIN[0]) * took_ns
        for offset in fact["offset_ns"]:
            assert min(0, gained) - fact["error_ns"] <= offset - ahead
            assert offset - ahead <= max(0, gained) + fact["error_ns"]
    errors = {rank: fact["error_ns"] / 1e3 for rank, fact in facts.items()}
    arrows = [*trace.arrows["message"], *trace.arrows["sum"]]
    assert arrows
    for start, end in arrows:
        assert end["ts"] - start["ts"] >= -errors[start["pid"]] - errors[end["pid"]]
    assert max(e["ts"] for e in trace.events if "ts" in e) < 100e6, "no offset is left in the times"


# -- limits, failures


def test_a_full_trace_says_so_and_its_arrows_stay_whole(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(job_trace, "MOST_OF_JOB", 300)
    monkeypatch.setattr(trace_part, "BUFFERED_ROWS", 20)
    run_ranks(2, lambda context: trained(200), trace=str(tmp_path / "t"), ps=1)
    trace = Trace(tmp_path / "t.json")
    assert trace.about["full_ranks"] == [0, 1]
    assert len([e for e in trace.of("i") if e["name"] == "the trace is full"]) == 2
    assert len(trace.events) < 1000
    texts = {record.getMessage() for record in caplog.records}
    assert "rank 1 traces no more: it has reached its limit of events" in texts


def test_a_file_that_cannot_be_written_leaves_the_parts(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    name = str(tmp_path / "file" / "t")
    folder = trace_part.node_folder(name)
    found = run_ranks(2, lambda context: trained(STEPS), trace=name)[0]
    for mine, theirs in zip(found, plain(STEPS), strict=True):
        assert abs(mine - theirs).max() < 1e-5, "training goes on"
    parts = trace_part.parts_of_job(trace_part.parts_in(folder))
    assert sorted(parts) == [0, 1]
    said = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(said) == 1 and str(folder) in said[0]
    trace_part.remove_parts(folder, parts[0][1].job)
    assert not folder.exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir(mode=0o777)
    (tmp_path / "here").chmod(0o777)
    monkeypatch.setattr(trace_part, "node_folder", lambda file: tmp_path / "here")
    with pytest.raises(LaunchError, match="others may write there"):
        run_ranks(1, lambda context: None, trace="t")


def test_ranks_that_do_not_agree_on_tracing_are_told(tmp_path):
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.settings import Settings

    errors, worlds = [], thread_world(2)

    def rank(r):
        try:
            RankContext(Settings(trace=str(tmp_path / "t") if r else ""), worlds[r], crowded=True)
        except LaunchError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2 and all("setting trace" in text for text in errors)


def test_nothing_is_recorded_without_the_setting(monkeypatch):
    for name in ("__init__", "_add"):
        monkeypatch.setattr(TraceRecorder, name, lambda *_: pytest.fail("it traces"))

    def body(context):
        trained(2)
        assert context.trace is None and context.observers == context.before_abort == []
        assert context.executor.observer is None

    run_ranks(2, body, ps=1)


def test_the_modules_are_not_loaded_without_the_setting():
    code = (
        "import sys, hpcflow as hf\n"
        "hf.Session().run(hf.constant(1) + 1)\n"
        "print([m for m in sys.modules if 'trace_' in m or 'job_trace' in m or 'clock_off' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=220,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stderr
