"""The engine of one rank: it holds the steps in flight, polls their waits, runs their strands."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.polling_backoff import PATIENCE_POLLS, Backoff
from hpcflow.errors import CommError, DeathError, HpcflowError
from hpcflow.monitoring.wait_ledger import Ledger
from hpcflow.plan.communication.atomic_step_commit import COMMIT
from hpcflow.runtime.executor.mpi_progress_thread import Helper
from hpcflow.runtime.executor.progress_lock import Baton
from hpcflow.runtime.executor.wait_timestamps import Ages, Waiting
from hpcflow.runtime.step.cooperative_scheduling import Going, Slices, Touched
from hpcflow.runtime.step.step_instance import Instance

_ASKED = (KeyboardInterrupt, SystemExit)  # a step ended by these is in order


class Turns:
    """Collectives start in step order on every rank: one that is ready early waits for its turn."""

    def __init__(self) -> None:
        self._queue: collections.deque[tuple[Instance, str]] = collections.deque()
        self._ready: set[tuple[int, str]] = set()

    def expect(self, instance: Instance, names: list[str]) -> None:
        """A step has begun that will start the collectives `names`, in that order."""
        self._queue.extend((instance, name) for name in names)

    def ready(self, instance: Instance, name: str) -> list[tuple[Instance, str]]:
        """The inputs of a collective are there: those that may start now, in order."""
        self._ready.add((id(instance), name))
        return self._starting()

    def _starting(self) -> list[tuple[Instance, str]]:
        starting = []
        while self._queue and (id(self._queue[0][0]), self._queue[0][1]) in self._ready:
            turn = self._queue.popleft()
            self._ready.discard((id(turn[0]), turn[1]))
            starting.append(turn)
        return starting

    def withdraw(self, instance: Instance) -> list[tuple[Instance, str]] | None:
        """A step will start no collective: those of others that may start now.

        None if it has started some, which other ranks rely on.
        """
        others = [turn for turn in self._queue if turn[0] is not instance]
        if len(self._queue) - len(others) < len(instance.ends.collectives):
            return None
        self._queue = collections.deque(others)
        self._ready = {key for key in self._ready if key[0] != id(instance)}
        return self._starting()


class Engine(Baton):
    """Drives steps. Whoever holds the baton makes all MPI calls and runs all strands of this rank.

    A thread that finds the baton taken leaves its step in the inbox: the holder begins it between
    its own strands, and its owner takes the baton over when the holder leaves.
    """

    def __init__(self, comm: Communicator | None = None, crowded: bool = False) -> None:
        super().__init__(comm.rank if comm else 0)
        self.comm = comm
        self.backoff = Backoff(crowded=crowded, wake=self.wake)
        self.ready: collections.deque[tuple] = collections.deque()  # arguments of `run_strand`
        self.watch = comm.watch if comm is not None else None  # tells which requests are over
        self.polled: list[Waiting] = []  # what it cannot tell of, and must be tested
        self.beside: list[Request] = []  # tested with each poll, though no step waits for them
        self.calls: collections.deque[Any] = collections.deque()  # functions in threads
        self.turns = Turns()
        # steps in flight that sum over replicas, where these go on without one that dies
        self.joint: list[Instance] | None = None
        self.sums_rest = False  # a replica has died: no sum is begun or looked at
        self.stopped: list[Waiting] = []  # those that were in flight
        self.sums_lost: BaseException | None = None  # by what the order of sums came to be unknown
        self.slices = Slices()
        self.helper = Helper(self.poll)
        self.control: Callable[[], bool] = _nothing_came  # looks for messages of other ranks
        self.goes_on: Callable[[], bool] = _nothing_came  # without those who have died
        self.meeting: Callable[[], object] = _nothing_came  # told when a collective starts
        self.blame: Callable[[], tuple[str, int] | None] = _nobody  # for whom patient waits are
        self.ledger: Ledger | None = None
        self.entered = False
        self.ages = Ages()
        self.quiet = 0
        self.waited = 0.0  # seconds in which steps were in flight and nothing was ready to run
        self._since = 0.0  # when the wait of now began; 0: none
        self.computes: Callable[[], bool] = _nothing_came  # a device still works for this rank

    # -- steps

    def start(self, instance: Instance, step: int, feeds: tuple = ()) -> None:
        """Begin a step on an idle instance: receives are posted, strand 0 runs."""
        self.open(instance, step)
        self.run_strand(instance, 0, feeds)

    def open(self, instance: Instance, step: int) -> None:
        """Post the receives of a step whose first strand, 0, has yet to run."""
        instance.begin(step)
        ends = instance.ends
        if ends.collectives:
            self.turns.expect(instance, ends.collectives)
            if self.joint is not None:
                others = (one for one in self.joint if one is not instance)
                self.joint = [*(one for one in others if not one.finished), instance]
        ends.post()

    def give_up(self, instance: Instance, error: BaseException) -> None:
        """Fail a step, also one that has been opened only."""
        self.fail(instance, error)
        if instance.left and not instance.started:
            self.run_strand(instance, 0)

    def run_strand(self, instance: Instance, index: int, feeds: tuple = ()) -> None:
        """Run one strand to its end and let go of those that waited for it.

        One that stops between tiles only begins: `run_slice` goes on with it. One that uses a
        variable that is being updated is put off.
        """
        instance.started = instance.started or not index
        if instance.error is not None:
            self.skip(instance, index)
            return
        if self.slices.going:
            strand = instance, index, feeds
            if self.slices.puts_off(instance.compiled.touched(index), strand):
                return
        try:
            tiles = instance.strands[index](*feeds)
        except BaseException as error:
            self._strand_failed(instance, index, error)
            return
        if index in instance.code.tiled:
            touched = instance.compiled.touched(index)
            self.slices.going.append(Going(instance, index, tiles, touched))
        else:
            self.over(instance, index)

    def run_slice(self) -> None:
        """Some tiles of the strand whose turn it is; an update that has begun is done to its end,
        also if its step fails meanwhile."""
        interrupt = self.slices.interrupt
        interrupt.hold()
        try:
            self._go_on(self.slices.going[0])
        finally:
            interrupt.let_go()

    def _go_on(self, going: Going) -> None:
        instance, index = going.instance, going.strand
        error: BaseException | None = None
        try:
            if not self.slices.advance():
                return
        except BaseException as raised:
            error = raised
        self.ready.extendleft(reversed(self.slices.end(going)))
        if error is not None:
            self._strand_failed(instance, index, error)
        elif not instance.torn:
            self.over(instance, index)

    def settle(self, touched: Touched | None = None) -> None:
        """Finish the updates that are on their way, or those that clash with `touched`."""
        while self.slices.going and (touched is None or self.slices.clash(touched)):
            self.run_slice()

    def _strand_failed(self, instance: Instance, index: int, error: BaseException) -> None:
        """Its step fails; Ctrl-C is raised: the step is lost, the engine is not."""
        self.helper.back()
        if isinstance(error, Exception):
            told = instance.compiled.explain(error, self.rank)
            if told is not error:
                told.__cause__ = error
            self.fail(instance, told)
            self.skip(instance, index)
            return
        self.fail(instance, error)
        self.skip(instance, index)
        raise error

    def fail(self, instance: Instance, error: BaseException) -> None:
        """A step in flight cannot end well: what it waits for is cancelled, the rest is skipped.

        It still takes all messages it was to be sent and sends all it was to send, empty where
        their values are missing, so that the same instance serves the next step. That cannot be
        where only a part of its collectives runs, where a loop or a branch lies over several
        tasks, or where messages fail: the instance is `torn`.
        """
        if instance.error is not None or not instance.left:
            return
        instance.error = error
        starting = self.turns.withdraw(instance)
        broken = (
            instance.compiled.spans
            or isinstance(error, CommError)
            or not isinstance(error, (HpcflowError, *_ASKED))
        )
        if starting is None or broken:
            instance.torn = True
            instance.done(instance)
            return
        self.start_collectives(starting)
        for name in instance.begun.intersection(instance.ends.collectives):
            self.over(instance, name)
        for wait in instance.waiting.values():
            wait.cancel()
        instance.failed(instance)

    def skip(self, instance: Instance, index: int) -> None:
        """In place of a strand of a failed step: what was to be sent is sent empty."""
        if instance.torn:
            return
        for name in instance.code.strands[index].nodes:
            node = instance.part.nodes[name]
            if node.type == "Send":
                instance.ends.send_nothing(name)
            elif node.row.waits and name not in instance.begun:
                instance.begun.add(name)
                self.over(instance, name)
        self.over(instance, index)

    def start_collectives(self, starting: list[tuple[Instance, str]]) -> None:
        """Start those whose turn it is."""
        for instance, name in starting:
            if self.sums_rest:
                return
            self.meeting()
            bucket = instance.buckets[name]
            instance.voted = instance.voted or name == COMMIT
            bucket.start()
            self.await_(bucket, instance, name)

    def rest_sums(self) -> None:
        """A replica has died: sums stay as they are, also in memory, which MPI may still fill."""
        self.sums_rest = True
        self.stopped += [wait for wait in self.polled if _is_sum(wait)]
        self.polled[:] = [wait for wait in self.polled if not _is_sum(wait)]

    def forget_sums(self) -> list[Any]:
        """The steps that sum are given up: sums are those of other replicas now; the old ones."""
        joint = self.joint or []
        for instance in joint:
            if not instance.finished or instance.torn:
                self.abandon(instance)
        old: list[Any] = [*self.stopped, *joint]
        self.stopped, self.joint = [], []
        self.turns, self.sums_rest = Turns(), False
        return old

    def over(self, instance: Instance, what: Any) -> None:
        """A strand or a wait is over; None for a send, which nothing waits for."""
        instance.left -= 1
        if what is not None:
            for follower in instance.compiled.followers.get(what, ()):
                instance.pending[follower] -= 1
                if not instance.pending[follower]:
                    self.ready.append((instance, follower))
        if not instance.left:
            instance.done(instance)
            if self.waiters:
                self.tell_waiters()

    def told(self, instance: Instance, name: str) -> None:
        """A wait says by itself that it is over."""
        if not instance.torn:
            self.over(instance, name)

    @property
    def waits(self) -> list[Waiting]:
        """All that is waited for."""
        return [*self.polled, *(self.watch.tokens() if self.watch is not None else ())]

    @property
    def is_waiting(self) -> bool:
        """Whether anything is waited for."""
        return bool(self.polled) or bool(self.watch)

    def await_(self, request: Request, instance: Instance | None, what: Any) -> None:
        """Wait for a request; when it is over, so is `what` of `instance`."""
        if self.watch is not None:
            watched_by = getattr(request, "watched_by", None)
            if watched_by is not None:
                watched_by(self.watch, (request, instance, what))
                return
        self.polled.append((request, instance, what))

    def poll(self) -> bool:
        """Look once at everything in flight; True if anything moved. Runs no strand.

        Of the requests that are watched only those are looked at that are over, so a message costs
        the same however many others are waited for.
        """
        moved = False
        if self.watch is not None:
            finished = self.watch.finished()
            while finished:
                moved = True
                wait = finished.popleft()
                try:
                    if not self._is_over(wait):
                        self.await_(*wait)  # there is more of it
                except BaseException:
                    self.polled.append(wait)  # as if it had been looked at and not taken out
                    raise
        polled, i = self.polled, 0
        while i < len(polled):
            if self._is_over(polled[i]):
                polled[i] = polled[-1]
                polled.pop()
                moved = True
            else:
                i += 1
        if self.beside:
            self.beside[:] = [request for request in self.beside if not _is_over(request)]
        return self.control() or moved

    def _is_over(self, wait: Waiting) -> bool:
        """Whether a wait is over; what waits for it is told."""
        request, instance, what = wait
        try:
            if not request.test():
                return False
        except HpcflowError as error:
            if not self._is_over_by(error, wait):
                return True
        if instance is None:
            self.tell_waiters()
        elif not instance.torn:
            self.over(instance, what)
        return True

    def _is_over_by(self, error: HpcflowError, wait: Waiting) -> bool:
        """Whether who waits is to be told that it is over, by an error: its step then fails."""
        _, instance, what = wait
        if isinstance(error, DeathError):
            if not self.goes_on():
                self.control()  # says who has died, and what to do
                raise error
            if _is_sum(wait):  # what comes of it is not for this rank alone to say
                self.stopped.append(wait)
                return False
            if instance is not None:  # until `abandon`
                instance.error, instance.torn = instance.error or error, True
            return True
        if instance is None or what is None:
            raise error
        located = instance.compiled.located(error, what, self.rank)
        if isinstance(error, CommError):
            raise error
        self.fail(instance, located)
        return True

    def attend(self) -> None:
        """Take what has come and what was handed over, unless another thread drives and does it."""
        if self.baton.acquire(blocking=False):
            self._lead(self._attend, lambda: True)

    def _attend(self) -> None:
        self.poll()
        self._empty_inbox()

    def abandon(self, instance: Instance) -> None:
        """The rank that drives a step has died: nothing of it is waited for any more.

        What ranks that live still send it comes into its own buffers, which nobody uses again.
        """
        instance.error, instance.torn = instance.error or DeathError("its driver has died"), True
        for wait in instance.waiting.values():
            wait.cancel()
        for request, owner, _ in self.waits:
            if owner is instance and hasattr(request, "abandon"):
                request.abandon()
        self.polled[:] = [wait for wait in self.polled if wait[1] is not instance]
        if self.watch is not None:
            self.watch.drop(lambda wait: wait[1] is instance)
        ready = [one for one in self.ready if one[0] is not instance]
        self.ready.clear()
        self.ready.extend(ready)
        instance.done = _unheard  # what the rounds still use of it is let go later
        instance.release()

    # -- the baton

    def drive(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """Make progress until `finished()`; the caller holds the baton.

        With `rests` only until nothing but what other threads begin can move anything.
        """
        self.context.run(self.progress, finished, rests)

    def progress(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """What `drive` does, inside the engine's context."""
        ready = self.ready
        self._since = 0.0
        while not finished():
            if ready:
                while ready:
                    self.run_strand(*ready.popleft())
                continue
            if self.inbox:
                if self._since:
                    self._count_wait()
                self._empty_inbox()
            if ready:
                continue
            moved = self.poll()
            if self.slices.going:
                if not (moved or ready or self.inbox) or self.slices.due():
                    self.run_slice()
                self._moved()
            elif moved:
                self._moved()
            elif rests and self._others_must_move():
                return
            elif not ready:
                self._idle()
        if self._since:
            self._count_wait()
        if self.entered:
            self._moved()

    def _others_must_move(self) -> bool:
        """All that is waited for is state of this rank: no message needs to be polled for."""
        if self.ready or self.inbox or self.slices.going or self.watch or not self.polled:
            return False
        if not all(getattr(request, "local", False) for request, _, _ in self.polled):
            return False
        if not self.entered:
            self._enter()
        return True

    def _count_wait(self) -> None:
        """The rank has something to run again."""
        self.waited += time.perf_counter() - self._since
        self._since = 0.0

    def _moved(self) -> None:
        if self._since:
            self._count_wait()
        self.quiet = 0
        self.backoff.reset()
        if self.entered:
            self.entered = False
            if self.ledger is not None:
                self.ledger.leave()

    def _idle(self) -> None:
        self.quiet += 1
        if self.computes():  # its own work: the wait begins when that ends
            self._since = 0.0
        elif not self._since and self.is_waiting:
            self._since = time.perf_counter()
        if not self.quiet % PATIENCE_POLLS and not self.entered:
            self._enter()
        if self.wake.is_set():
            self.wake.clear()
        if not self.inbox:
            self.backoff.wait()

    def _enter(self) -> None:
        """Write into the ledger what is waited for, that a report can name it."""
        if self.ledger is None:
            return
        count = len(self.polled) + (len(self.watch) if self.watch is not None else 0)
        entry = self.ages.entry(count, lambda: self.waits, self.blame)
        if entry is not None:
            self.ledger.enter(*entry)
            self.entered = True

    def finish(self, request: Request, what: str, source: int = -1) -> None:
        """Wait for one request that belongs to no step, making progress on everything else.

        `source` is the rank that it waits for, if there is one.
        """
        box: list[DeathError | None] = []

        class Watched:
            peer = source

            def test(self) -> bool:
                try:
                    if not request.test():
                        return False
                    box.append(None)
                except DeathError as error:  # is for who asked
                    box.append(error)
                return True

        self.with_baton(lambda: self.await_(Watched(), None, what), lambda: bool(box))
        if box[0] is not None:
            raise box[0]


def _is_over(request: Request) -> bool:
    """Whether it need not be tested beside the steps; what it fails by is for who waits for it."""
    try:
        return request.test()
    except DeathError:
        return True


def _is_sum(wait: tuple[Request, Instance | None, Any]) -> bool:
    _, instance, what = wait
    return instance is not None and what in instance.buckets


def _unheard(instance: Instance) -> None:
    """An abandoned step has no end."""


def _nothing_came() -> bool:
    return False


def _nobody() -> None:
    return None
