"""The state machine of rounds, in every order of arrival: no engine, no ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_coordinator import Contribution, SyncCoordinator
from hpcflow.ps.sync_rules import All


class Server:
    """One server with one sum; rounds are made as soon as they are picked."""

    def __init__(self, rule, workers):
        self.rounds = SyncCoordinator(rule, workers)
        self.updates = []  # of each round: who was used, the sum
        self.released = []
        self.await_round()

    def await_round(self):
        self.rounds.pick("train", self.make)

    def make(self, factors):
        (total,) = self.rounds.total("train", "g", "sum", factors)
        self.updates.append((tuple(np.flatnonzero(factors)), float(total)))
        self.rounds.end("train")
        self.await_round()

    def give(self, worker, version, value, share=1.0):
        release = lambda: self.released.append((worker, version))  # noqa: E731
        array = np.asarray(value, np.float64)
        self.rounds.add("train", "g", worker, Contribution(version, (array,), release))
        self.rounds.ready(worker, "train", version, share)


def begun(rounds, worker, waits=True):
    """The version that a worker may begin with now, None if it has to wait."""
    found = []
    rounds.begin(worker, "train", found.append)
    if not waits:
        rounds.withdraw(found.append)
    return found[0] if found else None


def test_a_round_of_all_waits_for_each_and_adds_in_their_order():
    server = Server(All(), 3)
    for worker in (2, 0):
        server.give(worker, 0, 10.0**worker)
        assert not server.updates
    server.give(1, 0, 10.0)
    assert server.updates == [((0, 1, 2), 111.0)]
    assert sorted(server.released) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_backup_uses_exactly_the_first_and_drops_the_last(order):
    server = Server(Backup(1), 4)
    for worker in order:
        server.give(worker, 0, 10.0**worker, share=0.25)
    first = sorted(order[:3])
    # of the shares that came: the mean over the samples of these three
    expected = sum(10.0**w for w in first) / 0.75
    assert server.updates == [(tuple(first), pytest.approx(expected))]
    assert server.rounds.late == [int(w == order[3]) for w in range(4)]
    assert server.rounds.used_gradients == [int(w != order[3]) for w in range(4)]
    assert sorted(server.released) == [(w, 0) for w in range(4)]
    assert begun(server.rounds, order[3]) == 1  # at once, with the newest version


def test_what_is_late_by_several_versions_is_dropped():
    server = Server(Backup(1), 2)
    for version in range(3):
        server.give(0, version, 1.0)
    server.give(1, 0, 100.0)
    assert [total for _, total in server.updates] == [1.0, 1.0, 1.0]
    assert server.rounds.report() == {
        "rule": "backup:1",
        "used": [3, 0],
        "late": [0, 1],
        "dropped": [0, 1],
    }


def test_nobody_begins_while_a_round_is_made_or_its_own_gradient_waits():
    server = Server(All(), 2)
    server.give(0, 0, 1.0)
    assert begun(server.rounds, 1) == 0
    assert begun(server.rounds, 0) is None
    rounds = SyncCoordinator(All(), 1)
    rounds.pick("train", lambda factors: None)  # a round that takes its time
    rounds.ready(0, "train", 0, 1.0)
    assert begun(rounds, 0) is None
    rounds.end("train")
    assert begun(rounds, 0) == 1


def test_who_is_elsewhere_is_not_waited_for_but_what_it_gave_counts():
    server = Server(All(), 3)
    left = []
    server.give(0, 0, 1.0)
    server.rounds.leave_until_barrier(0, lambda: left.append(0))
    assert not left  # its gradient has not had its round
    server.give(1, 0, 2.0)
    assert not server.updates  # worker 2 is expected
    server.rounds.leave_until_barrier(2, lambda: left.append(2))
    assert server.updates == [((0, 1), pytest.approx(1.5))]
    assert sorted(left) == [0, 2]
    server.give(1, 1, 4.0)  # alone, it goes on alone
    assert server.updates[1] == ((1,), 4.0)
    server.rounds.leave_until_barrier(1, lambda: left.append(1))  # all have met
    server.give(0, 2, 1.0)
    assert len(server.updates) == 2  # and are waited for again


def test_the_last_to_come_closes_what_is_open():
    server = Server(All(), 2)
    left = []
    server.give(0, 0, 1.0)
    server.rounds.leave_until_barrier(0, lambda: left.append(0))
    server.rounds.leave_until_barrier(1, lambda: left.append(1))
    assert server.updates == [((0,), 1.0)]
    assert sorted(left) == [0, 1]


def test_a_step_that_failed_gives_way_to_the_next_one_of_its_worker():
    server = Server(All(), 2)
    release = lambda: server.released.append("failed")  # noqa: E731
    server.rounds.add("train", "g", 0, Contribution(0, (np.asarray(7.0),), release))
    server.give(0, 0, 1.0)
    server.give(1, 0, 2.0)
    assert server.updates == [((0, 1), 3.0)]
    assert server.released[0] == "failed"


def test_rows_keep_the_order_of_workers_and_the_first_value_is_that_of_the_first():
    rounds = SyncCoordinator(All(), 2)
    for worker in (1, 0):
        rows, indices = np.full((worker + 1, 2), worker, "f4"), np.arange(worker + 1)
        rounds.add("train", "rows", worker, Contribution(0, (rows, indices), lambda: None))
        rounds.add("train", "v", worker, Contribution(0, (np.asarray(worker),), lambda: None))
    values, indices = rounds.total("train", "rows", "rows", np.ones(2))
    np.testing.assert_array_equal(values, [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(indices, [0, 0, 1])
    assert rounds.total("train", "v", "first", np.array([0.0, 1.0])) == (1,)


@given(
    bound=st.integers(0, 3),
    workers=st.integers(1, 4),
    order=st.lists(st.integers(0, 3), max_size=60),
)
def test_nobody_is_further_ahead_than_the_bound(bound, workers, order):
    """Any interleaving of steps: begun are at most `bound` more than the slowest has ended."""
    rounds = SyncCoordinator(Stale(bound), workers)
    ended, running = [0] * workers, [False] * workers
    for pick in order:
        worker = pick % workers
        if running[worker] is True:
            ended[worker] += 1
            running[worker] = False
            rounds.tick(worker)
        elif running[worker] is False:
            running[worker] = None  # waits

            def go(version, worker=worker):
                assert ended[worker] - min(ended) <= bound
                running[worker] = True

            rounds.begin(worker, "clock", go)
            slow = ended[worker] - min(ended) > bound
            assert (running[worker] is None) == slow  # and nobody waits without need
    assert rounds.lead <= bound


@given(st.data())
def test_every_gradient_is_used_once_or_dropped_and_versions_are_never_mixed(data):
    workers = data.draw(st.integers(2, 4))
    server = Server(Backup(data.draw(st.integers(1, workers - 1))), workers)
    has: list[int | None] = [None] * workers
    given_ = 0
    for _ in range(data.draw(st.integers(1, 40))):
        worker = data.draw(st.integers(0, workers - 1))
        if has[worker] is None:
            has[worker] = begun(server.rounds, worker, waits=False)
        else:
            before = len(server.updates)
            server.give(worker, has[worker], 1.0)
            given_ += 1
            if len(server.updates) > before:
                assert has[worker] == before  # the one that made it complete was of its version
            has[worker] = None
    rounds = server.rounds
    waiting = len(rounds.channel("train").arrived)
    assert sum(rounds.used_gradients) + sum(rounds.dropped_gradients) + waiting == given_
    assert len(server.released) + waiting == given_


def test_who_is_missing_is_named():
    server = Server(All(), 3)
    server.rounds.ranks = [4, 5, 6]
    assert server.rounds.missing() is None
    server.give(1, 0, 1.0)
    assert begun(server.rounds, 1) is None
    assert server.rounds.missing() == ("what worker 0, 2 is to bring", 4)
    server.rounds.leave_until_barrier(0, lambda: None)
    assert server.rounds.missing() == ("what worker 2 is to bring", 6)
    rounds = SyncCoordinator(Stale(0), 2)
    rounds.ranks = [1, 2]
    rounds.tick(0)
    assert begun(rounds, 0) is None
    assert rounds.missing() == ("what worker 1 is to bring", 2)


def test_a_death_is_the_last_to_come_where_all_others_have_met():
    server = Server(Backup(1), 3)
    left = []
    server.give(0, 0, 1.0)
    for worker in (0, 1):
        server.rounds.leave_until_barrier(worker, lambda worker=worker: left.append(worker))
    assert left == [1]  # what worker 0 gave may still have a second gradient
    server.rounds.lose(2)
    assert server.updates == [((0,), 1.0)]
    assert left == [1, 0]


@given(st.data())
def test_with_as_many_deaths_as_workers_in_reserve_nobody_waits_for_the_dead(data):
    """Gradients, meetings and deaths in any order: what can be joined is, and all come away."""
    workers = data.draw(st.integers(2, 5))
    extra = data.draw(st.integers(1, workers - 1))
    server = Server(Backup(extra), workers)
    living, here, has = set(range(workers)), set(range(workers)), {}
    left: list[int] = []

    def go_aside(worker):
        here.discard(worker)
        server.rounds.leave_until_barrier(worker, lambda: left.append(worker))

    for _ in range(data.draw(st.integers(1, 40))):
        worker = data.draw(st.sampled_from(sorted(living)))
        what = data.draw(st.sampled_from("ggggad"))
        if what == "d" and worker and workers - len(living) < extra:
            server.rounds.lose(worker)
            living.discard(worker)
            here.discard(worker)
        elif what == "a" and worker in here:
            go_aside(worker)
        elif what == "g" and worker in here:
            if worker not in has:
                version = begun(server.rounds, worker, waits=False)
                if version is not None:
                    has[worker] = version
            else:
                server.give(worker, has.pop(worker), 1.0)
        if not here:
            assert living <= set(left)
            here, left[:] = set(living), []
        waiting = {w for w, _ in server.rounds.channel("train").arrived}
        assert not waiting or (len(waiting) < workers - extra and not here <= waiting)
    for worker in sorted(here):
        go_aside(worker)
    assert living <= set(left)
    assert not server.rounds.channel("train").arrived
