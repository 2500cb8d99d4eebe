"""Rows of tables in step templates: bytes by the rows that a lookup reads and the parts' rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.cli.plan import plans_of
from hpcflow.placement.network import Network
from hpcflow.plan.cost.replay_of_plan import template_of
from hpcflow.plan.ir.program import Plan
from hpcflow.settings import Settings

SCRIPT = """
import sys
import hpcflow as hf

ids = hf.placeholder(hf.int32, [16, 24])
table = hf.get_variable("table", [int(sys.argv[1]), 64])
loss = hf.reduce_mean(hf.square(hf.nn.embedding_lookup(table, ids)))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.Session() as session:
    session.run(train, {ids: [[0] * 24] * 16})
"""
IDS, ROW, NUMBER, HEADER = 16 * 24, 64 * 4, 4, 64  # bytes of a row, of its number, of a header


def planned(tmp_path: Path, rows: int, servers: int, shard_bytes: int, sync: str) -> Plan:
    path = tmp_path / "table.py"
    path.write_text(SCRIPT)
    settings = Settings(ps=servers, shard_bytes=shard_bytes, sync=sync)
    with hf.Graph().as_default():
        plans, _, code = plans_of(str(path), [str(rows)], 2 + servers, settings)
    assert code == 0
    return plans[-1][0]


def moved_bytes(plan: Plan) -> dict[tuple[str, str], float]:
    """The bytes between the worker and each server, by (sender, receiver)."""
    moved: dict[tuple[str, str], float] = {}
    for task in template_of(plan, Network()).tasks:
        if task.to and "worker" in task.rank + task.to:
            key = task.rank, task.to
            moved[key] = moved.get(key, 0.0) + task.nbytes
    return moved


def rows_of_parts(rows: int, parts: int) -> list[int]:
    """The sizes of as equal parts as possible, the larger ones first."""
    return [rows // parts + (i < rows % parts) for i in range(parts)]


@pytest.mark.parametrize("sync", ["async", "all"])
@pytest.mark.parametrize(("rows", "servers"), [(4096, 2), (1000, 3)])
def test_parts_of_a_table_move_their_share_of_the_rows(tmp_path, sync, rows, servers) -> None:
    """Numbers go to the servers, rows come back, and gradients with their numbers go there."""
    moved = moved_bytes(planned(tmp_path, rows, servers, rows * ROW // servers + ROW, sync))
    there = sorted(v for (sender, _), v in moved.items() if "worker" in sender)
    back = sorted(v for (sender, _), v in moved.items() if "ps" in sender)
    shares = sorted(size / rows for size in rows_of_parts(rows, servers))
    read = [share * IDS for share in shares]
    assert back == pytest.approx([count * ROW for count in read])
    expected = [count * (NUMBER + ROW + NUMBER) + HEADER for count in read]
    assert there == pytest.approx(expected, abs=16)  # 16: the share of the batch, and the like


def test_a_part_has_no_more_different_rows_than_it_holds(tmp_path) -> None:
    """384 numbers of a table of 100 rows: 192 rows are read of each part, 50 gradients go back."""
    moved = moved_bytes(planned(tmp_path, 100, 2, 50 * ROW, "async"))
    for server in ("/job:ps/task:0", "/job:ps/task:1"):
        assert moved[server, "/job:worker/task:0"] == pytest.approx(IDS / 2 * ROW)
        expected = IDS / 2 * NUMBER + 50 * (ROW + NUMBER) + HEADER
        assert moved["/job:worker/task:0", server] == pytest.approx(expected, abs=16)


def test_different_rows_of_a_whole_table_have_bytes_in_a_round_too(tmp_path) -> None:
    plan = planned(tmp_path, 4096, 1, 1 << 30, "all")
    known = sum(edge.spec.nbytes for edge in plan.edges if edge.spec.sized)
    assert not all(edge.spec.sized for edge in plan.edges)
    moved = sum(moved_bytes(plan).values())
    assert moved - known - HEADER == pytest.approx(IDS * (ROW + NUMBER))
