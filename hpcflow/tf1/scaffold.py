"""Scaffold: what is done when a monitored session begins, before any rank trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.ops.metrics.summary_ops import merge_all
from hpcflow.ops.variables.variable_ops import global_variables
from hpcflow.train.saver import Saver


class Scaffold:
    """What is done when a session begins, and with which Saver.

    `init_op`, fed `init_feed_dict`, gives the variables their initial values, by default those they
    were made with; local variables always have theirs, then `local_init_op` runs. Unless a
    checkpoint is restored then, `init_fn(scaffold, session)` is called. `ready_op` at last gives
    the names of variables without a value, none if all is well; `ready_for_local_init_op` does so
    before `local_init_op`. `summary_op` computes what a SummarySaverHook writes, by default all
    summaries of the graph.

    Ranks: all of it is done on every rank that runs the script, before any of them trains; with
           parameter servers, the initial values of variables are the chief's, others wait for them.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
    ) -> None:
        self.init_op, self.init_feed_dict, self.init_fn = init_op, init_feed_dict, init_fn
        self.ready_op, self.ready_for_local_init_op = ready_op, ready_for_local_init_op
        self.local_init_op, self._saver = local_init_op, saver
        self.summary_op = summary_op

    @property
    def saver(self) -> Saver | None:
        """What saves and restores; None in a graph without variables."""
        if self._saver is None and global_variables():
            self._saver = Saver()
        return self._saver

    def finalize(self) -> Scaffold:
        """Complete it; the graph is finalized when the session is made."""
        _ = self.saver
        if self.summary_op is None:
            self.summary_op = merge_all()
        return self
