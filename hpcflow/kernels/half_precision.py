"""Half-precision wrappers: float16 and bfloat16 kernels compute in float32 and round."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import kernel_cache, llvm_cpu_codegen, llvm_cpu_compiler
from hpcflow.codegen.fused_loop_ir import FULL, ROUND, KernelBody, KernelOperand, KernelStep
from hpcflow.codegen.llvm_builder import storage_type_of
from hpcflow.graph.dtypes import float32, is_half

Make = Callable[[Any, Any], Callable[..., Any]]


def widened(form: str, make: Make) -> Make:
    """`make` whose kernels get float32 in place of 16-bit floats."""

    def made(xp: Any, node: Any) -> Callable[..., Any]:
        if not has_half(node):
            return make(xp, node)
        return _WRAPPERS[form](xp, node, make(xp, wide_node(node)))

    return made


def has_half(node: Any) -> bool:
    """Whether a node has 16-bit floats."""
    return any(is_half(s.dtype) for s in (*node.inputs, *node.outputs))


def wide_node(node: Any) -> Any:
    """The node with float32 in place of 16-bit floats."""
    attrs = dict(node.attrs)
    if "dtype" in attrs and is_half(attrs["dtype"]):
        attrs["dtype"] = float32
    inputs, outputs = ([_wide_spec(s) for s in specs] for specs in (node.inputs, node.outputs))
    return dataclasses.replace(node, attrs=attrs, inputs=inputs, outputs=outputs)


def _wide_spec(spec: Any) -> Any:
    return spec._replace(dtype=float32) if is_half(spec.dtype) else spec


def _widen_arrays(arrays: Sequence[Any], specs: Sequence[Any]) -> list[Any]:
    """The arrays, those of 16-bit floats as float32 copies."""
    pairs = zip(arrays, specs, strict=True)
    return [x.astype(float32) if is_half(s.dtype) else x for x, s in pairs]


def _out(xp: Any, node: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    count = len(node.outputs)

    def call(*args: Any) -> None:
        inputs, outs = args[: len(args) - count], args[len(args) - count :]
        wide = [xp.empty(o.shape, float32) if is_half(o.dtype) else o for o in outs]
        run(*_widen_arrays(inputs, node.inputs), *wide)
        for out, wide_out in zip(outs, wide, strict=True):
            if out is not wide_out:
                _round(xp, out, wide_out)

    return call


def _round(xp: Any, out: Any, wide: Any) -> None:
    """Copy float32 to 16-bit floats; NumPy's loops are slower than generated ones."""
    kernel = _rounding(out.dtype) if xp is np else None
    if kernel is not None and out.flags.c_contiguous and wide.flags.c_contiguous:
        kernel(wide, out)
    else:
        xp.copyto(out, wide, casting="same_kind")


@functools.cache
def _rounding(dtype: np.dtype) -> Callable[..., Any] | None:
    """The generated kernel of float32 and 16-bit floats; None without a compiler for these."""
    storage = storage_type_of(dtype)
    if llvm_cpu_compiler.absent() or storage is None:
        return None
    operands = (KernelOperand(np.dtype(float32), FULL),)
    steps = (KernelStep(ROUND, (0,), {"storage": storage}),)
    source = llvm_cpu_codegen.text(KernelBody(operands, steps, (1,)), exact=True)
    assert source is not None
    return kernel_cache.builtin(source)


def _new(xp: Any, node: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    def rounded(value: Any, spec: Any) -> Any:
        return value.astype(spec.dtype) if is_half(spec.dtype) else value

    def call(*inputs: Any) -> Any:
        results = run(*_widen_arrays(inputs, node.inputs))
        if len(node.outputs) != 1:
            if not node.outputs:
                return results
            return tuple(rounded(v, s) for v, s in zip(results, node.outputs, strict=True))
        return rounded(results, node.outputs[0])

    return call


def _update(xp: Any, node: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    handles = sum(s.dtype.kind == "V" and not is_half(s.dtype) for s in node.inputs)

    def call(*arrays: Any) -> None:
        wide = _widen_arrays(arrays, arrays)
        run(*wide)
        for array, wide_array in zip(arrays[:handles], wide, strict=False):
            if array is not wide_array:
                xp.copyto(array, wide_array, casting="same_kind")

    return call


_WRAPPERS = {"out": _out, "new": _new, "update": _update}
