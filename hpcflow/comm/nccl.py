"""Buckets on GPUs, summed by NCCL; host arrays go by the communicator beneath.

The only file that imports cupy.cuda.nccl. One rank drives one GPU, and no GPU has two ranks.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.comm.base import Bucket, Communicator
from hpcflow.comm.delegate import Delegate
from hpcflow.comm.waiting import finish
from hpcflow.errors import CommError, DeviceError, MissingPackageError

ID_BYTES = 128
SET_UP_S = 300.0  # NCCL itself waits for ever for a rank that does not come
ABORT_S = 10.0  # NCCL's abort may hang too; then the job is ended without it
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
            hint="pip install 'hpcflow[cuda12]', or set HPCFLOW_COMM=shared",
        ) from error
    return cupy, nccl


class NcclCommunicator(Delegate):
    """The contract of `inner`, but buckets live on the GPU `device` (None: the current one).

    Collective over `inner`. Two ranks on one GPU, or unlike versions of NCCL, are a DeviceError on
    every rank. `packages` are cupy and its nccl module.
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
        self._check_gpus()
        with self.cupy.cuda.Device(self.device):
            self.stream = self.cupy.cuda.Stream(non_blocking=True)
            self.comm = self._connect()
        self._failed = ""

    def bucket(self, count: int, dtype: np.dtype) -> Bucket:
        """Device memory, summed in place by NCCL."""
        name = np.dtype(dtype).name
        if not hasattr(self.nccl, KINDS.get(name, "")):
            raise CommError(f"NCCL cannot add arrays of dtype {name}", rank=self.rank)
        return _NcclBucket(self, count, np.dtype(dtype))

    def over(self, part: Communicator, ranks: Sequence[int]) -> Delegate:
        """NCCL over a part of the ranks, on the same GPU."""
        return NcclCommunicator(part, self.device, (self.cupy, self.nccl))

    def check(self) -> None:
        """CommError once a rank or the network of NCCL has failed; the communicator is aborted."""
        if not self._failed:
            try:
                self.comm.check_async_error()
                return
            except Exception as error:  # the class is defined in a package that may be absent
                self._failed = str(error)
                self._abort()
        raise CommError(
            f"NCCL failed: {self._failed}", rank=self.rank, hint="NCCL_DEBUG=INFO tells more"
        )

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self._abort()
        self.inner.abort(code)

    def close(self) -> None:
        """Destroy NCCL's communicator; collective."""
        if self.comm is not None and not self._failed:
            self.stream.synchronize()
            self.comm.destroy()
        self.comm = None
        super().close()

    def _check_gpus(self) -> None:
        """Every rank learns all GPUs and versions, so that all raise the same error, or none."""
        uuid = self.cupy.cuda.runtime.getDeviceProperties(self.device)["uuid"]
        version = str(self.nccl.get_version())
        rows = [row.split() for row in self.inner.all_gather_text(f"{bytes(uuid).hex()} {version}")]
        owners = collections.defaultdict(list)
        for rank, (gpu, _) in enumerate(rows):
            owners[gpu].append(rank)
        for gpu, ranks in owners.items():
            if len(ranks) > 1:
                raise DeviceError(
                    f"ranks {', '.join(map(str, ranks))} share one GPU ({gpu[:8]}, on "
                    f"{self.hosts[ranks[0]]}), and NCCL needs one for each rank",
                    rank=self.rank,
                    hint="start as many ranks on a node as it has GPUs, or set HPCFLOW_COMM=mpi",
                )
        if len({version for _, version in rows}) > 1:
            told = ", ".join(f"rank {rank} {version}" for rank, (_, version) in enumerate(rows))
            raise DeviceError(f"the ranks have unlike versions of NCCL: {told}", rank=self.rank)

    def _connect(self) -> Any:
        """NCCL's communicator; all ranks have come before any of them enters NCCL's own wait."""
        name = np.zeros(ID_BYTES, np.int8)
        if self.rank == 0:
            name[:] = self.nccl.get_unique_id()
        told = self.inner.broadcast(name, 0)
        finish(told, timeout=SET_UP_S, what="setting up NCCL")
        finish(self.inner.barrier(), timeout=SET_UP_S, what="setting up NCCL")
        return self.nccl.NcclCommunicator(self.size, tuple(name.tolist()), self.rank)

    def _abort(self) -> None:
        if self.comm is None:
            return
        helper = threading.Thread(target=self.comm.abort, daemon=True)
        helper.start()
        helper.join(ABORT_S)
        self.comm = None


class _NcclBucket:
    """A sum in place in device memory, on the communicator's own stream."""

    def __init__(self, comm: NcclCommunicator, count: int, dtype: np.dtype) -> None:
        self._comm, cuda = comm, comm.cupy.cuda
        self._kind = getattr(comm.nccl, KINDS[dtype.name])
        with cuda.Device(comm.device):
            self.input = self.output = comm.cupy.zeros(count, dtype)
            self._ready = cuda.Event(disable_timing=True)
            self._done = cuda.Event(disable_timing=True)
        self._running = False

    def start(self) -> None:
        comm, array = self._comm, self.input
        if self._running:
            raise CommError("a bucket was started again before it was done", rank=comm.rank)
        comm.check()
        comm.traffic.add(("collective", 0), array.nbytes)
        if not array.size:
            return
        self._running = True
        with comm.cupy.cuda.Device(comm.device):
            self._ready.record(comm.cupy.cuda.get_current_stream())  # the addend is complete there
            comm.stream.wait_event(self._ready)
            pointer, total = array.data.ptr, comm.nccl.NCCL_SUM
            comm.comm.allReduce(pointer, pointer, array.size, self._kind, total, comm.stream.ptr)
            self._done.record(comm.stream)

    def test(self) -> bool:
        if self._running:
            self._comm.check()
            self._running = not self._done.done
        return not self._running

    def close(self) -> None:
        if self._running:
            raise CommError("a bucket was closed before it was done", rank=self._comm.rank)
        self.input = self.output = None
