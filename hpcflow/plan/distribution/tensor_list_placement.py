"""Tensor list placement: all nodes that use one list of tensors are on one device.

TensorArrays, and the values that loops and branches save for their gradients, are Python objects
and cannot be sent. They pass through loops and branches as loop variables, and the gradient of a
list is another list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcflow.graph.device_names import parse
from hpcflow.graph.dtypes import history, tensor_array
from hpcflow.plan.ir.control_flow_nodes import inner
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.union_find import Sets

Path = tuple[str, ...]  # path to a program: a frame and the key of its program, for each level


class Value(NamedTuple):
    """A value of the program at `path`."""

    path: Path
    ref: Ref


def together(program: Program, why: dict[str, str], default: str) -> Program:
    """Place all users of a list on one device: that of the first user with a constraint.

    `why` maps nodes to the reasons for their devices; `default` is the reason without a constraint.
    Loops and branches get an attribute `homes`: output index -> task, for outputs that are lists.
    """
    lists: Sets[Value] = Sets()
    users: list[tuple[Value, Node]] = []
    for path, within, node in _walk(program, ()):
        for values in _one(path, within, node):
            for value in values:
                lists.add(value)
                lists.join(value, values[0])
            if not (node.row.control_flow or node.row.source == "feed"):
                users.append((values[0], node))
    first: dict[Value, Node] = {}
    for asked in (True, False):
        for value, node in users:
            if not asked or why[node.name] != default:
                first.setdefault(lists.find(value), node)
    homes = {
        value: first[root] for value in lists.members() if (root := lists.find(value)) in first
    }
    for value, node in users:
        if node.device != homes[value].device:
            why[node.name] = f"with {homes[value].name}: a list of tensors stays on one device"
    return _moved(program, (), homes) if homes else program


def _walk(program: Program, path: Path) -> Iterator[tuple[Path, Program, Node]]:
    """Yield (path, program, node) for all nodes in order; nodes of a frame follow the frame."""
    for node in program.nodes.values():
        yield path, program, node
        for key, inside in inner(node):
            assert isinstance(inside, Program)
            yield from _walk(inside, (*path, node.name, key))


def _one(path: Path, program: Program, node: Node) -> Iterator[Sequence[Value]]:
    """Yield groups of lists at a node; the lists of a group must be on one device."""
    if not node.row.control_flow:
        values = [Value(path, ref) for ref in (*node.inputs, *_outputs(node))]
        found = [v for v in values if _is_list(program, v.ref)]
        yield from [found] if found else []
        return
    is_loop, empty = node.row.control_flow == "loop", node.attrs.get("empty", 0)
    variables = len(node.specs) if is_loop else 0
    slots: dict[int, list[Value]] = {}
    for i, ref in enumerate(node.inputs[0 if is_loop else 1 :]):
        slots.setdefault(i if i < variables - empty else i + empty, []).append(Value(path, ref))
    outputs = [[Value(path, ref)] for ref in _outputs(node)]
    for key, inside in inner(node):
        below = (*path, node.name, key)
        for feed, slot in zip(inside.feeds, node.attrs[f"{key}_feeds"], strict=True):
            slots.setdefault(slot, []).append(Value(below, Ref(feed)))
        if key != "cond":
            for same, ref in zip(outputs, inside.fetches, strict=True):
                same.append(Value(below, ref))
    for i, same in enumerate(outputs):
        if _is_list(program, Ref(node.name, i)):
            yield [*same, *(slots.pop(i, ()) if is_loop else ())]
    for same in slots.values():
        if same[0].path == path and _is_list(program, same[0].ref):
            yield same


def _outputs(node: Node) -> Iterator[Ref]:
    return (Ref(node.name, i) for i in range(len(node.specs)))


def _is_list(program: Program, ref: Ref) -> bool:
    return program.spec(ref).dtype in (history, tensor_array)


def _moved(program: Program, path: Path, homes: Mapping[Value, Node]) -> Program:
    nodes = {}
    for name, node in program.nodes.items():
        made = [homes.get(Value(path, ref)) for ref in _outputs(node)]
        if node.row.control_flow:
            within = {k: _moved(p, (*path, name, k), homes) for k, p in inner(node)}  # type: ignore[arg-type]
            told = {i: parse(home.device).host for i, home in enumerate(made) if home is not None}
            node = node.but(attrs={**node.attrs, **within, "homes": told})
        elif node.row.source != "feed":
            taken = [homes.get(Value(path, ref)) for ref in node.inputs]
            home = next((h for h in (*made, *taken) if h is not None), None)
            node = node if home is None else node.but(device=home.device)
        nodes[name] = node
    return program.but(nodes=nodes)
