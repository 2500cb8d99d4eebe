"""The time of a step as the executor runs it: segments, messages and their order, by hand."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hpcflow.placement.chain_partition import chain_partition
from hpcflow.placement.device_links import Links, Route
from hpcflow.placement.placement_search import search
from hpcflow.placement.segment_schedule import step_time
from hpcflow.placement.start_placements import device_orders
from hpcflow.placement.step_problem import Device, StepProblem, Value

LATENCY, BANDWIDTH = 1.0, 10.0


def problem(seconds, edges, devices=2, overhead=0.0, over=None):
    """Operations of these seconds, each a group; `edges` are (producer, bytes, users)."""
    over = over or (Device(),) * devices
    return StepProblem(
        tuple(map(float, seconds)),
        tuple(Value(producer, size, tuple(users)) for producer, size, users in edges),
        over,
        tuple(range(len(seconds))),
        (None,) * len(seconds),
        (0.0,) * len(seconds),
        Links.equal(len(over), LATENCY, BANDWIDTH, overhead),
        len(over),
    )


def test_one_device_runs_all_without_gaps():
    made = problem([2, 3, 4], [(0, 10, [2])])
    assert step_time(made, [0, 0, 0]).seconds == 9


def test_a_message_leaves_amid_a_segment():
    made = problem([2, 6, 3], [(0, 20, [2])])
    assert step_time(made, [0, 0, 1]).seconds == 2 + (1 + 2) + 3


def test_a_segment_waits_for_the_last_of_its_messages():
    near = [(0, 10, [2]), (1, 50, [2])]
    assert step_time(problem([1, 1, 4], near, devices=3), [0, 1, 2]).seconds == 1 + 1 + 1 + 5 + 4
    turned = [(0, 50, [2]), (1, 10, [2])]
    assert step_time(problem([1, 1, 4], turned, devices=3), [0, 1, 2]).seconds == 1 + 5 + 1 + 1 + 4


def test_a_segment_that_has_begun_is_not_interrupted():
    # The value of operation 0 arrives at 2, amid operation 2, which shares its segment with 3.
    made = problem([1, 1, 5, 5], [(0, 0, [1]), (2, 0, [3])])
    assert step_time(made, [0, 1, 1, 1]).seconds == 5 + 5 + 1


def test_a_device_runs_what_is_ready_instead_of_waiting_for_what_comes_first():
    made = problem([8, 1, 5], [(0, 0, [1])])
    assert step_time(made, [0, 1, 1]).seconds == 8 + 1 + 1


def test_latencies_of_messages_overlap_and_their_bytes_do_not():
    near = [(0, 20, [1]), (0, 20, [2])]
    made = problem([1, 1, 1], near)
    assert step_time(made, [0, 1, 1]).seconds == 1 + 2 + 2 + 1 + 1


def test_handling_keeps_both_ends_busy():
    made = problem([1, 1, 1, 1], [(0, 0, [2]), (1, 0, [3])], overhead=0.5)
    # They leave at 1.5 and 3, and arrive a latency later; each is handled again.
    assert step_time(made, [0, 0, 1, 1]).seconds == 1 + 0.5 + 1 + 0.5 + 1 + 0.5 + 1


@pytest.mark.parametrize("work", [0.25, 4])
def test_small_values_that_are_ready_together_share_a_message(work):
    near = [(0, 10, [2]), (1, 10, [3])]
    made = problem([1, work, 3, 1], near, overhead=0.5)
    time = step_time(made, [0, 0, 1, 1])
    if work < 0.5:  # both leave behind the second, and run in one segment
        assert time == (1 + work + 0.5 + 1 + 2 + 0.5 + 3 + 1, 1.0)
    else:
        assert time == (1 + 0.5 + work + 0.5 + 1 + 1 + 0.5 + 1, 2.0)


def test_devices_differ_in_speed_start_and_end():
    over = (Device(), Device(slowdown=3.0, start=10.0, end=7.0))
    assert step_time(problem([2, 4], [], over=over), [0, 1]).seconds == 10 + 12 + 7


def random_problem(rng, count, devices):
    edges = [
        (i, rng.randrange(60), sorted(rng.sample(range(i + 1, count), rng.randint(1, 2))))
        for i in range(count - 2)
    ]
    return problem([rng.randint(1, 9) for _ in range(count)], edges, devices)


@pytest.mark.parametrize("seed", range(20))
def test_time_is_between_its_bounds(seed):
    rng = random.Random(seed)
    made = random_problem(rng, 14, 3)
    placement = [rng.randrange(3) for _ in range(14)]
    time = step_time(made, placement).seconds
    ready = [0.0] * 14  # without contention of devices and links: no schedule is shorter
    for i in range(14):
        ready[i] += made.seconds[i]
        for value in made.values:
            if value.producer == i:
                for user in value.users:
                    far = placement[user] != placement[i]
                    sent = LATENCY + value.nbytes / BANDWIDTH if far else 0.0
                    ready[user] = max(ready[user], ready[i] + sent)
    loads = [
        sum(s for s, d in zip(made.seconds, placement, strict=True) if d == k) for k in (0, 1, 2)
    ]
    messages = sum(
        LATENCY + value.nbytes / BANDWIDTH
        for value in made.values
        for _ in {placement[u] for u in value.users} - {placement[value.producer]}
    )
    assert max(*ready, *loads) - 1e-9 <= time <= sum(made.seconds) + messages + 1e-9


# -- where a search starts


@pytest.mark.parametrize("seed", range(8))
def test_cuts_give_each_part_work_by_its_rate(seed):
    rng = random.Random(seed)
    weights, rates = [rng.choice([0.0, 1.0, 3.0, 8.0]) for _ in range(8)], [1.0, 4.0, 0.5]
    parts = chain_partition(weights, rates)
    assert parts == sorted(parts)

    def time(ends):
        pieces = weights[: ends[0]], weights[ends[0] : ends[1]], weights[ends[1] :]
        return max(sum(piece) / rate for piece, rate in zip(pieces, rates, strict=True))

    least = min(time((i, j)) for i in range(9) for j in range(i, 9))
    ends = sum(part < 1 for part in parts), sum(part < 2 for part in parts)
    assert time(ends) <= least * 1.0001 + 1e-9


def test_orders_of_equal_devices_come_once():
    equal = list(device_orders(problem([1], [], devices=3)))
    assert equal == [(0,), (1,), (0, 1), (1, 0), (1, 2), (0, 1, 2), (1, 0, 2), (1, 2, 0)]
    unlike = problem([1], [], over=(Device(), Device(slowdown=2.0), Device(slowdown=3.0)))
    assert len(list(device_orders(unlike))) == 3 + 6 + 6


def test_a_chain_is_on_the_fastest_device_and_not_behind_a_slow_port():
    over = (Device(slowdown=4.0), Device(), Device(slowdown=1.0))
    chain = problem([5] * 6, [(i, 10, [i + 1]) for i in range(5)], over=over)
    routes = {
        pair: Route(route.links, route.latency, 3.0 if 1 in pair else route.seconds_per_byte)
        for pair, route in chain.links.routes.items()
    }
    slow_port = Links(chain.links.seconds_per_byte, routes)
    made = dataclasses.replace(chain, links=slow_port, fixed=(0, *[None] * 5))
    layers = [[g] for g in range(6)]
    assert search(made, layers, layers, 0).devices == (0, 2, 2, 2, 2, 2)


def test_a_gain_that_needs_many_late_messages_is_no_gain():
    made = problem([1] * 10 + [0], [(i, 0, [10]) for i in range(10)])
    made = dataclasses.replace(made, fixed=(*[None] * 10, 0))
    units = [[g] for g in range(11)]
    for latency, devices in ((0.95, {0}), (0.01, {0, 1})):
        found = search(
            dataclasses.replace(made, links=Links.equal(2, latency, BANDWIDTH)), units, units, 0
        )
        assert set(found.devices) == devices
    spread = [0] * 5 + [1] * 5 + [0]
    time = step_time(dataclasses.replace(made, links=Links.equal(2, 0.95, BANDWIDTH)), spread)
    assert time.seconds < 0.7 * 10 and time.seconds + time.latencies > 0.95 * 10
