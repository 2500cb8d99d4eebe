"""Tensor list placement: all nodes that use one list of tensors are on one device.

TensorArrays, and the values that loops and branches save for their gradients, are Python objects
and cannot be sent. They pass through loops and branches as loop variables, and the gradient of a
list is another list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import LISTS
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.platform.union_find import DisjointSets

Path = tuple[str, ...]  # path to a program: a frame and the key of its program, for each level


class ProgramValue(NamedTuple):
    """A value of the program at `path`."""

    path: Path
    ref: Ref


def place_tensor_lists(program: Program, reasons: dict[str, str], default: str) -> Program:
    """Place all users of a list on one device: that of the first user with a constraint.

    `reasons` maps nodes to the reasons for their devices; `default` is the reason without one.
    Loops and branches get an attribute `homes`: output index -> task, for outputs that are lists.
    """
    lists: DisjointSets[ProgramValue] = DisjointSets()
    users: list[tuple[ProgramValue, Node]] = []
    for path, within, node in _walk_nodes(program, ()):
        for values in _list_groups(path, within, node):
            for value in values:
                lists.add(value)
                lists.join(value, values[0])
            if not (node.row.control_flow or node.row.source == "feed"):
                users.append((values[0], node))
    first: dict[ProgramValue, Node] = {}
    for constrained in (True, False):
        for value, node in users:
            if not constrained or reasons[node.name] != default:
                first.setdefault(lists.find(value), node)
    placements = {
        value: first[root] for value in lists.members() if (root := lists.find(value)) in first
    }
    for value, node in users:
        if node.device != placements[value].device:
            reasons[node.name] = (
                f"with {placements[value].name}: a list of tensors stays on one device"
            )
    return _place_program(program, (), placements) if placements else program


def _walk_nodes(program: Program, path: Path) -> Iterator[tuple[Path, Program, Node]]:
    """Yield (path, program, node) for all nodes in order; nodes of a frame follow the frame."""
    for node in program.nodes.values():
        yield path, program, node
        for key, inside in nested_programs(node):
            assert isinstance(inside, Program)
            yield from _walk_nodes(inside, (*path, node.name, key))


def _list_groups(path: Path, program: Program, node: Node) -> Iterator[Sequence[ProgramValue]]:
    """Yield groups of lists at a node; the lists of a group must be on one device."""
    if not node.row.control_flow:
        values = [ProgramValue(path, ref) for ref in (*node.inputs, *_outputs(node))]
        lists = [v for v in values if _is_list(program, v.ref)]
        yield from [lists] if lists else []
        return
    is_loop, empty = node.row.control_flow == "loop", node.attrs.get("empty", 0)
    variables = len(node.specs) if is_loop else 0
    slots: dict[int, list[ProgramValue]] = {}
    for i, ref in enumerate(node.inputs[0 if is_loop else 1 :]):
        slots.setdefault(i if i < variables - empty else i + empty, []).append(
            ProgramValue(path, ref)
        )
    outputs = [[ProgramValue(path, ref)] for ref in _outputs(node)]
    for key, inside in nested_programs(node):
        below = (*path, node.name, key)
        for feed, slot in zip(inside.feeds, node.attrs[f"{key}_feeds"], strict=True):
            slots.setdefault(slot, []).append(ProgramValue(below, Ref(feed)))
        if key != "cond":
            for same, ref in zip(outputs, inside.fetches, strict=True):
                same.append(ProgramValue(below, ref))
    for i, same in enumerate(outputs):
        if _is_list(program, Ref(node.name, i)):
            yield [*same, *(slots.pop(i, ()) if is_loop else ())]
    for same in slots.values():
        if same[0].path == path and _is_list(program, same[0].ref):
            yield same


def _outputs(node: Node) -> Iterator[Ref]:
    return (Ref(node.name, i) for i in range(len(node.specs)))


def _is_list(program: Program, ref: Ref) -> bool:
    return program.spec(ref).dtype in LISTS


def _place_program(
    program: Program, path: Path, placements: Mapping[ProgramValue, Node]
) -> Program:
    nodes = {}
    for name, node in program.nodes.items():
        outs = [placements.get(ProgramValue(path, ref)) for ref in _outputs(node)]
        if node.row.control_flow:
            within = {
                k: _place_program(p, (*path, name, k), placements)  # type: ignore[arg-type]
                for k, p in nested_programs(node)
            }
            homes = {
                i: parse_device(home.device).host for i, home in enumerate(outs) if home is not None
            }
            node = node.but(attrs={**node.attrs, **within, "homes": homes})
        elif node.row.source != "feed":
            ins = [placements.get(ProgramValue(path, ref)) for ref in node.inputs]
            home = next((h for h in (*outs, *ins) if h is not None), None)
            node = node if home is None else node.but(device=home.device)
        nodes[name] = node
    return program.but(nodes=nodes)
