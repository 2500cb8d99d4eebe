"""Small things that programs of TensorFlow 1 count on; the results are what TensorFlow gives."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, GraphError, HpcflowError, ShapeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


def started() -> hf.Session:
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    return session


def test_a_graph_without_variables_is_initialized() -> None:
    session = started()
    session.run([hf.local_variables_initializer(), hf.variables_initializer([])])
    assert session.run(hf.constant(3)) == 3


def test_fetched_mappings_and_tuples_keep_their_types() -> None:
    a, b = hf.constant(1.0), hf.constant(2.0)
    pair = collections.namedtuple("pair", "a b")
    lists: collections.defaultdict[str, Any] = collections.defaultdict(list, {"x": a})
    fetches = [collections.OrderedDict([("z", a), ("y", pair(b, [a]))]), lists]
    for _ in range(2):
        (ordered, default), session = hf.Session().run(fetches), hf.Session()
        assert type(ordered) is collections.OrderedDict and list(ordered) == ["z", "y"]
        assert ordered["y"] == pair(2.0, [1.0]) and type(ordered["y"]) is pair
        assert default == {"x": 1.0} and default["new"] == []
        assert session.run(collections.OrderedDict(a=a)) == {"a": 1.0}
    assert lists == {"x": a}


def test_partitioners_are_called_with_keywords() -> None:
    asked = []

    def rows(*, dtype: Any, shape: Any) -> list[int]:
        asked.append((tuple(shape), dtype))
        return [2, 1]

    with hf.variable_scope("w", partitioner=rows):
        made = hf.get_variable("v", [4, 3])
    with hf.variable_scope("w", partitioner=rows, reuse=True):
        assert hf.get_variable("v", [4, 3]) is made
    assert [v.shape for v in made] == [(2, 3), (2, 3)]
    assert asked == [((4, 3), hf.float32)] * 2


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b", "a"],
        ("a", "b"),
        {"a", "b"},
        {"a": 0, "b": 0},
        iter("ab"),
        {"a": 0, "b": 1}.keys(),
    ],
)
def test_names_of_collections_are_any_iterable(names: Any) -> None:
    hf.add_to_collections(names, 7)
    assert hf.get_collection("a") == hf.get_collection("b") == [7]


def test_the_name_of_one_collection_is_text() -> None:
    hf.add_to_collections("ab", 7)
    assert (hf.get_collection("ab"), hf.get_collection("a")) == ([7], [])


def test_the_global_step_of_a_session() -> None:
    step = hf.train.get_or_create_global_step(hf.get_default_graph())
    session = started()
    session.run(step.assign_add(4))
    assert hf.train.global_step(session, step) == 4


def test_operations_are_told_as_node_defs() -> None:
    def on(op: Any) -> str:
        node = op if isinstance(op, hf.NodeDef) else op.node_def
        return "/job:ps" if node.op == "Variable" else "/job:worker"

    with hf.device(on):
        x = hf.placeholder(hf.float32, [2], name="x")
        v = hf.Variable([1.0, 2.0], name="v")
        with hf.control_dependencies([hf.no_op("first")]):
            y = hf.concat([*hf.split(x, 2, name="parts")[1:], x], 0, name="y")
    assert (v.op.device, x.device) == ("/job:ps", "/job:worker")
    found = y.op.node_def
    assert (found.name, found.device) == ("y", "/job:worker")
    assert found.input == ("parts:1", "x", "^first")


# -- Saver


def test_paths_of_checkpoints_are_text(tmp_path: Path) -> None:
    v = hf.Variable(1.0)
    session, saver = started(), hf.train.Saver(name="saver", write_version=2, sharded=False)
    prefix, step = os.path.join(tmp_path, "model.ckpt"), hf.constant(7) + 1
    assert hf.train.get_checkpoint_state(str(tmp_path)) is None
    assert hf.train.latest_checkpoint(str(tmp_path)) is None
    for count in (3, step):
        path = saver.save(session, prefix, global_step=count, write_meta_graph=False)
        assert type(path) is str and hf.train.checkpoint_exists(path)
        session.run(v.assign_add(1.0))
    state = hf.train.get_checkpoint_state(str(tmp_path))
    assert state is not None and state.model_checkpoint_path == path
    assert [p.split("-")[-1] for p in state.all_model_checkpoint_paths] == ["3", "8"]
    assert saver.last_checkpoints == state.all_model_checkpoint_paths
    assert hf.train.latest_checkpoint(str(tmp_path)) == path
    assert hf.train.get_checkpoint_mtimes([path]) == [os.path.getmtime(Path(path) / "index.h5")]
    saver.restore(session, state.model_checkpoint_path)
    assert session.run(v) == 2.0
    saver.restore(session, prefix)
    assert session.run(v) == 2.0


def test_the_prefix_that_was_saved_last_is_the_latest(tmp_path: Path) -> None:
    hf.Variable(1.0)
    session, saver = started(), hf.train.Saver()
    first = saver.save(session, tmp_path / "b", 9)
    second = saver.save(session, tmp_path / "a", 1)
    os.utime(Path(first) / "index.h5", (1000, 1000))
    assert hf.train.latest_checkpoint(tmp_path) == second


def test_a_checkpoint_of_each_so_many_hours_stays(tmp_path: Path, monkeypatch: Any) -> None:
    now = [1e9]
    monkeypatch.setattr("hpcflow.train.saver.time.time", lambda: now[0])
    hf.Variable(1.0)
    session = started()
    saver = hf.train.Saver(max_to_keep=2, keep_checkpoint_every_n_hours=1.0)
    for step in range(8):
        saver.save(session, tmp_path, step)
        now[0] += 1500.0  # seconds: steps 3 and 5 are the first beyond one and two hours
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [f"step-{n}" for n in (3, 5, 6, 7)]


def test_a_saver_is_built_when_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(hf.errors.CheckpointError, match="nothing to save"):
        hf.train.Saver()
    hf.train.Saver(allow_empty=True)
    saver = hf.train.Saver(defer_build=True)
    v = hf.Variable(1.0, name="v")
    saver.build()
    hf.Variable(2.0, name="later")
    assert saver.variables == {"v": v}


# -- shapes, ranks and dtypes that TensorFlow is generous with

X = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
C = (np.arange(4) + 1j * np.arange(4, 8)).reshape(2, 2).astype(np.complex64)


@pytest.mark.slow
def test_a_rate_or_flag_of_unknown_rank_leaves_the_shape_known() -> None:
    rate, flag = hf.placeholder(hf.float32), hf.placeholder(hf.bool)
    ones, x = hf.ones_initializer(), hf.constant(X)
    for dropped in (
        hf.nn.dropout(x, keep_prob=rate),
        hf.nn.dropout(x, rate=1.0 - rate),
        hf.layers.dropout(x, rate, training=flag),
        hf.layers.batch_normalization(x, epsilon=0.0, training=flag),
    ):
        assert dropped.shape == (1, 2, 2, 3)
        y = hf.layers.dense(dropped, 1, kernel_initializer=ones)
        found = started().run(y, {rate: 1.0, flag: False})
        np.testing.assert_allclose(found.reshape(-1), [3, 12, 21, 30])


def test_labels_are_cast_and_their_rows_counted() -> None:
    labels, logits = np.eye(3, dtype=int)[[0, 2]], np.arange(6, dtype=np.float32).reshape(2, 3)
    any_shape = hf.placeholder(hf.float32)
    for function in (
        hf.nn.softmax_cross_entropy_with_logits,
        hf.nn.softmax_cross_entropy_with_logits_v2,
    ):
        for given in (labels, labels.astype(np.float64), labels[None], any_shape):
            each = function(labels=given, logits=hf.constant(logits))
            assert each.shape == (2,)
            found = hf.Session().run(each, {any_shape: labels[None]})
            np.testing.assert_allclose(found, [2.407606, 0.407606], rtol=1e-5)
    loss = hf.losses.softmax_cross_entropy(any_shape, hf.constant(logits))
    assert hf.Session().run(loss, {any_shape: labels[None]}) == pytest.approx(1.407606)
    with pytest.raises(hf.errors.HpcflowError):
        hf.Session().run(loss, {any_shape: labels.reshape(3, 2)})


def test_of_a_loss_that_is_no_scalar_the_sum_is_minimized() -> None:
    v = hf.Variable([1.0, 2.0])
    train = hf.train.GradientDescentOptimizer(1.0).minimize(
        v * v, gate_gradients=hf.train.Optimizer.GATE_OP, colocate_gradients_with_ops=True
    )
    weighted = hf.train.GradientDescentOptimizer(1.0).minimize(
        v * v, grad_loss=[1.0, 0.5], aggregation_method=hf.AggregationMethod.ADD_N
    )
    session = started()
    session.run(train)
    assert session.run(v).tolist() == [-1.0, -2.0]
    session.run(weighted)
    assert session.run(v).tolist() == [1.0, 0.0]


def test_tuples_of_tensors_are_fed_by_tuples_of_values() -> None:
    a, b = hf.placeholder(hf.float32), hf.placeholder(hf.float32)
    c, s = hf.placeholder(hf.float32), hf.sparse_placeholder(hf.float32, [3])
    y = a + 2.0 * b + 4.0 * c + hf.reduce_sum(hf.sparse_tensor_to_dense(s))
    session, pair = hf.Session(), collections.namedtuple("pair", "c h")
    ones = hf.SparseTensorValue([[1]], [8.0], [3])
    for _ in range(2):
        assert session.run(y, {(a, (b, c)): (1.0, [1.0, 1.0]), s: ones}) == 15
        assert session.run(y, {pair(a, b): pair(2.0, 1.0), c: 1.0, s: ones}) == 16
    total = a + b
    handle = session.partial_run_setup(total, [a, b])
    assert session.partial_run(handle, total, {(a, b): (1.0, 2.0)}) == 3
    with pytest.raises(FeedError, match="2 tensors and were fed 3 values"):
        session.run(a + b, {(a, b): (1.0, 2.0, 3.0)})
    with pytest.raises(FeedError, match="2 tensors and were fed 1 values"):
        session.run(a + b, {(a, b): np.array([1.0, 2.0])})


def test_sparse_placeholders_whose_shape_is_a_tensor() -> None:
    value = hf.SparseTensorValue([[0, 1]], [2.0], [2, 3])
    for shape in (hf.constant([2, 3], hf.int64), hf.shape(hf.placeholder(hf.bool, [2, None]))):
        fed = hf.sparse_placeholder(hf.float32, shape=hf.cast(shape, hf.int64))
        dense = hf.Session().run(hf.sparse_tensor_to_dense(fed), {fed: value})
        assert dense.tolist() == [[0, 2, 0], [0, 0, 0]]


def test_sparse_tensors_of_unknown_rank_are_added() -> None:
    a, b = hf.sparse_placeholder(hf.float32), hf.sparse_placeholder(hf.float32)
    total = hf.sparse_add(a, b)
    left = hf.SparseTensorValue([[0, 1], [1, 2]], [2.0, 1.0], [2, 3])
    right = hf.SparseTensorValue([[0, 0], [0, 1]], [4.0, 3.0], [2, 3])
    found = hf.Session().run(total, {a: left, b: right})
    assert found.indices.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert (found.values.tolist(), found.dense_shape.tolist()) == ([4, 5, 1], [2, 3])


def test_concat_of_one_tensor_and_split_by_sizes_of_unknown_number() -> None:
    session, sizes = hf.Session(), hf.placeholder(hf.int32, [None])
    np.testing.assert_array_equal(session.run(hf.concat(hf.constant(X), 1)), X)
    np.testing.assert_array_equal(session.run(hf.concat(values=X, axis=1)), X)
    for parts in (
        hf.split(split_dim=3, num_split=[1, 2], value=X),
        hf.split(X, sizes, 3, num=2),
    ):
        first, second = session.run(parts, {sizes: [1, 2]} if parts[0].shape[3] is None else {})
        np.testing.assert_array_equal(first, X[..., :1])
        np.testing.assert_array_equal(second, X[..., 1:])
    with pytest.raises(hf.errors.HpcflowError, match=r"num="):
        hf.split(X, sizes, 3)


def test_lengths_of_sequences_may_be_floats() -> None:
    cell = hf.nn.rnn_cell.BasicRNNCell(2)
    x = np.ones((2, 3, 2), np.float32)
    outputs, _ = hf.nn.dynamic_rnn(cell, x, hf.constant([1.0, 2.0]), dtype=hf.float32)
    found = started().run(outputs)
    assert (np.abs(found).sum(2) > 0).tolist() == [[True, False, False], [True, True, False]]


def test_adjoint_matrices_of_complex_numbers() -> None:
    a = hf.constant(C)
    first, second = hf.matmul(a, C, adjoint_a=True), hf.matmul(C, a, adjoint_b=True)
    slope = hf.gradients(hf.real(hf.reduce_sum(first**2)), a)[0]
    found = hf.Session().run([first, second, slope, hf.transpose(C, conjugate=True)])
    expected = (
        [[56, 68 - 8j], [68 + 8j, 84]],
        [[42, 62 + 16j], [62 - 16j, 98]],
        [[216 + 1112j, 104 + 1384j], [744 + 1576j, 680 + 2024j]],
        [[-4j, 2 - 6j], [1 - 5j, 3 - 7j]],
    )
    for value, numbers in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, numbers, rtol=1e-5)
    real = hf.matmul(X[0], X[0], adjoint_b=True, a_is_sparse=False)
    assert hf.Session().run(real)[1].tolist() == [[149, 212], [212, 302]]
    with pytest.raises(hf.errors.HpcflowError, match="both"):
        hf.matmul(a, C, transpose_a=True, adjoint_a=True)


def test_groups_of_operations_that_share_a_device() -> None:
    a = hf.constant(1.0, name="a")
    with hf.colocate_with(a.op):
        b = hf.constant(2.0)
    assert b.op.colocation_groups() == a.op.colocation_groups() == [b"loc:@a"]
    method = hf.AggregationMethod.EXPERIMENTAL_TREE
    (slope,) = hf.gradients(a * a, a, aggregation_method=method, gate_gradients=True)
    assert hf.Session().run(slope) == 2


# -- arguments that say what is wished, or change nothing


@pytest.mark.parametrize(
    "value, wish, dtype",
    [
        (1, hf.float32, hf.float32),
        ([1, 2], "float64", hf.float64),
        (2, hf.int64, hf.int64),
        (np.array([1, 2]), hf.float32, hf.float32),
        ([], hf.int32, hf.int32),
        ([1.5], hf.int32, hf.float32),
        (1.5, hf.int32, hf.float32),
        (1, hf.bool, hf.int32),
        ("a", hf.float32, hf.string),
        (1 + 2j, hf.float32, hf.complex128),
    ],
)
def test_a_dtype_is_preferred_where_it_can_be(value: Any, wish: Any, dtype: Any) -> None:
    """Read off TensorFlow."""
    assert hf.convert_to_tensor(value, preferred_dtype=wish).dtype == dtype
    assert hf.convert_to_tensor(value, dtype_hint=wish).dtype == dtype


def test_a_preferred_dtype_changes_no_tensor() -> None:
    assert hf.convert_to_tensor(hf.constant(1), preferred_dtype=hf.float32).dtype == hf.int32
    assert hf.convert_to_tensor(hf.Variable(1), dtype_hint=hf.float32).dtype == hf.int32
    assert hf.convert_to_tensor([1], hf.float64, None, hf.float32).dtype == hf.float64


def test_variables_take_what_changes_nothing() -> None:
    v = hf.Variable(
        hf.ones([2]),
        validate_shape=False,
        caching_device="/cpu:0",
        use_resource=True,
        expected_shape=[2],
    )
    w = hf.get_variable("w", [2], use_resource=False, validate_shape=True, caching_device=None)
    assert v.shape == w.shape == (2,)
    with pytest.raises(ShapeError):
        hf.Variable(hf.placeholder("float32", [None, 2]), validate_shape=False)


def test_elements_of_the_graph_by_name_or_themselves() -> None:
    c, v = hf.constant(1.0, name="c"), hf.Variable(2.0)
    graph = c.graph
    assert graph.as_graph_element("c:0") is graph.as_graph_element(c) is c
    assert graph.as_graph_element("c") is graph.as_graph_element(c.op) is c.op
    assert hf.gradients(graph.as_graph_element(v), v)[0] is not None
    for wrong in (3.0, "none", "none:0"):
        with pytest.raises(GraphError):
            graph.as_graph_element(wrong)
    with pytest.raises(GraphError, match="is not of type Operation"):
        graph.as_graph_element(c, allow_tensor=False)
    with hf.Graph().as_default() as other, pytest.raises(GraphError, match="another graph"):
        other.as_graph_element(c)


def test_constants_without_values() -> None:
    for shape in ([0, 2, 3], [2, 0], [0]):
        assert hf.Session().run(hf.constant([], "float32", shape)).shape == tuple(shape)
    assert hf.Session().run(hf.constant([], "float32", [2])).tolist() == [0, 0]


def test_no_variables_are_initialized() -> None:
    assert hf.assert_variables_initialized() is None


def test_a_batch_of_a_list_of_one_is_a_tensor() -> None:
    one, listed = hf.train.batch([hf.constant(3.0)], 2), hf.train.batch([1, [2, 3]], 2)
    assert one.shape == (2,) and [t.shape for t in listed] == [(2,), (2, 2)]


def test_rows_of_a_tensor_of_unknown_shape_are_produced() -> None:
    rows = hf.placeholder_with_default([[1, 2], [3, 4]], None)
    with pytest.raises(ShapeError, match="must be known"):
        hf.train.input_producer(rows)
    taken = hf.train.input_producer(rows, [2], 1, shuffle=False).dequeue_many(2)
    with hf.Session() as session:
        session.run(hf.local_variables_initializer())
        hf.train.start_queue_runners(session)
        assert session.run(taken).tolist() == [[1, 2], [3, 4]]


def test_what_a_python_function_must_not_return() -> None:
    records = np.array([], [("x", np.float32)])
    with pytest.raises(HpcflowError, match=r"value 0 .* Tout says float32"):
        hf.Session().run(hf.py_func(lambda: records, [], "float32"))
    assert hf.Session().run(hf.py_func(lambda: [], [], "float32")).shape == (0,)


def test_texts_are_scattered() -> None:
    at, texts = [[4], [3], [3]], ["a", "b", "c"]
    found = hf.Session().run(hf.scatter_nd(at, texts, [5]))
    assert found.tolist() == [b"", b"", b"", b"bc", b"a"]


def test_groups_take_structures() -> None:
    a, b, c = hf.Variable(1.0), hf.Variable(2.0), hf.Variable(3.0)
    done = hf.group(a.assign(5.0), [b.assign(6.0), {"c": c.assign(7.0)}])
    session = started()
    session.run(done)
    assert session.run([a, b, c]) == [5, 6, 7]


def test_old_names_of_variables_and_their_initializers() -> None:
    v = hf.Variable(3.0)
    w = hf.Variable(4.0, trainable=False, collections=[hf.GraphKeys.LOCAL_VARIABLES])
    assert hf.all_variables() == [v]
    with hf.Session() as session:
        session.run([hf.initialize_all_variables(), hf.initialize_local_variables()])
        assert session.run([v, w]) == [3, 4]
        session.run(hf.initialize_variables([v]))


def test_a_second_global_step_is_an_error() -> None:
    step = hf.train.create_global_step()
    assert hf.train.get_global_step() is step and step.dtype == np.int64
    with pytest.raises(ValueError, match="has a global step"):
        hf.train.create_global_step()
