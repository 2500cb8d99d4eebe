"""The state of a queue by itself: who is served when, closing, and what a simple model says."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hpcflow.errors import CancelledError, OutOfRangeError
from hpcflow.runtime.state.queue_backpressure import FifoOrder, PriorityOrder, Queue, RandomOrder


def fifo(capacity=3):
    return Queue("FIFOQueue", "q", FifoOrder(), capacity)


def put(queue, *values):
    return queue.enqueue([(v,) for v in values])


def got(attempt):
    assert attempt.completed and attempt.error is None
    return [v for (v,) in attempt.elements]


def failed(attempt, kind):
    assert attempt.completed
    return isinstance(attempt.error, kind)


def test_enqueues_wait_for_room_in_the_order_in_which_they_came():
    queue = fifo(2)
    first, second, third = put(queue, 1, 2), put(queue, 3), put(queue, 4)
    assert first.completed and not second.completed and not third.completed
    assert got(queue.dequeue()) == [1]
    assert second.completed and not third.completed
    assert got(queue.dequeue(3)) == [2, 3, 4]
    assert third.completed and len(queue) == 0


def test_dequeues_wait_for_elements_in_the_order_in_which_they_came():
    queue = fifo()
    three, one = queue.dequeue(3), queue.dequeue()
    put(queue, 1, 2)
    assert (
        not three.completed and not one.completed and len(queue) == 0
    )  # taken, one after the other
    put(queue, 3, 4)
    assert got(three) == [1, 2, 3] and got(one) == [4]


def test_more_than_fit_go_through_one_after_the_other():
    queue = fifo(2)
    many = put(queue, *range(10))
    assert not many.completed
    assert got(queue.dequeue(9)) == list(range(9))
    assert many.completed and len(queue) == 1


def test_nothing_and_no_limit():
    queue = fifo(-1)
    assert put(queue).completed and got(queue.dequeue(0)) == []
    assert put(queue, *range(1000)).completed and len(queue) == 1000


def test_closing_lets_in_who_waits_and_refuses_who_comes():
    queue = fifo(1)
    put(queue, 1)
    waits, closing, late = put(queue, 2), queue.close(), put(queue, 3)
    assert not waits.completed and not closing.completed and not late.completed and not queue.closed
    assert got(queue.dequeue()) == [1]
    assert waits.completed and waits.error is None and closing.completed and queue.closed
    assert failed(late, CancelledError)
    assert failed(put(queue, 4), CancelledError)
    assert got(queue.dequeue()) == [2]
    assert failed(queue.dequeue(), OutOfRangeError)
    assert queue.close().completed  # again


def test_closing_with_cancel_refuses_who_waits():
    queue = fifo(1)
    put(queue, 1)
    waits = put(queue, 2)
    assert queue.close(cancel=True).completed
    assert failed(waits, CancelledError)
    assert got(queue.dequeue()) == [1]


def test_closing_releases_who_waits_for_elements():
    queue = fifo()
    put(queue, 1, 2)
    exact, some, none = queue.dequeue(4), queue.dequeue(4, allows_partial=True), queue.dequeue()
    assert not (exact.completed or some.completed or none.completed)
    queue.close()
    assert failed(exact, OutOfRangeError)
    assert "has 2 element(s); 4 were asked for" in str(exact.error)
    assert got(some) == [1, 2]  # what the first had taken was put back
    assert failed(none, OutOfRangeError)
    assert failed(queue.dequeue(1, allows_partial=True), OutOfRangeError)


def test_who_leaves_gives_back_what_it_took_and_lets_the_next_one_go():
    queue = fifo(2)
    many, one = queue.dequeue(3), queue.dequeue()
    put(queue, 1, 2)
    many.cancel()
    assert failed(many, CancelledError)
    assert got(one) == [1] and len(queue) == 1
    put(queue, 3)
    first, second = put(queue, 4), put(queue, 5)
    first.cancel()
    first.cancel()  # again
    assert failed(first, CancelledError) and not second.completed
    assert got(queue.dequeue(3)) == [2, 3, 5]


def test_random_order_keeps_some_back_and_repeats_with_its_key():
    def order(key):
        queue = Queue("RandomShuffleQueue", "q", RandomOrder(key), 100, 10)
        put(queue, *range(50))
        taken = got(queue.dequeue(40))
        waits = queue.dequeue()
        assert not waits.completed
        queue.close()
        return taken + got(waits) + got(queue.dequeue(9))

    first = order(1)
    assert sorted(first) == list(range(50)) and first != sorted(first)
    assert order(1) == first != order(2)


def test_random_order_is_fair():
    counts = collections.Counter()
    for key in range(3000):
        queue = Queue("RandomShuffleQueue", "q", RandomOrder(key))
        put(queue, *range(6))
        counts[tuple(got(queue.dequeue(2)))] += 1
    assert len(counts) == 30
    assert max(counts.values()) < 1.6 * 3000 / 30 and min(counts.values()) > 0.5 * 3000 / 30


def test_priorities_first_and_the_oldest_of_equal_ones():
    queue = Queue("PriorityQueue", "q", PriorityOrder(), 10)
    queue.enqueue([(2, "a"), (1, "b"), (2, "c"), (1, "d"), (-5, "e")])
    many = queue.dequeue(6)
    many.cancel()  # all go back where they were
    queue.enqueue([(1, "f")])
    assert [x for _, x in queue.dequeue(6).elements] == ["e", "b", "d", "f", "a", "c"]


BATCHES = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=5)


@given(BATCHES, BATCHES, st.integers(1, 9))
def test_a_dequeue_that_waited_gets_the_smallest_in_order(before, after, wanted):
    """What comes while it waits competes with what was there when it began to wait."""
    queue, came = Queue("PriorityQueue", "q", PriorityOrder()), []

    def put_next(batch):
        elements = [(priority, len(came) + i) for i, priority in enumerate(batch)]
        queue.enqueue(elements)
        came.extend(elements)

    for batch in before:
        put_next(batch)
    waits = queue.dequeue(wanted)
    for batch in after:
        if not waits.completed:
            put_next(batch)
    assert waits.completed == (len(came) >= wanted)
    if waits.completed:
        assert list(waits.elements) == sorted(came)[:wanted]


class Model(RuleBasedStateMachine):
    """A FIFO queue beside a model that walks its two lines as plainly as can be."""

    def __init__(self):
        super().__init__()
        self.queue, self.inside, self.closed, self.number = fifo(4), [], False, 0
        self.puts, self.takes = [], []  # the lines: [attempt, what is left, ...]
        self.over = []  # (attempt, what it must have come to)

    def walk(self):
        moved = True
        while moved:
            moved = False
            if self.puts:
                attempt, left, closes = self.puts[0]
                if self.closed:
                    self.over.append((attempt, None if closes else CancelledError))
                    self.puts.pop(0)
                    moved = True
                elif left and len(self.inside) < 4:
                    self.inside.append(left.pop(0))
                    moved = True
                elif not left:
                    self.closed = closes
                    self.over.append((attempt, None))
                    self.puts.pop(0)
                    moved = True
            if self.takes:
                attempt, wanted, some, have = self.takes[0]
                if len(have) < wanted and self.inside:
                    have.append(self.inside.pop(0))
                    moved = True
                elif len(have) == wanted or (self.closed and some and have):
                    self.over.append((attempt, have))
                    self.takes.pop(0)
                    moved = True
                elif self.closed:
                    self.inside[:0] = have
                    self.over.append((attempt, OutOfRangeError))
                    self.takes.pop(0)
                    moved = True

    @rule(count=st.integers(0, 7))
    def enqueue(self, count):
        values = list(range(self.number, self.number + count))
        self.number += count
        self.puts.append([put(self.queue, *values), values, False])
        self.walk()

    @rule(count=st.integers(0, 7), some=st.booleans())
    def dequeue(self, count, some):
        self.takes.append([self.queue.dequeue(count, some), count, some, []])
        self.walk()

    @rule(at=st.integers(0, 3))
    def cancel_an_enqueue(self, at):
        if at < len(self.puts):
            attempt = self.puts.pop(at)[0]
            attempt.cancel()
            self.over.append((attempt, CancelledError))
            self.walk()

    @rule(at=st.integers(0, 3))
    def cancel_a_dequeue(self, at):
        if at < len(self.takes):
            attempt, _, _, have = self.takes.pop(at)
            attempt.cancel()
            self.inside[:0] = have
            self.over.append((attempt, CancelledError))
            self.walk()

    @rule(cancel=st.integers(0, 9))
    def close(self, cancel):
        if cancel == 0:
            self.closed = True
            self.over.append((self.queue.close(cancel=True), None))
        elif cancel == 1:
            self.puts.append([self.queue.close(), [], True])
        self.walk()

    @invariant()
    def all_finished(self):
        assert len(self.queue) == len(self.inside)
        assert self.queue.closed == self.closed
        for attempt, *_ in (*self.puts, *self.takes):
            assert not attempt.completed
        for attempt, end in self.over:
            if isinstance(end, type):
                assert failed(attempt, end)
            else:
                assert attempt.completed and attempt.error is None
                assert end is None or [v for (v,) in attempt.elements] == end


TestAgainstTheModel = Model.TestCase
TestAgainstTheModel.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.mark.parametrize("order", [FifoOrder, PriorityOrder, lambda: RandomOrder(3)])
def test_nothing_is_lost_or_doubled(order):
    queue = Queue("any", "q", order(), 5)
    attempts, taken = [], []
    for i in range(200):
        put(queue, i)
        if i % 3 == 0:
            attempts.append(queue.dequeue(4))
        if i % 7 == 0 and attempts:
            attempts[len(attempts) // 2].cancel()
    queue.close()
    attempts.append(queue.dequeue(200, allows_partial=True))
    for attempt in attempts:
        if attempt.error is None:
            taken += got(attempt)
    assert sorted(taken) == list(range(200))
