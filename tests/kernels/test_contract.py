"""Generated einsums: equal to NumPy's, and only where a product of matrices is no better way."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import hpcflow.kernels.llvm_einsum  # noqa: F401  (fills the table)
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import KernelNode, choose_kernel, kernel_preferences

SIZES = {"a": 3, "b": 37, "n": 5, "d": 130, "k": 1}


def chosen(equation, dtype="float32", sizes=None, kernels="auto"):
    """The node of an einsum, and what serves it."""
    left, _, right = equation.partition("->")
    terms = left.split(",")
    shapes = [[(sizes or SIZES)[c] for c in term] for term in (*terms, right)]
    specs = [Spec(np.dtype(dtype), tuple(shape)) for shape in shapes]
    node = KernelNode("Einsum", {"equation": equation}, specs[:-1], specs[-1:])
    return node, choose_kernel(node, "cpu", kernel_preferences(kernels))


@pytest.mark.parametrize("dtype, near", [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize(
    "equation",
    [
        *("bd,bnd->bn", "bn,bnd->bd", "bn,bd->bnd", "bd,bd->b", "bd,bd->bd", "nbd,bd->nb"),
        *("bd,nd->bnd", "bkd,bnd->bkn", "abd,abd->a", "b,bnd->bnd", "nab,b->nab"),
    ],
)
def test_sums_of_products_are_those_of_numpy(equation, dtype, near):
    rng = np.random.default_rng(0)
    node, choice = chosen(equation, dtype)
    assert choice.kernel.provider == "llvm"
    x, y = (rng.standard_normal(spec.shape).astype(dtype) for spec in node.inputs)
    out = np.full(node.outputs[0].shape, np.nan, dtype)
    choice.kernel.make(np, node)(x, y, out)
    exact = np.einsum(equation, x.astype("f8"), y.astype("f8"))
    size = np.einsum(equation, abs(x).astype("f8"), abs(y).astype("f8"))
    assert (abs(out - exact) <= near * size).all()
    choice.kernel.make(np, node)(np.asfortranarray(x), y, out)
    assert (abs(out - exact) <= near * size).all()


@pytest.mark.parametrize(
    "equation, why",
    [
        ("and,abd->anb", "matrices"),
        ("bd,dn->bn", "matrices"),
        ("bn,bnd->dbn", "memory"),
        ("bd,ba->b", "alone"),
        ("bb,bd->bd", "alone"),
    ],
)
def test_other_einsums_are_left_to_products_of_matrices(equation, why):
    assert why in dict(chosen(equation)[1].refused)["llvm"]


def test_an_axis_of_size_1_is_left_to_broadcasting():
    specs = [Spec(np.dtype("f4"), s) for s in ((4, 1), (4, 3, 7), (4, 3))]
    node = KernelNode("Einsum", {"equation": "bd,bnd->bn"}, specs[:2], specs[2:])
    assert "repeated" in dict(choose_kernel(node, "cpu", kernel_preferences()).refused)["llvm"]
