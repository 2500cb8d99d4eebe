"""ONNX export of convolution, with transposes to channels first and back."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Operation, Tensor
from hpcflow.onnx.export_emitter import Emitter, exports, refused


def channels_first(to: Emitter, x: Tensor, rank: int, first: bool) -> str:
    """`x` transposed to channels first, for `rank` spatial axes."""
    if first:
        return to.name(x)
    output: str = to.node("Transpose", x, perm=[0, rank + 1, *range(1, rank + 1)])
    return output


def channels_last(to: Emitter, name: str, rank: int, first: bool) -> str:
    """The inverse transpose, to channels last."""
    if first:
        return name
    output: str = to.node("Transpose", name, perm=[0, *range(2, rank + 2), 1])
    return output


def _filters(to: Emitter, w: Tensor, rank: int) -> str:
    """Transpose filters [*kernel, inputs, outputs] to [outputs, inputs, *kernel]."""
    perm = [rank + 1, rank, *range(rank)]
    output: str = to.node("Transpose", w, perm=perm)
    return output


def window(op: Operation) -> dict[str, Any]:
    """The attributes common to convolution and pooling."""
    attrs = op.attrs
    onnx_attrs: dict[str, Any] = {"strides": list(attrs["strides"])}
    if any(d != 1 for d in attrs["dilations"]):
        onnx_attrs["dilations"] = list(attrs["dilations"])
    padding = attrs["padding"]
    if isinstance(padding, str):
        onnx_attrs["auto_pad"] = "SAME_UPPER" if padding == "SAME" else "VALID"
    else:
        onnx_attrs["pads"] = [p[0] for p in padding] + [p[1] for p in padding]
    return onnx_attrs


@exports("Conv")
def _conv(to: Emitter, op: Operation) -> Any:
    x, w = op.inputs
    rank, first = len(op.attrs["strides"]), op.attrs["first"]
    if not op.attrs["groups"]:
        raise refused(op, "the channels of its filters are not known")
    y = to.node(
        "Conv",
        channels_first(to, x, rank, first),
        _filters(to, w, rank),
        group=op.attrs["groups"],
        **window(op),
    )
    return channels_last(to, y, rank, first)


@exports("ConvInputGrad")
def _conv_transpose(to: Emitter, op: Operation) -> Any:
    g, w = op.inputs[:2]
    attrs, rank = op.attrs, len(op.attrs["strides"])
    shape = op.outputs[0].shape or ()
    space = shape[2:] if attrs["first"] else shape[1:-1]
    if len(space) != rank or None in space or not attrs["groups"]:
        raise refused(op, "the spatial sizes of its output or its channels are not known")
    attributes = {k: v for k, v in window(op).items() if k in ("strides", "dilations", "pads")}
    if isinstance(attrs["padding"], str):
        same = attrs["padding"] == "SAME"
        pads = _pads(op, tuple(d for d in space if d is not None)) if same else [0] * 2 * rank
        attributes["pads"] = pads
    attributes["output_padding"] = _stride_remainder(op, space, attributes["pads"])
    y = to.node(
        "ConvTranspose",
        channels_first(to, g, rank, attrs["first"]),
        _filters(to, w, rank),
        group=attrs["groups"],
        **attributes,
    )
    return channels_last(to, y, rank, attrs["first"])


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
    spatial = shape[2:] if op.attrs["first"] else shape[1:-1]
    kernel = op.inputs[1].shape or ()
    if None in spatial or None in kernel[:rank]:
        raise refused(op, "the spatial sizes of its input are not known")
    columns = zip(spatial, kernel, op.attrs["strides"], op.attrs["dilations"], strict=False)
    full = [((n or 0) - 1) * s + ((k or 0) - 1) * d + 1 for n, k, s, d in columns]
    cropped = [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]
    return [size - w for size, w in zip(space, cropped, strict=True)]
