"""The chief's verdicts after a death, in every order of votes, notices and messages: no ranks."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.runtime.failure.commit_decision import COMMIT, SHRINK, CommitDecision


def test_who_is_behind_makes_the_step_that_another_has_made():
    verdicts = CommitDecision()
    verdicts.add_position(0, 7, True)
    verdicts.add_position(2, 8, False)
    assert verdicts.decide([0, 2, 3]) == {}  # rank 3 may be anywhere
    verdicts.add_position(3, 7, True)
    assert verdicts.decide([0, 2, 3]) == {0: COMMIT, 3: COMMIT}
    assert verdicts.decide([0, 2, 3]) == {}
    verdicts.add_position(3, 8, False)
    verdicts.add_position(0, 8, False)
    assert verdicts.decide([0, 2, 3]) == dict.fromkeys([0, 2, 3], SHRINK)


def test_a_step_that_all_can_make_is_made_and_one_that_some_cannot_is_not():
    for last, verdict in ((True, COMMIT), (False, SHRINK)):
        verdicts = CommitDecision()
        verdicts.add_position(0, 3, True)
        verdicts.add_position(1, 3, last)
        assert verdicts.decide([0, 1]) == {0: verdict, 1: verdict}


def test_places_that_cannot_be_are_an_error_and_no_verdict():
    for other in ((5, False), (6, True)):
        verdicts = CommitDecision()
        verdicts.add_position(0, 4, other[1])
        verdicts.add_position(1, *other)
        with pytest.raises(ValueError, match="stand at"):
            verdicts.decide([0, 1])


class Replica:
    """One that votes, makes a step when all have voted for it, and rests when it sees a death."""

    def __init__(self):
        self.steps, self.has_voted, self.rests, self.alive = 0, False, False, True
        self.told: collections.deque[tuple[int, bool]] = collections.deque()
        self.shrinks = False

    def make(self):
        self.steps, self.has_voted = self.steps + 1, False

    def tell(self):
        self.told.append((self.steps, self.has_voted))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_all_who_live_come_to_one_step(data):
    """Whoever dies when, in whatever order it is seen: nobody makes a step that another repeats."""
    replicas = [Replica() for _ in range(data.draw(st.integers(2, 5)))]
    verdicts = CommitDecision()
    votes: dict[int, set[int]] = collections.defaultdict(set)  # step -> who has voted for it

    def living():
        return [i for i, one in enumerate(replicas) if one.alive]

    def decide():
        for rank, verdict in verdicts.decide(living()).items():
            one = replicas[rank]
            assert not one.shrinks
            if verdict == COMMIT:
                assert one.has_voted  # it has all the sums
                one.make()
                one.tell()
            else:
                one.shrinks = True

    def act(rank, what):
        one = replicas[rank]
        if what == "vote":
            one.has_voted = True
            votes[one.steps].add(rank)
        elif what == "make":
            one.make()
        elif what == "die":
            one.alive = False
            if replicas[0].rests:
                decide()
        elif what == "see":
            one.rests = True
            one.tell()
        elif what == "hear":
            verdicts.add_position(rank, *one.told.popleft())
            decide()

    def possible():
        died = not all(one.alive for one in replicas)
        for rank in living():
            one = replicas[rank]
            if one.shrinks:
                continue
            if not one.rests and not one.has_voted:
                yield rank, "vote"
            if not one.rests and one.has_voted and len(votes[one.steps]) == len(replicas):
                yield rank, "make"
            if not one.rests and died:
                yield rank, "see"
            if one.told and replicas[0].rests:
                yield rank, "hear"
            if rank and len(living()) > 1 and not any(r.shrinks for r in replicas):
                yield rank, "die"

    for _ in range(200):
        events = list(possible())
        if not events:
            break
        act(*data.draw(st.sampled_from(events)))
    for _ in range(1000):  # then without more deaths or steps, until nothing is left to do
        events = [event for event in possible() if event[1] in ("see", "hear")]
        if not events:
            break
        act(*events[0])
    if not all(one.alive for one in replicas):
        assert all(replicas[rank].shrinks for rank in living())
        assert len({replicas[rank].steps for rank in living()}) == 1
