"""Kept values: what a tensor list or array keeps is computed in memory of its own, and not copied.

A buffer of the arena is overwritten in the next iteration of a loop, so a kernel that keeps a value
copies it. A value that a kernel computes can have fresh memory instead, as fetched values have. A
loop variable is in memory of its own anyway: a loop copies what its variables begin with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from hpcflow.graph.static_shape import is_known
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.plan.ir.program import Node, Partition, Ref

OWNED = "owned"  # the attribute of a node that keeps its value without a copy


def mark_owned_values(
    part: Partition, info: Callable[[Node], KernelInfo], owned_feeds: frozenset[str]
) -> Partition:
    """Mark the nodes that keep a value which nothing overwrites.

    `owned_feeds` are feeds in memory of their own: the variables of a loop. Other devices than CPUs
    copy, since a CUDA graph computes in buffers at fixed addresses.
    """

    def is_owned(node: Node, ref: Ref) -> bool:
        maker = part.nodes[ref.node]
        if "/cpu:" not in node.device or maker.device != node.device:
            return False
        if maker.row.source == "feed":
            return maker.name in owned_feeds
        computed = not (maker.row.no_kernel or maker.row.control_flow or maker.row.waits)
        static = all(is_known(spec.shape) for spec in maker.specs)
        return computed and static and not maker.is_state and info(maker).form in ("ufunc", "out")

    nodes = {
        name: dataclasses.replace(node, attrs={**node.attrs, OWNED: True})
        if node.row.keeps is not None and is_owned(node, node.inputs[node.row.keeps])
        else node
        for name, node in part.nodes.items()
    }
    return dataclasses.replace(part, nodes=nodes)


def owned_values(part: Partition) -> Iterator[Ref]:
    """The values that nodes keep without a copy."""
    for node in part.nodes.values():
        if node.attrs.get(OWNED):
            assert node.row.keeps is not None
            yield node.inputs[node.row.keeps]
