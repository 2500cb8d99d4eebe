"""A communicator that differs from another in how buckets are summed, and in nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.comm.communicator import Channel, Communicator, Request


class Delegate(Communicator):
    """Everything but `bucket`, `split` and `close` is what `inner` does.

    `inner` stays its maker's to close, unless `split` made it.
    """

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        self._owns_inner = False
        self.rank, self.size, self.hosts = inner.rank, inner.size, inner.hosts
        self.traffic, self.max_tag, self.watch = inner.traffic, inner.max_tag, inner.watch

    def send(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """Start sending `array`."""
        return self.inner.send(array, dest, tag)

    def send_to_channel(self, array: np.ndarray, dest: int, tag: int) -> Request:
        """`send` to a rank that receives it by a channel."""
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
        """(source, bytes) of a message that waits to be received, or None."""
        return self.inner.probe(source, tag)

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Combine `array` in place over all ranks."""
        return self.inner.all_reduce(array, op)

    def broadcast(self, array: np.ndarray, root: int) -> Request:
        """Give every rank `root`'s array, in place."""
        return self.inner.broadcast(array, root)

    def all_gather(self, array: np.ndarray, out: np.ndarray, rows: Sequence[int]) -> Request:
        """Give every rank the arrays of all ranks, one after the other in `out`."""
        return self.inner.all_gather(array, out, rows)

    def barrier(self) -> Request:
        """Done once all ranks have called it."""
        return self.inner.barrier()

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """All ranks' strings on `root`, None elsewhere."""
        return self.inner.gather_text(text, root)

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """`root`'s string everywhere."""
        return self.inner.broadcast_text(text, root)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of the same kind over `ranks`."""
        inner = self.inner.split(ranks)
        if inner is None:
            return None
        part = self.over(inner, ranks)
        part._owns_inner = True
        return part

    def over(self, part: Communicator, ranks: Sequence[int]) -> Delegate:
        """This kind of communicator over a part of the ranks; collective over the part."""
        raise NotImplementedError

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self.inner.abort(code)

    def close(self) -> None:
        """Release what was made here; a subclass releases its own first."""
        if self._owns_inner:
            self.inner.close()
