"""Global step: a variable that counts training steps."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import VariableNameError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Graph, get_default_graph, user_line
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.runtime.session.session import Session


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The global step of a graph (default: the default graph); None if it has none.

    It is in the collection "global_step", or a variable of this name.
    """
    graph = graph or get_default_graph()
    counters = graph.get_collection(GraphKeys.GLOBAL_STEP)
    named = [v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.name == "global_step"]
    return (counters or named or [None])[0]


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The global step of a graph (default: the default graph): an int64 scalar that starts at 0.

    It is created if missing. Pass it to `minimize`. Synchronous replicas count each step once.
    Asynchronous workers share it, so that it counts the updates of all.
    """
    graph = graph or get_default_graph()
    counter = get_global_step(graph)
    return create_global_step(graph) if counter is None else counter


def create_global_step(graph: Graph | None = None) -> Variable:
    """Create a global step as `get_or_create_global_step`.

    Errors: GraphError if the graph has one.
    """
    graph = graph or get_default_graph()
    existing = get_global_step(graph)
    if existing is not None:
        raise VariableNameError(
            f"the graph has a global step, {existing.name!r}",
            op=existing.name,
            line=user_line(),
            hint="get it by hf.train.get_or_create_global_step()",
        )
    with graph.as_default(), graph.name_scope(None):
        counter = Variable(lambda: constant(0, int64), trainable=False, name="global_step")
    graph.add_to_collection(GraphKeys.GLOBAL_STEP, counter)
    return counter


def global_step(sess: Session, global_step_tensor: Any) -> int:
    """The value of a global step in a session."""
    return int(sess.run(global_step_tensor))
