"""cuDNN convolutions: forward, input and filter gradients, with a bias and relu epilogue.

No other file imports the package `cudnn` (nvidia-cudnn-frontend). Images are not copied. Filters
have the layout [*kernel, channels, filters]; each call copies them to the library's layout: filters
first, channels where the images have them.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import KernelError
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.cuda_provider import Sizes
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.onednn_convolution import (
    ConvolutionGeometry,
    channels_second,
    geometry,
    padding,
    ungrouped,
)

NAME = "cudnn"
# float64 is CuPy's: the frontend 1.23 with cuDNN 9.19 gives NaN for it on an H200
TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
MAX_WORKSPACE_BYTES = 512 << 20  # bytes of workspace
MAX_FILTER_ROWS = 1 << 20  # of filters as a matrix that a generated kernel transposes
X, W, Y, BIAS = 1, 2, 3, 4  # uids of arrays in a plan
_thread_local = threading.local()  # of each thread: its handle, and the handle's stream


def absent() -> str:
    """Why the library cannot be used here; "" if it can."""
    return cuda_provider.absent() or _loaded()[1]


def version() -> str:
    """The version of the library, and the GPU architecture; the library must not be absent."""
    return f"{library().__version__} {library().backend_version()} {cuda_provider.processor()}"


@functools.cache
def _loaded() -> tuple[Any, str]:
    if importlib.util.find_spec("cudnn") is None:
        return None, f"nvidia-cudnn-frontend is not installed: {cuda_provider.INSTALL}"
    if cuda_provider.load("cublasLt") is None:  # without it the frontend aborts the process
        return None, f"libcublasLt is not found: {cuda_provider.INSTALL}"
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, OSError, RuntimeError) as error:
        return None, f"cudnn: {str(error).splitlines()[0]}"
    return cudnn, ""


def library() -> Any:
    """The package; it must not be absent."""
    return _loaded()[0]


def handle(stream: int) -> int:
    """This thread's library handle, set to `stream`."""
    if not hasattr(_thread_local, "handle"):
        _thread_local.handle, _thread_local.stream = library().create_handle(), None
    if _thread_local.stream != stream:
        library().set_stream(handle=_thread_local.handle, stream=stream)
        _thread_local.stream = stream
    return _thread_local.handle


class Convolution(NamedTuple):
    """The convolution y = x * w in the direction `kind`, with the arrays' shapes in memory."""

    kind: str
    dtype: str
    geometry: ConvolutionGeometry
    x: Sizes
    w: Sizes
    y: Sizes
    bias: bool = False
    relu: bool = False
    tf32: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the filters in the library's order."""
        *kernel, channels, filters = range(len(self.w))
        return (filters, channels, *kernel) if self.geometry.first else (filters, *kernel, channels)

    @property
    def filters(self) -> Sizes:
        """The shape of the filters in the library's order."""
        return tuple(self.w[axis] for axis in self.order)


def graph(conv: Convolution, **where: Any) -> Any:
    """The library's graph of a convolution, with an execution plan; `where` selects the GPU.

    Errors: KernelError if it has no plan.
    """
    lib = library()
    kind = getattr(lib.data_type, TYPES[conv.dtype])
    sums = lib.data_type.FLOAT
    try:
        pygraph = lib.pygraph(
            io_data_type=kind, intermediate_data_type=sums, compute_data_type=sums, **where
        )
        _describe(pygraph, conv, kind)
        pygraph.validate()
        pygraph.build_operation_graph()
        pygraph.create_execution_plans([lib.heur_mode.A, lib.heur_mode.FALLBACK])
        pygraph.deselect_numeric_notes([getattr(lib.numerical_note, n) for n in _unwanted(conv)])
        pygraph.deselect_workspace_greater_than(MAX_WORKSPACE_BYTES)
        pygraph.check_support()
        pygraph.build_plans()
    except (RuntimeError, lib.cudnnGraphNotSupportedError) as error:
        raise KernelError(f"cuDNN: {str(error).splitlines()[0]}") from error
    return pygraph


def _unwanted(conv: Convolution) -> list[str]:
    """Notes of plans that are less accurate than float32 sums, or not deterministic."""
    strict = conv.dtype == "float32" and not conv.tf32
    always = ["NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"]
    return [*always, "TENSOR_CORE", "DOWN_CONVERT_INPUTS"] if strict else always


def _describe(pygraph: Any, conv: Convolution, kind: Any) -> None:
    """Add the tensors and operations of a convolution to a graph."""
    of, count = conv.geometry, conv.w[-1]
    before, after = padding(of, conv.x, conv.w[:-2], conv.y)
    moves = {
        "pre_padding": _pad_to_two_axes(before, 0),
        "post_padding": _pad_to_two_axes(after, 0),
        "stride": _pad_to_two_axes(of.strides, 1),
        "dilation": _pad_to_two_axes(of.dilations, 1),
    }
    shapes = {X: conv.x, W: conv.filters, Y: conv.y}
    lying = {name: _tensor_layout(shape, of.first) for name, shape in shapes.items()}
    ones = [1] * (len(lying[Y]["dim"]) - 2)
    lying[BIAS] = {"dim": [1, count, *ones], "stride": [count, 1, *(count for _ in ones)]}

    def given(name: int) -> Any:
        return pygraph.tensor(name=str(name), data_type=kind, **lying[name]).set_uid(name)

    if conv.kind == "ConvInputGrad":
        name, out = X, pygraph.conv_dgrad(loss=given(Y), filter=given(W), **moves)
    elif conv.kind == "ConvFilterGrad":
        name, out = W, pygraph.conv_wgrad(image=given(X), loss=given(Y), **moves)
    else:
        name, out = Y, pygraph.conv_fprop(image=given(X), weight=given(W), **moves)
    if conv.bias:
        out = pygraph.bias(input=out, bias=given(BIAS))
    if conv.relu:
        out = pygraph.relu(input=out)
    out.set_output(True).set_data_type(kind).set_uid(name)
    out.set_dim(lying[name]["dim"]).set_stride(lying[name]["stride"])


def _tensor_layout(shape: Sizes, first: bool) -> dict[str, list[int]]:
    """Sizes and strides of an array, channels second; one spatial axis becomes two."""
    sizes, strides = channels_second(shape, first)
    if len(sizes) == 3:
        sizes = (*sizes[:2], 1, sizes[2])
        strides = (*strides[:2], strides[2] * sizes[3], strides[2])
    return {"dim": list(sizes), "stride": list(strides)}


def _pad_to_two_axes(numbers: Sizes, missing: int) -> list[int]:
    """One number for each spatial axis, padded to two axes."""
    return [missing, *numbers] if len(numbers) == 1 else list(numbers)


class ConvolutionPlan:
    """A convolution ready to run, and the workspace that it needs besides its filters."""

    def __init__(self, conv: Convolution) -> None:
        self.conv = conv
        self.graph = graph(conv, handle=handle(cuda_provider.stream(cuda_provider.cupy())))
        self.bytes = int(self.graph.get_workspace_size())

    def run(self, stream: int, workspace: int, places: dict[int, int]) -> None:
        """Launch it on arrays at these addresses; `workspace` is an address."""
        self.graph.execute(places, workspace, handle=handle(stream))

    @functools.cached_property
    def keeps_nan(self) -> bool:
        """Whether the relu epilogue maps NaN to NaN."""
        conv = self.conv

        def run(stream: int, workspace: int, *places: int) -> None:
            self.run(stream, workspace, dict(zip((X, W, Y, BIAS), places, strict=True)))

        return cuda_provider.keeps_nan(conv.dtype, (conv.x, conv.filters, conv.y), self.bytes, run)


@functools.lru_cache(maxsize=4096)
def planned(conv: Convolution) -> ConvolutionPlan | str:
    """The plan of a convolution, or the reason why the library has none."""
    try:
        return ConvolutionPlan(conv)
    except KernelError as error:
        return error.message


# -- kernels

ROLES = {  # the arrays of a kernel, its output last
    "Conv": (X, W, Y),
    "ConvInputGrad": (Y, W, X),
    "ConvFilterGrad": (X, Y, W),
    "ConvBias": (X, W, BIAS, Y),
}


def _convolution(node: KernelNode) -> Convolution:
    biased = node.type == "ConvBias"
    roles = ROLES["Conv" if biased else node.type]
    specs = (*node.inputs[:2], node.outputs[0])
    shapes = {name: tuple(s.shape) for name, s in zip(roles, specs, strict=True)}
    kind, dtype = "Conv" if biased else node.type, node.inputs[0].dtype.name
    ends = biased, node.attrs.get("relu", False), node.tf32
    return Convolution(kind, dtype, geometry(node.attrs), shapes[X], shapes[W], shapes[Y], *ends)


def _refuses(node: KernelNode) -> str:
    if why := cuda_provider.unsupported_reason((*node.inputs[:2], node.outputs[0]), TYPES):
        return why
    if why := ungrouped(geometry(node.attrs)):
        return why
    if len(node.attrs["strides"]) > 3:
        return "it has more than three axes"
    conv = _convolution(node)
    return cuda_provider.refusal(planned(conv), conv.relu)


def _plan(node: KernelNode) -> ConvolutionPlan:
    return cuda_provider.plan_or_error(planned(_convolution(node)))


def _scratch(node: KernelNode) -> list[tuple[Any, Sizes]]:
    """The filters in the library's layout, then the workspace of the plan."""
    nbytes, filters = _plan(node).bytes, _convolution(node).filters
    return [(node.inputs[0].dtype, filters), *([(np.uint8, (nbytes,))] if nbytes else [])]


def _reordering(
    xp: Any, conv: Convolution, itemsize: int, back: bool
) -> Callable[[Any, Any], None]:
    """A function that copies filters, as bits, to the library's order; with `back`, from it."""
    large = math.prod(conv.w[:-1]) > MAX_FILTER_ROWS
    if large or conv.geometry.first or cuda_provider.no_generated_code():
        order = tuple(np.argsort(conv.order)) if back else conv.order
        return lambda source, target: xp.copyto(target, source.transpose(order))
    from hpcflow.codegen import kernel_cache, ptx_transpose_codegen

    shape = math.prod(conv.w[:-1]), conv.w[-1]  # a matrix, which is transposed
    rows, cols = reversed(shape) if back else shape
    text = ptx_transpose_codegen.transpose(itemsize, rows, cols)
    run, how = kernel_cache.on_gpu(xp.cuda, text), ptx_transpose_codegen.launch(rows, cols)

    def call(source: Any, target: Any) -> None:
        (source,) = cuda_provider.dense(xp, source)
        whole = target if target.flags.c_contiguous else xp.empty(target.shape, target.dtype)
        run(how.grid, how.block, (source, whole, how.length))
        if whole is not target:
            xp.copyto(target, whole)

    return call


def _row(type: str) -> None:
    @fast(NAME, type, "out", on="gpu", refuses=_refuses, scratch=_scratch)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        plan, conv, roles = _plan(node), _convolution(node), ROLES[type]

        of_filters = type == "ConvFilterGrad"
        reorder = _reordering(xp, conv, node.inputs[0].dtype.itemsize, of_filters)

        def run(*arrays: Any, room: Any = ()) -> None:
            inputs = arrays[: len(roles) - 1]  # a shape may follow them
            operands = dict(zip(roles, (*inputs, arrays[-1]), strict=True))
            inner = room[0] if room else xp.empty(conv.filters, operands[W].dtype)
            w, bits = (x.view(f"u{x.itemsize}") for x in (operands[W], inner))  # as bits
            if not of_filters:
                reorder(w, bits)
            lying = {
                name: cuda_provider.aligned(xp, x) for name, x in operands.items() if name != W
            }
            places = {name: x.data.ptr for name, x in lying.items()} | {W: inner.data.ptr}
            address, _held = cuda_provider.workspace(
                xp, plan.bytes, room[1] if len(room) > 1 else None
            )
            plan.run(cuda_provider.stream(xp), address, places)
            if of_filters:
                reorder(bits, w)
            elif lying[roles[-1]] is not arrays[-1]:
                xp.copyto(arrays[-1], lying[roles[-1]])

        return run


for _type in ROLES:
    _row(_type)
