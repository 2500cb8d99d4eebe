"""Fused operations compute what they compute one by one, whatever stands between them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.plan import fuse as module
from hpcflow.plan.ir import Part
from hpcflow.runtime import serving

SHAPES = [(4, 6), (6,), (1, 6), (4, 1), (), (1,)]
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, hf.maximum, hf.minimum]
UNARY = [hf.abs, hf.square, hf.nn.relu, lambda x: hf.sqrt(hf.abs(x)), operator.neg, hf.identity]
BETWEEN = [
    lambda x: hf.reduce_sum(x, -1, keepdims=True) if x.shape else x,
    lambda x: hf.matmul(x, x, transpose_b=True)[:, :1] if len(x.shape) == 2 else x,
    lambda x: hf.transpose(hf.transpose(x)),
    lambda x: hf.reverse(x, [0]) if x.shape else x,
    hf.reduce_mean,
]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def context(**given: Any) -> Any:
    """A single rank with these settings."""
    from hpcflow.runtime.context import Context
    from hpcflow.settings import Settings

    return Context(Settings(**given))


def results(program: Any, fuse: bool) -> tuple[list[bytes], int]:
    """What a random program leaves in its variables and fetches; how many kernels were fused."""
    made: list[Part] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        original = module._replaced
        patch.setattr(module, "_replaced", lambda *a: made.append(original(*a)) or made[-1])
        rng = np.random.default_rng(3)
        variables = [
            hf.Variable(rng.standard_normal(shape).astype("f4"), name=f"v{i}")
            for i, shape in enumerate([(4, 6), (6,)])
        ]
        feeds = [hf.placeholder(hf.float32, shape) for shape in SHAPES]
        values, done = list(feeds), []
        for kind, a, b, which in program:
            x, y = values[a % len(values)], values[b % len(values)]
            with hf.control_dependencies(done[-1:]):
                if kind == "read":
                    values.append(variables[which % 2].read_value())
                elif kind == "unary":
                    values.append(UNARY[which % len(UNARY)](x))
                elif kind == "binary":
                    values.append(BINARY[which % len(BINARY)](x, y))
                elif kind == "where":
                    values.append(
                        hf.where(hf.broadcast_to(hf.greater(x, y), (x + y).shape), x + y, y - x)
                    )
                elif kind == "between":
                    values.append(BETWEEN[which % len(BETWEEN)](x))
                elif x.shape == variables[which % 2].shape:
                    done.append(getattr(variables[which % 2], kind)(x))
        session = hf.Session(context=context(kernels="auto" if fuse else "plain", exact=True))
        session.run(hf.global_variables_initializer())
        fed = {x: rng.standard_normal(x.shape).astype("f4") for x in feeds}
        fetched = [values[-1], values[len(values) // 2], *done[-1:]]
        found = [session.run(fetched, fed) for _ in range(2)]
        end = session.run(variables)
    arrays = [x for step in found for x in step if x is not None] + end
    return [np.asarray(x).tobytes() for x in arrays], sum(
        node.type == "Fused" for part in made for node in part.nodes.values()
    )


STEP = st.tuples(
    st.sampled_from(
        "read unary unary binary binary binary where between assign assign_add assign_sub".split()
    ),
    *(st.integers(0, 50) for _ in range(3)),
)


@settings(max_examples=150, deadline=None)
@given(program=st.lists(STEP, min_size=3, max_size=30))
def test_any_program_gives_the_same_bits(program: Any) -> None:
    plain, none = results(program, fuse=False)
    assert none == 0
    assert results(program, fuse=True)[0] == plain


def test_a_chain_is_one_kernel() -> None:
    chain = [("binary", 0, 1, 0)] + [("unary", 6 + i, 0, i % 3) for i in range(20)]
    assert results(chain, fuse=True)[1] == 1


def test_without_llvmlite_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "absent", lambda: "it is not here")
    assert results([("binary", 0, 1, 0), ("unary", 6, 0, 1)], fuse=True)[1] == 0
