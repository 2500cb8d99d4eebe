"""Order cycles: blocks that no cut can separate, because each comes before the other."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.placement.pipeline_splits.reduced_problem import ReducedProblem
from hpcflow.placement.pipeline_splits.split_problem import SplitProblem


def without_cycles(problem: SplitProblem) -> ReducedProblem:
    """Return the problem with the blocks of each cycle of the order as one block."""
    groups = strongly_connected(problem.before)
    before = [frozenset().union(*(problem.before[b] for b in group)) for group in groups]
    return ReducedProblem.of(problem, groups, before, problem.transfers)


def strongly_connected(before: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return the strongly connected components (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[frozenset[int]] = []
    for root in range(len(before)):
        work = [] if root in index else [(root, iter(before[root]))]
        while work:
            block, others = work[-1]
            if block not in index:
                index[block] = low[block] = len(index)
                path.append(block)
                on_path.add(block)
            fresh = None
            for other in others:
                if other not in index:
                    fresh = other
                    break
                if other in on_path:
                    low[block] = min(low[block], index[other])
            if fresh is not None:
                work.append((fresh, iter(before[fresh])))
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[block])
            if low[block] == index[block]:
                start = path.index(block)
                found.append(frozenset(path[start:]))
                on_path -= found[-1]
                del path[start:]
    return found
