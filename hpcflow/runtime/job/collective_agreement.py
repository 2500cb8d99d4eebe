"""Collective agreement: replicas check that they run the same plan of the same graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import GraphMismatchError, LonelyCollectiveError
from hpcflow.graph.function_body import used_control_inputs
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.plan import user_passes
from hpcflow.plan.serialization.graph_fingerprint import OpDigest, first_difference, op_digests
from hpcflow.runtime.failure.replica_loss_recovery import StepInterrupted
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session_seed import SessionSeed


def check_agreement(
    context: RankContext, graph: Graph, requested: Sequence[Tensor | Operation], seed: SessionSeed
) -> None:
    """Check that all drivers are about to register the same plan with collectives.

    Afterwards their sessions use one `seed`: that of the rank with the most sessions.

    Ranks:  every driver, in the same order of plans.
    Errors: LonelyCollectiveError if their fetches differ; GraphMismatchError naming the first
    operation that differs if their graphs do; Interrupted, on all, if one has detected a death.
    """
    drivers = context.drivers
    if drivers is None or drivers.size == 1:
        return
    fetches = ", ".join(w.name for w in requested)
    digests = _needed_digests(graph, requested)
    hasher = hashlib.blake2b(repr([fetches, [d.digest for d in digests]]).encode(), digest_size=7)
    if _same_everywhere(context, int(hasher.hexdigest(), 16), requested[0], seed):
        return
    texts = drivers.gather_text(json.dumps([fetches, hasher.hexdigest()]))
    verdict = json.dumps(_compare_graphs(texts)) if texts is not None else None
    comparison = json.loads(drivers.broadcast_text(verdict))
    if comparison["lonely"]:
        raise LonelyCollectiveError(
            comparison["message"],
            op=requested[0].name,
            rank=context.rank,
            hint="run fetches that train on every replica, in the same order",
        )
    texts = drivers.gather_text(json.dumps(digests))
    diff = json.dumps(_first_difference_text(texts)) if texts is not None else None
    raise GraphMismatchError(
        json.loads(drivers.broadcast_text(diff)),
        rank=context.rank,
        hint="build the same graph on every rank: do not branch on the rank or on random values",
    )


def _same_everywhere(
    context: RankContext, number: int, first: Tensor | Operation, seed: SessionSeed
) -> bool:
    """Whether `number` is the same on all drivers: its maximum is its minimum.

    Sets `seed` to the highest session number of all drivers.
    """
    assert context.drivers is not None and context.control is not None
    short = context.survival is not None and context.survival.has_unrecovered_loss
    both = np.array([number, -number, short, seed.session], np.int64)
    op = first if isinstance(first, Operation) else first.op
    with context.control.collective_guard.guard(op.name, op.line):
        context.executor.finish(context.drivers.all_reduce(both, "max"), "agreement on a plan")
    if both[2]:
        raise StepInterrupted("a replica has died")
    seed.set(seed.job, int(both[3]))
    return int(both[0]) == -int(both[1])


def _needed_digests(graph: Graph, fetches: Sequence[Tensor | Operation]) -> list[OpDigest]:
    """Digests of the operations that the fetches need, and of the registered passes.

    The rest of the graph may differ.
    """
    stack = [w if isinstance(w, Operation) else w.op for w in fetches]
    names: set[str] = set()
    while stack:
        op = stack.pop()
        if op.name not in names:
            names.add(op.name)
            stack += [t.op for t in op.inputs] + used_control_inputs(op)
    digests = [d for d in op_digests(graph) if d.name in names]
    return [*digests, *(OpDigest(*facts) for facts in user_passes.facts())]


def _compare_graphs(texts: Sequence[str]) -> dict[str, object]:
    """Whether the fetches differ (`lonely`, with a `message`) or only the graphs do."""
    first_fetches, _ = json.loads(texts[0])
    for replica, text in enumerate(texts):
        fetches, _ = json.loads(text)
        if fetches != first_fetches:
            message = (
                f"replica 0 runs {first_fetches} while replica {replica} runs {fetches}; "
                "both sum over all replicas"
            )
            return {"lonely": True, "message": message}
    return {"lonely": False}


def _first_difference_text(texts: Sequence[str]) -> str:
    """The first operation that differs between replica 0 and another replica, as a message."""
    first = [OpDigest(*row) for row in json.loads(texts[0])]
    for replica, text in enumerate(texts):
        diff = first_difference(first, [OpDigest(*row) for row in json.loads(text)])
        if diff is not None:
            return f"replica 0 (here) and replica {replica} (there) built different graphs: {diff}"
    return "the replicas built different graphs"
