"""oneDNN convolutions: forward, input and filter gradients; NHWC or NCHW, filters HWIO.

Each call reorders filters to the layout of the primitive, which costs a few percent of it. NHWC
arrays are not copied. NCHW arrays, for which the library has only slow primitives, are reordered to
blocked channels and back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import KernelError
from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import KernelNode, fast, find_plain_kernel
from hpcflow.kernels.onednn_library import (
    NAME,
    OnednnHandle,
    PrimitiveProgram,
    PrimitiveStep,
    ProgramCache,
    ProgramMemory,
)
from hpcflow.kernels.sliding_window_views import Windows

FORWARD, DIRECT = 64, 1  # propagation kind: forward training; the algorithm
MIN_CHANNELS = (
    5  # channels: fewer leave blocks of sixteen mostly empty, and the gradient slower than gemm
)
WHOLE_CHANNELS = 8  # of 16 bits
Sizes = tuple[int, ...]


class ConvolutionGeometry(NamedTuple):
    """The hashable parameters of a convolution: `padding` is SAME, VALID or pairs.

    `dtype` is that of all arrays, for oneDNN.
    """

    strides: Sizes
    dilations: Sizes
    padding: Any
    first: bool
    groups: int
    dtype: str = onednn_library.FLOAT


class ConvolutionDescriptors:
    """The descriptors of one convolution: layouts of x, w and y in memory, and window parameters.

    `inner` are the layouts of x and y in the primitive: any, where channels come first.
    """

    def __init__(self, params: ConvolutionGeometry, x: Sizes, w: Sizes, y: Sizes) -> None:
        before, after = padding(params, x, w[:-2], y)
        gaps = [d - 1 for d in params.dilations]
        self.moves = tuple(
            onednn_library.dims(sizes) for sizes in (params.strides, gaps, before, after)
        )
        dtype = params.dtype
        self.x = onednn_library.strided(*channels_second(x, params.first), dtype)
        self.y = onednn_library.strided(*channels_second(y, params.first), dtype)
        self.w = onednn_library.strided(*_filters_first(w, params.groups), dtype)
        self.free = onednn_library.free_layout(_filters_first(w, params.groups)[0], dtype)
        lying = (self.x, self.y)
        free = [
            onednn_library.free_layout(channels_second(shape, True)[0], dtype) for shape in (x, y)
        ]
        self.has_few_channels = x[1 if params.first else -1] < MIN_CHANNELS
        self.inner = tuple(free) if params.first else lying

    def forward(self, bias: OnednnHandle | None = None, relu: bool = False) -> OnednnHandle:
        """The forward primitive descriptor, which the backward ones take as a hint."""
        x, y = self.inner
        return onednn_library.create(
            "primitive_desc", "dnnl_convolution_forward_primitive_desc_create",
            onednn_library.engine(),
            FORWARD, DIRECT, x, self.free, bias, y, *self.moves, onednn_library.attributes(relu),
        )  # fmt: skip

    def back_to_input(self) -> OnednnHandle:
        """The primitive descriptor of the input gradient."""
        x, y = (self.x, self.y) if self.has_few_channels else self.inner
        return onednn_library.create(
            "primitive_desc", "dnnl_convolution_backward_data_primitive_desc_create",
            onednn_library.engine(), DIRECT, x, self.free, y, *self.moves, self.forward(),
            onednn_library.attributes(),
        )  # fmt: skip

    def back_to_filters(self) -> OnednnHandle:
        """The primitive descriptor of the filter gradient."""
        x, y = self.inner
        return onednn_library.create(
            "primitive_desc", "dnnl_convolution_backward_weights_primitive_desc_create",
            onednn_library.engine(), DIRECT, x, self.free, None, y, *self.moves, self.forward(),
            onednn_library.attributes(),
        )  # fmt: skip


def padding(params: Any, x: Sizes, window: Sizes, y: Sizes) -> tuple[Sizes, Sizes]:
    """The padding before and after each spatial axis of x for these windows."""
    space, out = (s[2:] if params.first else s[1:-1] for s in (x, y))
    windows = Windows(params._asdict(), space, window, out)
    reach = zip(windows.reach, space, windows.before, strict=True)
    return windows.before, tuple(max(0, r - n - before) for r, n, before in reach)


def channels_second(shape: Sizes, first: bool) -> tuple[Sizes, Sizes]:
    """Logical sizes [batch, channels, *space] of an array of this shape, and its strides."""
    axes = range(len(shape)) if first else (0, len(shape) - 1, *range(1, len(shape) - 1))
    strides = onednn_library.packed(shape)
    return tuple(shape[i] for i in axes), tuple(strides[i] for i in axes)


def _filters_first(shape: Sizes, groups: int) -> tuple[Sizes, Sizes]:
    """Logical sizes [groups, filters, channels, *kernel] of [*kernel, channels, filters]."""
    *kernel, channels, filters = shape
    *steps, step, _ = onednn_library.packed(shape)
    if groups == 1:
        return (filters, channels, *kernel), (1, step, *steps)
    each = filters // groups
    return (groups, each, channels, *kernel), (each, 1, step, *steps)


class _ProgramBuilder:
    """Builder of a program: `primitive`, and reorders before and after it."""

    def __init__(self, primitive: OnednnHandle) -> None:
        self.primitive = primitive
        self.arguments: list[ProgramMemory] = []
        self.memories: dict[int, ProgramMemory] = {}
        self.before: list[PrimitiveStep] = []
        self.after: list[PrimitiveStep] = []

    def reads(self, argument: int, layout: OnednnHandle, query: int = 0) -> None:
        """Add an input array; `query` asks for the layout that the primitive wants."""
        outer, inner = self._places(layout, query)
        if inner is not outer:
            self.before.append(_copy(outer, inner))
        self.memories[argument] = inner

    def writes(self, argument: int, layout: OnednnHandle, query: int) -> None:
        """Add an output array."""
        outer, inner = self._places(layout, query)
        if inner is not outer:
            self.after.append(_copy(inner, outer))
        self.memories[argument] = inner

    def _places(
        self, array_layout: OnednnHandle, query: int
    ) -> tuple[ProgramMemory, ProgramMemory]:
        outer = ProgramMemory(array_layout)
        self.arguments.append(outer)
        layout = onednn_library.layout_of(self.primitive, query) if query else array_layout
        return outer, outer if onednn_library.equal(layout, array_layout) else ProgramMemory(layout)

    def program(self) -> PrimitiveProgram:
        """The program over the arrays in the order in which they were added."""
        middle = PrimitiveStep(self.primitive, self.memories)
        return PrimitiveProgram(self.arguments, [*self.before, middle, *self.after])


def _copy(source: ProgramMemory, dest: ProgramMemory) -> PrimitiveStep:
    arguments = {onednn_library.SRC: source, onednn_library.DST: dest}
    return PrimitiveStep(onednn_library.reorder(source.layout, dest.layout), arguments)


def forward(
    params: ConvolutionGeometry,
    x: Sizes,
    w: Sizes,
    y: Sizes,
    bias: bool = False,
    relu: bool = False,
) -> PrimitiveProgram:
    """The program of x, w, `bias` (one number a filter) if true, and y: convolution, bias, relu."""
    sliding = ConvolutionDescriptors(params, x, w, y)
    each = onednn_library.strided(w[-1:], (1,), params.dtype) if bias else None
    lines = _ProgramBuilder(sliding.forward(each, relu))
    lines.reads(onednn_library.SRC, sliding.x, onednn_library.OF_SRC)
    lines.reads(onednn_library.WEIGHTS, sliding.w, onednn_library.OF_WEIGHTS)
    if each is not None:
        lines.reads(onednn_library.BIAS, each)
    lines.writes(onednn_library.DST, sliding.y, onednn_library.OF_DST)
    if relu:
        lines.memories[onednn_library.POST_OP | onednn_library.WEIGHTS] = onednn_library.zero_slope(
            len(x)
        )
    return lines.program()


def input_gradient(params: ConvolutionGeometry, y: Sizes, w: Sizes, x: Sizes) -> PrimitiveProgram:
    """The program of g of y's shape, w, and the gradient by x."""
    sliding = ConvolutionDescriptors(params, x, w, y)
    lines = _ProgramBuilder(sliding.back_to_input())
    lines.reads(onednn_library.DIFF_DST, sliding.y, onednn_library.OF_DIFF_DST)
    lines.reads(onednn_library.WEIGHTS, sliding.w, onednn_library.OF_WEIGHTS)
    lines.writes(onednn_library.DIFF_SRC, sliding.x, onednn_library.OF_DIFF_SRC)
    return lines.program()


def filter_gradient(params: ConvolutionGeometry, x: Sizes, y: Sizes, w: Sizes) -> PrimitiveProgram:
    """The program of x, g of y's shape, and the gradient by w."""
    sliding = ConvolutionDescriptors(params, x, w, y)
    lines = _ProgramBuilder(sliding.back_to_filters())
    lines.reads(onednn_library.SRC, sliding.x, onednn_library.OF_SRC)
    lines.reads(onednn_library.DIFF_DST, sliding.y, onednn_library.OF_DIFF_DST)
    lines.writes(onednn_library.DIFF_WEIGHTS, sliding.w, onednn_library.OF_DIFF_WEIGHTS)
    return lines.program()


# -- kernels


def hashable(padding: Any) -> Any:
    """The attribute `padding` of a node: SAME, VALID or a tuple of pairs."""
    return padding if isinstance(padding, str) else tuple(map(tuple, padding))


def geometry(attrs: dict[str, Any]) -> ConvolutionGeometry:
    """The geometry in the attributes of a node."""
    steps = tuple(attrs["strides"]), tuple(attrs["dilations"])
    return ConvolutionGeometry(
        *steps, hashable(attrs["padding"]), bool(attrs["first"]), attrs["groups"]
    )


def _geometry(node: KernelNode) -> ConvolutionGeometry:
    return geometry(node.attrs)._replace(dtype=onednn_library.element_type(node))


def unsupported_reason(specs: Sequence[Any], axes: int, halves: bool = False) -> str:
    """Why oneDNN cannot take arrays of these specs with so many spatial axes; "" if it can.

    With `halves` it takes 16-bit floats where the CPU has instructions for their products.
    """
    first, *others = dict.fromkeys(str(s.dtype) for s in specs)
    if others or first not in (onednn_library.TYPES if halves else (onednn_library.FLOAT,)):
        return f"its arrays are {', '.join((first, *others))}, not float32"
    if not onednn_library.has_instructions(first):
        return f"this CPU has no instructions for products of {first}"
    if axes > 3:
        return "it has more than three axes"
    empty = any(s.shape is not None and 0 in s.shape for s in specs)
    return "it is empty" if empty else ""


def ungrouped(params: ConvolutionGeometry) -> str:
    """Why a library cannot compute a convolution of unknown groups; "" if they are known."""
    return "" if params.groups else "only the step tells its groups"


def sizes_known(specs: Sequence[Any]) -> bool:
    """Whether all shapes are known before the step."""
    return all(s.shape is not None and None not in s.shape for s in specs)


def no_fast_one(make: Callable[[], OnednnHandle]) -> str:
    """Why the primitive whose descriptor `make` creates is not used; "" if it is."""
    try:
        name = onednn_library.implementation(make())
    except KernelError as error:
        return str(error)
    return "oneDNN has no fast implementation for it" if name.startswith("ref") else ""


# places of x, filters and y among the two inputs and the output
_ORDER = {"Conv": (0, 1, 2), "ConvInputGrad": (2, 1, 0), "ConvFilterGrad": (0, 2, 1)}


def _refuses(kind: str) -> Callable[[KernelNode], str]:
    def refuses(node: KernelNode) -> str:
        specs, of = [*node.inputs[:2], node.outputs[0]], _geometry(node)
        bias = [node.inputs[2]] if node.type == "ConvBias" else []  # of others it is a shape
        why = unsupported_reason([*specs, *bias], len(of.strides), halves=True) or ungrouped(of)
        why = why or _reads_neighbours(of, specs[_ORDER[kind][1]].shape)
        if why or not sizes_known(specs):
            return why
        return _slow(kind, of, *(tuple(s.shape) for s in specs))

    return refuses


def _reads_neighbours(params: ConvolutionGeometry, filters: Sequence[int | None] | None) -> str:
    """Why NaN and infinities might spread with the instructions of 16-bit floats, "" if not.

    Tiles read the channels of a pixel in groups, and behind a pixel of few channels those of the
    next pixel, times weights of 0. avx512_bf16 does so for the last of an odd number of channels.
    """
    if params.dtype == onednn_library.FLOAT or filters is None:
        return ""
    counts = [
        n if n is None else n * groups
        for n, groups in zip(filters[-2:], (params.groups, 1), strict=True)
    ]
    if any(n is None or n < WHOLE_CHANNELS for n in counts):
        return f"fewer than {WHOLE_CHANNELS} channels of 16 bits"
    return "an odd number of channels of 16 bits" if any(n and n % 2 for n in counts) else ""


@functools.lru_cache(maxsize=1024)
def _slow(kind: str, params: ConvolutionGeometry, a: Sizes, b: Sizes, c: Sizes) -> str:
    """Why oneDNN is not used for these convolutions, as the library itself reports."""
    x, w, y = ((a, b, c)[place] for place in _ORDER[kind])
    if kind == "ConvInputGrad" and w[-2] == params.groups == 1:
        return "a gradient of a single channel is slower there"
    sliding = ConvolutionDescriptors(params, x, w, y)
    primitives = {
        "Conv": sliding.forward,
        "ConvInputGrad": sliding.back_to_input,
        "ConvFilterGrad": sliding.back_to_filters,
    }
    return no_fast_one(primitives[kind])


def _scratch(program: Callable[..., PrimitiveProgram]) -> Callable[[KernelNode], Any]:
    """The workspace of the program of a node."""

    def scratch(node: KernelNode) -> Any:
        shapes = (tuple(s.shape) for s in (*node.inputs[:2], node.outputs[0]))
        return onednn_library.scratch(program, _geometry(node), *shapes)

    return scratch


def _is_spoiled(params: ConvolutionGeometry, filters: Any) -> bool:
    """Whether infinities or NaN may meet padding, which the library skips or not.

    The plain kernel multiplies padding as zeros. `filters` may be the filter gradient, which is not
    finite where the gradient of the results is not.
    """
    pads = params.padding != "VALID" and any(size > 1 for size in filters.shape[:-2])
    if pads and params.dtype != onednn_library.FLOAT:
        exponent = filters.dtype.type(math.inf).view(np.uint16)
        return bool((filters.view(np.uint16) & exponent == exponent).any())
    return pads and not math.isfinite(np.add.reduce(filters, axis=None))


def _row(kind: str, program: Callable[..., PrimitiveProgram], watched: int | None = None) -> None:
    """Register a kernel; `watched` is the argument with the filters, or with their gradient."""

    @fast(NAME, kind, "out", on="cpu", refuses=_refuses(kind), scratch=_scratch(program))
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        of, programs = _geometry(node), ProgramCache(program)
        plain = find_plain_kernel(kind, "cpu").make(xp, node)

        def run(a: Any, b: Any, *more: Any, room: Any = ()) -> None:
            out = more[-1]
            if not (a.size and b.size and out.size):
                out.fill(0)
                return
            programs.run((of, a.shape, b.shape, out.shape), a, b, out, room=room)
            if watched is not None and _is_spoiled(of, (a, b, out)[watched]):
                plain(a, b, *more)

        return run


_row("Conv", forward, watched=1)
_row("ConvInputGrad", input_gradient)
_row("ConvFilterGrad", filter_gradient, watched=2)


BIASED = {relu: functools.partial(forward, bias=True, relu=relu) for relu in (False, True)}


def _of_biased(node: KernelNode) -> Any:
    return _scratch(BIASED[node.attrs["relu"]])(node)


@fast(NAME, "ConvBias", "out", on="cpu", refuses=_refuses("Conv"), scratch=_of_biased)
def _conv_bias(xp: Any, node: KernelNode) -> Callable[..., Any]:
    of, programs = _geometry(node), ProgramCache(BIASED[node.attrs["relu"]])
    plain = find_plain_kernel("ConvBias", "cpu").make(xp, node)

    def run(x: Any, w: Any, bias: Any, out: Any, room: Any = ()) -> None:
        if out.size:
            programs.run((of, x.shape, w.shape, out.shape), x, w, bias, out, room=room)
            if _is_spoiled(of, w):
                plain(x, w, bias, out)

    return run
