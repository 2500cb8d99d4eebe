"""Replica loss recovery (shrink): synchronous replicas continue without one that has died.

Each replica detects the death by a failed message or allreduce, or by MPI's notification. It then
suspends all allreduces and reports its place to the chief. The chief's verdicts
(`runtime/failure/commit_decision.py`) bring all replicas to the beginning of the same step. They
create a communicator without the dead rank, by MPI's Revoke and Shrink, and rebuild what depends on
the replicas: roles, allreduces, plans, the sharding of data. They run the step again, on its global
batch sharded anew. No variable is copied or rolled back. The death of the chief ends the job. A
*joint step* is a step with collectives over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from hpcflow.comm.communicator import Communicator
from hpcflow.comm.fault_tolerant_collectives import FaultTolerantCollectives
from hpcflow.errors import CommError, DeathError, HpcflowError, LaunchError
from hpcflow.plan.communication.atomic_step_commit import COMMIT as VOTE
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.failure.commit_decision import COMMIT, CommitDecision
from hpcflow.runtime.job.message_headers import (
    DRIVERS_TAG,
    MEETINGS_TAG,
    Header,
    RecoveryVerdict,
    ReplicaPosition,
)
from hpcflow.runtime.job.rank_role import RankRole
from hpcflow.runtime.step.step_instance import StepInstance

if TYPE_CHECKING:
    from hpcflow.ops.random.random_kernels import DrawCount

StorageT = TypeVar("StorageT")


class StepInterrupted(HpcflowError):
    """No replica committed a joint step, because one has died: the others run it again."""


class FaultTolerantJob(NamedTuple):
    """What a job has that continues without workers that die."""

    spares: frozenset[int]  # ranks whose death the job may survive
    drivers: FaultTolerantCollectives | None
    meetings: FaultTolerantCollectives | None


def tolerant(here: RankRole, world: Communicator) -> FaultTolerantJob:
    """Prepare the job to continue without workers that die; called before `join_sums`.

    Errors: LaunchError where the job could not continue.
    """
    if here.is_spread:
        raise LaunchError(
            "survive=1, but no rank of this job can be spared: a replica has several ranks",
            rank=here.rank,
            hint="leave out --tasks-per-replica, or --survive",
        )
    if here.settings.dense == "replicas" and here.cluster.mode == "ps":
        raise LaunchError(
            "survive=1 with dense=replicas: no rank of this job can be spared",
            rank=here.rank,
            hint="leave out one of both",
        )
    world.tolerate_deaths()
    drivers, beside = here.roles.drivers, here.executor.background_requests
    spares = frozenset(drivers[1:])
    if not here.is_driver:
        return FaultTolerantJob(spares, None, None)
    return FaultTolerantJob(
        spares,
        FaultTolerantCollectives(world, drivers, DRIVERS_TAG, beside),
        FaultTolerantCollectives(world, drivers, MEETINGS_TAG, beside),
    )


class ReplicaLossRecovery:
    """Recovery on this replica; `base` is the MPI communicator of all replicas.

    Errors: LaunchError if the allreduces use NCCL, which cannot be rebuilt.
    """

    def __init__(
        self,
        here: RankRole,
        base: Communicator,
        join_sums: Callable[[Communicator], None],
        send_header: Callable[[int, Header], None],
    ) -> None:
        """`send_header` sends a header to a rank."""
        if here.devices_sum:
            raise LaunchError(
                "survive=1, but sums by NCCL cannot go on when a GPU's rank has died",
                rank=here.rank,
                hint="set HPCFLOW_COMM=shared (sums on the hosts), or leave out --survive",
            )
        self._rank, self._executor = here, here.executor
        self._join_sums, self._send = join_sums, send_header
        self._executor.keep_joint_steps()
        self._base: Any = base  # an MpiCommunicator: no other is fault tolerant
        self._verdicts = CommitDecision()  # on the chief
        self.round = 0  # number of recoveries
        self._steps = 0  # joint steps that this replica has committed
        self.broken = False  # a replica has died since the last recovery
        self.due = False  # all are at the same step, and run it again after the recovery
        self._failure: Exception | None = None  # the last error in rebuilding the allreduces
        self._abandoned: list[object] = []  # keeps memory alive that MPI may still write to

    # -- before the verdict

    def lose(self, rank: int) -> None:
        """`rank` has died: suspend all allreduces and report this replica's place to the chief.

        Errors: DeathError if the step in flight cannot be run again.
        """
        if rank not in self._rank.roles.drivers:
            return  # a previous recovery has removed it
        if self.broken:
            self._decide()  # the chief may have waited for its place only
            return
        self.broken = True
        self._executor.pause_collectives()
        flight = self._flight()
        if flight is not None and VOTE not in flight.buckets:
            node = flight.part.nodes[next(iter(flight.buckets))]
            raise DeathError(
                f"rank {rank} has died in a step that sums a value that it updates; such a "
                "step cannot be repeated",
                op=node.name,
                line=node.line,
                rank=self._rank.rank,
            )
        if flight is None or not flight.has_voted or self._vote_rests(flight):
            self._report_position(flight is not None and flight.has_voted)

    def _vote_rests(self, flight: StepInstance) -> bool:
        """Whether the last allreduce of a step was in progress when all were suspended."""
        return any(
            step is flight and what == VOTE for _, step, what in self._executor.paused_collectives
        )

    def _flight(self) -> StepInstance | None:
        flights = [flight for flight in self._executor.joint or () if not flight.finished]
        if len(flights) > 1:
            raise DeathError(
                "a replica has died while two steps with collectives were in flight; they cannot "
                "be repeated",
                rank=self._rank.rank,
                hint="run steps with collectives from one thread",
            )
        return flights[0] if flights else None

    def commit_step(self, instance: StepInstance) -> None:
        """A joint step has ended; it is committed unless it failed on this replica."""
        if instance.error is not None:
            return
        self._steps += 1
        if self.broken:
            self._report_position(voted=False)

    def check(self) -> None:
        """Called before a joint step. Errors: Interrupted if the replicas have to recover first."""
        if self.due:
            raise StepInterrupted("a replica has died")

    def _report_position(self, voted: bool) -> None:
        here, position = self._rank, ReplicaPosition(self.round, int(voted), self._steps)
        if here.is_chief:
            self.receive_position(here.rank, position)
        else:
            self._send(here.roles.drivers[0], position)

    # -- the verdict

    def receive_position(self, rank: int, position: ReplicaPosition) -> None:
        """On the chief: record the place of `rank`, and decide if possible."""
        if position.recovery == self.round:
            self._verdicts.add_position(rank, position.steps, bool(position.has_voted))
            self._decide()

    def _decide(self) -> None:
        here = self._rank
        if not (self.broken and here.is_chief):
            return
        living = [r for r in here.roles.drivers if r not in self._lost_replicas]
        try:
            verdicts = self._verdicts.decide(living)
        except ValueError as error:
            raise DeathError(f"the replicas cannot go on: {error}", rank=here.rank) from error
        for rank, decision in verdicts.items():
            verdict = RecoveryVerdict(self.round, decision)
            if rank == here.rank:
                self.apply_verdict(verdict)
            else:
                self._send(rank, verdict)

    def apply_verdict(self, message: RecoveryVerdict) -> None:
        """Apply the chief's verdict: commit the step in flight, or interrupt it."""
        if message.recovery != self.round:
            return
        flight = self._flight()
        if message.verdict == COMMIT:
            assert flight is not None, "who has voted has a step in flight"
            self._executor.mark_over(flight, VOTE)
            return
        self.due = True
        if flight is not None:
            flight.error, flight.is_broken = StepInterrupted("a replica has died"), True

    # -- after it

    @property
    def has_unrecovered_loss(self) -> bool:
        """Whether this rank has detected the death of a replica that it has not recovered from."""
        return not set(self._rank.roles.drivers).isdisjoint(self._lost_replicas)

    @property
    def _lost_replicas(self) -> tuple[int, ...]:
        return self._executor.comm.lost if self._executor.comm is not None else ()

    def recover(self) -> bool:
        """Recover if any replica has detected a death; whether one has.

        Ranks: all live replicas, each between the same two joint steps.
        """
        here, short = self._rank, np.array([self.has_unrecovered_loss], np.int64)
        assert here.drivers is not None
        here.executor.finish(here.drivers.all_reduce(short, "max"), "who lives")
        if short[0]:
            self.rebuild()
        return bool(short[0])

    def rebuild(self) -> None:
        """Recover: rebuild the communicator and the allreduces with the live replicas.

        Ranks:  all live replicas, each before the same joint step.
        Errors: CommError if the allreduces cannot be rebuilt although no further replica has died.
        """
        here = self._rank
        with here.rebuilds():
            here.executor.run_locked(self._rebuild, lambda: True)
        for follower in list(here.followers):
            follower.replicas_changed()
        if here.is_chief:
            count = len(here.roles.drivers)
            logger.info(
                "%s to the same step again",
                "1 replica comes" if count == 1 else f"{count} replicas come",
            )

    def make(self, storage: Callable[[], StorageT]) -> StorageT:
        """The storage for allreduces that `storage` creates, on all live replicas or on none.

        Errors: Interrupted on all if it failed on one, for instance because another has died.
        """
        with self._rank.rebuilds():
            try:
                memory, error = storage(), None
            except (CommError, RuntimeError) as raised:
                memory, error = None, raised
                self._base.revoke()  # releases the ranks that wait for this one
            agreed = self._base.all_agree(error is None)
        if memory is None or not agreed:
            self._failure = error
            raise StepInterrupted("a replica has died") from error
        return memory

    def _rebuild(self) -> None:
        while not self._is_rebuilt():
            pass

    def _is_rebuilt(self) -> bool:
        """Rebuild with the live replicas; False on all of them if one more has died meanwhile."""
        here = self._rank
        self._abandoned += [here.group, self._executor.abandon_collectives()]
        self._base = self._base.without_lost()
        workers = self._base.top_ranks
        if len(workers) == len(here.roles.workers):  # no further death: another error
            raise CommError(
                f"collectives over replicas cannot be set up: {self._failure}", rank=here.rank
            ) from self._failure
        here.shrink(workers)
        self._verdicts = CommitDecision()
        self.round, self.broken, self.due = self.round + 1, False, False
        try:
            self._join_sums(self._base)
            return bool(self._base.all_agree(True))
        except (CommError, RuntimeError) as error:
            self._failure = error
            self._base.revoke()
            return bool(self._base.all_agree(False))


def snapshot_draws(draws: Mapping[tuple[str, str], DrawCount]) -> Callable[[], None]:
    """A function that resets the random operations to their state at this call."""
    snapshot = [(draw, draw.total) for draw in draws.values()]

    def restore() -> None:
        for draw, count in snapshot:
            draw.continue_after(count)

    return restore
