"""Stand-ins for cupy and its nccl module: arrays in host memory, collectives between threads.

They have streams and events of which work is done late and in order, but no arithmetic of NCCL's
own: what passes with them says that the calls are right, not that a GPU was used.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import types

import numpy as np

from hpcflow.graph.dtypes import bfloat16

KINDS = {
    **{"NCCL_FLOAT32": "f4", "NCCL_FLOAT64": "f8", "NCCL_INT32": "i4", "NCCL_INT64": "i8"},
    "NCCL_BFLOAT16": bfloat16,
}
_worlds: dict[tuple, list] = {}
_lock = threading.Lock()
_numbers = itertools.count(1)


class FakeArray(np.ndarray):
    data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data))


class Stream:
    def __init__(self, non_blocking=False):
        self.ptr, self.last = next(_numbers), None
        _streams[self.ptr] = self

    def wait_event(self, event):
        assert event.recorded

    def synchronize(self):
        assert self.last is None or self.last.done


class Event:
    def __init__(self, disable_timing=False):
        self.recorded, self.work, self.polls = False, None, 0

    def record(self, stream):
        self.recorded, self.work, self.polls = True, stream.last, 0

    @property
    def done(self):
        self.polls += 1  # never at the first look: the GPU works beside the host
        return (self.work is None or self.work.done) and self.polls > 1


class Round:
    def __init__(self):
        self.parts, self.done = {}, False


_streams: dict[int, Stream] = {}


class FakeNccl:
    """One rank's nccl module; `error` is what check_async_error raises, `fails` what the start
    does, which never ends if `hangs`."""

    NCCL_SUM = 0

    def __init__(self, version=22900, hangs=False, fails="", tells=True):
        self.version, self.error, self.log = version, "", []
        self.hangs, self.fails, self.tells = hangs, fails, tells
        for name in KINDS:
            setattr(self, name, name)

    def get_version(self):
        return self.version

    def get_unique_id(self):
        return bytes([next(_numbers) % 100, *range(129, 256)])

    def NcclCommunicator(self, size, uid, rank):
        assert isinstance(uid, bytes) and len(uid) == 128, "as of CuPy 14"
        if self.hangs:
            threading.Event().wait()
        if self.fails:
            raise RuntimeError(self.fails)
        with _lock:
            rounds = _worlds.setdefault((uid, size), [])
        return FakeNcclCommunicator(self, rounds, size, rank)


class FakeNcclCommunicator:
    def __init__(self, nccl, rounds, size, rank):
        self.nccl, self.rounds, self.size, self.rank = nccl, rounds, size, rank
        self.calls = 0
        if nccl.tells:
            self.check_async_error = self._check

    def allReduce(self, sent, received, count, kind, op, stream):
        assert sent == received and op == FakeNccl.NCCL_SUM
        dtype = np.dtype(KINDS[kind])
        buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(received)
        with _lock:
            if self.calls == len(self.rounds):
                self.rounds.append(Round())
            round_ = self.rounds[self.calls]
            self.calls += 1
            _streams[stream].last = round_
            round_.parts[self.rank] = np.frombuffer(buffer, dtype)
            if len(round_.parts) == self.size:
                total = sum(part.copy() for part in round_.parts.values())
                for part in round_.parts.values():
                    part[:] = total
                round_.done = True

    def _check(self):
        if self.nccl.error:
            raise RuntimeError(self.nccl.error)

    def abort(self):
        self.nccl.log.append("abort")

    def destroy(self):
        self.nccl.log.append("destroy")


class _Device:
    def __init__(self, number):
        self.number = number

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def fake_packages(gpu: int, **options):
    """Fake cupy and nccl of one rank whose only device is GPU number `gpu`."""
    current = Stream()
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceProperties=lambda device: {"uuid": b""},
        deviceGetPCIBusId=lambda device: f"0000:{gpu:02x}:00.0",
    )
    cuda = types.SimpleNamespace(
        runtime=runtime,
        Device=_Device,
        Stream=Stream,
        Event=Event,
        get_current_stream=lambda: current,
    )
    cupy = types.SimpleNamespace(
        cuda=cuda, zeros=lambda count, dtype: np.zeros(count, dtype).view(FakeArray)
    )
    return cupy, FakeNccl(**options)
