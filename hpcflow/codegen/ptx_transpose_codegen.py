"""GPU code generator of matrix transposes: tiles pass through shared memory.

Neighbouring threads so read and write neighbouring elements. The rows of a tile in shared memory
are one element longer than the tile, or the threads of a warp would all use one memory bank.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcflow.codegen import ptx_codegen
from hpcflow.codegen.llvm_builder import InstructionBuilder, LlvmValue, metadata, number
from hpcflow.codegen.ptx_codegen import (
    BARRIER,
    DECLARED,
    LINE,
    LaunchConfig,
    kernel_head,
    loop_lines,
    when,
)

TILE = "@NAME_tile"


def launch(rows: int, cols: int) -> LaunchConfig:
    """The launch configuration of the transpose of a matrix."""
    grid = -(-cols // LINE), -(-rows // LINE)
    return LaunchConfig(grid, (LINE, max(1, ptx_codegen.THREADS // LINE)), rows * cols)


def transpose(itemsize: int, rows: int, cols: int) -> str:
    """The kernel `NAME(x, y, length)`: y[j, i] = x[i, j], elements of `itemsize` bytes."""
    type, down = f"i{8 * itemsize}", launch(rows, cols).block[1]
    lines = [*kernel_head("@NAME", ["x", "y"])]
    lines += [f"  %left = mul i64 %bx, {LINE}", f"  %top = mul i64 %by, {LINE}"]
    lines += loop_lines("k", "%ty", str(LINE), str(down), _moved(type, "x", rows, cols))
    lines.append(f"  call void @{BARRIER}()")
    lines += loop_lines("q", "%ty", str(LINE), str(down), _moved(type, "y", cols, rows))
    size = LINE * (LINE + 1)
    tile = f"{TILE} = internal addrspace(3) global [{size} x {type}] undef, align 16"
    head = sorted({*DECLARED, tile})
    return "\n".join([*head, *lines, "  ret void", "}", *metadata(0)])


def _moved(type: str, array: str, rows: int, cols: int) -> Iterator[str]:
    """Move one element from x to the tile, or from the tile, transposed, to y."""
    to_tile, lines = array == "x", InstructionBuilder("l" if array == "x" else "s")
    step, first, second = ("%k", "%top", "%left") if to_tile else ("%q", "%left", "%top")
    row = lines.add(f"add i64 {first}, {step}", "i64")
    column = lines.add(f"add i64 {second}, %tx", "i64")
    inside = lines.binary("and", lines.is_below(row, rows), lines.is_below(column, cols))
    with when(lines, inside):
        begin = lines.binary("mul", row, number(cols, "i64"))
        index = lines.binary("add", begin, column)
        place = f"%{array}", index.text
        high, low = (step, "%tx") if to_tile else ("%tx", step)
        slot = lines.binary("mul", LlvmValue(high, "i64"), number(LINE + 1, "i64"))
        slot = lines.binary("add", slot, LlvmValue(low, "i64"))
        memory = lines.at(*place, type)
        shared = lines.at(f"addrspacecast (ptr addrspace(3) {TILE} to ptr)", slot.text, type)
        source, target = (memory, shared) if to_tile else (shared, memory)
        lines.store(lines.load(source, type), target)
    yield from lines.lines
