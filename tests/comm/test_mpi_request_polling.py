"""Which of the expected messages MpiCompletionQueue hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcflow.comm import mpi_request_polling
from hpcflow.comm.mpi_request_polling import MpiCompletionQueue
from hpcflow.comm.mpi_requests import PacedChannel
from hpcflow.errors import CommError, DeathError

DEAD = 2


class Owner:
    """A communicator with a message for somebody else in front; rank DEAD has died."""

    def probe_any(self) -> tuple[int, int, int]:
        return 7, 1, 64

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        if source == DEAD:
            raise DeathError(f"probe of rank {source}")
        return (source, 8) if source == 3 else None


class Received:
    """A transfer that is over at once."""

    active = False


def test_a_message_of_a_dead_rank_is_over_and_does_not_stop_the_others() -> None:
    watch = MpiCompletionQueue(Owner())
    for source in (1, DEAD, 3):
        watch.expect(source, 20, lambda nbytes: Received(), f"from {source}")  # type: ignore[arg-type, return-value]
    assert list(watch.finished()) == [f"from {DEAD}", "from 3"]
    assert watch.tokens()[-1] == "from 1"


def test_other_errors_are_raised() -> None:
    class Broken(Owner):
        def probe(self, source: int, tag: int) -> tuple[int, int] | None:
            raise ValueError("of the library")

    watch = MpiCompletionQueue(Broken())
    watch.expect(1, 20, lambda nbytes: Received(), "from 1")  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError):
        watch.finished()


class Transfer:
    """A receive in flight until it is `over`."""

    def __init__(self) -> None:
        self.active, self.over, self.token, self.request = True, False, None, self

    def end(self, status: object) -> None:
        self.active = False


class Library:
    """MPI's Testsome over such transfers."""

    class Request:
        @staticmethod
        def Testsome(requests: list[Transfer], statuses: list[object]) -> list[int]:
            places = [i for i, request in enumerate(requests) if request.over]
            statuses[:] = [None] * len(places)
            return places


class Inbox:
    """A communicator with messages that are `available`; receives are `started` by their source."""

    def __init__(self) -> None:
        self.available: dict[tuple[int, int], int] = {}
        self.started: dict[int, Transfer] = {}

    def probe_any(self) -> tuple[int, int, int] | None:
        key = next((key for key in self.available if key[0] not in self.started), None)
        return None if key is None else (*key, self.available[key])

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        there = (source, tag) in self.available and source not in self.started
        return (source, self.available[source, tag]) if there else None

    def receive(self, source: int) -> Callable[[int], Transfer]:
        return lambda nbytes: self.started.setdefault(source, Transfer())


def test_paced_messages_are_received_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only available ones count: a message that comes late keeps no other waiting."""
    monkeypatch.setattr(mpi_request_polling, "initialized_mpi", Library)
    monkeypatch.setattr(mpi_request_polling, "PACED_S", 0.0)
    inbox = Inbox()
    watch, large = MpiCompletionQueue(inbox), mpi_request_polling.PACED_BYTES
    for source in range(5):
        watch.expect(source, 3, inbox.receive(source), source, paced=source != 4)  # type: ignore[arg-type]
    for source in (1, 2, 3, 4):  # that of 0 comes last
        inbox.available[source, 3] = large
    assert not watch.finished() and set(inbox.started) == {1, 4}
    inbox.started[1].over = True
    assert list(watch.finished()) == [1]
    watch.finished().clear()
    assert set(inbox.started) == {1, 2, 4}
    watch.drop_tokens(lambda token: token == 2)  # of a step that was given up
    watch.finished()
    assert set(inbox.started) == {1, 2, 3, 4}
    inbox.available[0, 3] = large
    inbox.started[3].over = inbox.started[4].over = True
    assert set(watch.finished()) == {3, 4}
    watch.finished().clear()
    assert set(inbox.started) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("reason", ["a fast network", "a sender that hangs"])
def test_paced_messages_are_received_together(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """After one that came fast, and beside one that does not come."""
    monkeypatch.setattr(mpi_request_polling, "initialized_mpi", Library)
    slowest = 1e3 if reason == "a fast network" else 0.0
    monkeypatch.setattr(mpi_request_polling, "SLOWEST_PACED_S", slowest)
    monkeypatch.setattr(mpi_request_polling, "PACED_S", slowest)
    inbox = Inbox()
    watch, large = MpiCompletionQueue(inbox), mpi_request_polling.PACED_BYTES
    for source in range(4):
        watch.expect(source, 3, inbox.receive(source), source, paced=True)  # type: ignore[arg-type]
        inbox.available[source, 3] = large
    watch.finished()
    if reason == "a fast network":
        assert set(inbox.started) == {0}
        inbox.started[0].over = True
        watch.finished()
        watch.finished()
    assert set(inbox.started) == {0, 1, 2, 3}


def test_a_paced_receive_that_cannot_start_is_over_by_its_error() -> None:
    """It is reported as other waits are, and its error is raised by its test."""

    class Broken:
        active = False

        def start(self) -> None:
            raise CommError("MPI_Start failed")

    inbox = Inbox()
    inbox.available[1, 3] = 100_000
    watch, channel = MpiCompletionQueue(inbox), PacedChannel(inbox, Broken(), 1, 3)  # type: ignore[arg-type]
    channel.start()
    channel.watched_by(watch, "wait")
    assert list(watch.finished()) == ["wait"]
    with pytest.raises(CommError, match="MPI_Start"):
        channel.test()


def test_an_abandoned_paced_receive_takes_what_still_comes() -> None:
    class Receive:
        active, starts = False, 0

        def start(self) -> None:
            self.starts += 1

    receive = Receive()
    channel = PacedChannel(Inbox(), receive, 1, 3)  # type: ignore[arg-type]
    channel.start()
    channel.abandon()
    channel.abandon()
    assert receive.starts == 1
