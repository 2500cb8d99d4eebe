"""Errors of graphs are also the classes of Python that TensorFlow 1 raises.

Which class TensorFlow 2.21's tf.compat.v1 raises is written beside each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf


def graph_with(name: str) -> hf.Graph:
    graph = hf.Graph()
    with graph.as_default():
        hf.constant([1.0, 2.0], name=name)
    return graph


def finalized() -> None:
    graph = graph_with("a")
    graph.finalize()
    with graph.as_default():
        hf.constant(1)


def fetched(fetch: Any, feeds: Any = None) -> None:
    with graph_with("a").as_default(), hf.Session() as session:
        session.run(fetch, feeds)


def fed(value: Any) -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [2])
        session.run(x + 1, {x: value})


def without_gradients() -> None:
    with hf.Graph().as_default():
        hf.Variable(1.0)
        hf.train.GradientDescentOptimizer(0.1).minimize(hf.constant(1.0))


CALLS: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "an unknown operation": (KeyError, lambda: graph_with("a").get_operation_by_name("b")),
    "an unknown tensor": (KeyError, lambda: graph_with("a").get_tensor_by_name("b:0")),
    "an unknown output": (KeyError, lambda: graph_with("a").get_tensor_by_name("a:1")),
    "a tensor's name without output": (
        ValueError,
        lambda: graph_with("a").get_tensor_by_name("a"),
    ),
    "no element of a graph": (TypeError, lambda: graph_with("a").as_graph_element(3)),
    "no name": (ValueError, lambda: graph_with("a b")),
    "no operation": (TypeError, lambda: hf.group(1.0)),
    "no graph": (TypeError, lambda: hf.Session(graph=3)),
    "a finalized graph": (RuntimeError, finalized),
    "len": (TypeError, lambda: len(graph_with("a").get_tensor_by_name("a:0"))),
    "iter": (TypeError, lambda: iter(graph_with("a").get_tensor_by_name("a:0"))),
    "bool": (TypeError, lambda: bool(graph_with("a").get_tensor_by_name("a:0"))),
    "an index": (TypeError, lambda: graph_with("a").get_tensor_by_name("a:0")[1.0]),
    "a fetch": (TypeError, lambda: fetched(3)),
    "no fetch": (TypeError, lambda: fetched(None)),
    "a fetch by an unknown name": (ValueError, lambda: fetched("b:0")),
    "a key of feeds": (TypeError, lambda: fetched("a:0", {3: 1})),
    "a fed shape": (ValueError, lambda: fed([1.0, 2.0, 3.0])),
    "a fed number": (TypeError, lambda: fed(object())),
    "no gradients": (ValueError, without_gradients),
    "None": (ValueError, lambda: hf.constant(1.0) + None),
    "branches of other dtypes": (
        ValueError,
        lambda: hf.cond(hf.constant(True), lambda: 1.0, lambda: np.int32(2)),
    ),
    "branches of other structures": (
        ValueError,
        lambda: hf.cond(hf.constant(True), lambda: (1.0, 2.0), lambda: (1.0,)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_class_of_an_error(name: str) -> None:
    kind, call = CALLS[name]
    with hf.Graph().as_default(), pytest.raises(kind) as raised:
        call()
    assert isinstance(raised.value, hf.errors.HpcflowError)
