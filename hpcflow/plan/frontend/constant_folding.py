"""Constant folding: pure nodes whose values are known at planning time become constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.static_shape import is_known
from hpcflow.plan.ir.control_flow_nodes import node_with_nested
from hpcflow.plan.ir.node_effects import has_effect
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import (
    as_constant,
    eliminate_dead_nodes,
    substitute_values,
)

Evaluate = Callable[[Node, Sequence[Any]], Sequence[Any]]
FOLDED_BYTES = 1 << 16  # upper bound, because the plan stores a folded constant
MADE_BYTES = 1 << 10  # upper bound for nodes without inputs (Fill), which are cheap to compute


def fold_static_shapes(program: Program) -> Program:
    """Replace nodes whose values follow from static shapes with constants.

    Shapes that nodes take as inputs become their attributes if they are known.

    Nodes that depend on an update or a collective stay: the collective or update may have no other
    consumer, and the known shapes differ between runs and between replicas. So do nodes that depend
    on another effect that would be lost.
    """
    anchors = _order_carriers(program) | _with_successors(program, _updates(program))
    folded = _fold_shapes(program, anchors)
    if lost := _lost_effects(program, folded):
        folded = _fold_shapes(program, anchors | _with_successors(program, lost))
    return folded


def _fold_shapes(program: Program, anchors: set[str]) -> Program:
    nodes = dict(program.nodes)
    for node in program.nodes.values():
        if node.row.source != "constant" and _may_fold(node, anchors) and len(node.specs) == 1:
            value = node.specs[0].value
            if value is not None:
                nodes[node.name] = as_constant(node, value)
                continue
            if node.row.fills_with is not None:
                nodes[node.name] = _as_fill(node)
        if node.row.shape_input and node.inputs and node.inputs[-1].node not in anchors:
            nodes[node.name] = _with_known_shape(node, program)
    return program.but(nodes=nodes)


def _lost_effects(before: Program, after: Program) -> set[str]:
    """Return the effects that the step had before and would not have after."""
    gone = eliminate_dead_nodes(before).nodes.keys() - eliminate_dead_nodes(after).nodes.keys()
    return {name for name in gone if has_effect(before, before.nodes[name])}


def _as_fill(node: Node) -> Node:
    """Return a Fill in place of a node that fills the shape of its input with a number."""
    (spec,) = node.specs
    if not spec.sized:
        return node
    attrs = {"value": node.row.fills_with, "dtype": spec.dtype, "shape": spec.shape}
    return node.but(type="Fill", inputs=(), attrs=attrs)


def _with_known_shape(node: Node, program: Program) -> Node:
    """Return the node with a known shape as an attribute instead of an input."""
    if not is_known(node.attrs["shape"]):
        value = program.spec(node.inputs[-1]).value
        if value is not None and is_known(node.specs[0].shape):
            attrs = {**node.attrs, "shape": node.specs[0].shape}
            return node.but(inputs=node.inputs[:-1], attrs=attrs)
    return node


def fold_constants(program: Program, evaluate: Evaluate, floats: bool = True) -> Program:
    """Replace small pure nodes whose inputs are all constants with constants."""
    anchors = _order_carriers(program)
    constants: dict[Ref, np.ndarray] = {}
    nodes: dict[str, Node] = {}
    values: dict[Ref, Ref] = {}
    for node in program.nodes.values():
        if node.row.source == "constant" and not node.control:
            constants[Ref(node.name)] = node.attrs["value"]
        ready = node.row.source != "constant" and all(ref in constants for ref in node.inputs)
        if not (ready and _may_fold(node, anchors) and _is_small(node, floats)):
            nodes[node.name] = node
            continue
        with np.errstate(all="ignore"):  # as in a run: NaN and infinity are values
            arrays = evaluate(node, [constants[ref] for ref in node.inputs])
        for i, array in enumerate(arrays):
            name = node.name if len(node.specs) == 1 else f"{node.name}/folded_{i}"
            constant = as_constant(node.but(name=name), np.asarray(array))
            nodes[name], constants[Ref(node.name, i)] = constant, constant.attrs["value"]
            if name != node.name:
                values[Ref(node.name, i)] = Ref(name)
    return substitute_values(program.but(nodes=nodes), values)


def _order_carriers(program: Program) -> set[str]:
    """Return the nodes that are control inputs or targets: they also carry order."""
    return {*program.targets, *(c for node in program.nodes.values() for c in node.control)}


def _updates(program: Program) -> set[str]:
    """Return the updates and collectives."""
    return {
        node.name
        for node in program.nodes.values()
        if any(n.row.writes or n.row.collective for n in node_with_nested(node))
    }


def _with_successors(program: Program, names: set[str]) -> set[str]:
    """Return the named nodes and all nodes that depend on one."""
    affected = set(names)
    for node in program.nodes.values():
        if not affected.isdisjoint(node.before()):
            affected.add(node.name)
    return affected


def _may_fold(node: Node, anchors: set[str]) -> bool:
    return bool(node.row.pure and node.specs and not node.control and node.name not in anchors)


def _is_small(node: Node, floats: bool) -> bool:
    limit = FOLDED_BYTES if node.inputs else MADE_BYTES
    return all(
        s.known and s.nbytes <= limit and (floats or s.dtype.kind in "iub") for s in node.specs
    )
