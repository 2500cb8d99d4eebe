"""The Communicator interface over MPI; the first call of `world()` initializes MPI."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.comm import mpi_library
from hpcflow.comm.bruck_allgather import AllGather
from hpcflow.comm.communicator import (
    COLLECTIVE,
    GATHER_TAGS,
    Bucket,
    Channel,
    Communicator,
    Request,
    TrafficCounter,
)
from hpcflow.comm.contiguous_buffers import byte_view, check_rows, flat_view, read_only
from hpcflow.comm.mpi_library import (
    bfloat16_sum,
    initialized_mpi,
    misses_any_source,
    mpi_datatype,
    thread_level,
)
from hpcflow.comm.mpi_request_polling import MpiCompletionQueue
from hpcflow.comm.mpi_requests import (
    PATIENCE_S,
    PIECE_BYTES,
    ChunkedChannel,
    FailedTransfer,
    MpiTransfer,
    PacedChannel,
    PersistentChannel,
    ProbedChannel,
    RequestGroup,
    chunks_of,
)
from hpcflow.comm.polling_backoff import ledger_entry, machine_id, wait_for_requests
from hpcflow.errors import CommError, DeathError, LaunchError, StallError
from hpcflow.graph.dtypes import bfloat16
from hpcflow.platform.rank_logging import logger

LARGEST_PIECE = 1 << 30  # elements of one call: MPI-3 counts are 32-bit integers
LEAST_PACED_BYTES = 64 << 10  # smaller messages are sent before they are received
LET_OTHERS_DIE_S = 0.5
UNIT = 1 << 20  # bytes in one unit of the datatype of larger messages


@functools.cache
def world() -> MpiCommunicator:
    """All ranks of the job, on a duplicate of MPI_COMM_WORLD; the first call is collective."""
    MPI = initialized_mpi()
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise LaunchError(
            f"MPI gives thread level {thread_level()}, hpcflow needs serialized or more",
            hint="import hpcflow before anything that initialises MPI, or set "
            "MPI4PY_RC_THREAD_LEVEL=serialized",
        )
    communicator = MpiCommunicator(MPI.COMM_WORLD.Dup())
    mpi_library.lost = lambda: communicator.lost
    atexit.register(communicator.close)
    return communicator


class _MpiBucket:
    """A sum by MPI_Iallreduce, out of place: measured twice as fast as in place."""

    def __init__(self, comm: MpiCommunicator, count: int, dtype: np.dtype) -> None:
        self._comm = comm
        self._sum = np.zeros(count, dtype)
        self.input = np.zeros(count, dtype) if comm.size > 1 else self._sum
        self.output = read_only(self._sum)
        self._request: Request = RequestGroup([])

    def start(self) -> None:
        if not self._request.test():
            raise CommError("a bucket was started again before it was done", rank=self._comm.rank)
        self._comm.traffic.add(COLLECTIVE, self.input.nbytes)
        if self._comm.size > 1:
            self._request = self._comm.reduce_into(self.input, self._sum)

    def test(self) -> bool:
        return self._request.test()

    def close(self) -> None:
        self.input = self.output = self._sum = np.zeros(0, self._sum.dtype)


class MpiCommunicator(Communicator):
    """The Communicator interface over an mpi4py communicator that no other code uses."""

    def __init__(self, comm: Any, parent: MpiCommunicator | None = None) -> None:
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.max_tag = initialized_mpi().COMM_WORLD.Get_attr(initialized_mpi().TAG_UB)
        self.live: set[MpiTransfer] = set()
        self.channels: set[PersistentChannel] = set()
        self._children: list[MpiCommunicator] = []
        self._buried: list[MpiCommunicator] = []  # replaced communicators, whose members died
        self._parent, self._closed = parent, False
        self._large: dict[int, Any] = {}
        self._gathers = 0
        self._groups: dict[tuple[int, ...], MpiCommunicator] = {}
        self.watch = MpiCompletionQueue(self)
        if parent is None:
            self.traffic = TrafficCounter()
            self._top: Sequence[int] = range(self.size)
            place = f"{initialized_mpi().Get_processor_name()}\n{machine_id()}"
            places = [text.split("\n") for text in self.all_gather_text(place)]
            # one string per node, not per rank
            self.hosts = tuple(sys.intern(name) for name, _ in places)
            self.machines = tuple(sys.intern(machine) for _, machine in places)
        else:
            self.traffic, self.tolerant = parent.traffic, parent.tolerant
            ranks = comm.Get_group().Translate_ranks(None, parent._comm.Get_group())
            self._top = tuple(parent._top[rank] for rank in ranks)
            self.hosts = tuple(parent.hosts[rank] for rank in ranks)

    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`."""
        request = self._send(array, dest, tag)
        self.traffic.add((self._top[dest], tag), array.nbytes)
        return request

    def _send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        try:
            request = self._comm.Isend(self._spec(array), dest, tag)
        except RuntimeError as error:
            return FailedTransfer(self._failure(error, f"send to rank {dest}, tag {tag}"))
        return MpiTransfer(self, request, array, ("send", dest, tag))

    def send_to_channel(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array` to a rank that receives by a channel."""
        if not self._in_pieces(array, dest):
            return self.send(array, dest, tag)
        self.traffic.add((self._top[dest], tag), array.nbytes)
        return RequestGroup([self._send(piece, dest, tag) for piece in chunks_of(byte_view(array))])

    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`."""
        spec = self._spec(array, writable=True)
        try:
            request = self._comm.Irecv(spec, self._source(source), tag)
        except RuntimeError as error:
            return FailedTransfer(self._failure(error, f"receive from rank {source}, tag {tag}"))
        return MpiTransfer(
            self, request, array, ("receive", source, tag), initialized_mpi().Status()
        )

    def send_channel(self, array: np.ndarray, dest: int, tag: int) -> Channel:
        """A persistent send of `array`."""
        data, tally = byte_view(array), self.traffic.tally((self._top[dest], tag))
        if not self._in_pieces(data, dest):
            return self._send_channel(array, dest, tag, tally)
        sends = [self._send_channel(piece, dest, tag) for piece in chunks_of(data)]
        return ChunkedChannel(sends, tally=tally)

    def _send_channel(
        self, array: np.ndarray, dest: int, tag: int, tally: list[int] | None = None
    ) -> PersistentChannel:
        request = self._comm.Send_init(self._spec(array), dest, tag)
        return PersistentChannel(self, request, array, ("send", dest, tag), tally=tally)

    def recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> Channel:
        """A persistent receive into `array`."""
        # a posted receive was seen to complete without its message when another rank died
        if source == self.ANY and (self.tolerant or misses_any_source()):
            return ProbedChannel(self, array, tag)
        data = byte_view(array, writable=True)
        if not self._in_pieces(data, source):
            receive = self._recv_channel(array, source, tag, short)
            remote = source != self.ANY and not self._is_near(source)
            large = remote and data.nbytes >= LEAST_PACED_BYTES
            return PacedChannel(self, receive, source, tag) if large else receive
        pieces = chunks_of(data)
        first = self._recv_channel(pieces[0], source, tag, short)
        rest = [self._recv_channel(piece, source, tag) for piece in pieces[1:]]
        return ChunkedChannel([first, *rest], source)

    def _recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> PersistentChannel:
        spec = self._spec(array, writable=True)
        request = self._comm.Recv_init(spec, self._source(source), tag)
        label = ("receive", source, tag)
        return PersistentChannel(
            self, request, array, label, initialized_mpi().Status(), short=short
        )

    def _in_pieces(self, array: np.ndarray, peer: int) -> bool:
        """Whether a channel splits the message; sender and receiver compute the same value."""
        near = peer != self.ANY and self._is_near(peer)
        return near and array.nbytes >= 2 * PIECE_BYTES

    def _is_near(self, peer: int) -> bool:
        """Whether a rank is on the host of this one."""
        return self.hosts[peer] == self.hosts[self.rank]

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None."""
        status = self._probe(source, tag)
        return None if status is None else (status.Get_source(), self.count_bytes(status))

    def probe_any(self) -> tuple[int, int, int] | None:
        """(source, tag, bytes) of some message that can be received, or None."""
        status = self._probe(self.ANY, initialized_mpi().ANY_TAG)
        if status is None:
            return None
        return status.Get_source(), status.Get_tag(), self.count_bytes(status)

    def _probe(self, source: int, tag: int) -> Any:
        status = initialized_mpi().Status()
        try:
            return status if self._comm.Iprobe(self._source(source), tag, status) else None
        except RuntimeError as error:
            if source == self.ANY and self.met_death(error) is not False:
                return None
            raise self._failure(error, f"probe of rank {source}, tag {tag}") from error

    def met_death(self, error: RuntimeError) -> bool | None:
        """Whether `error` of a request means that its peer has died; None if the request goes on.

        The dead ranks are then in `lost`. In a job without `survive` it is always False.
        """
        MPI = initialized_mpi()
        kind = error.Get_error_class() if isinstance(error, MPI.Exception) else -1
        if not self.tolerant or kind not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            return False
        self.see_deaths()
        return True if kind == MPI.ERR_PROC_FAILED else None

    def see_deaths(self) -> None:
        """Update `lost`, and let receives from any rank continue (acknowledge the failures)."""
        if self._parent is not None:
            self._parent.see_deaths()
        failed = self._comm.Get_failed()
        self._comm.Ack_failed(failed.Get_size())
        self.lost = tuple(sorted(failed.Translate_ranks(None, self._comm.Get_group())))

    def _failure(self, error: RuntimeError, label: str) -> CommError:
        kind = DeathError if self.met_death(error) else CommError
        return kind(f"{label}: {error}", rank=self.rank)

    def count_bytes(self, status: Any) -> int:
        """Bytes of the message of an MPI status, also above 2**31."""
        return int(status.Get_elements(initialized_mpi().BYTE))

    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """A bucket in private memory, summed by MPI."""
        mpi_datatype(np.dtype(dtype))
        return _MpiBucket(self, count, np.dtype(dtype))

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Allreduce `array` in place."""
        data = flat_view(array)
        self.traffic.add(COLLECTIVE, data.nbytes)
        return self.reduce_into(None, data, op)

    def reduce_into(
        self, addend: np.ndarray | None, result: np.ndarray, op: str = "sum"
    ) -> Request:
        """Allreduce `addend` (None: `result` itself) into `result`."""
        MPI, kind = initialized_mpi(), mpi_datatype(result.dtype)
        if op not in ("sum", "max", "min"):
            raise CommError(f"a reduction by {op!r} is not one of sum, max, min")
        combine = getattr(MPI, op.upper())
        if result.dtype == bfloat16:
            if op != "sum":
                raise CommError(f"bfloat16 is summed only, not combined by {op!r}")
            combine, result = bfloat16_sum(), result.view(np.uint16)
            addend = None if addend is None else addend.view(np.uint16)
        requests = []
        for low in range(0, result.size, LARGEST_PIECE):
            piece = slice(low, low + LARGEST_PIECE)
            send_buffer = MPI.IN_PLACE if addend is None else [addend[piece], kind]
            start = functools.partial(
                self._comm.Iallreduce, send_buffer, [result[piece], kind], op=combine
            )
            requests.append(self._collective("all_reduce", start, (addend, result)))
        return RequestGroup(requests)

    def _collective(self, label: str, start: Callable[[], Any], buffers: Any) -> Request:
        """The request made by `start`, which uses `buffers`; `test` raises its error."""
        try:
            return MpiTransfer(self, start(), buffers, (label, -1, -1))
        except RuntimeError as error:
            return FailedTransfer(self._failure(error, label))

    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Broadcast `root`'s array in place."""
        spec = self._spec(array, writable=self.rank != root)
        if self.rank == root:
            self.traffic.add(COLLECTIVE, array.nbytes)
        start = functools.partial(self._comm.Ibcast, spec, root)
        return self._collective("broadcast", start, array)

    def all_gather(
        self,
        array: np.ndarray,
        out: np.ndarray,
        rows: Sequence[int],
        piece_bytes: Callable[[int], int] = lambda peer: 0,
    ) -> Request:
        """Concatenate the arrays of all ranks, in rank order, in `out` on every rank.

        `piece_bytes` as in `AllGather`.
        """
        check_rows(array, out, rows, self.rank)
        data, target = byte_view(array), byte_view(out, writable=True)
        self.traffic.add(COLLECTIVE, array.nbytes)
        row = target.size // max(out.shape[0], 1)
        starts = [0, *(np.cumsum(np.asarray(rows, np.int64)) * row).tolist()]
        target[starts[self.rank] : starts[self.rank + 1]] = data.reshape(-1)
        tag = self.max_tag - 1 - self._gathers % GATHER_TAGS  # all ranks call in the same order
        self._gathers += 1
        return AllGather(
            self.rank,
            target.reshape(-1),
            starts,
            lambda part, dest: self._send(part, dest, tag),
            lambda part, source: self.recv(part, source, tag),
            piece_bytes,
        )

    def barrier(self) -> Request:
        """Done once all ranks have called it."""
        return MpiTransfer(self, self._comm.Ibarrier(), None, ("barrier", -1, -1))

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere."""
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = data.size
        what = f"a text of {self.size} ranks"
        wait_for_requests(
            self.all_reduce(lengths), label=what
        )  # no rank continues before all have called
        joined = np.empty(int(lengths.sum()) if self.rank == root else 0, np.uint8)
        target = [joined, lengths, initialized_mpi().BYTE] if self.rank == root else None
        request = self._comm.Igatherv([data, initialized_mpi().BYTE], target, root)
        wait_for_requests(
            MpiTransfer(self, request, (data, joined, lengths), ("gather", root, -1)), label=what
        )
        if self.rank != root:
            return None
        pieces = np.split(joined, np.cumsum(lengths)[:-1])
        return [piece.tobytes().decode() for piece in pieces]

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string on every rank."""
        data = np.frombuffer((text or "").encode(), np.uint8) if self.rank == root else None
        length = np.array([0 if data is None else data.size])
        what, peer = "what one rank decides", self._top[root]
        wait_for_requests(self.broadcast(length, root), label=what, peer=peer)
        buffer = np.empty(length[0], np.uint8) if data is None else data
        wait_for_requests(self.broadcast(buffer, root), label=what, peer=peer)
        return buffer.tobytes().decode()

    def split(self, ranks: Sequence[int]) -> MpiCommunicator | None:
        """A communicator of `ranks`, numbered in that order; None on the others."""
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self.size)):
            raise CommError(f"split: {list(ranks)} are not distinct ranks of {self.size}")
        in_group = self.rank in ranks
        return self.split_by(0 if in_group else -1, list(ranks).index(self.rank) if in_group else 0)

    def split_by(self, color: int, key: int) -> MpiCommunicator | None:
        """One communicator for each `color`, ordered by `key`; None where `color` is negative."""
        MPI = initialized_mpi()
        part = self._comm.Split(MPI.UNDEFINED if color < 0 else color, key)
        if part == MPI.COMM_NULL:
            return None
        child = MpiCommunicator(part, self)
        self._children.append(child)
        return child

    def without_lost(self) -> MpiCommunicator:
        """A communicator of the live ranks, in their order; this one can no longer be used.

        Collective over the live ranks; blocks. Operations in flight on this communicator are left
        as they are. MPI may still write into their memory, which is therefore kept allocated.
        """
        self._comm.Revoke()
        part = MpiCommunicator(self._comm.Shrink(), self._parent or self)
        if self._parent is not None:
            self._parent._children.remove(self)
            self._parent._children.append(part)
            self._parent._buried.append(self)
        return part

    def revoke(self) -> None:
        """Make the calls of other ranks fail that use this communicator or one split from it."""
        for comm in (self, *self._children):
            comm._comm.Revoke()

    def all_agree(self, yes: bool) -> bool:
        """Whether all live ranks pass True and no new death was found; same on all; blocks."""
        try:
            return bool(self._comm.Agree(int(yes)))
        except initialized_mpi().Exception:  # a rank has died; raised on all ranks
            return False

    @property
    def top_ranks(self) -> tuple[int, ...]:
        """Each rank's number in the first communicator, from which this one was split."""
        return tuple(self._top)

    @property
    def handle(self) -> Any:
        """The mpi4py communicator, for a library that calls MPI itself."""
        return self._comm

    def group_of(self, ranks: Sequence[int]) -> MpiCommunicator:
        """A communicator of `ranks`; only these ranks call it. Cached by the ranks."""
        key = tuple(ranks)
        if key not in self._groups:
            group = self._comm.Get_group().Incl(key)
            with ledger_entry(f"a communicator of {len(key)} ranks"):
                subcomm = self._comm.Create_group(group, tag=0)
            self._groups[key] = MpiCommunicator(subcomm, self)
        return self._groups[key]

    def nodes(self) -> tuple[int, ...]:
        """For each rank the first rank that shares memory with it; collective."""
        local = self._comm.Split_type(initialized_mpi().COMM_TYPE_SHARED, key=self.rank)
        first = local.Get_group().Translate_ranks([0], self._comm.Get_group())[0]
        local.Free()
        table = np.zeros(self.size, np.int64)
        table[self.rank] = first
        wait_for_requests(self.all_reduce(table))
        return tuple(table.tolist())

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        mpi_library.abort(code)

    def is_last(self) -> bool:
        """Whether all other ranks have died; waits a moment, as they may be about to fail too."""
        late = time.monotonic() + LET_OTHERS_DIE_S
        while len(self.lost) < self.size - 1 and time.monotonic() < late:
            with contextlib.suppress(CommError):
                self.probe(self.ANY, self.max_tag)  # MPI detects deaths only inside its calls
            time.sleep(0.01)
        return len(self.lost) == self.size - 1

    def close(self) -> None:
        """Cancel receives and free channels; collective for communicators made by `split`."""
        if self._closed or initialized_mpi().Is_finalized():
            return
        self._release()
        if self._parent is not None:
            self._comm.Free()

    def _release(self) -> None:
        """The local part of `close`, so that a rank that exits does not hang in MPI_Finalize."""
        if self._closed:
            return
        self._closed = True
        for child in self._children:
            child._release()
        flying = [*self.live, *(channel for channel in self.channels if channel.active)]
        for transfer in flying:
            transfer.cancel()
        try:
            wait_for_requests(*flying, timeout=PATIENCE_S)
        except (CommError, StallError):
            labels = ", ".join(str(transfer) for transfer in flying if transfer.active)
            if not self.lost:
                logger.warning("closed while in flight: %s", labels)
        for channel in list(self.channels):
            if not channel.active:
                channel.close()
        for kind in self._large.values():
            kind.Free()

    def _source(self, rank: int) -> int:
        return int(initialized_mpi().ANY_SOURCE) if rank == self.ANY else rank

    def _spec(self, array: np.ndarray, writable: bool = False) -> list[Any]:
        """The mpi4py buffer of `array`: bytes, or one element of a datatype of that many bytes."""
        data, MPI = byte_view(array, writable=writable), initialized_mpi()
        if data.size < 1 << 31:
            return [data, MPI.BYTE]
        kind = self._large.get(data.size)
        if kind is None:  # MPI-3 counts are 32-bit; mpi4py does not split all calls
            units, tail = divmod(data.size, UNIT)
            unit = MPI.BYTE.Create_contiguous(UNIT)
            kind = MPI.Datatype.Create_struct([units, tail], [0, units * UNIT], [unit, MPI.BYTE])
            self._large[data.size] = kind.Commit()
            unit.Free()
        return [data, 1, kind]


class SharedMemoryWindow:
    """A shared-memory window of the ranks of `comm`, all on one node; collective.

    `segments[rank]` is the segment of that rank, `nbytes` bytes. A write is visible to another rank
    after `sync`, a message, and the other rank's `sync`.
    """

    def __init__(self, comm: MpiCommunicator, nbytes: int) -> None:
        MPI = initialized_mpi()
        info = MPI.Info.Create({"alloc_shared_noncontig": "true"})  # own pages, near their writer
        self._window = MPI.Win.Allocate_shared(nbytes, 1, info, comm._comm)
        info.Free()
        self._window.Lock_all(MPI.MODE_NOCHECK)
        memories = [self._window.Shared_query(rank)[0] for rank in range(comm.size)]
        self.segments = [np.frombuffer(memory, np.uint8) for memory in memories]

    def sync(self) -> None:
        """Memory barrier (MPI_Win_sync) between accesses to the window before and after."""
        self._window.Sync()

    def close(self) -> None:
        """Free the window; collective; arrays over the segments become invalid."""
        self.segments.clear()
        self._window.Unlock_all()
        self._window.Free()
