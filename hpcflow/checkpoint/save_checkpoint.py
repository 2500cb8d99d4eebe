"""Checkpoint save: survey, assignment of rows to writers, writing to a draft, publishing."""

from __future__ import annotations

import contextlib
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
    Array,
    Slab,
    arrays_of,
    mine_of,
    paths,
)
from hpcflow.checkpoint.checkpoint_service import survey, write
from hpcflow.checkpoint.hdf5_structure_check import check_written
from hpcflow.checkpoint.participating_ranks import Team, attempt, served_by
from hpcflow.checkpoint.row_partitioning import duty_of
from hpcflow.errors import CheckpointError
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.state.state_store import Store

FORMS = ("auto", "sharded", "parallel")
Facts = dict[str, Any]


class Asked(NamedTuple):
    """The variables and facts to save, and the folder."""

    directory: Path
    wanted: dict[str, str]
    facts: Callable[[list[Any]], Facts]
    texts: Callable[[], dict[str, str]]
    form: str
    own: frozenset[str]


def asked(
    context: Context,
    directory: Path,
    wanted: Mapping[str, str],
    facts: Callable[[list[Any]], Facts],
    texts: Callable[[], dict[str, str]] = dict,
    form: str = "auto",
    own: Mapping[str, str] | None = None,
) -> Asked:
    """The variables `wanted` (variable -> name in the checkpoint), to be saved into a folder.

    `facts` runs on the chief. It computes further facts of the checkpoint, at least "step", from
    the data of all drivers. `texts` runs on the chief; its texts become datasets of the file. Each
    replica has its own value of the variables in `own`, saved under the names of `mine_of`.
    """
    alone = mine_of(own or {}, context.replica)
    return Asked(directory, {**wanted, **alone}, facts, texts, form, frozenset(alone.values()))


def save(context: Context, store: Store, ask: Asked, mine: Any = None, keep: int = 5) -> Path:
    """Write a checkpoint while all ranks wait; returns its path. `mine` is input to the facts.

    The folder keeps the newest `keep` checkpoints, 0 for all.

    Ranks:  every rank that runs the script, between steps, with the same arguments.
    Errors: CheckpointError on all of them; the folder's earlier checkpoints are unchanged.
    """
    team = Team(context)
    duties, told = plan(team, store, ask, mine)
    duty = duties.pop(context.rank, [] if context.rank in told["writers"] else None)
    requests = {rank: {"do": "write", **told, "duty": its} for rank, its in duties.items()}
    answers = team.call(requests, store)
    rows = []
    if duty is not None:
        rows.append(attempt(context, lambda: write(context, store, {**told, "duty": duty})))
    rows += answers().values()
    wrong = [row for row in rows if "error" in row]
    written = wrong[0] if wrong else {"value": [one for row in rows for one in row["value"]]}

    def publish(rows: Sequence[Any]) -> str:
        return str(finish(told, ask, keep, [one for row in rows for one in row["value"]]))

    try:
        return Path(team.decide(written, publish))
    except CheckpointError:
        if context.is_chief:
            discard(told)
        raise


def discard(told: Facts) -> None:
    """On the chief: remove the draft of a save that failed."""
    with contextlib.suppress(OSError):
        checkpoint_directory.remove(Path(told["draft"]))


def plan(team: Team, store: Store, ask: Asked, mine: Any) -> tuple[dict[int, list[Slab]], Facts]:
    """The slabs that this driver and its served ranks write, by rank; and the message to writers.

    The draft exists when this returns.
    """
    context = team.context
    request = {"do": "survey", "wanted": ask.wanted}
    answers = team.call(dict.fromkeys(served_by(context), request), store)
    surveys = {context.rank: attempt(context, lambda: survey(store, ask.wanted)), **answers()}
    wrong = [row for row in surveys.values() if "error" in row]
    found = {rank: row.get("value", {}) for rank, row in surveys.items()}
    held = {} if wrong else {rank: one["held"] for rank, one in found.items()}
    mine_to_say = (ask.own, context.replica, context.is_chief)
    all_duties = {rank: duty_of(context, rank, h, *mine_to_say) for rank, h in held.items()}
    duties = {rank: duty for rank, duty in all_duties.items() if duty}
    row = (
        wrong[0]
        if wrong
        else {
            "arrays": _arrays(found),
            "writers": list(duties),
            "slabs": [slab for duty in duties.values() for slab in duty],
            "draws": {context.task_name(rank): one["draws"] for rank, one in found.items()},
            "mine": mine,
            "seed": [store.seed.job, store.seed.session],
        }
    )
    told = team.decide(row, functools.partial(_told, context, ask))
    return duties, {**told, "wanted": ask.wanted}


def _arrays(found: Mapping[int, Any]) -> list[Array]:
    some = [h for one in found.values() for h in one["held"]]
    named = {h["name"]: Array(h["name"], h["dtype"], tuple(h["shape"])) for h in some}
    return list(named.values())


def _form(context: Context, form: str) -> str:
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
            + ("one has died" if context.lost else "this h5py was built without MPI"),
            rank=context.rank,
            hint='build it so (`hpcflow help parallel-hdf5`), or use form="sharded"',
        )
    return "parallel" if form == "parallel" or (can and form == "auto") else "sharded"


def _told(context: Context, ask: Asked, rows: Sequence[Any]) -> Facts:
    """On the chief: the message to all writers; creates the draft."""
    arrays = {name: array for row in rows for name, array in arrays_of(row).items()}
    missing = sorted(set(ask.wanted.values()) - set(arrays))
    if missing:
        raise CheckpointError(
            f"{len(missing)} variables have no value yet: {', '.join(missing[:5])}",
            op=missing[0],
            hint="run hf.global_variables_initializer(), or restore them, before they are saved",
        )
    slabs = [Slab(*slab) for row in rows for slab in row["slabs"]]
    _check_cover(arrays, slabs)
    said = {
        **ask.facts([row["mine"] for row in rows]),
        "mode": context.cluster.mode,
        "ranks": context.size,
        "servers": context.cluster.servers,
        "replicas": context.cluster.replicas,
        "tasks_per_replica": context.cluster.tasks_per_replica,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    form, step = _form(context, ask.form), said.pop("step")
    told = {
        "id": uuid.uuid4().hex,
        "step": step,
        "form": form,
        "arrays": list(arrays.values()),
        "paths": paths(arrays),
        "writers": sorted(rank for row in rows for rank in row["writers"]) or [context.rank],
        "facts": {
            **said,
            "draws": merged([row["draws"] for row in rows]),
            "random_seed": rows[0]["seed"],
        },
    }
    told["attrs"] = _attributes(told)
    if form == "parallel":
        told |= _front(told, arrays, slabs)
    lustre_striping.stripe(ask.directory)
    make = functools.partial(_make, ask, told, arrays)
    return {**told, **checkpoint_directory.told(f"making a checkpoint in {ask.directory}", make)}


def _front(told: Facts, arrays: Mapping[str, Array], slabs: Sequence[Slab]) -> Facts:
    """The size of the shared file's user block, and the alignment of its large arrays."""
    text = json.dumps([told["facts"], told["arrays"], told["paths"]])
    block = header_digests.room(parallel_hdf5_write.text_bytes(arrays, slabs) + len(text))
    if all(array.nbytes < ALIGN_BYTES for array in arrays.values()):
        return {"block": block, "align": hdf5_datasets.PAGE}
    return {"block": max(block, ALIGN_BYTES), "align": ALIGN_BYTES}


def _texts(ask: Asked, told: Facts) -> dict[str, str]:
    """The text datasets beside the arrays."""
    state = {name: told["facts"].get(name) for name in ("position", "draws")}
    return {**ask.texts(), STATE: json.dumps(state)}


def _make(ask: Asked, told: Facts, arrays: Mapping[str, Array]) -> Facts:
    """Create the draft, and in it a shared file's structure; returns its path and offsets."""
    is_single = told["form"] == "parallel"
    draft = checkpoint_directory.draft(ask.directory, told["step"], is_single).absolute()
    try:
        offsets = {}
        if is_single:
            offsets = parallel_hdf5_write.lay_out(
                draft, {**told, "texts": _texts(ask, told)}, arrays
            )
        return {"draft": str(draft), "offsets": offsets}
    except BaseException:
        with contextlib.suppress(OSError):
            checkpoint_directory.remove(draft)
        raise


def _check_cover(arrays: Mapping[str, Array], slabs: Sequence[Slab]) -> None:
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
                f"variable {name!r} has {array.rows} rows, the ranks hold {sorted(rows[name])}",
                op=name,
                hint="save between steps, on all ranks that run the script",
            )


def merged(rows: Sequence[Mapping[str, Any]]) -> Facts:
    """Draws by (fetches, op): the most of all ranks, and each task's draws if it made fewer."""
    most: dict[tuple[str, str], int] = {}
    for row in rows:
        for draws in row.values():
            for label, op, made in draws:
                most[label, op] = max(made, most.get((label, op), 0))
    differing = {
        task: draws
        for row in rows
        for task, draws in row.items()
        if any(most[label, op] != made for label, op, made in draws)
    }
    return {"most": [[*key, made] for key, made in most.items()], "tasks": differing}


def _attributes(told: Facts) -> Facts:
    """Attributes of the HDF5 file, for readers that know nothing of hpcflow."""
    facts = {name: v for name, v in told["facts"].items() if isinstance(v, (int, float, str))}
    named = {name: told[name] for name in ("id", "step")}
    return {"format_version": header_digests.FORMAT_VERSION, **named, **facts}


def finish(
    told: Facts, ask: Asked, keep: int, written: Sequence[Facts], checks: bool = False
) -> Path:
    """On the chief, after all have written: write the index or the user block, publish; the path.

    HDF5 reopens the file with the structure before it is published. With `checks` all bytes of an
    index are read back.
    """
    draft = Path(told["draft"])
    arrays = arrays_of(told)
    facts = {name: told[name] for name in ("id", "step", "form", "arrays", "paths")}
    facts |= told["facts"]

    def run() -> Path:
        facts["serial"] = checkpoint_directory.next_serial(draft.parent)
        if told["form"] == "parallel":
            more = {**facts, "kind": "whole"}
            record = parallel_hdf5_write.finish(draft, more, written, arrays, told["block"])
            check_written(draft, record, told["attrs"], _texts(ask, told))
        else:
            slabs = [one for record in written for one in record["slabs"]]
            _check_cover(arrays, [Slab(one["name"], one["start"], one["stop"]) for one in slabs])
            more = {**told, "texts": _texts(ask, told)}
            index = draft / checkpoint_directory.INDEX
            record = _write_index(index, more, facts, arrays, written)
            if checks:
                parallel_hdf5_write.check(index, record)
            check_written(index, record, more["attrs"], more["texts"])
        path = checkpoint_directory.publish(draft)
        checkpoint_directory.keep(path.parent, keep)
        return path

    path: Path = checkpoint_directory.told(f"publishing {draft}", run)
    return path


def _write_index(
    path: Path,
    told: Facts,
    facts: Facts,
    arrays: Mapping[str, Array],
    records: Sequence[Any],
) -> Facts:
    """Write the index: virtual datasets over the parts, and the parts' records in its user block.

    Returns the index's own record.
    """
    sources: dict[str, list[hdf5_datasets.Source]] = {name: [] for name in arrays}
    for record in records:
        for slab in record["slabs"]:
            source = hdf5_datasets.Source(record["file"], slab["start"], slab["stop"])
            sources[slab["name"]].append(source)
    more = {**facts, "files": list(records)}
    block = header_digests.room(len(json.dumps(more)) + 4096)
    with hdf5_datasets.created(path, block) as file:
        for name, array in arrays.items():
            place = hdf5_datasets.Place(told["paths"][name], array.dtype, array.shape, name)
            hdf5_datasets.add_virtual(file, place, sources[name])
        hdf5_datasets.describe(file, told["attrs"], told["texts"])
    record = parallel_hdf5_write.finish(path, {**more, "kind": "index"}, [], arrays, block)
    hdf5_datasets.sync(path.parent)
    return record
