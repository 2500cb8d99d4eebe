"""Server-driven plans: a parameter server repeats the plan of its synchronous updates by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcflow.errors import CancelledError, HpcflowError
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.job.message_headers import CancelStep, EndRounds, StartRound, StepStartMessages
from hpcflow.runtime.step.step_channels import PartitionPeers
from hpcflow.runtime.step.step_instance import CompiledPartition, StepInstance


class ServerDrivenPlan:
    """Steps of one plan, each begun when the previous one is over; waits in the plan set the pace.

    `peers` are the ranks of the other partitions, `tell` sends them headers. An error in a step
    ends the job, because no rank waits for the step and could receive the error.
    """

    def __init__(
        self,
        executor: Executor,
        number: int,
        compiled: CompiledPartition,
        link: PartitionPeers,
        peers: Sequence[int],
        send: Callable[..., None],
    ) -> None:
        assert executor.comm is not None
        self.executor, self.number, self.peers, self._send = executor, number, peers, send
        self.instance = StepInstance(
            compiled, link, on_done=self._end_step, failed=self._failed, patient=True
        )
        self.starts = StepStartMessages(executor.comm, StartRound(number), peers)
        self.ordinal = 0
        self.ends = False
        self.is_paused = False  # whether it has ended, here and on the peers

    def begin(self) -> None:
        """Begin the next step."""
        if self.ends:
            self._end_rounds()
            return
        self.ordinal += 1
        self.starts.send(self.ordinal)
        self.executor.start(self.instance, self.ordinal)
        for channel in self.starts.unsent():
            self.instance.extend()
            self.executor.wait_for(channel, self.instance, None)

    def end(self) -> None:
        """Begin no more steps, and cancel the current one."""
        self.ends = True
        self.executor.fail(self.instance, CancelledError("the job has ended"))

    def _end_step(self, instance: StepInstance) -> None:
        if instance.error is not None and not self.ends:
            raise instance.error
        instance.release()
        self.executor.inbox.append(self.begin)

    def _failed(self, instance: StepInstance) -> None:
        for peer in self.peers:
            self._send(peer, CancelStep(self.number, instance.slot, instance.step))

    def _end_rounds(self) -> None:
        for peer in self.peers:
            self._send(peer, EndRounds(self.number))
        self.is_paused = True

    # -- the protocol `hpcflow.runtime.job.control_messages.DrivenPlan`

    @property
    def in_flight(self) -> bool:
        """True until the last step has ended."""
        return not self.is_paused

    def cancel(self, reason: str) -> None:
        """Does nothing: the plan ends with the job."""

    def failed_elsewhere(self, slot: int, step: int, error: HpcflowError) -> None:
        """A peer reports that its partition of a step failed."""
        if not self.ends:
            raise error
