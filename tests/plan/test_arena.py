"""Blocks in an arena: what is in use at one time never overlaps, and little room is lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.lowering.arena_allocation import ALIGNED, Lifetime, place_blocks
from hpcflow.lowering.instructions import BindingKind
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.lowering.segments_between_waits import AFTER_SEGMENT
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.plan.ir.program import Cluster, Partition, Ref
from hpcflow.runtime.device.device import Device

from .model import REPLICAS, SERVERS, Net, graph, plan_of
from .test_random_graphs import CLUSTER, RandomGraph

SCRATCH = 99  # in place of the index of an output
ALONE = np.array([[-1]])
CPU = Device()


def life(nbytes, start, end):
    return Lifetime(nbytes, 0, start, None if end is None else {0: end})


def test_one_behind_the_other_share_their_place():
    starts, size = place_blocks([life(640, 0, 1), life(640, 2, 3), life(64, 1, 2)], ALONE)
    assert starts[0] == starts[1] and size == 704


def test_what_ends_where_another_begins_does_not():
    starts, size = place_blocks([life(64, 0, 1), life(64, 1, 2)], ALONE)
    assert starts[0] != starts[1] and size == 128


def test_nothing_needs_nothing():
    assert place_blocks([], ALONE) == ([], 0)


def test_the_step_holds_what_is_held():
    starts, _ = place_blocks([life(64, 0, None), life(64, 5, 6), life(64, 7, 8)], ALONE)
    assert starts[0] not in starts[1:] and starts[1] == starts[2]


def test_segments_share_only_where_one_comes_first():
    one, other = Lifetime(64, 0, 3, {0: 5}), Lifetime(64, 1, 4, {1: 6})
    for known, shares in ((-1, False), (4, False), (5, True), (AFTER_SEGMENT, True)):
        starts, _ = place_blocks([one, other], np.array([[-1, -1], [known, -1]]))
        assert (starts[0] == starts[1]) == shares
    held = Lifetime(64, 0, 3, None)
    starts, _ = place_blocks([held, other], np.array([[-1, -1], [AFTER_SEGMENT, -1]]))
    assert starts[0] != starts[1]


@st.composite
def many(draw):
    """Lives in segments; segment j knows of some places of those before it."""
    segments = draw(st.integers(1, 4))
    over = np.full((segments, segments), -1)
    for i, j in itertools.combinations(range(segments), 2):
        over[j, i] = draw(st.sampled_from([-1, 5, 20, AFTER_SEGMENT]))
    place = st.integers(0, 40)
    lives = []
    for _ in range(draw(st.integers(1, 25))):
        start, home = draw(place), draw(st.integers(0, segments - 1))
        ends = {home: start + draw(st.integers(0, 10))}
        for other in range(home + 1, segments):
            if draw(st.booleans()):
                ends[other] = draw(place)
        ends = draw(st.sampled_from([ends, ends, ends, None]))
        lives.append(Lifetime(draw(st.integers(0, 1000)), home, start, ends))
    return lives, over


def comes_before(one, other, over):
    """Whether all uses of one are over when the other begins."""
    if one.ends is None:
        return False
    return all(
        last < other.start if segment == other.segment else last <= over[other.segment, segment]
        for segment, last in one.ends.items()
    )


@pytest.mark.slow
@settings(max_examples=200)
@given(many())
def test_none_in_use_overlap(drawn):
    lives, over = drawn
    starts, size = place_blocks(lives, over)
    for (a, i), (b, j) in itertools.combinations(zip(lives, starts, strict=True), 2):
        apart = i + a.nbytes <= j or j + b.nbytes <= i
        assert apart or comes_before(a, b, over) or comes_before(b, a, over)
    assert all(start % ALIGNED == 0 for start in starts)
    assert all(0 <= i and i + a.nbytes <= size for a, i in zip(lives, starts, strict=True))


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 50), st.integers(0, 10))))
def test_little_room_is_lost(drawn):
    lives = [life(n, start, start + length) for n, start, length in drawn]
    _, size = place_blocks(lives, ALONE)
    each = [-(-a.nbytes // ALIGNED) * ALIGNED for a in lives]
    needed = max(
        (
            sum(n for a, n in zip(lives, each, strict=True) if a.start <= t <= a.ends[0])
            for t in range(61)
        ),
        default=0,
    )
    assert needed <= size <= 2 * needed


# -- of whole parts: order is found anew, from edges alone


def told(part: Partition):
    """The forms of the kernels of a part."""
    return lambda node: CPU.info(node, input_specs(node, part))


def followers(part: Partition, code) -> dict[str, set[str]]:
    """All nodes that surely come behind each: by edges, and by the order in a segment."""
    after = {name: set() for name in part.nodes}
    pairs = [(b, node.name) for node in part.nodes.values() for b in node.before()]
    for segment in code.segments:
        pairs += itertools.pairwise(segment.nodes)
        before = [name for i in segment.after for name in code.segments[i].nodes]
        if segment.nodes:  # it begins when those are over
            pairs += [(name, segment.nodes[0]) for name in (*before, *segment.waits)]
    for one, other in pairs:
        after[one].add(other)
    found: dict[str, set[str]] = {}

    def reach(name):
        if name not in found:
            found[name] = set()
            for other in after[name]:
                found[name] |= {other, *reach(other)}
        return found[name]

    for name in part.nodes:
        reach(name)
    return found


def takers(part: Partition, ref: Ref) -> list[str]:
    """The nodes that use the memory of a value, also as a view of it."""
    found = [ref.node]
    for node in part.nodes.values():
        if ref in node.inputs:
            found.append(node.name)
            is_view = node.inputs[0] == ref and node.type in ("FromParcel", "Identity", "Reshape")
            found += takers(part, Ref(node.name)) if is_view else []
    return found


def check(part: Partition) -> int:
    """No two values that may be in use at one time overlap; how many share memory."""
    code = generate_code(part, told(part))
    behind = followers(part, code)
    number = {f"b{i}": Ref(name) for i, name in enumerate(part.nodes)}
    blocks = code.blocks
    values = []
    for name, what in code.binds.items():
        if what.kind == BindingKind.WORKSPACE:
            buffers = [(Ref(what.node, SCRATCH), buffer) for buffer in what.buffers]
        else:
            own = what.kind == BindingKind.BUFFER and name in number
            buffers = [(number[name], what.buffers[0])] if own else []
        for ref, (device, block, dtype, shape, start) in buffers:
            first = blocks[block].start + start
            nbytes = dtype.itemsize * int(np.prod(shape))
            values.append((device, ref, first, first + nbytes))
            assert first + nbytes <= code.arenas[device]
    shared = 0
    for (here, a, i, k), (there, b, j, m) in itertools.combinations(values, 2):
        if here != there or k <= j or m <= i:
            continue
        shared += 1
        assert ends_first(part, behind, a, b) or ends_first(part, behind, b, a), (a, b)
    return shared


def ends_first(part: Partition, behind, a: Ref, b: Ref) -> bool:
    """Whether nothing uses `a` any more once `b` is made, or b is made in its place."""
    held = [n for n in takers(part, a) if part.nodes[n].type == "Send"]
    in_place = (
        b.index != SCRATCH
        and a in part.nodes[b.node].inputs
        and told(part)(part.nodes[b.node]).inplace
    )
    uses = [n for n in takers(part, a) if not (in_place and n == b.node)]
    return not held and a not in part.fetches and all(b.node in behind[n] for n in uses)


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_random_graphs(seed):
    made = RandomGraph(seed, 60)
    plan = plan_of(made.graph, made.fetches, {made.x: (64, 3)}, CLUSTER)
    for part in plan.parts.values():
        check(part)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.integers(1, 100))
def test_any_part(seed, count):
    made = RandomGraph(seed, count, scatter=False)
    plan = plan_of(made.graph, made.fetches, {made.x: (64, 3)}, Cluster(2, 2))
    for part in plan.parts.values():
        check(part)


@pytest.mark.parametrize("cluster", [REPLICAS, SERVERS])
def test_parts_that_sum_or_send(cluster):
    for part in Net(rows=64, width=128).step(cluster).parts.values():
        check(part)


def test_scratch_memory_is_nobodys_then():
    with graph() as made:
        x = hf.placeholder(hf.float32, [50, 20])
        y = x
        for _ in range(4):
            y = hf.nn.relu(hf.matmul(hf.nn.softmax(y), np.ones((20, 20), "f4")))
        loss = hf.reduce_mean(hf.nn.softplus(y))
        (slope,) = hf.gradients(loss, x)
    (part,) = plan_of(made, [loss, slope], {x: (50, 20)}).parts.values()
    binds = generate_code(part, told(part)).binds.values()
    rooms = [b for b in binds if b.kind == BindingKind.WORKSPACE]
    assert len(rooms) >= 13 and check(part) > 20


def test_memory_is_used_again():
    with graph() as made:
        x = hf.placeholder(hf.float32, [100, 100])
        y = x
        for _ in range(20):
            y = hf.matmul(y, x)
    (part,) = plan_of(made, [y], {x: (100, 100)}).parts.values()
    assert check(part) == 81  # the last is the caller's own, the others lie in two places
    assert generate_code(part, told(part)).arenas == {"/job:worker/task:0/cpu:0": 2 * 40_000}
