"""Seconds and memory of `hpcflow predict` for 65,536 ranks, and of `placement=auto` for 64.

    python benchmarks/prediction_size.py
    python benchmarks/prediction_size.py --layers 100 --classes 1024

A process for each mode of training and number of classes plans a network of dense layers and
replays it on one core. Two more place the training step of 10,000 operations on 64 tasks: one chain
of dense layers, and 16 chains. Times are CPU times, so that other jobs of the machine change them
little. Cases with 64 classes and placements run `--rounds` times, interleaved, with the others
once; their medians count.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import common
from common import Tournament, check

RANKS = 65_536
SERVERS = 16
MODES = ("collective", "async", "all", "backup:64", "stale:4")
LIMITS = {64: 1.0, 1024: 60.0}  # CPU seconds: behind planning for few groups, of all for many
MOST_MB = 1000.0
TASKS, PLACED, PLACED_LIMIT = 64, "placement", 10.0  # CPU seconds of a plan
CHAINS = {1: 770, 16: 48}  # number of chains -> dense layers of each
SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

width = 256
x = hf.placeholder(hf.float32, [None, width], name="x")
y = x
for i in range(int(sys.argv[1])):
    y = hf.nn.relu(hf.matmul(y, hf.Variable(np.ones((width, width), "f4"), name=f"w{i}")))
train = hf.train.GradientDescentOptimizer(0.01).minimize(hf.reduce_mean(y))
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    session.run(train, {x: np.zeros((32, width), "f4")})
"""


def measured(mode: str, layers: int, classes: int) -> dict[str, float]:
    """Predict once, in this process: CPU seconds behind planning and of all, MB."""
    from hpcflow.cli.plan import plans_of
    from hpcflow.placement.job_replay import JobSettings, ReplicaClass
    from hpcflow.placement.network import Network
    from hpcflow.plan.cost.step_prediction import predict_step
    from hpcflow.settings import Settings

    settings = Settings() if mode == "collective" else Settings(ps=SERVERS, sync=mode)
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place, "train.py")
        file.write_text(SCRIPT)
        plans, _, _ = plans_of(str(file), [str(layers)], RANKS, settings)
    plan, network = plans[-1][0], Network(ranks_per_node=8)
    replicas = plan.cluster.replicas
    cuts = [replicas * i // classes for i in range(classes + 1)]
    speeds = [ReplicaClass(cuts[i + 1] - cuts[i], 1 + 0.5 * i / classes) for i in range(classes)]
    replay_settings = JobSettings(groups=classes)
    begin = time.process_time()
    predict_step(plan, network, {}, replay_settings, speeds)
    end = time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"prediction": end - begin, "all": end, "MB": memory}


CHAINS_SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

chains, layers, width = int(sys.argv[1]), int(sys.argv[2]), 256
ends, feeds = [], {}
for chain in range(chains):
    y = hf.placeholder(hf.float32, [64, width])
    feeds[y] = np.zeros((64, width), "f4")
    for i in range(layers):
        weight = hf.Variable(hf.zeros([width, width]), name=f"w{chain}_{i}")
        bias = hf.Variable(hf.zeros([width]), name=f"b{chain}_{i}")
        y = hf.nn.relu(hf.nn.bias_add(hf.matmul(y, weight), bias))
    ends.append(y)
loss = hf.reduce_mean(hf.add_n(ends))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.Session() as session:
    session.run(train, feeds)
"""


def placed(chains: int, layers: int) -> dict[str, float]:
    """Plan with `placement=auto`: operations of the step, CPU seconds of all, MB."""
    from hpcflow.cli.plan import plans_of
    from hpcflow.settings import Settings

    begin = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place, "train.py")
        file.write_text(CHAINS_SCRIPT)
        settings = Settings(tasks_per_replica=TASKS, placement="auto")
        plans, _, _ = plans_of(str(file), [str(chains), str(layers)], TASKS, settings)
    end = time.process_time()
    parts = plans[-1][0].parts.values()
    own = [n for part in parts for n in part.nodes.values() if not n.row.message]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"operations": len(own), "all": end - begin, "MB": memory}


def in_a_process(mode: str, layers: int, classes: int) -> dict[str, float]:
    """Predict in a process of its own. Errors: CalledProcessError if it failed."""
    words = [sys.executable, __file__, "--measure", mode, str(layers), str(classes)]
    environ = {**common.ENVIRON, **common.QUIET, **common.ONE_THREAD}
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 100])
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--classes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=MODES)
    parser.add_argument("--measure", nargs=3, metavar=("MODE", "LAYERS", "CLASSES"))
    arguments = parser.parse_args()
    if arguments.measure:
        mode, layers, number = arguments.measure
        figures = placed if mode == PLACED else functools.partial(measured, mode)
        first, second = (number, layers) if mode == PLACED else (layers, number)
        print(json.dumps(figures(int(first), int(second))))
        return
    os.environ.update(common.ONE_THREAD)
    cup, checks = Tournament(), list[Any]()
    cup.versions["hpcflow"] = common.versions(["numpy"])
    cases = [*itertools.product(arguments.modes, arguments.layers, arguments.classes)]
    placements = [(PLACED, layers, chains) for chains, layers in CHAINS.items()]
    often = [case for case in cases if case[2] == min(LIMITS)] + placements
    runs = cases + placements + often * (arguments.rounds - 1)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as jobs:
        done = list(jobs.map(lambda case: in_a_process(*case), runs))
    operations = {}
    for case, figures in zip(runs, done, strict=True):
        operations[case] = figures.pop("operations", 0)
        for name, figure in figures.items():
            cup.add(f"{title(case, operations[case])}: {name}", "hpcflow", figure)
    for case in cases:
        checks += case_checks(cup, title(case), case[2])
    for case in placements:
        told = title(case, operations[case])
        value = cup.middle(f"{told}: all", "hpcflow")
        checks.append(check(f"placement: {told}", value, "s of CPU", at_most=PLACED_LIMIT))
    common.finish(cup.record(checks, "s of CPU, or MB", 1.0), arguments.out)


def title(case: tuple[str, int, int], operations: float = 0) -> str:
    """The name of a case in the results."""
    mode, layers, number = case
    if mode == PLACED:
        return f"{operations:,} operations on {TASKS} tasks, {number} chains"
    return f"{mode}, {layers} layers, {number} classes"


def case_checks(cup: Tournament, case: str, classes: int) -> list[Any]:
    """Whether the medians of a prediction are within the limits."""
    few = classes == min(LIMITS)
    timed, told = ("prediction", "behind planning") if few else ("all", "the prediction")
    value, limit = cup.middle(f"{case}: {timed}", "hpcflow"), LIMITS.get(classes)
    most = cup.middle(f"{case}: MB", "hpcflow")
    return [
        check(f"{told}: {case}", value, "s of CPU", at_most=limit),
        check(f"memory: {case}", most, "MB", at_most=MOST_MB),
    ]


if __name__ == "__main__":
    main()
