"""Ranks that come together at a chair, by a tree: what they agree on, deaths, and what it costs."""

from __future__ import annotations

import collections
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.comm.fault_tolerant_collectives import FaultTolerantCollectives
from hpcflow.comm.fault_tolerant_tree import FANOUT
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import DeathError
from tests.comm.threads import on_all

BASE = 8  # each rank tells a power of it: the digits of a sum say who was counted, how often


class Killed(BaseException):
    """A rank ends where it is."""


class Done:
    """A request that is over, or that failed by a death."""

    def __init__(self, dead: bool = False) -> None:
        self._dead = dead

    def test(self) -> bool:
        if self._dead:
            raise DeathError("it has died")
        return True


class Network:
    """Messages between ranks of one thread; who dies loses some of what it has sent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.flying: dict[tuple[int, int], collections.deque[tuple[int, bytes]]] = (
            collections.defaultdict(collections.deque)
        )
        self.arrived: list[list[tuple[int, int, bytes]]] = [[] for _ in range(size)]
        self.dead: set[int] = set()
        self.ends: dict[int, int] = {}  # after so many messages a rank dies
        self.seen: list[set[int]] = [set() for _ in range(size)]  # deaths, by each rank
        self.sent: collections.Counter[int] = collections.Counter()
        self.taken: collections.Counter[int] = collections.Counter()
        self.bytes: collections.Counter[int] = collections.Counter()

    def deliver(self, source: int, dest: int) -> None:
        if self.flying[source, dest]:
            self.arrived[dest].append((source, *self.flying[source, dest].popleft()))

    def deliver_all(self) -> None:
        for pair in list(self.flying):
            while self.flying[pair]:
                self.deliver(*pair)


class Double:
    """The communicator of one rank of a network."""

    ANY = -1

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.size = network, rank, network.size

    @property
    def lost(self) -> tuple[int, ...]:
        return tuple(sorted(self.network.seen[self.rank]))

    def send(self, array: np.ndarray, dest: int, tag: int) -> Done:
        if self.network.sent[self.rank] == self.network.ends.get(self.rank):
            raise Killed
        self.network.sent[self.rank] += 1
        self.network.bytes[self.rank] += array.nbytes
        self.network.flying[self.rank, dest].append((tag, array.tobytes()))
        return Done(dest in self.lost)

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        at = self._find(source, tag)
        if at is not None:
            found = self.network.arrived[self.rank][at]
            return found[0], len(found[2])
        if source in self.lost:
            raise DeathError(f"rank {source} has died")
        return None

    def recv(self, array: np.ndarray, source: int, tag: int) -> Done:
        at = self._find(source, tag)
        assert at is not None
        array[:] = np.frombuffer(self.network.arrived[self.rank].pop(at)[2], np.uint8)
        self.network.taken[self.rank] += 1
        return Done()

    def _find(self, source: int, tag: int) -> int | None:
        for at, (sender, its, _) in enumerate(self.network.arrived[self.rank]):
            if its == tag and source in (self.ANY, sender):
                return at
        return None


def program(
    group: FaultTolerantCollectives, modes: list[int], found: list[int], dice: random.Random
) -> Iterator:
    """Rounds of which some are waited for late, behind another one; what came of each."""
    pending: tuple[Any, np.ndarray] | None = None
    for mode in modes:
        mine = np.array([BASE**group.comm.rank], np.int64)
        request = group.all_reduce(mine)
        if mode and pending is None:
            pending = request, mine
            yield from itertools.repeat(None, dice.randrange(3))
            continue
        for one, array in ((request, mine), pending or (request, mine)):
            while not one.test():
                yield
            found.append(int(array[0]))
        pending = None
    if pending is not None:
        while not pending[0].test():
            yield


class Job:
    """Ranks that run a program, in an order of steps, messages and deaths by dice."""

    def __init__(self, size: int, modes: list[int], seed: int) -> None:
        self.dice, self.network = random.Random(seed), Network(size)
        pairs = itertools.product(range(size), repeat=2)
        self.slow = {pair for pair in pairs if self.dice.random() < 0.5}
        self.found: list[list[int]] = [[] for _ in range(size)]
        self.beside: list[list[Any]] = [[] for _ in range(size)]
        self.running = {}
        for rank in range(size):
            comm: Any = Double(self.network, rank)
            group = FaultTolerantCollectives(comm, range(size), 10, self.beside[rank])
            self.running[rank] = program(group, modes, self.found[rank], self.dice)

    def move(self) -> None:
        """A message comes, a rank goes on, or a rank sees a death."""
        network, dice = self.network, self.dice
        pairs = [pair for pair, waiting in network.flying.items() if waiting]
        pair = dice.choice(pairs) if pairs and dice.random() < 0.7 else None
        if pair is not None and (pair not in self.slow or dice.random() < 0.05):
            network.deliver(*pair)
        unseen = [(r, d) for d in network.dead for r in self.running if d not in network.seen[r]]
        if unseen and dice.random() < 0.2:
            rank, dead = dice.choice(unseen)
            network.seen[rank].add(dead)
        rank = dice.choice(list(self.running))
        try:
            self.beside[rank][:] = [one for one in self.beside[rank] if not one.test()]
            if dice.random() < 0.5 and next(self.running[rank], self) is self:
                del self.running[rank]  # and it never looks at a message again
        except Killed:
            self.kill(rank)

    def kill(self, rank: int) -> None:
        network = self.network
        network.dead.add(rank)
        self.running.pop(rank, None)
        for dest in range(network.size):
            waiting = network.flying[rank, dest]
            if self.dice.random() < 0.5:
                waiting.clear()

    def run(self, deaths: dict[int, int]) -> None:
        """Until all ranks are at their end; each of `deaths` dies after so many messages."""
        self.network.ends.update(deaths)
        for _ in range(40_000):
            if not self.running:
                return
            self.move()
        raise AssertionError(f"ranks {sorted(self.running)} hang")


def told_by(number: int, size: int) -> dict[int, int]:
    """How often a sum counts each rank."""
    return {r: number // BASE**r % BASE for r in range(size) if number // BASE**r % BASE}


def check(job: Job, size: int) -> None:
    """All who live were told the same in each round, by all who live, once each."""
    living = set(range(size)) - job.network.dead
    for numbers in itertools.zip_longest(*(job.found[rank] for rank in living)):
        assert len(set(numbers)) == 1  # also for those who had theirs before a death
        counts = told_by(numbers[0], size)
        assert living <= set(counts) and set(counts.values()) == {1}
    for rank in job.network.dead:  # what it was told, while it lived, were the same answers
        assert job.found[rank] == job.found[0][: len(job.found[rank])]


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.integers(2, 20),
    st.lists(st.integers(0, 1), min_size=1, max_size=5),
    st.integers(0, 1 << 32),
    st.dictionaries(st.integers(1, 19), st.integers(0, 6 * 5), max_size=5),
)
def test_all_that_live_agree_whoever_dies_when(
    size: int, modes: list[int], seed: int, deaths: dict[int, int]
) -> None:
    job = Job(size, modes, seed)
    job.run({rank: messages for rank, messages in deaths.items() if rank < size})
    check(job, size)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", [1, 2, 5])
def test_a_rank_may_die_behind_each_of_its_messages(victim: int, seed: int) -> None:
    """One that passes on what two others tell, one that does so for none, and one below another."""
    for messages in range(10):
        job = Job(7, [0, 1, 0], 1000 * seed + messages)
        job.run({victim: messages})
        check(job, 7)


def test_after_a_death_the_next_rounds_go_by_a_tree_of_those_who_live() -> None:
    size = 200
    network, beside = Network(size), [[] for _ in range(size)]
    comms: list[Any] = [Double(network, rank) for rank in range(size)]
    groups = {
        r: FaultTolerantCollectives(comms[r], range(size), 10, beside[r]) for r in range(size)
    }
    costs = []
    for number in range(4):
        if number == 1:  # an inner rank
            network.dead.add(2)
            for seen in network.seen:
                seen.add(2)
            del groups[2]
        before = network.sent[0]
        arrays = {r: np.array([r]) for r in groups}
        requests = {r: groups[r].all_reduce(arrays[r]) for r in groups}
        while requests:
            network.deliver_all()
            requests = {r: one for r, one in requests.items() if not one.test()}
        assert {int(array[0]) for array in arrays.values()} == {sum(groups)}
        costs.append(network.sent[0] - before)
    assert costs == [FANOUT, 2 * (size - 2), FANOUT, FANOUT]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 16, 256, 1024, 4096])
def test_what_a_rank_sends_and_takes_does_not_grow_with_the_number_of_ranks(size: int) -> None:
    """Of a look; and it is over after three times as many messages in a row as the tree is deep."""
    network = Network(size)
    comms: list[Any] = [Double(network, rank) for rank in range(size)]
    groups = [FaultTolerantCollectives(comm, range(size), 10) for comm in comms]
    arrays = [np.array([rank, -rank, 1]) for rank in range(size)]
    requests = [group.all_reduce(array, "max") for group, array in zip(groups, arrays, strict=True)]
    left, trips = set(range(size)), 0
    while left:
        trips += 1
        network.deliver_all()
        left = {rank for rank in left if not requests[rank].test()}
    assert all(array.tolist() == [size - 1, 0, 1] for array in arrays)
    assert (
        max(network.sent.values()) <= FANOUT + 2 and max(network.taken.values()) <= 2 * FANOUT + 1
    )
    assert max(network.bytes.values()) <= (FANOUT + 2) * (16 + 24)
    assert sum(network.sent.values()) == 3 * (size - 1)
    assert trips <= 3 * math.ceil(math.log(size, FANOUT)) + 3


@pytest.mark.parametrize("size", [1, 5, 6, 23])
def test_texts_of_any_length(size: int) -> None:
    found = {}

    def body(comm: Any) -> None:
        group = FaultTolerantCollectives(comm, range(size), 10)
        rows = group.gather_text("é" * (comm.rank * 1000))
        found[comm.rank] = rows, group.broadcast_text("x" * 100_000 if comm.rank == 0 else None)
        assert group.all_gather_text(f"{comm.rank}") == [f"{rank}" for rank in range(size)]

    on_all(thread_world(size, seed=size), body)
    for rank in range(size):
        rows, said = found[rank]
        assert said == "x" * 100_000
        assert rows == (None if rank else ["é" * (r * 1000) for r in range(size)])
