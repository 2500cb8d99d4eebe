"""Where a profile says that a step's time went: all of it, once, and to whom it belongs."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import KernelError, NumericError
from hpcflow.kernels.roofline_peaks import RooflinePeaks
from hpcflow.lowering import update_tiling
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile import profile_summary, profiler
from hpcflow.settings import Settings
from tests.comm.threads import until
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_here, run_ranks
from tests.runtime.test_gpu import DoubleGpu, gpus  # noqa: F401

SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=9
)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A few steps, and peaks that need not be measured."""
    monkeypatch.setattr(profiler, "SKIPPED", 2)
    monkeypatch.setattr(profiler, "MAX_STEPS_OF_OTHER_PLANS", 4)
    monkeypatch.setattr(profiler, "STEPS", 4)
    fixed = RooflinePeaks({"float32": 1e15, "float64": 1e15}, 1e15, 1)
    monkeypatch.setattr(profiler, "measure", lambda *_, **__: fixed)


def alone(folder, body, **settings):
    """`body()` on one rank that is profiled into `folder`; its result and the profile."""
    context = RankContext(Settings(profile=True, run_dir=str(folder), **settings))
    with use_context(context), hf.Graph().as_default():
        result = body()
        context.leave()
    file = folder / "profile.json"
    return result, json.loads(file.read_text())["ranks"][0] if file.is_file() else None


def check(one, folder):
    """What holds for every rank: kinds and rows share the wall, the trace nests."""
    assert sum(one["seconds"].values()) == pytest.approx(one["wall_seconds"], rel=1e-9)
    assert min(one["seconds"].values()) >= -1e-9, one["seconds"]
    for kind in ("kernels", "messages", "results"):
        rows = [row["seconds"] for row in one["ops"] if row["kind"] == kind]
        assert sum(rows) == pytest.approx(one["seconds"][kind], rel=1e-6, abs=1e-9)
    assert sum(row["seconds"] for row in one["types"]) == pytest.approx(one["seconds"]["kernels"])
    trace = json.loads((folder / "profile" / f"trace-{one['rank']}.json").read_text())
    check_trace(trace["traceEvents"], one["rank"])


def check_trace(events, rank):
    """The fields that Chrome's format asks for; complete events lie inside or beside each other."""
    counts = Counter(event["ph"] for event in events)
    assert counts["X"] and counts["b"] == counts["e"] and set(counts) <= {"X", "b", "e", "M"}
    for event in events:
        assert isinstance(event["name"], str) and event["pid"] == rank and event["tid"] == 0
        assert event["ph"] == "M" or isinstance(event["cat"], str)
        assert event["ts"] >= 0 and (event["ph"] != "X" or event["dur"] >= 0)
    pairs = Counter((e["cat"], e["id"], e["name"]) for e in events if e["ph"] in "be")
    assert all(count == 2 for count in pairs.values())
    stack = []
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or end <= stack[-1]
        stack.append(end)


class Clock:
    """A clock of profiles on which all but sleep takes 5 microseconds, each time a bit less."""

    def __init__(self, monkeypatch):
        self.now, self.tick = time.perf_counter_ns(), 5000
        monkeypatch.setattr(profiler, "time", self)

    def perf_counter_ns(self):
        self.now += self.tick
        self.tick -= 1
        return self.now

    def time_ns(self):
        return time.time_ns()

    def sleep(self, seconds):
        self.now += round(seconds * 1e9)


def sleepy(seconds, sleep):
    def slow(x):
        sleep(seconds)
        return x

    return slow


def one_slow_op(steps=8, sleep=time.sleep):
    """A step that trains, of products and one operation that sleeps."""
    x = hf.placeholder(hf.float32, [4, 6], name="x")
    w = hf.Variable(np.ones((6, 5), np.float32), name="w")
    y = hf.matmul(x, w, name="product")
    z = hf.py_func(sleepy(0.01, sleep), [y], hf.float32, name="sleeper")
    z.set_shape([4, 5])
    train = w.assign_sub(hf.ones([6, 5]) * hf.reduce_mean(z + y))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for _ in range(steps):
        session.run([train, z], {x: np.ones((4, 6), np.float32)})
    return session.run(w)


def test_the_operation_that_takes_the_time_is_named_with_its_line(tmp_path, caplog, monkeypatch):
    clock = Clock(monkeypatch)
    with caplog.at_level("INFO", logger="hpcflow"):
        _, one = alone(tmp_path, lambda: one_slow_op(sleep=clock.sleep))
    check(one, tmp_path)
    first = one["ops"][0]
    assert first["name"] == "sleeper" and first["seconds"] >= 4 * 0.01
    assert __file__ in first["line"] and one["types"][0]["type"] == first["type"]
    assert one["seconds"]["kernels"] >= 4 * 0.01
    told = "\n".join(record.getMessage() for record in caplog.records)
    table = told[told.index("operation  ") :].splitlines()
    assert table[1].startswith("sleeper ") and str(tmp_path / "profile.json") in told
    product = next(row for row in one["ops"] if row["name"] == "product")
    assert product["calls"] == 4 and product["provider"] == "numpy"
    *_, refused = product["refused"]
    assert refused["provider"] == "onednn" and refused["reason"]
    above = told[told.index("most above its bound ") :].splitlines()[1:4]
    excess = [(r["seconds"] * (1 - r["peak_share"]), r) for r in one["ops"] if r["peak_share"]]
    most = sorted(excess, key=lambda pair: -pair[0])[: len(above)]
    assert [line.split()[0] for line in above if line] == [row["name"] for _, row in most]
    assert f"onednn: {refused['reason']}" in "\n".join(above)
    assert product["flops"] == 4 * 2 * 4 * 5 * 6 and product["bytes"] == 4 * 4 * (24 + 30 + 20)
    assert product["product"] == [1, 4, 6, 5] and first["product"] is None
    rate = product["flops"] / product["seconds"]
    assert product["gflops"] == pytest.approx(rate / 1e9)
    least = sum(row["bytes"] or 0 for row in one["ops"] if row["kind"] == "kernels") / 1e15
    assert one["least_seconds"] == pytest.approx(least)  # the peaks are equal, so bytes decide
    assert product["peak_share"] == pytest.approx(product["bytes"] / product["seconds"] / 1e15)
    assert {"sleeper", "product"} <= {
        e["name"]
        for e in json.loads((tmp_path / "profile" / "trace-0.json").read_text())["traceEvents"]
    }


def test_a_profile_changes_no_result_and_covers_its_steps_alone(tmp_path):
    found, one = alone(tmp_path, trained)
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    check(one, tmp_path)
    assert one["steps"] == 4 and one["trains"] and one["complete"]
    assert all(row["calls"] in (0, 4) for row in one["ops"] if row["kind"] == "kernels")


@pytest.mark.parametrize("steps", [5, 9], ids=["the program ends early", "the profile ends"])
def test_no_garbage_collection_is_charged_to_an_operation(tmp_path, steps):
    """The events that are recorded would start one, in the middle of any operation."""
    collects = []

    def looks(x):
        collects.append(gc.isenabled())
        return x

    def body():
        w = hf.Variable(np.ones(3, np.float32))
        train = w.assign_add(hf.py_func(looks, [hf.ones([3])], hf.float32))
        fails = w.assign_add(hf.py_func(looks, [hf.cholesky(-hf.ones([3, 3]))[0]], hf.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
            assert gc.isenabled()
        with pytest.raises(NumericError):
            session.run(fails)
        assert gc.isenabled()

    alone(tmp_path, body)
    timed = min(5, steps - 1)  # four, and the one before, which makes their code
    assert collects == [True, *[False] * timed, *[True] * (steps - 1 - timed)]


def test_without_it_nothing_is_written_and_the_generated_code_runs_as_it_is(tmp_path):
    context = RankContext(Settings(run_dir=str(tmp_path)))
    with use_context(context), hf.Graph().as_default():
        assert context.profile is None
        session, x = hf.Session(), hf.placeholder(hf.float32, [2], name="x")
        session.run(x + 1, {x: np.ones(2, np.float32)})
        (family,) = session._families.values()
        (step,) = family._steps.values()
        assert step.call.__code__.co_filename == step.compiled.file
        context.leave()
    assert not list(tmp_path.iterdir())


def test_it_is_written_while_the_program_goes_on(tmp_path):
    context = RankContext(Settings(profile=True, run_dir=str(tmp_path)))
    with use_context(context), hf.Graph().as_default():
        one_slow_op()
        until((tmp_path / "profile" / "trace-0.json").is_file)
        one = json.loads((tmp_path / "profile" / "rank-0.json").read_text())
        check(one, tmp_path)
        assert one["steps"] == 4 and not (tmp_path / "profile.json").exists()
        context.leave()
    assert ranks_of(tmp_path) == [one]


@pytest.mark.parametrize("steps", [3, 5])
def test_a_program_that_ends_early_has_the_steps_it_made(tmp_path, steps):
    _, one = alone(tmp_path, lambda: one_slow_op(steps))
    assert one["steps"] == steps - 2 and one["ops"][0]["calls"] == steps - 2
    check(one, tmp_path)


def test_a_program_that_is_over_before_says_so(tmp_path, caplog):
    assert alone(tmp_path, lambda: one_slow_op(2))[1] is None
    assert "nothing was profiled" in caplog.text and not (tmp_path / "profile.json").exists()


def test_a_program_that_does_not_train_is_profiled_later(tmp_path):
    def predict():
        x = hf.placeholder(hf.float32, [2, 2], name="x")
        y, session = hf.matmul(x, x, name="square"), hf.Session()
        for _ in range(12):
            session.run(y, {x: np.ones((2, 2), np.float32)})

    _, one = alone(tmp_path, predict)
    assert not one["trains"] and one["steps"] == 4
    assert [row["name"] for row in one["ops"] if row["kind"] == "kernels"] == ["square"]


def test_loops_count_what_runs_inside_them_once(tmp_path):
    def loop():
        x = hf.placeholder(hf.float32, [3, 3], name="x")
        w = hf.Variable(np.eye(3, dtype=np.float32), name="w")
        body = lambda i, v: (i + 1, hf.matmul(v, v, name="inside"))  # noqa: E731
        _, y = hf.while_loop(lambda i, v: i < 5, body, [0, x])
        train, session = w.assign_add(y), hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(8):
            session.run(train, {x: np.eye(3, dtype=np.float32)})
        return session.run(w)

    found, one = alone(tmp_path, loop)
    np.testing.assert_array_equal(found, 9 * np.eye(3))
    check(one, tmp_path)
    inside = [row for row in one["ops"] if row["type"] == "MatMul"]
    assert len(inside) == 1 and inside[0]["calls"] == 4 * 5
    assert inside[0]["flops"] == 4 * 5 * 2 * 27


def test_updates_in_tiles_are_one_call(tmp_path, monkeypatch):
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 1 << 10)

    def large():
        x = hf.placeholder(hf.float32, [update_tiling.TILE * 3], name="x")
        w = hf.Variable(np.zeros(update_tiling.TILE * 3, np.float32), name="w")
        train, session = w.assign_add(hf.square(x) * 2.0), hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(8):
            session.run(train, {x: np.full(update_tiling.TILE * 3, 3, np.float32)})
        return session.run(w)

    found, one = alone(tmp_path, large)
    assert (found == 8 * 18).all()
    check(one, tmp_path)
    assert all(row["calls"] == 4 for row in one["ops"] if row["kind"] == "kernels")


def test_an_error_in_the_timed_code_names_its_operation(tmp_path):
    def failing(x):
        if x[0] > 2:
            raise ValueError("too large")
        return x

    def body():
        x = hf.placeholder(hf.float32, [1], name="x")
        y, session = hf.py_func(failing, [x], hf.float32, name="picky"), hf.Session()
        for _ in range(6):
            session.run(y, {x: np.ones(1, np.float32)})
        with pytest.raises(KernelError, match="too large") as caught:
            session.run(y, {x: np.full(1, 3, np.float32)})
        assert caught.value.op == "picky" and __file__ in caught.value.line
        session.run(y, {x: np.ones(1, np.float32)})

    alone(tmp_path, body)


def test_more_events_than_are_kept_end_it_early(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler, "MOST_EVENTS", 10)
    _, one = alone(tmp_path, one_slow_op)
    assert not one["complete"] and one["steps"] < 4
    check(one, tmp_path)


def ranks_of(folder):
    return json.loads((folder / "profile.json").read_text())["ranks"]


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"tasks_per_replica": 3}], ids=str)
def test_every_rank_has_its_part(tmp_path, settings):
    cut = "tasks_per_replica" in settings
    where = {"profile": True, "run_dir": str(tmp_path)}
    found = run_ranks(3 if cut else 2, lambda context: trained(cut=cut), **where, **settings)
    for mine, theirs in zip(found[0], plain(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    ranks = ranks_of(tmp_path)
    assert [one["rank"] for one in ranks] == list(range(3 if cut else 2))
    for one in ranks:
        check(one, tmp_path)
        assert one["steps"] == 4 and one["seconds"]["messages"] > 0
    served = {row["type"] for row in ranks[1]["ops"]}
    assert "ApplyAdam" in served  # replicas both, a server its variables'
    assert ("MatMul" in served) == (settings != {"ps": 1})


def test_a_gpu_is_waited_for_at_every_look_at_the_clock(tmp_path, gpus, monkeypatch):  # noqa: F811
    """The double counts how often it is waited for; what it stands for has then ended."""
    waits = []
    monkeypatch.setattr(DoubleGpu, "finish", lambda self: waits.append(1), raising=False)
    context = RankContext(Settings(profile=True, run_dir=str(tmp_path)))
    with use_context(context), hf.Graph().as_default():
        trained()
        context.leave()
    (one,) = ranks_of(tmp_path)
    assert len(waits) >= 2 * sum(row["calls"] for row in one["ops"] if row["kind"] == "kernels")
    assert {"gpu:0", "cpu:0"} == set(one["peaks"])
    assert any(row["device"].endswith("gpu:0") and row["flops"] for row in one["ops"])


@pytest.mark.mpi(min_size=1)
def test_over_mpi_the_slow_operation_is_named_on_each_rank(tmp_path_factory):
    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    folder = world.broadcast_text(str(tmp_path_factory.mktemp("run")) if not world.rank else None)
    run_here(lambda context: one_slow_op(), profile=True, run_dir=folder)
    if world.rank == 0:
        from pathlib import Path

        ranks = ranks_of(Path(folder))
        assert [one["rank"] for one in ranks] == list(range(world.size))
        for one in ranks:
            check(one, Path(folder))
            seconds = {row["name"]: row["seconds"] for row in one["ops"]}
            assert seconds["sleeper"] >= 4 * 0.01
            assert list(seconds.values()) == sorted(seconds.values(), reverse=True)


# -- spans of time


def seconds_in(spans):
    return {i for start, end in spans for i in range(start, end)}


@given(SPANS, SPANS)
def test_unions_and_differences_are_those_of_sets(a, b):
    a, b = profile_summary.span_union(a), profile_summary.span_union(b)
    assert seconds_in(profile_summary.span_difference(a, b)) == seconds_in(a) - seconds_in(b)
    assert sum(end - start for start, end in a) == len(seconds_in(a))


@given(st.lists(st.integers(0, 30), min_size=2, max_size=12))
def test_nested_events_share_the_time_of_the_outermost(cuts):
    """A tree of events by splitting: what each has alone adds up to the whole."""
    events = [(0, 0, 100)]
    for cut in cuts:
        _, start, end = events[cut % len(events)]
        middle = start + (end - start) * (cut % 7) // 7
        if all(e <= start or s >= end or (s <= start and e >= end) for _, s, e in events):
            events.append((0, start, middle))
            events.append((0, middle, end))
    events.sort(key=lambda event: (event[1], -event[2]))
    own = profile_summary.self_times(events)
    assert sum(own) == 100 and min(own) >= 0
