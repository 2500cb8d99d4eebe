"""Faults that a run is to suffer come to the rank, at the step and in the way asked for."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory, header_digests
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import CheckpointError, HpcflowError, LaunchError, NumericError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.failure import fault_injection
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
MODES = {
    "alone": (1, {}),
    "sums": (3, {}),
    "spread": (3, {"tasks_per_replica": 3}),
    "async": (3, {"ps": 1}),
    "all": (3, {"ps": 1, "sync": "all"}),
}


@pytest.fixture
def said():
    """What is logged."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def here(text):
    """A context of one rank that suffers faults."""
    return RankContext(Settings(inject=text))


# -- who and when


def train(context, steps, before=lambda: None):
    """Train, with evaluations between the steps; `before` each."""
    features, labels = data()
    cut = context.settings.tasks_per_replica > 1
    x, y, loss, step, variables = net(hf.train.GradientDescentOptimizer(0.01), cut)
    session = hf.Session(context=context)
    session.run(hf.global_variables_initializer())
    for _ in range(steps):
        session.run(loss, {x: features, y: labels})
        before()
        session.run([step, loss], {x: features, y: labels})
    return [np.array(value) for value in session.run(variables)]


@pytest.mark.parametrize("kind", ["kill", "term", "stop", "stall"])
@pytest.mark.parametrize("mode", MODES)
def test_a_fault_comes_where_the_step_of_its_rank_begins(mode, kind, monkeypatch, said):
    """Evaluations and initial values are no steps; on a server the updates are."""
    size, settings = MODES[mode]
    rank = size - 1  # a server, where there is one
    seen, begun = [], [0] * size
    contexts = {}

    def come(*what):
        updates = max(contexts[rank].report()["updates"].values(), default=0)
        seen.append((what[1:], begun[rank], updates))

    monkeypatch.setattr(fault_injection.os, "kill", come)
    monkeypatch.setattr(fault_injection, "hang_forever", lambda: come(0, "stall"))
    made = RankContext.__init__

    def note(self, *args, **options):
        made(self, *args, **options)
        contexts[self.rank] = self

    monkeypatch.setattr(RankContext, "__init__", note)

    def body(context):
        def count():
            begun[context.rank] += 1

        train(context, 6, count)

    run_ranks(size, body, inject=f"{kind}:rank={rank}@step=4", **settings)
    ((what, steps, updates),) = seen
    assert what == ({"stall": "stall"}.get(kind) or fault_injection.SIGNALS[kind],)
    at_once = 1 if mode == "async" else 0  # the last step of the other worker may be under way
    assert 3 - at_once <= updates <= 3, "it had done three steps, and none of the fourth"
    assert steps == (4 if contexts[rank].is_driver else 0)
    assert said.count(f"injected on rank {rank} at its step 4: {kind}:rank={rank}@step=4") == 1
    assert sum(line.startswith("this run injects") for line in said) == 1


def test_without_faults_nothing_is_wrapped():
    context = here("")
    assert context.observers == [] and context.executor.observer is None
    words = "import os, sys, hpcflow.runtime.session.session\n"
    words += "os._exit('hpcflow.runtime.failure.fault_injection' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", words], env=environ).returncode == 0


def test_ranks_that_a_fault_does_not_name_are_left_alone(said):
    def body(context):
        assert len(context.observers) == (context.rank == 1)
        return train(context, 2)

    run_ranks(2, body, inject="kill:rank=1@step=9")
    assert not any("injected" in line for line in said)


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(LaunchError, match="the job has 2 ranks"):
        run_ranks(2, lambda context: None, inject="kill:rank=2@step=1")


def test_what_did_not_come_is_told_at_the_end(said):
    context = here("stall:rank=0@step=7;nan:op=other@step=2")
    (rehearsal,) = context.observers
    train_in(context, 2)
    rehearsal.end()
    assert "stall:rank=0@step=7 did not come: rank 0 has begun 2 training steps" in said


def train_in(context, steps):
    with use_context(context), hf.Graph().as_default():
        return train(context, steps)


# -- slow


class Clock:
    """Time that passes only when something says so."""

    def __init__(self, tick=0.0):
        self.now, self.tick, self.slept = 100.0, tick, []

    def perf_counter(self):
        self.now += self.tick
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 9))
        self.now += seconds


def test_a_slow_worker_sleeps_in_proportion_to_its_own_work(monkeypatch):
    """Not to its waiting, nor to what it slept before; from the step on that is named."""
    context, clock = here("slow:rank=0x4@step=3"), Clock()
    monkeypatch.setattr(fault_injection, "time", clock)
    work = iter([0.25, 0.5, 0.75, 1.0])

    def before():
        clock.now += next(work) + 7.0
        context.executor.waited += 7.0

    with use_context(context), hf.Graph().as_default():
        train(context, 4, before)
    assert clock.slept == [0.0, 3 * 0.75, 3 * 1.0]


def test_a_slow_server_sleeps_for_each_segment(monkeypatch):
    """Each segment takes one tick of this clock."""
    clock = Clock(tick=1.0)
    monkeypatch.setattr(fault_injection, "time", clock)
    run_ranks(2, lambda context: train(context, 3), ps=1, inject="slow:rank=1x2.5")
    assert len(clock.slept) > 3 and set(clock.slept) == {1.5}


# -- NaN


def nan_at(text, build, steps=3, **settings):
    """The values that `build` fetches in each step, and then those of `w`, under a fault."""

    def body(context):
        fetches, feeds = build()
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        (w,) = hf.trainable_variables()
        return [(session.run(fetches, feeds), session.run(w)) for _ in range(steps)]

    return run_ranks(1, body, inject=text, **settings)[0]


def chain():
    """Operations of all the ways in which kernels hand over what they compute."""
    x = hf.placeholder(hf.float32, [2, 3], name="x")
    w = hf.Variable(np.ones((3, 2), np.float32), name="w")
    product = hf.matmul(x, w, name="product")  # fills its output
    root = hf.sqrt(hf.abs(product), name="root")  # a ufunc
    total = hf.reduce_sum(root, name="total")  # a scalar
    parts = hf.split(root, 2, axis=1, name="parts")
    change = w.assign_add(hf.ones_like(w))
    return [product, root, total, parts[0], parts[1], change], {x: np.ones((2, 3), np.float32)}


@pytest.mark.parametrize(("op", "first"), [("product", 0), ("root", 1), ("total", 2), ("parts", 3)])
def test_an_operation_gives_nan_at_its_step_and_what_is_before_it_does_not(op, first, said):
    found = nan_at(f"nan:op={op}@step=2", chain)
    for step, (values, w) in enumerate(found, 1):
        for place, value in enumerate(values[:5]):
            depends = place >= first and not (op == "total" and place != 2)
            assert np.isnan(value).all() == (step == 2 and depends), (step, place)
            assert np.isfinite(value).all() == (not (step == 2 and depends))
        np.testing.assert_array_equal(w, np.full((3, 2), 1 + step))
    assert said.count(f"injected on rank 0 at its step 2: nan:op={op}@step=2") == 1


def test_without_a_step_it_is_always_nan():
    assert all(np.isnan(values[2]) for values, _ in nan_at("nan:op=total", chain))


def test_check_numerics_names_the_operation_that_was_poisoned():
    with pytest.raises(NumericError) as caught:
        nan_at("nan:op=root@step=2", chain, check_numerics=True)
    assert caught.value.op == "root"


@pytest.mark.slow
def test_what_is_computed_tile_by_tile_is_poisoned_too():
    def build():
        w = hf.Variable(np.ones(1 << 20, np.float32), name="w")
        scaled = hf.multiply(w.value(), 0.5, name="scaled")
        return [w.assign_sub(hf.tanh(scaled))], {}

    (_, first), (_, second), _ = nan_at("nan:op=scaled@step=2", build)
    assert np.isfinite(first).all() and np.isnan(second).all()


def test_inside_a_loop_it_is_found():
    def build():
        w = hf.Variable(np.float32(1), name="w")
        start = [hf.constant(0), hf.constant(1.0)]
        _, last = hf.while_loop(
            lambda i, v: i < 3, lambda i, v: (i + 1, hf.multiply(v, 2.0, name="double")), start
        )
        return [last, w.assign_add(1.0)], {}

    found = [float(values[0]) for values, _ in nan_at("nan:op=while/body/double@step=2", build)]
    assert found[::2] == [8.0, 8.0] and np.isnan(found[1])


@pytest.mark.parametrize(
    "op", ["flat", "change", "count"], ids=["a view", "an update", "whole numbers"]
)
def test_an_operation_without_floats_of_its_own_is_refused(op):
    def build():
        w = hf.Variable(np.ones((3, 2), np.float32), name="w")
        flat = hf.reshape(hf.tanh(w.value()), [6], name="flat")
        count = hf.argmax(flat, 0, name="count")
        return [hf.tanh(flat), count, w.assign_add(hf.ones_like(w), name="change")], {}

    with pytest.raises(HpcflowError, match="computes no floats of its own") as caught:
        nan_at(f"nan:op={op}", build)
    assert caught.value.op == op and "test_inject.py" in caught.value.line


def test_an_operation_that_is_not_there_is_told_with_those_like_it(said):
    nan_at("nan:op=produkt", chain)
    (line,) = [line for line in said if "no such operation" in line]
    assert "product" in line


# -- a full disk


def writes(context, steps, where, catch):
    """Train and save after each step; what `catch` says of errors."""
    x, y, _, step, _ = net()
    features, labels = data()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=24, context=context)
    session = hf.train.TrainingSession(context=context, checkpoints=where, form="sharded")
    for batch in dataset.epochs(steps):
        session.step(step, batch)
        try:
            session.save()
        except CheckpointError as error:
            catch.append((session.steps, error))
    session._met = True
    session.close()


@pytest.mark.parametrize(
    ("when", "failing"), [("", [1, 2, 3, 4]), ("@save=2", [2]), ("@step=3", [3, 4])]
)
@pytest.mark.parametrize("places", [{}, {"ps": 1}], ids=["alone", "server"])
def test_a_full_disk_is_met_by_the_saves_that_are_meant(
    tmp_path, monkeypatch, when, failing, places
):
    """Others are whole; on a server the disk of that rank is meant."""
    monkeypatch.setattr(fault_injection, "checkpoint_observers", full := [])
    monkeypatch.setattr(header_digests, "checkpoint_observers", full)
    rank, errors = len(places), []
    text = f"disk-full:rank={rank}{when}"
    run_ranks(rank + 1, lambda c: writes(c, 4, tmp_path / "saved", errors), inject=text, **places)
    assert [step for step, _ in errors] == failing
    for _, error in errors:
        assert os.strerror(errno.ENOSPC) in error.message and "free some space" in error.hint
    good = checkpoint_directory.find_checkpoints(tmp_path / "saved")
    assert sorted(one.step for one in good) == [s for s in (1, 2, 3, 4) if s not in failing]
    assert all(SavedCheckpoint(one.path, one.facts).problems() == [] for one in good)


def test_only_where_checkpoints_are_written_and_in_any_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_injection, "checkpoint_observers", full := [])
    monkeypatch.setattr(header_digests, "checkpoint_observers", full)
    here("disk-full")
    (tmp_path / "step-7.tmp").mkdir()
    errors = []

    def write(name):
        with open(tmp_path / name, "wb") as file:
            try:
                header_digests.write_all(file.fileno(), memoryview(b"data"), 0)
            except OSError as error:
                errors.append((name, error.errno))

    names = ["step-7.tmp/part-00000.h5", "step-8.h5.tmp", "step-9.h5", "my-step-3.tmp", "file"]
    for name in names:
        thread = threading.Thread(target=write, args=(name,))
        thread.start()
        thread.join()
    assert errors == [(name, errno.ENOSPC) for name in names[:2]]
    assert (tmp_path / "step-9.h5").read_bytes() == b"data"


# -- real processes

SCRIPT = """
    import hpcflow as hf
    from tests.runtime.nets import data, net

    features, labels = data(48)
    x, y, loss, train, _ = net()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=8, seed=1)
    with hf.train.TrainingSession(checkpoints="saved", save_every=4, resume=True) as session:
        for batch in dataset.epochs(4):
            session.step([train, loss], batch)
        session.wait()
        result = session.result()
        if session.is_chief:
            print("FINISHED", result["settings"], flush=True)
"""


def start(where, *words):
    (where / "script.py").write_text(textwrap.dedent(SCRIPT))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HPCFLOW_")}
    return subprocess.Popen(
        [sys.executable, "-m", "hpcflow", "run", "--set=save=foreground", *words, "script.py"],
        cwd=where,
        env={**clean, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output = process.communicate(timeout=220)[0]
    return process.returncode, output


@pytest.mark.slow
def test_a_rank_is_killed_and_the_job_without_the_fault_goes_on(tmp_path):
    code, output = finish(start(tmp_path, "-n", "2", "--inject", "kill:rank=1@step=11"))
    assert code != 0 and "FINISHED" not in output
    assert "this run injects kill:rank=1@step=11" in output
    assert re.search(r"rank 1 \(/job:worker/task:1\) on \S+ has died", output), output
    code, output = finish(start(tmp_path, "-n", "2"))
    assert code == 0 and "resumed step=8 " in output and "FINISHED {'save': 'foreground'}" in output


@pytest.mark.slow
def test_sigterm_stops_in_order_and_the_result_says_what_was_injected(tmp_path):
    code, output = finish(start(tmp_path, "--inject", "term:rank=0@step=6"))
    assert code == 75 and "SIGTERM: stopped before step 6; saved" in output, output
    code, output = finish(start(tmp_path, "--inject", "term:rank=0@step=99"))
    assert code == 0 and "resumed step=6 " in output
    assert "'inject': 'term:rank=0@step=99'" in output
    assert "term:rank=0@step=99 did not come: rank 0 has begun 18 training steps" in output


def test_a_stopped_process_is_stopped(tmp_path):
    process = start(tmp_path, "--inject", "stop:rank=0@step=2")
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP
    finally:
        process.kill()
        process.communicate()
