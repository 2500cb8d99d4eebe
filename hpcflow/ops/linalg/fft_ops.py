"""Fourier transform ops: complex and real FFT over the last one, two or three axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import int32
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import constant, range, shape
from hpcflow.ops.array.concat_split_ops import concat, pad
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import (
    cast,
    divide,
    equal,
    floordiv,
    logical_or,
    multiply,
    where,
)
from hpcflow.ops.math.complex_number_ops import COMPLEX, REAL
from hpcflow.ops.math.reduction_ops import reduce_prod
from hpcflow.ops.shape_inference import Attrs, first_output, require, require_rank, static_axes

# -- shape rules


def _least_rank(type: str, spec: Spec, rank: int) -> None:
    if spec.shape is not None and len(spec.shape) < rank:
        raise ShapeError(
            f"{type} over {rank} axes needs that rank, not shape {shape_text(spec.shape)}"
        )


def _fft(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    if inputs[0].dtype.kind != "c":
        raise DTypeError(
            f"a Fourier transform takes complex numbers, not {inputs[0].dtype}",
            hint="use hf.cast(x, hf.complex64), or hf.spectral.rfft for real numbers",
        )
    _least_rank("a Fourier transform", inputs[0], attrs["rank"])
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _rfft(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x = inputs[0]
    if x.dtype not in COMPLEX:
        raise DTypeError(f"rfft takes float32 or float64, not {x.dtype}")
    _least_rank("rfft", x, attrs["rank"])
    if x.shape is None:
        return [Spec(COMPLEX[x.dtype], None)]
    n = x.shape[-1]
    return [Spec(COMPLEX[x.dtype], (*x.shape[:-1], None if n is None else n // 2 + 1))]


def _irfft(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, length = inputs
    require("irfft", x, "c")
    require("irfft's length", length, "iu")
    require_rank("irfft's length", length, 0)
    _least_rank("irfft", x, attrs["rank"])
    if x.shape is None:
        return [Spec(REAL[x.dtype], None)]
    n = None if length.value is None else int(length.value)
    if n is not None:
        merge_shapes(x.shape[-1:], (n // 2 + 1,))
    return [Spec(REAL[x.dtype], (*x.shape[:-1], n))]


# -- gradients: the adjoint transforms


def _count(x: Tensor, rank: int) -> Any:
    """The number of elements of one transform, in the dtype of `x`."""
    last = None if x.shape is None else x.shape[len(x.shape) - rank :]
    if last is not None and None not in last:
        total = 1
        for d in last:
            total *= d or 0
        return total
    return cast(reduce_prod(getitem(shape(x), slice(-rank, None))), x.dtype)


def _fft_back(op: Operation, g: Tensor) -> list[Any]:
    inverse, rank = op.attrs["inverse"], op.attrs["rank"]
    d = first_output("Fft", [g], {"rank": rank, "inverse": not inverse})
    return [divide(d, _count(g, rank)) if inverse else multiply(d, _count(g, rank))]


def _column_multiplicity(half: Tensor, n: Any) -> Tensor:
    """How often each column of a half spectrum is in the full one of length `n`; real numbers."""
    places = range(getitem(shape(half), -1))
    middle = equal(multiply(places, 2), cast(convert_to_tensor(n), places.dtype))
    once = logical_or(equal(places, 0), middle)
    dtype = half.dtype if half.dtype.kind == "f" else REAL[half.dtype]
    return where(once, constant(1, dtype), 2)


def _rfft_back(op: Operation, g: Tensor) -> list[Any]:
    x, rank = op.inputs[0], op.attrs["rank"]
    n = getitem(shape(x), -1)
    half = divide(g, cast(_column_multiplicity(g, n), g.dtype))
    d = first_output("Irfft", [half, n], {"rank": rank})
    return [multiply(d, _count(x, rank))]


def _irfft_back(op: Operation, g: Tensor) -> list[Any]:
    x, rank = op.inputs[0], op.attrs["rank"]

    def gradient() -> Tensor:
        half = first_output("Rfft", [g], {"rank": rank})
        weights = divide(_column_multiplicity(half, op.inputs[1]), _count(g, rank))
        return multiply(half, cast(weights, x.dtype))

    return [gradient, None]


op("Fft", infer=_fft, grad=_fft_back, flops=flop_counts.fft(5, 0))
op("Rfft", infer=_rfft, grad=_rfft_back, flops=flop_counts.fft(2.5, 0))
op("Irfft", infer=_irfft, grad=_irfft_back, flops=flop_counts.fft(2.5, -1))


# -- public functions


def _fft_flops(rank: int, inverse: bool) -> Callable[..., Tensor]:
    def function(input: Any, name: str | None = None) -> Tensor:
        attrs = {"rank": rank, "inverse": inverse}
        return first_output("Fft", [convert_to_tensor(input)], attrs, name)

    axes = "axis" if rank == 1 else f"{rank} axes"
    summary = "inverse Fourier transform, divided by its size," if inverse else "Fourier transform"
    function.__doc__ = f"The {summary} of complex numbers over the last {axes}."
    return function


fft, ifft = _fft_flops(1, False), _fft_flops(1, True)
fft2d, ifft2d = _fft_flops(2, False), _fft_flops(2, True)
fft3d, ifft3d = _fft_flops(3, False), _fft_flops(3, True)


def _lengths(fft_length: Any, rank: int) -> tuple[int, ...] | None:
    if fft_length is None:
        return None
    sizes = static_axes(fft_length)
    lengths = (sizes,) if isinstance(sizes, int) else tuple(sizes or ())
    if len(lengths) != rank or min(lengths) < 1:
        raise ShapeError(
            f"fft_length must be {rank} positive sizes, not {lengths}", line=user_line()
        )
    return lengths


def _fitted(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """`x` truncated or zero-padded to these sizes on its last axes."""
    if x.shape is None:
        raise ShapeError("fft_length needs a tensor of known rank", hint="use tensor.set_shape")
    lead = len(x.shape) - len(lengths)
    last: Shape = x.shape[lead:]
    if last == tuple(lengths):
        return x
    padding = [n if d is None else max(0, n - d) for d, n in zip(last or (), lengths, strict=True)]
    if any(padding):
        x = pad(x, [[0, 0]] * lead + [[0, m] for m in padding])
    return getitem(x, (..., *(slice(None, n) for n in lengths)))


def _real(rank: int) -> Callable[..., Tensor]:
    def function(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> Tensor:
        x = convert_to_tensor(input_tensor)
        lengths = _lengths(fft_length, rank)
        if lengths is not None:
            x = _fitted(x, lengths)
        return first_output("Rfft", [x], {"rank": rank}, name)

    function.__doc__ = f"""The Fourier transform of real numbers over the last {rank} axes.

    Only half of the last axis is given, as the other half is its conjugate: n // 2 + 1 columns.
    `fft_length` lists sizes to which the axes are cut, or continued by zeros, before.
    """
    return function


def _inverse_real(rank: int) -> Callable[..., Tensor]:
    def function(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> Tensor:
        x = convert_to_tensor(input_tensor)
        lengths = _lengths(fft_length, rank)
        if lengths is None:
            columns = getitem(shape(x), -1)
            n: Any = multiply(columns - 1, 2)
        else:
            n = constant(lengths[-1], int32)
            x = _fitted(x, [*lengths[:-1], lengths[-1] // 2 + 1])
        return first_output("Irfft", [x, n], {"rank": rank}, name)

    function.__doc__ = f"""The real numbers of which `input_tensor` is `rfft` over {rank} axes.

    `fft_length` are their sizes; without it the last is even: 2 (columns - 1).
    """
    return function


rfft, rfft2d, rfft3d = _real(1), _real(2), _real(3)
irfft, irfft2d, irfft3d = _inverse_real(1), _inverse_real(2), _inverse_real(3)


def fftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """The zero frequency moved to the middle of `axes` (None: all)."""
    return _rolled(x, axes, lambda n: floordiv(n + 1, 2), name)


def ifftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _rolled(x, axes, lambda n: floordiv(n, 2), name)


def _rolled(x: Any, axes: Any, start: Callable[[Tensor], Tensor], name: str | None) -> Tensor:
    """Rotation of each axis so that it begins at `start(size)`."""
    x = convert_to_tensor(x)
    listed = static_axes(axes)
    if listed is None:
        if x.shape is None:
            raise ShapeError("fftshift over all axes needs a tensor of known rank")
        listed = tuple(i for i, _ in enumerate(x.shape))
    for axis in (listed,) if isinstance(listed, int) else listed:
        n = getitem(shape(x), axis)
        at = start(n)
        x = concat([_from(x, axis, at, n), _from(x, axis, at * 0, at)], axis)
    return x if name is None else first_output("Identity", [x], {}, name)


def _from(x: Tensor, axis: int, start: Tensor, stop: Tensor) -> Tensor:
    return first_output("Gather", [x, range(start, stop)], {"axis": axis})
