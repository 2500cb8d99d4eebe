"""Generated loops of max pooling against the plain kernels."""

import numpy as np
import pytest

from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.kernels.kernel_registry import KernelChoice, find_plain_kernel
from tests.kernels.against_plain import both, chosen, close, run, run_all

pytestmark = pytest.mark.skipif(bool(absent()), reason=absent())
CASES = [  # batch, space, channels, window, strides
    (3, (8, 8), 16, (2, 2), (2, 2)),
    (2, (9, 7), 5, (3, 3), (2, 2)),
    (2, (9, 8), 1, (3, 2), (3, 3)),
    (1, (5, 6), 33, (2, 3), (1, 2)),
    (2, (4, 4), 3, (4, 4), (4, 4)),
    (2, (7, 9), 8, (1, 1), (1, 1)),
    (2, (7, 9), 8, (1, 1), (3, 2)),
    (2, (7, 8), 5, (3, 3), (2, 2), "SAME"),
    (2, (7, 6), 16, (3, 2), (1, 1), "SAME"),
    (1, (5, 5), 7, (2, 2), (2, 2), "SAME"),
    (2, (4, 6), 9, (3, 4), (3, 4), ((1, 2), (2, 1))),
    (1, (6, 1), 4, (5, 3), (2, 1), ((2, 4), (1, 1))),
]


def pooled(rng, batch, space, channels, window, strides, padding="VALID", low=-9):
    """Attributes and x with many equal elements."""
    attrs = dict(strides=strides, dilations=(1, 1), window=window, padding=padding, first=False)
    x = np.maximum(rng.integers(-3, 3, (batch, *space, channels)), low).astype(np.float32)
    return attrs, x


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_largest_and_its_gradient(case):
    rng = np.random.default_rng(0)
    attrs, x = pooled(rng, *case)
    provider, y, plain = both("MaxPool", attrs, [x])
    assert provider == "llvm" and np.array_equal(y, plain)
    g = rng.standard_normal(y.shape).astype(np.float32)
    provider, fast, plain = both("MaxPoolGrad", attrs, [x, y, g])
    apart = all(s >= k for s, k in zip(case[4], case[3], strict=True))
    assert (provider == "llvm") == apart
    close(fast, plain)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_behind_a_relu(case, bias):
    rng = np.random.default_rng(1)
    attrs, x = pooled(rng, *case, low=0)
    y = run(*chosen("MaxPool", attrs, [x]), [x])
    inputs = [x, y, rng.standard_normal(y.shape).astype(np.float32)]
    choice, node = chosen("MaxPoolReluGrad", {**attrs, "bias": bias}, inputs)
    assert choice.kernel.provider == "llvm"
    fast = run_all(choice, node, inputs)
    plain = run_all(KernelChoice(find_plain_kernel("MaxPoolReluGrad", "cpu")), node, inputs)
    # by the kernels of the parts
    back = run(*chosen("MaxPoolGrad", attrs, inputs), inputs)
    wanted = [back * (x > 0), (back * (x > 0)).astype(np.float64).sum(axis=(0, 1, 2))]
    assert len(fast) == len(plain) == 1 + bias
    for values in (fast, plain):
        for value, want in zip(values, wanted, strict=False):
            close(value, want)


def test_special_values_are_those_of_the_plain_kernel():
    attrs, x = pooled(np.random.default_rng(2), 1, (4, 4), 4, (2, 2), (2, 2))
    x[0, 0, 0, 0] = x[0, 1, 1, 1] = x[0, 2:, 2:, 2] = np.nan
    x[0, :2, :2, 3] = -np.inf
    x[0, 2, 2, 3] = np.inf
    provider, y, plain = both("MaxPool", attrs, [x])
    assert provider == "llvm" and np.array_equal(y, plain, equal_nan=True)
    provider, fast, plain = both("MaxPoolGrad", attrs, [x, y, np.ones_like(y)])
    assert provider == "llvm" and np.array_equal(fast, plain)


def test_inputs_need_not_be_contiguous():
    attrs, x = pooled(np.random.default_rng(3), 2, (8, 8), 4, (2, 2), (2, 2))
    view = np.repeat(x, 2, 0)[::2]
    assert not view.flags.c_contiguous
    provider, y, plain = both("MaxPool", attrs, [view])
    assert provider == "llvm" and np.array_equal(y, plain)


@pytest.mark.parametrize(
    ("changed", "dtype", "unknown", "why"),
    [
        ({"padding": ((2, 0), (0, 0))}, "f4", (), "nothing but padding"),
        ({"padding": ((0, 3), (0, 0)), "window": (1, 2)}, "f4", (), "nothing but padding"),
        ({"dilations": (2, 2)}, "f4", (), "gaps"),
        ({"first": True}, "f4", (), "channels"),
        ({"window": (6, 6)}, "f4", (), "large"),
        ({}, "f8", (), "float32"),
        ({}, "f4", (0,), "known only in the step"),
    ],
)
def test_what_it_refuses(changed, dtype, unknown, why):
    attrs, x = pooled(np.random.default_rng(4), 2, (9, 9), 9, (2, 2), (2, 2))
    choice, _ = chosen("MaxPool", {**attrs, **changed}, [x.astype(dtype)], unknown)
    assert choice.kernel.provider == "plain" and why in dict(choice.refused)["llvm"]
