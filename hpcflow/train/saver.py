"""Saver: explicit save and restore of any variables, for policies of the program's own.

Names are TensorFlow 1's. The difference: a checkpoint is `DIR/step-N`, complete and verified, and
all ranks that run the script call `save` and `restore` together.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.async_checkpoint import AsyncSave
from hpcflow.checkpoint.checkpoint_layout import GRAPH, ArraySpec, replica_names
from hpcflow.checkpoint.restore import (
    newest_valid_checkpoint,
    open_valid_checkpoint,
    restore_variables,
)
from hpcflow.checkpoint.save_checkpoint import SaveRequest, make_request, save_checkpoint
from hpcflow.checkpoint.snapshot_buffers import reserve_buffers
from hpcflow.errors import CheckpointError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import text_of
from hpcflow.graph.graph import Graph, Tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.serialization.graph_fingerprint import graph_fingerprint, op_digests
from hpcflow.platform.artifact_cache import as_path
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session import Session

Result = TypeVar("Result")


class Saver:
    """Saves and restores variables: all of the default graph, a list, or {name in file: variable}.

    `max_to_keep` checkpoints are kept in a folder, 0 or None for all. `form` is "parallel" (one
    HDF5 file written by all ranks), "sharded" (a file per rank and a master file) or "auto"
    (parallel if h5py was built with MPI). `keep_best`, such as ("loss", "min", 3), additionally
    keeps the 3 checkpoints with the smallest value of this metric ("max": the largest). A local
    variable is saved for each replica. With another number of replicas the values are distributed,
    and several for one replica are added up.

    `sharded` selects the form "sharded". In addition to the newest, one checkpoint is kept for
    every `keep_checkpoint_every_n_hours`. With `defer_build` the variables are those of the graph
    when `build` is called, or at the first save or restore. With `reshape` an array in the
    checkpoint may have another shape with the same number of elements.
    """

    @accepts_and_ignores("name", "restore_sequentially", "write_version", "pad_step_number")
    @accepts_and_ignores("save_relative_paths")
    def __init__(
        self,
        var_list: Sequence[Variable] | Mapping[str, Variable] | None = None,
        max_to_keep: int | None = 5,
        form: str = "auto",
        keep_best: tuple[str, str, int] | None = None,
        sharded: bool = False,
        keep_checkpoint_every_n_hours: float = 10000.0,
        defer_build: bool = False,
        allow_empty: bool = False,
        reshape: bool = False,
    ) -> None:
        self._reshape = bool(reshape)
        self._var_list, self._allow_empty = var_list, allow_empty
        self._variables: dict[str, Variable] | None = None
        if not defer_build:
            self.build()
        self.max_to_keep, self.form = int(max_to_keep or 0), "sharded" if sharded else form
        self.keep_best = None if keep_best is None else retention_policy(keep_best)
        self._keep_interval_s = 3600 * keep_checkpoint_every_n_hours
        self._next_kept = time.time() + self._keep_interval_s
        self._saved: list[str] = []

    def build(self) -> None:
        """Collect the variables of the default graph if none were given; idempotent."""
        state: Any = state_of_job(get_default_graph()) if self._var_list is None else self._var_list
        by_name = state if isinstance(state, Mapping) else {getattr(v, "name", v): v for v in state}
        if not by_name and not self._allow_empty:
            raise CheckpointError("there is nothing to save", hint="create a variable first")
        _check(by_name)
        self._variables = dict(by_name)

    @property
    def variables(self) -> dict[str, Variable]:
        """The saved variables by their names in the checkpoint."""
        if self._variables is None:
            self.build()
        assert self._variables is not None
        return self._variables

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints saved by it that still exist, newest last."""
        return [path for path in self._saved if Path(path).exists()]

    @accepts_and_ignores("latest_filename", "meta_graph_suffix", "write_meta_graph", "write_state")
    @accepts_and_ignores("strip_default_attrs", "save_debug_info")
    def save(
        self,
        sess: Session,
        save_path: str | Path,
        global_step: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> str:
        """Write the checkpoint of step `global_step` into the folder `save_path`; returns its path.

        The step is a number, a variable or a tensor, by default 0. `metrics`, such as {"loss":
        0.3}, are for `keep_best` and `best_checkpoint`; those of the chief are used. A checkpoint
        always contains the graph.

        Ranks:  every rank that runs the script, at the same step. Workers of parameter servers wait
                for each other, so that every update is either completely in it or not at all.
        Errors: CheckpointError, on all ranks; earlier checkpoints are unchanged.
        """
        is_told = not isinstance(global_step, (Variable, Tensor))
        step = int((global_step or 0) if is_told else sess.run(global_step))
        path = str(
            self._save(
                sess, as_path(save_path, "save_path"), lambda rows: {"step": step}, None, metrics
            )
        )
        self._saved = [*(p for p in self.last_checkpoints if p != path), path]
        return path

    def describe(self, sess: Session) -> None:
        """Compute the graph's description now, instead of at the chief's first save."""
        _described(sess.graph)()

    def _prepare(self, sess: Session) -> None:
        """Prepare background saves on all ranks for which this rank is responsible."""
        local = replica_names(self._names(local=True), sess.context.replica)
        reserve_buffers(sess.context, sess.store, {**self._names(local=False), **local}, local)

    def _save(
        self,
        sess: Session,
        directory: Path,
        facts: Any,
        local_facts: Any,
        metrics: Mapping[str, Any] | None = None,
    ) -> Path:
        def begin() -> Path:
            ask = self._build_request(sess, directory, facts, metrics, self.form)
            return save_checkpoint(sess.context, sess.store, ask, local_facts, self.max_to_keep)

        return group_by_liveness(sess.context, begin)

    def _begin(
        self,
        async_save: AsyncSave,
        sess: Session,
        directory: Path,
        facts: Any,
        local_facts: Any,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Save as `_save`, but in the background."""

        def begin() -> None:
            ask = self._build_request(sess, directory, facts, metrics, "sharded")
            async_save.begin(sess.store, ask, local_facts, self.max_to_keep)

        group_by_liveness(sess.context, begin)

    def _build_request(
        self,
        sess: Session,
        directory: Path,
        facts: Any,
        metrics: Mapping[str, Any] | None,
        form: str,
    ) -> SaveRequest:
        judged, graph = self._judged(metrics), _described(sess.graph)
        return make_request(
            sess.context,
            directory,
            self._names(local=False),
            lambda rows: {**facts(rows), **judged, "graph_digest": graph().digest},
            lambda: {GRAPH: graph().text},
            form,
            self._names(local=True),
        )

    def _judged(self, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """The metrics for a checkpoint, and the policy of `keep_best`."""
        facts: dict[str, Any] = {}
        if self.keep_best is not None:
            facts["keep_best"] = list(self.keep_best)
            if metrics is not None and self.keep_best[0] not in metrics:
                raise CheckpointError(
                    f"keep_best needs the metric {self.keep_best[0]!r}, but the metrics are "
                    f"{', '.join(map(repr, metrics)) or 'none'}",
                    hint=f"save with metrics={{{self.keep_best[0]!r}: ...}}",
                )
        if time.time() > self._next_kept:
            self._next_kept += self._keep_interval_s
            facts["keep"] = True
        if metrics is not None:
            facts["metrics"] = {str(name): _number(name, value) for name, value in metrics.items()}
        return facts

    def restore(self, sess: Session, save_path: str | Path) -> dict[str, Any]:
        """Restore the variables from a checkpoint, or from the newest valid one of a folder.

        Returns the metadata of the checkpoint: "step", "mode", "ranks", ...

        Ranks:  every rank that runs the script; any number of ranks, in any mode.
        Errors: CheckpointCorruptError, CheckpointMismatchError with a diff of names and shapes.
        """
        path = Path(save_path)
        if checkpoint_directory.is_folder(path):
            saved = newest_valid_checkpoint(sess.context, path)
            if saved is None:
                raise CheckpointError(
                    f"there is no checkpoint in {path}",
                    hint="list the checkpoints with hpcflow inspect DIR",
                )
        else:
            saved = open_valid_checkpoint(sess.context, path)
        self._load(sess, saved, with_draws=False)
        return saved.facts

    def _load(self, sess: Session, saved: Any, with_draws: bool) -> None:
        if sess.context.on_plan is None:  # before the first run there are no variables
            sess.prepare([v.initializer for v in self.variables.values()])
        shared, local = self._names(local=False), self._names(local=True)
        args = shared, self._arrays(), with_draws, local, self._reshape
        restore_variables(sess.context, sess.store, saved, *args)

    def _names(self, local: bool) -> dict[str, str]:
        """Variable -> name in the file, for shared or for local variables."""
        return {v.name: n for n, v in self.variables.items() if is_local(v) == local}

    def _arrays(self) -> list[ArraySpec]:
        shared = [(n, v) for n, v in self.variables.items() if not is_local(v)]
        return [ArraySpec(n, text_of(v.dtype), tuple(v.shape)) for n, v in shared]  # type: ignore[arg-type]


def group_by_liveness(context: RankContext, begin: Callable[[], Result]) -> Result:
    """The result of a save `begin()`; repeated if a rank died that had a part of it.

    Ranks:  every rank that runs the script, between steps.
    Errors: those of `begin`.
    """
    context.recover_replicas()
    while True:
        try:
            return begin()
        except CheckpointError:
            if not context.recover_replicas():
                raise


def retention_policy(keep_best: Any) -> tuple[str, str, int]:
    """`keep_best` as (metric, "min" or "max", number).

    Errors: CheckpointError if it is something else.
    """
    if isinstance(keep_best, (tuple, list)) and len(keep_best) == 3:
        monitor, mode, count = keep_best
        if isinstance(monitor, str) and mode in ("min", "max"):
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return monitor, mode, count
    raise CheckpointError(
        f"keep_best={keep_best!r} is not valid",
        hint='give a metric, "min" or "max", and how many: ("loss", "min", 3)',
    )


def _number(name: str, value: Any) -> float | None:
    """A metric for JSON; None if not finite, which is never the best."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise CheckpointError(
            f"metric {name!r} is {value!r}, not a number", hint="fetch it first: session.run(loss)"
        ) from None
    return number if math.isfinite(number) else None


def state_of_job(graph: Graph) -> list[Variable]:
    """The contents of job checkpoints: variables shared by replicas, and sums over replicas."""
    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.SUMMED_VARIABLES)
    return [variable for key in keys for variable in graph.get_collection(key)]


def is_local(variable: Variable) -> bool:
    """Whether each replica has its own."""
    return bool(variable.op.attrs.get("local"))


def _check(variables: Mapping[Any, Any]) -> None:
    """Check the variables of a saver.

    Errors: CheckpointError for other objects, duplicates, or invalid names.
    """
    names: dict[str, str] = {}
    for name, variable in variables.items():
        if not isinstance(variable, Variable):
            raise CheckpointError(
                f"{name!r}: {variable!r} is not a variable",
                hint="give a list of variables, or {'name in the checkpoint': variable}",
            )
        if not isinstance(name, str) or "\0" in name or not _is_unicode(name):
            raise CheckpointError(
                f"{name!r} cannot be the name of {variable.name!r} in a checkpoint",
                op=variable.name,
                hint="give a string",
            )
        if variable.name in names:
            raise CheckpointError(
                f"variable {variable.name!r} has two names, {names[variable.name]!r} and {name!r}",
                op=variable.name,
                hint="give it one name",
            )
        names[variable.name] = name


def _is_unicode(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


class SavedVariable(NamedTuple):
    """A graph as stored in checkpoints; its digest is that of `fingerprint`."""

    version: int
    digest: str
    text: str


_graphs: weakref.WeakKeyDictionary[Graph, SavedVariable] = weakref.WeakKeyDictionary()


def _described(graph: Graph) -> Callable[[], SavedVariable]:
    """The description of the graph, computed on request and again when the graph has grown."""

    def make() -> SavedVariable:
        cached = _graphs.get(graph)
        if cached is None or cached.version != graph.version:
            cached = SavedVariable(
                graph.version, graph_fingerprint(graph), describe_variables(graph)
            )
            _graphs[graph] = cached
        return cached

    return make


def describe_variables(graph: Graph) -> str:
    """The graph as JSON: name, type, inputs, outputs and a digest of each operation."""
    import json

    digests = {entry.name: entry.digest for entry in op_digests(graph)}
    rows = [
        {
            "name": op.name,
            "type": op.type,
            "inputs": [t.name for t in op.inputs],
            "control": sorted(c.name for c in op.control_inputs),
            "device": op.device,
            "outputs": [
                [text_of(t.dtype), None if t.shape is None else list(t.shape)] for t in op.outputs
            ],
            "digest": digests[op.name],
        }
        for op in graph.get_operations()
    ]
    return json.dumps(rows, separators=(",", ":"))
