"""Segments: cuts a task's partition into straight-line code between waits.

A segment runs when the waits it depends on have finished. In the code a segment is a `Segment`.
"""

from __future__ import annotations

import dataclasses
import graphlib

import numpy as np

from hpcflow.plan.ir.program import Node, Partition, Ref

AFTER_SEGMENT = 2**61  # a position after the end of a segment


@dataclasses.dataclass(frozen=True)
class Segment:
    """A segment: nodes that no wait separates, in the global order.

    It may run once the wait nodes `waits` have finished and the segments `after` have run. Segment
    0 waits for nothing. `fetches` are the positions of the fetched values that the segment returns.
    """

    nodes: tuple[str, ...]
    waits: tuple[str, ...]
    after: tuple[int, ...]
    fetches: tuple[int, ...] = ()


def split_segments(part: Partition) -> list[Segment]:
    """The segments of a partition.

    Two nodes share a segment exactly if they depend, directly or indirectly, on the same waits. So
    no node is delayed by a wait that it does not need (the first invariant of DESIGN: order and
    deadlock).
    """
    masks = _waits_of(part)
    members: dict[int, list[str]] = {0: []}
    for name, node in part.nodes.items():
        if node.row.message != "receive":  # it is posted when the step starts, not by a segment
            members.setdefault(masks[name], []).append(name)
    handed: dict[int, list[int]] = {}
    for i, ref in enumerate(part.fetches):
        mask = _waits_behind(part.nodes[ref.node], masks)
        handed.setdefault(mask, []).append(i)
        members.setdefault(mask, [])
    number = {mask: i for i, mask in enumerate(members)}
    return [
        _make_segment(part, masks, number, mask, names, handed.get(mask, []))
        for mask, names in members.items()
    ]


def _waits_of(part: Partition) -> dict[str, int]:
    """For each node, the set of waits that must finish before it can start, as a bit mask."""
    masks: dict[str, int] = {}
    bit: dict[str, int] = {}
    for name, node in part.nodes.items():
        if node.row.waits:
            bit[name] = 1 << len(bit)
    for name, node in part.nodes.items():
        mask = 0
        for before in node.before():
            mask |= masks[before] | bit.get(before, 0)
        masks[name] = mask
    masks.update({f"{name} is over": masks[name] | b for name, b in bit.items()})
    return masks


def _waits_behind(node: Node, masks: dict[str, int]) -> int:
    """The waits that the values of `node` depend on, including the node itself if it is a wait."""
    return masks[f"{node.name} is over"] if node.row.waits else masks[node.name]


def _make_segment(
    part: Partition,
    masks: dict[str, int],
    number: dict[int, int],
    mask: int,
    names: list[str],
    fetches: list[int],
) -> Segment:
    waits: dict[str, None] = {}
    after: dict[int, None] = {}
    sources = [b for name in names for b in part.nodes[name].before()]
    sources += [part.fetches[i].node for i in fetches]
    for before in sources:
        node = part.nodes[before]
        if node.row.waits:
            waits[before] = None
        elif masks[before] != mask:
            after[number[masks[before]]] = None
    return Segment(tuple(names), tuple(waits), tuple(after), tuple(fetches))


def segment_by_node(segments: list[Segment]) -> dict[str, int]:
    """The number of the segment in which each node runs (or starts, if it is a wait)."""
    return {name: i for i, s in enumerate(segments) for name in s.nodes}


def finished_before(part: Partition, segments: list[Segment]) -> np.ndarray:
    """[i, j]: the number of the last node of segment j that has finished when segment i begins.

    ALL if the whole segment has finished, -1 if possibly no node has. A wait that has finished was
    started in its segment, except a receive, which is posted before the step.
    """
    number = {name: i for i, name in enumerate(part.nodes)}
    segment_of = segment_by_node(segments)
    begun = [[w for w in s.waits if part.nodes[w].row.message != "receive"] for s in segments]
    before = {i: {*s.after, *(segment_of[w] for w in begun[i])} for i, s in enumerate(segments)}
    finished = np.full((len(segments), len(segments)), -1, np.int64)
    for i in graphlib.TopologicalSorter(before).static_order():
        for j in before[i]:
            np.maximum(finished[i], finished[j], out=finished[i])
        for wait in begun[i]:
            j = segment_of[wait]
            finished[i, j] = max(finished[i, j], number[wait])
        finished[i, list(segments[i].after)] = AFTER_SEGMENT
    return finished


def value_consumers(part: Partition) -> dict[Ref, list[str]]:
    """The nodes that consume each value, in the global order."""
    consumers: dict[Ref, list[str]] = {}
    for node in part.nodes.values():
        for ref in node.inputs:
            consumers.setdefault(ref, []).append(node.name)
    return consumers
