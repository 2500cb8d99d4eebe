"""Programs on a GPU's double, whose generated kernels run in an emulator, beside NumPy's."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.codegen import ptx_compiler
from hpcflow.kernels import kernel_registry, llvm_fused_loop  # noqa: F401 - a row of the table
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step import kernel_selection
from hpcflow.runtime.step.kernel_selection import kernels_text
from hpcflow.settings import Settings
from tests.plan.test_fuse import BY_ROWS, SPLIT, STEP, over_rows, results, values  # noqa: F401
from tests.runtime.nets import net, trained
from tests.runtime.test_gpu import gpus  # noqa: F401

pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)


@pytest.mark.slow(first=False)
@settings(max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(BY_ROWS, min_size=3, max_size=14))
@example(program=SPLIT)
def test_any_program_gives_nearly_the_same(gpus: Any, values: Any, program: Any) -> None:  # noqa: F811
    plain, made = over_rows(program, "plain"), over_rows(program, "auto")
    for mine, right in zip(made, plain, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(mine, right, atol=2e-5 * scale)


def kernels(**given: Any) -> dict[str, set[str]]:
    """Who provides the kernels of a step of training: type of operation -> providers."""
    with use_context(RankContext(Settings(**given))), hf.Graph().as_default():
        x, y, loss, train, _ = net()
        session = hf.Session()
        fed = {x: np.zeros((8, 6), "f4"), y: np.zeros(8, "i8")}
        plan = session.plan([loss, train], fed)
        found: dict[str, set[str]] = {}
        for line in kernels_text(plan, session.context.devices).split("\n\n")[0].splitlines()[1:]:
            type, _, by = line.split()[:3]
            found.setdefault(type, set()).add(by)
        return found


def test_a_step_of_training_has_generated_kernels(gpus: Any) -> None:  # noqa: F811
    found = kernels()
    assert found["Fused"] == {"llvm"} and not found.keys() & {"Relu", "ReluGrad", "Sum"}


def test_kernels_that_may_round_otherwise_are_not_for_exact_programs(gpus: Any) -> None:  # noqa: F811
    assert "Fused" not in kernels(exact=True)
    assert "Fused" not in kernels(kernels="plain")


@pytest.mark.gpu
@settings(max_examples=50, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(BY_ROWS, min_size=3, max_size=14))
@example(program=SPLIT)
def test_any_program_on_a_real_gpu(values: Any, program: Any) -> None:  # noqa: F811
    plain, made = over_rows(program, "plain"), over_rows(program, "auto")
    for mine, right in zip(made, plain, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(mine, right, atol=2e-5 * scale)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["descent", "momentum", "adam", "rmsprop", "adagrad"])
def test_an_optimizer_s_updates_on_a_real_gpu(name: str) -> None:
    test_an_optimizer_s_updates(None, name)


OPTIMIZERS = {
    "descent": lambda: hf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: hf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: hf.train.AdamOptimizer(0.01),
    "rmsprop": lambda: hf.train.RMSPropOptimizer(0.01),
    "adagrad": lambda: hf.train.AdagradOptimizer(0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_s_updates(gpus: Any, name: str) -> None:  # noqa: F811
    """Many steps, so that counts and powers of them differ; a snapshot is read while others run."""
    found = {}
    for kernels in ("auto", "plain"):
        with use_context(RankContext(Settings(kernels=kernels))), hf.Graph().as_default():
            found[kernels] = trained(40, OPTIMIZERS[name]())
    for mine, right in zip(found["auto"], found["plain"], strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-4, atol=2e-5)


def test_updates_are_generated_loops(gpus: Any) -> None:  # noqa: F811
    assert kernels()["ApplyAdam"] == {"llvm"}
    assert kernels(exact=True)["ApplyAdam"] == {"numpy"}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(STEP, min_size=3, max_size=30))
def test_any_program_gives_the_same_bits(gpus: Any, program: Any) -> None:  # noqa: F811
    """On the host the same formulas give the same bits, whatever stands between them."""
    with pytest.MonkeyPatch.context() as patch:
        row = kernel_registry._FAST["Fused", "gpu"]["llvm"]
        patch.setitem(
            kernel_registry._FAST["Fused", "gpu"], "llvm", dataclasses.replace(row, exact=True)
        )
        patch.setattr(kernel_selection, "loop_device_kinds", lambda wish: ("cpu", "gpu"))
        assert results(program, fuse=True)[0] == results(program, fuse=False)[0]
        chain = [("binary", 0, 1, 0)] + [("unary", 6 + i, 0, i % 3) for i in range(9)]
        assert results(chain, fuse=True)[1] == 1


def gates(**given: Any) -> tuple[list[np.ndarray], set[str]]:
    """The gates of a cell from the parts of a row, and the gradient; the types of its kernels."""
    rng = np.random.default_rng(3)
    with use_context(RankContext(Settings(**given))), hf.Graph().as_default():
        x = hf.Variable(rng.standard_normal((6, 48)).astype("f4"))
        c = hf.Variable(rng.standard_normal((6, 12)).astype("f4"))
        i, j, f, o = hf.split(hf.tanh(x), 4, 1)
        new = c * hf.sigmoid(f) + hf.sigmoid(i) * hf.tanh(j)
        h = hf.tanh(new) * hf.sigmoid(o)
        fetches = [h, *hf.gradients(hf.square(h), [x, c])]
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        text = kernels_text(session.plan(fetches, {}), session.context.devices)
        types = {line.split()[0] for line in text.split("\n\n")[0].splitlines()[1:]}
        return session.run(fetches), types


def test_parts_of_rows_are_read_and_written_in_place(gpus: Any) -> None:  # noqa: F811
    found, types = gates()
    plain, others = gates(kernels="plain")
    for mine, right in zip(found, plain, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
    assert others & {"Split", "Concat"} and types.isdisjoint({"Split", "Concat"})
