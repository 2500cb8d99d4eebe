"""Queue runners: threads that fill queues by running enqueue operations in a loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import CancelledError, GraphError, OutOfRangeError
from hpcflow.graph.default_session import session_or_default
from hpcflow.graph.graph import Operation, Tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.data_flow.queue_classes import QueueBase
from hpcflow.platform.rank_logging import logger
from hpcflow.tf1.coordinator import Coordinator


class QueueRunner:
    """Threads that fill `queue`: one per entry of `enqueue_ops`, which may repeat an operation.

    A thread ends when its enqueue reaches the end of the input (`queue_closed_exception_types`,
    default: OutOfRangeError). The last thread closes the queue with `close_op`. When a Coordinator
    requests a stop, `cancel_op` closes the queue at once, so that no thread stays blocked in it.
    """

    def __init__(
        self,
        queue: QueueBase,
        enqueue_ops: Sequence[Operation | Tensor],
        close_op: Operation | None = None,
        cancel_op: Operation | None = None,
        queue_closed_exception_types: Sequence[type[BaseException]] = (OutOfRangeError,),
    ) -> None:
        if not enqueue_ops:
            raise GraphError("a queue runner needs an operation to run")
        self.queue, self.enqueue_ops = queue, list(enqueue_ops)
        self.close_op = close_op or queue.close()
        self.cancel_op = cancel_op or queue.close(cancel_pending_enqueues=True)
        self.queue_closed_exception_types = tuple(queue_closed_exception_types)
        self.exceptions_raised: list[BaseException] = []  # those without a Coordinator
        self._lock = threading.Lock()
        self._running: dict[int, int] = {}  # session -> number of running threads

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.queue.name

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """A thread for each enqueue operation in `sess`; none if they run in it already.

        With `coord` there is one more thread, which waits for the stop request. None while planning
        only.
        """
        if sess.context.on_plan is not None:
            return []
        with self._lock:
            if self._running.get(id(sess), 0):
                return []
            self._running[id(sess)] = len(self.enqueue_ops)
        threads = [
            threading.Thread(
                target=self._run,
                args=(sess, op, coord),
                name=f"{self.name}-{i}",
                daemon=daemon,
            )
            for i, op in enumerate(self.enqueue_ops)
        ]
        if coord is not None:
            name = f"{self.name}-close_on_stop"
            args = (sess, coord)
            threads.append(
                threading.Thread(target=self._close_on_stop, args=args, name=name, daemon=daemon)
            )
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def _run(self, sess: Any, op: Operation | Tensor, coord: Coordinator | None) -> None:
        """The body of a thread."""
        ended = False  # whether the input ended
        try:
            while coord is None or not coord.should_stop():
                sess.run(op)
        except self.queue_closed_exception_types:
            ended = True
        except Exception as error:
            was_ended = isinstance(error, CancelledError) or sess._closed  # known already
            if coord is not None:
                coord.request_stop(error)
            elif not was_ended:
                logger.error("the queue runner of %r ended: %s", self.name, error)
                self.exceptions_raised.append(error)
        finally:
            self._leave(sess, ended)

    def _leave(self, sess: Any, ended: bool) -> None:
        """Decrease the number of threads; the last one closes the queue if the input has ended."""
        with self._lock:
            self._running[id(sess)] -= 1
            last = not self._running[id(sess)]
        if last and ended:
            self._close(sess, self.close_op)

    def _close_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        self._close(sess, self.cancel_op)

    def _close(self, sess: Any, op: Operation) -> None:
        try:
            sess.run(op)
        except Exception as error:  # the session may be closed already
            logger.debug("queue %r was not closed: %s", self.name, error)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Register `qr` with `start_queue_runners`."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Start the threads of all queue runners of the graph in `sess` (default: the default session).

    The threads are registered with `coord`, if given, and returned.
    """
    graph = get_default_graph() if sess is None else sess.graph
    session = session_or_default(sess, graph, "start_queue_runners")
    runners = graph.get_collection(collection)
    return [t for qr in runners for t in qr.create_threads(session, coord, daemon, start)]
