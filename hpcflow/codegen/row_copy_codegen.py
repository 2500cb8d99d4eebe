"""Code generator of copies between an array and its parts along an axis: concatenation, splits.

The array and its parts are rows of contiguous bytes: those of the axis and of the axes behind it.
Threads share the rows. Sizes are those of the arrays: one kernel serves all of one number of parts.
"""

from __future__ import annotations

from hpcflow.codegen.llvm_loops import BEGIN, COUNT, BasicBlocks, int64_constant, module
from hpcflow.codegen.python_call_abi import KernelRanges

COPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"


def text(parts: int, axis: int, itemsize: int, splits: bool) -> str:
    """The kernel of the parts and the whole array, or with `splits` of the array and its parts.

    Rows begin at `axis`; parts may lack that axis, and have only those behind it in a row.
    """
    names = [f"%part{i}" for i in range(parts)]
    arrays = ["%whole", *names] if splits else [*names, "%whole"]
    head = BasicBlocks(arrays)
    rows, nbytes = head.elements("%whole", 0, axis), head.elements("%whole")
    ranges = KernelRanges("0", rows.text, nbytes.text)
    b = BasicBlocks(arrays, head)
    size = int64_constant(itemsize)
    width = b.binary("mul", b.elements("%whole", axis), size)
    widths = [b.binary("mul", b.elements(name, axis), size) for name in names]
    whole, data = b.data("%whole"), [b.data(name) for name in names]
    b.declared.add(COPY)
    with b.loop(COUNT) as loop:
        row = b.binary("add", BEGIN, loop.i)
        at = b.binary("mul", row, width)
        for base, length in zip(data, widths, strict=True):
            inside = b.element_address(whole, at, "i8")
            outside = b.element_address(base, b.binary("mul", row, length), "i8")
            to, source = (outside, inside) if splits else (inside, outside)
            operands = f"ptr {to.text}, ptr {source.text}, i64 {length.text}, i1 false"
            b.add(f"  call void @llvm.memcpy.p0.p0.i64({operands})")
            at = b.binary("add", at, length)
    return module(head, ranges, b)
