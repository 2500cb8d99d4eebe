"""The number of training steps taken, kept in the graph."""

from __future__ import annotations

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Graph, get_default_graph
from hpcflow.graph.keys import GraphKeys
from hpcflow.ops.array import constant
from hpcflow.ops.state import Variable


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The global step of a graph, by default the default one; None if it has none.

    It is in the collection "global_step", or else a variable of this name.
    """
    graph = graph or get_default_graph()
    found = graph.get_collection(GraphKeys.GLOBAL_STEP)
    named = [v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.name == "global_step"]
    return (found or named or [None])[0]


def get_or_create_global_step() -> Variable:
    """The default graph's global step, made if need be: an int64 scalar that starts at 0.

    Give it to `minimize`. Synchronous replicas count each joined step once; asynchronous workers
    share it, so that it counts the updates of all of them.
    """
    found = get_global_step()
    if found is None:
        graph = get_default_graph()
        with graph.name_scope(None):
            found = Variable(lambda: constant(0, int64), trainable=False, name="global_step")
        graph.add_to_collection(GraphKeys.GLOBAL_STEP, found)
    return found
