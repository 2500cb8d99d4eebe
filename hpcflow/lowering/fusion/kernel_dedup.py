"""Kernel deduplication: the source of equal kernels is generated once.

In a network unrolled over time, the kernels of most time steps are equal.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from hpcflow.codegen import llvm_cpu_codegen, ptx_codegen, variable_update_codegen
from hpcflow.codegen.fused_loop_ir import Body
from hpcflow.codegen.variable_update_codegen import Update
from hpcflow.plan.ir.attribute_values import Same

KEPT = 1024  # cached sources


class Written(NamedTuple):
    """A kernel's source, and the operands that its first result may overwrite in place."""

    text: str
    inplace: tuple[int, ...]


def kernel(body: Body, exact: bool) -> Written | None:
    """The CPU kernel of a body; None if an operation has no formula."""
    return _kernel(Same(body), exact)


def on_gpu(body: Body, size: int) -> Written | None:
    """The GPU kernel of a body over `size` elements; None if an operation has no formula."""
    return _on_gpu(Same(body), size < ptx_codegen.SMALL)


def update(of: Update, exact: bool) -> str | None:
    """The source of an update loop; None if an operation has no formula."""
    return _update(Same(of), exact)


def update_on_gpu(of: Update) -> str | None:
    """The source of an update loop for GPUs; None if an operation has no formula."""
    return _update_on_gpu(Same(of))


@functools.lru_cache(KEPT)
def _kernel(body: Same, exact: bool) -> Written | None:
    text = llvm_cpu_codegen.text(body.value, exact)
    return None if text is None else Written(text, tuple(llvm_cpu_codegen.writable(body.value)))


@functools.lru_cache(KEPT)
def _on_gpu(body: Same, small: bool) -> Written | None:
    text = ptx_codegen.text(body.value, small)
    return (
        None if text is None else Written(text, tuple(ptx_codegen.schedule(body.value).writable()))
    )


@functools.lru_cache(KEPT)
def _update(of: Same, exact: bool) -> str | None:
    return variable_update_codegen.text(of.value, exact)


@functools.lru_cache(KEPT)
def _update_on_gpu(of: Same) -> str | None:
    return ptx_codegen.update(of.value)
