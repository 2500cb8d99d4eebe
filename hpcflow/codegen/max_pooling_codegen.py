"""Code generator of max pooling over two axes, channels last, static shapes.

Each window overlaps the data. An index in the padding is clamped to the nearest element of the
data: that element is in the same window, so the maximum and its first position are the same.
Kernels are called with C-contiguous NumPy arrays, as those of `codegen/llvm_cpu_codegen.py`.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.llvm_builder import FREE, metadata, number


class PoolShape(NamedTuple):
    """x is [batch, *space, channels]; y has an element for each window: [batch, *out, channels].

    With `first` channels come before the spatial axes. The generator of this file takes two axes,
    channels last and no gaps in windows.
    """

    batch: int
    space: tuple[int, ...]
    channels: int
    out: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]  # padding before the data
    dilations: tuple[int, ...] = (1, 1)
    first: bool = False

    @property
    def pads(self) -> bool:
        """Whether some windows overlap the padding."""
        sizes = zip(self.space, self.out, self.window, self.strides, strict=True)
        return any(self.before) or any((o - 1) * s + k > n for n, o, k, s in sizes)

    @property
    def windows_disjoint(self) -> bool:
        """Whether no two windows overlap."""
        return all(s >= k for s, k in zip(self.strides, self.window, strict=True))

    @property
    def covers(self) -> bool:
        """Whether each element is in exactly one window."""
        sizes = zip(self.space, self.out, self.window, self.strides, strict=True)
        return not self.pads and all(n == o * k and s == k for n, o, k, s in sizes)

    @property
    def taps(self) -> list[tuple[int, ...]]:
        """The indices of each element of a window."""
        return list(itertools.product(*map(range, self.window)))


CLAMPS = [f"declare i64 @llvm.{which}.i64(i64, i64)" for which in ("smin", "smax")]
ZERO, LOWEST = number(0.0, "float").text, number(float("-inf"), "float").text


def largest(pool: PoolShape) -> str:
    """The kernel of x and y: y = the maximum of each window, NaN if it has one."""
    body = []
    best = LOWEST
    for i, tap in enumerate(pool.taps):
        body += _load(f"v{i}", "%x", *_element_address(pool, tap))
        body.append(f"  %m{i} = call float @llvm.maximum.f32(float {best}, float %v{i})")
        best = f"%m{i}"
    body += [
        "  %yp = getelementptr float, ptr %y, i64 %to",
        f"  store float {best}, ptr %yp{FREE}",
    ]
    lines = _windows(pool, _channels(pool, body))
    declared = ["declare float @llvm.maximum.f32(float, float)", *CLAMPS]
    return _function(pool, declared, ["x", "y"], lines)


def gradient(pool: PoolShape, relu: bool = False, bias: bool = False) -> str:
    """The kernel of x, y, g and dx: g goes to the first maximum of each window.

    With `relu`, x is the output of a relu, and dx is the gradient by the input of the relu. With
    `bias` a last output has the sums of dx over all axes but the channels.
    """
    body = _given_back(pool, relu, bias)
    before, behind = [], []
    if not pool.covers:
        size = pool.space[0] * pool.space[1] * pool.channels
        before += [
            f"  %image = mul i64 %b, {size}",
            "  %ip = getelementptr float, ptr %d, i64 %image",
            f"  call void @llvm.memset.p0.i64(ptr %ip, i8 0, i64 {4 * size}, i1 false)",
        ]
    if bias:  # sum each sample apart, so that rounding errors do not grow with the batch
        before.append(_clear("%sample", pool.channels))
        behind += _add_to_total("%total", "%sample", pool.channels)
    lines = _windows(pool, _channels(pool, body), before, behind)
    if bias:
        lines = [*_own_total(pool.channels), *lines]
    names = ["x", "y", "g", "d", *(["outs"] if bias else [])]
    declared = ["declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)", *CLAMPS]
    return _function(pool, declared, names, lines, pool.channels if bias else 0)


def _given_back(pool: PoolShape, relu: bool, bias: bool) -> list[str]:
    """The gradient of one window in one channel."""
    body = [*_load("y1", "%y", "%to", 0), *_load("g0", "%g", "%to", 0)]
    grad = "%g0"
    if relu:  # a product, so that infinities and NaN propagate, as in ReluGrad
        body.append(f"  %on = fcmp ogt float %y1, {ZERO}")
        body.append("  %mask = uitofp i1 %on to float")
        body.append("  %g1 = fmul float %g0, %mask")
        grad = "%g1"
    any_hit = "false"
    for i, tap in enumerate(pool.taps):
        body += [
            *_load(f"v{i}", "%x", *_element_address(pool, tap)),
            f"  %is{i} = fcmp oeq float %v{i}, %y1",
            f"  %free{i} = xor i1 {any_hit}, true",
            f"  %hit{i} = and i1 %is{i}, %free{i}",
            f"  %t{i} = or i1 {any_hit}, %hit{i}",
            f"  %d{i} = select i1 %hit{i}, float {grad}, float {ZERO}",
            *_address(f"dp{i}", "%d", *_element_address(pool, tap)),
        ]
        value = f"%d{i}"
        if pool.pads or not pool.windows_disjoint:
            body.append(f"  %o{i} = load float, ptr %dp{i}{FREE}")
            body.append(f"  %s{i} = fadd float %o{i}, %d{i}")
            value = f"%s{i}"
        body.append(f"  store float {value}, ptr %dp{i}{FREE}")
        any_hit = f"%t{i}"
    if bias:
        body += [
            f"  %all = select i1 {any_hit}, float {grad}, float {ZERO}",
            "  %sp = getelementptr float, ptr %sample, i64 %c",
            f"  %s = load float, ptr %sp{FREE}",
            "  %more = fadd float %s, %all",
            f"  store float %more, ptr %sp{FREE}",
        ]
    return body


def _function(
    pool: PoolShape, declared: list[str], names: list[str], lines: list[str], sums: int = 0
) -> str:
    """The module; threads split the samples, each range has `sums` partial sums."""
    arrays = [f"%{name}" for name in names]
    loads = python_call_abi.objects([f"{array}.of" for array in arrays])
    loads += [line for array in arrays for line in python_call_abi.numbers(array, f"{array}.of")]
    elements = pool.batch * pool.space[0] * pool.space[1] * pool.channels
    ranges = python_call_abi.KernelRanges(
        "0", str(pool.batch), str(elements), bytes=python_call_abi.lines(4 * sums)
    )
    join = [*loads, *_add_to_total("%outs", "%sums", sums)] if sums else []
    return python_call_abi.text({*declared}, [], ranges, [*loads, *lines], metadata(3), join)


def _load(name: str, array: str, at: str, offset: int) -> list[str]:
    return [
        *_address(f"a{name}", array, at, offset),
        f"  %{name} = load float, ptr %a{name}{FREE}",
    ]


def _element_address(pool: PoolShape, tap: tuple[int, ...]) -> tuple[str, int]:
    """The base value and the offset of the element `tap` of a window in x."""
    i, j = tap
    if pool.pads:
        return f"%tap{i}.{j}", 0
    return "%from", (i * pool.space[1] + j) * pool.channels


def _clamped(pool: PoolShape, axis: int, first: str, size: int) -> list[str]:
    """The clamped offsets, %rowI or %colJ, of a window's elements along an axis."""
    lines, (name, last) = [], (("row", "col")[axis], pool.space[axis] - 1)
    for k in range(pool.window[axis]):
        v = f"%{name}{k}"
        lines += [
            f"  {v}.at = add i64 {first}, {k - pool.before[axis]}",
            f"  {v}.low = call i64 @llvm.smax.i64(i64 {v}.at, i64 0)",
            f"  {v}.in = call i64 @llvm.smin.i64(i64 {v}.low, i64 {last})",
            f"  {v} = mul nuw nsw i64 {v}.in, {size}",
        ]
    return lines


def _address(name: str, array: str, at: str, offset: int) -> list[str]:
    """The address of the element of an array at `at` + `offset`."""
    return [
        f"  %i{name} = add nuw nsw i64 {at}, {offset}",
        f"  %{name} = getelementptr float, ptr {array}, i64 %i{name}",
    ]


def _loop(
    name: str, count: int | str, inside: list[str], hint: str = "", first: int | str = 0
) -> list[str]:
    """A loop with %name from `first` to `count`, at least once; `inside` may have other loops."""
    return [
        f"  br label %{name}.before",
        f"{name}.before:",
        f"  br label %{name}.begin",
        f"{name}.begin:",
        f"  %{name} = phi i64 [{first}, %{name}.before], [%{name}.next, %{name}.end]",
        *inside,
        f"  br label %{name}.end",
        f"{name}.end:",
        f"  %{name}.next = add nuw nsw i64 %{name}, 1",
        f"  %{name}.more = icmp ult i64 %{name}.next, {count}",
        f"  br i1 %{name}.more, label %{name}.begin, label %{name}.over{hint}",
        f"{name}.over:",
    ]


def _channels(pool: PoolShape, body: list[str]) -> list[str]:
    """The loop over the channels of a window: %from, or each %tapI.J, in x; %to in y."""
    begin, before = ["  %to = add nuw nsw i64 %place, %c"], []
    if pool.pads:
        for i, j in pool.taps:
            before.append(f"  %base{i}.{j}.row = add nuw nsw i64 %bx, %row{i}")
            before.append(f"  %base{i}.{j} = add nuw nsw i64 %base{i}.{j}.row, %col{j}")
            begin.append(f"  %tap{i}.{j} = add nuw nsw i64 %base{i}.{j}, %c")
    else:
        begin.append("  %from = add nuw nsw i64 %window, %c")
    return [*before, *_loop("c", pool.channels, [*begin, *body], ", !llvm.loop !2")]


def _windows(
    pool: PoolShape,
    body: list[str],
    before: list[str] | None = None,
    after: list[str] | None = None,
) -> list[str]:
    """The loops over samples, rows and columns; %window in x, %place in y begin a window.

    With padding, the elements of a window are in rows %rowI and columns %colJ of the sample at %bx.
    """
    (height, width), channels = pool.space, pool.channels
    down, right = pool.strides
    if pool.pads:
        high = [f"  %h1 = mul nuw nsw i64 %h, {down}"]
        high += _clamped(pool, 0, "%h1", width * channels)
        wide = [f"  %w1 = mul nuw nsw i64 %w, {right}", *_clamped(pool, 1, "%w1", channels)]
    else:
        high = [f"  %h1 = mul nuw nsw i64 %h, {down * width * channels}"]
        high.append("  %hx = add nuw nsw i64 %bx, %h1")
        wide = [f"  %w1 = mul nuw nsw i64 %w, {right * channels}"]
        wide.append("  %window = add nuw nsw i64 %hx, %w1")
    row = [
        *wide,
        f"  %w2 = mul nuw nsw i64 %w, {channels}",
        "  %place = add nuw nsw i64 %hy, %w2",
    ]
    sample = [
        *high,
        f"  %h2 = mul nuw nsw i64 %h, {pool.out[1] * channels}",
        "  %hy = add nuw nsw i64 %by, %h2",
        *_loop("w", pool.out[1], [*row, *body]),
    ]
    each = [
        f"  %bx = mul nuw nsw i64 %b, {height * width * channels}",
        f"  %by = mul nuw nsw i64 %b, {pool.out[0] * pool.out[1] * channels}",
        *(before or []),
        *_loop("h", pool.out[0], sample),
        *(after or []),
    ]
    return [
        "  %some = icmp ult i64 %begin, %end",
        "  br i1 %some, label %samples, label %none",
        "samples:",
        *_loop("b", "%end", each, first="%begin"),
        "  br label %none",
        "none:",
    ]


def _clear(array: str, count: int) -> str:
    return f"  call void @llvm.memset.p0.i64(ptr {array}, i8 0, i64 {4 * count}, i1 false)"


def _own_total(channels: int) -> list[str]:
    """%total, for the sums of a range, set to 0; %sample, for the sums of one sample."""
    return [
        f"  %sample = alloca float, i64 {channels}, align 64",
        "  %first = icmp eq ptr %sums, null",
        "  %total = select i1 %first, ptr %outs, ptr %sums",
        _clear("%total", channels),
    ]


def _add_to_total(total: str, part: str, channels: int) -> list[str]:
    """Add partial sums to the total."""
    body = [
        *_load("part", part, "%k", 0),
        *_load("old", total, "%k", 0),
        "  %new = fadd float %part, %old",
        f"  store float %new, ptr %aold{FREE}",
    ]
    return _loop("k", channels, body, ", !llvm.loop !3")
