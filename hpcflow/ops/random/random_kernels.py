"""Random kernels: each element is a function of key, ordinal of the draw, and position.

The position is the element's index, in the global batch if axis 0 is the batch. Large draws are
made in blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcflow.errors import NumericError, RangeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.random import bits_to_numbers_kernels, rejection_sampling_kernels
from hpcflow.ops.random.philox_kernels import ALL, PhiloxWords, u64

PIECE = 12 << 10  # elements per block, so that intermediate values stay in the cache
GPU_PIECE = 1 << 22
Make = Callable[[Any, KernelNode], Callable[..., Any]]


class DrawCount:
    """The number of draws of an op, which a checkpoint stores."""

    __slots__ = ("total",)

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def count(self, draws: int) -> None:
        """Count draws that a replay of captured code has made."""
        self.total += draws

    def continue_after(self, total: int) -> None:
        """Make the next draw as if `total` had been made, as a checkpoint or a snapshot tells."""
        self.total = total


class _RandomKernel:
    """Common part of draws: `fill(words, first, out, *parameters)` writes the flat array `out`.

    Inputs are [shape,] parameters, [seed,] [offset of the first sample]. The attribute `first` is
    the start of a block in a larger draw.
    """

    def __init__(
        self, xp: Any, node: KernelNode, fill: Callable[..., None], parameters: int
    ) -> None:
        self.xp, self.fill, self.parameters = xp, fill, parameters
        self.words, self.key = PhiloxWords(xp), node.attrs.get("key", 0)
        self.by_sample = bool(node.attrs.get("batch"))
        self.first = int(node.attrs.get("first", 0))  # position of element 0 of a block
        offset = node.inputs[-1].value if self.by_sample else 0
        self.offset: int | None = None if offset is None else int(offset)

    def draw(self, key: int, ordinal: Any, inputs: Any, out: Any) -> None:
        """Draw number `ordinal` of `key`; `inputs` are those without a seed."""
        first, parameters = self.first, inputs
        if self.by_sample:
            parameters = inputs[:-1]
            if out.ndim:  # a non-constant offset is read from the device
                offset = int(inputs[-1]) if self.offset is None else self.offset
                first = offset * (out.size // max(out.shape[0], 1))
        self.words.key, self.words.ordinal = key, ordinal
        begin = len(parameters) - self.parameters
        self.fill(self.words, first & ALL, out, *parameters[begin:])


class _StatefulDraw(_RandomKernel):
    """The next draw of `draws` at each call; its number is read from `counter` if present.

    Without an op seed or graph seed it depends on the session's `seed`.
    """

    def __init__(
        self, xp: Any, node: KernelNode, fill: Callable[..., None], parameters: int
    ) -> None:
        super().__init__(xp, node, fill, parameters)
        self.draws = DrawCount()
        self.is_seeded = not node.attrs.get("unseeded")
        self.seed: Any = None  # of the session; its `mask` changes keys
        self.counter: Any = None

    def continue_draws(self, draws: DrawCount, seed: Any) -> None:
        """Continue a series of draws, in a session with this seed."""
        self.draws, self.seed = draws, seed

    @contextlib.contextmanager
    def counted_by(self, counter: Any) -> Iterator[None]:
        """Context manager in which the number of a draw is read from the array `counter`."""
        self.counter = counter
        try:
            yield
        finally:
            self.counter = None

    def __call__(self, *args: Any) -> None:
        draws, counter = self.draws, self.counter
        ordinal, draws.total = draws.total, draws.total + 1
        key = self.key if self.is_seeded or self.seed is None else self.key ^ self.seed.mask
        self.draw(key, ordinal if counter is None else counter, args[:-1], args[-1])


class _StatelessDraw(_RandomKernel):
    """The draw for the seed, two integers in the input after the parameters."""

    def __call__(self, *args: Any) -> None:
        *inputs, out = args
        low, high = (int(word) & ALL for word in inputs.pop(-2 if self.by_sample else -1))
        self.draw(low | high << 64, 0, inputs, out)


def _draws(type: str, parameters: int = 0, uncaptured: str = "") -> Callable[[Make], Make]:
    """Add the kernels of a draw and of its stateless variant; decorates the maker of `fill`."""

    def add(make: Make) -> Make:
        for prefix, kernel_class, why in (
            ("", _StatefulDraw, uncaptured),
            ("Stateless", _StatelessDraw, READS_VALUES),
        ):

            @kernel(prefix + type, "out", moves=True, uncaptured=why)
            def row(
                xp: Any, node: KernelNode, kernel_class: Any = kernel_class
            ) -> Callable[..., Any]:
                return kernel_class(xp, node, make(xp, node), parameters)

        return make

    return add


def _by_piece(xp: Any, first: int, out: Any, numbers_of: Callable[[int, int], Any]) -> None:
    """Write `numbers_of(start, count)` to all of `out`, which is contiguous, in blocks."""
    flat, step = out.reshape(-1), PIECE if xp is np else GPU_PIECE
    for low in range(0, flat.size, step):
        part = flat[low : low + step]
        xp.copyto(part, numbers_of(first + low, part.size), casting="unsafe")


def _of_piece(xp: Any, values: Any, start: int, count: int) -> Any:
    """The elements of a periodic vector at indices `start`, `start + 1`, ..., `count` of them."""
    if values.size == 1:
        return values
    return values[(xp.arange(count) + start) % values.size]


# -- without tensor parameters


@_draws("RandomUniform")
def _uniform(xp: Any, node: KernelNode) -> Callable[..., None]:
    low, high, dtype = node.attrs["minval"], node.attrs["maxval"], node.attrs["dtype"]
    f = bits_to_numbers_kernels.real(dtype)
    bits = np.finfo(dtype).nmant + 1
    top = dtype.type(high)
    below = f.type(top if top < high else np.nextafter(top, dtype.type(low)))  # of `dtype`

    def piece(words: PhiloxWords, start: int, count: int) -> Any:
        draws = bits_to_numbers_kernels.unit(words, start, count, dtype, bits)
        if (low, high) != (0, 1):
            draws *= f.type(high - low)
            draws += f.type(low)
            draws = xp.minimum(draws, below)
        return draws

    return _elements(xp, piece)


@_draws("RandomNormal")
def _normal(xp: Any, node: KernelNode) -> Callable[..., None]:
    return _scaled(xp, node, bits_to_numbers_kernels.normal)


@_draws("TruncatedNormal")
def _truncated(xp: Any, node: KernelNode) -> Callable[..., None]:
    return _scaled(xp, node, bits_to_numbers_kernels.cut_normal)


def _scaled(xp: Any, node: KernelNode, standard: Callable[..., Any]) -> Callable[..., None]:
    dtype, mean, stddev = (node.attrs[name] for name in ("dtype", "mean", "stddev"))
    f = bits_to_numbers_kernels.real(dtype).type

    def piece(words: PhiloxWords, start: int, count: int) -> Any:
        draws = standard(words, start, count, dtype)
        if (mean, stddev) != (0, 1):
            draws *= f(stddev)
            draws += f(mean)
        return draws

    return _elements(xp, piece)


def _elements(xp: Any, piece: Callable[..., Any]) -> Callable[..., None]:
    def fill(words: PhiloxWords, first: int, out: Any) -> None:
        _by_piece(xp, first, out, lambda start, count: piece(words, start, count))

    return fill


# -- with tensor parameters


@_draws("RandomUniformInt", 2)
def _uniform_int(xp: Any, node: KernelNode) -> Callable[..., None]:
    dtype = node.attrs["dtype"]
    end = len(node.inputs) - ("key" not in node.attrs) - bool(node.attrs.get("batch"))
    is_static = all(spec.value is not None for spec in node.inputs[end - 2 : end])
    checked = False

    def fill(words: PhiloxWords, first: int, out: Any, low: Any, high: Any) -> None:
        nonlocal checked
        if out.size and not checked and (low >= high).any():
            raise RangeError(
                f"random_uniform of integers: the range [{low.min()}, {high.min()}) is empty",
                hint="give a maxval above minval",
            )
        checked = is_static  # no GPU synchronization each time
        shape = () if low.size == high.size == 1 else out.shape
        low = xp.broadcast_to(low.reshape(()) if not shape else low, shape).reshape(-1).astype(u64)
        high = xp.broadcast_to(high.reshape(()) if not shape else high, shape).reshape(-1)
        span = high.astype(u64) - low

        def piece(start: int, count: int) -> Any:
            at = start - first
            bounds = [p if p.size == 1 else p[at : at + count] for p in (low, span)]
            draws = (
                rejection_sampling_kernels.uniform_integers(words, start, count, bounds[1])
                + bounds[0]
            )
            return draws.view(np.int64) if dtype.kind == "i" else draws

        _by_piece(xp, first, out, piece)

    return fill


def _from_double(xp: Any, node: KernelNode, draw: Callable[..., Any], least: float) -> Any:
    """Float64 numbers from `draw` for each element of a parameter, which is finite.

    The parameter's axes are the last axes of the output.
    """
    type, dtype = node.type.removeprefix("Stateless"), node.attrs["dtype"]

    def fill(words: PhiloxWords, first: int, out: Any, parameter: Any) -> None:
        values = parameter.reshape(-1).astype("f8")
        wrong = ~((values >= least) & (values < np.inf))
        if out.size and wrong.any():
            raise NumericError(
                f"{type}: parameter {float(values[wrong][0])} is out of range",
                hint="give a finite shape above 0, or a finite rate of at least 0",
            )

        def piece(start: int, count: int) -> Any:
            piece_values = _of_piece(xp, values, start - first, count)
            draws = draw(words, start, count, piece_values)
            if dtype.kind in "iu":
                return xp.minimum(draws, float(np.iinfo(dtype).max))
            return draws

        _by_piece(xp, first, out, piece)

    return fill


@_draws("RandomGamma", 1, uncaptured=READS_VALUES)
def _gamma(xp: Any, node: KernelNode) -> Callable[..., None]:
    return _from_double(xp, node, rejection_sampling_kernels.gamma, np.finfo("f8").tiny)


@_draws("RandomPoisson", 1, uncaptured=READS_VALUES)
def _poisson(xp: Any, node: KernelNode) -> Callable[..., None]:
    return _from_double(xp, node, rejection_sampling_kernels.poisson, 0.0)


@_draws("RandomPermutation")
def _permutation(xp: Any, node: KernelNode) -> Callable[..., None]:
    """The permutation that sorts random words; ties (2**-64 per pair) stay in order."""

    def fill(words: PhiloxWords, first: int, out: Any) -> None:
        xp.copyto(out, xp.argsort(words.run(first, out.size)), casting="same_kind")

    return fill


@kernel("PickCategory", "out")
def _pick(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """The first class whose cumulative weight exceeds a fraction of the total, by bisection."""

    def run(logits: Any, fractions: Any, out: Any) -> None:
        if not out.size:
            return
        if not logits.shape[1]:
            raise RangeError("there are no classes to draw from")
        wide = logits.astype("f8")
        weights = xp.exp(wide - wide.max(axis=1, keepdims=True))
        sums = xp.cumsum(weights, axis=1)
        wrong = ~(sums[:, -1] > 0)
        if wrong.any():
            raise NumericError(
                f"the logits of row {int(xp.argmax(wrong))} have a NaN, are all -inf, or +inf"
            )
        targets = fractions * sums[:, -1:]
        low = xp.zeros(out.shape, np.int64)
        high = low + (logits.shape[1] - 1)
        for _ in range(int(logits.shape[1] - 1).bit_length()):
            middle = (low + high) // 2
            over = xp.take_along_axis(sums, middle, 1) > targets
            high = xp.where(over, middle, high)
            low = xp.where(over, low, xp.minimum(middle + 1, high))
        xp.copyto(out, low, casting="same_kind")

    return run
