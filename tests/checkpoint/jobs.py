"""A small training job for tests of checkpoints, on ranks that are threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hpcflow as hf
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

SAMPLES, BATCH = 24, 8


def train(
    context: Any,
    epochs: int,
    folder: Path | None = None,
    stop_at: int | None = None,
    cut: bool = False,
    noise: bool = False,
    seed: int = 3,
    **options: Any,
) -> dict[str, Any]:
    """Train, saving every step; `stop_at` steps later leave without having waited or saved.

    What the worker did: its weights, the samples it drew, where it began.
    """
    features, labels = data(SAMPLES)
    x, y, loss, step, variables = net(hf.train.AdamOptimizer(0.01), cut)
    kept = hf.reduce_sum(hf.nn.dropout(x, 0.5) * x) if noise else loss
    extra = hf.stack([hf.random_normal([]), hf.replica_sum(kept)]) if noise else loss
    dataset = hf.data.Dataset({x: features, y: labels}, batch=BATCH, seed=seed, context=context)
    session = hf.train.TrainingSession(
        context=context, checkpoints=folder, **{"save_every": 1, **options}
    )
    drawn: list[int] = []
    extras = []
    for taken, batch in enumerate(dataset.epochs(epochs)):
        if taken == stop_at:
            break
        _, _, value = session.step([step, loss, extra], batch)
        extras.append(np.array(value))
        drawn += batch.indices.tolist()
    else:
        session.wait()
    keeper = session._checkpoints
    return {
        "weights": [np.array(w) for w in session.run(variables)],
        "all": [np.array(w) for w in session.run(session.graph.get_collection("variables"))]
        if context.cluster.mode != "ps"
        else [],
        "drawn": drawn,
        "extras": extras,
        "began": keeper.first_step if keeper else 0,
        "samples": keeper.first_samples if keeper else 0,
    }


DTYPES = (
    *("float16", "float32", "float64", "complex64", "int8", "int32", "int64", "uint16", "bool"),
    *("int16", "uint8", "uint32", "uint64", "complex128"),
)


def variables(seed: int = 0, rows: int = 300) -> dict[str, hf.Variable]:
    """Variables of many dtypes and shapes, with values that depend on `seed`."""
    rng = np.random.default_rng(seed)
    made = {}
    for i, dtype in enumerate(DTYPES):
        for shape in ((), (7,), (5, 3), (rows, 2 + i, 4)):
            value = np.abs(rng.standard_normal(shape) * 50).astype(dtype)
            name = f"{dtype}/v{len(shape)}"
            made[name] = hf.Variable(value, name=name, trainable=False)
    made["float32/v2/slot"] = hf.Variable(np.ones((5, 3), "float32"), name="float32/v2/slot")
    made["empty"] = hf.Variable(np.zeros((0, 3), "float32"), name="empty")
    return made


def save_some(folder: Path, step: int, ranks: int = 3, seed: int = 0, **options: Any) -> dict:
    """Save `variables(seed)` from several ranks; their values."""
    places = {k: options.pop(k) for k in ("ps", "tasks_per_replica", "shard_bytes") if k in options}
    rows = options.pop("rows", 300)
    options.setdefault("form", "sharded")  # by "auto" it depends on h5py

    def body(context: Any) -> dict:
        made = variables(seed, rows)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver(made, **options).save(session, folder, step)
        return session.run(made)

    return run_ranks(ranks, body, **places)[0]


def load_some(
    path: Path, ranks: int = 2, rows: int = 300, names: Any = None, **places: Any
) -> dict:
    """The values of the variables, restored over others on several ranks, as the last has them.

    `names` are some of them.
    """

    def body(context: Any) -> dict:
        made = {k: v for k, v in variables(99, rows).items() if names is None or k in names}
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        hf.train.Saver(made).restore(session, path)
        return session.run(made)

    return run_ranks(ranks, body, **places)[-1]


def equal(mine: dict, theirs: dict) -> bool:
    """Whether two sets of values are the same, bit for bit."""
    return mine.keys() == theirs.keys() and all(
        mine[k].dtype == theirs[k].dtype and mine[k].tobytes() == theirs[k].tobytes() for k in mine
    )


def run(ranks: int, epochs: int, folder: Path | None = None, **options: Any) -> list[dict]:
    """The job on `ranks` ranks; the results of those that run the script."""
    settings = ("ps", "tasks_per_replica", "shard_bytes", "save", "random_seed")
    places = {k: options.pop(k) for k in settings if k in options}
    return run_ranks(ranks, lambda c: train(c, epochs, folder, **options), **places)
