"""The check behind each pass finds passes that lose an update, a fetch or an order."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.plan import pass_list
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.node_effects import plan_trains, updates_servers
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.ir.program_rewriting import cyclic_nodes, topological_order
from hpcflow.plan.verification.effect_verifier import check_effects
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rules import All
from hpcflow.settings import Settings

from .model import REPLICAS, SERVERS, SINGLE, Net, graph, plan_of


@pytest.fixture
def program():
    """read, add 5, read, assign twice the second read: each after the one before."""
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        first = w.read_value("first")
        with hf.control_dependencies([first]):
            add = w.assign_add(5.0, name="add")
        with hf.control_dependencies([add]):
            second = w.read_value("second")
        end = w.assign(second * 2.0, name="end")
    return prune_to_fetches(g, [first, second, end], {})


def without(program, name):
    nodes = {n: node for n, node in program.nodes.items() if n != name}
    kept = {
        n: node.but(control=tuple(c for c in node.control if c != name))
        for n, node in nodes.items()
    }
    return program.but(nodes=kept)


def unordered(program, *names):
    nodes = dict(program.nodes)
    for name in names:
        nodes[name] = nodes[name].but(control=())
    return program.but(nodes=nodes)


def test_what_keeps_everything_passes(program):
    check_effects("same", program, program)
    reordered = program.but(nodes=dict(sorted(program.nodes.items())))
    check_effects(
        "sorted", program, reordered
    )  # the order of the nodes is not the order between them


def test_a_lost_update_is_found(program):
    with pytest.raises(VerifyError, match=r"careless: 'add' is lost"):
        check_effects("careless", program, without(program, "add"))


def test_a_lost_fetch_is_found(program):
    with pytest.raises(VerifyError, match="fetches"):
        check_effects("careless", program, program.but(fetches=program.fetches[:1]))


def test_a_lost_order_of_a_read_behind_an_update_is_found(program):
    with pytest.raises(VerifyError, match=r"'w/second' does not see 'add'|does not follow 'add'"):
        check_effects("careless", program, unordered(program, "w/second"))


def test_updates_that_lose_their_order_are_found():
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        one = w.assign_add(1.0, name="one")
        with hf.control_dependencies([one]):
            two = w.assign(5.0, name="two")
    program = prune_to_fetches(g, [one, two], {})
    with pytest.raises(VerifyError, match="'two' does not follow 'one'"):
        check_effects("careless", program, unordered(program, "two", "Const_1"))


def test_functions_of_the_script_that_lose_their_order_are_found():
    with graph() as g:
        one = hf.py_func(lambda: np.float32(1), [], hf.float32, name="one")
        with hf.control_dependencies([one]):
            two = hf.py_func(lambda: np.float32(2), [], hf.float32, name="two")
    program = prune_to_fetches(g, [one, two], {})
    with pytest.raises(VerifyError, match="'two' does not follow 'one'"):
        check_effects("careless", program, unordered(program, "two"))


@pytest.mark.parametrize("kind", ["rows", "loop", "branch"])
def test_other_reads_that_lose_their_order_behind_an_update_are_found(kind):
    with graph() as g:
        w = hf.Variable([1.0, 2.0], name="w")
        add = w.assign_add([1.0, 1.0], name="add")
        with hf.control_dependencies([add]):
            if kind == "rows":
                read = hf.gather(w, [1], name="reader")
            elif kind == "loop":
                read = hf.while_loop(lambda x: x < 9.0, lambda x: x + w[0], [0.0], name="reader")
            else:
                read = hf.cond(w[0] > 0.0, lambda: w[0] + 0.0, lambda: w[1] + 0.0, name="reader")
    program = prune_to_fetches(g, [add, read], {})
    behind = [n.name for n in program.nodes.values() if "add" in n.control]
    with pytest.raises(VerifyError, match="does not see 'add'"):
        check_effects("careless", program, unordered(program, *behind))


def test_an_update_lost_in_a_body_is_found():
    with graph() as g:
        w = hf.Variable(0.0, name="w")

        def body(i):
            with hf.control_dependencies([w.assign_add(1.0, name="add")]):
                return hf.identity(i + 1)

        loop = hf.while_loop(lambda i: i < 3, body, [0])
    program = prune_to_fetches(g, [loop], {})
    (frame,) = (n for n in program.nodes.values() if n.type == "Loop")
    inside = frame.attrs["body"]
    (add,) = (n for n in inside.nodes if n.endswith("add"))
    worse = frame.but(attrs={**frame.attrs, "body": without(inside, add)})
    with pytest.raises(VerifyError, match="is lost"):
        check_effects("careless", program, program.but(nodes={**program.nodes, frame.name: worse}))


def test_the_setting_checks_every_pass_of_the_planner(monkeypatch):
    careful = pass_list.merge_common_subexpressions

    def merge_equal(program):
        done = careful(program)
        lost = [n.name for n in done.nodes.values() if n.row.writes]
        return without(done, lost[0]).but(targets=()) if lost else done

    monkeypatch.setattr(pass_list, "merge_common_subexpressions", merge_equal)
    with graph() as g:
        w = hf.Variable(np.float32(1), name="w")
        add = w.assign_add(1.0, name="add")
    pass_list.make_plan(g, [add.op], {}, SINGLE, Settings())  # nobody tells
    with pytest.raises(VerifyError, match="common_subexpression_elimination: 'add' is lost"):
        pass_list.make_plan(g, [add.op], {}, SINGLE, Settings(verify_passes=True))


CLUSTERS = [SINGLE, REPLICAS, SERVERS, Cluster(4, tasks_per_replica=2)]
CLUSTERS += [Cluster(3, 2, sync=rule) for rule in (All(), Backup(1), Stale(2))]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c.mode} {c.sync}")
@pytest.mark.parametrize("survive", [False, True])
def test_each_pass_of_a_training_step_keeps_the_effects(cluster, survive):
    Net().step(cluster, settings=Settings(verify_passes=True, survive=survive))


def test_a_cycle_is_an_error_that_names_a_node():
    with graph() as g:
        a = hf.negative(hf.constant(1.0), name="a")
        b = hf.negative(a, name="b")
    nodes = dict(prune_to_fetches(g, [b], {}).nodes)
    nodes["a"] = nodes["a"].but(control=("b",))
    with pytest.raises(VerifyError, match="acyclic: 'a' waits for itself"):
        topological_order(nodes, lambda _: 0)
    assert set(cyclic_nodes(nodes)) == {"a", "b"}


# -- whether a step trains


def looped(change):
    """A loop of three iterations whose body runs `change`."""

    def body(i):
        with hf.control_dependencies([change()]):
            return i + 1

    return hf.while_loop(lambda i: i < 3, body, [0])


def branched(change):
    """A branch, in a loop, that runs `change`."""
    is_due = hf.placeholder(hf.bool, [], name="is_due")
    return looped(lambda: hf.cond(is_due, lambda: hf.identity(change()), lambda: hf.constant(1.0)))


@pytest.mark.parametrize("cluster", [SINGLE, SERVERS], ids=["single", "servers"])
@pytest.mark.parametrize("framed", [looped, branched])
def test_a_step_trains_whose_only_update_is_in_a_loop_or_branch(framed, cluster):
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        trains, reads = framed(lambda: w.assign_add(1.0)), framed(lambda: w + 1.0)
        feeds = {op.outputs[0]: () for op in g.get_operations() if op.type == "Placeholder"}
        start = hf.global_variables_initializer()
        plans = [plan_of(g, [fetch], feeds, cluster) for fetch in (trains, reads, start)]
    assert [plan_trains(plan) for plan in plans] == [True, False, False]
    on_servers = cluster is SERVERS
    assert [updates_servers(plan) for plan in plans] == [on_servers, False, on_servers]


def test_a_step_is_counted_after_the_updates_in_its_loop():
    """The coordinator of `stale:S` takes the tick for the end of the step's updates."""
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        total = hf.train.GradientDescentOptimizer(0.1).minimize(w * w)
        loop = looped(lambda: w.assign_add(1.0))
        plan = plan_of(g, [total, loop], {}, Cluster(2, 1, sync=Stale(1)))
    nodes = plan.parts["/job:ps/task:0"].nodes
    (tick,) = (node for node in nodes.values() if node.type == "ClockTick")
    stack, before = [tick.name], set()
    while stack:
        name = stack.pop()
        stack += [each for each in nodes[name].before() if each not in before]
        before.update(nodes[name].before())
    loops = {node.name for node in nodes.values() if node.row.control_flow}
    assert loops and loops <= before


@pytest.mark.parametrize("sync", [All(), Stale(1)], ids=str)
def test_a_loop_that_updates_a_server_follows_the_begin_of_the_round(sync):
    """Before it, the slowest worker may be further behind than the rule allows."""
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        total = hf.train.GradientDescentOptimizer(0.1).minimize(w * w)
        v = hf.Variable(1.0, name="v")
        loop = looped(lambda: v.assign_add(1.0))
        plan = plan_of(g, [total, loop], {}, Cluster(2, 1, sync=sync))
    nodes = plan.parts["/job:ps/task:0"].nodes
    (loop,) = (node for node in nodes.values() if node.row.control_flow)
    assert "_rounds/begin" in loop.before()
