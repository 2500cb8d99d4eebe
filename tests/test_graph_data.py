"""Graphs as plain data: out through JSON and in again, the same graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError


def net() -> hf.Graph:
    graph = hf.Graph(seed=5)
    with graph.as_default():
        x = hf.placeholder("float32", [None, 4], name="x")
        with hf.variable_scope("layer"), hf.device("/cpu:0"):
            w = hf.get_variable("w", [4, 3])
            b = hf.get_variable("b", [3], initializer=hf.zeros_initializer())
        y = hf.add(hf.matmul(x, w), b, name="y")
        loss = hf.reduce_mean(hf.square(y), name="loss")
        step = hf.train.get_or_create_global_step()
        hf.train.AdamOptimizer(0.01).minimize(loss, step, name="train")
        with hf.control_dependencies([y]):
            hf.random_normal([2], name="drawn")
        hf.constant(1 + 2j, "complex128", name="c")
        hf.constant(["a", "bc"], name="words")
        hf.add_to_collection("outputs", y)
        hf.add_to_collection("outputs", "text")
        hf.global_variables_initializer()
    return graph


def through_json(graph: hf.Graph) -> dict[str, Any]:
    return json.loads(json.dumps(graph.as_graph_def(), allow_nan=False))


def facts(op: hf.Operation) -> tuple[Any, ...]:
    return (
        *(op.name, op.type, [t.name for t in op.inputs], [c.name for c in op.control_inputs]),
        *(op.device, op.colocate, [(t.dtype, t.shape) for t in op.outputs], sorted(op.attrs)),
    )


def test_a_round_trip() -> None:
    graph, again = net(), hf.Graph()
    data = through_json(graph)
    with again.as_default():
        assert hf.import_graph_def(data, name="") is None
        assert hf.constant(1.0, name="x").op.name == "x_1"  # names are taken
    assert [facts(o) for o in again.get_operations()][:-1] == [
        facts(o) for o in graph.get_operations()
    ]
    for key in ("variables", "trainable_variables", "global_step", "outputs"):
        mine, its = graph.get_collection(key), again.get_collection(key)
        assert [getattr(i, "name", i) for i in mine] == [getattr(i, "name", i) for i in its]
    assert through_json(graph) == data


def test_it_computes_and_trains_the_same() -> None:
    graph, again = net(), hf.Graph()
    with again.as_default():
        hf.import_graph_def(through_json(graph), name="")
    results = []
    for g in (graph, again):
        with hf.Session(g) as session:
            session.run("init")
            for _ in range(3):
                session.run("train", {"x:0": np.ones((2, 4), "f4")})
            fetches = [*("loss:0", "drawn:0", "c:0", "words:0"), *g.get_collection("global_step")]
            results.append(session.run(fetches, {"x:0": np.ones((2, 4), "f4")}))
            assert len(session.run(g.get_collection("variables"))) == 9
    for a, b in zip(*results, strict=True):
        assert a.tolist() == b.tolist()


def test_a_prefix_inputs_and_elements() -> None:
    data = through_json(net())
    with hf.Graph().as_default() as graph:
        fed = hf.constant(np.ones((1, 4), "f4"))
        y, loss, init = hf.import_graph_def(data, {"x": fed}, ["y:0", "loss", "init"])
        assert (y.name, loss.name) == ("import/y:0", "import/loss")
        assert [v.name for v in hf.trainable_variables()] == ["import/layer/w", "import/layer/b"]
        assert y.op.inputs[0].op.inputs[0] is fed
        hf.import_graph_def(data, name="other")
        with hf.Session() as session:
            session.run(init)
            w = session.run(hf.global_variables()[0])
            np.testing.assert_allclose(session.run(y), w.sum(0, keepdims=True), rtol=1e-6)
        assert graph.get_operation_by_name("other/y").type == "Add"


def test_a_graph_as_a_file(tmp_path: Path) -> None:
    graph = net()
    path = hf.train.write_graph(graph, tmp_path / "new", "graph.json")
    assert path == tmp_path / "new" / "graph.json"
    assert json.loads(path.read_text()) == through_json(graph)
    assert hf.train.write_graph(graph.as_graph_def(), path.parent, path.name) == path
    assert [f.name for f in path.parent.iterdir()] == ["graph.json"]


def test_errors() -> None:
    data = through_json(net())
    with hf.Graph().as_default():
        for wrong in ({}, {"format": "x"}, {**data, "nodes": [{"name": "x"}]}, []):
            with pytest.raises(GraphError, match="this is not a graph in the format"):
                hf.import_graph_def(wrong, name="a")
        with pytest.raises(GraphError, match="input_map names 'nothing:0'"):
            hf.import_graph_def(data, {"nothing": hf.constant(1.0)}, name="b")
        for missing in ("nothing", "nothing:0", "y:3"):
            with pytest.raises(GraphError, match="the imported graph has no"):
                hf.import_graph_def(data, return_elements=[missing])
        hf.constant(1.0, name="y")
        with pytest.raises(GraphError, match="has an operation 'y' already"):
            hf.import_graph_def(data, name="")
    with hf.Graph().as_default() as graph:
        hf.py_func(lambda x: x, [hf.constant(1.0)], "float32", name="mine")
        with pytest.raises(GraphError, match=r"'mine' .* cannot be exported"):
            graph.as_graph_def()


@pytest.mark.parametrize("scope", ["", "import"])
def test_loops_and_branches_with_their_gradients(scope: str) -> None:
    graph = hf.Graph()
    with graph.as_default():
        x = hf.placeholder(hf.float64, [None], name="x")
        v = hf.Variable([1.0, 2.0], name="v", dtype=hf.float64)

        def step(i: Any, y: Any) -> Any:
            return i + 1, hf.cond(i > 1, lambda: hf.sin(y) * v, lambda: y * y + 1.0)

        _, y = hf.while_loop(lambda i, y: i < 4, step, [0, x])
        (g,) = hf.gradients(y, [v])
        hf.global_variables_initializer()

    def values(graph: hf.Graph, prefix: str) -> Any:
        with graph.as_default(), hf.Session() as session:
            session.run(f"{prefix}init")
            wanted = [f"{prefix}{t.name}" for t in (y, g)]
            return session.run(wanted, {f"{prefix}x:0": [0.1, 0.2]})

    again = hf.Graph()
    with again.as_default():
        hf.import_graph_def(through_json(graph), name=scope)
    prefix = f"{scope}/" if scope else ""
    for mine, its in zip(values(graph, ""), values(again, prefix), strict=True):
        np.testing.assert_array_equal(mine, its)
    bodies = through_json(graph)["bodies"], through_json(again)["bodies"]
    names = [[prefix + n["name"] for n in body["nodes"]] for body in bodies[0]]
    assert [[n["name"] for n in body["nodes"]] for body in bodies[1]] == names
