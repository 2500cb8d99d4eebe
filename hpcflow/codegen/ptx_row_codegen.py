"""GPU code generator of gather and scatter kernels of rows: static shapes, axis 0.

A row is `width` elements. An index outside of the table is stored at the address `error`; its row
is not updated, and zeros are read in its place.
"""

from __future__ import annotations

from typing import Any

from hpcflow.codegen import ptx_codegen
from hpcflow.codegen.elementwise_formulas import written
from hpcflow.codegen.llvm_builder import (
    InstructionBuilder,
    LlvmValue,
    metadata,
    number,
    storage_type_of,
    value_type,
)
from hpcflow.codegen.ptx_codegen import (
    BARRIER,
    DECLARED,
    grid_stride,
    kernel_head,
    loop_lines,
    when,
)
from hpcflow.codegen.row_gather_scatter_codegen import CHANGES

FOUND = "found"  # shared memory: whether an equal index is before, and behind, that of the block


def gather(itemsize: int, index: str, rows: int, width: int) -> str:
    """The kernel `NAME(table, indices, out, error, length)`: out[i] = table[indices[i]].

    A thread copies an element of `itemsize` bytes; `length` is the number of elements of `out`.
    """
    type, lines = f"i{8 * itemsize}", InstructionBuilder()
    row = lines.binary("udiv", LlvmValue("%n", "i64"), number(width, "i64"))
    column = lines.binary("urem", LlvmValue("%n", "i64"), number(width, "i64"))
    table_row, inside = _checked_index(lines, row, index, rows)
    begin = lines.binary("mul", table_row, number(width, "i64"))
    at = lines.binary("add", lines.choose(inside, begin, number(0, "i64")), column)
    value = lines.choose(
        inside, lines.load(lines.at("%table", at.text, type), type), number(0, type)
    )
    lines.store(value, lines.at("%out", "%n", type))
    names = ["table", "indices", "out", "error"]
    body = [*grid_stride(), *loop_lines("n", "%n.first", "%length", "%n.step", lines.lines)]
    return _module(names, body, lines.declared)


def scatter(
    kind: str, dtype: Any, index: str, rows: int, width: int, distinct: bool, scaled: bool
) -> str | None:
    """The kernel `NAME(table, indices, updates, [scale], error, length)` of `length` indices.

    The operation `kind` updates table[indices[i]] by updates[i], times `scale` if `scaled`. There
    is a block for each index; that of the first of equal indices applies the updates of all, in
    their order. With `distinct` no indices are equal. None if the operation has no formula.
    """
    storage = storage_type_of(dtype) or ""
    before, lines = InstructionBuilder("h"), InstructionBuilder("v")
    table_row, inside = _checked_index(before, LlvmValue("%bx", "i64"), index, rows)
    head = [*before.lines, f"  br i1 {inside.text}, label %update, label %end", "update:"]
    if not distinct:
        head += _equal_indices(table_row, index)
    begin = lines.binary("mul", table_row, number(width, "i64"))
    target = lines.binary("add", begin, LlvmValue("%j", "i64"))
    place = lines.at("%table", target.text, storage)
    value = LlvmValue("%value", "ptr")
    lines.store(lines.load(place, storage), value)
    if not _apply(lines, kind, storage, value, "%bx", width, scaled):
        return None
    if not distinct:
        with when(lines, LlvmValue("%behind", "i1")):
            first, later = InstructionBuilder("w"), InstructionBuilder("u")
            other = later.load(later.at("%indices", "%q", _type(index)), _type(index))
            same = later.compare("eq", _wide(later, other), table_row)
            with when(later, same):
                _apply(later, kind, storage, value, "%q", width, scaled)
            begin = first.add("add i64 %bx, 1", "i64")
            lines.lines += first.lines
            lines.lines += loop_lines("q", begin.text, "%length", "1", later.lines)
            lines.declared |= later.declared
    result = lines.load(value, value_type(storage))
    if storage != result.type:
        result = lines.rounded(result, storage)
    lines.store(result, place)
    names = ["table", "indices", "updates", *(["scale"] if scaled else []), "error"]
    body = [f"  %value = alloca {value_type(storage)}", *head]
    body += [
        *loop_lines("j", "%tx", str(width), str(ptx_codegen.THREADS), lines.lines),
        "  br label %end",
        "end:",
    ]
    return _module(names, body, lines.declared | before.declared)


def _apply(
    lines: InstructionBuilder,
    kind: str,
    storage: str,
    value: LlvmValue,
    update: str,
    width: int,
    scaled: bool,
) -> bool:
    """Update the value at an address by column %j of an update; False without a formula."""
    begin = lines.binary("mul", LlvmValue(update, "i64"), number(width, "i64"))
    at = lines.binary("add", begin, LlvmValue("%j", "i64"))
    change = lines.load(lines.at("%updates", at.text, storage), storage)
    if scaled:
        scale = lines.load(lines.at("%scale", "0", storage), storage)
        change = lines.binary("mul", change, scale)
    old = lines.load(value, value_type(storage))
    operation = CHANGES[kind]
    new = written(lines, operation, [old, change], {}, True) if operation else change
    if new is None:
        return False
    lines.store(new, value)
    return True


def _equal_indices(row: LlvmValue, index: str) -> list[str]:
    """End the block if an earlier index is equal; %behind says if a later one is."""
    lines, flags = InstructionBuilder("f"), f"addrspacecast (ptr addrspace(3) @NAME_{FOUND} to ptr)"
    before, behind = (lines.at(flags, k, "i32") for k in ("0", "1"))
    with when(lines, lines.add("icmp eq i64 %tx, 0", "i1")):
        for flag in (before, behind):
            lines.store(number(0, "i32"), flag)
    lines.add(f"  call void @{BARRIER}()")
    inner = InstructionBuilder("s")
    other = inner.load(inner.at("%indices", "%p", _type(index)), _type(index))
    same = inner.compare("eq", _wide(inner, other), row)
    with when(inner, inner.binary("and", same, inner.add("icmp ult i64 %p, %bx", "i1"))):
        inner.store(number(1, "i32"), before)
    with when(inner, inner.binary("and", same, inner.add("icmp ugt i64 %p, %bx", "i1"))):
        inner.store(number(1, "i32"), behind)
    lines.lines += loop_lines("p", "%tx", "%length", str(ptx_codegen.THREADS), inner.lines)
    lines.add(f"  call void @{BARRIER}()")
    ends = lines.compare("ne", lines.load(before, "i32"), number(0, "i32"))
    lines.add(f"  br i1 {ends.text}, label %end, label %first")
    lines.add("first:")
    lines.add(f"  %behind.32 = load i32, ptr {behind.text}")
    lines.add("  %behind = icmp ne i32 %behind.32, 0")
    return lines.lines


def _checked_index(
    lines: InstructionBuilder, place: LlvmValue, index: str, rows: int
) -> tuple[LlvmValue, LlvmValue]:
    """The index at a place, and whether it is in the table; else it is stored at %error."""
    value = _wide(lines, lines.load(lines.at("%indices", place.text, _type(index)), _type(index)))
    inside = lines.is_below(value, rows)
    with when(lines, lines.binary("xor", inside, number(1, "i1"))):
        lines.store(value, LlvmValue("%error", "ptr"))
    return value, inside


def _type(index: str) -> str:
    return storage_type_of(index) or ""


def _wide(lines: InstructionBuilder, index: LlvmValue) -> LlvmValue:
    wide = lines.convert(index, "i64")
    assert wide is not None
    return wide


def _module(names: list[str], body: list[str], declared: set[str]) -> str:
    lines = [*kernel_head("@NAME", names), *body, "  ret void", "}"]
    shared = f"@NAME_{FOUND} = internal addrspace(3) global [2 x i32] undef, align 16"
    head = sorted(DECLARED | declared | ({shared} if FOUND in "".join(body) else set()))
    return "\n".join([*head, *lines, *metadata(0)])
