"""Options of a prediction: the network, topology and storage, and how the job is replayed."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.cli.run import SettingOption, chosen_settings
from hpcflow.errors import LaunchError
from hpcflow.placement.job_replay import JobSettings
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.topology import LATENCIES, MOST_RANKS, RATES, Topology, read_topology
from hpcflow.plan.cost.step_prediction import Storage
from hpcflow.plan.distribution.task_assignment import assign_tasks
from hpcflow.plan.ir.program import Plan
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES, WaitCost, typical_lateness
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.settings import PREFIX

if TYPE_CHECKING:
    from hpcflow.cli.measured_run import MeasuredRun

MOST_GROUPS = 1024  # of --classes: groups of equal ranks
MOST_REPEATS = 10_000
WORKERS = "workers"  # the value of --may-change
BYTE_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTE_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", 1)}
TIME_UNITS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # of a second


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the network and of the file system."""
    parser.add_argument(
        "--bandwidth",
        metavar="RATE",
        help="of a node's network card, each way (12.5GB/s)",
    )
    parser.add_argument(
        "--run-bandwidth", metavar="RATE", help="of the network on which RUN was (--bandwidth)"
    )
    parser.add_argument(
        "--latency", metavar="TIME", help="of a message (5us, or that at which RUN is replayed)"
    )
    parser.add_argument("--memory-bandwidth", metavar="RATE", help="within a node (20GB/s)")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="ranks of a node (1, or RUN's)"
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="cores of a node, with a script (one for each rank)"
    )
    parser.add_argument(
        "--topology", action=SettingOption, metavar="FILE", help="ranks with their speeds, ports "
        "of nodes, uplinks of racks (`hpcflow help placement`), instead of the five options above"
    )  # fmt: skip
    parser.add_argument(
        "--storage", metavar="RATE", help="of the file system from which all ranks read what they "
        "are fed, and to which they save (no limit)"
    )  # fmt: skip
    parser.add_argument(
        "--save-every", type=int, default=0, metavar="STEPS", help="a checkpoint in so many steps, "
        "with --storage (none)"
    )  # fmt: skip


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the replay."""
    parser.add_argument(
        "--noise", type=float, metavar="SIGMA", help="relative spread of a step over ranks and "
        "steps: of the logarithm of its time (0.05, or RUN's)",
    )  # fmt: skip
    parser.add_argument(
        "--classes", type=int, default=64, metavar="N", help="groups of equal ranks (64)"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="replays with different draws (1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (0)")


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a search for the best settings."""
    parser.add_argument(
        "--search",
        action="store_true",
        help="find the best combination of settings that do not change results (auto-tuning), on "
        "as many ranks, with as many workers and within memory_limit",
    )
    parser.add_argument(
        "--max-ranks", type=int, metavar="N", help="with --search: use up to N ranks (--ranks)"
    )
    parser.add_argument(
        "--may-change",
        action="append",
        default=[],
        choices=[WORKERS],
        help="with --search: also try other numbers of workers on as many ranks; they change "
        "results, so samples/s are compared",
    )


def chosen_topology(args: argparse.Namespace) -> Topology | None:
    """The topology that is given, by the option or as the setting.

    Errors: LaunchError if options describe the network, too, or another number of ranks;
    DataError if the file is wrong.
    """
    file = chosen_settings(args).get(f"{PREFIX}TOPOLOGY")
    if not file:
        return None
    names = ("bandwidth", "latency", "memory_bandwidth", "ranks_per_node", "cores")
    given = ["--" + name.replace("_", "-") for name in names if getattr(args, name) is not None]
    if given:
        raise LaunchError(
            f"--topology {file} and {', '.join(given)} both describe the network",
            hint=f"leave out {', '.join(given)}, or --topology",
        )
    topology = read_topology(Path(file))
    if args.ranks not in (None, topology.size):
        raise LaunchError(
            f"--ranks {args.ranks}, but {file} describes {topology.size} ranks",
            hint="leave out --ranks: the ranks of the topology are those of the job",
        )
    return topology


def rank_mapping(args: argparse.Namespace, topology: Topology, plan: Plan) -> RankMapping:
    """The ranks of the plan's job on the topology, with the roles that a run gives them."""
    cluster = plan.cluster
    hosts = [str(node) for node in topology.nodes]
    roles = assign_tasks(hosts, cluster.servers, cluster.tasks_per_replica)
    workers = iter(roles.workers)
    return RankMapping(
        topology,
        tuple(zip(*[workers] * cluster.tasks_per_replica, strict=True)),
        {f"/job:ps/task:{number}": rank for number, rank in enumerate(roles.servers)},
        os.path.abspath(chosen_settings(args)[f"{PREFIX}TOPOLOGY"]),
    )


def chosen_storage(args: argparse.Namespace) -> Storage | None:
    """The file system that the options describe. Errors: LaunchError naming the wrong option."""
    if args.save_every < 0:
        raise LaunchError(f"--save-every {args.save_every}: give a number of steps")
    if args.storage is None:
        if args.save_every:
            raise LaunchError(
                f"--save-every {args.save_every} without the file system that is written to",
                hint="give its bandwidth: --storage 50GB/s",
            )
        return None
    return Storage(_bandwidth("--storage", args.storage), args.save_every)


def chosen_network(args: argparse.Namespace, run: MeasuredRun | None) -> Network:
    """The network that the options describe. Errors: LaunchError that names the wrong option."""
    per_node = args.ranks_per_node or (run.ranks_per_node if run is not None else 1)
    for number in (args.ranks_per_node, args.cores):
        if number is not None and not 1 <= number <= MOST_RANKS:
            raise LaunchError(
                f"--ranks-per-node and --cores are numbers from 1 on, at most {MOST_RANKS:,}"
            )
    if args.cores is not None and run is not None:
        raise LaunchError(
            f"--cores {args.cores} is for scripts: the measured work of the run {args.script} "
            "contains what its ranks lost to each other",
            hint="leave out --cores, or give the script",
        )
    if args.run_bandwidth is not None and run is None:
        raise LaunchError(
            f"--run-bandwidth {args.run_bandwidth} is that of a run, and {args.script} is a script",
            hint="give the folder of a run, or --bandwidth",
        )
    return Network(
        bandwidth=_bandwidth("--bandwidth", _given(args.bandwidth, "12.5GB/s")),
        latency=_latency(_given(args.latency, "5us")),
        ranks_per_node=per_node,
        cores=args.cores or 0,
        memory_bandwidth=_bandwidth("--memory-bandwidth", _given(args.memory_bandwidth, "20GB/s")),
    )


def with_lateness(
    args: argparse.Namespace, network: Network, waits: Iterable[WaitCost]
) -> tuple[Network, str]:
    """The network with the measured lateness of a rank that waits, and a text about it.

    Within a node the median lateness is the latency. Between nodes it is added to the latency,
    unless --latency is given. Nodes with fewer cores than ranks have the policy of shared cores.
    The text is empty without measurements.
    """
    late = typical_lateness(waits, SHARED_CORES if network.slowdown > 1 else OWN_CORE)
    if late is None:
        return network, ""
    between = network.latency + (late.median if args.latency is None else 0.0)
    changed = dataclasses.replace(network, latency=between, memory_latency=late.median)
    low, high = (format_seconds(late.quantile(share)) for share in (0.1, 0.9))
    return changed, f"; a rank that waits has a message after {low} to {high}"


def fitted_network(
    args: argparse.Namespace, run: MeasuredRun, network: Network, replay: JobSettings
) -> tuple[Network, float]:
    """The network with the latency fitted to RUN, unless one is given; the error of predictions.

    The error is that of `MeasuredRun.fit_latency`.
    """
    own = dataclasses.replace(network, ranks_per_node=run.ranks_per_node)
    if args.run_bandwidth is not None:
        rate = _bandwidth("--run-bandwidth", args.run_bandwidth)
        own = dataclasses.replace(own, bandwidth=rate)
    fitted, error = run.fit_latency(own, replay)
    latency = fitted.latency if args.latency is None else network.latency
    return dataclasses.replace(network, latency=latency), error


def replay_settings(args: argparse.Namespace, run: MeasuredRun | None) -> JobSettings:
    """How the job is replayed. Errors: LaunchError that names the wrong option."""
    if not 1 <= args.classes <= MOST_GROUPS:
        raise LaunchError(f"--classes {args.classes}: give 1 to {MOST_GROUPS}")
    if not 1 <= args.repeat <= MOST_REPEATS or args.seed < 0:
        raise LaunchError(f"--repeat is a number from 1 to {MOST_REPEATS:,}, --seed one from 0 on")
    if args.noise is not None and not 0 <= args.noise <= 3:
        raise LaunchError(f"--noise {args.noise}: give 0 to 3")
    usual = JobSettings().sigma if run is None else run.sigma
    sigma = usual if args.noise is None else args.noise
    return JobSettings(sigma=sigma, groups=args.classes, seed=args.seed)


def _bandwidth(option: str, text: str) -> float:
    """Bytes per second of a text such as 25GB/s, 3GiB/s, 100Gb/s (bits) or 2e9."""
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) ?(?:([kKMGT]i?|)(B|b|bit)(?:/s|ps))?", text)
    value = _number(found.group(1)) if found else 0.0
    if found is None or not value > 0:
        raise LaunchError(
            f"{option} {text}: this is no bandwidth", hint="write 25GB/s, or 200Gb/s for bits"
        )
    rate = value * BYTE_UNITS[found.group(2) or ""] / (8 if found.group(3) in ("b", "bit") else 1)
    if not RATES[0] <= rate <= RATES[1]:
        bound = f"less than {RATES[0]:g}" if rate < RATES[0] else f"more than {RATES[1]:g}"
        raise LaunchError(
            f"{option} {text} is {rate:g} bytes per second, {bound}",
            hint="write the unit: 25GB/s, or 200Gb/s for bits",
        )
    return rate


def _given(text: str | None, default: str) -> str:
    """The text of an option, also an empty one, which is an error; the default without it."""
    return default if text is None else text


def _latency(text: str) -> float:
    """Seconds of a text such as 5us."""
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) ?(ns|us|ms|s)", text)
    value = _number(found.group(1)) if found else -1.0
    if found is None or value < 0:
        raise LaunchError(f"--latency {text}: this is no time", hint="write 5us, 1.5us or 2ms")
    seconds = value / TIME_UNITS[found.group(2)]
    if seconds > LATENCIES[1]:
        raise LaunchError(
            f"--latency {text} is more than {LATENCIES[1]:g} s", hint="write 5us, 1.5us or 2ms"
        )
    return seconds


def _number(text: str) -> float:
    """The number; -1 for a text that is none."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if value < 1e30 else -1.0
