"""Weights that are used many times in a step are brought once into the order products read them in.

A product of a few rows reads all its weights, and else brings them into that order by itself.
Those of a loop, which it reads in each iteration, are packed in front of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import numpy as np

from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.lowering.segments_between_waits import cut, home
from hpcflow.plan.ir.program import Node, Part, Ref

MANY = 8  # products: packing costs about as much as one of them
FEW_ROWS = 128

IsFast = Callable[[Node, list[Spec]], bool]


def pack_weights(part: Part, is_fast: IsFast) -> Part:
    """The part with `Packed` weights for products of one strand, or of a loop, that share them.

    `is_fast(node, specs)` tells if a provider serves a node with such inputs.
    """
    groups = [nodes for nodes in _groups(part).values() if len(nodes) >= MANY]
    found = _packed(part, groups, is_fast)
    changed: dict[str, Node] = {}
    for name, node in part.nodes.items():
        if name in found.weights:
            changed[found.weights[name].name] = found.weights[name]
        if node.type == "Loop":
            before, node = _for_loop(node, is_fast)
            changed.update({one.name: one for one in before})
        changed[name] = found.products.get(name, node)
    return dataclasses.replace(part, nodes=changed)


class _Packed(NamedTuple):
    """Nodes that pack weights, by the first product that takes them, and all such products."""

    weights: dict[str, Node]
    products: dict[str, Node]


def _packed(part: Part, groups: Iterable[list[Node]], is_fast: IsFast) -> _Packed:
    """Those of groups of products with the same weights."""
    found = _Packed({}, {})
    for nodes in groups:
        first = nodes[0]
        weights, attrs = first.inputs[1], _attrs(part, first)
        specs = (part.spec(weights),)
        made = first.but(
            name=f"{first.name}/packed", type="Packed", inputs=(weights,), attrs=attrs, specs=specs
        )
        if not is_fast(made, list(specs)):
            continue
        found.weights[first.name] = made
        for node in nodes:
            inputs = (node.inputs[0], Ref(made.name))
            found.products[node.name] = node.but(type="PackedMatMul", inputs=inputs, attrs=attrs)
    return found


def _for_loop(loop: Node, is_fast: IsFast) -> tuple[list[Node], Node]:
    """Nodes in front of a loop that pack what is the same in all iterations, and the loop then."""
    body: Part = loop.attrs["body"]
    begin = loop.attrs["empty"]  # of its slots are no inputs
    outside = {
        Ref(feed): loop.inputs[slot - begin]
        for feed, slot in zip(body.feeds, loop.attrs["body_feeds"], strict=True)
        if slot >= len(loop.specs)
    }
    groups = [nodes for nodes in _groups(body).values() if nodes[0].inputs[1] in outside]
    found = _packed(body, groups, is_fast)
    made = [node.but(inputs=(outside[node.inputs[0]],)) for node in found.weights.values()]
    if not made:
        return [], loop
    feeds = {node.name: _feed(node) for node in made}
    slots = range(len(loop.inputs) + begin, len(loop.inputs) + begin + len(made))
    nodes = {**feeds, **body.nodes, **found.products}
    attrs = {
        **loop.attrs,
        "body": dataclasses.replace(body, nodes=nodes, feeds=(*body.feeds, *feeds)),
        "body_feeds": (*loop.attrs["body_feeds"], *slots),
    }
    inputs = (*loop.inputs, *(Ref(node.name) for node in made))
    return made, loop.but(inputs=inputs, attrs=attrs)


def _feed(packed: Node) -> Node:
    """What stands in a loop for weights that are packed in front of it."""
    (spec,) = packed.specs
    attrs = {"dtype": spec.dtype, "shape": spec.shape}
    return packed.but(type="Feed", inputs=(), attrs=attrs)


def _attrs(part: Part, node: Node) -> dict[str, object]:
    left = part.spec(node.inputs[0]).shape or ()
    return {"transpose_b": node.attrs["transpose_b"], "rows": left[0]}


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
