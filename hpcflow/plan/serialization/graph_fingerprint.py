"""Graph fingerprint: digests by which ranks check that they built the same graph.

The digest of a plan tells whether a prediction and a run are of the same plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcflow.graph.dtypes import text_of
from hpcflow.graph.function_body import Function, all_operations
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.ir.program import Edge, Partition, Plan


class OpDigest(NamedTuple):
    """The digest of one operation, and the facts that messages show."""

    name: str
    type: str
    line: str
    digest: str


def op_digests(graph: Graph) -> list[OpDigest]:
    """Return one digest per operation, in creation order.

    It covers the type, attributes, constants, inputs and placement constraints. The user's line is
    shown but not compared, because paths may differ between nodes.
    """
    return [OpDigest(op.name, op.type, op.line, _op_digest(op)) for op in all_operations(graph)]


def graph_fingerprint(graph: Graph) -> str:
    """Return one digest of the whole graph."""
    hasher = hashlib.blake2b(digest_size=16)
    for op in op_digests(graph):
        hasher.update(op.digest.encode())
    return hasher.hexdigest()


def first_difference(local: Sequence[OpDigest], remote: Sequence[OpDigest]) -> str | None:
    """Describe the first difference of two ranks' graphs, with both lines; or None."""
    for i, (a, b) in enumerate(zip(local, remote, strict=False)):
        if a.digest != b.digest:
            if (a.name, a.type) == (b.name, b.type):
                return (
                    f"operation {i}, {a.name!r} ({a.type}, made at {a.line}), has the same name "
                    "and type but other attributes, constants, inputs, order or device"
                )
            return (
                f"operation {i} is {a.name!r} ({a.type}, made at {a.line}) here "
                f"and {b.name!r} ({b.type}, made at {b.line}) there"
            )
    if len(local) == len(remote):
        return None
    here = len(local) > len(remote)
    op = (local if here else remote)[min(len(local), len(remote))]
    side = "here" if here else "there"
    return f"operation {op.name!r} ({op.type}, made at {op.line}) exists only {side}"


def _op_digest(op: Operation) -> str:
    facts = (
        op.name,
        op.type,
        tuple(t.name for t in op.inputs),
        tuple(sorted(c.name for c in op.control_inputs)),
        op.device,
        tuple(sorted(op.colocate)),
        tuple((text_of(t.dtype), t.shape) for t in op.outputs),
        canonical(_portable_attributes(op.attrs)),
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _portable_attributes(attrs: dict[str, object]) -> dict[str, object]:
    """Return the attributes without addresses: a function is replaced by its name.

    All ranks share the name. A function of the graph is replaced by the names of its results,
    because its operations have digests themselves.
    """
    attrs = {
        k: tuple(t.name for t in v.results) if isinstance(v, Function) else v
        for k, v in attrs.items()
    }
    return {
        k: getattr(v, "__qualname__", type(v).__name__) if canonical(v)[0] == "object" else v  # type: ignore[index]
        for k, v in attrs.items()
    }


def plan_digest(plan: Plan) -> str:
    """Return the digest of a plan: of what its ranks hold, are fed, send and sum.

    Lowering does not change it, nor do paths, lines, libraries or the number of threads.
    """
    cluster = plan.cluster
    facts = [cluster.workers, cluster.servers, cluster.tasks_per_replica, cluster.mode]
    facts += [str(cluster.sync) if cluster.mode == "ps" else "", _plan_facts(plan)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _plan_facts(plan: Plan) -> list[Any]:
    parts = [(task, _part_facts(part)) for task, part in sorted(plan.parts.items())]
    edges = sorted(map(_edge_facts, plan.edges))
    return [plan.driver, parts, edges, None if plan.round is None else _plan_facts(plan.round)]


def _part_facts(part: Partition) -> list[Any]:
    """Feeds, fetches, variables and collectives of a partition.

    Fusion changes the names of fetched values, so only their dtypes and shapes count.
    """
    nodes = part.nodes.values()
    held = [(n.name, _handle_facts(n.attrs)) for n in nodes if n.row.variable == "handle"]
    feeds = [(name, [_spec_facts(spec) for spec in part.nodes[name].specs]) for name in part.feeds]
    sums = [(n.name, [_spec_facts(spec) for spec in n.specs]) for n in nodes if n.row.collective]
    return [feeds, [_spec_facts(part.spec(ref)) for ref in part.fetches], sorted(held), sums]


def _handle_facts(attrs: dict[str, Any]) -> tuple[str, str]:
    return text_of(attrs["dtype"]), str(tuple(attrs["shape"]))


def _edge_facts(edge: Edge) -> tuple[str, ...]:
    spec = _spec_facts(edge.spec)
    return (edge.source, edge.dest, str(edge.ref), *spec, str(edge.token), edge.frame)


def _spec_facts(spec: Spec) -> tuple[str, str]:
    return text_of(spec.dtype), str(spec.shape)
