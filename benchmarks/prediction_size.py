"""Seconds and memory of `hpcflow predict` for 65,536 ranks of equal and of unlike speeds.

    python benchmarks/prediction_size.py
    python benchmarks/prediction_size.py --layers 100 --classes 1024

A process for each mode of training and number of classes plans a network of dense layers and
replays it on one core. Times are CPU times, so that other jobs of the machine hardly change them.
"""

from __future__ import annotations

import concurrent.futures
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
LIMITS = {64: 1.0, 1024: 60.0}  # CPU seconds: of one replay of few groups, of all for many
MOST_MB = 1000.0
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
    """Predict once, in this process: CPU seconds of a replay and of all, MB of memory."""
    from hpcflow.cli.plan import plans_of
    from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
    from hpcflow.placement.network import Network
    from hpcflow.plan.cost.replay_of_plan import template_of
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
    template = template_of(plan, network)
    begin = time.process_time()
    replay_job(template, network, speeds, replay_settings)
    one = time.process_time() - begin
    predict_step(plan, network, {}, replay_settings, speeds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"replay": one, "all": time.process_time() - one, "MB": memory}


def in_a_process(mode: str, layers: int, classes: int) -> dict[str, float]:
    """Predict in a process of its own. Errors: CalledProcessError if it failed."""
    words = [sys.executable, __file__, "--measure", mode, str(layers), str(classes)]
    environ = {**common.ENVIRON, **common.QUIET, **common.ONE_THREAD}
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--classes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--measure", nargs=3, metavar=("MODE", "LAYERS", "CLASSES"))
    arguments = parser.parse_args()
    if arguments.measure:
        mode, layers, classes = arguments.measure
        print(json.dumps(measured(mode, int(layers), int(classes))))
        return
    os.environ.update(common.ONE_THREAD)
    cup, checks = Tournament(), list[Any]()
    cup.versions["hpcflow"] = common.versions(["numpy"])
    cases = [(mode, classes) for classes in arguments.classes for mode in arguments.modes]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as jobs:
        done = jobs.map(lambda case: in_a_process(case[0], arguments.layers, case[1]), cases)
    for (mode, classes), figures in zip(cases, done, strict=True):
        add_case(cup, checks, f"{mode}, {classes} classes", figures, classes)
    common.finish(cup.record(checks, "s of CPU, or MB", 1.0), arguments.out)


def add_case(
    cup: Tournament, checks: list[Any], case: str, figures: dict[str, float], classes: int
) -> None:
    """Add the figures of a case, and whether they are within the limits."""
    for name, figure in figures.items():
        cup.add(f"{case}: {name}", "hpcflow", figure)
    timed, told = ("replay", "a replay") if classes == min(LIMITS) else ("all", "the prediction")
    value, limit = cup.middle(f"{case}: {timed}", "hpcflow"), LIMITS.get(classes)
    checks.append(check(f"{told}: {case}", value, "s of CPU", at_most=limit))
    most = cup.middle(f"{case}: MB", "hpcflow")
    checks.append(check(f"memory: {case}", most, "MB", at_most=MOST_MB))


if __name__ == "__main__":
    main()
