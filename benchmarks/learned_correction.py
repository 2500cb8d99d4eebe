"""How much measured runs of other programs correct the predicted time of a training step.

    python benchmarks/learned_correction.py --draws 30 --out FILE

Each network trains on one rank and on two, and leaves its steps in a machine profile; all plans are
predicted as `hpcflow predict` does. For each draw the runs of five networks are known, and the
others are predicted without and with them. The error is the mean of |log(predicted / measured)| of
the median step. Runs of one network count as one program: all of them are known, or none is.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import common
import numpy as np
from common import Tournament, check

HERE = pathlib.Path(__file__).resolve().parent
KNOWN, TARGET_PERCENT, LIMIT_S = 5, 30.0, 120
ONE, TWO = 1, 2  # ranks
# network -> the batch of a rank on one rank and on two; 0: that of the network's file
NETS = {
    "mlp_sgd": (128, 16),
    "lenet": (16, 8),
    "transformer": (4, 2),
    "conv1d": (16, 8),
    "crf": (0, 0),
    "dlrm": (256, 128),
    "gat": (0, 0),
    "lstm_language_model": (8, 4),
    "message_passing": (0, 0),
    "mobilenet": (4, 2),
    "neural_ode": (0, 0),
    "pinn": (0, 0),
    "resnet": (4, 2),
    "squeeze_excitation": (4, 2),
    "stencil": (0, 0),
    "tagger": (8, 4),
    "unet": (2, 1),
}
SCRIPT = """import sys
sys.path.append({folder!r})
import learned_program
learned_program.main()
"""


class Case(NamedTuple):
    """A program on some ranks: its network, script, arguments."""

    net: str
    ranks: int
    script: pathlib.Path
    arguments: list[str]


class Planned(NamedTuple):
    """A case with its plan, the step of its driver, and its row in the machine profile."""

    case: Case
    plan: Any
    step: Any
    row: Any


def cases(folder: pathlib.Path, nets: Sequence[str], seconds: float) -> list[Case]:
    """The programs: a script for each network, whose name tells it in the machine profile."""
    found = []
    for net in nets:
        script = folder / f"{net}.py"
        script.write_text(SCRIPT.format(folder=str(HERE)))
        for ranks, batch in zip((ONE, TWO), NETS[net], strict=True):
            options = ["--net", net, "--batch", str(batch), "--seconds", str(seconds)]
            found.append(Case(net, ranks, script, options))
    return found


def hpcflow(words: Sequence[str], costs: pathlib.Path) -> None:
    """Run a command with one thread a rank. Errors: SystemExit with its output if it fails."""
    environ = {**common.ENVIRON, **common.QUIET, "HPCFLOW_THREADS": "1"}
    environ["HPCFLOW_COST_CACHE"] = str(costs)
    command = [sys.executable, "-m", "hpcflow", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")


def measure(chosen: Sequence[Case], folder: pathlib.Path, seconds: float) -> None:
    """Calibrate the machine profile in `folder`, and let all cases add their steps to it.

    What is in the folder already is not measured again.
    """
    if not (folder / "costs").exists():
        hpcflow(["costs", "--calibrate", "--seconds", str(seconds)], folder / "costs")
    for case in chosen:
        ranks = ["-n", str(case.ranks)] if case.ranks > 1 else []
        run = folder / f"{case.net}-{case.ranks}"
        if (run / "result.json").exists():
            continue
        words = ["run", *ranks, "--run-dir", str(run), str(case.script), *case.arguments]
        hpcflow(words, folder / "costs")
        print(f"{case.net} ran on {case.ranks}", file=sys.stderr, flush=True)


def planned(chosen: Sequence[Case], rows: Sequence[Any]) -> list[Planned]:
    """The cases with their plans and rows.

    Errors: SystemExit for a run that left no row.
    """
    from hpcflow.cli.plan import plans_of
    from hpcflow.graph.graph import Graph
    from hpcflow.plan.cost.step_features import step_features
    from hpcflow.runtime.step.lowered_partition import lower_partition
    from hpcflow.settings import Settings

    by_run, found = {(row.script, row.key.ranks): row for row in rows}, []
    for case in chosen:
        with Graph().as_default():
            settings = Settings.from_environ()
            plans, devices, _ = plans_of(str(case.script), case.arguments, case.ranks, settings)
        plan = plans[-1][0]
        step = step_features(plan, lower_partition(plan.parts[plan.driver], devices, settings))
        row = by_run.get((case.script.name, case.ranks))
        if row is None:
            raise SystemExit(f"{case.net} on {case.ranks} ranks: no row of this run")
        if row.features != step:
            print(f"{case.net} on {case.ranks} ran other operations than planned", file=sys.stderr)
        found.append(Planned(case, plan, step, row))
    return found


def step_seconds(one: Planned, known: Any) -> float:
    """The median step that is predicted with a machine profile; uncorrected without rows."""
    from hpcflow.cli.job_predictor import operation_seconds
    from hpcflow.placement.job_replay import JobSettings
    from hpcflow.placement.network import Network
    from hpcflow.plan.cost import corrected_times
    from hpcflow.plan.cost.step_prediction import predict_step

    plain = operation_seconds(known.operations, 1)[0]
    on_node = one.case.ranks
    seconds = corrected_times.corrected_times(one.plan, one.step, known, plain, 1, on_node).seconds
    network = Network(12.5e9, 5e-6, one.case.ranks, 0, 20e9)
    return predict_step(one.plan, network, {}, JobSettings(), seconds=seconds).median


def error(found: Sequence[Planned], predicted: Sequence[float]) -> float:
    pairs = zip(found, predicted, strict=True)
    return float(np.mean([abs(math.log(p / one.row.step.median)) for one, p in pairs]))


def compared(
    cup: Tournament, name: str, all_of: Sequence[Planned], profile: Any, draws: int
) -> Any:
    """The errors of all draws without and with the known runs; returns the reductions."""
    bare = dataclasses.replace(profile, steps=())
    uncorrected = {id(one): step_seconds(one, bare) for one in all_of}
    nets, rng = sorted({one.case.net for one in all_of}), np.random.default_rng(1)
    reductions = []
    for _ in range(draws):
        known = set(rng.choice(nets, KNOWN, replace=False))
        rows = tuple(one.row for one in all_of if one.case.net in known)
        others = [one for one in all_of if one.case.net not in known]
        learned = dataclasses.replace(profile, steps=rows)
        before = error(others, [uncorrected[id(one)] for one in others])
        after = error(others, [step_seconds(one, learned) for one in others])
        cup.add(f"error, {name}", "uncorrected", before)
        cup.add(f"error, {name}", "corrected", after)
        reductions.append(100 * (1 - after / before))
    return np.array(reductions)


def checks_of(name: str, found: np.ndarray) -> list[dict[str, Any]]:
    low, high = (float(np.percentile(found, share)) for share in (10, 90))
    return [
        check(f"{name}: mean reduction of the error", float(found.mean()), "%",
              at_least=TARGET_PERCENT),
        check("... 10th percentile of the draws", low, "%"),
        check("... 90th percentile of the draws", high, "%"),
    ]  # fmt: skip


def shown(found: Sequence[Planned], profile: Any) -> None:
    """Print the measured and the uncorrected step of each case."""
    bare = dataclasses.replace(profile, steps=())
    for one in found:
        work, step = (1e3 * part.median for part in (one.row.work, one.row.step))
        predicted = 1e3 * step_seconds(one, bare)
        case = f"{one.case.net}, {one.case.ranks}"
        print(f"{case:<24} work {work:8.3f} ms, step {step:8.3f}, predicted {predicted:8.3f}",
              file=sys.stderr)  # fmt: skip


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(NETS), choices=NETS, metavar="NET")
    parser.add_argument("--draws", type=int, default=30, help="of five known networks")
    parser.add_argument("--seconds", type=float, default=1.2, help="of the steps of a run, about")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the runs, and use those there")
    arguments = parser.parse_args()
    if len(arguments.only) <= KNOWN:
        parser.error(f"--only: give more than {KNOWN} networks")
    os.environ["HPCFLOW_THREADS"] = "1"
    cup = Tournament(arguments.realtime)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        checks = played(cup, folder, arguments)
    common.finish(cup.record(checks, "", 1.0), arguments.out)


def played(cup: Tournament, folder: pathlib.Path, arguments: argparse.Namespace) -> list[Any]:
    """Measure, unless the folder has a profile, and compare."""
    from hpcflow.kernels.machine_facts import own_profile_file

    folder.mkdir(exist_ok=True)
    chosen = cases(folder, arguments.only, arguments.seconds)
    measure(chosen, folder, 10 * min(1.0, arguments.seconds))
    file = own_profile_file(str(folder / "costs"))
    assert file is not None
    profile = file.read()
    found = planned(chosen, profile.steps)
    shown(found, profile)
    cup.versions["hpcflow"] = common.versions(["numpy"])
    checks = []
    constants = dataclasses.replace(profile, operations=())
    for name, known in (("calibrated machine", profile), ("cost model", constants)):
        checks += checks_of(name, compared(cup, name, found, known, arguments.draws))
    return checks


if __name__ == "__main__":
    main()
