"""The executor of one rank: it polls the waits of the steps in flight and runs ready segments."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import TypeVar

from hpcflow.comm.communicator import Communicator, Request, has_ended
from hpcflow.comm.polling_backoff import PATIENCE_POLLS, Backoff
from hpcflow.errors import CommError, DeathError, HpcflowError
from hpcflow.monitoring.wait_ledger import WaitLedger
from hpcflow.plan.communication.atomic_step_commit import COMMIT
from hpcflow.runtime.executor.mpi_progress_thread import ProgressThread
from hpcflow.runtime.executor.progress_lock import ProgressLock
from hpcflow.runtime.executor.wait_timestamps import Waiting, WaitTarget, WaitTimestamps
from hpcflow.runtime.step.cooperative_scheduling import RunningSegment, SliceScheduler, VariableUses
from hpcflow.runtime.step.observer import joined
from hpcflow.runtime.step.step_instance import StepInstance, StepObserver

T = TypeVar("T")
_REQUESTED_EXITS = (
    KeyboardInterrupt,
    SystemExit,
)  # exceptions after which a step still ends in order


class CollectiveOrder:
    """Orders collectives: they start in step order on every rank; early ones wait."""

    def __init__(self) -> None:
        self._queue: collections.deque[tuple[StepInstance, str]] = collections.deque()
        self._ready: set[tuple[int, str]] = set()

    def expect(self, instance: StepInstance, names: list[str]) -> None:
        """A step begins that will start the collectives `names`, in that order."""
        self._queue.extend((instance, name) for name in names)

    def ready(self, instance: StepInstance, name: str) -> list[tuple[StepInstance, str]]:
        """The inputs of a collective are available; the collectives to start now, in order."""
        self._ready.add((id(instance), name))
        return self._starting()

    def _starting(self) -> list[tuple[StepInstance, str]]:
        starting = []
        while self._queue and (id(self._queue[0][0]), self._queue[0][1]) in self._ready:
            turn = self._queue.popleft()
            self._ready.discard((id(turn[0]), turn[1]))
            starting.append(turn)
        return starting

    def withdraw(self, instance: StepInstance) -> list[tuple[StepInstance, str]] | None:
        """A step will start no collectives; those of other steps that may start now.

        None if the step has already started some, which other ranks depend on.
        """
        remaining = [turn for turn in self._queue if turn[0] is not instance]
        if len(self._queue) - len(remaining) < len(instance.channels.collectives):
            return None
        self._queue = collections.deque(remaining)
        self._ready = {key for key in self._ready if key[0] != id(instance)}
        return self._starting()


class Executor(ProgressLock):
    """Runs steps; the holder of the progress lock makes all MPI calls and runs all segments.

    A thread that finds the lock taken puts its step into the inbox. The holder begins the step
    between its own segments; the owner of the step takes the lock when the holder releases it.
    """

    def __init__(
        self,
        comm: Communicator | None = None,
        crowded: bool = False,
        goes_on: Callable[[], bool] | None = None,
        device_is_busy: Callable[[], bool] | None = None,
    ) -> None:
        """`goes_on` says whether the job survives the ranks that have died.

        `device_is_busy` says whether a device of this rank runs kernels.
        """
        super().__init__(comm.rank if comm else 0)
        self.comm = comm
        self.backoff = Backoff(crowded=crowded, wake=self.wake)
        self.ready: collections.deque[tuple] = collections.deque()  # arguments of `run_segment`
        self.watch = comm.watch if comm is not None else None  # reports completed requests
        self.polled_waits: list[Waiting] = []  # waits that cannot be watched, and must be tested
        # tested in each poll, though no step waits for them
        self.background_requests: list[Request] = []
        self.calls: collections.deque[object] = collections.deque()  # Python functions in threads
        self.collective_order = CollectiveOrder()
        # steps in flight with collectives, if replicas recover from the loss of one (shrink)
        self.joint: list[StepInstance] | None = None
        self.collectives_paused = False  # a replica has died: no collective is started or tested
        self.paused_collectives: list[Waiting] = []  # collectives that were in flight
        self.collectives_error: BaseException | None = None  # why the order of collectives is lost
        self.slices = SliceScheduler()
        self.progress_thread = ProgressThread(self.poll)
        self.control: Callable[[], bool] = _no_progress  # handles control messages
        self.survives_death: Callable[[], bool] = goes_on or _no_progress
        # called when a collective starts
        self.on_collective_start: Callable[[], object] = _no_progress
        # what ends patient waits
        self.blamed_wait: Callable[[], tuple[str, int] | None] = _no_blame
        self.ledger: WaitLedger | None = None
        self.observer: StepObserver | None = None  # all listeners as one
        self._observers: list[StepObserver] = []
        self.in_ledger = False
        self.timestamps = WaitTimestamps()
        self.idle_polls = 0
        self.waited = 0.0  # seconds with steps in flight and nothing ready to run
        self._since = 0.0  # start of the current wait; 0: none
        self._vacant = 0.0  # seconds without steps in flight and nothing to run
        self._vacant_since = 0.0  # start of the current such time; 0: none
        self.device_is_busy: Callable[[], bool] = device_is_busy or _no_progress

    def observe(self, observer: StepObserver) -> None:
        """Report events of execution to an observer."""
        self._observers.append(observer)
        self.observer = joined(self._observers)

    def ignore(self, observer: StepObserver) -> None:
        """Report no more events to an observer."""
        self._observers.remove(observer)
        self.observer = joined(self._observers)

    # -- steps

    def start(self, instance: StepInstance, step: int, feeds: tuple = ()) -> None:
        """Begin a step on an idle instance: post its receives and run segment 0."""
        self.open(instance, step)
        self.run_segment(instance, 0, feeds)

    def open(self, instance: StepInstance, step: int) -> None:
        """Post the receives of a step without running segment 0."""
        instance.begin(step)
        ends = instance.channels
        if ends.collectives:
            self.collective_order.expect(instance, ends.collectives)
            if self.joint is not None:
                others = (joint_step for joint_step in self.joint if joint_step is not instance)
                self.joint = [
                    *(joint_step for joint_step in others if not joint_step.finished),
                    instance,
                ]
        ends.start_receives()

    def fail_step(self, instance: StepInstance, error: BaseException) -> None:
        """Fail a step, also one that has only been opened."""
        self.fail(instance, error)
        if instance.unfinished and not instance.started:
            self.run_segment(instance, 0)

    def run_segment(self, instance: StepInstance, index: int, feeds: tuple = ()) -> None:
        """Run one segment and mark the segments that depended on it as ready.

        A segment with tiled updates only begins here; `run_slice` continues it. A segment that uses
        a variable with an update in progress is deferred.
        """
        observer = self.observer
        if observer is not None:
            observer.segment_begin(instance, index)
        try:
            if not index:
                instance.started = True
                self.ready.extend((instance, follower) for follower in instance.early)
                instance.early.clear()
            if instance.error is not None:
                self.skip(instance, index)
                return
            if self.slices.running:
                segment = instance, index, feeds
                if self.slices.defer_on_conflict(instance.compiled.variable_uses(index), segment):
                    return
            try:
                tiles = instance.segments[index](*feeds)
            except BaseException as error:
                self._segment_failed(instance, index, error)
                return
            if index in instance.code.tiled:
                touched = instance.compiled.variable_uses(index)
                self.slices.running.append(RunningSegment(instance, index, tiles, touched))
            else:
                self.mark_over(instance, index)
        finally:
            if observer is not None:
                observer.segment_end(instance, index)

    def run_slice(self) -> None:
        """Run some tiles of the first segment in the queue of tiled updates.

        An update that has begun runs to its end, even if its step fails meanwhile.
        """
        going, observer = self.slices.running[0], self.observer
        if observer is None:
            self._run_tiles(going)
            return
        observer.slice_begin(going.instance, going.segment)
        try:
            self._run_tiles(going)
        finally:
            observer.slice_end(going.instance, going.segment)

    def _run_tiles(self, running: RunningSegment) -> None:
        interrupt = self.slices.interrupt
        interrupt.hold()
        try:
            self._continue_segment(running)
        finally:
            interrupt.let_go()

    def _continue_segment(self, running: RunningSegment) -> None:
        instance, index = running.instance, running.segment
        error: BaseException | None = None
        try:
            if not self.slices.run_slice_of_first():
                return
        except BaseException as raised:
            error = raised
        self.ready.extendleft(reversed(self.slices.end(running)))
        if error is not None:
            self._segment_failed(instance, index, error)
        elif not instance.is_broken:
            self.mark_over(instance, index)

    def finish_tiled(self, touched: VariableUses | None = None) -> None:
        """Finish the tiled updates in progress; with `touched`, until none conflicts with it."""
        while self.slices.running and (touched is None or self.slices.conflicts(touched)):
            self.run_slice()

    def _segment_failed(self, instance: StepInstance, index: int, error: BaseException) -> None:
        """Fail the step of a segment that raised; re-raise KeyboardInterrupt and SystemExit.

        The executor stays usable.
        """
        self.progress_thread.reclaim_lock()
        if isinstance(error, Exception):
            explained = instance.compiled.explain(error, self.rank)
            if explained is not error:
                explained.__cause__ = error
            self.fail(instance, explained)
            self.skip(instance, index)
            return
        self.fail(instance, error)
        self.skip(instance, index)
        raise error

    def fail(self, instance: StepInstance, error: BaseException) -> None:
        """Fail a step in flight: its waits are cancelled and its remaining segments are skipped.

        The step still receives all its messages and sends all its messages, empty where values are
        missing, so that the next step can use the same instance. This is impossible if only some of
        its collectives have started, if a loop or branch spans several tasks, or if communication
        fails: the instance is then `torn`.
        """
        if instance.error is not None or not instance.unfinished:
            return
        instance.error = error
        starting = self.collective_order.withdraw(instance)
        broken = (
            instance.compiled.spans_tasks
            or isinstance(error, CommError)
            or not isinstance(error, (HpcflowError, *_REQUESTED_EXITS))
        )
        if starting is None or broken:
            instance.tear(error)
            instance.on_done(instance)
            return
        self.start_collectives(starting)
        for name in instance.begun_waits.intersection(instance.channels.collectives):
            self.mark_over(instance, name)
        for wait in instance.waiting.values():
            wait.cancel()
        instance.failed(instance)

    def skip(self, instance: StepInstance, index: int) -> None:
        """Replace a segment of a failed step: send its messages empty, and end its waits."""
        if instance.is_broken:
            return
        for name in instance.code.segments[index].nodes:
            node = instance.part.nodes[name]
            if node.row.message == "send":
                instance.channels.send_missing(name)
            elif node.row.waits and name not in instance.begun_waits:
                instance.begun_waits.add(name)
                self.mark_over(instance, name)
        self.mark_over(instance, index)

    def start_collectives(self, starting: list[tuple[StepInstance, str]]) -> None:
        """Start the collectives whose turn it is."""
        for instance, name in starting:
            if self.collectives_paused:
                return
            self.on_collective_start()
            bucket = instance.buckets[name]
            if name == COMMIT:
                instance.vote()
            bucket.start()
            self.wait_for(bucket, instance, name)

    def lose_sums(self, error: BaseException) -> None:
        """The order of collectives is lost: no step with collectives can follow."""
        self.collectives_error = self.collectives_error or error

    def keep_joint_steps(self) -> None:
        """Keep the steps in flight with collectives in `joint` from now on."""
        self.joint = []

    def pause_collectives(self) -> None:
        """A replica has died: stop starting and polling collectives.

        Their requests and buffers are retained, because MPI may still write to the buffers.
        """
        self.collectives_paused = True
        self.paused_collectives += [wait for wait in self.polled_waits if _is_collective(wait)]
        self.polled_waits[:] = [wait for wait in self.polled_waits if not _is_collective(wait)]

    def abandon_collectives(self) -> list[object]:
        """Abandon all joint steps after the set of replicas has changed.

        Returns the old requests and instances, which own buffers that MPI may still use.
        """
        joint = self.joint or []
        for instance in joint:
            if not instance.finished or instance.is_broken:
                self.abandon(instance)
        old: list[object] = [*self.paused_collectives, *joint]
        self.paused_collectives, self.joint = [], []
        self.collective_order, self.collectives_paused = CollectiveOrder(), False
        return old

    def mark_over(self, instance: StepInstance, target: WaitTarget) -> None:
        """A segment or a wait has ended; `target` is None for a send, which nothing depends on."""
        instance.unfinished -= 1
        if target is not None:
            for follower in instance.compiled.dependents.get(target, ()):
                instance.pending[follower] -= 1
                if instance.pending[follower]:
                    continue
                if instance.started:
                    self.ready.append((instance, follower))
                else:  # a prefetched step computes nothing here before it is run
                    instance.early.append(follower)
        if not instance.unfinished:
            instance.on_done(instance)
            if self.waiters:
                self.notify_waiters()

    def mark_wait_over(self, instance: StepInstance, name: str) -> None:
        """Callback of a wait that is not polled: it has ended."""
        if not instance.is_broken:
            self.mark_over(instance, name)

    @property
    def waits(self) -> list[Waiting]:
        """All pending waits."""
        return [*self.polled_waits, *(self.watch.tokens() if self.watch is not None else ())]

    @property
    def is_waiting(self) -> bool:
        """Whether there are pending waits."""
        return bool(self.polled_waits) or bool(self.watch)

    def wait_for(
        self,
        request: Request,
        instance: StepInstance | None,
        target: WaitTarget,
        begins: bool = True,
    ) -> None:
        """Wait for a request; when it completes, `target` of `instance` is over.

        The wait has begun before if `begins` is false.
        """
        if begins and self.observer is not None:
            self.observer.wait_begin(request, instance, target)
        if self.watch is not None:
            watched_by = getattr(request, "watched_by", None)
            if watched_by is not None:
                watched_by(self.watch, (request, instance, target))
                return
        self.polled_waits.append((request, instance, target))

    def poll(self) -> bool:
        """Test everything in flight once; True if anything progressed. Runs no segment.

        Of the watched requests only the completed ones are tested, so the cost of a message does
        not depend on the number of pending waits.
        """
        moved = False
        if self.watch is not None:
            finished = self.watch.finished()
            while finished:
                moved = True
                wait = finished.popleft()
                try:
                    if not self._is_over(wait):  # the request has a further phase
                        request, instance, what = wait
                        self.wait_for(request, instance, what, begins=False)
                except BaseException:
                    self.polled_waits.append(wait)  # restore the wait, so that it is not lost
                    raise
        polled, i = self.polled_waits, 0
        while i < len(polled):
            if self._is_over(polled[i]):
                polled[i] = polled[-1]
                polled.pop()
                moved = True
            else:
                i += 1
        if self.background_requests:
            self.background_requests[:] = [
                request for request in self.background_requests if not has_ended(request)
            ]
        return self.control() or moved

    def _is_over(self, wait: Waiting) -> bool:
        """Test a wait; if it is over, update its step."""
        request, instance, what = wait
        try:
            if not request.test():
                return False
        except HpcflowError as error:
            if self.observer is not None and not self._is_left_to_replicas(error, wait):
                self.observer.wait_end(*wait)
            if not self._handle_wait_error(error, wait):
                return True
        else:
            if self.observer is not None:
                self.observer.wait_end(*wait)
        if instance is None:
            self.notify_waiters()
        elif not instance.is_broken:
            self.mark_over(instance, what)
        return True

    def _is_left_to_replicas(self, error: HpcflowError, wait: Waiting) -> bool:
        """Whether the replicas that survive a death decide together what becomes of the wait."""
        return isinstance(error, DeathError) and self.survives_death() and _is_collective(wait)

    def _handle_wait_error(self, error: HpcflowError, wait: Waiting) -> bool:
        """Handle an error of a wait; True if the wait is over by it, and its step fails."""
        _, instance, what = wait
        if isinstance(error, DeathError):
            if not self.survives_death():
                self.control()  # handles the death: which rank, and what follows
                raise error
            if self._is_left_to_replicas(error, wait):
                self.paused_collectives.append(wait)
                return False
            if instance is not None:  # until `abandon` is called
                instance.tear(error)
            return True
        if instance is None or not isinstance(what, str):
            raise error
        located = instance.compiled.located(error, what, self.rank)
        if isinstance(error, CommError):
            raise error
        self.fail(instance, located)
        return True

    def listen_to(self, control: Callable[[], bool], meeting: Callable[[], object]) -> None:
        """Call `control` in each poll, to handle messages, and `meeting` before a collective."""
        self.control, self.on_collective_start = control, meeting

    def poll_if_free(self) -> None:
        """Poll once and empty the inbox, unless another thread holds the progress lock."""
        if self.lock.acquire(blocking=False):
            self._run_as_holder(self._poll_and_empty_inbox, lambda: True)

    def _poll_and_empty_inbox(self) -> None:
        self.poll()
        self._empty_inbox()

    def abandon(self, instance: StepInstance) -> None:
        """Drop all waits of a step whose driver has died.

        Surviving ranks may still send messages of the step: they arrive in its own buffers, which
        are not reused.
        """
        instance.tear(DeathError("its driver has died"))
        for wait in instance.waiting.values():
            wait.cancel()
        for request, owner, _ in self.waits:
            if owner is instance and hasattr(request, "abandon"):
                request.abandon()
        self.polled_waits[:] = [wait for wait in self.polled_waits if wait[1] is not instance]
        if self.watch is not None:
            self.watch.drop_tokens(lambda wait: wait[1] is instance)
        ready = [ready_segment for ready_segment in self.ready if ready_segment[0] is not instance]
        self.ready.clear()
        self.ready.extend(ready)
        instance.end_unnoticed()  # synchronous updates release later what they still use
        instance.release()

    # -- progress

    def drive(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """Make progress until `finished()`; the caller holds the progress lock.

        With `rests`, return as soon as only other threads of this rank can cause progress.
        """
        self.context.run(self.progress, finished, rests)

    def progress(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """`drive`, inside the executor's context."""
        ready = self.ready
        self._since = self._vacant_since = 0.0
        while not finished():
            if ready:
                while ready:
                    self.run_segment(*ready.popleft())
                continue
            if self.inbox:
                if self._since or self._vacant_since:
                    self._count_wait()
                self._empty_inbox()
            if ready:
                continue
            moved = self.poll() if self.observer is None else self._timed(self.poll)
            if self.slices.running:
                if not (moved or ready or self.inbox) or self.slices.is_due():
                    self.run_slice()
                self._made_progress()
            elif moved:
                self._made_progress()
            elif rests and self._waits_for_other_threads():
                return
            elif not ready:
                self._idle()
        if self._since or self._vacant_since:
            self._count_wait()
        if self.in_ledger:
            self._made_progress()

    def _waits_for_other_threads(self) -> bool:
        """Whether all pending waits are for state of this rank, so that no message is due."""
        if self.ready or self.inbox or self.slices.running or self.watch or not self.polled_waits:
            return False
        if not all(getattr(request, "local", False) for request, _, _ in self.polled_waits):
            return False
        if not self.in_ledger:
            self._enter_ledger()
        return True

    def _count_wait(self) -> None:
        """The rank has work again: count the time since the wait began."""
        now = time.perf_counter()
        if self._vacant_since:
            self._vacant += (self._since or now) - self._vacant_since
            self._vacant_since = 0.0
        if self._since:
            self.waited += now - self._since
            if self.observer is not None:
                self.observer.idle(int(self._since * 1e9), int(now * 1e9))
            self._since = 0.0

    def idle_seconds(self, now: float) -> float:
        """Seconds until `now` in which nothing was ready to run and no device of the rank worked.

        `now` is of `time.perf_counter`. Unlike `waited` it counts times without steps in flight.
        """
        since = self._vacant_since or self._since
        return self.waited + self._vacant + (now - since if since else 0.0)

    def _timed(self, call: Callable[[], T]) -> T:
        """Call a function in which nothing of a step runs, and report the time."""
        start = time.perf_counter_ns()
        value = call()
        if self.observer is not None:
            self.observer.idle(start, time.perf_counter_ns())
        return value

    def _made_progress(self) -> None:
        if self._since or self._vacant_since:
            self._count_wait()
        self.idle_polls = 0
        self.backoff.reset()
        if self.in_ledger:
            self.in_ledger = False
            if self.ledger is not None:
                self.ledger.leave()

    def _idle(self) -> None:
        self.idle_polls += 1
        if self.device_is_busy():  # the rank's own kernels still run: the wait begins after them
            self._since = self._vacant_since = 0.0
        elif not self._since:
            if self.is_waiting:
                self._since = time.perf_counter()
            elif not self._vacant_since:
                self._vacant_since = time.perf_counter()
        if not self.idle_polls % PATIENCE_POLLS and not self.in_ledger:
            self._enter_ledger()
        if self.wake.is_set():
            self.wake.clear()
        if self.inbox:
            return
        if self.observer is None:
            self.backoff.wait()
        else:
            self._timed(self.backoff.wait)

    def _enter_ledger(self) -> None:
        """Write the current wait into the wait ledger, for stall reports."""
        if self.ledger is None:
            return
        count = len(self.polled_waits) + (len(self.watch) if self.watch is not None else 0)
        entry = self.timestamps.entry(count, lambda: self.waits, self.blamed_wait)
        if entry is not None:
            self.ledger.enter(*entry)
            self.in_ledger = True

    def finish(self, request: Request, label: str, source: int = -1) -> None:
        """Wait for one request that belongs to no step, making progress on everything else.

        `source` is the awaited rank, -1 if there is none.

        Errors: DeathError if a rank has died on which the request depends.
        """
        box: list[DeathError | None] = []

        class Watched:
            peer = source

            def test(self) -> bool:
                try:
                    if not request.test():
                        return False
                    box.append(None)
                except DeathError as error:  # raised in the thread that called `finish`
                    box.append(error)
                return True

        self.run_locked(lambda: self.wait_for(Watched(), None, label), lambda: bool(box))
        if box[0] is not None:
            raise box[0]


def _is_collective(wait: tuple[Request, StepInstance | None, WaitTarget]) -> bool:
    _, instance, what = wait
    return instance is not None and what in instance.buckets


def _no_progress() -> bool:
    return False


def _no_blame() -> None:
    return None
