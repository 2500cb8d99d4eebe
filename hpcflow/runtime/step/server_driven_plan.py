"""Server-driven plans: a parameter server repeats the plan of its synchronous updates by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcflow.errors import CancelledError, HpcflowError
from hpcflow.runtime.executor.executor import Engine
from hpcflow.runtime.job.message_headers import CancelStep, EndRounds, StartRound, Starts
from hpcflow.runtime.step.step_channels import Link
from hpcflow.runtime.step.step_instance import Compiled, Instance


class Repeated:
    """Steps of one plan, each begun when the previous one is over; waits in the plan set the pace.

    `peers` are the ranks of the other partitions, `tell` sends them headers. An error in a step
    ends the job, because no rank waits for the step and could receive the error.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        compiled: Compiled,
        link: Link,
        peers: Sequence[int],
        tell: Callable[..., None],
    ) -> None:
        assert engine.comm is not None
        self.engine, self.number, self.peers, self._tell = engine, number, peers, tell
        self.instance = Instance(compiled, link)
        self.instance.done, self.instance.failed = self._done, self._failed
        self.instance.patient = True
        self.starts = Starts(engine.comm, StartRound(number), peers)
        self.ordinal = 0
        self.ends = False
        self.rests = False  # whether it has ended, here and on the peers

    def begin(self) -> None:
        """Begin the next step."""
        if self.ends:
            self._rest()
            return
        self.ordinal += 1
        self.starts.send(self.ordinal)
        self.engine.start(self.instance, self.ordinal)
        for channel in self.starts.unsent():
            self.instance.left += 1
            self.engine.await_(channel, self.instance, None)

    def end(self) -> None:
        """Begin no more steps, and cancel the current one."""
        self.ends = True
        self.engine.fail(self.instance, CancelledError("the job has ended"))

    def _done(self, instance: Instance) -> None:
        if instance.error is not None and not self.ends:
            raise instance.error
        instance.release()
        self.engine.inbox.append(self.begin)

    def _failed(self, instance: Instance) -> None:
        for peer in self.peers:
            self._tell(peer, CancelStep(self.number, instance.slot, instance.step))

    def _rest(self) -> None:
        for peer in self.peers:
            self._tell(peer, EndRounds(self.number))
        self.rests = True

    # -- the protocol `hpcflow.runtime.job.control_messages.Driven`

    @property
    def in_flight(self) -> bool:
        """True until the last step has ended."""
        return not self.rests

    def cancel(self, why: str) -> None:
        """Does nothing: the plan ends with the job."""

    def failed_elsewhere(self, slot: int, step: int, error: HpcflowError) -> None:
        """A peer reports that its partition of a step failed."""
        if not self.ends:
            raise error
