"""Which nodes exchange to measure uplinks, what ports allow, and which nodes look like racks."""

from __future__ import annotations

import collections
import itertools

import pytest

from hpcflow.doctor.network_benchmark import pairing_rounds, pairing_rounds_in_racks
from hpcflow.doctor.rack_flows import (
    MOST_GROUPS,
    Flow,
    flows_between,
    flows_inside,
    likely_racks,
    port_rates,
    rack_groups,
)


def pair_rates(racks: list[int], ports: list[float], uplink: float) -> dict[tuple[int, int], float]:
    """Rates of all pairs in rounds in which those between racks share both uplinks equally."""
    rates = {}
    for pairs in pairing_rounds(len(racks), len(racks)):
        users = collections.Counter(
            racks[n] for p in pairs if racks[p[0]] != racks[p[1]] for n in p
        )
        for a, b in pairs:
            rate = min(ports[a], ports[b])
            if racks[a] != racks[b]:
                rate = min(rate, *(uplink / users[racks[n]] for n in (a, b)))
            rates[a, b] = rate
    return rates


def test_each_node_of_the_rack_sends_to_nodes_of_other_racks_and_these_share_evenly():
    racks = [0] * 4 + [1] * 4 + [2] * 4
    flows = flows_between(racks, [1])
    assert {flow.source for flow in flows} == {4, 5, 6, 7} and {flow.rack for flow in flows} == {1}
    received = collections.Counter(flow.dest for flow in flows)
    assert set(received) == {0, 1, 2, 3, 8, 9, 10, 11} and set(received.values()) == {1}
    for node in (4, 5, 6, 7):  # a slow rack does not hold a sender up
        assert {racks[flow.dest] for flow in flows if flow.source == node} == {0, 2}


def test_racks_are_measured_in_turn_and_in_a_bounded_number_of_turns():
    assert list(rack_groups([0, 0, 1, 1, 2])) == [(0,), (1,)]  # a rack with one node has no turn
    assert list(rack_groups([0] * 8)) == []
    many = [rack for rack in range(100) for _ in range(3)]
    groups = list(rack_groups(many))
    assert len(groups) == MOST_GROUPS and sorted(itertools.chain(*groups)) == list(range(100))
    flows = flows_between(many, groups[0])
    assert not {many[flow.dest] for flow in flows} & set(groups[0])
    assert collections.Counter(flow.rack for flow in flows) == dict.fromkeys(groups[0], 6)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(0, 2), (1, 3)], 20.0),
        ([(0, 2), (1, 2)], 10.0),  # both into one port
        ([(0, 2), (0, 4)], 10.0),  # a slow receiver leaves the port to the other flow
        ([(0, 4), (1, 4), (1, 3)], 1.0 + 1.0 + 9.0),
    ],
)
def test_what_ports_allow(ends, expected):
    """Node 4 has a port of 2, the others of 10; by hand."""
    flows = [Flow(a, b, 7) for a, b in ends]
    assert port_rates(flows, [10.0, 10.0, 10.0, 10.0, 2.0]) == {7: pytest.approx(expected)}


def test_racks_show_in_the_rates_of_pairs_also_out_of_order_and_with_a_slow_port():
    racks, ports = [0, 1, 0, 1, 0, 1, 0, 1], [10.0] * 8
    assert likely_racks(pair_rates(racks, ports, 10.0), ports) == racks
    ports[2] = 2.0
    assert likely_racks(pair_rates(racks, ports, 10.0), ports) == racks


def test_without_narrow_uplinks_or_with_too_few_nodes_there_are_no_racks():
    for ports in ([10.0] * 8, [10.0, 2.0] * 4):
        assert likely_racks(pair_rates([0] * 8, ports, 1.0), ports) is None
    assert likely_racks(pair_rates([0, 0, 1], [10.0] * 3, 2.0), [10.0] * 3) is None
    lonely = [0] * 7 + [1]  # it may as well have a slow port in one direction
    assert likely_racks(pair_rates(lonely, [10.0] * 8, 2.0), [10.0] * 8) is None


def test_flows_inside_stay_inside_and_use_each_port_once():
    racks = [0, 0, 0, 1, 1, 1, 1, 2]
    flows = flows_inside(racks)
    assert all(racks[flow.source] == racks[flow.dest] for flow in flows)
    ends = [end for flow in flows for end in flow[:2]]
    assert len(set(ends)) == len(ends) == 6


def test_rounds_inside_racks_have_disjoint_pairs_for_each_node():
    names = [f"s{node % 3}" for node in range(10)]
    met = collections.Counter[int]()
    for pairs in pairing_rounds_in_racks(names, 3):
        ends = [end for pair in pairs for end in pair]
        assert len(set(ends)) == len(ends) and all(names[a] == names[b] for a, b in pairs)
        met.update(ends)
    assert set(met) == set(range(10)) and min(met.values()) >= 2
