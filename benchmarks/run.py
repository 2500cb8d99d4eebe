"""All benchmarks one after the other, then benchmarks/RESULTS.md: what `make bench` does.

    python benchmarks/run.py --torch PYTHON --tf PYTHON --jax PYTHON
    python benchmarks/run.py --only training_step step_profile
    python benchmarks/run.py --short              one repeat each, into run/bench: do all work?

Each writes results/NAME.json as soon as it ends. One that fails keeps its old result, does not stop
the others, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT_S = 5400  # of one benchmark
OTHERS = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "mpio": "h5py with MPI"}
FOLDERS = {
    "graphs": "profiled graphs, as placement.py reads them",
    "training_times": "measured.csv and allreduce-a100, as training_times.py reads them",
}


class Benchmark(NamedTuple):
    """The name of a result, the script and its options, and which other Pythons it can use."""

    name: str
    command: str
    others: Sequence[str] = ()
    as_root: bool = False  # it makes hosts or a SLURM of its own
    on_gpu: bool = False
    short: str = "--rounds 1 --repeats 1"  # options of `--short`
    folder: str = ""  # of FOLDERS, {} in the command: published data, left out without them


ALL = ("torch", "tf", "jax")
PLAN = (
    Benchmark("step_start", "step_start.py --rounds 2", ALL),
    Benchmark("training_step", "training_step.py --rounds 1 --repeats 5", ALL),
    Benchmark("training_step_2", "training_step.py --threads 2 --rounds 1 --repeats 5", ALL),
    Benchmark(
        *("training_step_gpu", "training_step.py --device gpu --rounds 1 --repeats 5"),
        *(("torch", "jax"), False, True),
    ),
    *(
        Benchmark(f"nets2{name}", f"nets2/run.py{options} --rounds 1 --repeats 5", ALL)
        for name, options in (
            ("", ""),
            ("_2", " --threads 2"),
            ("_unknown", " --unknown-batch"),
            ("_unknown_2", " --unknown-batch --threads 2"),
        )
    ),
    Benchmark("step_profile", "step_profile.py --threads 1 2"),
    Benchmark("before_after", "before_after.py"),
    Benchmark("busy_neighbour", "busy_neighbour.py --rounds 2 --repeats 3"),
    Benchmark("tails", "tails.py --rounds 1 --repeats 2", ALL),
    Benchmark("convnets", "convnets.py --batch 2 --rounds 1 --repeats 2", ALL),
    Benchmark("imports", "imports.py --rounds 1", ALL),
    Benchmark("first_step", "first_step.py --repeats 4", ALL),
    Benchmark("startup_files", "startup_files.py"),
    Benchmark("page_cost", "page_cost.py --rounds 1 --repeats 24"),
    Benchmark(
        "compile_cost",
        "compile_cost.py --nets mlp_sgd lenet transformer lstm_full --repeats 2",
        ("torch", "jax"),
    ),
    Benchmark("draws", "draws.py --rounds 1"),
    Benchmark("null_step", "null_step.py --rounds 2", ["tf"]),
    Benchmark("server_training", "server_training.py --rounds 1 --repeats 5", ["tf"]),
    Benchmark("sparse", "sparse.py --rounds 1 --repeats 5", ["tf"]),
    Benchmark("fairness", "fairness.py --update descent --rounds 1 --repeats 5", ["tf"]),
    Benchmark("balance", "balance.py --rounds 1 --repeats 5"),
    Benchmark("placement", "placement.py all --graphs {}", short="--seconds 1", folder="graphs"),
    Benchmark("prediction_size", "prediction_size.py", short="--layers 2"),
    Benchmark("placement_testbed", "placement_testbed.py", as_root=True, short="--quick"),
    Benchmark("rules", "rules.py --rounds 2 --repeats 5"),
    Benchmark("many_workers", "many_workers.py --rounds 2 --repeats 5"),
    Benchmark("growth", "growth.py"),
    Benchmark("ledger", "ledger.py --rounds 2"),
    Benchmark("collective_training", "collective_training.py --rounds 4", ["torch"]),
    Benchmark("allreduce", "allreduce.py --rounds 1", ["torch"]),
    Benchmark("overlap", "overlap.py", as_root=True),
    Benchmark("network_allreduce", "network_allreduce.py", ["torch"], as_root=True),
    Benchmark("network_servers", "network_servers.py", as_root=True),
    Benchmark(
        "checkpoint", "checkpoint.py --behind --rounds 1 --repeats 4", ["torch", "tf", "mpio"]
    ),
    Benchmark(
        "saving_behind",
        "checkpoint.py --mebibytes 0 --behind 256 512 1024 --rounds 2 --repeats 5",
        ["torch"],
    ),
    Benchmark(
        "saving_behind_4gib",
        "checkpoint.py --mebibytes 0 --behind 4096 --rounds 1 --repeats 3",
        ["torch"],
    ),
    Benchmark("reading", "reading.py --rounds 1 --repeats 4"),
    Benchmark("restart", "restart.py"),
    Benchmark("predictions", "predictions.py", as_root=True, short="--quick"),
    Benchmark("predictions_unseen", "predictions.py --unseen", as_root=True, short=""),
    Benchmark("job_times", "job_times.py --repeats 4", as_root=True),
    Benchmark("learned_correction", "learned_correction.py --draws 30", short="--seconds 0.3"),
    Benchmark(
        "training_times",
        "training_times.py --protocol {}/measured.csv --allreduce {}/allreduce-a100",
        short="",
        folder="training_times",
    ),
)


def command(one: Benchmark, arguments: argparse.Namespace, out: pathlib.Path) -> list[str]:
    """The command line of a benchmark, with the Pythons that were given."""
    folder = os.path.abspath(getattr(arguments, one.folder) or "") if one.folder else ""
    script, *options = (word.replace("{}", folder) for word in shlex.split(one.command))
    given = {name: getattr(arguments, name) for name in one.others}
    others = [word for name, path in given.items() if path for word in (f"--{name}", path)]
    short = shlex.split(one.short) if arguments.short else []
    file = os.path.relpath(out / f"{one.name}.json", ROOT)
    return [sys.executable, f"benchmarks/{script}", *options, *short, *others, "--out", file]


def minutes(one: Benchmark) -> float | None:
    """What it took when its result was made; None if that is not known."""
    file = report.RESULTS / f"{one.name}.json"
    spent = json.loads(file.read_text()).get("took_s") if file.exists() else None
    return None if spent is None else spent / 60


def option(name: str) -> str:
    """The option of a folder."""
    return "--" + name.replace("_", "-")


def announce(chosen: Sequence[Benchmark], arguments: argparse.Namespace) -> None:
    """Say what will run, for how long, and without whom."""
    known = {one.name: minutes(one) for one in chosen}
    for one in chosen:
        spent = known[one.name]
        lasts = "?" if spent is None else f"{max(1, round(spent))}"
        print(f"  {one.name:<20}{lasts:>4} min   {one.command}")
    total = sum(spent or 0.0 for spent in known.values())
    unknown = sum(spent is None for spent in known.values())
    more = f", and {unknown} of which it is not known yet" if unknown else ""
    short = " in full, much less with --short" if arguments.short else ""
    print(f"{len(chosen)} benchmarks, about {total:.0f} minutes{short}{more}")
    for name, package in OTHERS.items():
        users = [one.name for one in chosen if name in one.others]
        if users and not getattr(arguments, name):
            print(f"without --{name} PYTHON: {package} is absent from {', '.join(users)}")
    for one in chosen:
        if one.folder and not getattr(arguments, one.folder):
            print(f"without {option(one.folder)} FOLDER: {one.name} is left out")


def ran(one: Benchmark, arguments: argparse.Namespace, out: pathlib.Path) -> str:
    """Run a benchmark; why it failed, "" if it did not."""
    if one.as_root and os.geteuid() != 0:
        return "left out: it needs root"
    if one.folder and not getattr(arguments, one.folder):
        return f"left out: it needs {option(one.folder)} FOLDER"
    if one.on_gpu and not os.path.exists("/dev/nvidia0"):
        return "left out: it needs a GPU"
    limit = ["timeout", "--kill-after=10", str(LIMIT_S)]
    code = subprocess.run([*limit, *command(one, arguments, out)], cwd=ROOT).returncode
    return "" if not code else "it took too long" if code == 124 else f"exit status {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    names = [one.name for one in PLAN]
    for name, package in OTHERS.items():
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"a python that has {package}")
    for name, data in FOLDERS.items():
        parser.add_argument(option(name), metavar="FOLDER", help=f"a folder of {data}")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--short", action="store_true", help="one repeat each, into run/bench")
    arguments = parser.parse_args()
    chosen = [one for one in PLAN if one.name in arguments.only]
    out = ROOT / "run" / "bench" if arguments.short else report.RESULTS
    out.mkdir(parents=True, exist_ok=True)
    announce(chosen, arguments)
    failed = {}
    for i, one in enumerate(chosen, 1):
        print(f"\n{i} of {len(chosen)}, {time.strftime('%H:%M')}: {one.name}", flush=True)
        if why := ran(one, arguments, out):
            failed[one.name] = why
            print(f"  {one.name}: {why}", flush=True)
        elif not arguments.short:
            report.fill(HERE / "RESULTS.md", report.RESULTS, report.block)
    for name, why in failed.items():
        print(f"{name}: {why}", file=sys.stderr)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
