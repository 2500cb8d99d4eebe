"""Common subexpression elimination: merges equal pure nodes and equal variable reads."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.frontend.constant_folding import FOLDED_BYTES
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import substitute_values


def merge_common_subexpressions(program: Program) -> Program:
    """Merge pure nodes, and reads of one variable, of equal type, inputs and control inputs.

    Two reads with the same control inputs see the same updates, so they can be merged.
    """
    values: dict[Ref, Ref] = {}
    order: dict[str, tuple[str, ...]] = {}
    like: dict[Hashable, Node] = {}
    unique: dict[Hashable, Node] = {}
    for node in program.nodes.values():
        if not (node.row.pure or node.row.variable == "read") or not node.specs:
            continue
        key = _key(node, values, order)
        candidate = like.setdefault(key, node)
        if candidate is node:
            continue
        unique.setdefault((key, _attrs(candidate)), candidate)
        first = unique.setdefault((key, _attrs(node)), node)
        if first is not node and _specs(first) == _specs(node):
            order[node.name] = (first.name,)
            values.update({Ref(node.name, i): Ref(first.name, i) for i in range(len(node.specs))})
    return substitute_values(program, values, order)


def _key(node: Node, values: dict[Ref, Ref], order: dict[str, tuple[str, ...]]) -> Hashable:
    """Return what equal nodes have in common, without attributes; few nodes share a key."""
    inputs = tuple([values.get(ref, ref) for ref in node.inputs])
    control = frozenset([order.get(c, (c,))[0] for c in node.control])
    return node.type, inputs, control, node.device, frozenset(node.colocate)


def _attrs(node: Node) -> Hashable:
    return tuple(sorted((k, _attr(v)) for k, v in node.attrs.items()))


def _attr(value: Any) -> Hashable:
    if isinstance(value, np.ndarray) and value.nbytes > FOLDED_BYTES:
        return "array", id(value)  # hashing a large array would cost more than a second copy
    return canonical(value)


def _specs(node: Node) -> list[Spec]:
    return [Spec(s.dtype, s.shape) for s in node.specs]
