"""Saver: checkpoints of any variables as ordinary calls, so that a program can have its own policy.

Names are TensorFlow 1's. The difference: a checkpoint is `DIR/step-N`, whole and checked, and all
ranks that run the script call `save` and `restore` together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.checkpoint import folder
from hpcflow.checkpoint.layout import GRAPH, Array
from hpcflow.checkpoint.load import load, newest_good, open_good
from hpcflow.checkpoint.save import save
from hpcflow.errors import CheckpointError
from hpcflow.graph.dtypes import text_of
from hpcflow.graph.graph import Graph, get_default_graph
from hpcflow.graph.keys import GraphKeys
from hpcflow.ops.state import Variable
from hpcflow.plan.fingerprint import fingerprint, op_digests
from hpcflow.runtime.session import Session


class Saver:
    """Saves and restores variables: all of the default graph, a list, or {name in the file: one}.

    `max_to_keep` checkpoints stay in a folder, 0 or None for all. `form` is "parallel" (one HDF5
    file written by all ranks), "sharded" (a file a rank and a master) or "auto", which is parallel
    where h5py was built with MPI. Of a local variable that of each replica is saved; on another
    number of replicas they are dealt out, and those of one replica added up.
    """

    def __init__(
        self,
        var_list: Sequence[Variable] | Mapping[str, Variable] | None = None,
        max_to_keep: int | None = 5,
        form: str = "auto",
    ) -> None:
        given: Any = state_of_job(get_default_graph()) if var_list is None else var_list
        named = given if isinstance(given, Mapping) else {getattr(v, "name", v): v for v in given}
        if not named:
            raise CheckpointError("there is nothing to save", hint="make a variable first")
        self.variables: dict[str, Variable] = dict(named)
        _check(self.variables)
        self.max_to_keep, self.form = int(max_to_keep or 0), form

    def save(self, sess: Session, save_path: str | Path, global_step: Any = 0) -> Path:
        """Write the checkpoint of step `global_step`, a number or a variable, into a folder.

        Ranks:  every rank that runs the script, at the same step; workers of servers wait for each
                other, so that no update is half in it.
        Errors: CheckpointError, on all ranks; earlier checkpoints stay as they are.
        """
        step = sess.run(global_step) if isinstance(global_step, Variable) else global_step
        return self._save(sess, Path(save_path), lambda rows: {"step": int(step)}, None)

    def _save(self, sess: Session, directory: Path, facts: Any, mine: Any) -> Path:
        return save(
            sess.context,
            sess.store,
            directory,
            self._wanted(local=False),
            lambda rows: {**facts(rows), "graph_digest": fingerprint(sess.graph)},
            mine=mine,
            texts={GRAPH: describe(sess.graph)},
            form=self.form,
            keep=self.max_to_keep,
            own=self._wanted(local=True),
        )

    def restore(self, sess: Session, save_path: str | Path) -> dict[str, Any]:
        """Give the variables the values of a checkpoint, or of the newest good one of a folder.

        What the checkpoint says of itself: "step", "mode", "ranks", ...

        Ranks:  every rank that runs the script; any number may, in any mode.
        Errors: CheckpointCorruptError, CheckpointMismatchError with a diff of names and shapes.
        """
        path = Path(save_path)
        if is_folder(path):
            found = newest_good(sess.context, path)
            if found is None:
                raise CheckpointError(
                    f"there is no checkpoint in {path}", hint="see hpcflow inspect DIR"
                )
        else:
            found = open_good(sess.context, path)
        self._load(sess, found, with_draws=False)
        return found.facts

    def _load(self, sess: Session, found: Any, with_draws: bool) -> None:
        if sess.context.on_plan is None:  # a session that has run nothing has no variables yet
            sess.prepare([v.initializer for v in self.variables.values()])
        wanted, own = self._wanted(local=False), self._wanted(local=True)
        load(sess.context, sess.store, found, wanted, self._arrays(), with_draws, own)

    def _wanted(self, local: bool) -> dict[str, str]:
        """Variable -> name in the file, of those that replicas share or of the local ones."""
        return {v.name: n for n, v in self.variables.items() if is_local(v) == local}

    def _arrays(self) -> list[Array]:
        shared = [(n, v) for n, v in self.variables.items() if not is_local(v)]
        return [Array(n, text_of(v.dtype), tuple(v.shape)) for n, v in shared]  # type: ignore[arg-type]


def state_of_job(graph: Graph) -> list[Variable]:
    """What checkpoints of a job hold: the variables that replicas share, and sums over replicas."""
    keys = (GraphKeys.GLOBAL_VARIABLES, GraphKeys.SUMMED_VARIABLES)
    return [variable for key in keys for variable in graph.get_collection(key)]


def is_local(variable: Variable) -> bool:
    """Whether each replica has its own."""
    return bool(variable.op.attrs.get("local"))


def _check(variables: Mapping[Any, Any]) -> None:
    """Errors: CheckpointError for what is no variable, is there twice, or has no possible name."""
    seen: dict[str, str] = {}
    for name, variable in variables.items():
        if not isinstance(variable, Variable):
            raise CheckpointError(
                f"{name!r}: {variable!r} is no variable",
                hint="give a list of variables, or {'name in the checkpoint': variable}",
            )
        if not isinstance(name, str) or "\0" in name or not _is_unicode(name):
            raise CheckpointError(
                f"{name!r} cannot be the name of {variable.name!r} in a checkpoint",
                op=variable.name,
                hint="give a text",
            )
        if variable.name in seen:
            raise CheckpointError(
                f"variable {variable.name!r} is given as {seen[variable.name]!r} and as {name!r}",
                op=variable.name,
                hint="give it one name",
            )
        seen[variable.name] = name


def _is_unicode(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder of checkpoints, not one of them."""
    return path.is_dir() and not (path / folder.INDEX).exists()


def checkpoint_exists(checkpoint_prefix: str | Path) -> bool:
    """Whether there is a checkpoint at this path, or one at least if it is a folder of them."""
    path = Path(checkpoint_prefix)
    if is_folder(path):
        return latest_checkpoint(path) is not None
    return (path / folder.INDEX).exists()


def latest_checkpoint(checkpoint_dir: str | Path) -> Path | None:
    """The newest checkpoint of a folder whose index can be read, None if there is none.

    Its bytes are checked when it is restored.
    """
    found = [one.path for one in folder.find(Path(checkpoint_dir)) if one.facts is not None]
    return found[0] if found else None


def describe(graph: Graph) -> str:
    """The graph as JSON: of each operation its name, type, inputs, outputs and a digest."""
    import json

    digests = {one.name: one.digest for one in op_digests(graph)}
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
