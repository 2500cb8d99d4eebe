"""Headers: small messages of one fixed layout, by which ranks tell each other what to do.

A header is eight int64 [kind, plan, slot, step, bytes of the body, ...] on one tag; a body, if any,
follows on another tag as plain bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.communicator import Channel, Communicator
from hpcflow.plan.cost.message_overhead import HEADER_BYTES

HEADER_TAG, BODY_TAG, REPLY_TAG, FIRST_DATA_TAG = 1, 2, 3, 16
DRIVERS_TAG, MEETINGS_TAG = 10, 13  # of drivers that come together at one; the next two, too
REGISTER, STEP, REPORT, BYE, CLOSING, STOP = 1, 2, 3, 4, 5, 6
CALL, NOTE, MEETING = 7, 8, 9  # have a service done, remember a number, wait for the others
FAILED, CANCEL = 10, 11  # of a step: to its driver that it failed here, by the driver to end it
PACE = 12  # to the chief: steps, ns of own work and of waiting in each, samples / 1000, dataset
DECLARE = 13  # what a driver's plans need of servers, to the first of them
POST = 16  # as CALL, but nobody waits for an answer
ROUND, REST = 14, 15  # by a server: a step of a plan that it repeats begins; there will be no more
PLACE, VERDICT = 17, 18  # of replicas, one of which has died: to the chief, and by it
TRAINED = 19  # to the first server: session, dataset, step, epoch, line
FORGET = 20  # a plan that its driver will run no more
CLOSED = 21  # a session of the driver, with what it has kept here
WORDS = HEADER_BYTES // 8


def header(kind: int, plan: int = 0, slot: int = 0, step: int = 0, body: int = 0) -> np.ndarray:
    """A header message."""
    return np.array([kind, plan, slot, step, body, 0, 0, 0], np.int64)[:WORDS]


class Starts:
    """The messages that start the steps of one instance on other ranks; only a number changes."""

    def __init__(
        self, comm: Communicator, kind: int, plan: int, slot: int, peers: Sequence[int]
    ) -> None:
        messages = [(header(kind, plan, slot), peer) for peer in peers]
        self._all: list[tuple[Channel, Any]] = [
            (comm.send_channel(message, peer, HEADER_TAG), message) for message, peer in messages
        ]

    def send(self, step: int) -> None:
        """Start step number `step`."""
        for channel, message in self._all:
            message[3] = step
            channel.start()

    def close(self) -> None:
        """Free the channels, on none of which anything is on its way."""
        for channel, _ in self._all:
            channel.close()
        self._all = []

    def unsent(self) -> Iterator[Channel]:
        """Those that have not left yet."""
        return (channel for channel, _ in self._all if not channel.test())
