"""Headers of control messages: fixed layout, kinds and MPI tags.

A header is eight int64 [kind, plan, slot, step, bytes of the body, ...] on one tag. A body, if any,
follows on another tag as plain bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.communicator import Channel, Communicator
from hpcflow.plan.cost.message_overhead import HEADER_BYTES

HEADER_TAG, BODY_TAG, REPLY_TAG, FIRST_DATA_TAG = 1, 2, 3, 16
DRIVERS_TAG, MEETINGS_TAG = 10, 13  # collectives of drivers by messages; each uses three tags
REGISTER, STEP, REPORT, BYE, CLOSING, STOP = 1, 2, 3, 4, 5, 6
CALL, NOTE, MEETING = 7, 8, 9  # call a service, send a number, wait at a barrier
FAILED, CANCEL = 10, 11  # a step failed here (to its driver); cancel a step (by its driver)
PACE = 12  # to the chief: steps, ns of own work and of waiting in each, samples / 1000, dataset
DECLARE = 13  # what a driver's plans need of servers, to the first of them
POST = 16  # as CALL, without an answer
ROUND, REST = 14, 15  # by a server: a step of a server-driven plan begins; no more will follow
PLACE, VERDICT = 17, 18  # replica loss recovery: to the chief, by the chief
TRAINED = 19  # to the first server: session, dataset, step, epoch, line
FORGET = 20  # the driver will not run this plan again
CLOSED = 21  # the driver closed a session: free its state
WORDS = HEADER_BYTES // 8


def header(kind: int, plan: int = 0, slot: int = 0, step: int = 0, body: int = 0) -> np.ndarray:
    """A header message."""
    return np.array([kind, plan, slot, step, body, 0, 0, 0], np.int64)[:WORDS]


class Starts:
    """Persistent messages that start the steps of one instance on other ranks.

    Only the step number changes.
    """

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
        """Free the channels; no message may be in flight on them."""
        for channel, _ in self._all:
            channel.close()
        self._all = []

    def unsent(self) -> Iterator[Channel]:
        """The channels whose message has not been sent yet."""
        return (channel for channel, _ in self._all if not channel.test())
