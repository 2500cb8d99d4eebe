"""Sums of bfloat16 over leading axes become sums in float32 and a Cast.

A generated loop adds the rows of an array up in its result, which must have the digits of the sum.
"""

from __future__ import annotations

import dataclasses

from hpcflow.codegen.fused_loop_ir import ROW
from hpcflow.graph.dtypes import bfloat16, float32
from hpcflow.lowering.fusion.iteration_space import node_mapping
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import unused_name


def sum_in_float32(part: Partition, exact: bool) -> Partition:
    """The partition with float32 sums where a generated loop can compute them; CPUs only.

    The Cast keeps the name of the sum, and so its users.
    """
    if not any(_is_bfloat16_sum(node) for node in part.nodes.values()):
        return part
    nodes: dict[str, Node] = {}
    names = set(part.nodes)
    for name, node in part.nodes.items():
        if _is_bfloat16_sum(node):
            wide = node.but(
                name=unused_name(f"{name}/float32", names),
                specs=(node.specs[0]._replace(dtype=float32),),
            )
            mapping = node_mapping(part, wide, exact)
            if mapping is not None and mapping.outputs == (ROW,):
                names.add(wide.name)
                nodes[wide.name] = wide
                attrs = {"dtype": bfloat16}
                node = node.but(type="Cast", inputs=(Ref(wide.name),), control=(), attrs=attrs)
        nodes[name] = node
    return dataclasses.replace(part, nodes=nodes)


def _is_bfloat16_sum(node: Node) -> bool:
    return node.row.sums and node.kind == "cpu" and node.specs[0].dtype == bfloat16
