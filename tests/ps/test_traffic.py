"""Bytes of a step: predicted by the plan, counted by channel, and used to place variables."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.report import run_summary, run_tables
from hpcflow.runtime.profile import variable_traffic_counters
from tests.runtime.ranks import run_ranks

STEPS, ROWS, WIDTH = 4, 8, 20


def dense():
    """A small net: all of each variable moves, both ways; large values alone, small in parcels."""
    x = hf.placeholder(hf.float32, [None, WIDTH])
    w = hf.get_variable("w", [WIDTH, 3000])
    b = hf.get_variable("b", [3000])
    c = hf.get_variable("c", [3])
    y = hf.reduce_sum(hf.square(hf.matmul(x, w) + b)) * hf.reduce_sum(c)
    train = hf.train.AdamOptimizer(0.01).minimize(y)
    return train, {x: np.ones((3, WIDTH), "f4")}


def table():
    """Rows of a table, and a dense vector."""
    ids = hf.placeholder(hf.int64, [None])
    t = hf.get_variable("t", [500, WIDTH])
    c = hf.get_variable("c", [WIDTH])
    loss = hf.reduce_sum(hf.nn.embedding_lookup(t, ids) * c)
    return hf.train.AdagradOptimizer(0.1).minimize(loss), {ids: np.arange(ROWS) * 60}


def counts(build, workers=2, servers=2, steps=STEPS, assigns=False, **settings):
    """The summary of a run, and its plan; with `assigns` a variable is assigned after each step."""

    def body(context):
        train, feeds = build()
        session = hf.Session()
        first = hf.get_default_graph().get_collection("trainable_variables")[0]
        assign = first.assign(hf.zeros(first.shape))
        session.run(hf.global_variables_initializer())
        for _ in range(steps):
            session.run(train, feeds)
            if assigns:
                session.run(assign)
        plan = session.plan(train, feeds)
        reports = context.reports()
        return plan, reports and variable_traffic_counters.traffic_summary(reports, servers)

    results = run_ranks(workers + servers, body, ps=servers, **settings)
    return results[0][1], results[0][0]


def of(found, how, way):
    return [row[how][way] for row in found["servers"]]


@pytest.mark.parametrize("shard_bytes", [1 << 20, 100_000])
def test_dense_variables_move_what_was_predicted_to_the_byte(shard_bytes):
    found, plan = counts(dense, shard_bytes=shard_bytes)
    assert found["steps"] == 2 * STEPS
    for way, end in (("sent", "source"), ("received", "dest")):
        assert of(found, "predicted", way) == of(found, "measured", way)
        for server, nbytes in enumerate(of(found, "measured", way)):
            task = f"/job:ps/task:{server}"
            assert nbytes == sum(e.spec.nbytes for e in plan.edges if getattr(e, end) == task)
    sizes = {"w": WIDTH * 3000 * 4, "b": 3000 * 4, "c": 12}
    moved = {name: row["bytes"] for name, row in found["variables"].items()}
    assert moved == {name: 2 * size for name, size in sizes.items()}


def test_steps_that_began_in_vain_are_not_counted():
    """What was pulled ahead and then discarded was sent, but no step of training."""
    found, _ = counts(dense, workers=1, servers=1, assigns=True, prefetch=True)
    assert found["steps"] == STEPS
    assert of(found, "predicted", "received") == of(found, "measured", "received")
    assert of(found, "predicted", "sent") < of(found, "measured", "sent")


@pytest.mark.parametrize("shard_bytes", [1 << 20, 9000])
def test_of_tables_rows_are_measured(shard_bytes):
    found, _ = counts(table, shard_bytes=shard_bytes)
    pieces = 1 if shard_bytes > 9000 else 2
    # ids and rows there and back; of what only the step knows the size, 64 bytes with its sizes
    rows = 2 * ROWS * (8 + 4 * WIDTH)
    moved = found["variables"]["t"]["bytes"]
    assert rows <= moved <= rows + 4 * 64 * pieces
    assert found["variables"]["c"]["bytes"] == 2 * 4 * WIDTH
    assert sum(of(found, "predicted", "sent")) <= sum(of(found, "measured", "sent"))


def test_the_chief_tells_before_the_first_step_what_servers_move(caplog):
    with caplog.at_level(logging.INFO, "hpcflow"):
        counts(dense, workers=2)
    told = [r.getMessage() for r in caplog.records if "of one worker moves" in r.getMessage()]
    assert len(told) == 1
    head, *rows = told[0].splitlines()[1:]
    assert "receives" in head and [row.split()[0] for row in rows] == [
        "/job:ps/task:0",
        "/job:ps/task:1",
    ]


def write(path: Path, variables: dict) -> str:
    path.write_text(json.dumps({"traffic": {"variables": variables}}))
    return str(path)


def test_a_run_places_variables_by_what_another_measured(tmp_path, caplog):
    def body(context):
        train, feeds = dense()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(train, feeds)
        plan = session.plan(train, feeds)
        return {n.name: n.device for p in plan.parts.values() for n in p.nodes.values()}

    # what is smaller moved more: by prediction c would be with b
    given = {"b": {"bytes": 10_000_000, "messages": 2}, "w": {"bytes": 5000, "messages": 2}}
    path = write(tmp_path / "result.json", given)
    with caplog.at_level(logging.INFO, "hpcflow"):
        (found,) = run_ranks(3, body, ps=2, shard_bytes=1 << 20, placement=path)
    assert found["w"] == found["c"] != found["b"]
    (line,) = [r.getMessage() for r in caplog.records if "of one worker moves" in r.getMessage()]
    assert f"as measured in {path} (by prediction, not being there: c)" in line


@pytest.mark.parametrize("content", [None, "no json", "{}", '{"traffic": {"variables": 3}}'])
def test_a_placement_that_cannot_be_read_is_told(tmp_path, content):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(HpcflowError, match=r"placement=.*result\.json: ") as caught:
        run_ranks(3, lambda context: None, ps=2, placement=str(path))
    assert "result.json of a run" in caught.value.hint


def test_a_report_has_the_servers_of_a_run(tmp_path):
    found, _ = counts(dense)
    (tmp_path / "result.json").write_text(json.dumps({"mode": "ps", "traffic": found}))
    shown = run_tables.as_text(run_summary.load([str(tmp_path)]), [])
    row = next(line for line in shown.splitlines() if line.startswith("/job:ps/task:1"))
    numbers = [int(word.replace(",", "")) for word in row.split()[1:]]
    assert numbers[0] == numbers[1] > 0 and numbers[2] == numbers[3] > 0
