"""Small things that programs of TensorFlow 1 count on; the results are what TensorFlow gives."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf


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
