"""The time of a step over devices: by hand, against all orders, and the search over placements."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest

from hpcflow.placement.chain_partition import chain_partition
from hpcflow.placement.device_links import Links
from hpcflow.placement.heft import heft_placement
from hpcflow.placement.placement_search import score, search
from hpcflow.placement.segment_schedule import step_time
from hpcflow.placement.start_placements import default_placement
from hpcflow.placement.step_problem import Device, MemoryReservation, StepProblem, Value
from tests.placement.list_schedules import list_makespan


def problem(seconds, edges, devices=2, fixed=None, held=None, groups=None, **more):
    """Operations of these seconds; `edges` are (producer, bytes, users)."""
    group = tuple(groups or range(len(seconds)))
    count = max(group) + 1
    settings = {"latency": 1.0, "bandwidth": 10.0, "candidate_count": devices, **more}
    devices = settings.pop("over", (Device(),) * devices)
    links = Links.equal(len(devices), settings.pop("latency"), settings.pop("bandwidth"))
    settings.setdefault("links", links)
    return StepProblem(
        tuple(map(float, seconds)),
        tuple(Value(producer, size, tuple(users)) for producer, size, users in edges),
        devices,
        group,
        tuple(fixed or [None] * count),
        tuple(held or [0.0] * count),
        **settings,
    )


def time_of(made, placement):
    return list_makespan(made, placement)


# -- schedules by hand


def test_a_chain_on_one_device_is_the_sum():
    made = problem([2, 3, 4], [(0, 10, [1]), (1, 10, [2])])
    assert time_of(made, [0, 0, 0]) == 9.0


def test_a_message_takes_its_latency_and_its_bytes_over_the_bandwidth():
    made = problem([2, 3], [(0, 20, [1])])
    assert time_of(made, [0, 1]) == 2 + (1 + 20 / 10) + 3


def test_users_on_one_device_share_the_message():
    made = problem([1, 5, 5], [(0, 10, [1, 2])])
    assert time_of(made, [0, 1, 1]) == 1 + 2 + 5 + 5


def test_the_sender_sends_one_message_after_the_other():
    made = problem([1, 5, 5], [(0, 10, [1, 2])], devices=3)
    assert time_of(made, [0, 1, 2]) == 1 + 2 + 2 + 5


def test_the_receiver_receives_one_message_after_the_other():
    made = problem([1, 1, 5], [(0, 10, [2]), (1, 10, [2])], devices=3)
    assert time_of(made, [0, 1, 2]) == 1 + 2 + 2 + 5


def test_messages_between_two_pairs_of_devices_overlap():
    made = problem([1, 1, 5, 5], [(0, 10, [2]), (1, 10, [3])], devices=4)
    assert time_of(made, [0, 1, 2, 3]) == 1 + 2 + 5


def test_a_device_computes_while_it_sends():
    made = problem([1, 4, 1], [(0, 10, [1, 2])])
    assert time_of(made, [0, 0, 1]) == 1 + 4


def test_devices_differ_in_speed_start_and_end():
    over = (Device(), Device(slowdown=3.0, start=10.0, end=7.0))
    made = problem([2, 4], [], over=over)
    assert time_of(made, [0, 0]) == 6.0
    assert time_of(made, [0, 1]) == 10 + 3 * 4 + 7


def test_the_operation_with_the_longest_way_to_the_end_goes_first():
    made = problem([1, 1, 9], [(1, 0, [2])], latency=0.0)  # 0 is first in the program, 1 in rank
    assert made.order == [1, 2, 0]
    assert time_of(made, [0, 0, 1]) == 1 + 9


# -- against all orders


def random_problem(rng, count, devices, **more):
    edges = []
    for producer in range(count - 1):
        later = range(producer + 1, count)
        users = sorted(rng.sample(later, rng.randint(0, min(2, len(later)))))
        if users:
            edges.append((producer, rng.choice([0, 5, 40]), users))
    seconds = [rng.choice([0, 1, 2, 5]) for _ in range(count)]
    return problem(seconds, edges, devices, **more)


def topological_orders(made):
    before = {
        op: {made.values[i].producer for i in made.inputs[op]} for op in range(len(made.seconds))
    }
    for order in itertools.permutations(before):
        place = {op: k for k, op in enumerate(order)}
        if all(place[b] < place[op] for op, needed in before.items() for b in needed):
            yield order


def simulated(made, placement, order):
    """Seconds of a step whose operations take devices and ports in this order."""
    busy, out, into = ([0.0] * len(made.devices) for _ in range(3))
    end, arrived = {}, {}
    for op in order:
        here, ready = placement[op], busy[placement[op]]
        for i, value in enumerate(made.values):
            if op in value.users:
                there, time = placement[value.producer], end[value.producer]
                if there != here:
                    if (i, here) not in arrived:
                        begin = max(time, out[there], into[here])
                        took = made.message_seconds[i]
                        arrived[i, here] = out[there] = into[here] = begin + took
                    time = arrived[i, here]
                ready = max(ready, time)
        busy[here] = end[op] = ready + made.seconds[op]
    return max(end.values())


@pytest.mark.parametrize("seed", range(25))
def test_the_schedule_is_that_of_its_order_and_near_the_best_order(seed):
    rng = random.Random(seed)
    made = random_problem(rng, 6, 3)
    placement = [rng.randrange(3) for _ in range(6)]
    found = time_of(made, placement)
    assert tuple(made.order) in set(topological_orders(made))
    assert found == pytest.approx(simulated(made, placement, made.order))
    best = min(simulated(made, placement, order) for order in topological_orders(made))
    longest = sum(made.seconds) + sum(made.message_seconds) * 3
    assert best - 1e-9 <= found <= min(longest, 2 * best + 1e-9)


def test_most_schedules_are_optimal():
    rng = random.Random(0)
    ratios = []
    for _ in range(40):
        made = random_problem(rng, 6, 2)
        placement = [rng.randrange(2) for _ in range(6)]
        best = min(simulated(made, placement, order) for order in topological_orders(made))
        if best:
            ratios.append(time_of(made, placement) / best)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) > len(ratios) / 2
    assert np.mean(ratios) < 1.1


# -- memory


@pytest.mark.parametrize("seed", range(10))
def test_peaks_are_those_of_a_walk_over_the_order(seed):
    rng = random.Random(seed)
    held = [float(rng.randint(0, 9)) for _ in range(8)]
    made = random_problem(rng, 8, 3, held=held)
    placement = [rng.randrange(3) for _ in range(8)]
    peaks = [0.0] * 3
    for step in range(8):
        now = [sum(held[g] for g in range(8) if placement[g] == d) for d in range(3)]
        done = set(made.order[: step + 1])
        for value in made.values:
            for d in range(3):
                users = {u for u in value.users if placement[u] == d}
                mine = placement[value.producer] == d
                waits = users - done or (users | {value.producer}) & {made.order[step]}
                if (mine and value.producer in done and waits) or (users and not mine):
                    now[d] += value.nbytes
        peaks = [max(pair) for pair in zip(peaks, now, strict=True)]
    np.testing.assert_allclose(made.peaks(placement), peaks)


def test_a_value_that_its_user_takes_over_counts_only_where_it_is_received():
    made = problem([1, 1], [(0, 40, [1])])
    lent = dataclasses.replace(
        made, values=(dataclasses.replace(made.values[0], has_buffer=False),)
    )
    assert list(made.peaks([0, 1])) == [40, 40] and list(lent.peaks([0, 1])) == [0, 40]


# -- the search


def found(made, layers=None, units=None, seed=0):
    layers = layers or [[g] for g in range(len(made.fixed))]
    return search(made, layers, units or layers, seed)


def test_two_independent_chains_go_to_two_devices():
    made = problem([9] * 6, [(0, 1, [2]), (1, 1, [3]), (2, 1, [4]), (3, 1, [5])])
    best = found(made)
    assert best.devices in ((0, 1) * 3, (1, 0) * 3) and best.seconds == 27


def test_a_chain_stays_on_the_driver():
    made = problem([0.1] * 6, [(i, 1, [i + 1]) for i in range(5)], devices=3)
    assert found(made).devices == (0,) * 6


def test_a_small_gain_does_not_replace_the_default():
    made = problem([100, 3], [], latency=0.0)
    assert found(made).devices == (0, 0)
    assert set(found(problem([100, 8], [], latency=0.0)).devices) == {0, 1}


@pytest.mark.parametrize("seed", range(12))
def test_never_worse_than_the_default_and_near_the_best_placement(seed):
    rng = random.Random(seed)
    made = random_problem(rng, 7, 2, fixed=[0, *[None] * 6], latency=0.2)
    best = found(made)
    every = itertools.product([0], *[range(2)] * 6)
    least = min(step_time(made, placement).seconds for placement in every)
    default = step_time(made, default_placement(made)).seconds
    assert best.seconds <= default and best.devices[0] == 0
    assert best.seconds <= max(1.15 * least, least / 0.95) + 1e-9
    assert best.seconds == step_time(made, best.devices).seconds


def test_fixed_groups_and_groups_of_several_operations_stay_together():
    made = problem([5, 5, 5, 5], [], groups=[0, 1, 0, 2], fixed=[1, None, None])
    best = found(made)
    assert best.devices[0] == 1 and best.devices[1] == best.devices[2] == 0


def test_free_groups_take_only_the_first_devices():
    made = problem([5] * 4, [], devices=3, candidate_count=2)
    assert set(found(made).devices) == {0, 1}


def test_groups_beside_a_fixed_group_of_their_layer_take_only_the_first_devices():
    near = [(0, 1, [1]), (1, 1, [2])]
    made = problem([1] * 3, near, devices=3, candidate_count=2, fixed=[2, None, None])
    assert found(made, layers=[[0, 1, 2]]).devices == (2, 0, 0)


def test_memory_comes_before_time():
    over = (Device(memory=25), Device(memory=25), Device(memory=25))
    chain = [(i, 1, [i + 1]) for i in range(4)]
    made = problem([0.1] * 5, chain, devices=3, held=[10.0] * 5, over=over)
    best = found(made)
    assert best.overflow == 0 and max(np.bincount(best.devices)) <= 2
    assert score(made, [0] * 5).overflow == 50 + 1 + 1 - 25


def test_if_nothing_fits_the_least_overflow_is_found():
    over = (Device(memory=10), Device(memory=10))
    made = problem([1, 1], [], held=[15.0, 12.0], over=over)
    assert found(made).overflow == 5 + 2


def test_heft_keeps_to_the_memory_of_state():
    over = (Device(memory=10), Device(memory=30))
    made = problem([5, 5, 5], [], held=[10.0] * 3, over=over)
    assert sorted(heft_placement(made)) == [0, 1, 1]


def test_repeated_searches_agree():
    rng = random.Random(3)
    made = random_problem(rng, 30, 3)
    assert found(made) == found(dataclasses.replace(made))


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_contiguous_and_the_greatest_part_is_the_least(seed):
    rng = random.Random(seed)
    weights = [rng.choice([0.0, 1.0, 3.0, 8.0]) for _ in range(8)]
    parts = chain_partition(weights, [1.0] * 3)
    assert parts == sorted(parts) and set(parts) <= {0, 1, 2}
    heaviest = max(sum(w for w, p in zip(weights, parts, strict=True) if p == k) for k in range(3))
    least = min(
        max(sum(weights[:i]), sum(weights[i:j]), sum(weights[j:]))
        for i, j in itertools.combinations_with_replacement(range(9), 2)
    )
    assert math.isclose(heaviest, least, rel_tol=1e-6, abs_tol=1e-9)


# -- requirements


@pytest.mark.parametrize("seed", range(20))
def test_each_candidate_and_move_keeps_groups_on_the_devices_that_they_allow(seed):
    rng = random.Random(seed)
    edges = [(k, rng.randrange(50), [k + 1]) for k in range(7)]
    made = problem([rng.randrange(1, 9) for _ in range(8)], edges, devices=3)
    allowed = {g: tuple(rng.sample(range(3), rng.randrange(1, 4))) for g in range(0, 8, 2)}
    made = dataclasses.replace(made, allowed=allowed)
    layers = [[g] for g in range(8)]
    found = [
        default_placement(made),
        heft_placement(made),
        search(made, layers, layers, 0).devices,
    ]
    for devices in found:
        assert all(devices[g] in those for g, those in allowed.items())
    assert all(found[0][g] == those[0] for g, those in allowed.items())


def test_a_reservation_counts_once_on_a_device_and_covers_what_its_groups_hold():
    edges = [(0, 100, [1]), (1, 30, [2]), (2, 5, [3])]
    made = problem([1, 1, 1, 1], edges, held=[10.0, 20.0, 40.0, 0.0])
    reserving = dataclasses.replace(
        made, reservations=(MemoryReservation(500.0, frozenset({0, 1})),)
    )
    # operation 2 holds 40 and its value of 5; the values of 0 and 1 are in the reservation
    assert list(reserving.peaks([0, 0, 0, 0])) == [545.0, 0.0]
    # operation 2 receives 30; 3 has a buffer for 5 where 0 and 1 are
    assert list(reserving.peaks([0, 0, 1, 0])) == [505.0, 40.0 + 30.0 + 5.0]
    assert list(reserving.peaks([0, 1, 1, 1])) == [500.0, 545.0]
    small = dataclasses.replace(made, reservations=(MemoryReservation(1.0, frozenset({0, 1})),))
    assert list(small.peaks([0, 0, 0, 0])) == list(made.peaks([0, 0, 0, 0]))
