"""Code generator of reductions over a middle axis: x is [outer, rows, lanes] in C order.

The rows are reduced. Lanes are contiguous, so that they fill vector registers. Threads share the
outer axis. Sizes are those of the arrays: one kernel serves all. Sums are in
`normalization_codegen.py`; a reduction over last axes is a loop of its neighbours
(`row_op_decomposition.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcflow.codegen import vector_math
from hpcflow.codegen.llvm_builder import LlvmValue, number, type_of
from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, module
from hpcflow.codegen.python_call_abi import KernelRanges

X, TOP, OUT, G, Y, COUNTS = "%x", "%top", "%out", "%g", "%y", "%counts"


def extreme(dtype: str, largest: bool) -> str:
    """The kernel of x and its maxima or minima `out` [outer, lanes]; NaN if a lane has one."""
    b = _Writer((X, OUT), dtype)
    with b.each_sample((X,)) as (x, out):
        b.find_extreme(x, out, largest)
    return b.kernel()


def log_sum_exp(dtype: str) -> str:
    """The kernel of x, and its results `top` and `out` [outer, lanes], with `top` as workspace.

    The exponentials are of x minus the maximum of its lane, or of x if that is not finite.
    """
    b = _Writer((X, TOP, OUT), dtype)
    with b.each_sample((X,)) as (x, top, out):
        b.find_extreme(x, top, True)
        b.each_lane((top,), top, b.finite_or_zero)
        b.fill(out, 0.0)
        b.each_row(x, (out, top), out, b.with_exponential)
        b.each_lane((out, top), out, b.with_logarithm)
    return b.kernel()


def extreme_gradient(dtype: str) -> str:
    """The kernel of x, the extremes y and their gradients g [outer, lanes], `counts` and `out`.

    Equal extremes of a lane share its gradient. `counts` [outer, lanes] is workspace.
    """
    b = _Writer((X, Y, G, COUNTS, OUT), dtype)
    with b.each_sample((X, OUT)) as (x, y, g, counts, out):
        b.fill(counts, 0.0)
        b.each_row(x, (y, counts), counts, b.with_equal)
        b.each_lane((g, counts), counts, b.share)
        b.each_row(x, (y, counts), out, b.share_of_equal, by_row=True)
    return b.kernel()


class _Writer(BasicBlocks):
    """Writes loops over the rows and lanes of a sample."""

    def __init__(self, arrays: Sequence[str], dtype: str) -> None:
        super().__init__(arrays)
        self.arrays, self.type = arrays, type_of(dtype) or ""
        self.rows, self.lanes = self.size(X, 1), self.size(X, 2)
        self.data_of = {array: self.data(array) for array in arrays}

    def kernel(self) -> str:
        """The module."""
        head = BasicBlocks(self.arrays)
        outer, rows, lanes = (head.size(X, axis) for axis in range(3))
        elements = head.binary("mul", head.binary("mul", outer, rows), lanes)
        return module(head, KernelRanges("0", outer.text, elements.text), self)

    @contextlib.contextmanager
    def each_sample(self, of_rows: Sequence[str]) -> Iterator[list[LlvmValue]]:
        """The loop over a range of the outer axis; the addresses of its part of each array.

        The arrays `of_rows` have rows there, the others one row.
        """
        with self.loop(COUNT) as loop:
            sample = self.binary("add", BEGIN, loop.i)
            first = self.binary("mul", sample, self.rows)
            yield [
                self.row(base, first if array in of_rows else sample)
                for array, base in self.data_of.items()
            ]

    def row(self, base: LlvmValue, index: LlvmValue) -> LlvmValue:
        """The address of a row of lanes."""
        return self.element_address(base, self.binary("mul", index, self.lanes), self.type)

    def each_lane(
        self, inputs: Sequence[LlvmValue], out: LlvmValue, value: Callable[..., LlvmValue]
    ) -> None:
        """Set each lane of the row `out` to `value` of the lanes of the rows `inputs`."""
        with self.loop(self.lanes, free=True) as lane:
            places = [self.element_address(base, lane.i, self.type) for base in inputs]
            result = value(*(self.load(at, self.type, lane.tag) for at in places))
            self.store(result, self.element_address(out, lane.i, self.type), lane.tag)

    def each_row(
        self,
        x: LlvmValue,
        inputs: Sequence[LlvmValue],
        out: LlvmValue,
        value: Callable[..., LlvmValue],
        by_row: bool = False,
    ) -> None:
        """Set `out` to `value` of a row of x and of the rows `inputs`, for one row after the other.

        With `by_row` each row of x has a row of `out`.
        """
        with self.loop(self.rows) as loop:
            result = self.row(out, loop.i) if by_row else out
            self.each_lane((self.row(x, loop.i), *inputs), result, value)

    def fill(self, out: LlvmValue, value: float) -> None:
        """Set all lanes of a row to a number."""
        self.each_lane((), out, lambda: self.number(value))

    def find_extreme(self, x: LlvmValue, out: LlvmValue, largest: bool) -> None:
        """Set the lanes of `out` to the maxima or minima of the rows."""
        name = "maximum" if largest else "minimum"
        self.fill(out, -np.inf if largest else np.inf)
        self.each_row(x, (out,), out, lambda value, found: self.call(name, found, value))

    # -- values

    def number(self, value: float) -> LlvmValue:
        """A constant."""
        return number(value, self.type)

    def finite_or_zero(self, x: LlvmValue) -> LlvmValue:
        """x, or 0 if it is infinite or NaN."""
        finite = self.compare("lt", self.call("fabs", x), self.number(np.inf))
        return self.choose(finite, x, self.number(0.0))

    def with_exponential(self, x: LlvmValue, total: LlvmValue, about: LlvmValue) -> LlvmValue:
        """total + exp(x - about)."""
        power = vector_math.exp(self, self.binary("sub", x, about))
        return self.binary("add", total, power)

    def with_logarithm(self, total: LlvmValue, about: LlvmValue) -> LlvmValue:
        """log(total) + about."""
        return self.binary("add", vector_math.log(self, total), about)

    def one_if_equal(self, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """1 where the two are equal, else 0."""
        return self.choose(self.compare("eq", x, y), self.number(1.0), self.number(0.0))

    def with_equal(self, x: LlvmValue, y: LlvmValue, count: LlvmValue) -> LlvmValue:
        """count + 1 where x equals y."""
        return self.binary("add", count, self.one_if_equal(x, y))

    def share(self, g: LlvmValue, count: LlvmValue) -> LlvmValue:
        """g / count, or g where nothing is equal: of NaN."""
        one = self.number(1.0)
        return self.binary("fdiv", g, self.choose(self.compare("gt", count, one), count, one))

    def share_of_equal(self, x: LlvmValue, y: LlvmValue, share: LlvmValue) -> LlvmValue:
        """The share where x equals y, else 0 times it."""
        return self.binary("mul", self.one_if_equal(x, y), share)
