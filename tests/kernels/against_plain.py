"""A fast kernel beside the plain one of the same node."""

from __future__ import annotations

import numpy as np

from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import (
    KernelChoice,
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)


def chosen(type, attrs, inputs, unknown=(), kernels="auto"):
    """The choice for a node with these inputs, and the node; axis 0 of `unknown` inputs is open."""
    specs = [
        Spec(x.dtype, (None, *x.shape[1:]) if i in unknown else x.shape)
        for i, x in enumerate(inputs)
    ]
    outputs = lookup_op(type).infer(specs, attrs)
    node = KernelNode(type, attrs, specs, outputs)
    return choose_kernel(node, "cpu", kernel_preferences(kernels)), node


def both(type, attrs, inputs, unknown=(), kernels="auto"):
    """Who serves, what it computes, and what the plain kernel does: (provider, value, value)."""
    choice, node = chosen(type, attrs, inputs, unknown, kernels)
    plain = KernelChoice(find_plain_kernel(type, "cpu"))
    return choice.kernel.provider, *(run(c, node, inputs) for c in (choice, plain))


def run(choice, node, inputs):
    """The first output of a kernel."""
    return run_all(choice, node, inputs)[0]


def run_all(choice, node, inputs):
    """The outputs of a kernel; they start as garbage."""
    specs = lookup_op(node.type).infer([Spec(x.dtype, x.shape) for x in inputs], node.attrs)
    outs = [np.full(s.shape, np.nan, s.dtype) for s in specs]
    choice.kernel.make(np, node)(*inputs, *outs)
    return outs


def close(a, b, tolerance=2e-6):
    """Equal by norm: the difference of two sums in another order."""
    assert a.shape == b.shape and np.isfinite(a).all()
    wide = np.float64
    difference = np.linalg.norm(a.astype(wide) - b.astype(wide))
    assert difference <= tolerance * max(np.linalg.norm(b.astype(wide)), 1e-30), difference
