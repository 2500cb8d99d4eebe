"""Weights that are used many times in a step are brought once into the order products read them in.

A product of a few rows reads all its weights, and else brings them into that order by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

import numpy as np

from hpcflow.graph.shape import Spec, is_known
from hpcflow.plan.ir import Node, Part, Ref
from hpcflow.plan.strands import cut, home

MANY = 8  # products: packing costs about as much as one of them
FEW_ROWS = 128


def pack_weights(part: Part, is_fast: Callable[[Node, list[Spec]], bool]) -> Part:
    """The part with `Packed` weights for products of one strand that share them.

    `is_fast(node, specs)` tells if a provider serves a node with such inputs.
    """
    groups = {key: nodes for key, nodes in _groups(part).items() if len(nodes) >= MANY}
    if not groups:
        return part
    packed: dict[str, Node] = {}  # by the first of the products
    product: dict[str, Node] = {}
    for nodes in groups.values():
        first = nodes[0]
        weights, attrs = first.inputs[1], _attrs(part, first)
        specs = (part.spec(weights),)
        made = first.but(
            name=f"{first.name}/packed", type="Packed", inputs=(weights,), attrs=attrs, specs=specs
        )
        if not is_fast(made, list(specs)):
            continue
        packed[first.name] = made
        for node in nodes:
            inputs = (node.inputs[0], Ref(made.name))
            product[node.name] = node.but(type="PackedMatMul", inputs=inputs, attrs=attrs)
    changed: dict[str, Node] = {}
    for name, node in part.nodes.items():
        if name in packed:
            changed[packed[name].name] = packed[name]
        changed[name] = product.get(name, node)
    return dataclasses.replace(part, nodes=changed)


def _attrs(part: Part, node: Node) -> dict[str, object]:
    left = part.nodes[node.inputs[0].node].specs[node.inputs[0].index]
    return {"transpose_b": node.attrs["transpose_b"], "rows": (left.shape or ())[0]}


def _groups(part: Part) -> dict[Hashable, list[Node]]:
    """Products of a few rows by their weights, how they use them, and where and when."""
    where, found = home(cut(part)), dict[Hashable, list[Node]]()
    for node in part.nodes.values():
        if node.type != "MatMul" or node.attrs["transpose_a"] or node.control:
            continue
        specs = [part.spec(r) for r in node.inputs]
        known = all(is_known(s.shape) and s.dtype == np.float32 for s in specs)
        if known and all(len(s.shape or ()) == 2 for s in specs):
            attrs = _attrs(part, node)
            if 0 < attrs["rows"] <= FEW_ROWS:  # type: ignore[operator]
                key = node.inputs[1], *attrs.values(), node.device, where[node.name]
                found.setdefault(key, []).append(node)
    return found
