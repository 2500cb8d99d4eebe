"""Kernel deduplication: the source of equal kernels is generated once.

In a network unrolled over time, the kernels of most time steps are equal.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from hpcflow.codegen import llvm_cpu_codegen, variable_update_codegen
from hpcflow.codegen.fused_loop_ir import KernelBody
from hpcflow.codegen.variable_update_codegen import UpdateKernel
from hpcflow.plan.ir.attribute_values import CanonicalValue

MAX_CACHED_SOURCES = 1024  # cached sources


class GeneratedKernel(NamedTuple):
    """A kernel's source, and the operands that its first result may overwrite in place."""

    text: str
    inplace: tuple[int, ...]


def cpu_kernel(body: KernelBody, exact: bool) -> GeneratedKernel | None:
    """The CPU kernel of a body; None if an operation has no formula."""
    return _cpu_kernel(CanonicalValue(body), exact)


def gpu_kernel(body: KernelBody, size: int) -> GeneratedKernel | None:
    """The GPU kernel of a body over `size` elements; None if an operation has no formula."""
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    return _gpu_kernel(CanonicalValue(body), size < ptx_codegen.INT32_INDEX_LIMIT)


def cpu_update_loop(kernel: UpdateKernel, exact: bool) -> str | None:
    """The source of an update loop; None if an operation has no formula."""
    return _cpu_update_loop(CanonicalValue(kernel), exact)


def gpu_update_loop(kernel: UpdateKernel) -> str | None:
    """The source of an update loop for GPUs; None if an operation has no formula."""
    return _gpu_update_loop(CanonicalValue(kernel))


@functools.lru_cache(MAX_CACHED_SOURCES)
def _cpu_kernel(body: CanonicalValue, exact: bool) -> GeneratedKernel | None:
    text = llvm_cpu_codegen.text(body.value, exact)
    return (
        None
        if text is None
        else GeneratedKernel(text, tuple(llvm_cpu_codegen.writable(body.value)))
    )


@functools.lru_cache(MAX_CACHED_SOURCES)
def _gpu_kernel(body: CanonicalValue, small: bool) -> GeneratedKernel | None:
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    text = ptx_codegen.text(body.value, small)
    return (
        None
        if text is None
        else GeneratedKernel(text, tuple(ptx_codegen.schedule(body.value).writable()))
    )


@functools.lru_cache(MAX_CACHED_SOURCES)
def _cpu_update_loop(kernel: CanonicalValue, exact: bool) -> str | None:
    return variable_update_codegen.text(kernel.value, exact)


@functools.lru_cache(MAX_CACHED_SOURCES)
def _gpu_update_loop(kernel: CanonicalValue) -> str | None:
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    return ptx_codegen.update(kernel.value)
