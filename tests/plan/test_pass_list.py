"""The pass list: its order and forms, its listing with nodes, and what a pass changed."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.listing.pass_listing import (
    PassRecord,
    diff_data,
    diff_text,
    passes_data,
    passes_text,
)
from hpcflow.plan.listing.plan_text import plan_data
from hpcflow.plan.pass_list import PASSES, plan_program
from hpcflow.plan.pass_row import Form, find_passes
from hpcflow.ps.sync_rules import All
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.lowered_partition import lower_partition
from hpcflow.settings import Settings

from .model import REPLICAS, SINGLE, Net, graph

SERVERS = Cluster(3, 2, sync=All())


def recorded(g, fetches, feeds, cluster=SINGLE, settings=None):
    """The plan, and the passes that made it and the code of its tasks."""
    settings, record = settings or Settings(), PassRecord()
    program = prune_to_fetches(g, fetches, feeds)
    plan = plan_program(program, g, cluster, settings, watch=record)
    devices = RankContext(Settings()).devices
    for begin, each in (("", plan), ("update, ", plan.round)):
        for part in each.parts.values() if each is not None else ():
            lower_partition(part, devices, settings, watch=record, subject=f"{begin}{part.task}")
    return plan, record


def of_net(cluster=SINGLE, **settings):
    net = Net()
    feeds = {t: hf.Spec(t.dtype, shape) for t, shape in net.feeds().items()}
    fetches = [net.loss, net.train]
    return recorded(net.graph, fetches, feeds, cluster, Settings(**settings))


def by_name(record):
    return {one["name"]: one for one in passes_data(PASSES, record)["passes"]}


def test_each_pass_takes_what_the_one_before_gives():
    forms = list(Form)
    for before, after in pairwise(PASSES):
        step = forms.index(after.takes) - forms.index(before.gives)
        cut = before.gives is Form.PLAN and after.takes is Form.PARTITION  # for each task
        assert step == 0 or cut, f"{before.name} gives {before.gives}, {after.name} another form"
    assert (PASSES[0].takes, PASSES[-1].gives) == (Form.GRAPH, Form.CODE)


def test_names_are_unique_and_each_pass_says_why_it_is_there():
    names = [row.name for row in PASSES]
    assert len(set(names)) == len(names)
    for row in PASSES:
        assert re.fullmatch(r"[a-z_]+(\.\d)?", row.name)
        for text in (row.rationale, row.holds):
            assert text.endswith(".") and len(text) <= 100


@pytest.mark.parametrize("cluster", [SINGLE, REPLICAS, SERVERS], ids=lambda c: c.mode)
def test_passes_run_once_for_each_program_in_the_order_of_the_list(cluster):
    plan, record = of_net(cluster)
    order = {row.name: i for i, row in enumerate(PASSES)}
    programs = {run.subject: [] for run in record.runs}
    for run in record.runs:
        programs[run.subject].append(order[run.row.name])
    assert all(ran == sorted(set(ran)) for ran in programs.values())
    wanted = {"step", *plan.parts}
    if plan.round is not None:
        wanted |= {"update", *(f"update, {task}" for task in plan.round.parts)}
    assert programs.keys() == wanted


def test_the_listing_counts_the_nodes_of_programs_and_partitions():
    plan, record = of_net(REPLICAS)
    rows = by_name(record)
    (part,) = plan.parts.values()
    assert rows["send_recv_insertion"]["nodes_after"] == len(part.nodes)
    assert rows["sparse_optimizer_fusion"]["nodes_before"] == len(part.nodes)
    bucketing = rows["gradient_bucketing"]
    assert bucketing["nodes_before"] - bucketing["nodes_after"] == 2  # three sums, one bucket
    assert (bucketing["runs"], bucketing["changed"]) == (1, 1)
    assert rows["sync_program_split"]["runs"] == rows["atomic_step_commit"]["runs"] == 0
    assert 0 < sum(one["seconds"] for one in rows.values()) < 100
    text = passes_text(PASSES, record).splitlines()
    assert [line.split()[0] for line in text[1:]] == [row.name for row in PASSES]
    (commit,) = (line for line in text if line.startswith("atomic_step_commit"))
    assert commit.endswith("only with: survive, collective mode")


def test_settings_switch_passes_on_and_off():
    assert by_name(of_net()[1])["matmul_batching"]["runs"] == 1
    assert by_name(of_net(exact=True)[1])["matmul_batching"]["runs"] == 0
    assert by_name(of_net(exact=True)[1])["reshape_hoisting"]["runs"] == 1
    assert by_name(of_net(check_numerics=True)[1])["reshape_hoisting"]["runs"] == 0
    assert by_name(of_net(check_numerics=True)[1])["update_tiling"]["runs"] == 0
    assert by_name(of_net(REPLICAS, survive=True)[1])["atomic_step_commit"]["changed"] == 1


def test_passes_of_bodies_are_told_with_their_loop():
    with graph() as g:
        x = hf.placeholder(hf.float32, [3], name="x")
        y = hf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v + (-x)), [0, x], name="loop")
    _, record = recorded(g, [y[1]], {x: hf.Spec(np.dtype("f4"), (3,))})
    ran = [run.subject for run in record.runs if run.row.name == "replica_lowering"]
    (name,) = {run.removeprefix("step, body of ") for run in ran if "body" in run}
    assert ran == ["step", f"step, cond of {name}", f"step, body of {name}"]
    assert f"/job:worker/task:0, body of {name}" in {run.subject for run in record.runs}


def test_a_diff_names_what_was_added_removed_and_changed():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        a, b = hf.exp(x, name="a"), hf.exp(x, name="b")
        y = hf.add(a, b, name="y")
    _, record = recorded(g, [y], {x: hf.Spec(np.dtype("f4"), (2,))})
    (diff,) = diff_data(find_passes("common_subexpression_elimination.2", PASSES), record)
    assert not (diff["added"] or diff["removed"] or diff["changed"])
    first, *_ = diff_data(find_passes("common_subexpression_elimination", PASSES), record)
    assert [node["name"] for node in first["removed"]] == ["b"] and not first["added"]
    (change,) = first["changed"]
    assert change["name"] == "y" and change["fields"] == {"inputs": ["a:0, b:0", "a:0, a:0"]}
    text = diff_text(find_passes("common_subexpression_elimination", PASSES), record)
    assert "  - b  Exp(x:0)\n  ~ y  Add\n      inputs: a:0, b:0 -> a:0, a:0" in text
    placed = diff_text(find_passes("device_placement", PASSES), record)
    assert "device: none -> /job:worker/task:0/cpu:0" in placed
    off = diff_text(find_passes("sync_program_split", PASSES), record)
    assert off == "sync_program_split did not run; only with: parameter servers"


def test_an_unknown_pass_is_an_error_with_similar_names():
    assert [row.name for row in find_passes("split_concat_to_views.2", PASSES)] == [
        "split_concat_to_views.2"
    ]
    assert len(find_passes("split_concat_to_views", PASSES)) == 3
    with pytest.raises(GraphError, match=r"no pass 'gradient_buckets'\n.*similar: gradient_buck"):
        find_passes("gradient_buckets", PASSES)
    with pytest.raises(GraphError, match="hpcflow plan --passes"):
        find_passes("qqq", PASSES)


def test_recording_changes_no_plan():
    assert plan_data(of_net()[0]) == plan_data(Net().step())
