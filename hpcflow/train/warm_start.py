"""Warm start: initializes variables from a checkpoint; functions that read checkpoints.

Names and semantics are TensorFlow 1's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_layout import ArraySpec
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import CheckpointError
from hpcflow.graph.dtypes import text_of
from hpcflow.graph.graph import get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.shape_inference import first_output
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.artifact_cache import as_path
from hpcflow.platform.lazy_imports import LazyMethod


def init_from_checkpoint(
    ckpt_dir_or_file: str | Path, assignment_map: Mapping[str, str | Variable]
) -> None:
    """Initialize variables from a checkpoint, also under other names.

    `assignment_map` maps names in the checkpoint to variables:

    {"encoder/": "model/encoder/"}   each variable below the second, from its name below the first
    {"/": "model/"}                  each below "model/", from its name at the top of the checkpoint
    {"encoder/w": "other/w"}         one variable by its name, {"encoder/w": variable} itself

    The initializers read and verify the values, on the ranks that hold the variables; a server
    reads the rows of its shard. Call this after the variables are created, before
    `global_variables_initializer` and before the session. A folder stands for its newest
    checkpoint.

    Ranks:  every rank that runs the script.
    Errors: CheckpointError if there is no checkpoint, or a name matches nothing;
            CheckpointMismatchError with a diff of names, shapes and dtypes.
    """
    saved = _open(ckpt_dir_or_file)
    chosen: dict[str, tuple[Variable, str]] = {}
    for there, here in assignment_map.items():
        for name, variable in _pairs(there, here):
            if variable.name in chosen:
                raise CheckpointError(
                    f"{variable.name!r} is assigned twice: from "
                    f"{chosen[variable.name][1]!r} and from "
                    f"{name!r}",
                    op=variable.name,
                    hint="give each variable one name in the checkpoint",
                )
            chosen[variable.name] = variable, name
    specs = [ArraySpec(n, text_of(v.dtype), tuple(v.shape)) for v, n in chosen.values()]  # type: ignore[arg-type]
    saved.check_fits(specs, f"step {saved.facts['step']}")
    for variable, name in chosen.values():
        _begin_with(variable, saved, name)


def _pairs(checkpoint_name: str, here: str | Variable) -> list[tuple[str, Variable]]:
    """Pairs (name in the checkpoint, variable) of one entry of an assignment map."""
    if isinstance(here, Variable):
        return [(checkpoint_name, here)]
    if not isinstance(here, str):
        raise CheckpointError(
            f"{checkpoint_name!r}: {here!r} is neither a variable nor a name",
            hint="give {'scope/': 'other/'}, {'name': 'other name'} or {'name': variable}",
        )
    graph = get_default_graph()
    by_name = {v.name: v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
    if here in by_name:
        return [(checkpoint_name, by_name[here])]
    if not (checkpoint_name.endswith("/") and (here.endswith("/") or not here)):
        raise CheckpointError(
            f"there is no variable {here!r}",
            hint="create it first; a scope ends with a slash: {'scope/': 'other/'}",
        )
    below, base = here.removeprefix("/"), checkpoint_name.removeprefix("/")
    pairs = [(base + n.removeprefix(below), v) for n, v in by_name.items() if n.startswith(below)]
    if not pairs:
        raise CheckpointError(
            f"there are no variables in the scope {here!r}", hint="create them first"
        )
    return pairs


def _begin_with(variable: Variable, saved: SavedCheckpoint, name: str) -> None:
    attrs = {
        "path": os.path.abspath(saved.path),
        "id": saved.facts["id"],
        "array": name,
        "start": 0,
        "dtype": variable.dtype,
        "shape": tuple(variable.shape or ()),
    }
    graph = variable.graph
    with graph.as_default(), graph.control_dependencies(None), graph.name_scope(None):
        value = first_output("ReadCheckpoint", [], attrs, f"{variable.name}/init_from_checkpoint")
        variable._initialize_to(value)


def _open(source: str | Path) -> SavedCheckpoint:
    """The checkpoint, or the newest readable one of a folder.

    Errors: CheckpointError if there is none.
    """
    path = as_path(source, "a checkpoint")
    if checkpoint_directory.is_folder(path):
        ckpts = [
            ckpt for ckpt in checkpoint_directory.find_checkpoints(path) if ckpt.facts is not None
        ]
        if not ckpts:
            raise CheckpointError(
                f"there is no checkpoint in {path}",
                hint="list the checkpoints with hpcflow inspect DIR",
            )
        return SavedCheckpoint(ckpts[0].path, ckpts[0].facts)
    if not os.path.exists(path):
        raise CheckpointError(
            f"there is no checkpoint {path}", hint="list the checkpoints with hpcflow inspect DIR"
        )
    return SavedCheckpoint(path)


class NewCheckpointReader:
    """Reads a checkpoint; values are verified when read."""

    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "checkpoint_html")

    def __init__(self, path: str | Path) -> None:
        self._saved = _open(path)

    @property
    def path(self) -> Path:
        """The checkpoint, a directory or a file."""
        return self._saved.path

    def has_tensor(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self._saved.arrays

    def get_tensor(self, name: str) -> np.ndarray:
        """The array of this name.

        Errors: CheckpointError if there is none; CheckpointCorruptError if it is damaged.
        """
        array = self._saved.arrays.get(name)
        if array is None:
            raise CheckpointError(
                f"{self._saved.path} has no {name!r}",
                hint="hf.train.list_variables lists all variables",
            )
        out = np.empty(array.shape, array.dtype)
        self._saved.read_checked(name, 0, array.rows, out)
        return out

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Name -> shape."""
        return {name: list(array.shape) for name, array in self._saved.arrays.items()}

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        """Name -> dtype."""
        return {name: np.dtype(array.dtype) for name, array in self._saved.arrays.items()}


def load_checkpoint(ckpt_dir_or_file: str | Path) -> NewCheckpointReader:
    """A reader of the checkpoint, or of the newest one of a folder; works in any process."""
    return NewCheckpointReader(ckpt_dir_or_file)


def load_variable(ckpt_dir_or_file: str | Path, name: str) -> np.ndarray:
    """The value of a variable in a checkpoint, or in the newest one of a folder."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)


def list_variables(ckpt_dir_or_file: str | Path) -> list[tuple[str, list[int]]]:
    """Name and shape of each variable in a checkpoint, or in the newest one of a folder."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())
