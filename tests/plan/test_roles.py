"""Which ranks serve: spread over the nodes, or those that were started as servers."""

from __future__ import annotations

import pytest

from hpcflow.errors import LaunchError
from hpcflow.plan.distribution.task_assignment import assign_tasks
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

NODES = ["a", "a", "b", "b", "c", "c"]


def test_servers_are_the_last_ranks_of_different_nodes() -> None:
    assert assign_tasks(NODES, 0).servers == ()
    assert assign_tasks(NODES, 3).servers == (1, 3, 5)
    assert assign_tasks(NODES, 3).workers == (0, 2, 4)


def test_chosen_ranks_serve_and_the_first_worker_is_the_chief() -> None:
    roles = assign_tasks(NODES, 0, 2, chosen=[0, 1])
    assert (roles.servers, roles.workers, roles.drivers) == ((0, 1), (2, 3, 4, 5), (2, 4))
    assert assign_tasks(NODES, 2, chosen=[0, 1]).servers == (0, 1)


@pytest.mark.parametrize(
    ("ps", "k", "chosen", "says"),
    [
        (1, 1, [0, 1], "leave --ps out"),
        (0, 1, range(6), "no worker"),
        (0, 3, [0, 1], "4 workers cannot be divided"),
    ],
)
def test_roles_that_cannot_be(ps: int, k: int, chosen: list[int], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        assign_tasks(NODES, ps, k, chosen)


def test_ranks_tell_each_other_who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hpcflow.runtime.job.rank_role._serving_ranks", lambda settings, world: ([0, 2], 1)
    )

    def body(context: RankContext) -> tuple[int, bool, str]:
        return context.rank, context.is_chief, context.cluster.mode

    assert run_ranks(4, body) == [(1, True, "ps"), (3, False, "ps")]
