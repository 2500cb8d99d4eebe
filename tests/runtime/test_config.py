"""TensorFlow 1's ConfigProto, RunOptions and RunMetadata: what they hold, and what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError, DeadlineExceededError, GraphError, PlacementError
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- the messages


def test_fields_are_set_by_keyword_or_later() -> None:
    config = hf.ConfigProto(
        allow_soft_placement=True,
        device_count={"GPU": 0},
        gpu_options=hf.GPUOptions(allow_growth=True),
    )
    config.gpu_options.per_process_gpu_memory_fraction = np.float32(0.5)
    config.graph_options.optimizer_options.global_jit_level = hf.OptimizerOptions.ON_1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.intra_op_parallelism_threads = np.int64(0)
    assert config.gpu_options.allow_growth is True
    assert config.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert config.graph_options.optimizer_options.global_jit_level == 1
    assert config.device_count == {"GPU": 0} and config.inter_op_parallelism_threads == 0
    config.device_count["CPU"] = 2
    assert config.device_count == {"GPU": 0, "CPU": 2}


def test_messages_are_copied_compared_and_shown() -> None:
    options = hf.GPUOptions(visible_device_list="0")
    config = hf.ConfigProto(gpu_options=options)
    options.visible_device_list = "1"
    assert config.gpu_options.visible_device_list == "0"
    other = hf.ConfigProto()
    assert other != config and other == hf.ConfigProto() and other != options
    other.CopyFrom(config)
    assert other == config
    other.gpu_options.allow_growth = True
    assert not config.gpu_options.allow_growth
    assert config.HasField("gpu_options") and not config.HasField("graph_options")
    assert repr(config) == "ConfigProto(gpu_options=GPUOptions(visible_device_list='0'))"
    assert repr(hf.RunMetadata()) == "RunMetadata()"


@pytest.mark.parametrize(
    "wrong, told",
    [
        (
            lambda: hf.ConfigProto(alow_soft_placement=True),
            "no field 'alow_soft_placement'.*allow_",
        ),
        (lambda: hf.ConfigProto(gpu_options={}), "ConfigProto.gpu_options is {}"),
        (lambda: hf.ConfigProto(device_count=[]), r"device_count is \[\]"),
        (lambda: hf.GPUOptions(allow_growth="yes"), "GPUOptions.allow_growth is 'yes'"),
        (lambda: hf.RunOptions(timeout_in_ms=0.5), "timeout_in_ms is 0.5"),
        (lambda: hf.ConfigProto().HasField("threads"), "no field 'threads'"),
        (lambda: hf.ConfigProto().CopyFrom(hf.GPUOptions()), "CopyFrom"),
    ],
)
def test_unknown_fields_and_other_values_are_errors(wrong: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told) as caught:
        wrong()
    assert "test_config.py" in str(caught.value.line)


def test_a_field_that_is_set_later_must_be_there() -> None:
    config = hf.ConfigProto()
    with pytest.raises(
        ArgumentError, match=r"its fields are allocator_type, .*visible_device_list"
    ):
        config.gpu_options.allow_grwth = True
    with pytest.raises(AttributeError):
        config.gpu_option  # noqa: B018


@pytest.mark.parametrize("given", [{"allow_soft_placement": True}, "soft", hf.GPUOptions()])
def test_a_config_is_a_config_proto(given: Any) -> None:
    with pytest.raises(GraphError, match="is no ConfigProto"):
        hf.Session(config=given)


# -- what a config does


@pytest.mark.parametrize("device", ["/gpu:0", "/device:GPU:3", "/job:worker/task:0/tpu:0"])
def test_soft_placement_takes_a_device_that_there_is(device: str) -> None:
    with hf.device(device):
        v = hf.Variable([1.0, 2.0])
        y = hf.reduce_sum(v * 2.0)
        i = hf.while_loop(lambda i: i < 5, lambda i: i + 1, [0])
        update = v.assign_add([1.0, 1.0])
    with hf.Session() as session, pytest.raises(PlacementError, match="allow_soft_placement"):
        session.run(v.initializer)
    with hf.Session(config=hf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(v.initializer)
        session.run(update)
        assert session.run([y, i]) == [10.0, 5]
        assert {n.device for n in session.plan(y).parts["/job:worker/task:0"].nodes.values()} == {
            "/job:worker/task:0/cpu:0"
        }


def test_soft_placement_does_not_invent_tasks() -> None:
    with hf.device("/job:ps/task:0"):
        y = hf.negative(hf.placeholder("float32", []))
    with hf.Session(config=hf.ConfigProto(allow_soft_placement=True)) as session:
        with pytest.raises(PlacementError, match="--ps 1"):
            session.run(y, {y.op.inputs[0]: 1.0})


def test_soft_placement_settles_wishes_that_contradict() -> None:
    with hf.device("/gpu:0"):
        v = hf.Variable([1.0])
    with hf.colocate_with(v), hf.device("/gpu:1"):
        y = hf.negative(v)
    with hf.device("/gpu:1"):
        text = hf.as_string(y)  # on a CPU alone
    with hf.Session(config=hf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(v.initializer)
        assert session.run(text).tolist() == [b"-1.000000"]


def test_several_cpus_are_names_of_one() -> None:
    with hf.device("/cpu:1"):
        y = hf.negative(hf.placeholder("float32", []))
    feeds = {y.op.inputs[0]: 1.0}
    with hf.Session(config=hf.ConfigProto(device_count={"CPU": 2})) as session:
        assert session.run(y, feeds) == -1
    with hf.Session(config=hf.ConfigProto(device_count={"CPU": 1})) as session:
        with pytest.raises(PlacementError, match="no device /cpu:1"):
            session.run(y, feeds)


def test_without_gpus_plans_are_made_for_the_cpu() -> None:
    from hpcflow.plan.ir.program import Cluster
    from hpcflow.runtime.session.session_options import configured_cluster

    config = hf.ConfigProto(device_count={"GPU": 0})
    one = Cluster(devices=("gpu:0", "cpu:0"))
    assert configured_cluster(config, one).devices == ("cpu:0",)
    assert configured_cluster(hf.ConfigProto(), one) == one
    several = Cluster(2, devices=("gpu:0", "cpu:0"))
    assert configured_cluster(config, several).devices == several.devices


def test_places_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    y = hf.negative(hf.placeholder("float32", [2], name="x"), name="y")
    with hf.Session(config=hf.ConfigProto(log_device_placement=True)) as session:
        with caplog.at_level(logging.INFO, "hpcflow"):
            session.run(y, {"x:0": [1, 2]})
    assert "y: (Neg): /job:worker/task:0/cpu:0" in caplog.text


def test_a_timeout_of_all_runs() -> None:
    waits = hf.FIFOQueue(1, "float32", [[]]).dequeue()
    y = hf.negative(hf.placeholder("float32", [], name="x"))
    with hf.Session(config=hf.ConfigProto(operation_timeout_in_ms=50)) as session:
        with pytest.raises(DeadlineExceededError):
            session.run(waits)
        with pytest.raises(DeadlineExceededError):
            session.make_callable(waits)()
        assert session.run(y, {"x:0": 2.0}, hf.RunOptions(timeout_in_ms=60_000)) == -2


def test_a_timeout_of_one_run() -> None:
    waits = hf.FIFOQueue(1, "float32", [[]]).dequeue()
    with hf.Session() as session:
        with pytest.raises(DeadlineExceededError, match=r"not done after 0.05 s"):
            session.run(waits, options=hf.RunOptions(timeout_in_ms=50))
        with pytest.raises(DeadlineExceededError, match=r"not done after 0.02 s"):
            session.run(waits, options=hf.RunOptions(timeout_in_ms=60_000), deadline=0.02)


def test_interactive_sessions_and_managers_take_a_config() -> None:
    with hf.device("/gpu:0"):
        v = hf.Variable(3.0)
    config = hf.ConfigProto(allow_soft_placement=True)
    session = hf.InteractiveSession(config=config)
    session.run(v.initializer)
    assert v.eval() == 3
    session.close()
    init = hf.global_variables_initializer()
    manager = hf.train.SessionManager(ready_op=hf.report_uninitialized_variables())
    with manager.prepare_session("", init_op=init, config=config) as session:
        assert session.run(v) == 3


# -- what a run tells of itself


def names(metadata: hf.RunMetadata) -> list[str]:
    return [n.node_name for d in metadata.step_stats.dev_stats for n in d.node_stats]


def test_a_traced_run_tells_when_operations_ran() -> None:
    x = hf.placeholder("float32", [64, 64])
    y = hf.matmul(hf.matmul(x, x, name="first"), x, name="second")
    full, metadata = hf.RunOptions(trace_level=hf.RunOptions.FULL_TRACE), hf.RunMetadata()
    given = np.full((64, 64), 0.5, np.float32)
    with hf.Session() as session:
        plain = session.run(y, {x: given})
        for _ in range(2):
            np.testing.assert_array_equal(session.run(y, {x: given}, full, metadata), plain)
            (device,) = metadata.step_stats.dev_stats
            assert device.device == "/job:worker/task:0/cpu:0"
            assert names(metadata) == ["first", "second"]
            first, second = device.node_stats
            assert 0 < first.all_start_nanos <= second.all_start_nanos
            assert first.all_start_nanos + first.all_end_rel_nanos <= second.all_start_nanos
            assert first.op_end_rel_micros > 0 and first.all_start_micros > 0
            assert first.timeline_label.startswith("first = MatMul(")


def test_a_traced_run_changes_state_as_another() -> None:
    v = hf.Variable(0.0)
    step = v.assign_add(hf.random_uniform([], 1.0, 2.0, seed=3))
    full = hf.RunOptions(trace_level=3)
    with hf.Session() as session:
        session.run(v.initializer)
        plain = [session.run(step) for _ in range(4)]
    with hf.Session() as session:
        session.run(v.initializer)
        mixed = [
            session.run(step, options=full if i % 2 else None, run_metadata=hf.RunMetadata())
            for i in range(4)
        ]
    assert mixed == plain


def test_loops_and_deadlines_are_traced_too() -> None:
    n = hf.placeholder("int32", [])
    i = hf.while_loop(lambda i: i < n, lambda i: hf.add(i, 1, name="more"), [0])
    metadata = hf.RunMetadata()
    options = hf.RunOptions(trace_level=1, timeout_in_ms=60_000)
    with hf.Session() as session:
        assert session.run(i, {n: 3}, options, metadata) == 3
    assert names(metadata).count("while/body/more") == 3


def test_without_a_trace_nothing_is_told() -> None:
    y, metadata = hf.negative(hf.placeholder("float32", [])), hf.RunMetadata()
    with hf.Session() as session:
        session.run(y, {y.op.inputs[0]: 1}, hf.RunOptions(), metadata)
        session.run(y, {y.op.inputs[0]: 1}, hf.RunOptions(trace_level=3))
    assert metadata == hf.RunMetadata()


@pytest.mark.parametrize("given", [{"options": 3}, {"run_metadata": {}}])
def test_options_are_options(given: dict[str, Any]) -> None:
    with hf.Session() as session, pytest.raises(GraphError, match="is no Run"):
        session.run(hf.constant(1), **given)


def trained(context: RankContext, traces: Callable[[int], bool]) -> list[tuple[float, bool]]:
    """Losses of four steps, those traced for which `traces` holds: whether something was seen."""
    x = hf.placeholder("float32", [None, 3])
    w = hf.Variable(np.zeros((3, 2), np.float32))
    loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0))
    train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    config = hf.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
    given, found = np.ones((4, 3), np.float32), []
    with hf.Session(config=config, context=context) as session:
        session.run(w.initializer)
        for i in range(4):
            metadata = hf.RunMetadata()
            options = hf.RunOptions(trace_level=3) if traces(i) else None
            value = session.run([loss, train], {x: given}, options, metadata)[0]
            found.append((float(value), "MatMul" in names(metadata)))
    return found


EXPECTED = [0.49**i for i in range(4)]


@pytest.mark.parametrize("ranks, servers", [(2, 0), (2, 1)])
def test_traced_steps_of_several_ranks(ranks: int, servers: int) -> None:
    def body(context: RankContext) -> list[tuple[float, bool]]:
        return trained(context, lambda i: bool(i % 2))

    for losses in run_ranks(ranks, body, ps=servers):
        if losses is not None:
            np.testing.assert_allclose([v for v, _ in losses], EXPECTED, 1e-5)
            assert [seen for _, seen in losses] == [False, True, False, True]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("first", [0, 2])
def test_a_replica_may_trace_alone(first: int, devices: int) -> None:
    """As the chief of a TensorFlow job; in its first step, too, where replicas agree on sums."""

    def body(context: RankContext) -> list[tuple[float, bool]]:
        return trained(context, lambda i: context.replica == 0 and i in (first, 3))

    ranks = run_ranks(2 * devices, body, tasks_per_replica=devices)
    found = [losses for losses in ranks if losses is not None]
    for losses in found:
        np.testing.assert_allclose([v for v, _ in losses], EXPECTED, 1e-5)
    seen = [[one for _, one in losses] for losses in found]
    assert seen == [[i in (first, 3) for i in range(4)], [False] * 4]
