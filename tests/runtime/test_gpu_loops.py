"""Programs on a GPU's double, whose generated kernels run in an emulator, beside NumPy's."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.native import ptx
from hpcflow.runtime.context import Context
from hpcflow.runtime.job import use
from hpcflow.runtime.serving import kernels_text
from hpcflow.settings import Settings
from tests.plan.test_fuse import BY_ROWS, SPLIT, over_rows, values  # noqa: F401
from tests.runtime.nets import net
from tests.runtime.test_gpu import gpus  # noqa: F401

pytestmark = pytest.mark.skipif(bool(ptx.absent()), reason=f"needs llvmlite: {ptx.absent()}")


@settings(max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(BY_ROWS, min_size=3, max_size=14))
@example(program=SPLIT)
def test_any_program_gives_nearly_the_same(gpus: Any, values: Any, program: Any) -> None:  # noqa: F811
    plain, fused = over_rows(program, "plain"), over_rows(program, "auto")
    for mine, right in zip(fused, plain, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(mine, right, atol=2e-5 * scale)


def kernels(**given: Any) -> dict[str, set[str]]:
    """Who provides the kernels of a step of training: type of operation -> providers."""
    with use(Context(Settings(**given))), hf.Graph().as_default():
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
