"""Step channels: the channels, collective storage and runtime hooks of each step instance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import hpcflow.runtime.executor.py_func_execution
import hpcflow.runtime.state.accumulator_state
import hpcflow.runtime.state.queue_op_execution
import hpcflow.runtime.state.reader_state  # noqa: F401  (they register their waits)
from hpcflow.comm.communicator import Bucket, Channel, Communicator, CompletionQueue, Request
from hpcflow.errors import CommError, DeathError, StepError
from hpcflow.graph.dtypes import string
from hpcflow.graph.static_shape import Spec, is_known, shape_text
from hpcflow.graph.string_encoding import decode_strings, encode_strings
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import DeviceArray, Value
from hpcflow.runtime.executor.async_ops import start_wait
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.failure.replica_loss_recovery import ReplicaLossRecovery
from hpcflow.runtime.state.state_store import VariableState
from hpcflow.runtime.step.control_flow_execution import Run, inline_frame
from hpcflow.runtime.step.step_instance import StepInstance

MISSING_VALUE = (
    -1
)  # in place of the tensor rank: the value is missing, as the step failed on the sender
NO_BYTES = Spec(np.dtype(np.uint8), (0,))
DIMS = 8  # a message of unknown size begins with its tensor rank and up to seven sizes, int64 each


class PartitionPeers:
    """The peers of a partition: the rank of each task, and the tags of the channels between them.

    `ranks` maps the tasks of the plan to ranks. `tag` is the first tag of instance 0, `channels`
    the number of channels of each instance. `collective_buffers` is the storage of its
    collectives, `replica` the replica whose steps these are.
    """

    def __init__(
        self,
        executor: Executor,
        ranks: Mapping[str, int] | None = None,
        tag: int = 0,
        channels: int = 0,
        collective_buffers: CollectiveBuffers | None = None,
        replica: int = 0,
    ) -> None:
        self.executor, self.comm, self.collective_buffers, self.replica = (
            executor,
            executor.comm,
            collective_buffers,
            replica,
        )
        self.ranks, self.tag, self.channels = ranks or {}, tag, channels

    @property
    def joined(self) -> Communicator:
        """The communicator of a partition that has a Send or a Recv."""
        assert self.comm is not None
        return self.comm

    def tag_of(self, instance: StepInstance, node: Node) -> int:
        """The message tag of the channel of a Send or Recv."""
        return self.tag + instance.slot * self.channels + int(node.attrs["channel"])

    def open(self, instance: StepInstance) -> StepChannels:
        """Create the channels of an instance."""
        return StepChannels(self, instance)

    def frame(self, instance: StepInstance, node: Node) -> Run:
        """The function of a loop or branch that never waits."""
        return inline_frame(instance, node)

    def bucket(self, node: Node) -> BucketViews | AllGatherBuffers:
        """The storage of a collective node.

        Errors: CommError without a group of replicas.
        """
        if self.collective_buffers is None:
            raise CommError("a collective needs a group of replicas", op=node.name, line=node.line)
        return self.collective_buffers.get(node)

    # -- hooks of generated code, bound once for each instance

    def send(self, instance: StepInstance) -> Callable[[int], None]:
        """Send a value from its channel's buffer."""
        executor = self.executor

        def send(index: int) -> None:
            instance.sent_flags[index] = 1
            channel = instance.channels.sends[index]
            channel.start()
            if not channel.test():
                instance.unfinished += 1
                executor.wait_for(channel, instance, None)

        return send

    def send_loose(self, instance: StepInstance) -> Callable[..., None]:
        """Send a value in place; a variable's version is pinned until it has been sent."""
        executor, comm = self.executor, self.comm
        assert comm is not None

        def send_loose(index: int, array: np.ndarray, variable: VariableState | None) -> None:
            if variable is not None:
                array = variable.pin()
            instance.sent_flags[index] = 1
            dest, tag = instance.channels.address[index]
            request: Request = comm.send_to_channel(np.ascontiguousarray(array), dest, tag)
            if variable is not None:
                request = _PinnedSend(request, variable, array, lambda: dest in comm.lost)
            instance.unfinished += 1
            executor.wait_for(request, instance, None)

        return send_loose

    def send_sized(self, instance: StepInstance) -> Callable[[int, np.ndarray], None]:
        """Send a value whose size is known only at run time, with a header of its shape."""
        executor, comm = self.executor, self.comm
        assert comm is not None

        def send_sized(index: int, array: np.ndarray) -> None:
            head = np.zeros(DIMS, np.int64)
            head[: array.ndim + 1] = (array.ndim, *array.shape)
            if array.dtype == string:
                data = np.frombuffer(encode_strings(array), np.uint8)
            else:
                data = np.ravel(array).view(np.uint8)
            message = np.concatenate([head.view(np.uint8), data])
            instance.sent_flags[index] = 1
            dest, tag = instance.channels.address[index]
            instance.unfinished += 1
            executor.wait_for(comm.send(message, dest, tag), instance, None)

        return send_sized

    def begin(self, instance: StepInstance) -> Callable[..., None]:
        """Start a collective in its turn, or a wait with its inputs."""
        executor = self.executor
        nodes = instance.part.nodes

        def begin(name: str, *inputs: Value) -> None:
            if nodes[name].row.collective:
                instance.begun_waits.add(name)
                executor.start_collectives(executor.collective_order.ready(instance, name))
                return
            wait: Any = start_wait(instance, nodes[name], inputs)
            is_over = wait.test()
            instance.begun_waits.add(name)
            if is_over:
                executor.mark_over(instance, name)
                return
            instance.waiting[name] = wait
            if getattr(wait, "completed_by_callback", False):
                wait.then = functools.partial(executor.mark_wait_over, instance, name)
            else:
                executor.wait_for(wait, instance, name)

        return begin

    def poll(self, instance: StepInstance) -> Callable[[], bool]:
        """Poll messages between long kernels."""
        return self.executor.poll

    def hold(self, instance: StepInstance) -> Callable[[], None]:
        """Defer SIGINT (Ctrl-C) from now on."""
        return self.executor.slices.interrupt.hold

    def let_go(self, instance: StepInstance) -> Callable[[], None]:
        """Restore the SIGINT handler, and call it if SIGINT came."""
        return self.executor.slices.interrupt.let_go

    def lend(self, instance: StepInstance) -> Callable[[], None]:
        """A long kernel begins: lend the progress lock to the progress thread."""
        return self.executor.progress_thread.lend

    def take(self, instance: StepInstance) -> Callable[[], None]:
        """The long kernel has ended: take the progress lock back."""
        return self.executor.progress_thread.take


class StepChannels:
    """The channels of one instance: sends by index, receives posted when a step begins."""

    def __init__(self, link: PartitionPeers, instance: StepInstance) -> None:
        self.link, self.instance = link, instance
        nodes = instance.part.nodes
        self.address: list[tuple[int, int]] = []
        self.sends: list[Channel | None] = []
        self.numbers = {info.node: i for i, info in enumerate(instance.code.sends_info)}
        for info in instance.code.sends_info:
            node = nodes[info.node]
            self.address.append((link.ranks[node.attrs["dest"]], link.tag_of(instance, node)))
            channel = None
            if info.bind:
                array = instance.arrays[info.bind]
                channel = link.joined.send_channel(array, *self.address[-1])
            self.sends.append(channel)
        self.recvs: list[tuple[str, _FixedSizeReceive | _UnsizedReceive]] = []
        for node in nodes.values():
            if node.row.message == "receive":
                self.recvs.append((node.name, self._receiver(node)))
        self.collectives = sorted(
            instance.buckets, key=lambda name: nodes[name].attrs.get("sequence", 0)
        )

    def close(self) -> None:
        """Free the channels; none has a message in flight."""
        for channel in self.sends:
            if channel is not None:
                channel.close()
        for _, receiver in self.recvs:
            receiver.close()
        self.sends, self.recvs = [], []

    def _receiver(self, node: Node) -> _FixedSizeReceive | _UnsizedReceive:
        link, instance = self.link, self.instance
        peer, tag = link.ranks[node.attrs["source"]], link.tag_of(instance, node)
        if not node.specs[0].sized:
            return _UnsizedReceive(
                link.joined, peer, tag, node.specs[0], instance.boxes[node.name][0]
            )
        nbytes = node.specs[0].nbytes
        array = instance.received[node.name] if nbytes else np.empty(1, np.uint8)
        return _FixedSizeReceive(
            link.joined.recv_channel(array, peer, tag, short=True), nbytes, node, peer
        )

    def send_missing(self, name: str) -> None:
        """Send that the value of the Send `name` is missing, unless the value has been sent.

        The message has no bytes, or one byte if the value has none. For unknown sizes it has an
        invalid rank.
        """
        link, instance, index = self.link, self.instance, self.numbers[name]
        if instance.sent_flags[index]:
            return
        instance.sent_flags[index] = 1
        node = instance.part.nodes[name]
        specs = [instance.compiled.spec_of(ref) for ref in node.inputs] or [NO_BYTES]
        if not specs[0].sized:
            message = np.full(DIMS, MISSING_VALUE, np.int64)
        else:
            message = np.zeros(0 if specs[0].nbytes else 1, np.uint8)
        instance.extend()
        request = link.joined.send_to_channel(message, *self.address[index])
        link.executor.wait_for(request, instance, None)

    def start_receives(self) -> None:
        """Post all receives of a step."""
        for name, channel in self.recvs:
            channel.start()
            self.link.executor.wait_for(channel, self.instance, name)


class CollectiveBuffers:
    """The storage of the collectives of one fetch, for all shapes of its feeds.

    Replicas are fed unequal shards, so they specialize their plans for other shapes at other times.
    The collectives are the same, and all replicas create their storage together, at the first step.
    """

    def __init__(self, group: Communicator, survival: ReplicaLossRecovery | None = None) -> None:
        self._group, self._survival = group, survival
        self._views: dict[str, BucketViews | AllGatherBuffers] = {}

    def get(self, node: Node) -> BucketViews | AllGatherBuffers:
        """The storage of a collective node, created on first use: collective over the group."""
        if node.name not in self._views:
            if self._survival is None:
                self._views[node.name] = self._make_views(node)
            else:
                self._views[node.name] = self._survival.make(lambda: self._make_views(node))
        return self._views[node.name]

    def _make_views(self, node: Node) -> BucketViews | AllGatherBuffers:
        return (AllGatherBuffers if node.row.combines == "rows" else BucketViews)(self._group, node)


class BucketViews:
    """The storage of an AllReduce or broadcast, with views for its inputs and outputs.

    Errors: CommError if a size is unknown.
    """

    def __init__(self, group: Communicator, node: Node) -> None:
        specs = [spec for spec in node.specs]
        for spec in specs:
            if not is_known(spec.shape):
                raise CommError(
                    f"{node.type} of a value whose size is unknown", op=node.name, line=node.line
                )
        self.specs = specs
        count = sum(spec.nbytes // spec.dtype.itemsize for spec in specs)
        self.sum = node.row.combines == "sum"
        self.group = group
        if self.sum:
            self.bucket: Bucket | None = group.bucket(count, specs[0].dtype)
            self._in, self._out = self.bucket.input, self.bucket.output
        else:
            self.bucket = None
            self._in = self._out = np.empty(count, specs[0].dtype)
        self.nbytes = self._in.nbytes + (0 if self._out is self._in else self._out.nbytes)
        self._request: Request | None = None

    def views(self, side: str) -> list[DeviceArray]:
        """The arrays of the inputs ("bucket_in") or outputs ("bucket_out")."""
        bucket, at, views = self._in if side == "bucket_in" else self._out, 0, []
        for spec in self.specs:
            n = _element_count(spec)
            views.append(bucket[at : at + n].reshape(spec.shape))
            at += n
        return views

    def start(self) -> None:
        """Start the allreduce, or the broadcast of the first replica's values."""
        if self.bucket is not None:
            self.bucket.start()
        else:
            self._request = self.group.broadcast(self._in, 0)

    def test(self) -> bool:
        """True once the outputs are complete."""
        return (self.bucket or self._request).test()  # type: ignore[union-attr]


class AllGatherBuffers:
    """Boxes of an AllGather: rows of this replica and of all, whose numbers change in each step.

    An allreduce of the row counts precedes the allgather. The two phases start at different times,
    so they use a communicator of their own, on which collectives follow the order of steps.
    """

    nbytes = 0  # received rows are allocated in each step

    def __init__(self, group: Communicator, node: Node) -> None:
        comm = group.split(range(group.size))
        assert comm is not None
        self.comm, self.specs = comm, node.specs
        self._in: list[list[DeviceArray]] = [[None] for _ in node.inputs]
        self._out: list[list[DeviceArray]] = [[None] for _ in node.inputs]
        self._sizes = np.zeros((comm.size, len(node.inputs)), np.int64)
        self._telling: Request | None = None
        self._moving: list[Request] = []

    def views(self, side: str) -> list[DeviceArray]:
        """The boxes of the inputs ("bucket_in") or outputs ("bucket_out")."""
        return self._in if side == "bucket_in" else self._out

    def start(self) -> None:
        """Start the exchange of the row counts."""
        self._sizes.fill(0)
        self._sizes[self.comm.rank] = [len(box[0]) for box in self._in]
        self._telling = self.comm.all_reduce(self._sizes)

    def test(self) -> bool:
        """True once the rows of all replicas are received."""
        if self._telling is not None:
            if not self._telling.test():
                return False
            self._telling = None
            self._moving = [self._move(i) for i in range(len(self._in))]
        self._moving = [request for request in self._moving if not request.test()]
        return not self._moving

    def _move(self, i: int) -> Request:
        own_rows, rows = self._in[i][0], self._sizes[:, i].tolist()
        out = self._out[i][0] = np.empty((sum(rows), *own_rows.shape[1:]), own_rows.dtype)
        return self.comm.all_gather(own_rows, out, rows)


def _element_count(spec: Spec) -> int:
    return spec.nbytes // spec.dtype.itemsize


class _PinnedSend:
    """A send of a variable's version; it unpins the version when it completes."""

    def __init__(
        self,
        request: Request,
        variable: VariableState,
        array: DeviceArray,
        is_lost: Callable[[], bool],
    ) -> None:
        self.request, self.variable, self.array = request, variable, array
        self._is_lost = is_lost
        self.watched_by = getattr(request, "watched_by", None)

    def test(self) -> bool:
        try:
            if not self.request.test():
                return False
        except DeathError:
            self.abandon()
            raise
        self.variable.unpin(self.array)
        return True

    def abandon(self) -> None:
        """Unpin the version if the receiver is dead; a live receiver may still read it."""
        if self._is_lost():
            self.variable.unpin(self.array)


class MissingValueError(StepError):
    """A value is missing because the step failed on another rank, which reports the error."""

    def __init__(self) -> None:
        super().__init__("the step failed on another rank")


class _FixedSizeReceive:
    """A receive of `nbytes`, or of the message that the value is missing; see `send_missing`."""

    def __init__(self, channel: Channel, nbytes: int, node: Node, peer: int) -> None:
        self.channel, self.nbytes, self.start = channel, nbytes, channel.start
        self.close, self.watched_by = channel.close, getattr(channel, "watched_by", None)
        self.node, self.peer = node, peer

    def abandon(self) -> None:
        """Nobody tests it any more; the message may still come."""
        abandon = getattr(self.channel, "abandon", None)
        if abandon is not None:
            abandon()

    def test(self) -> bool:
        if not self.channel.test():
            return False
        got = self.channel.nbytes
        if got == self.nbytes:
            return True
        if got == (0 if self.nbytes else 1):
            raise MissingValueError
        raise CommError(
            f"rank {self.peer} sent {got} bytes for {self.node.name!r}, which is "
            f"{self.node.specs[0].dtype}{shape_text(self.node.specs[0].shape)}, {self.nbytes} "
            "bytes: "
            "the two ranks do not follow the same plan",
            op=self.node.name,
            line=self.node.line,
            hint="install the same version of hpcflow on every node",
        )


class _UnsizedReceive:
    """A receive whose size is in the message."""

    def __init__(self, comm: Communicator, peer: int, tag: int, spec: Spec, box: list) -> None:
        self.comm, self.peer, self.tag, self.spec, self.box = comm, peer, tag, spec, box
        self.request: Request | None = None
        self.message = np.empty(0, np.uint8)

    def start(self) -> None:
        self.request = None

    def watched_by(self, watch: CompletionQueue, token: object) -> None:
        """Have `watch` report the message."""
        if self.request is None:
            watch.expect(self.peer, self.tag, self._receive, token)
        else:
            watch.add(self.request, token)

    def _receive(self, nbytes: int) -> Request:
        self.message = np.empty(nbytes, np.uint8)
        self.request = self.comm.recv(self.message, self.peer, self.tag)
        return self.request

    def close(self) -> None:
        """It has no channel."""

    def test(self) -> bool:
        if self.request is None:
            probed = self.comm.probe(self.peer, self.tag)
            if probed is None:
                return False
            self._receive(probed[1])
        request = self.request
        if request is None or not request.test():
            return False
        head = self.message[: 8 * DIMS].view(np.int64)
        if head[0] == MISSING_VALUE:
            raise MissingValueError
        shape = tuple(int(n) for n in head[1 : 1 + head[0]])
        data = self.message[8 * DIMS :]
        if self.spec.dtype == string:
            self.box[0] = decode_strings(data.tobytes(), shape)
        else:
            self.box[0] = data.view(self.spec.dtype).reshape(shape)
        return True
