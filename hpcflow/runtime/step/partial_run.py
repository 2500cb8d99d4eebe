"""Partial runs: one step in several calls; feeds arrive later, each operation runs once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcflow.errors import FeedError, FetchError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import needed_operations
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.platform.exception_translation import translate_exceptions


@dataclasses.dataclass(frozen=True)
class PartialCall:
    """One call: it computes `fetches`, also for later calls, from `feeds`, by running `ops`."""

    fetches: list[Tensor | Operation]
    feeds: dict[Tensor, np.ndarray]
    ops: set[Operation]


@translate_exceptions
class PartialRun:
    """The state of a partial run.

    A call runs the operations that its fetches need and that have not run. It also fetches their
    outputs that remaining operations need, and feeds these in later calls.
    """

    def __init__(self, fetches: Sequence[Tensor | Operation], feeds: Sequence[Tensor]) -> None:
        self.values: dict[Tensor, np.ndarray] = {}  # fed, or computed and still needed
        self.completed_ops: set[Operation] = set()
        self._unfetched = dict.fromkeys(fetches)
        self._feeds = dict.fromkeys(feeds)
        self._fetched: set[Tensor | Operation] = set()
        self._all = self._reach(fetches, self._feeds)
        self._check_whole()

    def _check_whole(self) -> None:
        """Errors: FetchError if a loop would run twice: for itself and for its gradient."""
        for op in _sort_ops(self._all):
            if op in op.graph.extensions:
                raise FetchError(
                    f"a partial run cannot take the gradient through {op.name!r}",
                    op=op.name,
                    line=op.line,
                    hint="fetch all of it in one run",
                )

    def feed(self, arrays: Mapping[Tensor, np.ndarray]) -> None:
        """Add values of declared feeds, each once.

        Errors: FeedError for an undeclared or repeated feed.
        """
        for t in arrays:
            if t not in self._feeds or t in self.values:
                why = "was fed before" if t in self._feeds else "was not set up as a feed"
                raise FeedError(
                    f"{t.name!r} {why} in this partial run",
                    op=t.op.name,
                    line=t.op.line,
                    hint="name all feeds in partial_run_setup, and feed each once",
                )
        self.values.update(arrays)

    def begin(self, fetches: Sequence[Tensor | Operation]) -> PartialCall:
        """The computation that `fetches` needs now.

        Errors: FetchError for an undeclared or repeated fetch, FeedError for a missing feed.
        """
        for fetch in fetches:
            if fetch not in self._unfetched:
                op = fetch if isinstance(fetch, Operation) else fetch.op
                why = "was fetched before" if fetch in self._fetched else "was not set up"
                raise FetchError(
                    f"{fetch.name!r} {why} in this partial run",
                    op=op.name,
                    line=op.line,
                    hint="name all fetches in partial_run_setup, and fetch each once",
                )
        ops = self._reach(fetches, self.values)
        self._check_fed(ops)
        later = self._all - ops - self.completed_ops
        needed = {t for op in later for t in op.inputs} | {
            t for t in self._unfetched if isinstance(t, Tensor)
        }
        keep = [
            t
            for op in _sort_ops(ops)
            for t in op.outputs
            if t in needed and t.dtype != resource and t not in self.values
        ]
        missing = [w for w in fetches if w not in self.values and w not in self.completed_ops]
        used = {t for op in ops for t in op.inputs}
        feeds = {t: self.values[t] for t in _sort_tensors(used) if t in self.values}
        return PartialCall([*dict.fromkeys([*missing, *keep])], feeds, ops)

    def end(
        self, part: PartialCall, values: Sequence[np.ndarray], fetches: Sequence[Tensor | Operation]
    ) -> list[np.ndarray]:
        """Store the computed values; the values of `fetches`."""
        tensors = [w for w in part.fetches if isinstance(w, Tensor)]
        self.values.update(zip(tensors, values, strict=True))
        self.completed_ops |= {op for op in part.ops if lookup_op(op.type).variable != "handle"}
        for fetch in fetches:
            self._unfetched.pop(fetch, None)
            self._fetched.add(fetch)
        return [self.values[t] for t in fetches if isinstance(t, Tensor)]

    def _reach(
        self, fetches: Iterable[Tensor | Operation], have: Mapping[Tensor, object]
    ) -> set[Operation]:
        """The operations that must run for `fetches`, given the values of `have`."""

        def there(item: Tensor | Operation) -> bool:
            op = item if isinstance(item, Operation) else item.op
            return (
                item in have
                or op in self.completed_ops
                or lookup_op(op.type).source == "placeholder"
            )

        return set(needed_operations(fetches, there))

    def _check_fed(self, ops: set[Operation]) -> None:
        inputs = {t for op in ops for t in op.inputs}
        for t in _sort_tensors(inputs & set(self._feeds)):
            if t not in self.values:
                raise FeedError(
                    f"{t.name!r} must be fed before what depends on it can be fetched",
                    op=t.op.name,
                    line=t.op.line,
                )


def _sort_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda t: (t.op.index, t.index))


def _sort_ops(ops: Iterable[Operation]) -> list[Operation]:
    return sorted(ops, key=lambda op: op.index)
