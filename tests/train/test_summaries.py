"""Hooks and supervisors write summaries at their steps, and the chief alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, HpcflowError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.tf1 import session_hooks
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks

pytest.importorskip("tensorboardX")
train = hf.train


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        yield
    hf.summary.FileWriterCache.clear()


def written(folder: Path) -> list[tuple[int, float]]:
    """Steps and values of the summaries in the files of a folder."""
    files = sorted(f for f in folder.iterdir() if "tfevents" in f.name)
    found = [e for f in files for e in train.summary_iterator(f)]
    return [(e.step, e.summary.value[0].simple_value) for e in found if e.summary.value]


def counting() -> hf.Operation:
    """A step of training, and a summary of ten times the global step before it."""
    step = train.get_or_create_global_step()
    hf.summary.scalar("ten", hf.cast(step.value(), hf.float32) * 10.0)
    w = hf.Variable(np.zeros(2, np.float32))
    w.value()
    return hf.group(w.assign_add(hf.ones([2])), step.assign_add(1))


def test_every_two_steps(tmp_path: Path) -> None:
    """TensorFlow 1 writes at the first step, then after so many."""
    up = counting()
    merged = hf.summary.merge_all()
    hook = train.SummarySaverHook(save_steps=2, output_dir=tmp_path, summary_op=[merged, merged])
    with train.SingularMonitoredSession([hook, train.StopAtStepHook(last_step=6)]) as session:
        while not session.should_stop():
            session.run(up)
    assert written(tmp_path) == [(s, 10.0 * (s - 1)) for s in (1, 1, 3, 3, 5, 5)]
    (file,) = tmp_path.iterdir()
    started = [e for e in train.summary_iterator(file) if e.session_log.status]
    assert [(e.step, e.session_log.status) for e in started] == [(1, 1)]


def test_arguments() -> None:
    scaffold = train.Scaffold()
    with pytest.raises(HpcflowError, match="exactly one"):
        train.SummarySaverHook(1)
    with pytest.raises(HpcflowError, match="exactly one"):
        train.SummarySaverHook(1, scaffold=scaffold, summary_op=hf.constant(""))
    assert scaffold.finalize().summary_op is None
    hf.summary.scalar("a", 1.0)
    assert train.Scaffold().finalize().summary_op.op.type == "MergeSummary"
    mine = hf.constant("")
    assert train.Scaffold(summary_op=mine).finalize().summary_op is mine


def test_steps_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(session_hooks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    up = counting()
    hook = train.StepCounterHook(every_n_steps=2, output_dir=tmp_path)
    with train.SingularMonitoredSession([hook, train.StopAtStepHook(last_step=5)]) as session:
        while not session.should_stop():
            session.run(up)
            clock[0] += 0.25
    hf.summary.FileWriterCache.clear()
    assert written(tmp_path) == [(3, 4.0), (5, 4.0)]


@pytest.mark.parametrize("ranks, ps", [(1, 0), (2, 0), (2, 1)])
def test_a_monitored_training_session(ranks: int, ps: int, tmp_path: Path) -> None:
    def body(context: RankContext) -> None:
        up = counting()
        stop = train.StopAtStepHook(last_step=5)
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path / "saved",
            hooks=[stop],
            save_checkpoint_secs=0,
            save_summaries_steps=3,
            summary_dir=tmp_path,
        ) as session:
            while not session.should_stop():
                session.run(up)

    run_ranks(ranks, body, ps=ps, sync="all" if ps else "")
    found = written(tmp_path)
    assert [step for step, _ in found] == [1, 4]
    assert [value for _, value in found] == [0, 30]


def test_no_summaries_no_file(tmp_path: Path) -> None:
    step = train.get_or_create_global_step()
    up = step.assign_add(1)
    with train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[train.StopAtStepHook(last_step=3)]
    ) as session:
        while not session.should_stop():
            session.run(up)
    assert not [f for f in tmp_path.iterdir() if "tfevents" in f.name]


def test_none_says_never(tmp_path: Path) -> None:
    """As in TensorFlow 1; what is not told is the default."""
    up = counting()
    with train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path,
        hooks=[train.StopAtStepHook(last_step=3)],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
    ) as session:
        while not session.should_stop():
            session.run(up)
    assert train.latest_checkpoint(tmp_path) is None
    assert not list(tmp_path.rglob("*tfevents*"))


def test_a_supervisor_writes_by_itself(tmp_path: Path) -> None:
    up = counting()
    sv = train.Supervisor(logdir=tmp_path, save_summaries_secs=0.02, save_model_secs=0)
    told: list[int] = []
    add = sv.summary_writer.add_summary
    sv.summary_writer.add_summary = lambda text, step: (add(text, step), told.append(step))
    with sv.managed_session() as session:
        for step in range(1, 4):
            session.run(up)
            until(lambda step=step: step in told)
    found = written(tmp_path)
    assert found == sorted(found)
    assert all(abs(value - 10 * step) <= 10 for step, value in found)


def test_a_supervisor_writes_what_it_is_given(tmp_path: Path) -> None:
    x = hf.placeholder(hf.float32, [])
    loss, up = hf.summary.scalar("x", x), counting()
    sv = train.Supervisor(logdir=tmp_path, summary_op=None)
    assert sv.summary_op is None
    with sv.managed_session() as session:
        session.run(up)
        sv.summary_computed(session, session.run(loss, {x: 4.0}))
        sv.summary_computed(session, session.run(loss, {x: 5.0}), global_step=8)
    assert written(tmp_path) == [(1, 4.0), (8, 5.0)]


def test_a_supervisor_without_a_folder() -> None:
    up = counting()
    sv = train.Supervisor()
    assert sv.summary_writer is None
    with sv.managed_session() as session:
        session.run(up)
        summary = session.run(sv.summary_op)
        with pytest.raises(GraphError, match="no summary writer"):
            sv.summary_computed(session, summary)


def run_metadata_message() -> Any:
    """Some fields of TensorFlow's `RunMetadata`, by their numbers in its step_stats.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="test_run.proto", package="t", syntax="proto3")
    text, number, message, many = 9, 3, 11, 3  # types and a label of descriptors
    for name, fields in {
        "Node": [("node_name", 1, text, ""), ("all_start_micros", 2, number, ""),
                 ("op_end_rel_micros", 4, number, ""), ("timeline_label", 8, text, "")],
        "Device": [("device", 1, text, ""), ("node_stats", 2, message, ".t.Node")],
        "Stats": [("dev_stats", 1, message, ".t.Device")],
        "Run": [("step_stats", 1, message, ".t.Stats")],
    }.items():  # fmt: skip
        made = file.message_type.add(name=name)
        for field, at, kind, of in fields:
            label = many if field in ("dev_stats", "node_stats") else 1
            made.field.add(name=field, number=at, type=kind, label=label, type_name=of or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Run"))


def test_a_traced_run_is_written(tmp_path: Path) -> None:
    y = hf.matmul(hf.placeholder("float32", [2, 2]), hf.ones([2, 2]), name="product")
    metadata = hf.RunMetadata()
    with hf.Session() as session:
        full = hf.RunOptions(trace_level=hf.RunOptions.FULL_TRACE)
        session.run(y, {y.op.inputs[0]: np.ones((2, 2))}, full, metadata)
    with hf.summary.FileWriter(tmp_path) as writer:
        writer.add_run_metadata(metadata, "step 7", 7)
        with pytest.raises(ValueError, match="'step 7' is already in use"):
            writer.add_run_metadata(metadata, "step 7", 8)
        with pytest.raises(HpcflowError, match="is not a RunMetadata"):
            writer.add_run_metadata({}, "other")
    (file,) = tmp_path.iterdir()
    (event,) = [e for e in train.summary_iterator(file) if e.tagged_run_metadata.tag]
    assert (event.step, event.tagged_run_metadata.tag) == (7, "step 7")
    told = run_metadata_message().FromString(event.tagged_run_metadata.run_metadata)
    (device,) = told.step_stats.dev_stats
    (node,) = device.node_stats
    (mine,) = metadata.step_stats.dev_stats[0].node_stats
    assert device.device == "/job:worker/task:0/cpu:0" and node.node_name == "product"
    for field in ("all_start_micros", "op_end_rel_micros", "timeline_label"):
        assert getattr(node, field) == getattr(mine, field)
