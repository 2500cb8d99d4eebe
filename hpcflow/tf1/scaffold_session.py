"""ScaffoldSession: a training session initialized by a scaffold, on all ranks together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.errors import UninitializedError
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.side_effects import is_training_step
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.tf1.scaffold import Scaffold
from hpcflow.train.checkpoint_location import CheckpointLocation, choose_location, warn_own_loop
from hpcflow.train.checkpoint_manager import CheckpointManager, SaveListener
from hpcflow.train.saver import Saver
from hpcflow.train.training_session import TrainingSession


class ScaffoldSession(TrainingSession):
    """A training session initialized by a scaffold."""

    def __init__(
        self,
        scaffold: Scaffold,
        graph: Graph | None = None,
        context: RankContext | None = None,
        config: ConfigProto | None = None,
    ) -> None:
        self._scaffold = scaffold
        self._restored_by: CheckpointManager | None = None
        self._set_folder: str | None = None  # the checkpoint folder of a setting
        self._training: dict[Sequence[Tensor | Operation], bool] = {}
        super().__init__(graph, context, config=config)

    def _choose(self, script_folder: str | Path | None) -> CheckpointLocation:
        return CheckpointLocation(None, False)  # `begin` restores; `save_in` uses its result

    def _initialize(self, variables: Sequence[Variable]) -> None:
        scaffold = self._scaffold
        if scaffold.init_op is not None:
            self.run(scaffold.init_op, scaffold.init_feed_dict)
            variables = self.graph.get_collection(GraphKeys.LOCAL_VARIABLES)
        if variables:
            starts = [v.initializer for v in variables]
            self.run(starts, scaffold.init_feed_dict if scaffold.init_op is None else None)
        self._check_ready(scaffold.ready_for_local_init_op)
        if scaffold.local_init_op is not None:
            self.run(scaffold.local_init_op)

    def begin(self, folder: Any, file: Any) -> None:
        """Restore the chief's checkpoint, or complete the initialization with the scaffold.

        Ranks: every rank that runs the script; a barrier at the end.
        """
        if self.context.on_plan is not None:
            return
        chosen = choose_location(self.context, folder)
        place = {"folder": _text(chosen.folder), "file": _text(file), "is_set": chosen.by_setting}
        agreed = together(self.context, place)
        self._set_folder = agreed["folder"] if agreed["is_set"] else None
        if not self._restored(agreed) and self._scaffold.init_fn is not None:
            self._scaffold.init_fn(self._scaffold, self)
        self._check_ready(self._scaffold.ready_op)
        self.context.barrier()

    def _restored(self, said: Mapping[str, Any]) -> bool:
        saver = self._scaffold.saver
        if saver is None:
            return False
        is_first = said["is_set"] or said["file"] is None  # else the script names the file
        if said["folder"] is not None and is_first and self._resume(Path(said["folder"]), saver):
            return True
        if said["file"] is not None:
            saver.restore(self, said["file"])
        return said["file"] is not None

    def _resume(self, folder: Path, saver: Saver) -> bool:
        self._resumes = True
        self._restored_by = CheckpointManager(self, folder, None, saver, True, None, self.heirs)
        resumed = self._restored_by.resume(saves=False)
        if resumed and self._set_folder is not None:
            warn_own_loop(self, self._restored_by.first_step)
        return resumed

    def save_as_set(self, counter: Variable | None) -> None:
        """Save to the folder that a setting names, if any, since no hook names one."""
        saver = self._scaffold.saver
        if self._set_folder is not None and saver is not None:
            self.save_in(self._set_folder, None, saver, counter)

    def save_in(
        self,
        folder: str,
        interval: int | str | None,
        saver: Saver,
        counter: Variable | None,
        listener: SaveListener | None = None,
        always_waits: bool = False,
    ) -> None:
        """Save the state of the job from now on; `counter` is the step in a checkpoint's name.

        `listener` is called at each save; it may be missing on some ranks. With `always_waits` all
        ranks wait for each save.

        Errors: CheckpointError if the folder has checkpoints and is not the one restored from.
        """
        setting = self.context.settings.checkpoints
        place = Path((self._set_folder or setting) if setting else folder)
        before = self._restored_by
        self._resumes = before is not None and before.directory == place
        keeper = self._keep(place, interval, saver, counter)
        keeper.listener, keeper.always_waits = listener, always_waits
        if before is not None:
            keeper.continue_as(before)
        if self._resumes:
            keeper.claim()
        else:
            keeper.start_fresh()

    def is_training(self, fetches: Sequence[Tensor | Operation]) -> bool:
        """Whether a run of these fetches is a training step, see `trains`."""
        key = tuple(fetches)
        if key not in self._training:
            self._training[key] = is_training_step(key)
        return self._training[key]

    def _check_ready(self, ready: Any) -> None:
        missing = [] if ready is None else np.atleast_1d(self.run(ready)).tolist()
        if missing:
            names = ", ".join(n.decode() if isinstance(n, bytes) else str(n) for n in missing)
            raise UninitializedError(
                f"variables have no value after the scaffold's init_op: {names}",
                rank=self.context.rank,
                hint="create init_op by hf.global_variables_initializer() after all variables",
            )


def together(context: RankContext, value: Mapping[str, Any]) -> dict[str, Any]:
    """Broadcast the chief's value; every rank that runs the script calls this."""
    drivers = context.drivers
    if drivers is None or drivers.size == 1:
        return dict(value)
    context.meet("making a monitored session")
    return json.loads(drivers.broadcast_text(json.dumps(dict(value))))


def _text(path: Any) -> str | None:
    return None if not path else str(Path(path).absolute())
