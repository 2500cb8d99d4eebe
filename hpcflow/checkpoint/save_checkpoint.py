"""Checkpoint save: survey, assignment of rows to writers, writing to a draft, publishing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.checkpoint import (
    checkpoint_directory,
    hdf5_datasets,
    header_digests,
    lustre_striping,
    parallel_hdf5_write,
)
from hpcflow.checkpoint.checkpoint_layout import (
    ALIGN_BYTES,
    STATE,
    ArraySpec,
    HeldRows,
    Slab,
    decode_arrays,
    hdf5_paths,
    replica_names,
)
from hpcflow.checkpoint.checkpoint_service import survey_variables, write_local
from hpcflow.checkpoint.hdf5_structure_check import check_written
from hpcflow.checkpoint.participating_ranks import ParticipatingRanks, run_or_error, served_ranks
from hpcflow.checkpoint.row_partitioning import rows_to_write
from hpcflow.checkpoint.save_plan import Facts, SavePlan
from hpcflow.errors import CheckpointError, HpcflowError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore

FORMS = ("auto", "sharded", "parallel")


class SaveRequest(NamedTuple):
    """The variables and facts to save, and the folder."""

    directory: Path
    array_names: dict[str, str]
    facts: Callable[[list[Any]], Facts]
    texts: Callable[[], dict[str, str]]
    form: str
    per_replica_names: frozenset[str]


def make_request(
    context: RankContext,
    directory: Path,
    array_names: Mapping[str, str],
    facts: Callable[[list[Any]], Facts],
    texts: Callable[[], dict[str, str]] = dict,
    form: str = "auto",
    per_replica_names: Mapping[str, str] | None = None,
) -> SaveRequest:
    """The variables `array_names` (variable -> name in the checkpoint), to be saved into a folder.

    `facts` runs on the chief. It computes further facts of the checkpoint, at least "step", from
    the data of all drivers. `texts` runs on the chief; its texts become datasets of the file. Each
    replica has its own value of the variables in `per_replica_names`, saved under the names of
    `replica_names`.
    """
    alone = replica_names(per_replica_names or {}, context.replica)
    return SaveRequest(
        directory, {**array_names, **alone}, facts, texts, form, frozenset(alone.values())
    )


def save_checkpoint(
    context: RankContext,
    store: StateStore,
    ask: SaveRequest,
    local_facts: Any = None,
    keep: int = 5,
) -> Path:
    """Write a checkpoint while all ranks wait; returns its path.

    `local_facts` is input to the facts.

    The folder keeps the newest `keep` checkpoints, 0 for all.

    Ranks:  every rank that runs the script, between steps, with the same arguments.
    Errors: CheckpointError on all of them; the folder's earlier checkpoints are unchanged.
    """
    team = ParticipatingRanks(context)
    duties, plan = make_plan(team, store, ask, local_facts)
    duty = duties.pop(context.rank, [] if context.rank in plan.writers else None)
    message = {"do": "write", **plan.as_message()}
    requests = {rank: {**message, "duty": slabs} for rank, slabs in duties.items()}
    answers = team.call(requests, store)
    rows = []
    if duty is not None:
        rows.append(run_or_error(context, lambda: write_local(context, store, plan, duty)))
    rows += answers().values()
    wrong = [row for row in rows if "error" in row]
    written = wrong[0] if wrong else {"value": [part for row in rows for part in row["value"]]}

    def publish(rows: Sequence[Any]) -> str:
        return str(finish_save(plan, ask, keep, [part for row in rows for part in row["value"]]))

    try:
        return Path(team.decide(written, publish))
    except HpcflowError:  # a CommError if another rank has ended the job by its CheckpointError
        if context.is_chief:
            discard_draft(plan)
        raise


def discard_draft(plan: SavePlan) -> None:
    """On the chief: remove the draft of a save that failed."""
    with contextlib.suppress(OSError):
        checkpoint_directory.remove_checkpoint(Path(plan.draft))


def make_plan(
    team: ParticipatingRanks, store: StateStore, ask: SaveRequest, local_facts: Any
) -> tuple[dict[int, list[Slab]], SavePlan]:
    """The slabs that this driver and its served ranks write, by rank; and the plan of the save.

    The draft exists when this returns.
    """
    context = team.context
    request = {"do": "survey", "wanted": ask.array_names}
    answers = team.call(dict.fromkeys(served_ranks(context), request), store)
    surveys = {
        context.rank: run_or_error(context, lambda: survey_variables(store, ask.array_names)),
        **answers(),
    }
    wrong = [row for row in surveys.values() if "error" in row]
    replies = {rank: row.get("value", {}) for rank, row in surveys.items()}
    pieces = {rank: [HeldRows(*h) for h in msg.get("held", ())] for rank, msg in replies.items()}
    mine_to_say = (ask.per_replica_names, context.replica, context.is_chief)
    all_duties = {rank: rows_to_write(context, rank, h, *mine_to_say) for rank, h in pieces.items()}
    duties = {rank: duty for rank, duty in all_duties.items() if duty}
    row = (
        wrong[0]
        if wrong
        else {
            "arrays": list({h.name: h.array for some in pieces.values() for h in some}.values()),
            "writers": list(duties),
            "slabs": [slab for duty in duties.values() for slab in duty],
            "draws": {context.task_name(rank): msg["draws"] for rank, msg in replies.items()},
            "mine": local_facts,
            "seed": [store.seed.job, store.seed.session],
        }
    )
    message = team.decide(row, functools.partial(_decide, context, ask))
    return duties, SavePlan.of_message({**message, "wanted": ask.array_names})


def _choose_form(context: RankContext, form: str) -> str:
    """`parallel` if the ranks can write one HDF5 file together, else `sharded`."""
    from hpcflow.runtime.hdf5_library import is_parallel

    if form not in FORMS:
        raise CheckpointError(f"form {form!r} is not one of {', '.join(FORMS)}")
    real = context.world is not None and type(context.world).__name__ == "MpiCommunicator"
    # MPI cannot create the file's communicator if a rank of the job has died
    can = is_parallel() and (context.size == 1 or real) and not context.lost
    if form == "parallel" and not can and context.size > 1:
        raise CheckpointError(
            "the ranks cannot write one file together: "
            + ("a rank has died" if context.lost else "this h5py was built without MPI"),
            rank=context.rank,
            hint='build h5py with MPI (`hpcflow help parallel-hdf5`), or use form="sharded"',
        )
    return "parallel" if form == "parallel" or (can and form == "auto") else "sharded"


def _decide(context: RankContext, ask: SaveRequest, rows: Sequence[Any]) -> Facts:
    """On the chief: the plan of the save, as plain data; creates the draft."""
    arrays = {name: array for row in rows for name, array in decode_arrays(row).items()}
    missing = sorted(set(ask.array_names.values()) - set(arrays))
    if missing:
        raise CheckpointError(
            f"{len(missing)} variables have no value yet: {', '.join(missing[:5])}",
            op=missing[0],
            hint="run hf.global_variables_initializer(), or restore them, before they are saved",
        )
    slabs = [Slab(*slab) for row in rows for slab in row["slabs"]]
    _check_cover(arrays, slabs)
    facts = {
        **ask.facts([row["mine"] for row in rows]),
        "mode": context.cluster.mode,
        "ranks": context.size,
        "servers": context.cluster.servers,
        "replicas": context.cluster.replicas,
        "tasks_per_replica": context.cluster.tasks_per_replica,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    form, step = _choose_form(context, ask.form), facts.pop("step")
    draws = merge_draws([row["draws"] for row in rows])
    plan = SavePlan(
        id=uuid.uuid4().hex,
        step=step,
        form=form,
        arrays=tuple(arrays.values()),
        paths=hdf5_paths(arrays),
        writers=tuple(sorted(rank for row in rows for rank in row["writers"])) or (context.rank,),
        facts={**facts, "draws": draws, "random_seed": rows[0]["seed"]},
    )
    if plan.is_parallel:
        plan = _with_front(plan, slabs)
    lustre_striping.stripe(ask.directory)
    make = functools.partial(_create_draft, ask, plan)
    final_plan: SavePlan = checkpoint_directory.with_storage_errors(
        f"making a checkpoint in {ask.directory}", make
    )
    return final_plan.as_message()


def _with_front(plan: SavePlan, slabs: Sequence[Slab]) -> SavePlan:
    """The plan with the size of the shared file's user block and the alignment of its arrays."""
    text = json.dumps([plan.facts, plan.arrays, plan.paths])
    block = header_digests.user_block_size(
        parallel_hdf5_write.header_text_bytes(plan.by_name, slabs) + len(text)
    )
    if all(array.nbytes < ALIGN_BYTES for array in plan.arrays):
        return dataclasses.replace(plan, block=block, align=hdf5_datasets.PAGE)
    return dataclasses.replace(plan, block=max(block, ALIGN_BYTES), align=ALIGN_BYTES)


def _text_datasets(ask: SaveRequest, plan: SavePlan) -> dict[str, str]:
    """The text datasets beside the arrays."""
    state = {name: plan.facts.get(name) for name in ("position", "draws")}
    return {**ask.texts(), STATE: json.dumps(state)}


def _create_draft(ask: SaveRequest, plan: SavePlan) -> SavePlan:
    """Create the draft, and in it a shared file's structure; the plan with its path and offsets."""
    draft = checkpoint_directory.new_draft(ask.directory, plan.step, plan.is_parallel).absolute()
    try:
        offsets = {}
        if plan.is_parallel:
            offsets = parallel_hdf5_write.create_shared_file(draft, plan, _text_datasets(ask, plan))
        return dataclasses.replace(plan, draft=str(draft), offsets=offsets)
    except BaseException:
        with contextlib.suppress(OSError):
            checkpoint_directory.remove_checkpoint(draft)
        raise


def _check_cover(arrays: Mapping[str, ArraySpec], slabs: Sequence[Slab]) -> None:
    """Raise unless every row of every array is written once, so that ranks and graph agree."""
    rows: dict[str, list[tuple[int, int]]] = {name: [] for name in arrays}
    for slab in slabs:
        rows[slab.name].append((slab.start, slab.stop))
    for name, array in arrays.items():
        at = 0
        for start, stop in sorted(rows[name]) if array.nbytes else []:
            if start != at:
                break
            at = stop
        if at != array.rows and array.nbytes:
            raise CheckpointError(
                f"variable {name!r} has {array.rows} rows, but the ranks hold {sorted(rows[name])}",
                op=name,
                hint="save between steps, on all ranks that run the script",
            )


def merge_draws(rows: Sequence[Mapping[str, Any]]) -> Facts:
    """Draws by (fetches, op): the most of all ranks, and each task's draws if it made fewer."""
    most: dict[tuple[str, str], int] = {}
    for row in rows:
        for draws in row.values():
            for label, op, count in draws:
                most[label, op] = max(count, most.get((label, op), 0))
    differing = {
        task: draws
        for row in rows
        for task, draws in row.items()
        if any(most[label, op] != count for label, op, count in draws)
    }
    return {"most": [[*key, count] for key, count in most.items()], "tasks": differing}


def finish_save(
    plan: SavePlan, ask: SaveRequest, keep: int, written: Sequence[Any], checks: bool = False
) -> Path:
    """On the chief, after all have written: write the index or the user block, publish; the path.

    HDF5 reopens the file with the structure before it is published. With `checks` all bytes of an
    index are read back.
    """
    draft = Path(plan.draft)

    def run() -> Path:
        facts = {**plan.index_facts, "serial": checkpoint_directory.next_serial(draft.parent)}
        if plan.is_parallel:
            whole_facts = {**facts, "kind": "whole"}
            record = parallel_hdf5_write.finish_file(draft, whole_facts, written, plan.block)
            check_written(draft, record, plan.attributes, _text_datasets(ask, plan))
        else:
            slabs = [slab for record in written for slab in record["slabs"]]
            rows = [Slab(slab["name"], slab["start"], slab["stop"]) for slab in slabs]
            _check_cover(plan.by_name, rows)
            index, texts = draft / checkpoint_directory.INDEX, _text_datasets(ask, plan)
            record = _write_index(index, plan, texts, facts, written)
            if checks:
                parallel_hdf5_write.check_file(index, record)
            check_written(index, record, plan.attributes, texts)
        path = checkpoint_directory.publish_draft(draft)
        checkpoint_directory.apply_retention(path.parent, keep)
        return path

    path: Path = checkpoint_directory.with_storage_errors(f"publishing {draft}", run)
    return path


def _write_index(
    path: Path,
    plan: SavePlan,
    texts: Mapping[str, str],
    facts: Facts,
    records: Sequence[Any],
) -> Facts:
    """Write the index: virtual datasets over the parts, and the parts' records in its user block.

    Returns the index's own record.
    """
    sources: dict[str, list[hdf5_datasets.VirtualSource]] = {name: [] for name in plan.by_name}
    for record in records:
        for slab in record["slabs"]:
            source = hdf5_datasets.VirtualSource(record["file"], slab["start"], slab["stop"])
            sources[slab["name"]].append(source)
    index_facts = {**facts, "files": list(records)}
    block = header_digests.user_block_size(len(json.dumps(index_facts)) + 4096)
    with hdf5_datasets.create_file(path, block) as file:
        for name, array in plan.by_name.items():
            place = hdf5_datasets.DatasetSpec(plan.paths[name], array.dtype, array.shape, name)
            hdf5_datasets.add_virtual(file, place, sources[name])
        hdf5_datasets.write_description(file, plan.attributes, texts)
    record = parallel_hdf5_write.finish_file(path, {**index_facts, "kind": "index"}, [], block)
    hdf5_datasets.sync(path.parent)
    return record
