"""Saving and loading 1 GiB of variables by 1, 2 and 4 ranks, with fsync, beside dd and DCP.

    python benchmarks/checkpoint.py --mpio PYTHON --torch PYTHON --tf PYTHON --out FILE

Sixteen float32 variables that every replica has. A save begins with the values in memory and ends
when they are on the disk; a load reads into memory that is there, from files that the cache holds,
on every rank. Ours digests every byte in both. `--mpio` is a Python whose h5py has MPI: its ranks
write one file. dd copies as many bytes from a file in the cache to another (conv=fsync), and back.
Saves behind training, of `--behind` MiB, are measured beside DCP's async_save (saving_behind.py);
what does not fit the memory or the disk is told as absent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import saving_behind
from common import Contender, Crew, Tournament, check, peer, role

VARIABLES = 16
OURS, FILE, DD, DCP, TF = (
    "hpcflow, a file a rank",
    "hpcflow, one file",
    "dd",
    "torch DCP",
    "TF1 Saver",
)
SAVE_OF_DD, LOAD_OF_DD = 1 / 0.8, None  # at least 80 % of dd's throughput


def value(number: int, mebibytes: int) -> np.ndarray:
    """What does not compress: some disks would notice."""
    rows = np.random.default_rng(number).integers(0, 1 << 31, (1 << 18), np.int32)
    count = mebibytes * (1 << 18) // VARIABLES
    return np.resize(rows, count).view(np.float32).reshape(-1, 1024)


def finite(number: int, mebibytes: int) -> np.ndarray:
    """The same with exponents that bear many steps."""
    rows = value(number, mebibytes).view(np.int32)
    return (rows & 0x007FFFFF | 0x3F800000).view(np.float32)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def removed(path: pathlib.Path, rank: int) -> None:
    """Make room before the clock runs."""
    if rank == 0 and path.exists():
        shutil.rmtree(path)


# -- contenders


def hpcflow(arguments: argparse.Namespace, where: pathlib.Path, form: str) -> None:
    import hpcflow as hf

    shape = value(0, arguments.mebibytes).shape
    variables = [hf.Variable(hf.zeros(shape), name=f"v{i}") for i in range(VARIABLES)]
    feed = hf.placeholder(hf.float32, shape)
    assigns = [variable.assign(feed, read_value=False) for variable in variables]
    session = hf.Session()
    crew = common.crew_of_workers(0) if session.context.world is not None else Crew()
    session.run([v.initializer for v in variables])
    for i, assign in enumerate(assigns):
        session.run(assign, {feed: value(i, arguments.mebibytes)})
    saver = hf.train.Saver(variables, max_to_keep=0, form=form)
    steps = itertools.count()
    found = pathlib.Path(saver.save(session, where, next(steps)))

    def save() -> float:
        nonlocal found
        if crew.rank == 0:
            (shutil.rmtree if found.is_dir() else os.unlink)(found)
        crew.barrier()
        start = time.perf_counter()
        found = pathlib.Path(saver.save(session, where, next(steps)))
        return time.perf_counter() - start

    def load() -> float:
        return timed(lambda: saver.restore(session, found))

    common.serve({"save": save, "load": load}, ["numpy", "h5py"], crew)
    last = session.run(variables[-1])
    assert last.tobytes() == value(VARIABLES - 1, arguments.mebibytes).tobytes()


def torch_dcp(arguments: argparse.Namespace, where: pathlib.Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    size = arguments.ranks[0]
    address = f"tcp://127.0.0.1:{arguments.port}"
    dist.init_process_group("gloo", address, rank=arguments.rank, world_size=size)
    tensors = {
        f"v{i}": torch.from_numpy(value(i, arguments.mebibytes).copy()) for i in range(VARIABLES)
    }
    steps = itertools.count()
    found = where / "first"
    dcp.save(tensors, checkpoint_id=found)

    def save() -> float:
        nonlocal found
        dist.barrier()
        removed(found, arguments.rank)
        found = where / str(next(steps))
        dist.barrier()
        return timed(lambda: dcp.save(tensors, checkpoint_id=found))

    def load() -> float:
        dist.barrier()
        return timed(lambda: dcp.load(tensors, checkpoint_id=found))

    common.serve({"save": save, "load": load}, ["torch", "numpy"])


def tensorflow(arguments: argparse.Namespace, where: pathlib.Path) -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    t1.disable_eager_execution()
    variables, feeds = [], {}
    for i in range(VARIABLES):
        array = value(i, arguments.mebibytes)
        holder = t1.placeholder(tf.float32, array.shape)
        variables.append(t1.Variable(holder, name=f"v{i}"))
        feeds[holder] = array
    saver = t1.train.Saver(variables, max_to_keep=1)
    session = t1.Session()
    session.run(t1.global_variables_initializer(), feeds)
    steps = itertools.count()

    def to_disk() -> str:
        made = saver.save(session, str(where / "model"), next(steps), write_meta_graph=False)
        for file in where.glob(f"{pathlib.Path(made).name}.*"):
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        return made

    where.mkdir(parents=True, exist_ok=True)
    found = to_disk()

    def save() -> float:
        nonlocal found
        start = time.perf_counter()
        found = to_disk()
        return time.perf_counter() - start

    common.serve(
        {"save": save, "load": lambda: timed(lambda: saver.restore(session, found))},
        ["tensorflow-cpu"],
    )


def dd(arguments: argparse.Namespace, where: pathlib.Path) -> None:
    where.mkdir(parents=True, exist_ok=True)
    source = where / "source"  # stays in the cache
    with open(source, "wb") as file:
        for i in range(VARIABLES):
            file.write(value(i, arguments.mebibytes))
    target = where / "copy"

    def copy(*words: str) -> None:
        subprocess.run(["dd", "bs=16M", "status=none", *words], check=True)

    def save() -> float:
        target.unlink(missing_ok=True)
        return timed(lambda: copy(f"if={source}", f"of={target}", "conv=fsync"))

    def load() -> float:
        return timed(lambda: copy(f"if={target}", "of=/dev/null"))

    save()
    common.serve({"save": save, "load": load})


def act(arguments: argparse.Namespace) -> None:
    """Be a contender."""
    where = pathlib.Path(arguments.folder) / arguments.role
    acts: dict[str, Callable[[], None]] = {
        "sharded": lambda: hpcflow(arguments, where, "sharded"),
        "parallel": lambda: hpcflow(arguments, where, "parallel"),
        "torch": lambda: torch_dcp(arguments, where),
        "tf": lambda: tensorflow(arguments, where),
        "dd": lambda: dd(arguments, where),
    }
    for name, run in (("behind", saving_behind.hpcflow), ("dcp", saving_behind.torch_dcp)):
        given = functools.partial(finite, mebibytes=arguments.mebibytes)
        acts[name] = functools.partial(run, arguments, where, given, VARIABLES)
    acts[arguments.role]()
    if arguments.role in ("torch", "dcp"):
        os._exit(0)  # gloo ends badly when a rank has left


# -- the parent


def contenders(
    arguments: argparse.Namespace, size: int, folder: pathlib.Path, behind: bool = False
) -> list[Contender]:
    """Those that can run on `size` ranks, and save `behind` training or while it waits."""
    port = common.free_ports(1)[0]

    def mine(kind: str, python: str | None, rank: int = 0) -> list[str]:
        options = ["--ranks", size, "--rank", rank, "--port", port, "--folder", folder]
        return role(python, __file__, kind, *options, "--mebibytes", arguments.mebibytes)

    def ranks(name: str, kind: str, python: str | None) -> Contender:
        if size == 1:
            return Contender(name, [mine(kind, python)])
        command, environ = common.ranks(size, mine(kind, python), OMPI_MCA_io="romio341")
        return Contender(name, [command], environ)

    kind = "dcp" if behind else "torch"
    torches = [mine(kind, arguments.torch, rank) for rank in range(size)]
    if behind:
        theirs = peer(saving_behind.DCP, arguments.torch, "--torch", *torches)
        return [ranks(saving_behind.OURS, "behind", None), theirs]
    one_file = peer(FILE, arguments.mpio, "--mpio", [])
    if arguments.mpio:
        one_file = ranks(FILE, "parallel", arguments.mpio)
    found = [ranks(OURS, "sharded", None), one_file, Contender(DD, [mine("dd", None)])]
    found.append(peer(DCP, arguments.torch, "--torch", *torches))
    if size == 1:
        found.append(peer(TF, arguments.tf, "--tf", mine("tf", arguments.tf)))
    return found


def checks_of(cup: Tournament) -> list[dict[str, Any]]:
    """Times, as ratios: less than 1 is faster than the other."""
    checks = saving_behind.checks_of(cup)
    for case, found in cup.figures.items():
        for name in (OURS, FILE):
            if name not in found:
                continue
            checks.append(check(f"{case}: {name}", cup.middle(case, name), "s"))
            of_dd = SAVE_OF_DD if case.startswith("save") else LOAD_OF_DD
            checks.append(check("... by dd", cup.ratio(case, name, DD), at_most=of_dd))
            checks.append(check("... by torch DCP", cup.ratio(case, name, DCP), at_most=1.0))
            if TF in found:
                checks.append(check("... by TF1's Saver", cup.ratio(case, name, TF)))
    return checks


def ranks_of(size: int) -> str:
    return f"{size} rank{'s' if size > 1 else ''}"


def clear(folder: pathlib.Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mebibytes", type=int, default=1024, help="0: saves behind training only")
    parser.add_argument("--behind", type=int, nargs="*", default=[1024, 4096], metavar="MEBIBYTES")
    parser.add_argument("--mpio", metavar="PYTHON", help="a python whose h5py has MPI")
    parser.add_argument("--folder", default="run/bench-checkpoint", help="on the disk to measure")
    for option in ("--rank", "--port"):
        parser.add_argument(option, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    folder = pathlib.Path(arguments.folder).absolute()
    try:
        for size in arguments.ranks:
            one, found = Tournament(arguments.realtime), contenders(arguments, size, folder)
            for other in (FILE, OURS) if arguments.mebibytes else ():  # apart, for their memory
                group = [each for each in found if each.name != other]
                one.play(group, arguments.rounds, arguments.repeats)
            cup.merge(one, f", {ranks_of(size)}")
            clear(folder)
            for mebibytes in arguments.behind:
                mine = argparse.Namespace(**{**vars(arguments), "mebibytes": mebibytes})
                one, group = Tournament(arguments.realtime), contenders(mine, size, folder, True)
                saving_behind.play(one, mine, group, size)
                cup.merge(one, f", {mebibytes} MiB, {ranks_of(size)}")
                clear(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    common.finish(cup.record(checks_of(cup), "s", 1.0), arguments.out)


if __name__ == "__main__":
    main()
