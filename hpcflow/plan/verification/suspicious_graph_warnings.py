"""Suspicious-graph warnings: graphs that run, and do not train what their script says.

Both facts hold for the whole graph at the first training step, so neither depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcflow.graph.graph import Graph, Tensor
from hpcflow.plan.verification.summed_loss_warning import MINIMIZED_FOR

CROSS_ENTROPIES = ("SoftmaxCrossEntropy", "SparseSoftmaxCrossEntropy")
COPIES = ("Cast", "Identity", "Reshape", "Squeeze")


def suspicious_graph_warnings(graph: Graph) -> Iterator[str]:
    """Yield a warning for each softmax of a softmax and each variable that no loss reaches."""
    for op in graph.get_operations():
        if op.type in CROSS_ENTROPIES and (first := _made_by_softmax(op.inputs[0])) is not None:
            yield (
                f"the loss {op.name!r} ({op.line}) applies softmax to {first.name!r} "
                f"({first.op.line}), which is a softmax already: it trains slowly, to wrong "
                "probabilities\n"
                "  next  give it the logits, the values before softmax"
            )
    pairs = graph.get_collection(MINIMIZED_FOR)
    reached = {variable for variable, is_reached in pairs if is_reached}
    for variable in dict.fromkeys(v for v, _ in pairs if v not in reached):
        yield (
            f"the trainable variable {variable.name!r} ({variable.op.line}) is not trained: no "
            "loss depends on it\n"
            "  next  compute the loss from it, or make it with trainable=False"
        )


def _made_by_softmax(logits: Tensor) -> Tensor | None:
    """The softmax of which `logits` is a copy; None if it is none."""
    while logits.op.type in COPIES:
        logits = logits.op.inputs[0]
    return logits if logits.op.type == "Softmax" else None
