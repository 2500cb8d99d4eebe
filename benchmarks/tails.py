"""How steady a step is: the median, p99 and p99.9 of training and of inference, alone and crowded.

    python benchmarks/tails.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE

Training is a step of the MLP of benchmarks/nets with momentum, inference the same network on one
row, fed and fetched as NumPy arrays. Every call is timed; a figure is a percentile of the calls of
one repeat. Crowded: beside one busy process for each core, at the same priority.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import numpy as np
from common import Repeat, Tournament
from nets import contest, spec
from nets.contest import OURS

SHARES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
CALLS = {"inference": 3000, "training": 1000}
NET = "mlp_sgd"
Infer = Callable[[np.ndarray], Any]


def of_hpcflow(weights: dict[str, np.ndarray]) -> Infer:
    import hpcflow as hf

    x = hf.placeholder(hf.float32, [None, spec.MLP["sizes"][0]])
    out, v = x, {name: hf.Variable(value) for name, value in weights.items()}
    for i in range(3):
        out = hf.matmul(hf.nn.relu(out) if i else out, v[f"w{i}"]) + v[f"b{i}"]
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    return session.make_callable(out, [x])


def of_torch(weights: dict[str, np.ndarray]) -> Infer:
    import torch

    v = {name: torch.from_numpy(value) for name, value in weights.items()}

    def infer(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            out = torch.from_numpy(rows)
            for i in range(3):
                out = torch.addmm(v[f"b{i}"], torch.relu(out) if i else out, v[f"w{i}"])
            return out.numpy()

    return infer


def of_tensorflow(weights: dict[str, np.ndarray]) -> Infer:
    import tensorflow as tf
    from nets.of_tensorflow import session_of_threads

    t1 = tf.compat.v1
    t1.disable_eager_execution()
    x = t1.placeholder(tf.float32, [None, spec.MLP["sizes"][0]])
    out, v = x, {name: t1.Variable(value) for name, value in weights.items()}
    for i in range(3):
        out = tf.matmul(tf.nn.relu(out) if i else out, v[f"w{i}"]) + v[f"b{i}"]
    session = session_of_threads()
    session.run(t1.global_variables_initializer())
    return session.make_callable(out, [x])


def of_jax(weights: dict[str, np.ndarray]) -> Infer:
    import jax
    from nets.of_jax import limit_threads

    limit_threads()

    @jax.jit
    def forward(v: Any, out: Any) -> Any:
        for i in range(3):
            out = (jax.nn.relu(out) if i else out) @ v[f"w{i}"] + v[f"b{i}"]
        return out

    v = jax.device_put(weights)
    return lambda rows: np.asarray(forward(v, rows))


MAKERS = {"of_hpcflow": of_hpcflow, "of_torch": of_torch} | {
    "of_tensorflow": of_tensorflow,
    "of_jax": of_jax,
}


def times(call: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each of `calls` calls."""
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def cases(kind: str, call: Callable[[], object]) -> dict[str, Repeat]:
    """The first, by name, times all calls of a repeat; the others tell more of the same calls."""
    last: list[float] = []

    def figure(name: str) -> float:
        if name == "p50":
            last[:] = times(call, CALLS[kind])
        return float(np.percentile(last, SHARES[name]))

    return {f"{kind} {name}": lambda name=name: figure(name) for name in SHARES}


def act(of: str) -> None:
    """Be the process of one contender."""
    module, mode, kind = of.split(":")
    if kind == "training":
        call: Callable[[], object] = importlib.import_module(f"nets.{module}").step(NET, mode)
    else:
        infer = MAKERS[module](spec.weights(NET))
        rows = np.random.RandomState(0).standard_normal((1, spec.MLP["sizes"][0])).astype("f4")
        call = lambda: infer(rows)  # noqa: E731
    times(call, 20)
    common.serve(cases(kind, call), contest.packages(module))


@contextlib.contextmanager
def crowd() -> Iterator[None]:
    """Inside, a busy process for each core."""
    busy = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(busy) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    whole = Tournament()
    for kind in CALLS:
        made = contest.contenders(__file__, kind, arguments, contest.WITHOUT_COMPILERS)
        for suffix, around in ((", alone", contextlib.nullcontext), (", crowded", crowd)):
            cup = Tournament()
            with around():
                cup.play(made, arguments.rounds, arguments.repeats)
            whole.merge(cup, suffix)
    checks = [whole.by_best(case, OURS) for case in whole.figures]
    common.finish(whole.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
