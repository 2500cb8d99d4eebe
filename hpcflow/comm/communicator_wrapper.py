"""A communicator wrapper that replaces only the implementation of buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.comm.communicator import Channel, Communicator, Request


class CommunicatorWrapper(Communicator):
    """Forwards everything but `bucket`, `split` and `close` to `inner`.

    The creator of `inner` closes it, unless `split` made it.
    """

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        self._owns_inner = False
        self.rank, self.size = inner.rank, inner.size
        self.hosts, self.machines = inner.hosts, inner.machines
        self.traffic, self.max_tag, self.watch = inner.traffic, inner.max_tag, inner.watch

    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`."""
        return self.inner.send(array, dest, tag)

    def send_to_channel(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """`send` to a rank that receives by a channel."""
        return self.inner.send_to_channel(array, dest, tag)

    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`."""
        return self.inner.recv(array, source, tag)

    def send_channel(self, array: np.ndarray, dest: int, tag: int) -> Channel:
        """A persistent send of `array`."""
        return self.inner.send_channel(array, dest, tag)

    def recv_channel(
        self, array: np.ndarray, source: int, tag: int, short: bool = False
    ) -> Channel:
        """A persistent receive into `array`."""
        return self.inner.recv_channel(array, source, tag, short)

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None."""
        return self.inner.probe(source, tag)

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Combine `array` in place over all ranks."""
        return self.inner.all_reduce(array, op)

    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Broadcast `root`'s array in place."""
        return self.inner.broadcast(array, root)

    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Concatenate the arrays of all ranks, in rank order, in `out` on every rank."""
        return self.inner.all_gather(array, out, rows)

    def barrier(self) -> Request:
        """Done once all ranks have called it."""
        return self.inner.barrier()

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere."""
        return self.inner.gather_text(text, root)

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string on every rank."""
        return self.inner.broadcast_text(text, root)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of the same kind over `ranks`."""
        inner = self.inner.split(ranks)
        if inner is None:
            return None
        part = self.over_subset(inner, ranks)
        part._owns_inner = True
        return part

    def over_subset(self, part: Communicator, ranks: Sequence[int]) -> CommunicatorWrapper:
        """A communicator of this class over the subset `ranks`; collective over `part`."""
        raise NotImplementedError

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self.inner.abort(code)

    def close(self) -> None:
        """Close `inner` if `split` made it; a subclass first releases its own resources."""
        if self._owns_inner:
            self.inner.close()
