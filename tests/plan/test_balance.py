"""Variables on servers: nobody has much more to do than another, by bytes moved and bytes held."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.distribution.variable_placement import place_variables
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings

from .model import graph

SHARD = 4096
DENSE, TABLE, UNUSED = "dense", "table", "unused"
SIZES = st.lists(
    st.tuples(st.integers(1, 3000), st.sampled_from([DENSE, TABLE, UNUSED])), max_size=25
)


def build(sizes, optimizer=None):
    """Variables of [rows, 4] floats, trained whole or by eight rows or not; the graph.

    Losses are squares, so that gradients need the values that are read.
    """
    with graph() as made:
        ids = hf.placeholder(hf.int64, [8])
        losses, first = [], hf.Variable(1.0, name="first")
        for i, (rows, kind) in enumerate(sizes):
            v = Variable(hf.zeros([rows, 4]), name=f"v{i}", trainable=kind != UNUSED)
            if kind == DENSE:
                losses.append(hf.reduce_sum(hf.square(v.value())))
            elif kind == TABLE:
                losses.append(hf.reduce_sum(hf.square(hf.nn.embedding_lookup(v, ids))))
        if losses:
            loss = hf.add_n(losses) + hf.square(first)
            (optimizer or hf.train.GradientDescentOptimizer(0.1)).minimize(loss)
        v.value() if sizes else None  # a read that nobody uses
    return made


def units(sizes, placements, servers, slots=1):
    """By server, what each piece weighs: the definition of `variable_cost`, written once more."""
    found = [[] for _ in range(servers)]
    trained = any(kind != UNUSED for _, kind in sizes)
    for name, home in placements.items():
        if name.startswith("v"):
            rows, kind = sizes[int(name[1:])]
        else:
            rows, kind = 0.25, DENSE if trained else UNUSED
        size = rows * 16
        moved = {DENSE: 2 * size, TABLE: 2 * min(rows, 8) * (16 + 8), UNUSED: 0}[kind]
        messages = {DENSE: 2, TABLE: 4, UNUSED: 0}[kind]
        held = size * (slots if kind != UNUSED else 1)
        for piece in home.pieces:
            share = (piece.stop - piece.start) / rows if len(home.pieces) > 1 else 1
            found[piece.server].append(share * (moved + held / 16) + 8192 * messages)
    return found


@settings(max_examples=40)
@given(SIZES, st.integers(1, 7))
def test_no_server_has_more_than_another_by_more_than_the_largest_unit(sizes, servers):
    g = build(sizes)
    placements = place_variables(g, Cluster(2, servers), Settings(shard_bytes=SHARD))
    found = units(sizes, placements, servers)
    loads, largest = [sum(one) for one in found], max((u for one in found for u in one), default=0)
    assert max(loads) - min(loads) <= largest * (1 + 1e-9)


@settings(max_examples=20)
@given(SIZES, st.integers(1, 7), st.integers(0, 25))
def test_homes_are_a_function_of_graph_and_cluster_and_stay(sizes, servers, count):
    cluster, options = Cluster(2, servers), Settings(shard_bytes=SHARD)
    once, again = build(sizes), build(sizes)
    placements = place_variables(once, cluster, options)
    assert placements == place_variables(again, cluster, options)
    with once.as_default():  # also where training them otherwise comes later
        late = [Variable(hf.zeros([7 + i, 4]), name=f"late{i}") for i in range(count % 5)]
        every = [v for v in once.get_collection("variables") if v.trainable]
        losses = [hf.reduce_sum(hf.square(v.read_value())) for v in every]
        hf.train.AdamOptimizer().minimize(hf.add_n(losses))
    after = place_variables(once, cluster, options)
    assert {name: after[name] for name in placements} == placements
    assert all(v.name in after for v in late)


def test_tables_of_which_rows_move_leave_their_server_to_dense_variables():
    sizes = [(20_000, TABLE), (20_000, DENSE), (20_000, TABLE), (20_000, DENSE)]
    placements = place_variables(build(sizes), Cluster(1, 2), Settings())
    where = [placements[f"v{i}"].pieces[0].server for i in range(4)]
    assert where[1] != where[3] and where[2] != where[1]  # by bytes: 0, 1, 0, 1


def test_what_moves_whole_is_cut_over_all_servers_a_table_as_needed():
    sizes = [(500, DENSE), (500, TABLE), (500, UNUSED), (256, DENSE)]  # 8000 and 4096 bytes
    placements = place_variables(build(sizes), Cluster(1, 5), Settings(shard_bytes=SHARD))
    assert [len(placements[f"v{i}"].pieces) for i in range(4)] == [5, 2, 2, 1]


def test_small_variables_that_every_step_uses_are_spread():
    placements = place_variables(build([(1, DENSE)] * 9), Cluster(1, 5), Settings())
    by_server = np.bincount([home.pieces[0].server for home in placements.values()])
    assert by_server.tolist() == [2] * 5


def test_slots_count_with_their_variable():
    sizes = [(100, DENSE), (100, DENSE), (100, DENSE)]
    g = build(sizes, hf.train.AdamOptimizer())
    placements = place_variables(g, Cluster(1, 3), Settings())
    assert len({placements[f"v{i}"].pieces[0].server for i in range(3)}) == 3
    for i in range(3):
        assert placements[f"v{i}/Adam"] == placements[f"v{i}"]


def test_measured_bytes_count_in_place_of_predicted_ones():
    sizes = [(100, DENSE), (100, DENSE), (100, DENSE), (100, DENSE)]
    measured = (("v0", 1 << 20, 2), ("unknown", 5, 1))
    cluster = Cluster(1, 2, measured=measured)
    placements = place_variables(build(sizes), cluster, Settings())
    where = [placements[f"v{i}"].pieces[0].server for i in range(4)]
    assert where.count(where[0]) == 1


@pytest.mark.parametrize("kind", ["summary", "value"])
def test_reads_that_training_does_not_use_are_no_load(kind):
    plain = build([(200, TABLE), (100, DENSE), (100, DENSE)])
    watched = build([(200, TABLE), (100, DENSE), (100, DENSE)])
    with watched.as_default():
        for v in watched.get_collection("variables"):
            read = v.value()
            if kind == "summary":
                hf.reduce_max(read)
    cluster = Cluster(1, 2)
    assert place_variables(plain, cluster, Settings()) == place_variables(
        watched, cluster, Settings()
    )
