"""Texts of kernels that are written once: which bodies share one."""

import dataclasses

import numpy as np
import pytest

from hpcflow.codegen import llvm_cpu_codegen
from hpcflow.codegen.fused_loop_ir import FULL, NUMBER, ONE, KernelBody, KernelOperand, KernelStep
from hpcflow.lowering.fusion import kernel_dedup
from hpcflow.plan.ir.program import Node


def scaled(by: float, kind: str = "float32") -> KernelBody:
    """x * by"""
    dtype = np.dtype(kind)
    steps = (
        KernelStep(NUMBER, (), {"value": by, "dtype": dtype}, ONE),
        KernelStep("Mul", (0, 1), {}),
    )
    return KernelBody((KernelOperand(dtype, FULL),), steps, (2,))


@pytest.mark.parametrize("other", [scaled(-0.0), scaled(1.0), scaled(0.0, "float64")])
def test_bodies_that_differ_have_texts_of_their_own(other: KernelBody) -> None:
    first, second = (
        kernel_dedup.cpu_kernel(scaled(0.0), False),
        kernel_dedup.cpu_kernel(other, False),
    )
    assert first is not None and second is not None
    assert (first.text, second.text) == (
        llvm_cpu_codegen.text(scaled(0.0), False),
        llvm_cpu_codegen.text(other, False),
    )
    assert first.text != second.text


def test_equal_bodies_share_one() -> None:
    assert kernel_dedup.cpu_kernel(scaled(3.0), False) is kernel_dedup.cpu_kernel(
        scaled(3.0), False
    )


def test_a_body_without_a_formula_has_none_where_bits_count() -> None:
    body = KernelBody(
        (KernelOperand(np.dtype("float32"), FULL),), (KernelStep("Exp", (0,), {}),), (1,)
    )
    assert kernel_dedup.cpu_kernel(body, False) is not None
    assert kernel_dedup.cpu_kernel(body, True) is None


def test_a_copy_of_a_node_has_the_fields_of_a_node() -> None:
    node = Node("a", "Add", control=("b",), line="file.py:1")
    assert node.but(name="c") == dataclasses.replace(node, name="c")
    assert node.name == "a"
    with pytest.raises(TypeError, match="color"):
        node.but(color="red")
