"""Group levels: sets of free groups that a search moves together, from pairs to all.

Heavy-edge matching (Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning
Irregular Graphs", 1998): each level joins the sets of the level before in pairs, those with the
most expensive messages between them first.
"""

from __future__ import annotations

import collections

from hpcflow.placement.step_problem import StepProblem

Pair = tuple[int, int]


def group_levels(problem: StepProblem) -> list[list[list[int]]]:
    """Return the sets of each level, the level of the smallest sets first.

    The sets of a level are disjoint. Together they have all free groups that share a value with
    another free group. Groups that no messages connect are in different sets in all levels.
    """
    costs = _message_costs(problem)
    sets = {g: [g] for g in sorted({g for pair in costs for g in pair})}
    levels: list[list[list[int]]] = []
    while costs:
        joined: dict[int, int] = {}  # a set -> the set that has it now
        order = sorted(costs, key=lambda p: (-costs[p], len(sets[p[0]]) + len(sets[p[1]]), p))
        for a, b in order:
            if a not in joined and b not in joined:
                joined[a] = joined[b] = a
                sets[a] = sets[a] + sets.pop(b)
        left: dict[Pair, float] = collections.defaultdict(float)
        for (a, b), cost in costs.items():
            a, b = joined.get(a, a), joined.get(b, b)
            if a != b:
                left[min(a, b), max(a, b)] += cost
        costs = left
        levels.append(list(sets.values()))
    return levels


def _message_costs(problem: StepProblem) -> dict[Pair, float]:
    """Return, for pairs of free groups, the seconds of the messages if they are on two devices."""
    costs: dict[Pair, float] = collections.defaultdict(float)
    overhead = 2 * problem.links.overhead
    for value, cost in zip(problem.values, problem.message_seconds, strict=True):
        a = problem.group[value.producer]
        for b in {problem.group[user] for user in value.users}:
            if a != b and problem.fixed[a] is None and problem.fixed[b] is None:
                costs[min(a, b), max(a, b)] += cost + overhead
    return costs
