"""Which of the expected messages MpiCompletionQueue hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcflow.comm import mpi_request_polling
from hpcflow.comm.mpi_request_polling import MpiCompletionQueue
from hpcflow.errors import DeathError

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


def test_paced_messages_are_received_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only available ones count: a message that comes late keeps no other waiting."""
    monkeypatch.setattr(mpi_request_polling, "initialized_mpi", Library)
    available: dict[tuple[int, int], int] = {}
    started: dict[int, Transfer] = {}

    class Inbox:
        def probe_any(self) -> tuple[int, int, int] | None:
            key = next((key for key in available if key[0] not in started), None)
            return None if key is None else (*key, available[key])

        def probe(self, source: int, tag: int) -> tuple[int, int] | None:
            there = (source, tag) in available and source not in started
            return (source, available[source, tag]) if there else None

    def receive(source: int) -> Callable[[int], Transfer]:
        return lambda nbytes: started.setdefault(source, Transfer())

    watch, large = MpiCompletionQueue(Inbox()), mpi_request_polling.PACED_BYTES
    for source in range(5):
        watch.expect(source, 3, receive(source), source, paced=source != 4)  # type: ignore[arg-type]
    for source in (1, 2, 3, 4):  # that of 0 comes last
        available[source, 3] = large
    assert not watch.finished() and set(started) == {1, 4}
    started[1].over = True
    assert list(watch.finished()) == [1]
    watch.finished().clear()
    assert set(started) == {1, 2, 4}
    watch.drop_tokens(lambda token: token == 2)  # of a step that was given up
    watch.finished()
    assert set(started) == {1, 2, 3, 4}
    available[0, 3] = large
    started[3].over = started[4].over = True
    assert set(watch.finished()) == {3, 4}
    watch.finished().clear()
    assert set(started) == {0, 1, 2, 3, 4}
