"""Program rewriting: helpers of the passes that walk, rename and drop nodes."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np

from hpcflow.errors import HpcflowError, VerifyError
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.program import Node, Partition, Program, Ref


def infer_specs(
    type: str, inputs: list[Spec], attrs: dict[str, Any], *, op: str, line: str
) -> tuple[Spec, ...]:
    """Return the output specs by the op registry; errors name `op` and `line`."""
    try:
        return tuple(lookup_op(type).infer(inputs, attrs))
    except HpcflowError as error:
        error.op, error.line = error.op or op, error.line or line
        raise


def new_name(name: str, used_names: set[str]) -> str:
    """Return `name`, with `_` behind it until it is new, and add it to `used_names`."""
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


def reinfer_specs(old: Program, new: Program) -> Program:
    """Return `new`, with specs inferred again where inputs differ from `old`."""
    nodes: dict[str, Node] = {}
    changed: set[str] = set()  # nodes whose specs changed
    for node in new.nodes.values():
        before = old.nodes.get(node.name, node)
        if node.specs and not node.row.control_flow:
            if node.inputs != before.inputs or changed & {ref.node for ref in node.inputs}:
                input_specs = [nodes[ref.node].specs[ref.index] for ref in node.inputs]
                specs = infer_specs(
                    node.type, input_specs, node.attrs, op=node.name, line=node.line
                )
                if [s[:2] for s in specs] != [s[:2] for s in node.specs]:
                    changed.add(node.name)
                    node = node.but(specs=specs)
        nodes[node.name] = node
    return new.but(nodes=nodes)


def as_constant(node: Node, value: np.ndarray) -> Node:
    """Return a Const in place of `node`, whose only output has the known value `value`."""
    attrs = {"value": value}
    specs = infer_specs("Const", [], attrs, op=node.name, line=node.line)
    return node.but(type="Const", inputs=(), attrs=attrs, specs=specs)


def substitute_values(
    program: Program,
    values: Mapping[Ref, Ref],
    order: Mapping[str, tuple[str, ...]] | None = None,
) -> Program:
    """Replace the values in `values`, and the control inputs in `order`.

    Chains of replacements are followed to their end. The nodes named in `order` are dropped.
    """
    order = order or {}
    nodes = {
        node.name: _with_replacements(node, values, order)
        for node in program.nodes.values()
        if node.name not in order
    }
    targets = dict.fromkeys(t for old in program.targets for t in _final_name(old, order))
    fetches = tuple(final_ref(ref, values) for ref in program.fetches)
    return program.but(nodes=nodes, fetches=fetches, targets=tuple(targets))


def unused_name(stem: str, names: Container[str]) -> str:
    """Return `stem` with the lowest number from 1 on that is not in `names`."""
    return next(name for k in count(1) if (name := f"{stem}{k}") not in names)


def replace_nodes(
    part: Partition,
    replacements: Mapping[str, Node],
    values: Mapping[Ref, Ref],
    removed: Mapping[str, str],
) -> Partition:
    """Return the partition with nodes replaced by `replacements`, without those in `removed`.

    `values` maps replaced values, and `removed` maps a dropped node to the node to follow instead.
    """
    nodes = {}
    for name, old in part.nodes.items():
        if name not in removed:
            node = replacements.get(name, old).taking(values)
            if not removed.keys().isdisjoint(node.control):
                node = node.but(
                    control=tuple(dict.fromkeys(removed.get(c, c) for c in node.control))
                )
            nodes[name] = node
    fetches = tuple(values.get(ref, ref) for ref in part.fetches)
    return dataclasses.replace(part, nodes=nodes, fetches=fetches)


def bypass_nodes(program: Program, names: Iterable[str]) -> Program:
    """Drop the named nodes, whose outputs are their inputs; consumers take the inputs.

    A consumer of a dropped node follows that node's control inputs. If the value was fetched, these
    control inputs become targets.
    """
    gone = {name: program.nodes[name] for name in names}
    follow: dict[str, tuple[str, ...]] = {}
    for node in program.nodes.values():
        extra = tuple(c for ref in node.inputs if ref.node in gone for c in gone[ref.node].control)
        if extra:
            follow[node.name] = extra
    nodes = {
        name: node.but(control=tuple(dict.fromkeys((*node.control, *follow.get(name, ())))))
        for name, node in program.nodes.items()
    }
    values = {
        Ref(name, i): node.inputs[i] for name, node in gone.items() for i in range(len(node.specs))
    }
    # nobody needs to wait for a feed
    fed = {node.name for node in program.nodes.values() if node.row.source == "feed"}
    order = {name: tuple(b for b in n.before() if b not in fed) for name, n in gone.items()}
    ends = [c for ref in program.fetches if ref.node in gone for c in gone[ref.node].control]
    targets = tuple(dict.fromkeys((*program.targets, *ends)))
    return substitute_values(program.but(nodes=nodes, targets=targets), values, order)


def final_ref(ref: Ref, values: Mapping[Ref, Ref]) -> Ref:
    """Return the end of a chain of replacements."""
    while ref in values:
        ref = values[ref]
    return ref


def _final_name(name: str, order: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    stack, visited = [name], set()
    while stack:
        current = stack.pop()
        if current not in order:
            yield current
        elif current not in visited:
            visited.add(current)
            stack.extend(reversed(order[current]))


def _with_replacements(
    node: Node, values: Mapping[Ref, Ref], order: Mapping[str, tuple[str, ...]]
) -> Node:
    if values.keys().isdisjoint(node.inputs) and order.keys().isdisjoint(node.control):
        return node
    inputs = tuple(final_ref(ref, values) for ref in node.inputs)
    follows = dict.fromkeys(c for old in node.control for c in _final_name(old, order))
    for ref in inputs:
        follows.pop(ref.node, None)
    return node.but(inputs=inputs, control=tuple(follows))


def eliminate_dead_nodes(program: Program) -> Program:
    """Remove dead nodes: keep the feeds and what fetches and targets need."""
    needed = dependencies(program, [*(ref.node for ref in program.fetches), *program.targets])
    needed.update(program.feeds)
    if len(needed) == len(program.nodes):
        return program
    return program.but(nodes={k: n for k, n in program.nodes.items() if k in needed})


def dependencies(program: Program, names: Iterable[str]) -> set[str]:
    """Return the named nodes and all nodes that they depend on."""
    needed: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(program.nodes[name].before())
    return needed


def topological_order(
    nodes: Mapping[str, Node],
    priority: Callable[[str], Any],
    extra: Iterable[tuple[str, str]] = (),
) -> list[str]:
    """Return the names in topological order, of the ready ones the lowest `priority` first.

    `extra` are further (before, after) pairs.
    Errors: VerifyError if nodes depend on each other in a cycle.
    """
    order, waiting = _as_ready(nodes, priority, extra)
    if waiting:
        node = nodes[waiting[0]]
        raise VerifyError(
            "acyclic", f"{node.name!r} waits for itself", op=node.name, line=node.line
        )
    return order


def cyclic_nodes(nodes: Mapping[str, Node], extra: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Return the nodes on a cycle and their successors; `extra` as in `topological_order`."""
    return _as_ready(nodes, lambda _: 0, extra)[1]


def _as_ready(
    nodes: Mapping[str, Node],
    priority: Callable[[str], Any],
    extra: Iterable[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Return the names in the order in which they become ready, and those that never do."""
    waiting: dict[str, int] = {}
    followers: dict[str, list[str]] = {name: [] for name in nodes}
    pairs = [(before, node.name) for node in nodes.values() for before in set(node.before())]
    for before, after in [*pairs, *extra]:
        followers[before].append(after)
        waiting[after] = waiting.get(after, 0) + 1
    ready = [(priority(name), name) for name in nodes if name not in waiting]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for after in followers[name]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (priority(after), after))
    return order, [name for name in nodes if waiting.get(name)]


def sorted_program(program: Program) -> Program:
    """Return the nodes in topological order, stable with respect to their old order."""
    visited: set[str] = set()
    for name, node in program.nodes.items():
        if not visited.issuperset(node.before()):
            break
        visited.add(name)
    else:
        return program
    position = {name: i for i, name in enumerate(program.nodes)}
    order = topological_order(program.nodes, position.__getitem__)
    return program.but(nodes={name: program.nodes[name] for name in order})
