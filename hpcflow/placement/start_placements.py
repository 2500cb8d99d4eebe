"""Start placements of a search: simple rules, HEFT, and contiguous splits of the layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from hpcflow.placement.makespan import StepProblem, Timeline

DRIVER = 0  # the device of the default placement
FEW_DEVICES = 4  # of so many, all orders are tried


def default_placement(problem: StepProblem) -> list[int]:
    """Return the placement with each free group on the driver, or where it is by default."""
    return [problem.default_of(g) for g in range(len(problem.fixed))]


def start_placements(
    problem: StepProblem, layers: Sequence[Sequence[int]], most: int
) -> Iterator[list[int]]:
    """Yield placements; about `most` of them are contiguous splits."""
    yield from _beside_fixed_groups(problem, layers)
    yield earliest_finish(problem)
    seconds = np.bincount(problem.group, problem.seconds, len(problem.fixed))
    all_weights = [
        [float(by_group[list(layer)].sum()) for layer in layers]
        for by_group in (seconds, np.asarray(problem.held))
    ]
    for order in itertools.islice(device_orders(problem), max(FEW_DEVICES, most // 2)):
        speeds = [1.0 / problem.devices[d].slowdown for d in order]
        for weights, rates in zip(all_weights, (speeds, [1.0] * len(order)), strict=True):
            parts = cut(weights, rates)
            yield _on_layers(problem, layers, [order[part] for part in parts])


def device_orders(problem: StepProblem) -> Iterator[tuple[int, ...]]:
    """Yield orders of some of the devices, none of which only renames equal ones of another.

    Of more than `FEW_DEVICES` devices, these are the first and the fastest ones.
    """
    devices, count = problem.devices, problem.choices
    natural = tuple(range(count))
    fastest = tuple(sorted(natural, key=lambda d: devices[d].slowdown))
    if count <= FEW_DEVICES:
        orders = (o for k in range(1, count + 1) for o in itertools.permutations(natural, k))
    else:
        sizes = sorted({*range(1, FEW_DEVICES), *_doubled(FEW_DEVICES, count), count})
        orders = (order[:k] for k in sizes for order in (natural, fastest))
    routes, known = problem.links.routes, set()
    for order in orders:
        own = tuple((d == DRIVER, devices[d].slowdown, devices[d].memory) for d in order)
        near = (DRIVER, *order)
        pairs = itertools.permutations(near, 2)
        between = tuple(routes[a, b][1:] if a != b else None for a, b in pairs)
        if (own, between) not in known:
            known.add((own, between))
            yield order


def _doubled(first: int, last: int) -> list[int]:
    """Return first, 2 first, 4 first ... up to last."""
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= 2
    return sizes


def _beside_fixed_groups(
    problem: StepProblem, layers: Sequence[Sequence[int]]
) -> Iterator[list[int]]:
    """Yield free groups beside the fixed ones of their layer, the others on the driver.

    Then a second placement with these others on the device of the layer before.
    """
    of_layer: list[int | None] = []
    for layer in layers:
        near = [problem.fixed[g] for g in layer]
        fixed = [d for d in near if d is not None and d < problem.choices]
        of_layer.append(fixed[-1] if fixed else None)
    yield _on_layers(problem, layers, [DRIVER if d is None else d for d in of_layer])
    last, filled = DRIVER, []
    for device in of_layer:
        last = last if device is None else device
        filled.append(last)
    yield _on_layers(problem, layers, filled)


def _on_layers(
    problem: StepProblem, layers: Sequence[Sequence[int]], of_layer: Sequence[int]
) -> list[int]:
    """Return the placement with the free groups of each layer on a device."""
    devices = default_placement(problem)
    for layer, device in zip(layers, of_layer, strict=True):
        for g in layer:
            if problem.fixed[g] is None and device in problem.devices_of(g):
                devices[g] = device
    return devices


def earliest_finish(problem: StepProblem) -> list[int]:
    """Return the placement by HEFT.

    The first operation of a free group decides for the group: it takes the device on which it ends
    first, among those whose memory holds the state of the group.
    """
    placed: list[int | None] = list(problem.fixed)
    space = [device.memory for device in problem.devices]
    for g, device in enumerate(placed):
        if device is not None:
            space[device] -= problem.held[g]
    timeline = Timeline(problem)
    for op in problem.order:
        g = problem.group[op]
        device = placed[g]
        if device is None:
            choices = problem.devices_of(g)
            fitting = [d for d in choices if space[d] >= problem.held[g]]
            near = fitting or [max(choices, key=lambda d: (space[d], -d))]
            device = placed[g] = min(near, key=lambda d: (timeline.end_on(op, d), d))
            space[device] -= problem.held[g]
        timeline.place(op, device)
    return [problem.default_of(g) if d is None else d for g, d in enumerate(placed)]


def cut(weights: Sequence[float], rates: Sequence[float]) -> list[int]:
    """Return the part of each item: contiguous parts whose greatest time is about the least.

    Part k takes the sum of its weights divided by `rates[k]`.
    """
    low, high = 0.0, sum(weights) / min(rates)
    for _ in range(40):
        middle = (low + high) / 2
        if _fill(weights, rates, middle) is not None:
            high = middle
        else:
            low = middle
    return _fill(weights, rates, high) or [0] * len(weights)


def _fill(weights: Sequence[float], rates: Sequence[float], limit: float) -> list[int] | None:
    """Return the part of each item if parts are filled one after the other; None without room."""
    part, load, of_item = 0, 0.0, []
    for weight in weights:
        while load + weight > limit * rates[part]:
            if part + 1 == len(rates):
                return None
            part, load = part + 1, 0.0
        load += weight
        of_item.append(part)
    return of_item
