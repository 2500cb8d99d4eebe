"""Headers of control messages: a dataclass for each kind, the fixed layout, and the MPI tags.

On the wire a header is eight int64 on one tag: the kind, three words, the bytes of the body, three
words. A body, if any, follows on another tag as plain bytes. `Header.layout` says which word holds
which field.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from hpcflow.comm.communicator import Channel, Communicator
from hpcflow.plan.cost.cost_model import HEADER_BYTES

HEADER_TAG, BODY_TAG, REPLY_TAG, FIRST_DATA_TAG = 1, 2, 3, 16
DRIVERS_TAG, MEETINGS_TAG = 10, 13  # collectives of drivers by messages; each uses three tags
WORDS = HEADER_BYTES // 8
KIND_WORD, STEP_WORD, BODY_WORD = 0, 3, 4  # positions in a header


class HeaderKind(enum.IntEnum):
    """The first word of a header."""

    REGISTER = 1
    STEP = 2
    REPORT = 3
    BYE = 4
    CLOSING = 5
    STOP = 6
    CALL = 7
    NOTE = 8
    MEETING = 9
    FAILED = 10
    CANCEL = 11
    PACE = 12
    DECLARE = 13
    ROUND = 14
    REST = 15
    POST = 16
    PLACE = 17
    VERDICT = 18
    TRAINED = 19
    FORGET = 20
    CLOSED = 21
    ASK_LOAD = 22
    LOAD = 23


@dataclasses.dataclass(frozen=True)
class Header:
    """A header message: base class of all kinds."""

    kind: ClassVar[HeaderKind]
    layout: ClassVar[tuple[int, ...]] = ()  # the word of each field, in the order of the fields

    def encode(self, body: int = 0) -> np.ndarray:
        """The eight words of this header, before a body of `body` bytes."""
        words = np.zeros(WORDS, np.int64)
        words[KIND_WORD], words[BODY_WORD] = self.kind, body
        for field, word in zip(dataclasses.fields(self), self.layout, strict=True):
            words[word] = getattr(self, field.name)
        return words


@dataclasses.dataclass(frozen=True)
class RegisterPlan(Header):
    """A driver registers its plan; the body is the receiver's partition."""

    kind, layout = HeaderKind.REGISTER, (1,)
    plan: int


@dataclasses.dataclass(frozen=True)
class StartStep(Header):
    """A driver starts step number `step` of a plan on one of its instances."""

    kind, layout = HeaderKind.STEP, (1, 2, STEP_WORD)
    plan: int
    instance: int
    step: int = 0


@dataclasses.dataclass(frozen=True)
class RequestReport(Header):
    """A driver requests the report of a served rank."""

    kind = HeaderKind.REPORT


@dataclasses.dataclass(frozen=True)
class DriverLeaves(Header):
    """A driver leaves the job: it starts no more steps here."""

    kind = HeaderKind.BYE


@dataclasses.dataclass(frozen=True)
class ProgramEnds(Header):
    """The program of a driver has ended, after so many barriers and collectives."""

    kind, layout = HeaderKind.CLOSING, (2, 3)
    barriers: int
    collectives: int


@dataclasses.dataclass(frozen=True)
class StopRequest(Header):
    """A stop request, passed on: a signal's number or one of `stop_signal.py`."""

    kind, layout = HeaderKind.STOP, (3,)
    number: int


@dataclasses.dataclass(frozen=True)
class CallService(Header):
    """Call a service; the body is the request as JSON."""

    kind = HeaderKind.CALL


@dataclasses.dataclass(frozen=True)
class SendNumber(Header):
    """Append a number to the `notes` of another driver."""

    kind, layout = HeaderKind.NOTE, (3,)
    number: int


@dataclasses.dataclass(frozen=True)
class WaitsAtBarrier(Header):
    """A driver waits at a barrier, after so many barriers and collectives; the body is why."""

    kind, layout = HeaderKind.MEETING, (2, 3)
    barriers: int
    collectives: int


@dataclasses.dataclass(frozen=True)
class StepFailed(Header):
    """To its driver: a step has failed on the sender; the body is the error."""

    kind, layout = HeaderKind.FAILED, (1, 2, 3)
    plan: int
    instance: int
    step: int


@dataclasses.dataclass(frozen=True)
class CancelStep(Header):
    """By its driver: cancel a step."""

    kind, layout = HeaderKind.CANCEL, (1, 2, 3)
    plan: int
    instance: int
    step: int


@dataclasses.dataclass(frozen=True)
class WorkerPace(Header):
    """To the chief: steps of a worker, ns of own work and of waiting in each, and its samples.

    The times are those of `train.step_timing.TimingRow`. The first word is `packed`.
    """

    kind, layout = HeaderKind.PACE, (1, 2, 3, 5, 6, 7)
    origin: int
    work_ns: int
    wait_ns: int
    millisamples: int
    mean_work_ns: int
    input_ns: int

    @staticmethod
    def packed(steps: int, session: int, dataset: int) -> int:
        """The first word: 16 bits for the dataset or -1, 24 for the session, 23 for the steps."""
        return steps << 40 | session << 16 | dataset + 1

    @property
    def steps(self) -> int:
        """The steps of the row."""
        return self.origin >> 40

    @property
    def session(self) -> int:
        """The number of the training session."""
        return self.origin >> 16 & 0xFFFFFF

    @property
    def dataset(self) -> int:
        """The number of the dataset that balances by speed; -1 for none."""
        return (self.origin & 0xFFFF) - 1


@dataclasses.dataclass(frozen=True)
class DeclareVariables(Header):
    """To the first server: the body is what the plans of a driver need of servers."""

    kind = HeaderKind.DECLARE


@dataclasses.dataclass(frozen=True)
class StartRound(Header):
    """By a server: step number `step` of a server-driven plan begins."""

    kind, layout = HeaderKind.ROUND, (1, 2, STEP_WORD)
    plan: int
    instance: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True)
class EndRounds(Header):
    """By a server: no more steps of a server-driven plan will follow."""

    kind, layout = HeaderKind.REST, (1,)
    plan: int


@dataclasses.dataclass(frozen=True)
class PostRequest(Header):
    """Call a service without an answer; the body is the request as JSON."""

    kind = HeaderKind.POST


@dataclasses.dataclass(frozen=True)
class ReplicaPosition(Header):
    """To the chief, in replica loss recovery: the joint steps that a replica has committed."""

    kind, layout = HeaderKind.PLACE, (1, 2, 3)
    recovery: int
    has_voted: int
    steps: int


@dataclasses.dataclass(frozen=True)
class RecoveryVerdict(Header):
    """By the chief, in replica loss recovery: what a replica does with the step in flight."""

    kind, layout = HeaderKind.VERDICT, (1, 2)
    recovery: int
    verdict: int


@dataclasses.dataclass(frozen=True)
class BatchTrained(Header):
    """To the first server: a worker has trained a batch of a dataset."""

    kind, layout = HeaderKind.TRAINED, (1, 2, 3, 5, 6)
    session: int
    dataset: int
    step: int
    epoch: int
    line: int


@dataclasses.dataclass(frozen=True)
class ForgetPlan(Header):
    """The driver will not run this plan again."""

    kind, layout = HeaderKind.FORGET, (1,)
    plan: int


@dataclasses.dataclass(frozen=True)
class SessionClosed(Header):
    """The driver closed a session: free its state."""

    kind, layout = HeaderKind.CLOSED, (1,)
    session: int


@dataclasses.dataclass(frozen=True)
class RequestLoad(Header):
    """The chief requests the load of a server; it does not wait for it."""

    kind = HeaderKind.ASK_LOAD


@dataclasses.dataclass(frozen=True)
class ServerLoad(Header):
    """To the chief: the clock of a server and the time that it has been idle, both in ns."""

    kind, layout = HeaderKind.LOAD, (1, 2)
    clock_ns: int
    idle_ns: int


HEADERS: dict[int, type[Header]] = {one.kind: one for one in Header.__subclasses__()}


def decode(words: Sequence[int]) -> Header:
    """The header with these words. Errors: KeyError for an unknown kind."""
    header = HEADERS[words[KIND_WORD]]
    return header(*(words[word] for word in header.layout))


class StepStartMessages:
    """Persistent messages that start the steps of one instance on other ranks.

    Only the step number changes.
    """

    def __init__(
        self, comm: Communicator, header: StartStep | StartRound, peers: Sequence[int]
    ) -> None:
        messages = [(header.encode(), peer) for peer in peers]
        self._all: list[tuple[Channel, np.ndarray]] = [
            (comm.send_channel(message, peer, HEADER_TAG), message) for message, peer in messages
        ]

    def send(self, step: int) -> None:
        """Start step number `step`."""
        for channel, message in self._all:
            message[STEP_WORD] = step
            channel.start()

    def close(self) -> None:
        """Free the channels; no message may be in flight on them."""
        for channel, _ in self._all:
            channel.close()
        self._all = []

    def unsent(self) -> Iterator[Channel]:
        """The channels whose message has not been sent yet."""
        return (channel for channel, _ in self._all if not channel.test())
