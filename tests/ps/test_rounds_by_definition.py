"""The rules against their definition, which looks at all workers each time; and what they cost."""

import functools
import itertools
import sys

import numpy as np
import pytest

from hpcflow.ps import active_workers, sync_coordinator
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_coordinator import Contribution, SyncCoordinator
from hpcflow.ps.sync_rules import All

RULES = [All(), Backup(1), Backup(2), Stale(0), Stale(2)]
CHANNELS = ("first", "second")
SEEDS = range(80)


class Definition:
    """Server 0 as the rules define it (OSDI'16, section 4.4; Ho et al. 2013, section 3).

    An update is of the first n - K gradients of its version, of all where K is 0, or of those of
    all workers that are not elsewhere. A worker begins when what it gave is used or dropped and no
    update is under way; under bounded staleness when the slowest is at most S steps behind it.
    """

    def __init__(self, rule, workers):
        self.rule, self.workers = rule, workers
        self.meetings, self.clocks = np.zeros(workers, int), np.zeros(workers, int)
        self.used, self.late, self.dropped = (np.zeros(workers, int) for _ in range(3))
        self.ranks, self.lead = np.full(workers, -1), 0
        self.given = {name: np.full(workers, -1) for name in CHANNELS}
        self.version, self.ready = dict.fromkeys(CHANNELS, 0), {name: [] for name in CHANNELS}
        self.picked, self.closing = dict.fromkeys(CHANNELS, False), dict.fromkeys(CHANNELS, False)
        self.picker = dict.fromkeys(CHANNELS)
        self.begins, self.leaves = [], []

    @property
    def active(self):
        return set(np.flatnonzero(self.meetings == self.meetings.min()).tolist())

    def begin(self, worker, channel, go):
        self.begins.append((worker, channel, go))
        self.move()

    def withdraw(self, go):
        self.begins = [one for one in self.begins if one[2] is not go]

    def ready_(self, worker, channel, version, share):
        self.given[channel][worker] = max(version, self.given[channel][worker])
        if version < self.version[channel] or self.picked[channel]:
            self.late[worker] += 1
            self.dropped[worker] += 1
        else:
            self.ready[channel].append((worker, share))
        self.move()

    def pick(self, channel, go):
        self.picker[channel] = go
        self.move()

    def end(self, channel):
        self.version[channel] += 1
        self.picked[channel] = False
        self.move()

    def tick(self, worker):
        self.clocks[worker] += 1
        self.move()

    def leave_until_barrier(self, worker, go):
        self.meet(worker, self.meetings[worker] + 1)
        self.leaves.append((worker, go))
        self.move()

    def lose(self, worker):
        self.begins = [one for one in self.begins if one[0] != worker]
        self.leaves = [one for one in self.leaves if one[0] != worker]
        self.meet(worker, 1 << 40)
        self.move()

    def meet(self, worker, times):
        before = self.meetings.min()
        self.meetings[worker] = times
        if self.meetings.min() > before:
            self.clocks[:] = 0
            self.closing = {name: bool(self.ready[name]) for name in CHANNELS}

    def settled(self, worker):
        return not any(
            self.picked[name] or self.given[name][worker] >= self.version[name] for name in CHANNELS
        )

    def may_begin(self, worker):
        if not isinstance(self.rule, Stale):
            return self.settled(worker)
        ahead = self.clocks[worker] - min(self.clocks[w] for w in self.active | {worker})
        if ahead <= self.rule.bound:
            self.lead = max(self.lead, ahead)
        return ahead <= self.rule.bound

    def move(self):
        for name in CHANNELS:
            self.make_round(name)
        for one in list(self.begins):
            if self.may_begin(one[0]):
                self.begins.remove(one)
                one[2](self.version[one[1]])
        for one in list(self.leaves):
            if self.settled(one[0]):
                self.leaves.remove(one)
                one[1]()

    def make_round(self, name):
        there = {worker for worker, _ in self.ready[name]}
        if not there or self.picker[name] is None or self.picked[name]:
            return
        needed = self.rule.needed(self.workers)
        if len(there) < needed and not self.active <= there and not self.closing[name]:
            return
        first, rest = self.ready[name][:needed], self.ready[name][needed:]
        workers, shares = np.array(first).T
        np.add.at(self.used, workers.astype(int), 1)
        np.add.at(self.dropped, [worker for worker, _ in rest], 1)
        whole = len(first) == self.workers or not sum(shares)
        factors = np.zeros(self.workers)
        factors[workers.astype(int)] = 1.0 if whole else 1 / sum(shares)
        self.picked[name], self.closing[name], self.ready[name] = True, False, []
        go, self.picker[name] = self.picker[name], None
        go(factors)

    def missing(self):
        if isinstance(self.rule, Stale):
            least = min(self.clocks[w] for w in self.active)
            slow = [w for w in self.active if self.clocks[w] == least] if self.begins else []
        else:
            open_ = [self.ready[n] for n in CHANNELS if self.ready[n] and not self.picked[n]]
            slow = set().union(*(self.active - {w for w, _ in ready} for ready in open_))
        slow = sorted(slow)
        more = ", ..." if len(slow) > 3 else ""
        told = f"what worker {', '.join(map(str, slow[:3]))}{more} is to bring"
        return (told, self.ranks[slow[0]]) if slow else None

    def report(self):
        if isinstance(self.rule, Stale):
            return {"rule": str(self.rule), "lead": self.lead}
        counts = {"used": self.used, "late": self.late, "dropped": self.dropped}
        return {"rule": str(self.rule), **{name: list(n) for name, n in counts.items()}}


class Both:
    """The two side by side: each call is made on both, and they let go of the same, in order."""

    def __init__(self, rule, workers):
        self.made, self.defined = SyncCoordinator(rule, workers), Definition(rule, workers)
        for name in CHANNELS:  # updates that are made at once are made in this order
            self.made.channel(name)
        self.made.ranks = self.defined.ranks = list(range(10, 10 + workers))
        self.told = ([], [])
        self.numbers = itertools.count()
        self.waiting = {}  # number -> what to withdraw on each
        self.under_way, self.kinds = set(), set()

    def listener(self, kind, *facts):
        number = next(self.numbers)

        def listen(log, *values):
            log.append((kind, number, *facts, *(np.asarray(v).tolist() for v in values)))

        return number, [lambda *v, log=log: listen(log, *v) for log in self.told]

    def call(self, name, *arguments, listeners=(None, None)):
        for one, listener in zip((self.made, self.defined), listeners, strict=True):
            method = getattr(one, "ready_" if name == "ready" and one is self.defined else name)
            method(*arguments, *([listener] if listener else []))
        self.compare()

    def compare(self):
        assert self.told[0] == self.told[1]
        assert self.made.missing() == self.defined.missing()
        assert self.made.report() == self.defined.report()
        for kind, _, name, *_ in self.told[0]:
            self.kinds.add(kind)
            if kind == "pick":
                self.under_way.add(name)
        for log in self.told:
            log.clear()

    def begin(self, worker, channel):
        number, listeners = self.listener("begin", channel)
        self.waiting[number] = listeners
        self.call("begin", worker, channel, listeners=listeners)

    def withdraw(self, which):
        if self.waiting:  # or has begun long ago
            listeners = self.waiting.pop(sorted(self.waiting)[which % len(self.waiting)])
            self.call("withdraw", listeners=listeners)

    def end(self, channel):
        if channel in self.under_way:
            self.under_way.discard(channel)
            self.call("end", channel)


def any_step(random, both, living):
    """One thing that a job may do, or that it may not: the rules know no order."""
    worker, channel = int(random.choice(living)), CHANNELS[random.integers(2)]
    what = random.choice(list("bbbrrrrpeettttaxd"))
    if what == "b":
        both.begin(worker, channel)
    elif what == "r" and both.defined.rule.joins:
        version = both.defined.version[channel] - int(random.integers(4) == 0)
        both.call("ready", worker, channel, version, float(random.integers(4)))
    elif what == "p" and both.defined.rule.joins and channel not in both.under_way:
        both.call("pick", channel, listeners=both.listener("pick", channel)[1])
    elif what == "e":
        both.end(channel)
    elif what == "t":
        both.call("tick", worker)
    elif what == "a":
        both.call("leave_until_barrier", worker, listeners=both.listener("left", "")[1])
    elif what == "x":
        both.withdraw(int(random.integers(100)))
    elif what == "d" and len(living) > 1 and random.integers(5) == 0:
        living.remove(worker)
        both.call("lose", worker)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_any_sequence_of_calls_has_the_outcome_of_the_definition(rule):
    seen, meetings, deaths = set(), 0, 0
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        workers = int(random.integers(getattr(rule, "extra", 0) + 1, 9))
        both, living = Both(rule, workers), list(range(workers))
        for _ in range(150):
            any_step(random, both, living)
        seen |= both.kinds
        meetings += int(both.defined.meetings.min())
        deaths += workers - len(living)
    assert seen == {"begin", "left", *(["pick"] if rule.joins else [])}
    assert meetings > 20 and deaths > 20


class Visits:
    """How many lines of the rules have run, and how many elements of their containers were read.

    A loop in Python runs a line each time around; one in C over a set or a list is counted here.
    """

    def __init__(self, monkeypatch):
        self.count = 0

        def reads(self_, *others):
            self.count += len(self_) + sum(len(one) for one in others if hasattr(one, "__len__"))

        def counting(kind, *names):
            def counted(name):
                plain = getattr(kind, name)

                def method(one, *others):
                    reads(one, *others)
                    return plain(one, *others)

                return method

            return type(f"Counting{kind}", (kind,), {name: counted(name) for name in names})

        walks = ("__iter__", "copy")
        sets = ("__and__", "__or__", "__sub__", "__le__", "__ge__", "__eq__", "union", "issubset")
        self.set = counting(set, *walks, *sets)
        self.list = counting(list, *walks, "__contains__", "index", "count", "__eq__")
        for module in (sync_coordinator, active_workers):
            monkeypatch.setattr(module, "set", self.set, raising=False)

    def watched(self, rule, workers):
        """The rules of a server, whose lists of all workers are counted as well."""
        made = SyncCoordinator(rule, workers)
        for owner in (made, made._present, made._clocks, made.channel("train")):
            for name, value in vars(owner).items():
                if isinstance(value, list) and len(value) == workers:
                    setattr(owner, name, self.list(value))
        return made

    def of(self, play, most=float("inf")):
        """Those of `play()`, which has failed when it has made more than so many."""
        files, self.count = {sync_coordinator.__file__, active_workers.__file__}, 0

        def line(frame, event, argument):
            self.count += event == "line"
            if self.count > most:
                raise AssertionError(f"more than {most:.0f} visits")
            return line

        before = sys.gettrace()
        sys.settrace(lambda frame, *_: line if frame.f_code.co_filename in files else None)
        try:
            play()
        finally:
            sys.settrace(before)
        return self.count


def play(made, workers, steps=3):
    """Steps of all workers, who come in another order each time; then they meet, but one dies."""
    random = np.random.default_rng(workers)
    joins, left, begun, released, sums = made.rule.joins, [], [], [], []

    def make(factors):
        sums.append(made.total("train", "g", "sum", factors))

    for step in range(steps):
        if joins:
            made.pick("train", make)
        for worker in random.permutation(workers).tolist():
            if joins:
                given = Contribution(step, (np.ones(1),), lambda: released.append(1))
                made.add("train", "g", worker, given)
                made.ready(worker, "train", step, 1 / workers)
            else:
                made.tick(worker)
            made.begin(worker, "train", lambda version: begun.append(version))
            made.missing()
        if joins:
            assert not begun  # until the round is over
            made.end("train")
            assert begun == workers * [step + 1]
            assert len(released) == workers * len(sums)
        assert len(begun) == workers
        begun.clear()
    for worker in random.permutation(workers).tolist():
        if worker == workers - 1:
            made.lose(worker)
        else:
            made.leave_until_barrier(worker, functools.partial(left.append, worker))
    assert len(left) == workers - 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", [All(), Backup(3), Stale(0)], ids=str)
def test_a_step_of_one_of_many_workers_costs_no_more_than_one_of_few(rule, monkeypatch):
    visits, few, many = Visits(monkeypatch), 16, 10_000
    one = visits.of(lambda: play(visits.watched(rule, few), few)) / few
    assert one > 10
    assert visits.of(lambda: play(visits.watched(rule, many), many), 1.5 * one * many)
