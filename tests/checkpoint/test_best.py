"""The best checkpoints stay beside the newest; others' values are where variables begin."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.cli.main import main
from hpcflow.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

LOSSES = (0.5, 0.2, 0.9, math.nan, 0.2, 0.7, None, 0.4)


def names(where) -> list[str]:
    return sorted(p.name for p in where.iterdir() if p.name not in ("latest", "starts.json"))


@pytest.mark.parametrize(
    "mode, kept",
    [("min", {1: 0.2, 4: 0.2}), ("max", {2: 0.9, 5: 0.7})],
)
@pytest.mark.parametrize("places", [dict(ranks=1), dict(ranks=3, ps=1)], ids=["alone", "servers"])
def test_the_best_are_kept_beside_the_newest(tmp_path, mode, kept, places, capsys):
    """The oracle is `sorted` over the finite losses."""
    finite = {i: v for i, v in enumerate(LOSSES) if v is not None and math.isfinite(v)}
    assert (
        dict(sorted(finite.items(), key=lambda x: x[1] * (1 if mode == "min" else -1))[:2]) == kept
    )

    def body(context):
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        saver = hf.train.Saver([v], max_to_keep=1, keep_best=("loss", mode, 2), form="sharded")
        for step, loss in enumerate(LOSSES):
            # only the chief's value counts: others may have seen other samples
            mine = None if loss is None else {"loss": loss if context.is_chief else 0.0, "other": 1}
            saver.save(session, tmp_path, step, metrics=mine)

    places = dict(places)
    run_ranks(places.pop("ranks"), body, **places)
    steps = {*kept, len(LOSSES) - 1}
    assert names(tmp_path) == sorted(f"step-{step}" for step in steps)
    best = hf.train.best_checkpoint(tmp_path)
    assert best == tmp_path / f"step-{next(iter(kept))}"
    assert SavedCheckpoint(best).facts["metrics"] == {"loss": kept[next(iter(kept))], "other": 1}
    assert main(["inspect", str(best)]) == 0
    assert f"metrics  loss {kept[next(iter(kept))]}, other 1.0" in capsys.readouterr().out
    assert hf.train.best_checkpoint(tmp_path, "other") is not None
    assert hf.train.best_checkpoint(tmp_path, "nothing") is None


@pytest.mark.slow
def test_a_training_session_keeps_the_best_also_of_the_runs_before(tmp_path):
    def body(context, losses, resume):
        features, labels = data(24)
        x, y, _, step, _ = net()
        dataset = hf.data.Dataset({x: features, y: labels}, batch=8, context=context)
        kept = dict(checkpoints=tmp_path, save_every=100, max_to_keep=1, form="sharded")
        with hf.train.TrainingSession(
            context=context, resume=resume, keep_best=("loss", "min", 1), **kept
        ) as session:
            for value, batch in zip(losses, dataset.epochs(9), strict=False):
                session.step(step, batch)
                session.save(metrics={"loss": value})

    run_ranks(2, lambda c: body(c, [3.0, 1.0, 2.0], False))
    assert names(tmp_path) == ["step-2", "step-3"]
    run_ranks(2, lambda c: body(c, [5.0, 4.0], True))
    assert names(tmp_path) == ["step-2", "step-5"]
    assert hf.train.best_checkpoint(tmp_path).name == "step-2"


@pytest.mark.parametrize(
    "given",
    ["loss", ("loss", "least", 1), ("loss", "min", 0), ("loss", "min", True), (1, "min", 2)],
)
def test_a_policy_that_says_nothing_is_refused(given):
    with hf.Graph().as_default(), pytest.raises(CheckpointError, match="is not valid"):
        hf.train.Saver([hf.Variable(1.0)], keep_best=given)


def test_metrics_that_are_none_are_refused(tmp_path):
    def body(context):
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        session = hf.Session(context=context)
        session.run(v.initializer)
        saver = hf.train.Saver([v], keep_best=("loss", "min", 1))
        with pytest.raises(CheckpointError, match="'loss', but the metrics are 'accuracy'"):
            saver.save(session, tmp_path, 1, metrics={"accuracy": 1.0})
        with pytest.raises(CheckpointError, match="not a number"):
            saver.save(session, tmp_path, 1, metrics={"loss": v.value()})

    run_ranks(1, body)
    assert hf.train.best_checkpoint(tmp_path) is None


def test_where_nothing_says_what_is_best(tmp_path):
    pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="names a metric"):
        hf.train.best_checkpoint(tmp_path)
    assert hf.train.best_checkpoint(tmp_path, "loss") is None


# -- where variables begin

ROWS = 400


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "encoder/w": rng.standard_normal((ROWS, 5)).astype(np.float32),
        "encoder/deep/b": rng.standard_normal(5).astype(np.float32),
        "encoder/n": np.array(7, np.int64),
        "head/w": rng.standard_normal((5, 2)).astype(np.float32),
        "top": rng.standard_normal(4).astype(np.float32),
    }


def pretrained(where):
    def body(context):
        made = {name: hf.Variable(value, name=name) for name, value in values().items()}
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        return Path(hf.train.Saver(made, form="sharded").save(session, where, 3))

    return run_ranks(2, body)[0]


def mine(prefix: str, names: tuple[str, ...]) -> dict[str, hf.Variable]:
    zeros = {name: np.zeros_like(value) for name, value in values().items()}
    return {name: hf.Variable(zeros[name], name=prefix + name) for name in names}


ENCODER = ("encoder/w", "encoder/deep/b", "encoder/n")
PLACES = {
    "alone": dict(ranks=1),
    "sums": dict(ranks=3),
    "servers": dict(ranks=4, ps=2),
    "pieces": dict(ranks=4, ps=2, shard_bytes=2048),
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("training", [False, True], ids=["session", "training session"])
def test_variables_begin_with_a_checkpoints_values(tmp_path, places, training):
    pretrained(tmp_path)
    places = dict(places)

    def body(context):
        made = mine("model/", ENCODER)
        own = hf.Variable(np.full(3, 9, np.float32), name="model/own/w")
        hf.train.init_from_checkpoint(str(tmp_path), {"encoder/": "model/encoder/"})
        if training:
            session = hf.train.TrainingSession(context=context)
        else:
            session = hf.Session(context=context)
            session.run(hf.global_variables_initializer())
        return session.run({**made, "own": own})

    for found in run_ranks(places.pop("ranks"), body, **places):
        np.testing.assert_array_equal(found.pop("own"), np.full(3, 9))
        assert set(found) == set(ENCODER)
        for name, value in found.items():
            assert value.dtype == values()[name].dtype
            np.testing.assert_array_equal(value, values()[name])


def test_a_server_reads_the_rows_of_its_own_piece_alone(tmp_path, monkeypatch):
    pretrained(tmp_path)
    read, read_checked = [], SavedCheckpoint.read_checked

    def noted(self, name, start, stop, out):
        read.append((name, start, stop))
        read_checked(self, name, start, stop, out)

    monkeypatch.setattr(SavedCheckpoint, "read_checked", noted)

    def body(context):
        mine("", ("encoder/w",))
        hf.train.init_from_checkpoint(tmp_path, {"/": "/"})
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())

    run_ranks(4, body, ps=2, shard_bytes=2048)
    rows = sorted((start, stop) for _, start, stop in read)
    assert len(rows) > 1 and rows[0][0] == 0 and rows[-1][1] == ROWS
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(rows))


@pytest.mark.parametrize(
    "case",
    ["root to scope", "scope to root", "one by name", "one itself", "from the step"],
)
def test_the_forms_of_an_assignment_map(tmp_path, case):
    path = pretrained(tmp_path)

    def body(context):
        if case == "root to scope":
            made = mine("copy/", tuple(values()))
            hf.train.init_from_checkpoint(tmp_path, {"/": "copy/"})
        elif case == "scope to root":
            made = {"head/w": hf.Variable(np.zeros((5, 2), np.float32), name="w")}
            hf.train.init_from_checkpoint(tmp_path, {"head/": "/"})
        else:
            made = {"top": hf.Variable(np.zeros(4, np.float32), name="bottom")}
            given = made["top"] if case == "one itself" else "bottom"
            source = path if case == "from the step" else tmp_path
            hf.train.init_from_checkpoint(source, {"top": given})
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        return session.run(made)

    for name, value in run_ranks(1, body)[0].items():
        np.testing.assert_array_equal(value, values()[name])


def test_what_does_not_fit_is_told_when_the_graph_is_made(tmp_path):
    pretrained(tmp_path)
    with hf.Graph().as_default():
        hf.Variable(np.zeros((2, 2), np.float32), name="a/w")
        hf.Variable(np.zeros(4, np.float64), name="top")
        begin = hf.train.init_from_checkpoint
        with pytest.raises(CheckpointMismatchError, match=r"in the checkpoint float32\[5, 2\]"):
            begin(tmp_path, {"head/": "a/"})
        with pytest.raises(CheckpointMismatchError, match="in the checkpoint float32"):
            begin(tmp_path, {"top": "top"})
        with pytest.raises(CheckpointMismatchError, match="not in the checkpoint"):
            begin(tmp_path, {"nowhere/": "a/"})
        with pytest.raises(CheckpointError, match="no variables in the scope 'b/'"):
            begin(tmp_path, {"head/": "b/"})
        with pytest.raises(CheckpointError, match="no variable 'b'"):
            begin(tmp_path, {"head/": "b"})
        with pytest.raises(CheckpointError, match="from 'head/w' and from 'top'"):
            begin(tmp_path, {"head/w": "a/w", "top": "a/w"})
        with pytest.raises(CheckpointError, match="neither a variable nor a name"):
            begin(tmp_path, {"top": 3})
        for path in (tmp_path / "nothing", tmp_path / "step-3" / "more"):
            with pytest.raises(CheckpointError, match="no checkpoint"):
                begin(path, {"/": "/"})


@pytest.mark.parametrize("places", [dict(ranks=1), dict(ranks=3, ps=1)], ids=["alone", "servers"])
def test_damaged_bytes_never_become_values(tmp_path, places):
    path = pretrained(tmp_path)
    saved = SavedCheckpoint(path)
    record, slab = next(
        (r, s) for r in saved.files for s in r["slabs"] if s["name"] == "encoder/deep/b"
    )
    with open(path / record["file"], "r+b") as file:
        file.seek(slab["offset"])
        file.write(b"\x12\x34")
    places = dict(places)

    def body(context, scope):
        made = mine("", ("encoder/w", "encoder/deep/b", "top"))
        hf.train.init_from_checkpoint(tmp_path, {scope: scope})
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        return session.run(made["top"])

    ranks = places.pop("ranks")
    with pytest.raises(CheckpointCorruptError, match="encoder/deep/b") as caught:
        run_ranks(ranks, lambda c: body(c, "encoder/deep/"), **places)
    assert record["file"] in str(caught.value)
    np.testing.assert_array_equal(
        run_ranks(1, lambda c: body(c, "top"))[0], values()["top"]
    )  # what is good is good


def test_a_checkpoint_read_by_itself(tmp_path):
    path = pretrained(tmp_path)
    expected = values()
    assert hf.train.list_variables(tmp_path) == sorted(
        (n, list(v.shape)) for n, v in expected.items()
    )
    np.testing.assert_array_equal(hf.train.load_variable(path, "encoder/w"), expected["encoder/w"])
    reader = hf.train.load_checkpoint(tmp_path)
    assert reader.has_tensor("top") and not reader.has_tensor("bottom")
    assert reader.get_variable_to_shape_map()["encoder/w"] == [ROWS, 5]
    assert reader.get_variable_to_dtype_map()["encoder/n"] == np.int64
    with pytest.raises(CheckpointError, match="has no 'bottom'"):
        reader.get_tensor("bottom")
    part = next(path.glob("part-*"))
    os.truncate(part, part.stat().st_size - 1)
    gone = [
        s["name"] for r in SavedCheckpoint(path).files if r["file"] == part.name for s in r["slabs"]
    ]
    with pytest.raises(CheckpointCorruptError, match=part.name):
        hf.train.load_variable(path, gone[0])
    assert len(checkpoint_directory.find_checkpoints(tmp_path)) == 1
