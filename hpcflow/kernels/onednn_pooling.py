"""oneDNN pooling: average pooling, and the gradients of average and max pooling.

Not max pooling itself, in which oneDNN loses NaN. Its gradient runs the forward primitive again,
whose workspace has the first maximum of each window.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import KernelNode, fast, find_plain_kernel
from hpcflow.kernels.onednn_convolution import (
    FORWARD,
    Sizes,
    channels_second,
    hashable,
    no_fast_one,
    padding,
    sizes_known,
    unsupported_reason,
)
from hpcflow.kernels.onednn_library import (
    NAME,
    OnednnHandle,
    PrimitiveProgram,
    PrimitiveStep,
    ProgramCache,
    ProgramMemory,
)

LARGEST, MEAN_WITH_PADDING, MEAN = 0x1FF, 0x2FF, 0x3FF


class Pooling(NamedTuple):
    """A pooling, hashable: `kind` is the algorithm, `padding` SAME, VALID or pairs."""

    kind: int
    window: Sizes
    strides: Sizes
    dilations: Sizes
    padding: Any
    first: bool


class PoolingDescriptors:
    """The descriptors of one pooling of x to y."""

    def __init__(self, pooling: Pooling, x: Sizes, y: Sizes) -> None:
        self.kind = pooling.kind
        gaps = [d - 1 for d in pooling.dilations]
        sizes = (pooling.strides, pooling.window, gaps, *padding(pooling, x, pooling.window, y))
        self.moves = tuple(map(onednn_library.dims, sizes))
        self.x = onednn_library.strided(*channels_second(x, pooling.first))
        self.y = onednn_library.strided(*channels_second(y, pooling.first))

    def forward(self) -> OnednnHandle:
        """The forward primitive descriptor, which the backward one takes as a hint."""
        return onednn_library.create(
            "primitive_desc", "dnnl_pooling_forward_primitive_desc_create",
            onednn_library.engine(),
            FORWARD, self.kind, self.x, self.y, *self.moves, onednn_library.attributes(),
        )  # fmt: skip

    def back(self, forward: OnednnHandle) -> OnednnHandle:
        """The primitive descriptor of the gradient."""
        return onednn_library.create(
            "primitive_desc", "dnnl_pooling_backward_primitive_desc_create",
            onednn_library.engine(),
            self.kind, self.x, self.y, *self.moves, forward, onednn_library.attributes(),
        )  # fmt: skip


def mean(pooling: Pooling, x: Sizes, y: Sizes) -> PrimitiveProgram:
    """The program of x and y = the means."""
    windowed = PoolingDescriptors(pooling, x, y)
    places = [ProgramMemory(windowed.x), ProgramMemory(windowed.y)]
    memories = {onednn_library.SRC: places[0], onednn_library.DST: places[1]}
    return PrimitiveProgram(places, [PrimitiveStep(windowed.forward(), memories)])


def mean_gradient(pooling: Pooling, y: Sizes, x: Sizes) -> PrimitiveProgram:
    """The program of g of y's shape and the gradient by x."""
    windowed = PoolingDescriptors(pooling, x, y)
    places = [ProgramMemory(windowed.y), ProgramMemory(windowed.x)]
    memories = {onednn_library.DIFF_DST: places[0], onednn_library.DIFF_SRC: places[1]}
    return PrimitiveProgram(places, [PrimitiveStep(windowed.back(windowed.forward()), memories)])


def largest_gradient(pooling: Pooling, x: Sizes, y: Sizes) -> PrimitiveProgram:
    """The program of x, g of y's shape and the gradient by x."""
    windowed = PoolingDescriptors(pooling, x, y)
    forward = windowed.forward()
    places = [ProgramMemory(windowed.x), ProgramMemory(windowed.y), ProgramMemory(windowed.x)]
    workspace, recomputed = (
        ProgramMemory(onednn_library.layout_of(forward, onednn_library.OF_WORKSPACE)),
        ProgramMemory(windowed.y),
    )
    memories = {
        onednn_library.SRC: places[0],
        onednn_library.DST: recomputed,
        onednn_library.WORKSPACE: workspace,
    }
    back = {
        onednn_library.DIFF_DST: places[1],
        onednn_library.DIFF_SRC: places[2],
        onednn_library.WORKSPACE: workspace,
    }
    return PrimitiveProgram(
        places, [PrimitiveStep(forward, memories), PrimitiveStep(windowed.back(forward), back)]
    )


# -- kernels


def _pooling(node: KernelNode) -> Pooling:
    attrs = node.attrs
    kind = LARGEST
    if node.type.startswith("AvgPool"):
        kind = MEAN_WITH_PADDING if attrs["count_include_pad"] else MEAN
    steps = tuple(attrs["window"]), tuple(attrs["strides"]), tuple(attrs["dilations"])
    return Pooling(kind, *steps, hashable(attrs["padding"]), bool(attrs["first"]))


def _refuses(node: KernelNode) -> str:
    x, y = node.inputs[0], node.outputs[0]
    if node.type != "AvgPool":
        x, y = y, node.inputs[-1] if node.type == "MaxPoolGrad" else x
    of = _pooling(node)
    why = unsupported_reason((x, y), len(of.window))
    if why or not sizes_known((x, y)):
        return why or "its sizes are known only in the step"
    return _slow(of, tuple(x.shape), tuple(y.shape), node.type.endswith("Grad"))


@functools.lru_cache(maxsize=1024)
def _slow(pooling: Pooling, x: Sizes, y: Sizes, gradient: bool) -> str:
    space, out = (s[2:] if pooling.first else s[1:-1] for s in (x, y))
    before = padding(pooling, x, pooling.window, y)[0]
    axes = zip(space, out, before, pooling.window, pooling.strides, pooling.dilations, strict=True)
    if any(b > (k - 1) * d or (o - 1) * s - b >= n for n, o, b, k, s, d in axes):
        return "some of its windows have nothing but padding"
    windowed = PoolingDescriptors(pooling, x, y)
    if gradient:
        return no_fast_one(lambda: windowed.back(windowed.forward()))
    return no_fast_one(windowed.forward)


def _row(type: str, program: Callable[..., PrimitiveProgram], select: Callable[[Any], Any]) -> None:
    """Register the kernel of an op; `select` picks the arrays that the program takes."""

    def scratch(node: KernelNode) -> Any:
        a, b, *_ = select([*node.inputs, node.outputs[0]])
        return onednn_library.scratch(program, _pooling(node), tuple(a.shape), tuple(b.shape))

    @fast(NAME, type, "out", on="cpu", refuses=_refuses, scratch=scratch)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        of, programs = _pooling(node), ProgramCache(program)
        plain = find_plain_kernel(type, "cpu").make(xp, node)

        def run(*arrays: Any, room: Any = ()) -> None:
            if of.kind == LARGEST and np.isnan(np.add.reduce(arrays[1], axis=None)):
                plain(*arrays)  # the library does not take NaN as the maximum
                return
            a, b, *more = select(arrays)
            programs.run((of, a.shape, b.shape), a, b, *more, room=room)

        return run


_row("AvgPool", mean, lambda arrays: (arrays[0], arrays[-1]))
_row("AvgPoolGrad", mean_gradient, lambda arrays: (arrays[0], arrays[-1]))
_row("MaxPoolGrad", largest_gradient, lambda arrays: (arrays[0], arrays[2], arrays[3]))
