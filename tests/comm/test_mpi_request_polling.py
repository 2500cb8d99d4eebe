"""Which of the expected messages MpiCompletionQueue hands over."""

from __future__ import annotations

import pytest

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
