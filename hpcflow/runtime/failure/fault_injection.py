"""Fault injection: this rank simulates the faults that the setting `inject` names.

Without the setting nothing here runs, and steps have no overhead. Training steps of this rank are
counted: those of plans that change variables, other than by initialization; on a server those that
update its variables. A step is counted, and its fault injected, where its first segment begins.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from hpcflow.errors import HpcflowError
from hpcflow.graph.dtypes import is_floating
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.instructions import BindingKind
from hpcflow.plan.ir.program import Node
from hpcflow.platform import fault_specification
from hpcflow.platform.fault_specification import InjectedFault
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.dynamic_types import KernelFunction, Value
from hpcflow.runtime.job.rank_role import RankRole
from hpcflow.runtime.step.observer import Segments, checkpoint_observers
from hpcflow.runtime.step.step_instance import (
    COMPUTED,
    CompiledPartition,
    StepInstance,
    StepObserver,
)

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
DRAFT = re.compile(r"/step-\d+(\.h5)?\.tmp(?=/|\Z)")  # temporary path of a checkpoint


def install_faults(here: RankRole) -> None:
    """Install this rank's faults of the setting `inject`; rank 0 logs all of them.

    Errors: LaunchError for a rank that does not exist.
    """
    faults = fault_specification.check_faults(here.settings.inject, here.size)
    local_faults = [fault for fault in faults if fault.rank in (None, here.rank)]
    if here.rank == 0:
        fault_text = ", ".join(map(str, faults))
        logger.warning("this run injects %s: its failures are intended", fault_text)
    if local_faults:
        FaultInjector(here, local_faults)


class FaultInjector(StepObserver):
    """The faults of one rank, and the number of training steps that it has begun."""

    def __init__(self, here: RankRole, faults: Sequence[InjectedFault]) -> None:
        self.here, self.executor = here, here.executor
        self.steps = 0
        self.pending = list(faults)  # faults that have not been injected yet
        self._slow_faults = [fault for fault in faults if fault.kind == "slow"]
        self._nan_faults = [fault for fault in faults if fault.kind == "nan"]
        self._reported: set[str] = set()  # plans already reported to lack the operation of a fault
        self._since, self._waited = 0.0, 0.0  # clock and waiting time at the last step, seconds
        here.observe(self)
        if self._slow_faults and not here.is_driver:
            self.executor.observe(SlowSegments(self))
        full = [fault for fault in faults if fault.kind == "disk-full"]
        if full:
            checkpoint_observers.append(FullDisk(self, full))
        atexit.register(self.end)

    def bind_partition(self, partition: CompiledPartition) -> None:
        """Inject the NaNs of a compiled partition that trains, and count its steps."""
        if partition.trains and not (self.here.is_server and not _updates(partition)):
            for fault in self._nan_faults:
                self._poison(partition, fault)
            partition.observe(StepCounter(self.begin))

    def begin(self) -> None:
        """A training step of this rank begins: inject its faults."""
        self.steps += 1
        if self._slow_faults and self.here.is_driver:
            self._drag_step()
        for fault in [pending for pending in self.pending if pending.step == self.steps]:
            if fault.kind in SIGNALS:
                self.log_injection(fault)
                os.kill(os.getpid(), SIGNALS[fault.kind])
            elif fault.kind == "stall":
                self.log_injection(fault)
                hang_forever()

    def log_injection(self, fault: InjectedFault) -> None:
        """Log that a fault is injected now."""
        self.pending.remove(fault)
        rank, step = self.here.rank, self.steps
        logger.warning("injected on rank %d at its step %d: %s", rank, step, fault)

    def end(self) -> None:
        """At exit: warn of this rank's faults that were not injected."""
        for fault in self.pending:
            logger.warning(
                "%s did not come: rank %d has begun %d training steps",
                *(fault, self.here.rank, self.steps),
            )

    # -- slow

    def factor(self) -> float:
        """How many times as long this rank takes in the current step."""
        factor = 1.0
        for fault in self._slow_faults:
            if self.steps >= fault.step:
                if fault in self.pending:
                    self.log_injection(fault)
                factor *= fault.factor
        return factor

    def _drag_step(self) -> None:
        """Sleep in proportion to the work since the last step began, waiting time excluded."""
        waited = self.executor.waited
        if self._since:
            work = time.perf_counter() - self._since - (waited - self._waited)
            time.sleep(max(work, 0.0) * (self.factor() - 1))
        self._since, self._waited = time.perf_counter(), waited

    # -- NaN

    def _poison(self, compiled: CompiledPartition, fault: InjectedFault) -> None:
        """Have the kernel of the operation of `fault` wrapped, also in loops and branches.

        Errors: HpcflowError if the operation computes no floats.
        """
        matches = [
            (partition, partition.part.nodes[fault.op])
            for partition in _with_frames(compiled)
            if _contains_op(partition, fault.op)
        ]
        for partition, node in matches:
            names = [name for name, bind in partition.code.binds.items() if bind.node == node.name]
            kinds = {partition.code.binds[name].kind for name in names}
            is_computed = kinds & COMPUTED and BindingKind.VIEW not in kinds
            form = partition.info(node).form if is_computed else ""
            if form in ("", "update") or not any(is_floating(s.dtype) for s in node.specs):
                raise HpcflowError(
                    f"cannot inject {fault}: {node.type} here computes no floats of its own",
                    op=node.name,
                    line=node.line,
                    rank=self.here.rank,
                    hint="name an operation that computes some; hpcflow plan SCRIPT lists them",
                )
            fills = BindingKind.KERNEL in kinds and form == "out"
            partition.observe(Poison(node, len(node.specs) if fills else 0, self._due(fault)))
        if not matches and self.here.is_chief and compiled.label not in self._reported:
            self._reported.add(compiled.label)
            names = [name for partition in _with_frames(compiled) for name in partition.part.nodes]
            near = difflib.get_close_matches(fault.op, names, n=3, cutoff=0.4)
            logger.warning(
                "%s: this rank's part of %s has no such operation%s",
                *(fault, compiled.label, f"; it has {', '.join(near)}" if near else ""),
            )

    def _due(self, fault: InjectedFault) -> Callable[[], bool]:
        def due() -> bool:
            now = fault.step in (0, self.steps)
            if now and fault in self.pending:
                self.log_injection(fault)
            return now

        return due


class StepCounter(StepObserver):
    """Calls `begin` where the first segment of a step begins."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def bind_segments(
        self, instance: StepInstance, segments: Segments, objects: Sequence[Value]
    ) -> Segments:
        """The segments, of which the first is counted."""
        (first, *others), release = segments

        def counted(*feeds: Value) -> Value:
            self._begin()
            return first(*feeds)

        return (counted, *others), release


class SlowSegments(StepObserver):
    """Makes the segments of a rank that serves slower: it sleeps after each."""

    def __init__(self, rehearsal: FaultInjector) -> None:
        self._rehearsal = rehearsal
        self._starts: list[float] = []  # of the segments that run: one may run inside another

    def segment_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self._starts.append(time.perf_counter())

    def segment_end(self, instance: StepInstance, index: int) -> None:
        """Sleep in proportion to the segment."""
        took = time.perf_counter() - self._starts.pop()
        time.sleep(took * (self._rehearsal.factor() - 1))

    def slice_begin(self, instance: StepInstance, index: int) -> None:
        """Note the time."""
        self.segment_begin(instance, index)

    def slice_end(self, instance: StepInstance, index: int) -> None:
        """Sleep in proportion to the slice."""
        self.segment_end(instance, index)


class Poison(StepObserver):
    """Makes the results of one operation NaN whenever `due()`."""

    def __init__(self, node: Node, filled: int, due: Callable[[], bool]) -> None:
        self._node, self._filled, self._due = node, filled, due

    def bind_kernel(
        self, instance: StepInstance, node: Node, kernel: KernelFunction
    ) -> KernelFunction:
        """The kernel, wrapped if it is that of the operation."""
        if node is not self._node:
            return kernel
        return with_nan_results(kernel, node.specs, self._filled, self._due)


def hang_forever() -> None:
    """Hang forever; the process stays alive."""
    while True:
        time.sleep(1)


def _with_frames(compiled: CompiledPartition) -> Iterator[CompiledPartition]:
    """A compiled partition, and those of its loops and branches."""
    yield compiled
    for parts in compiled.frames.values():
        for partition in parts.values():
            yield from _with_frames(partition)


def _contains_op(compiled: CompiledPartition, op: str) -> bool:
    return op in compiled.part.nodes


def _updates(compiled: CompiledPartition) -> bool:
    """Whether a step of this partition changes variables, other than by initialization."""

    def changes(node: Node) -> bool:
        return bool(node.row.writes) and not node.attrs.get("initial")

    return any(changes(node) for one in _with_frames(compiled) for node in one.part.nodes.values())


def with_nan_results(
    run: KernelFunction, specs: Sequence[Spec], filled: int, due: Callable[[], bool]
) -> KernelFunction:
    """Wrap the kernel `run`: its floating-point results are NaN whenever `due()`.

    The last `filled` arguments are its output buffers. Its result may be one of its arguments or a
    new array.
    """

    def call(*args: Value, **named: Value) -> Value:
        result = run(*args, **named)
        if not due():
            return result
        outs = list(args[len(args) - filled :])
        outs += [x for x in (*args, *named.values()) if x is result and not filled]
        for out, spec in zip(outs, specs, strict=False):
            if is_floating(spec.dtype):
                out[...] = np.nan
        if outs:
            return result
        values = result if isinstance(result, tuple) else (result,)
        new = tuple(_nan_like(value, s) for value, s in zip(values, specs, strict=True))
        return new if isinstance(result, tuple) else new[0]

    return call


def _nan_like(value: Value, spec: Spec) -> Value:
    """An array of NaN like `value`; `value` itself if it is not floating-point."""
    if not is_floating(spec.dtype):
        return value
    if isinstance(value, np.generic):
        return value.dtype.type(np.nan)
    nans = value.copy()
    nans[...] = np.nan
    return nans


class FullDisk(StepObserver):
    """Simulates a full disk for checkpoints: writing them raises ENOSPC, in any thread.

    HDF5's own writes, of the structure of a file, still succeed.
    """

    def __init__(self, rehearsal: FaultInjector, full: Sequence[InjectedFault]) -> None:
        self._rehearsal, self._full = rehearsal, full
        self._drafts: list[tuple[str, int]] = []  # checkpoints written by this rank, by save

    def checkpoint_write(self, fd: int, offset: int, nbytes: int) -> None:
        """Errors: OSError for a checkpoint on which a fault is due."""
        draft = _draft_file(fd)
        if draft is not None and self._is_full(draft):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), draft[0])

    def _is_full(self, draft: tuple[str, int]) -> bool:
        if draft not in self._drafts:
            self._drafts.append(draft)
        number = self._drafts.index(draft) + 1
        for fault in self._full:
            if self._rehearsal.steps >= fault.step and fault.save in (0, number):
                if fault in self._rehearsal.pending:
                    self._rehearsal.log_injection(fault)
                return True
        return False


def _draft_file(fd: int) -> tuple[str, int] | None:
    """The path and inode of the temporary checkpoint to which a file belongs; None: none."""
    with contextlib.suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{fd}")
        match = DRAFT.search(path)
        if match is not None:
            place = path[: match.end()]
            return place, Path(place).stat().st_ino
    return None
