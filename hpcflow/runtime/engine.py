"""The engine of one rank: it holds the steps in flight, polls their waits, runs their strands."""

from __future__ import annotations

import collections
import contextvars
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import numpy as np

from hpcflow.comm.base import Communicator, Request
from hpcflow.comm.ledger import PATIENT
from hpcflow.comm.waiting import Backoff
from hpcflow.errors import CommError, HpcflowError
from hpcflow.runtime.helper import Helper
from hpcflow.runtime.instance import Instance

SHELL = "<hpcflow shell>"  # the file of the generated shells of small steps
PATIENCE_POLLS = 64  # empty polls before a wait is entered in the ledger
LOOK_S = 0.02  # a thread whose step another one drives looks this often, if it is not told
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


class Engine:
    """Drives steps. Whoever holds the baton makes all MPI calls and runs all strands of this rank.

    A thread that finds the baton taken leaves its step in the inbox: the holder begins it between
    its own strands, and its owner takes the baton over when the holder leaves.
    """

    def __init__(self, comm: Communicator | None = None, crowded: bool = False) -> None:
        self.comm, self.rank = comm, comm.rank if comm else 0
        self.baton = threading.Lock()
        self.wake = threading.Event()
        self.freed = threading.Condition()
        self.backoff = Backoff(crowded=crowded, wake=self.wake)
        self.inbox: collections.deque[Callable[[], None]] = collections.deque()
        self.ready: collections.deque[tuple[Instance, int]] = collections.deque()
        self.waits: list[tuple[Request, Instance | None, Any]] = []
        self.turns = Turns()
        self.helper = Helper(self.poll)
        self.control: Callable[[], bool] = _nothing_came  # looks for messages of other ranks
        self.meeting: Callable[[], object] = _nothing_came  # told when a collective starts
        self.ledger: Any = None
        self.entered = False
        self.quiet = 0
        self.waiters = 0
        # NumPy's error state lives in the context: inside ours, infinities come as IEEE says, and
        # the user's own setting outside is not touched
        self.context = contextvars.copy_context()
        self.context.run(np.seterr, all="ignore")

    # -- steps

    def start(self, instance: Instance, step: int, feeds: tuple = ()) -> None:
        """Begin a step on an idle instance: receives are posted, strand 0 runs."""
        instance.begin(step)
        ends = instance.ends
        if ends.collectives:
            self.turns.expect(instance, ends.collectives)
        for name, request in ends.post():
            self.await_(request, instance, name)
        self.run_strand(instance, 0, feeds)

    def run_strand(self, instance: Instance, index: int, feeds: tuple = ()) -> None:
        """Run one strand to its end and let go of those that waited for it."""
        if instance.error is not None:
            self.skip(instance, index)
            return
        try:
            instance.strands[index](*feeds)
        except Exception as error:
            self.helper.back()
            told = instance.compiled.explain(error, self.rank)
            if told is not error:
                told.__cause__ = error
            self.fail(instance, told)
            self.skip(instance, index)
            return
        except BaseException as error:  # Ctrl-C: the step is lost, the engine is not
            self.helper.back()
            self.fail(instance, error)
            self.skip(instance, index)
            raise
        self.over(instance, index)

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
            self.meeting()
            bucket = instance.buckets[name]
            bucket.start()
            self.await_(bucket, instance, name)

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
            self.tell_waiters()

    def tell_waiters(self) -> None:
        """A step is over, or the baton is free: threads that wait for either look again."""
        if self.waiters:
            with self.freed:
                self.freed.notify_all()

    def await_(self, request: Request, instance: Instance | None, what: Any) -> None:
        """Watch a request; when it is over, so is `what` of `instance`."""
        self.waits.append((request, instance, what))

    def poll(self) -> bool:
        """Test everything in flight once; True if anything moved. Runs no strand."""
        waits = self.waits
        i, before = 0, len(waits)
        moved = False
        while i < len(waits):
            request, instance, what = waits[i]
            try:
                over = request.test()
            except HpcflowError as error:
                if instance is None or isinstance(error, CommError):
                    raise
                self.fail(instance, instance.compiled.located(error, what, self.rank))
                over = True
            if over:
                waits[i] = waits[-1]
                waits.pop()
                moved = True
                if instance is None:
                    self.tell_waiters()
                elif not instance.torn:
                    self.over(instance, what)
            else:
                i += 1
        return self.control() or moved or len(waits) < before

    # -- the baton

    def drive(self, finished: Callable[[], bool]) -> None:
        """Make progress until `finished()`; the caller holds the baton."""
        self.context.run(self.progress, finished)

    def progress(self, finished: Callable[[], bool]) -> None:
        """What `drive` does, inside the engine's context."""
        ready = self.ready
        while not finished():
            while ready:
                self.run_strand(*ready.popleft())
            if finished():
                break
            self._empty_inbox()
            if ready:
                continue
            if self.poll():
                self._moved()
            elif not ready:
                self._idle()
        if self.entered:
            self._moved()

    def _moved(self) -> None:
        self.quiet = 0
        self.backoff.reset()
        if self.entered:
            self.entered = False
            self.ledger.leave()

    def _idle(self) -> None:
        self.quiet += 1
        if self.quiet == PATIENCE_POLLS and self.ledger is not None and self.waits:
            self._enter()
        if self.wake.is_set():
            self.wake.clear()
        if not self.inbox:
            self.backoff.wait()

    def _enter(self) -> None:
        """Write the oldest wait into the ledger, that a report can name it; a patient one last."""
        hasty = (wait for wait in self.waits if wait[1] is None or not wait[1].patient)
        _, instance, what = next(hasty, self.waits[0])
        if instance is None:
            self.ledger.enter(0, str(what), -1, "request")
        else:
            node = instance.part.nodes.get(what) if isinstance(what, str) else None
            peer = instance.link.ranks.get(node.attrs.get("source"), -1) if node is not None else -1
            name, kind = (node.name, node.type) if node is not None else ("send", "Send")
            self.ledger.enter(instance.step, name, peer, PATIENT if instance.patient else kind)
        self.entered = True

    def with_baton(self, begin: Callable[[], None], finished: Callable[[], bool]) -> None:
        """Run `begin` under the baton and make progress until `finished()`, from any thread."""
        if self.baton.acquire(blocking=False):
            self._lead(begin, finished)
            return
        self.waiters += 1
        try:
            self._follow(begin, finished)
        finally:
            self.waiters -= 1

    def _lead(self, begin: Callable[[], None] | None, finished: Callable[[], bool]) -> None:
        try:
            if begin is not None:
                self.context.run(begin)
            if not finished():
                self.drive(finished)
        finally:
            self.baton.release()
            self.tell_waiters()

    def _follow(self, begin: Callable[[], None], finished: Callable[[], bool]) -> None:
        """Hand the step to the holder of the baton; take the baton when it is free."""
        if _already_inside():
            raise CommError(
                "Session.run was called inside another run of the same thread",
                rank=self.rank,
                hint="in a signal handler set a flag only, and run between the steps",
            )
        begun = _Handed(begin)
        self.inbox.append(begun)
        self.wake.set()
        try:
            while self._kept_waiting(begun, finished):
                if self.baton.acquire(blocking=False):
                    self._lead(self._empty_inbox, functools.partial(begun.ended, finished))
                    break
        except BaseException:  # Ctrl-C: nobody waits for what has not begun
            begun.dropped = True
            raise
        begun.check()

    def _kept_waiting(self, begun: _Handed, finished: Callable[[], bool]) -> bool:
        """Wait until there is something to see; False once the step is over."""
        with self.freed:
            if begun.ended(finished):
                return False
            if self.baton.locked():
                self.freed.wait(LOOK_S)
        return not begun.ended(finished)

    def _empty_inbox(self) -> None:
        """Begin all that was handed over; what stays there would never leave if nobody drove."""
        while self.inbox:
            self.inbox.popleft()()
            self.tell_waiters()

    def finish(self, request: Request, what: str) -> None:
        """Wait for one request that belongs to no step, making progress on everything else."""
        box: list[bool] = []

        class Watched:
            def test(self) -> bool:
                if request.test():
                    box.append(True)
                    return True
                return False

        self.with_baton(lambda: self.await_(Watched(), None, what), lambda: bool(box))


class _Handed:
    """The beginning of a step that another thread may run; keeps its error for who asked."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._over = begin, False
        self._error: BaseException | None = None
        self.dropped = False

    def __call__(self) -> None:
        try:
            if not self.dropped:
                self._begin()
        except Exception as error:  # belongs to the thread that asked
            self._error = error
        except BaseException as error:  # Ctrl-C met whoever drives
            self._error = error
            raise
        finally:
            self._over = True

    def ended(self, finished: Callable[[], bool]) -> bool:
        """True once the step has begun and is finished, or could not begin."""
        return self._error is not None or (self._over and finished())

    def check(self) -> None:
        """Raise the error of the beginning in the thread that asked."""
        if self._error is not None:
            raise self._error


def _already_inside() -> bool:
    """Whether this thread holds the baton already, as in a signal handler that runs a step."""
    runs, frame = 0, cast("FrameType | None", sys._getframe(3))
    while frame is not None:
        code = frame.f_code
        if runs and (code.co_filename == SHELL or code.co_name in ("_call", "_lead")):
            return True
        runs += code.co_name == "run" and code.co_filename.endswith("session.py")
        frame = frame.f_back
    return False


def _nothing_came() -> bool:
    return False
