"""The trace of a job: each rank records its part, and the chief writes one file for all ranks.

It is installed if the setting `trace` names a file (`HPCFLOW_TRACE=FILE`). A part is a file on a
local disk of the node (`trace_part.node_folder`). At the end of the job the chief fetches by MPI
the parts that its own node does not have, and merges them. A job that dies leaves the parts;
`hpcflow run` merges those of its host, `hpcflow trace` any.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from hpcflow.comm.polling_backoff import machine_id
from hpcflow.errors import DataError, DeathError, LaunchError
from hpcflow.graph.device_names import parse_device
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.job.service_registry import Reply
from hpcflow.runtime.profile import trace_part
from hpcflow.runtime.profile.clock_offset import ClockReading, answer_pings, measure_offset
from hpcflow.runtime.profile.trace_part import PartFacts, TracePart
from hpcflow.runtime.profile.trace_recorder import TraceRecorder

MOST_EVENTS = 200_000  # of a rank
MOST_OF_JOB = 2_000_000  # of all ranks: a file of about 300 MB


class JobTrace:
    """This rank's part of the trace, and what the ranks do together.

    Ranks: all construct it collectively.
    """

    def __init__(self, context: Any) -> None:
        """Errors: LaunchError if the part cannot be created."""
        self._context, self._world = context, context.world
        self.folder = trace_part.node_folder(context.settings.trace)
        self.machines = (self._world.machines if self._world else ()) or (machine_id(),)
        if len(self.machines) < context.size:
            self.machines = (self.machines[0],) * context.size
        limit = min(MOST_EVENTS, MOST_OF_JOB // context.size)
        try:
            self.part = TracePart(self.folder, self._part_facts(), limit)
        except OSError as error:
            raise LaunchError(
                f"the trace cannot be recorded in {self.folder}: {error.strerror or error}",
                rank=context.rank,
                hint="give a folder of a local disk in the variable TMPDIR",
            ) from None
        self._keeps = False  # the parts are left, as the file of all ranks could not be written
        self._recorder = TraceRecorder(context, self.part, self.clock)
        context.observe(self._recorder)
        context.executor.observe(self._recorder)
        context.before_abort.append(self._before_abort)
        self._first_readings()

    def clock(self) -> int:
        """The time in nanoseconds, by the monotonic clock of this machine."""
        return time.monotonic_ns()

    def _part_facts(self) -> PartFacts:
        context, rank = self._context, self._context.rank
        job = os.urandom(16).hex()
        if self._world is not None and context.size > 1:
            job = self._world.broadcast_text(job)
        group = -1 if context.is_server else parse_device(context.task).task or 0
        task, host, machine = context.task_name(rank), context.hosts[rank], self.machines[rank]
        return PartFacts(job, rank, context.size, task, group, host, machine, context.is_chief)

    # -- clocks

    def _measured_ranks(self, lost: tuple[int, ...] = ()) -> dict[str, int]:
        """The first living rank of each machine but the chief's, by machine."""
        first: dict[str, int] = {}
        for rank, machine in enumerate(self.machines):
            if rank not in lost:
                first.setdefault(machine, rank)
        first.pop(self.machines[self._context.roles.drivers[0]])
        return first

    def _first_readings(self) -> None:
        """Read the clocks of the other machines at the start of the trace."""
        context = self._context
        for machine, rank in self._measured_ranks().items():
            if context.is_chief:
                self._note(machine, measure_offset(self._world, rank, self.clock))
            elif context.rank == rank:
                answer_pings(self._world, context.roles.drivers[0], self.clock)

    def _note(self, machine: str, reading: ClockReading) -> None:
        self.part.add_fact([trace_part.CLOCK, machine, *reading])

    # -- the end

    def gather(self) -> None:
        """Write the file of all ranks. Collective over the drivers, after their last step."""
        context = self._context
        if context.is_chief:
            self._write()
        if context.meetings is not None and context.meetings.size > 1:
            written = context.meetings.all_reduce(np.zeros(1, np.int64), "max")
            context.executor.finish(written, "the trace of all ranks")

    def _write(self) -> None:
        """On the chief: fetch the parts of the others, merge them, and say where the file is."""
        from hpcflow.runtime.profile.trace_merge import merge_parts

        path, facts = trace_part.trace_path(self._context.settings.trace), self.part.facts
        try:
            here = trace_part.parts_of_job(trace_part.parts_in(self.folder), facts.job)
            lost = self._world.lost if self._world is not None else ()
            pinged = self._measured_ranks(lost).values()
            for rank in range(self._context.size):
                if rank != facts.rank and rank not in lost:
                    self._fetch(rank, is_here=rank in here, pings=rank in pinged)
            self._stop()
            trace = merge_parts(trace_part.parts_in(self.folder), path, facts.job)
        except (OSError, DataError) as error:
            self._leave_parts(str(error))
            return
        trace_part.remove_parts(self.folder, facts.job)
        logger.info("trace of %d of %d ranks: %s", len(trace.ranks), trace.size, path)

    def _fetch(self, rank: int, is_here: bool, pings: bool) -> None:
        """Get the part of a rank, unless it is on this node; with `pings` read its clock.

        A rank that dies meanwhile has no part, if the job survives that.
        """
        context = self._context
        request = {"service": "trace", "pings": pings, "wanted": not is_here, "keep": False}
        answers = context.control.call({rank: request})
        if pings:
            try:
                context.executor.run_locked(lambda: self._read(rank), lambda: True)
            except DeathError:
                if not context.executor.survives_death():
                    raise
        text = answers().get(rank, {}).get("part")
        if text is not None:
            trace_part.part_path(self.folder, rank).write_text(text)

    def _read(self, rank: int) -> None:
        self._note(self.machines[rank], measure_offset(self._world, rank, self.clock))

    def _leave_parts(self, reason: str) -> None:
        """On the chief: the file of all ranks cannot be written. Say so; all keep their parts."""
        context, self._keeps = self._context, True
        others = {rank for rank in range(context.size) if rank != context.rank}
        for rank in sorted(others.difference(self._world.lost if self._world else ())):
            request = {"service": "trace", "pings": False, "wanted": False, "keep": True}
            context.control.call({rank: request})()
        logger.warning(
            "the trace cannot be written: %s; its parts are in %s: hpcflow trace %s -o FILE",
            reason, self.folder, self.folder,
        )  # fmt: skip

    def answer(self, request: Json) -> Json:
        """What the chief asks for at the end: pings, and the text of the part if it is wanted."""
        if request["keep"]:
            self._keeps = True
            return {}
        if request["pings"]:
            answer_pings(self._world, self._context.roles.drivers[0], self.clock)
        self._stop()
        return {"part": self.part.path.read_text()} if request["wanted"] else {}

    def close(self) -> None:
        """The job has ended in order: remove the part."""
        self._stop()
        if not self._keeps:
            self.part.remove()

    def _before_abort(self) -> None:
        """This rank fails: write what it has, and say where."""
        self.part.flush()
        logger.warning(
            "what is left of the trace is in %s on each host (help profiling)", self.folder
        )

    def _stop(self) -> None:
        self._recorder.stop()
        self.part.close()


def answer(context: Any, request: Json, reply: Reply) -> None:
    """The service "trace", which the chief calls on all other ranks."""
    reply(context.trace.answer(request))
