"""`hf.register_pass`: a user's pass changes plans, keeps results, and is checked."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.errors import GraphError, GraphMismatchError, VerifyError
from hpcflow.plan import user_passes
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.pass_list import PASSES, all_passes, make_plan
from hpcflow.plan.user_passes import function_digest
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks
from tests.runtime.test_plans import made_or_loaded, mlp, train

PLACE = "common_subexpression_elimination"


@pytest.fixture(autouse=True)
def registry():
    """No pass is registered before or after a test."""
    assert user_passes.registered() == ()
    yield
    for one in user_passes.registered():
        user_passes.unregister(one.name)


def subtractions(program):
    """`a + (-b)` becomes `a - b`."""
    nodes = dict(program.nodes)
    for node in program.nodes.values():
        if node.type == "Add" and program.nodes[node.inputs[1].node].type == "Neg":
            b = program.nodes[node.inputs[1].node].inputs[0]
            nodes[node.name] = node.but(type="Sub", inputs=(node.inputs[0], b))
    return program.but(nodes=nodes)


def without_updates(program):
    gone = {n.name for n in program.nodes.values() if n.row.writes}
    nodes = {
        name: node.but(control=tuple(c for c in node.control if c not in gone))
        for name, node in program.nodes.items()
        if name not in gone
    }
    return program.but(nodes=nodes, targets=tuple(t for t in program.targets if t not in gone))


def model(place=""):
    """A loss with a negated term, half of it on another task or device, and a training step."""
    x = hf.placeholder(hf.float32, [None, 3], name="x")
    w = hf.Variable(np.arange(6, dtype="f4").reshape(3, 2), name="w")
    with hf.device(place):
        error = hf.add(hf.matmul(x, w), -hf.tanh(x)[:, :2], name="error")
    loss = hf.reduce_sum(hf.square(error))
    return x, w, loss, hf.train.GradientDescentOptimizer(0.01).minimize(loss)


def trained(place=""):
    """The losses of three steps and the weights after them; one rank's types of the plan."""

    def body(context):
        x, w, loss, train = model(place)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            feeds = {x: np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)}
            losses = [session.run([loss, train], feeds)[0] for _ in range(3)]
            plan = session._plan([loss], {x: hf.Spec(x.dtype, (4, 3))})
            types = [n.type for part in plan.parts.values() for n in part.nodes.values()]
            return [*losses, session.run(w)], types

    return body


CLUSTERS = {
    "one rank": (1, "", {}),
    "replicas": (3, "", {}),
    "servers": (3, "", {"ps": 1, "sync": "all"}),
    "tasks": (2, "/job:worker/task:1", {"tasks_per_replica": 2}),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_pass_changes_the_plan_and_not_the_results(name):
    ranks, place, settings = CLUSTERS[name]
    plain = run_ranks(ranks, trained(place), verify_passes=True, **settings)
    hf.register_pass(subtractions, name="subtractions", before=PLACE)
    fewer = run_ranks(ranks, trained(place), verify_passes=True, **settings)
    assert len(plain) == len(fewer) > 0
    for (a, before), (b, after) in zip(plain, fewer, strict=True):
        for mine, theirs in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert before.count("Neg") == before.count("Add") == 1 and "Sub" not in before
        assert after.count("Sub") == 1 and "Neg" not in after and "Add" not in after


def test_a_pass_sees_bodies_where_its_neighbours_do():
    seen = []
    hf.register_pass(lambda p: seen.append(len(p.nodes)) or p, "count", after=PLACE)
    hf.register_pass(lambda p: seen.append("step") or p, "once", after="step_order")
    x = hf.placeholder(hf.float32, [], name="x")
    y = hf.cond(x > 0, lambda: hf.exp(x), lambda: hf.tanh(x) * 2.0)
    make_plan(x.graph, [y], {x: hf.Spec(x.dtype, ())}, Cluster(), Settings())
    assert len(seen) == 4 and seen.count("step") == 1 and seen[-1] == "step"


def planned(**settings):
    with hf.Graph().as_default() as graph:
        x, _, loss, train = model()
        feeds = {x: hf.Spec(x.dtype, (4, 3))}
        return make_plan(graph, [loss, train], feeds, Cluster(), Settings(**settings))


def refused(function, match, place=PLACE):
    hf.register_pass(function, "careless", before=place)
    with pytest.raises(VerifyError, match=match) as info:
        planned()  # without verify_passes
    told = rf"pass 'careless' \(registered at {re.escape(__file__)}:\d+\)"
    assert re.search(told, str(info.value))
    return info.value


def test_a_pass_that_loses_an_update_is_refused_with_its_name():
    error = refused(without_updates, r"'w/ApplyGradientDescent' is lost|'.*' is lost")
    assert error.rule == "registered-pass" and "report" not in str(error)
    assert "test_registered_passes.py" in error.line  # of the update


def test_malformed_results_are_refused():
    refused(lambda p: None, "returned NoneType, not a Program")
    refused(lambda p: p.but(fetches=p.fetches[1:]), "0 of 1 fetches")
    refused(lambda p: p.but(feeds=()), "changed the feeds")
    refused(lambda p: p.but(nodes={n: p.nodes[n] for n in p.nodes if n != "error"}), "'?error")

    def failing(program):
        return program.nodes["nowhere"]

    error = refused(failing, r"raised KeyError: 'nowhere'")
    assert isinstance(error.__cause__, KeyError)

    def circular(program):
        error = program.nodes["error"]
        matmul = program.nodes["MatMul"].but(control=(error.name,))
        return program.but(nodes={**program.nodes, "MatMul": matmul})

    refused(circular, "waits for itself")

    def homeless(program):
        first = next(n for n in program.nodes.values() if n.type == "MatMul")
        return program.but(nodes={**program.nodes, first.name: first.but(device="")})

    refused(homeless, "without a device", "step_order")


def test_a_pass_is_registered_at_a_place_that_exists_and_has_a_program():
    with pytest.raises(GraphError, match=r"no pass 'step_orders'[^$]*similar: step_order"):
        hf.register_pass(subtractions, before="step_orders")
    with pytest.raises(GraphError, match="either before= or after="):
        hf.register_pass(subtractions)
    with pytest.raises(GraphError, match="either before= or after="):
        hf.register_pass(subtractions, before=PLACE, after=PLACE)
    with pytest.raises(GraphError, match="after send_recv_insertion there is a plan"):
        hf.register_pass(subtractions, after="send_recv_insertion")
    with pytest.raises(GraphError, match="has a pass 'step_order' itself"):
        hf.register_pass(subtractions, "step_order", before=PLACE)
    assert all_passes() == PASSES


def test_passes_of_one_place_run_in_the_order_of_registration():
    for name in "abc":
        hf.register_pass(subtractions, name, after=PLACE)
    hf.register_pass(subtractions, "d", before=PLACE)
    hf.register_pass(without_updates, "a", after=PLACE)  # in place of the first
    names = [row.name for row in all_passes()]
    at = names.index(PLACE)
    assert names[at - 1 : at + 4] == ["d", PLACE, "a", "b", "c"]
    assert len(names) == len(PASSES) + 4
    (row,) = (row for row in all_passes() if row.name == "a")
    assert row.run.__closure__ is not None and __file__ in row.line


def scaled(by):
    return lambda program: program if by else None


def test_functions_of_other_code_have_other_digests():
    same = [function_digest(scaled(2)), function_digest(scaled(2))]
    assert same[0] == same[1] is not None
    assert function_digest(scaled(3)) != same[0]
    assert function_digest(subtractions) not in (None, function_digest(without_updates))
    held = object()
    assert function_digest(lambda p: held and p) is None  # its state is not known
    helper = lambda p: p  # noqa: E731
    other = lambda p: p.but()  # noqa: E731
    uses = [lambda p, f=f: f(p) for f in (helper, helper, other)]
    a, b, c = map(function_digest, uses)
    assert a == b != c and a is not None


@pytest.mark.slow
@pytest.mark.skipif(absent() != "", reason="needs llvmlite")
def test_plans_of_different_passes_are_cached_apart(tmp_path):
    plain, spent = train(tmp_path, mlp)
    assert made_or_loaded(spent) == (1, 0)
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (0, 1)
    hf.register_pass(subtractions, "own", before=PLACE)
    found, spent = train(tmp_path, mlp)
    assert made_or_loaded(spent) == (1, 0) and found == plain
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (0, 1)
    hf.register_pass(subtractions, "own", after=PLACE)
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (1, 0)
    hf.register_pass(lambda p: subtractions(p), "own", after=PLACE)
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (1, 0)
    held, entries = object(), len(list(tmp_path.iterdir()))
    hf.register_pass(lambda p: held and p, "own", after=PLACE)
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (1, 0)
    assert len(list(tmp_path.iterdir())) == entries  # nothing is cached
    user_passes.unregister("own")
    assert made_or_loaded(train(tmp_path, mlp)[1]) == (0, 1)


def test_replicas_that_register_different_passes_are_told(monkeypatch):
    def facts():
        import threading

        mine = threading.current_thread().name
        return [("own", "registered pass", f"train.py:{len(mine)}", mine)]

    monkeypatch.setattr(user_passes, "facts", facts)
    with pytest.raises(GraphMismatchError, match="'own'"):
        run_ranks(2, trained())
