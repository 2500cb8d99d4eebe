"""GPU kernel agreement: NVIDIA's libraries beside plain kernels, on small arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.doctor.rank_facts import KernelAgreement
from hpcflow.kernels.kernel_registry import (
    Kernel,
    KernelNode,
    KernelPreferences,
    choose_kernel,
    find_plain_kernel,
)

EPSILON = {"float32": 2**-23, "float64": 2**-52, "float16": 2**-10, "bfloat16": 2**-7}
ROUNDINGS = 16  # tolerated relative error by norm, in units of the dtype's epsilon
NOT_TRANSPOSED = {"transpose_a": False, "transpose_b": False}
TRANSPOSED = {"transpose_a": True, "transpose_b": True}
SLIDING: dict[str, Any] = {"strides": (2, 2), "dilations": (1, 1), "padding": "SAME"}
SLIDING |= {"first": False, "groups": 1}
X, W, Y = (4, 12, 12, 16), (3, 3, 16, 32), (4, 6, 6, 32)
Sizes = tuple[int, ...]
PRODUCTS: list[tuple[str, dict[str, Any], list[Sizes], Sizes]] = [
    ("MatMul", NOT_TRANSPOSED, [(64, 48), (48, 80)], (64, 80)),
    ("MatMul", TRANSPOSED, [(3, 48, 64), (3, 80, 48)], (3, 64, 80)),
    ("MatMulBias", {**NOT_TRANSPOSED, "relu": False}, [(64, 48), (48, 80), (80,)], (64, 80)),
    ("MatMulBias", {**NOT_TRANSPOSED, "relu": True}, [(64, 48), (48, 80), (80,)], (64, 80)),
]
CONVOLUTIONS: list[tuple[str, dict[str, Any], list[Sizes], Sizes]] = [
    ("Conv", SLIDING, [X, W], Y),
    ("ConvBias", {**SLIDING, "relu": False}, [X, W, (32,)], Y),
    ("ConvBias", {**SLIDING, "relu": True}, [X, W, (32,)], Y),
    ("ConvInputGrad", {**SLIDING, "shape": X}, [Y, W], X),
    ("ConvFilterGrad", {**SLIDING, "shape": W}, [X, Y], W),
]
CASES = {"cublaslt": PRODUCTS, "cudnn": CONVOLUTIONS}


def agreements(xp: Any) -> list[KernelAgreement]:
    """The agreement of each library on the current GPU; `xp` is CuPy."""
    return [_agreement(xp, provider) for provider in CASES]


def _agreement(xp: Any, provider: str) -> KernelAgreement:
    agreement = KernelAgreement(provider)
    for type, attrs, shapes, shape in CASES[provider]:
        for dtype, epsilon in EPSILON.items():
            title = ", ".join([f"{type} of {dtype}", *(n for n in attrs if attrs[n] is True)])
            rng = np.random.default_rng(len(title))
            inputs = [rng.standard_normal(s).astype(dtype) for s in shapes]
            node = KernelNode(type, attrs, inputs, [np.full(shape, np.nan, dtype)])
            try:
                kernel, refused = choose_kernel(node, "gpu", KernelPreferences((provider,)))
                if refused:
                    agreement.refused[title] = refused[0][1]
                    continue
                difference = _relative_difference(_by_gpu(xp, kernel, node), _by_plain(node))
                if not difference <= ROUNDINGS * epsilon:  # also true for NaN
                    agreement.wrong[title] = f"{difference:.1g} off"
            except Exception as error:  # every error belongs in the report
                agreement.wrong[title] = f"{error.__class__.__name__}: {error}".splitlines()[0]
            agreement.run += 1
    return agreement


def _by_gpu(xp: Any, kernel: Kernel, node: KernelNode) -> np.ndarray:
    out = xp.asarray(node.outputs[0])
    kernel.make(xp, node)(*(xp.asarray(x) for x in node.inputs), out)
    return out.get()


def _by_plain(node: KernelNode) -> np.ndarray:
    """The result of NumPy in float64."""
    inputs, outputs = ([x.astype(np.float64) for x in xs] for xs in (node.inputs, node.outputs))
    wide = KernelNode(node.type, node.attrs, inputs, outputs)
    find_plain_kernel(node.type, "cpu").make(np, wide)(*inputs, *outputs)
    return outputs[0]


def _relative_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected))
