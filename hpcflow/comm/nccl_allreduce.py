"""Allreduce between GPUs by NCCL; host arrays use the wrapped communicator.

The only file that imports cupy.cuda.nccl. Each rank drives one GPU, and no two ranks share one.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.communicator import COLLECTIVE, Bucket, Communicator
from hpcflow.comm.communicator_wrapper import CommunicatorWrapper
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError, DeviceError, MissingPackageError, StallError
from hpcflow.platform.install_hints import install_hint
from hpcflow.platform.rank_logging import logger, rank_spans, say_once

ID_BYTES = 128
SET_UP_S = 300.0  # NCCL itself waits without limit for a missing rank
ANSWER_S = 10.0  # further wait for the answer of rank 0
CLOSE_S = 10.0  # for sums in flight at close
ABORT_S = 10.0  # NCCL's abort may hang too; then it is abandoned
ROLL_TAG = 1
DEBUG = "NCCL_DEBUG=INFO tells more"
_open: weakref.WeakSet[NcclCommunicator] = weakref.WeakSet()
KINDS = {
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
}


def _packages() -> tuple[Any, Any]:
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise MissingPackageError(
            f"sums between GPUs need CuPy with NCCL: {error}",
            hint=f"{install_hint('cuda12', 'cuda13')}, or set HPCFLOW_COMM=shared",
        ) from error
    return cupy, nccl


class NcclCommunicator(CommunicatorWrapper):
    """Wraps `inner`; buckets are on the GPU `device` (None: the current one).

    Collective over `inner`. Two ranks on one GPU, or different versions of NCCL, raise a
    DeviceError on every rank. `packages` are cupy and its nccl module.
    """

    def __init__(
        self,
        inner: Communicator,
        device: int | None = None,
        packages: tuple[Any, Any] | None = None,
    ) -> None:
        super().__init__(inner)
        self.cupy, self.nccl = packages or _packages()
        self.device = self.cupy.cuda.runtime.getDevice() if device is None else device
        self._failed = ""
        self.comm: Any = None
        self._check_presence()
        self._check_gpus()
        with self.cupy.cuda.Device(self.device):
            self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.comm = self._connect()
        self._poll_error: Callable[[], object] = getattr(self.comm, "check_async_error", _unknown)
        if self._poll_error is _unknown:
            line = "this CuPy does not tell of errors of NCCL: stalls alone will show them"
            say_once(line, logging.WARNING)
        _open.add(self)

    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """A bucket in device memory, summed in place by NCCL."""
        name = np.dtype(dtype).name
        if not hasattr(self.nccl, KINDS.get(name, "")):
            raise CommError(f"NCCL cannot add arrays of dtype {name}", rank=self.rank)
        return _NcclBucket(self, count, np.dtype(dtype))

    def over_subset(self, part: Communicator, ranks: Sequence[int]) -> CommunicatorWrapper:
        """NCCL over a subset of the ranks, on the same GPU."""
        return NcclCommunicator(part, self.device, (self.cupy, self.nccl))

    def check(self) -> None:
        """CommError if a rank or NCCL's network has failed; aborts the NCCL communicator then."""
        if not self._failed:
            try:
                self._poll_error()
                return
            except Exception as error:  # the exception class is in a package that may be absent
                self._failed = str(error)
                self.abort_here()
        raise CommError(f"NCCL failed: {self._failed}", rank=self.rank, hint=DEBUG)

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self.abort_here()
        self.inner.abort(code)

    def close(self) -> None:
        """Destroy the NCCL communicator; collective. If its sums do not end, it is aborted."""
        if self.comm is not None and not self._failed:
            if self._sums_have_ended():
                self.comm.destroy()
            else:
                logger.warning("a sum on the GPU did not end in %.0f s: NCCL is aborted", CLOSE_S)
                self.abort_here()
        self.comm = None
        super().close()

    def _sums_have_ended(self) -> bool:
        """Whether all sums in flight end within CLOSE_S."""
        with self.cupy.cuda.Device(self.device):
            end = self.cupy.cuda.Event(disable_timing=True)
            end.record(self.stream)
        late = time.monotonic() + CLOSE_S
        while not end.done:
            if time.monotonic() > late:
                return False
            time.sleep(0.001)
        return True

    def _check_presence(self) -> None:
        """Check with a timeout that all ranks are present: rank 0 collects messages and answers.

        Errors: CommError, on each rank that is present, naming the missing ranks.
        """
        came = self._collect_presence() if self.rank == 0 else self._presence_result()
        if not came.all():
            there, missing = (np.flatnonzero(came == n).tolist() for n in (1, 0))
            hosts = ", ".join(sorted({self.hosts[rank] for rank in missing}))
            raise CommError(
                f"NCCL cannot start: {rank_spans(missing)} on {hosts} did not come in "
                f"{SET_UP_S:.0f} s; "
                f"{rank_spans(there)} did",
                rank=self.rank,
                hint="see what those ranks do or say; HPCFLOW_COMM=mpi sums on the hosts",
            )

    def _presence_result(self) -> np.ndarray:
        """For each rank whether it is present, as rank 0 sends it.

        Without an answer only rank 0 counts as missing.
        """
        came = np.zeros(self.size, np.int8)
        word = self.inner.send(np.ones(1, np.int8), 0, ROLL_TAG)
        answer = self.inner.recv(came, 0, ROLL_TAG)
        try:
            wait_for_requests(
                word, answer, timeout=SET_UP_S + ANSWER_S, label="the start of NCCL", peer=0
            )
        except StallError:
            return np.array([rank > 0 for rank in range(self.size)], np.int8)
        return came

    def _collect_presence(self) -> np.ndarray:
        """On rank 0: collect who is present, send the result to those ranks, and return it."""
        words = [np.zeros(1, np.int8) for _ in range(self.size)]
        pending = {r: self.inner.recv(words[r], r, ROLL_TAG) for r in range(1, self.size)}
        late = time.monotonic() + SET_UP_S
        while pending and time.monotonic() < late:
            pending = {rank: request for rank, request in pending.items() if not request.test()}
            time.sleep(0.0005)
        came = np.array([rank not in pending for rank in range(self.size)], np.int8)
        sends = [self.inner.send(came, int(r), ROLL_TAG) for r in np.flatnonzero(came) if r]
        with contextlib.suppress(StallError):  # a later step detects a rank that is gone
            wait_for_requests(*sends, timeout=ANSWER_S, label="the start of NCCL")
        return came

    def _check_gpus(self) -> None:
        """Allgather GPU ids and NCCL versions, so that all ranks raise the same error, or none."""
        runtime = self.cupy.cuda.runtime
        # CuPy ends a uuid at its first zero byte, so that alone does not tell GPUs apart
        uuid = bytes(runtime.getDeviceProperties(self.device)["uuid"]).hex()
        gpu = f"{runtime.deviceGetPCIBusId(self.device)}/{uuid}@{self.hosts[self.rank]}"
        texts = self.inner.all_gather_text(f"{gpu} {self.nccl.get_version()}")
        rows = [text.split() for text in texts]
        owners = collections.defaultdict(list)
        for rank, (gpu, _) in enumerate(rows):
            owners[gpu].append(rank)
        for gpu, ranks in owners.items():
            if len(ranks) > 1:
                raise DeviceError(
                    f"ranks {', '.join(map(str, ranks))} share one GPU ({gpu.partition('/')[0]}, "
                    f"on {self.hosts[ranks[0]]}), and NCCL needs one for each rank",
                    rank=self.rank,
                    hint="start as many ranks on a node as it has GPUs, or set HPCFLOW_COMM=mpi",
                )
        if len({version for _, version in rows}) > 1:
            versions = ", ".join(f"rank {rank} {version}" for rank, (_, version) in enumerate(rows))
            raise DeviceError(f"the ranks have unlike versions of NCCL: {versions}", rank=self.rank)

    def _connect(self) -> Any:
        """NCCL's communicator; a barrier ensures that all ranks enter NCCL's unbounded setup."""
        name = np.zeros(ID_BYTES, np.int8)
        if self.rank == 0:
            name[:] = np.frombuffer(self.nccl.get_unique_id(), np.int8)
        wait_for_requests(self.inner.broadcast(name, 0), timeout=SET_UP_S, label="setting up NCCL")
        wait_for_requests(self.inner.barrier(), timeout=SET_UP_S, label="setting up NCCL")
        box: list[Any] = []

        def enter() -> None:
            try:
                with self.cupy.cuda.Device(self.device):
                    comm = self.nccl.NcclCommunicator(self.size, name.tobytes(), self.rank)
                box.append(comm)
            except Exception as error:
                box.append(error)

        thread = threading.Thread(target=enter, name="hpcflow-nccl", daemon=True)
        thread.start()
        thread.join(SET_UP_S)
        if not box or isinstance(box[0], Exception):
            hosts = ", ".join(sorted(set(self.hosts)))
            why = f"failed: {box[0]}" if box else f"has not ended in {SET_UP_S:.0f} s"
            raise CommError(
                f"NCCL's own start {why}; all of {rank_spans(range(self.size))} came to it, on "
                f"{hosts}",
                rank=self.rank,
                hint=f"{DEBUG}; NCCL_SOCKET_IFNAME names the network",
            )
        return box[0]

    def abort_here(self) -> None:
        """Abort this rank's sums in flight, which are lost; other ranks are not aborted."""
        comm, self.comm = self.comm, None
        self._failed = self._failed or "it was aborted"
        _open.discard(self)
        if comm is None:
            return
        helper = threading.Thread(target=comm.abort, daemon=True)
        helper.start()
        helper.join(ABORT_S)


def abort_all() -> None:
    """Abort all NCCL communicators when this process ends but others may not; from any thread."""
    for communicator in list(_open):
        communicator.abort_here()


def _unknown() -> None:
    """Used with a CuPy that lacks ncclCommGetAsyncError."""


class _NcclBucket:
    """A sum in place in device memory, on the communicator's own CUDA stream."""

    def __init__(self, comm: NcclCommunicator, count: int, dtype: np.dtype) -> None:
        self._comm, cuda = comm, comm.cupy.cuda
        self._kind = getattr(comm.nccl, KINDS[dtype.name])
        with cuda.Device(comm.device):
            self.input = self.output = comm.cupy.zeros(count, dtype)
            self._ready = cuda.Event(disable_timing=True)
            self._done_event = cuda.Event(disable_timing=True)
        self._running = False

    def start(self) -> None:
        comm, array = self._comm, self.input
        if self._running:
            raise CommError("a bucket was started again before it was done", rank=comm.rank)
        comm.check()
        comm.traffic.add(COLLECTIVE, array.nbytes)
        if not array.size:
            return
        self._running = True
        with comm.cupy.cuda.Device(comm.device):
            self._ready.record(comm.cupy.cuda.get_current_stream())  # the stream of the addend
            comm.stream.wait_event(self._ready)
            pointer, total = array.data.ptr, comm.nccl.NCCL_SUM
            comm.comm.allReduce(pointer, pointer, array.size, self._kind, total, comm.stream.ptr)
            self._done_event.record(comm.stream)

    def test(self) -> bool:
        if self._running:
            self._comm.check()
            self._running = not self._done_event.done
        return not self._running

    def close(self) -> None:
        if self._running:
            raise CommError("a bucket was closed before it was done", rank=self._comm.rank)
        self.input = self.output = None
