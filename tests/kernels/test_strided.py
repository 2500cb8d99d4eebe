"""Products of matrices at any strides: of oneDNN and plain, beside NumPy's."""

import numpy as np
import pytest

from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import (
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)
from hpcflow.kernels.strided_matmul import view
from tests.kernels.against_plain import close

RNG = np.random.default_rng(8)
B, T, H, D = 2, 64, 3, 96
HEADS = (0, (B, H, T, D), (T * 3 * H * D, D, 3 * H * D, 1))  # of [B, T, 3, H, D]
KEYS = (H * D, (B, H, D, T), (T * 3 * H * D, D, 1, 3 * H * D))
SCORES = (0, (B, H, T, T), (H * T * T, T * T, T, 1))
MIXED = (2 * H * D, *HEADS[1:])


def normal(*shape):
    return RNG.standard_normal(shape).astype("f4")


def kernel(lays, shape, inputs, plain):
    """A kernel, and who provides it."""
    specs = [Spec(x.dtype, x.shape) for x in inputs]
    attrs = {"lays": lays, "shape": shape, "inplace": (2,) if len(inputs) > 2 else ()}
    node = KernelNode("StridedMatMul", attrs, specs, lookup_op("StridedMatMul").infer(specs, attrs))
    row = (
        find_plain_kernel("StridedMatMul", "cpu")
        if plain
        else choose_kernel(node, "cpu", kernel_preferences()).kernel
    )
    return row.make(np, node), row.provider


@pytest.mark.parametrize("plain", [True, False])
def test_operands_are_read_where_they_lie(plain):
    joint = normal(B, T, 3, H, D)
    run, provider = kernel((HEADS, KEYS, SCORES), (B, H, T, T), [joint, joint], plain)
    assert plain or provider == "onednn" or onednn_library.absent()
    out = np.full((B, H, T, T), np.nan, "f4")
    for given in (joint, joint.swapaxes(0, 1).copy().swapaxes(0, 1)):  # the second is copied first
        run(given, given, out)
        q, k, _ = np.moveaxis(joint.astype("f8"), 2, 0)
        close(out, np.einsum("bthd,bshd->bhts", q, k))


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_a_part_of_the_result_is_written_and_the_rest_is_what_it_was(plain, there):
    scores, values, before = normal(B, H, T, T), normal(B, T, 3, H, D), normal(B, T, 3, H, D)
    inputs = [scores, values, before]
    run, _ = kernel((SCORES, HEADS, MIXED), before.shape, inputs, plain)
    wanted = before.astype("f8")
    wanted[:, :, 2] = np.einsum("bhts,bshd->bthd", scores.astype("f8"), values[:, :, 0])
    out = before if there else np.full_like(before, np.nan)
    run(*inputs, out)
    close(out, wanted)


def test_a_view_is_where_the_lay_says():
    x = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(view(np, x, (5, (2, 3), (12, 1))), [[5, 6, 7], [17, 18, 19]])
