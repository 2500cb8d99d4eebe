"""ONNX export of convolution, pooling and softmax; transposes to channels first and back."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation, Tensor
from hpcflow.onnx.export_emitter import Emitter, exports, refused


def _channels_first(to: Emitter, x: Tensor, rank: int, first: bool) -> str:
    """`x` transposed to channels first, for `rank` spatial axes."""
    if first:
        return to.name(x)
    made: str = to.node("Transpose", x, perm=[0, rank + 1, *range(1, rank + 1)])
    return made


def _channels_last(to: Emitter, name: str, rank: int, first: bool) -> str:
    """The inverse transpose, to channels last."""
    if first:
        return name
    made: str = to.node("Transpose", name, perm=[0, *range(2, rank + 2), 1])
    return made


def _filters(to: Emitter, w: Tensor, rank: int) -> str:
    """Transpose filters [*kernel, inputs, outputs] to [outputs, inputs, *kernel]."""
    perm = [rank + 1, rank, *range(rank)]
    made: str = to.node("Transpose", w, perm=perm)
    return made


def _window(op: Operation) -> dict[str, Any]:
    """The attributes common to convolution and pooling."""
    attrs = op.attrs
    found: dict[str, Any] = {"strides": list(attrs["strides"])}
    if any(d != 1 for d in attrs["dilations"]):
        found["dilations"] = list(attrs["dilations"])
    padding = attrs["padding"]
    if isinstance(padding, str):
        found["auto_pad"] = "SAME_UPPER" if padding == "SAME" else "VALID"
    else:
        found["pads"] = [p[0] for p in padding] + [p[1] for p in padding]
    return found


@exports("Conv")
def _conv(to: Emitter, op: Operation) -> Any:
    x, w = op.inputs
    rank, first = len(op.attrs["strides"]), op.attrs["first"]
    if not op.attrs["groups"]:
        raise refused(op, "the channels of its filters are not known")
    y = to.node(
        "Conv",
        _channels_first(to, x, rank, first),
        _filters(to, w, rank),
        group=op.attrs["groups"],
        **_window(op),
    )
    return _channels_last(to, y, rank, first)


@exports("ConvInputGrad")
def _conv_transpose(to: Emitter, op: Operation) -> Any:
    g, w = op.inputs[:2]
    attrs, rank = op.attrs, len(op.attrs["strides"])
    shape = op.outputs[0].shape or ()
    space = shape[2:] if attrs["first"] else shape[1:-1]
    if len(space) != rank or None in space or not attrs["groups"]:
        raise refused(op, "the spatial sizes of its output or its channels are not known")
    window = {k: v for k, v in _window(op).items() if k in ("strides", "dilations", "pads")}
    if isinstance(attrs["padding"], str):
        same = attrs["padding"] == "SAME"
        pads = _pads(op, tuple(d for d in space if d is not None)) if same else [0] * 2 * rank
        window["pads"] = pads
    window["output_padding"] = _stride_remainder(op, space, window["pads"])
    y = to.node(
        "ConvTranspose",
        _channels_first(to, g, rank, attrs["first"]),
        _filters(to, w, rank),
        group=attrs["groups"],
        **window,
    )
    return _channels_last(to, y, rank, attrs["first"])


def _pads(op: Operation, space: tuple[int, ...]) -> list[int]:
    """The explicit pads of SAME padding for these image sizes."""
    before, after = [], []
    kernel = op.inputs[1].shape or ()
    for size, k, s, d in zip(
        space, kernel, op.attrs["strides"], op.attrs["dilations"], strict=False
    ):
        if k is None:
            raise refused(op, "the sizes of its filters are not known")
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return before + after


def _stride_remainder(op: Operation, space: Any, pads: list[int]) -> list[int]:
    """The `output_padding` of each axis: the part of the size that the strides do not cover."""
    shape, rank = op.inputs[0].shape or (), len(space)
    given = shape[2:] if op.attrs["first"] else shape[1:-1]
    kernel = op.inputs[1].shape or ()
    if None in given or None in kernel[:rank]:
        raise refused(op, "the spatial sizes of its input are not known")
    columns = zip(given, kernel, op.attrs["strides"], op.attrs["dilations"], strict=False)
    full = [((n or 0) - 1) * s + ((k or 0) - 1) * d + 1 for n, k, s, d in columns]
    whole = [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]
    return [size - w for size, w in zip(space, whole, strict=True)]


@exports("MaxPool")
def _max_pool(to: Emitter, op: Operation) -> Any:
    return _pool(to, op, "MaxPool")


@exports("AvgPool")
def _average_pool(to: Emitter, op: Operation) -> Any:
    if any(d != 1 for d in op.attrs["dilations"]):
        raise refused(op, "mean pooling with dilations needs a newer opset")
    return _pool(to, op, "AveragePool", count_include_pad=int(op.attrs["count_include_pad"]))


def _pool(to: Emitter, op: Operation, name: str, **more: Any) -> Any:
    rank, first = len(op.attrs["strides"]), op.attrs["first"]
    x = _channels_first(to, op.inputs[0], rank, first)
    y = to.node(name, x, kernel_shape=list(op.attrs["window"]), **_window(op), **more)
    return _channels_last(to, y, rank, first)


@exports("Softmax", "LogSoftmax")
def _softmax(to: Emitter, op: Operation) -> Any:
    return to.node(op.type, op.inputs[0], axis=op.attrs["axis"])


@exports("Elu")
def _elu(to: Emitter, op: Operation) -> Any:
    return to.node("Elu", op.inputs[0], alpha=1.0)


@exports("Relu6")
def _relu6(to: Emitter, op: Operation) -> Any:
    x = op.inputs[0]
    return to.node("Clip", x, to.number(0, x), to.number(6, x))


@exports("Normalize")
def _normalize(to: Emitter, op: Operation) -> list[Any]:
    """Moments have size 1 on reduced axes, and float32 for 16-bit inputs."""
    x, moment = op.inputs[0], op.outputs[1]
    axes = op.attrs["axis"]
    axes = list(axes) if axes is not None else None
    wide: Any = to.name(x) if x.dtype == moment.dtype else to.cast(x, moment.dtype)
    mean = to.node("ReduceMean", wide, axes=axes, keepdims=1)
    centered = to.node("Sub", wide, mean)
    variance = to.node("ReduceMean", to.node("Mul", centered, centered), axes=axes, keepdims=1)
    widened = to.node("Add", variance, to.number(op.attrs["epsilon"], moment))
    y = to.node("Div", centered, to.node("Sqrt", widened))
    return [y if x.dtype == moment.dtype else to.cast(y, x.dtype), mean, variance]
