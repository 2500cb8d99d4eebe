"""Plan preparation: evaluation for constant folding, and the report of server traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.errors import MALFORMED, HpcflowError, KernelError, OutOfMemoryError
from hpcflow.graph.graph import Graph
from hpcflow.graph.static_shape import Spec, require_known
from hpcflow.plan.distribution.variable_placement import place_variables, server_bytes
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.dynamic_types import Value
from hpcflow.runtime.job.rank_context import RankContext


def log_server_traffic(context: RankContext, graph: Graph, plan: Plan) -> None:
    """Log the servers' state and traffic once, before the first training step."""
    if not context.counts.is_first_telling():
        return
    # only a job with servers needs it
    from hpcflow.plan.listing.server_traffic_text import server_traffic_text

    placements = place_variables(graph, context.cluster, context.settings)
    server_bytes_held = server_bytes(graph, placements, context.cluster.servers)
    by = "placed by prediction"
    if context.cluster.measured:
        by = f"placed as measured in {context.settings.placement}"
        measured = {name for name, _, _ in context.cluster.measured}
        missing = [
            name
            for name, placement in placements.items()
            if placement.owner == name and name not in measured
        ]
        if missing:
            by += f" (by prediction, not being there: {', '.join(missing)})"
    logger.info("%s", server_traffic_text(plan, server_bytes_held, by))


def evaluate_node(context: RankContext, node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Compute a pure node on this rank's CPU, for constant folding.

    Errors: KernelError or OutOfMemoryError with the node and its line, or the kernel's
    HpcflowError.
    """
    device = context.devices["cpu:0"]
    specs = [Spec(np.asarray(x).dtype, np.asarray(x).shape) for x in inputs]
    run, form = device.kernel(node, specs), device.info(node, specs).form
    try:
        if form == "out":
            outs = [np.empty(require_known(s.shape), s.dtype) for s in node.specs]
            run(*inputs, *outs)
            return outs
        outputs = run(*inputs)
    except HpcflowError as error:
        error.op, error.line = error.op or node.name, error.line or node.line
        raise
    except MALFORMED as error:
        kind = OutOfMemoryError if isinstance(error, MemoryError) else KernelError
        message = f"{node.type} failed: {type(error).__name__}: {error}"
        raise kind(message, op=node.name, line=node.line) from error
    return list(outputs) if isinstance(outputs, tuple) else [np.asarray(outputs)]
