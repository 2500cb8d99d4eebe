"""The number of training steps taken, kept in the graph."""

from __future__ import annotations

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import get_default_graph
from hpcflow.ops.array import constant
from hpcflow.ops.state import Variable


def get_global_step() -> Variable | None:
    """The default graph's global step, None if it has none."""
    found = get_default_graph().get_collection("global_step")
    return found[0] if found else None


def get_or_create_global_step() -> Variable:
    """The default graph's global step, an int64 scalar that starts at 0.

    Give it to `minimize`. Synchronous replicas count each joined step once; asynchronous workers
    share it, so that it counts the updates of all of them.
    """
    found = get_global_step()
    if found is None:
        graph = get_default_graph()
        with graph.name_scope(None):
            found = Variable(lambda: constant(0, int64), trainable=False, name="global_step")
        graph.add_to_collection("global_step", found)
    return found
