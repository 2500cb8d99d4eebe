"""What saves behind training cost it: the part of benchmarks/checkpoint.py that trains meanwhile.

A repeat steps, quietly at first; then it saves and goes on stepping until the checkpoint is
there. A step updates every variable once. Its figures, in seconds:

    blocked   the call that begins the save and the step after it, beyond a quiet step
    lost      all steps until the save has ended, beyond as many quiet ones: also for its cores
    durable   until the checkpoint is on the disk
    verified  until it was read back
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable

import common
import numpy as np
from common import Contender, Crew, Tournament, check

QUIET_STEPS = 5
OURS, DCP = "hpcflow, behind training", "torch DCP, async_save"
BLOCKED_OF_DURABLE = 0.05
Value = Callable[[int], np.ndarray]  # of a variable, by its number


def measured(
    step: Callable[[], object], begin: Callable[[], object], goes: Callable[[], bool]
) -> dict[str, float]:
    """One save among steps: what was blocked and lost, and how long until it had ended."""

    def timed() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    quiet = statistics.median(timed() for _ in range(QUIET_STEPS))
    start = time.perf_counter()
    begin()
    step()
    blocked = time.perf_counter() - start - quiet
    steps = 1
    while goes():
        step()
        steps += 1
    ended = time.perf_counter() - start
    return {"blocked": blocked, "lost": ended - steps * quiet, "durable": ended}


def serve(repeat: Callable[[], dict[str, float]], packages: list[str], crew: Crew) -> None:
    """The cases of a contender: the first in order runs a repeat, the others tell of it."""
    last: dict[str, float] = {}

    def blocked() -> float:
        last.update(repeat())
        return last["blocked"]

    cases: dict[str, common.Repeat] = {"blocked": blocked}
    first = repeat()  # makes plans and buffers
    for name in first:
        cases.setdefault(name, lambda name=name: last[name])
    common.serve(cases, packages, crew)


def hpcflow(arguments: argparse.Namespace, where: pathlib.Path, value: Value, count: int) -> None:
    import hpcflow as hf

    shape = value(0).shape
    variables = [hf.Variable(hf.zeros(shape), name=f"v{i}") for i in range(count)]
    feed = hf.placeholder(hf.float32, shape)
    assigns = [variable.assign(feed, read_value=False) for variable in variables]
    update = hf.group(*[variable.assign_add(variable * 1e-3) for variable in variables])
    session = hf.train.TrainingSession(checkpoints=where, save_every=10**9, max_to_keep=1)
    crew = common.crew_of_workers(0) if session.context.world is not None else Crew()
    for i, assign in enumerate(assigns):
        session.run(assign, {feed: value(i)})
    keeper = session._checkpoints
    assert keeper is not None

    def repeat() -> dict[str, float]:
        found = measured(
            lambda: session.step(update, {}),
            lambda: keeper.save(session.steps, 0, waits=False),
            lambda: bool(
                crew.largest(float(keeper.saves.is_saving))
            ),  # joint steps: as many on all
        )
        took = keeper.saves.last
        return found | {"durable": took.durable, "verified": took.verified}

    serve(repeat, ["numpy", "h5py"], crew)
    session.wait()


def torch_dcp(arguments: argparse.Namespace, where: pathlib.Path, value: Value, count: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    size, address = arguments.ranks[0], f"tcp://127.0.0.1:{arguments.port}"
    dist.init_process_group("gloo", address, rank=arguments.rank, world_size=size)
    tensors = {f"v{i}": torch.from_numpy(value(i).copy()) for i in range(count)}
    saves = itertools.count()

    def step() -> None:
        for tensor in tensors.values():
            tensor.add_(tensor, alpha=1e-3)

    def repeat() -> dict[str, float]:
        found = where / str(next(saves))
        dist.barrier()
        if arguments.rank == 0:
            shutil.rmtree(where, ignore_errors=True)
        dist.barrier()
        going: list = []
        measured_here = measured(
            step,
            lambda: going.append(dcp.async_save(tensors, checkpoint_id=found)),
            lambda: not going[0].done(),
        )
        going[0].result()
        return measured_here

    serve(repeat, ["torch", "numpy"], Crew())


def needs_mebibytes(mebibytes: int, ranks: int) -> int:
    """What a contender takes at most: each rank has all, and as much again."""
    return 2 * mebibytes * ranks + 512 * ranks


def free_mebibytes() -> int:
    with open("/proc/meminfo") as lines:
        facts = dict(line.split(":") for line in lines)
    return int(facts["MemAvailable"].split()[0]) >> 10


def lacks(arguments: argparse.Namespace, size: int) -> str:
    """Why the machine is too small for a contender; "" if it is not."""
    needs, free = needs_mebibytes(arguments.mebibytes, size), free_mebibytes()
    if needs > free:
        return f"it takes {needs} MiB of memory, {free} are free"
    place = pathlib.Path(arguments.folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    needs, free = 3 * arguments.mebibytes, shutil.disk_usage(place).free >> 20
    return f"it takes {needs} MiB of {place}, {free} are free" if needs > free else ""


def play(cup: Tournament, arguments: argparse.Namespace, group: list[Contender], size: int) -> None:
    """Together if their memory is enough for both, else one by one, else not."""
    if why := lacks(arguments, size):
        group = [Contender(each.name, missing=each.missing or why) for each in group]
    needs = needs_mebibytes(arguments.mebibytes, size)
    groups = [group] if len(group) * needs <= free_mebibytes() else [[each] for each in group]
    for some in groups:
        cup.play(some, arguments.rounds, arguments.repeats)


def checks_of(cup: Tournament) -> list[dict]:
    """What is blocked, of what the save takes, and beside torch."""
    checks = []
    for case in (case for case in cup.figures if case.startswith("blocked")):
        durable = case.replace("blocked", "durable")
        checks.append(check(f"{case}: {OURS}", cup.middle(case, OURS), "s"))
        ratio = cup.ratio(case, OURS, OURS, durable)
        checks.append(check("... by its time until durable", ratio, at_most=BLOCKED_OF_DURABLE))
        checks.append(check("... by torch DCP", cup.ratio(case, OURS, DCP), at_most=1.0))
        checks.append(check(f"{durable}: {OURS}", cup.middle(durable, OURS), "s"))
        checks.append(check("... by torch DCP", cup.ratio(durable, OURS, DCP)))
        verified = case.replace("blocked", "verified")
        checks.append(check(f"{verified}: {OURS}", cup.middle(verified, OURS), "s"))
    return checks
