"""Start placements of a search: fixed devices, HEFT, and contiguous splits of the layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from hpcflow.placement.chain_partition import chain_partition
from hpcflow.placement.heft import heft_placement
from hpcflow.placement.step_problem import StepProblem

DRIVER = 0  # the device of the default placement
FEW_DEVICES = 4  # of so many, all orders are tried


def default_placement(problem: StepProblem) -> list[int]:
    """Return the placement with each group on its default device."""
    return [problem.default_device(g) for g in range(len(problem.fixed))]


def start_placements(
    problem: StepProblem, layers: Sequence[Sequence[int]], splits: int
) -> Iterator[list[int]]:
    """Yield placements; about `splits` of them are contiguous splits, by seconds and by bytes.

    `layers` has the groups of each layer, in the order of the forward pass.
    """
    yield from _beside_fixed_groups(problem, layers)
    yield heft_placement(problem)
    seconds = np.bincount(problem.group, problem.seconds, len(problem.fixed))
    all_weights = [
        [float(by_group[list(layer)].sum()) for layer in layers]
        for by_group in (seconds, np.asarray(problem.state_bytes))
    ]
    for order in itertools.islice(device_orders(problem), max(FEW_DEVICES, splits // 2)):
        speeds = [1.0 / problem.devices[d].slowdown for d in order]
        for weights, rates in zip(all_weights, (speeds, [1.0] * len(order)), strict=True):
            parts = chain_partition(weights, rates)
            yield _on_layers(problem, layers, [order[part] for part in parts])


def device_orders(problem: StepProblem) -> Iterator[tuple[int, ...]]:
    """Yield orders of some of the candidate devices.

    Of two orders that differ only by equal devices, the first is yielded. Of more than
    `FEW_DEVICES` devices, the orders have the first ones or the fastest ones, not all subsets.
    """
    devices, count = problem.devices, problem.candidate_count
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
    """Yield two placements with the free groups of a layer on the device of its fixed groups.

    A layer without fixed groups is on the driver in the first placement, and on the device of the
    layer before in the second.
    """
    of_layer: list[int | None] = []
    for layer in layers:
        near = [problem.fixed[g] for g in layer]
        fixed = [d for d in near if d is not None and d < problem.candidate_count]
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
    """Return the placement with the free groups of layer i on device `of_layer[i]`, if allowed."""
    devices = default_placement(problem)
    for layer, device in zip(layers, of_layer, strict=True):
        for g in layer:
            if problem.fixed[g] is None and device in problem.candidates_of(g):
                devices[g] = device
    return devices
