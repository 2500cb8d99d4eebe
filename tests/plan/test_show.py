"""What people see of a plan: golden tables, pictures, JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.listing.plan_diagram import as_dot, as_mermaid
from hpcflow.plan.listing.plan_text import plan_data, plan_text
from hpcflow.platform.quantity_text import format_bytes
from hpcflow.settings import Settings

from .model import REPLICAS, SINGLE, Net, graph, plan_of

ROOT = Path(__file__).parents[2]

GOLDEN_SINGLE = """
plan: mode single, 1 ranks = 1 workers + 0 servers; 1 replica(s) of 1 task(s)
feeds x, y; fetches loss:0

per step of one replica
task                ranks  ops          memory  sends   receives  sums
/job:worker/task:0  1      37 on cpu:0  1620 B  0, 0 B  0, 0 B    0 B

memory of a rank    variables  constants  buffers  messages  sums  and versions <=
/job:worker/task:0  704 B      20 B       896 B    0 B       0 B   0 B

ops  why they are where they are
31   default: the driver
4    constant: with its users
2    fed by the driver

proved: every Send has its Recv, one order of collectives, no deadlock, no race
"""
GOLDEN_REPLICAS = """
plan: mode collective, 4 ranks = 4 workers + 0 servers; 4 replica(s) of 1 task(s)
feeds x, y; fetches loss:0

per step of one replica
task                ranks  ops          memory  sends   receives  sums
/job:worker/task:0  4      39 on cpu:0  2324 B  0, 0 B  0, 0 B    352 B

memory of a rank    variables  constants  buffers  messages  sums   and versions <=
/job:worker/task:0  704 B      20 B       896 B    0 B       704 B  0 B

collective  name               type       on                  ranks  values  bytes a rank
0           replicas/bucket_0  AllReduce  /job:worker/task:0  4      1       192 B
1           replicas/bucket_1  AllReduce  /job:worker/task:0  4      2       160 B

ops  why they are where they are
31   default: the driver
4    constant: with its users
2    fed by the driver

proved: every Send has its Recv, one order of collectives, no deadlock, no race
"""
GOLDEN_SERVERS = """
plan: mode ps, sync=async, 64 ranks = 60 workers + 4 servers; 60 replica(s) of 1 task(s)
feeds x, y; fetches loss:0

per step of one replica; a server does this for each replica's step
task                ranks  ops          memory   sends     receives  sums
/job:worker/task:0  60     58 on cpu:0  1900 B   8, 608 B  8, 352 B  0 B
/job:ps/task:0..1   2      17 on cpu:0  21.3 kB  2, 96 B   2, 160 B  0 B
/job:ps/task:2      1      22 on cpu:0  21.3 kB  2, 96 B   2, 160 B  0 B
/job:ps/task:3      1      17 on cpu:0  15.5 kB  2, 64 B   2, 128 B  0 B

memory of a rank    variables  constants  buffers  messages  sums  and versions <=
/job:worker/task:0  0 B        12 B       1536 B   352 B     0 B   0 B
/job:ps/task:0..2   192 B      8 B        15.4 kB  5760 B    0 B   0 B
/job:ps/task:3      128 B      8 B        11.5 kB  3840 B    0 B   0 B

from                to                  messages  bytes a step  headers
/job:worker/task:0  /job:ps/task:0..2   2         160 B         1
/job:worker/task:0  /job:ps/task:3      2         128 B         1
/job:ps/task:3      /job:worker/task:0  2         64 B          0
/job:ps/task:0..2   /job:worker/task:0  2         96 B          0

value                                from                to                  is          bytes a step
w1/read/part_0/parcel_to_worker_0:0  /job:ps/task:0      /job:worker/task:0  uint8 [96]  96 B
w1/read/part_1/parcel_to_worker_0:0  /job:ps/task:1      /job:worker/task:0  uint8 [96]  96 B
w1/read/part_2/parcel_to_worker_0:0  /job:ps/task:2      /job:worker/task:0  uint8 [96]  96 B
Mul/rows_0_0_2/parcel_to_ps_0:0      /job:worker/task:0  /job:ps/task:0      uint8 [96]  96 B
Mul/rows_0_2_4/parcel_to_ps_1:0      /job:worker/task:0  /job:ps/task:1      uint8 [96]  96 B
Mul/rows_0_4_5/parcel_to_ps_2:0      /job:worker/task:0  /job:ps/task:2      uint8 [96]  96 B
w1/read/part_3/parcel_to_worker_0:0  /job:ps/task:3      /job:worker/task:0  uint8 [64]  64 B
Mul/rows_0_5_6/parcel_to_ps_3:0      /job:worker/task:0  /job:ps/task:3      uint8 [64]  64 B
and 4 tokens of 0 bytes

ops  why they are where they are
29   default: the driver
18   beside the state they use or sum
16   part of a variable: one of the servers with the least to do
10   constant: with its users
2    fed by the driver
1    variable: server with the least to do
1    slot of b1

proved: every Send has its Recv, one order of collectives, no deadlock, no race
"""  # noqa: E501


@pytest.mark.parametrize("cluster, settings, golden", [
    (SINGLE, Settings(), GOLDEN_SINGLE),
    (REPLICAS, Settings(bucket_bytes=128), GOLDEN_REPLICAS),
    (Cluster(60, 4), Settings(shard_bytes=100), GOLDEN_SERVERS),
], ids=["single", "replicas", "servers"])  # fmt: skip
def test_golden_tables(cluster, settings, golden):
    assert plan_text(Net().step(cluster, settings=settings)) == golden[1:]


def test_many_tasks_of_one_replica_are_folded():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        ends = []
        for k in range(1, 64):
            with hf.device(f"/job:worker/task:{k}"):
                ends.append(hf.negative(x))
        total = hf.add_n(ends)
    plan = plan_of(g, [total], {x: (2,)}, Cluster(64, tasks_per_replica=64))
    text = plan_text(plan)
    assert re.search(r"^/job:worker/task:1\.\.63 +63 ", text, re.M)
    assert len(text.splitlines()) < 50
    assert "t0 -> t31" in as_dot(plan) and "32 more tasks" in as_mermaid(plan)


def test_tasks_without_work_are_listed():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        with hf.device("/job:worker/task:1"):
            y = hf.negative(x)
    plan = plan_of(g, [y], {x: (2,)}, Cluster(5, 1, tasks_per_replica=5))
    assert plan_data(plan)["idle"] == [
        *(f"/job:worker/task:{k}" for k in (2, 3, 4)),
        "/job:ps/task:0",
    ]
    said = "nothing to do in this step: /job:worker/task:2..4, /job:ps/task:0"
    assert said in plan_text(plan).splitlines()


def test_doubts_are_printed():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        add = v.assign_add(1.0, name="add")
    text = plan_text(plan_of(g, [v.value(), add]))
    assert "not proved:\n  a read and an update of variable 'v' in no order" in text


def test_json_has_what_the_format_page_says():
    data = json.loads(json.dumps(plan_data(Net().step(Cluster(2, 2)))))
    page = (ROOT / "docs/plan-format.md").read_text(encoding="utf-8")
    assert data["format"] == "hpcflow-plan-1"
    for key in data:
        assert f"`{key}`" in page, key
    task, edge = data["tasks"][0], data["edges"][0]
    for key in [*task, *task["memory"], *task["nodes"][0], *edge, *data["traffic"][0]]:
        assert f"`{key}`" in page, key
    assert sum(e["bytes"] for e in data["edges"]) == sum(
        row["bytes"] - 64 * row["headers"] for row in data["traffic"]
    )
    assert data["tasks"][0]["copies"] == 2 and data["unproved"] == []


def test_every_rule_is_on_the_format_page():
    source = (ROOT / "hpcflow/plan/verification/plan_verifier.py").read_text(encoding="utf-8")
    rules = set(re.findall(r'(?:VerifyError|_rule_violation)\(\s*"([a-z-]+)"', source))
    page = (ROOT / "docs/plan-format.md").read_text(encoding="utf-8")
    assert len(rules) > 15
    for rule in rules:
        assert f"`{rule}`" in page, rule


def test_pictures_have_every_op_and_every_crossing():
    plan = Net().step(Cluster(2, 2))
    dot, mermaid = as_dot(plan), as_mermaid(plan)
    for text in (dot, mermaid):
        assert "w1/ApplyMomentum (ApplyMomentum)" in text and "/job:ps/task:1" in text
        assert "192 B" in text and "Send" not in text
    assert dot.count("{") == dot.count("}") and mermaid.startswith("flowchart LR\n")
    ids = set(re.findall(r"^ +(n\d+) \[label", dot, re.M))
    for a, b in re.findall(r"^ +(n\d+) -> (n\d+)", dot, re.M):
        assert {a, b} <= ids


def test_large_plans_are_drawn_as_tasks():
    net = Net()
    with net.graph.as_default():
        x = net.loss
        for _ in range(500):
            x = hf.tanh(x)
    plan = plan_of(net.graph, [x, net.train], net.feeds(), Cluster(2, 2))
    assert "ops, " in as_dot(plan) and len(as_dot(plan).splitlines()) < 30


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (9999, "9999 B"), (10_000, "10 kB"), (1_500_000, "1.5 MB"), (None, "?"),
    (123_456_789_012, "123 GB"), (999_999, "1 MB"), (2**60, "1.15 EB"),
])  # fmt: skip
def test_bytes_are_readable(count, text):
    assert format_bytes(count) == text
