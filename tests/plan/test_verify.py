"""Mutants of plans: each is rejected by the rule that it breaks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.program import Cluster, Node, Ref
from hpcflow.plan.verification.plan_verifier import (
    verify_plan,
    verify_replicas,
)
from hpcflow.plan.verification.unproved_properties import unproved_properties
from hpcflow.settings import Settings

from .model import Net, graph, plan_of

WORKER, PS0, PS1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"
SMALL = Settings(bucket_bytes=100)


def served():
    return Net().step(Cluster(2, 2))


def replicas():
    return Net().step(Cluster(4), settings=SMALL)


def two_devices():
    """One task with two devices: y is computed on cpu:1."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        with hf.device("cpu:1"):
            y = hf.tanh(x, name="y")
        z = hf.negative(y, name="z")
    return plan_of(g, [z], {x: (2,)}, Cluster(devices=("cpu:0", "cpu:1")))


def first(plan, type, task=None, token=None):
    """(task, node) of the first node of a type."""
    for at, part in plan.parts.items():
        for node in part.nodes.values():
            if (
                node.type == type
                and task in (None, at)
                and token in (None, node.attrs.get("token"))
            ):
                return at, node
    raise AssertionError(f"no {type}")


def with_nodes(plan, task, nodes):
    part = dataclasses.replace(plan.parts[task], nodes=nodes)
    return dataclasses.replace(plan, parts={**plan.parts, task: part})


def edited(plan, at, **changes):
    """With one node changed; `attrs` are added to its own."""
    task, node = at
    if "attrs" in changes:
        changes["attrs"] = node.attrs | changes["attrs"]
    nodes = dict(plan.parts[task].nodes)
    nodes[node.name] = node.but(**changes)
    return with_nodes(plan, task, nodes)


def without(plan, at):
    task, node = at
    return with_nodes(
        plan, task, {k: n for k, n in plan.parts[task].nodes.items() if k != node.name}
    )


def added(plan, task, node):
    return with_nodes(plan, task, {**plan.parts[task].nodes, node.name: node})


def reordered(plan, task, moved, before):
    """With node `moved` in front of node `before`."""
    nodes = dict(plan.parts[task].nodes)
    node = nodes.pop(moved)
    out = {}
    for name, other in nodes.items():
        if name == before:
            out[moved] = node
        out[name] = other
    return with_nodes(plan, task, out)


def user_of(plan, at):
    task, node = at
    for other in plan.parts[task].nodes.values():
        if node.name in other.before():
            return other
    raise AssertionError


def swapped_collectives(plan):
    task, one = first(plan, "AllReduce")
    names = [n.name for n in plan.parts[task].nodes.values() if n.type == "AllReduce"]
    one, two = (plan.parts[task].nodes[name] for name in names[:2])
    a, b = one.attrs["sequence"], two.attrs["sequence"]
    plan = edited(plan, (task, one), attrs={"sequence": b})
    return edited(plan, (task, two), attrs={"sequence": a})


def moved_state(plan):
    """A variable of one server, with the nodes that use it left on another device."""
    task, node = first(plan, "Variable", PS0)
    return edited(plan, (task, node), device=f"{PS0}/cpu:1")


def crossing_waits(plan):
    """Both sides wait for the other before they send."""
    at = first(plan, "Send", WORKER)
    nodes = plan.parts[WORKER].nodes
    late = next(n.name for n in nodes.values() if n.type == "Recv" and n.attrs["token"])
    return reordered(plan, WORKER, late, at[1].name)


def handle_sent(plan):
    task, send = first(plan, "Send", PS0, token=False)
    variable = first(plan, "Variable", PS0)[1]
    return edited(plan, (task, send), inputs=(Ref(variable.name),))


def unwaited(plan):
    node = Node("alone", "NoOp", device=f"{PS0}/cpu:0")
    return added(plan, PS0, node)


def second_receiver(plan):
    task, recv = first(plan, "Recv", WORKER, token=False)
    return added(plan, task, recv.but(name="again"))


def second_sender(plan):
    task, send = first(plan, "Send", PS0, token=False)
    return added(plan, task, send.but(name="again"))


def shape_on_both_sides_of_recv(plan):
    at = first(plan, "Recv", WORKER, token=False)
    spec = Spec(at[1].specs[0].dtype, (3, 3))
    return edited(plan, at, attrs={"shape": (3, 3)}, specs=(spec,))


def dtype_on_both_sides_of_recv(plan):
    at = first(plan, "Recv", WORKER, token=False)
    spec = Spec(np.dtype("float64"), at[1].specs[0].shape)
    return edited(plan, at, attrs={"dtype": spec.dtype}, specs=(spec,))


def wrong_edge(plan):
    edge = dataclasses.replace(plan.edges[0], dest=PS1, source=PS0)
    return dataclasses.replace(plan, edges=(edge, *plan.edges[1:]))


def fetches(plan, refs):
    part = dataclasses.replace(plan.parts[WORKER], fetches=refs)
    return dataclasses.replace(plan, parts={**plan.parts, WORKER: part})


def feeds(plan, names):
    part = dataclasses.replace(plan.parts[WORKER], feeds=names)
    return dataclasses.replace(plan, parts={**plan.parts, WORKER: part})


def recv(plan, token=False, task=WORKER):
    return first(plan, "Recv", task, token)


def send(plan, token=False, task=PS0):
    return first(plan, "Send", task, token)


MUTANTS = [
    ("dropped Send", "receive-has-send", served, lambda p: without(p, send(p))),
    ("dropped token Send", "receive-has-send", served, lambda p: without(p, send(p, True))),
    ("dropped Recv", "input-exists", served, lambda p: without(p, recv(p))),
    ("dropped end Recv", "send-has-receive", served, lambda p: without(p, recv(p, True))),
    ("two Recv", "channel-unique", served, second_receiver),
    ("two Send", "channel-unique", served, second_sender),
    ("one Recv to another channel", "channel-unique", served,
     lambda p: edited(p, recv(p), attrs={"channel": recv(p, True)[1].attrs["channel"]})),
    ("Send to an unused channel", "send-has-receive", served,
     lambda p: edited(p, send(p), attrs={"channel": 99})),
    ("no channel", "channel-unique", served,
     lambda p: edited(p, send(p), attrs={"channel": None})),
    ("wrong destination", "right-task", served,
     lambda p: edited(p, send(p), attrs={"dest": PS1})),
    ("wrong source", "right-task", served, lambda p: edited(p, recv(p), attrs={"source": PS1})),
    ("shape in the Recv's attrs", "shape-rule", served,
     lambda p: edited(p, recv(p), attrs={"shape": (3, 3)})),
    ("one-sided shape", "same-shape", served,
     lambda p: shape_on_both_sides_of_recv(cut_users(p))),
    ("shape that users refuse", "shape-rule", served, shape_on_both_sides_of_recv),
    ("one-sided dtype", "same-dtype", served,
     lambda p: dtype_on_both_sides_of_recv(cut_users(p))),
    ("one-sided token", "same-token", served,
     lambda p: edited(p, recv(p, True), attrs={"token": False})),
    ("token with a value", "same-token", served,
     lambda p: edited(p, send(p, True), inputs=(Ref(first(p, "Recv", PS0)[1].name),))),
    ("Send without a value", "send-has-value", served, lambda p: edited(p, send(p), inputs=())),
    ("a handle is sent", "state-beside-handle", served, handle_sent),
    ("state moved from its users", "same-device", served, moved_state),
    ("update of a value", "state-beside-handle", served,
     lambda p: edited(p, first(p, "ApplyMomentum"), inputs=(
         Ref(first(p, "Recv", PS0, token=False)[1].name),
         *first(p, "ApplyMomentum")[1].inputs[1:]))),
    ("node before its input", "input-before-use", served,
     lambda p: reordered(p, WORKER, user_of(p, recv(p)).name, recv(p)[1].name)),
    ("cyclic cross wait", "acyclic", served, crossing_waits),
    ("device of another task", "device-of-task", served,
     lambda p: edited(p, recv(p), device=f"{PS0}/cpu:0")),
    ("half a device", "device-of-task", served, lambda p: edited(p, recv(p), device=WORKER)),
    ("input that is not there", "input-exists", served,
     lambda p: edited(p, send(p), inputs=(Ref("nobody"),))),
    ("output that is not there", "input-exists", served,
     lambda p: edited(p, send(p), inputs=(Ref(send(p)[1].inputs[0].node, 5),))),
    ("control that is not there", "input-exists", served,
     lambda p: edited(p, recv(p), control=("nobody",))),
    ("unknown op", "op-known", served, lambda p: edited(p, recv(p), type="Teleport")),
    ("renamed node", "name", served, lambda p: edited(p, recv(p), name="other")),
    ("nobody waits for a node", "reaches-driver", served, unwaited),
    ("fetch that is not there", "fetch-exists", served, lambda p: fetches(p, (Ref("nobody"),))),
    ("fetch of no output", "fetch-exists", served, lambda p: fetches(p, (Ref("loss", 7),))),
    ("forgotten feed", "feeds-on-driver", served, lambda p: feeds(p, ("x",))),
    ("feed on a server", "feeds-on-driver", served,
     lambda p: added(p, PS0, p.parts[WORKER].nodes["x"].but(device=f"{PS0}/cpu:0"))),
    ("edge of another task", "edges-listed", served, wrong_edge),
    ("edge forgotten", "edges-listed", served,
     lambda p: dataclasses.replace(p, edges=p.edges[1:])),
    ("driver without part", "driver", served, lambda p: dataclasses.replace(p, driver="/job:x")),
    ("swapped collectives", "collective-order", replicas, swapped_collectives),
    ("one number twice", "collective-order", replicas,
     lambda p: edited(p, first(p, "AllReduce"), attrs={"sequence": 1})),
    ("a number left out", "collective-order", replicas,
     lambda p: edited(p, first(p, "AllReduce"), attrs={"sequence": -1})),
    ("sum of another shape", "shape-rule", replicas,
     lambda p: edited(p, first(p, "AllReduce"), specs=(Spec(np.dtype("f4"), (1,)),))),
    ("copy left out", "same-device", two_devices,
     lambda p: edited(p, (WORKER, p.parts[WORKER].nodes["y"]), inputs=(Ref("x"),))),
    ("copy from the wrong device", "same-device", two_devices,
     lambda p: edited(p, first(p, "Copy"), attrs={"source": f"{WORKER}/cpu:9"})),
]  # fmt: skip


def cut_users(plan):
    """Without the shape rules of the receiver's users: they take their inputs from nowhere."""
    task, node = recv(plan)
    nodes, gone = {}, {node.name}
    for other in plan.parts[task].nodes.values():
        if other is node or not gone & set(other.before()):
            nodes[other.name] = other
        elif other.type == "Send":
            spec = plan.parts[task].nodes[other.inputs[0].node].specs[0]
            attrs = {"shape": spec.shape, "dtype": spec.dtype, "value": 0}
            name = f"{other.name}/value"
            const = Node(name, "Fill", attrs=attrs, specs=(spec,), device=other.device)
            nodes[const.name] = const
            nodes[other.name] = other.but(inputs=(Ref(const.name),))
        else:
            gone.add(other.name)
    return fetches(with_nodes(plan, task, nodes), ())


@pytest.mark.parametrize(
    "rule, make, mutate", [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS]
)
def test_mutants_are_rejected_by_name(rule, make, mutate):
    plan = make()
    verify_plan(plan)
    with pytest.raises(VerifyError) as caught:
        verify_plan(mutate(plan))
    assert caught.value.rule == rule, str(caught.value)


def test_there_are_thirty_mutants():
    assert len(MUTANTS) >= 30


def test_an_error_names_rule_node_task_and_line():
    plan = served()
    with pytest.raises(VerifyError) as caught:
        verify_plan(edited(plan, recv(plan), attrs={"source": PS1}))
    text = str(caught.value)
    assert "right-task" in text and "w1/read" in text and WORKER in text and "model.py" in text


def test_replicas_with_other_collectives_are_told_apart():
    one, net = replicas(), Net()
    verify_replicas([one, replicas(), replicas()])
    with pytest.raises(VerifyError, match=r"same-collectives: on .* collective 0 is AllReduce of"):
        verify_replicas([one, one, Net().step(Cluster(4))])
    fewer = plan_of(net.graph, net.updates[:1], net.feeds(), Cluster(4), SMALL)
    with pytest.raises(VerifyError, match="replica 0 runs 2 collectives, replica 1 1"):
        verify_replicas([one, fewer])


def test_one_sided_shape_of_a_collective_is_found():
    one, two = Net(width=8).step(Cluster(4)), Net(width=9).step(Cluster(4))
    with pytest.raises(
        VerifyError, match=r"collective 0 .*\[6, 8\].* on replica 0, .*\[6, 9\].* on 1"
    ):
        verify_replicas([one, two])


# -- what is left open


def test_nothing_is_left_open_in_training():
    for cluster in (Cluster(), Cluster(4), Cluster(3, 2)):
        assert unproved_properties(Net().step(cluster)) == []
        assert unproved_properties(Net().start(cluster)) == []


def test_an_unordered_read_and_update_are_told():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        add = v.assign_add(1.0, name="add")
    for cluster in (Cluster(), Cluster(1, 1)):
        (line,) = unproved_properties(plan_of(g, [v.value(), add.op], cluster=cluster))
        assert "a read and an update of variable 'v' in no order" in line
        assert "'v/read" in line and "'add'" in line


def test_two_unordered_updates_are_told():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        one = v.assign_add(1.0, name="one", read_value=False)
        two = v.assign_add(2.0, name="two", read_value=False)
        with hf.control_dependencies([one]):
            after = v.assign_add(3.0, name="after", read_value=False)
    (line,) = unproved_properties(plan_of(g, [one, two]))
    assert "updates of variable 'v' in no order" in line
    assert unproved_properties(plan_of(g, [one, after])) == []


def test_order_through_another_task_counts():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        read = v.value()
        doubled = hf.add(read, read, name="doubled")  # on the worker
        add = v.assign_add(doubled, name="add")
    assert unproved_properties(plan_of(g, [add, read], cluster=Cluster(1, 1))) == []


def test_an_unknown_size_on_an_edge_is_told():
    with graph() as g:
        x = hf.placeholder(hf.int32, [], name="x")
        many = hf.range(x, name="many")
        with hf.device("/job:worker/task:1"):
            far = hf.negative(many, name="far")
    plan = plan_of(g, [far], {x: ()}, Cluster(2, tasks_per_replica=2))
    lines = unproved_properties(plan)
    assert len(lines) == 2 and "the size of many:0" in lines[0]
