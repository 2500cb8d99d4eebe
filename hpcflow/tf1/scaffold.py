"""Scaffold: initialization and restoring at the start of a monitored session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.ops.metrics.summary_ops import merge_all
from hpcflow.ops.variables.variable_ops import global_variables
from hpcflow.train.saver import Saver


class Scaffold:
    """The initialization of a session, and its Saver.

    `init_op`, fed `init_feed_dict`, initializes the variables; by default their initializers run.
    Local variables are always initialized, then `local_init_op` runs. If no checkpoint is restored,
    `init_fn(scaffold, session)` is called. Finally `ready_op` returns the names of uninitialized
    variables, which must be none. `ready_for_local_init_op` does the same before `local_init_op`.
    `summary_op` computes what a SummarySaverHook writes, by default all summaries of the graph.

    Ranks: every rank that runs the script does all this before any rank trains. With parameter
           servers the chief initializes the variables, and the others wait.
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
        """The saver; None in a graph without variables."""
        if self._saver is None and global_variables():
            self._saver = Saver()
        return self._saver

    def finalize(self) -> Scaffold:
        """Create missing parts; the graph is finalized when the session is created."""
        _ = self.saver
        if self.summary_op is None:
            self.summary_op = merge_all()
        return self
