"""Several kernels for one op: the best that serves a node is chosen, and the choice is told."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.graph.op_registry import all_ops
from hpcflow.kernels import kernel_registry
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import kernels_data, kernels_text, selected_kernels
from hpcflow.settings import Settings
from tests.kernels.against_plain import chosen, run


@pytest.fixture
def providers(monkeypatch):
    """`first` and `second` compute Tanh wrongly, each in its own way; the first not of matrices."""
    kernel_registry.names()  # all kernels are imported
    monkeypatch.setattr(kernel_registry, "_FAST", {})
    monkeypatch.setattr(kernel_registry, "absent", "", raising=False)
    absent = {"first": lambda: kernel_registry.absent, "second": lambda: ""}
    monkeypatch.setattr(kernel_registry, "_PROVIDERS", absent)

    def no_matrices(node):
        return "" if len(node.inputs[0].shape) == 1 else "it is no vector"

    @kernel_registry.fast("first", "Tanh", "out", on="cpu", refuses=no_matrices)
    def one(xp, node):
        return lambda x, out: out.fill(1)

    @kernel_registry.fast("second", "Tanh", "new", on="cpu", refuses=lambda node: "", exact=True)
    def two(xp, node):
        return lambda x: np.full_like(x, 2)


def outcome(shape, **settings):
    """What a run computes, and what is told of its kernel."""
    with use_context(RankContext(Settings(**settings))) as context, hf.Graph().as_default():
        x = hf.placeholder(hf.float32, shape)
        session, feeds = hf.Session(), {x: np.zeros(shape, np.float32)}
        y = hf.tanh(x)
        value = session.run(y, feeds)
        plan = session.plan(y, feeds)
        (row,) = selected_kernels(plan.parts[plan.driver], context.devices)
        return value.ravel()[0], row.provider, dict(row.refused)


def test_the_first_provider_that_serves_is_chosen(providers):
    assert outcome([3]) == (1, "first", {})
    assert outcome([3, 3]) == (2, "second", {"first": "it is no vector"})


def test_a_user_orders_providers_or_does_without(providers):
    assert outcome([3], kernels="second") == (2, "second", {})
    assert outcome([3], kernels="second,first") == (2, "second", {})
    assert outcome([3], kernels="plain") == (0, "numpy", {})


def test_exact_keeps_what_rounds_otherwise_out(providers):
    value, provider, refused = outcome([3], exact=True)
    assert (value, provider) == (2, "second") and "exact" in refused["first"]


def test_what_is_absent_does_not_serve_and_says_why(providers, monkeypatch):
    monkeypatch.setattr(kernel_registry, "absent", "no library")
    assert outcome([3]) == (2, "second", {"first": "no library"})
    assert outcome([3], kernels="first") == (0, "numpy", {"first": "no library"})


def test_an_unknown_provider_is_an_error(providers):
    with pytest.raises(HpcflowError, match="third"):
        RankContext(Settings(kernels="first,third"))


def test_nodes_inside_loops_are_told_too(providers):
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [2])
        y = hf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, hf.tanh(v)), (0, x))[1]
        session = hf.Session()
        plan = session.plan(y, {x: np.zeros(2, np.float32)})
        rows = selected_kernels(plan.parts[plan.driver], context.devices)
        assert ("Tanh", "first") in {(row.type, row.provider) for row in rows}


def test_the_table_says_who_serves_and_why_no_better_one(providers):
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        x, y = (hf.placeholder(hf.float32, shape, name="x") for shape in ([2, 2], [3]))
        fetches = [hf.tanh(x, name="matrix"), hf.tanh(y, name="vector"), hf.exp(y, name="third")]
        feeds = {x: np.ones((2, 2), np.float32), y: np.ones(3, np.float32)}
        plan = hf.Session().plan(fetches, feeds)
        text, data = (tell(plan, context.devices) for tell in (kernels_text, kernels_data))
    rows = {one["node"]: (one["type"], one["provider"], one["instead_of"]) for one in data}
    refused = [{"provider": "first", "reason": "it is no vector"}]
    assert rows["matrix"] == ("Tanh", "second", refused)
    assert rows["vector"] == ("Tanh", "first", []) and rows["third"] == ("Exp", "numpy", [])
    lines = [line.split() for line in text.splitlines()]
    assert ["Tanh", "1", "second", "first:", "it", "is", "no", "vector"] in lines
    assert ["Exp", "1", "numpy"] in lines and ["vector", "Tanh", "first"] in lines


def test_a_kernel_of_the_user_comes_before_those_of_providers(monkeypatch):
    monkeypatch.setattr(kernel_registry, "_OWN", {("MatMul", "xp")})
    monkeypatch.setattr(kernel_registry, "_TABLE", dict(kernel_registry._TABLE))
    own = kernel_registry.Kernel("out", lambda xp, node: lambda a, b, out: out.fill(42))
    kernel_registry._TABLE["MatMul", "xp"] = own
    kernel_registry._TABLE.pop(("MatMul", "cpu"), None)
    a, b = np.ones((80, 200), "f4"), np.ones((200, 180), "f4")
    choice, node = chosen("MatMul", {"transpose_a": False, "transpose_b": False}, [a, b])
    assert choice.kernel is own and (run(choice, node, [a, b]) == 42).all()


def test_the_row_of_an_op_names_the_modules_of_its_kernels():
    """Else the kernel is there only if another op has loaded its module."""
    rows = all_ops()
    kernel_registry.names()  # all kernels are imported
    for (type, on), by_provider in kernel_registry._FAST.items():
        for provider, kernel in by_provider.items():
            module = kernel.make.__module__
            if module.startswith("hpcflow."):
                assert module in rows[type].kernels, f"{provider} kernel of {type} on {on}"
