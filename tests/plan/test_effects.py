"""The check behind each pass finds passes that lose an update, a fetch or an order."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.plan import pass_list
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.ir.program_rewriting import cyclic_nodes, topological_order
from hpcflow.plan.verification.effect_verifier import check_effects
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rules import All
from hpcflow.settings import Settings

from .model import REPLICAS, SERVERS, SINGLE, Net, graph


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
