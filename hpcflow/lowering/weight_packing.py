"""Weight packing: reorders weights once for the many matrix products of a step that use them.

A product of a few rows reads all its weights, and would else reorder them in each call. Weights
that are invariant in a loop are packed before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import numpy as np

from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.lowering.segments_between_waits import segment_by_node, split_segments
from hpcflow.plan.ir.program import Node, Partition, Ref

MIN_PRODUCTS = 8  # products: packing costs about as much as one product
FEW_ROWS = 128

IsFast = Callable[[Node, list[Spec]], bool]


def pack_weights(part: Partition, is_fast: IsFast) -> Partition:
    """The partition with `Packed` weights for products of a segment or loop that share them.

    `is_fast(node, specs)` is true if a provider serves a node with inputs of these specs.
    """
    groups = [nodes for nodes in _product_groups(part).values() if len(nodes) >= MIN_PRODUCTS]
    packed = _pack_groups(part, groups, is_fast)
    changed: dict[str, Node] = {}
    for name, node in part.nodes.items():
        if name in packed.weights:
            changed[packed.weights[name].name] = packed.weights[name]
        if node.row.control_flow == "loop" and not node.row.across_tasks:
            before, node = _pack_loop_weights(node, is_fast)
            changed.update({pack.name: pack for pack in before})
        changed[name] = packed.products.get(name, node)
    return dataclasses.replace(part, nodes=changed)


class _PackedWeights(NamedTuple):
    """Packing nodes by the first product that uses them, and all products that use them."""

    weights: dict[str, Node]
    products: dict[str, Node]


def _pack_groups(part: Partition, groups: Iterable[list[Node]], is_fast: IsFast) -> _PackedWeights:
    """Pack the weights of each group of products that share them."""
    packed = _PackedWeights({}, {})
    for nodes in groups:
        first = nodes[0]
        weights, attrs = first.inputs[1], _packing_attributes(part, first)
        specs = (part.spec(weights),)
        pack = first.but(
            name=f"{first.name}/packed", type="Packed", inputs=(weights,), attrs=attrs, specs=specs
        )
        if not is_fast(pack, list(specs)):
            continue
        packed.weights[first.name] = pack
        for node in nodes:
            inputs = (node.inputs[0], Ref(pack.name))
            packed.products[node.name] = node.but(type="PackedMatMul", inputs=inputs, attrs=attrs)
    return packed


def _pack_loop_weights(loop: Node, is_fast: IsFast) -> tuple[list[Node], Node]:
    """The nodes that pack loop-invariant weights, and the loop that takes them."""
    body: Partition = loop.attrs["body"]
    begin = loop.attrs["empty"]  # the number of slots that are no inputs
    outside = {
        Ref(feed): loop.inputs[slot - begin]
        for feed, slot in zip(body.feeds, loop.attrs["body_feeds"], strict=True)
        if slot >= len(loop.specs)
    }
    groups = [nodes for nodes in _product_groups(body).values() if nodes[0].inputs[1] in outside]
    packed = _pack_groups(body, groups, is_fast)
    packs = [node.but(inputs=(outside[node.inputs[0]],)) for node in packed.weights.values()]
    if not packs:
        return [], loop
    feeds = {node.name: _packed_feed(node) for node in packs}
    slots = range(len(loop.inputs) + begin, len(loop.inputs) + begin + len(packs))
    nodes = {**feeds, **body.nodes, **packed.products}
    attrs = {
        **loop.attrs,
        "body": dataclasses.replace(body, nodes=nodes, feeds=(*body.feeds, *feeds)),
        "body_feeds": (*loop.attrs["body_feeds"], *slots),
    }
    inputs = (*loop.inputs, *(Ref(node.name) for node in packs))
    return packs, loop.but(inputs=inputs, attrs=attrs)


def _packed_feed(packed: Node) -> Node:
    """The feed of packed weights in the body of a loop."""
    (spec,) = packed.specs
    attrs = {"dtype": spec.dtype, "shape": spec.shape}
    return packed.but(type="Feed", inputs=(), attrs=attrs)


def _packing_attributes(part: Partition, node: Node) -> dict[str, object]:
    left_shape = part.spec(node.inputs[0]).shape or ()
    return {"transpose_b": node.attrs["transpose_b"], "rows": left_shape[0]}


def _product_groups(part: Partition) -> dict[Hashable, list[Node]]:
    """Products of a few rows by their weights, how they use them, device and segment."""
    segment_of, groups = segment_by_node(split_segments(part)), dict[Hashable, list[Node]]()
    for node in part.nodes.values():
        if node.type != "MatMul" or node.attrs["transpose_a"] or node.control:
            continue
        specs = [part.spec(r) for r in node.inputs]
        packable = all(is_known(s.shape) and s.dtype == np.float32 for s in specs)
        if packable and all(len(s.shape or ()) == 2 for s in specs):
            attrs = _packing_attributes(part, node)
            if 0 < attrs["rows"] <= FEW_ROWS:  # type: ignore[operator]
                key = node.inputs[1], *attrs.values(), node.device, segment_of[node.name]
                groups.setdefault(key, []).append(node)
    return groups
