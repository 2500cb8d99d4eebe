"""CPU code generator of fused kernels: loops over rows, and over the elements of a row.

A kernel is called with NumPy arrays as Python objects, inputs first. It reads their data pointers
and sizes from the fields of `PyArrayObject_fields` (numpy/ndarraytypes.h), so a call passes nothing
else. If operand values are outside of their limits, it returns their count and computes nothing.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.elementwise_formulas import CLOSE, LONG, written
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_INDEX,
    COLUMN_SUM,
    FULL,
    JOIN,
    MAX,
    NUMBER,
    OF_ROWS,
    ONE,
    ROUND,
    ROW,
    SUM,
    Begins,
    KernelBody,
    KernelOperand,
    KernelStep,
    LoopSchedule,
    column_pieces,
)
from hpcflow.codegen.llvm_builder import (
    BYTES,
    FREE,
    LINE,
    MEMORY,
    TYPES,
    InstructionBuilder,
    LlvmValue,
    metadata,
    number,
    storage_type_of,
    value_type,
)
from hpcflow.codegen.llvm_loops import BasicBlocks, int64_constant

MAX_SPILLED_BYTES = 1 << 18  # bytes of stack for values of a row that a later loop reads
COSTLY = LONG | CLOSE.keys()
SHORT = range(8, 97)  # row lengths at which vectorized loops are 2 to 7 times as fast as unrolled
VECTOR = 16  # elements of 4 bytes in the widest vector register
ZEROS = "@zeros"  # what operands with shifted axes have outside of their arrays
PLACES = {COLUMN: "%i", ONE: "0"}  # indices of operands read outside of the loops over a row


def schedule(body: KernelBody) -> LoopSchedule:
    """The loops of a kernel."""
    return LoopSchedule(body, COSTLY)


def writable(body: KernelBody) -> list[int]:
    """Operands that the first result may overwrite in place.

    None if rows do not fill a vector: each row is then written by a masked store, and the load of
    the next row waits until that store has reached the cache (3 to 10 times as slow).
    """
    return [] if 0 < body.cols < VECTOR else schedule(body).writable()


def text(body: KernelBody, exact: bool) -> str | None:
    """The LLVM IR of the kernel, with the function `@NAME`; None if an operation has no formula.

    Arrays are in C order. The mapping of a result's value says if it has elements, rows or columns.
    """
    if None in [storage_type_of(operand.dtype) for operand in body.operands]:
        return None
    writer = _CpuLoopNest(body, exact, schedule(body))
    return writer.text() if writer.write() else None


class LoopBodyWriter:
    """Writes the loop bodies of a kernel; subclasses add loops and threads.

    Each loop over a row is one pass over all columns (`passes` is its number), or there is one pass
    in several loops, each over one of the `pieces` of the columns.
    """

    def __init__(self, body: KernelBody, exact: bool, plan: LoopSchedule) -> None:
        self.body, self.exact, self.plan = body, exact, plan
        self.passes = list(range(len(plan.used_values)))
        self.pieces = column_pieces(body.operands, body.cols)
        if len(self.pieces) > 1:
            assert self.passes == [0], "a reduction of rows has no shifted columns"
            self.passes *= len(self.pieces)
        loops = range(len(self.passes))
        self.entry = InstructionBuilder("e")
        self.heads = [
            InstructionBuilder(f"h{k}.") for k in (*loops, len(loops))
        ]  # the last is after all loops
        self.bodies = [InstructionBuilder(f"v{k}.") for k in loops]
        self.scalars: dict[int, LlvmValue] = {}  # values of mapping COLUMN or ONE
        self.row_pointers: dict[int, LlvmValue] = {}  # operand -> address of the row
        self.zero_bytes = 0  # of the array ZEROS
        self.types: dict[int, str] = {}
        self.spilled_bytes = 0  # bytes

    # -- code of values

    def write(self) -> bool:
        """Write all lines; False if an operation has no formula, or too much stack is needed."""
        body, count = self.body, len(self.body.operands)
        for i, operand in enumerate(body.operands):
            type = storage_type_of(operand.dtype) or ""
            place = PLACES.get(operand.mapping, "")
            if operand.begins is not None:
                place = self.beginning(self.heads[0], operand.begins).text
                if operand.mapping in (FULL, ROW):
                    self.row_pointers[i] = self.row_pointer(self.heads[0], i, operand, place)
            if operand.mapping in (ONE, COLUMN):
                lines = self.entry if operand.mapping == ONE else self.heads[0]
                self.scalars[i] = lines.load(lines.at(f"%x{i}", place, type), type)
        for k in range(len(self.heads)):
            for value, step in enumerate(body.steps, count):
                if step.mapping in (COLUMN, ONE) and step.type not in OF_ROWS:
                    if self.plan.loop[value] == k and not self.scalar(k, value, step):
                        return False
            if k < len(self.bodies) and not self.loop(k, self.bodies[k]):
                return False
        for y, value in enumerate(body.results):
            if body.mapping(value) == COLUMN:
                self.column(self.heads[self.plan.loop[value]], y, self.scalars[value])
        return self.spilled_bytes <= MAX_SPILLED_BYTES

    def beginning(self, lines: InstructionBuilder, begins: Begins) -> LlvmValue:
        """The offset of row %i in an array."""
        first, terms = begins
        offset = number(first, "i64")
        for over, of, stride in terms:
            index = self.row_index(lines, over, of)
            offset = lines.binary("add", offset, lines.binary("mul", index, number(stride, "i64")))
        return offset

    @staticmethod
    def row_index(lines: InstructionBuilder, over: int, of: int) -> LlvmValue:
        """The index of row %i along an axis: %i // over % of (%i // over if `of` is 0)."""
        index = LlvmValue("%i", "i64")
        if over > 1:
            index = lines.binary("udiv", index, number(over, "i64"))
        return lines.binary("urem", index, number(of, "i64")) if of else index

    def row_pointer(
        self, lines: InstructionBuilder, i: int, operand: KernelOperand, offset: str
    ) -> LlvmValue:
        """The address of row %i in operand i; that of zeros where a shifted axis ends before it."""
        type = storage_type_of(operand.dtype) or ""
        pointer, inside = lines.at(f"%x{i}", offset, type), number(1, "i1")
        for shift in operand.shifts:
            if not shift.over:
                continue
            index = self.row_index(lines, shift.over, shift.of)
            by = shift.by % shift.size if shift.wraps else shift.by
            index = lines.binary("add", index, number(by, "i64"))
            if shift.wraps:
                index = lines.binary("urem", index, number(shift.size, "i64"))
            else:
                here = lines.is_below(index, shift.size)
                inside = lines.binary("and", inside, here)
            step = lines.binary("mul", index, number(shift.stride, "i64"))
            pointer = lines.at(pointer.text, step.text, type)
        if all(shift.wraps for shift in operand.shifts if shift.over):
            return pointer
        longest = max([self.body.cols, *(s.size for s in operand.shifts if not s.over)])
        self.zero_bytes = max(self.zero_bytes, longest * np.dtype(operand.dtype).itemsize)
        return lines.choose(inside, pointer, LlvmValue(ZEROS, "ptr"))

    def scalar(self, k: int, value: int, step: KernelStep) -> bool:
        """Write a value that is scalar in a row, or in the kernel."""
        lines = self.entry if step.mapping == ONE else self.heads[k]
        if step.type == NUMBER:
            type = value_type(storage_type_of(step.attrs["dtype"]) or "")
            self.scalars[value] = number(step.attrs["value"], type)
            return True
        output = self.computed(lines, step, [self.scalars[i] for i in step.inputs])
        if output is not None:
            self.scalars[value] = output
        return output is not None

    def computed(
        self, lines: InstructionBuilder, step: KernelStep, inputs: list[LlvmValue]
    ) -> LlvmValue | None:
        """The value of a step; None if it has no formula for these operands."""
        if step.type == ROUND:
            return lines.rounded(inputs[0], step.attrs["storage"])
        value: LlvmValue | None = written(lines, step.type, inputs, step.attrs, self.exact)
        return value

    def loop(self, k: int, lines: InstructionBuilder) -> bool:
        """Write the body of one loop over the elements of a row."""
        body, sweep = self.body, self.passes[k]
        places = {FULL: f"%n{k}", ROW: f"%j{k}"}
        values: dict[int, LlvmValue] = {}
        for value in sorted(self.plan.used_values[sweep]):
            step = body.step(value)
            way = body.mapping(value)
            if value in self.scalars:
                values[value] = self.scalars[value]
            elif step is None:
                values[value] = self.loaded(k, lines, value, places)
            elif self.plan.is_there(sweep, value):
                array, way = self.memory(value)
                type = self.types[value]
                values[value] = lines.load(lines.at(array, places[way], type), type, FREE)
            elif step.type == COLUMN_INDEX:
                values[value] = LlvmValue(places[ROW], "i64")
            else:
                output = self.computed(lines, step, [values[i] for i in step.inputs])
                if output is None:
                    return False
                values[value] = output
                self.types[value] = output.type
                if value in self.plan.spilled and self.plan.loop[value] == sweep:
                    self.keep(lines, value, output, places[ROW])
        for value in self.plan.roots(sweep):
            step = body.step(value)
            if step is not None and (step.type in OF_ROWS or step.type == COLUMN_SUM):
                if not self.reduced(k, lines, value, step, values[step.inputs[0]]):
                    return False
            elif step is not None and step.type == JOIN:
                self.join_rows(k, lines, value, [values[i] for i in step.inputs])
        for y, value in enumerate(body.results):
            here = self.plan.loop[value] == sweep
            if body.mapping(value) == FULL and here:
                output = values[value]
                lines.store(output, lines.at(f"%y{y}", places[FULL], output.type), FREE)
        return True

    def loaded(
        self, k: int, lines: InstructionBuilder, i: int, places: dict[str, str]
    ) -> LlvmValue:
        """An element of operand i."""
        operand = self.body.operands[i]
        type = storage_type_of(operand.dtype) or ""
        if i not in self.row_pointers:
            return lines.load(lines.at(f"%x{i}", places[operand.mapping], type), type, FREE)
        column = places[ROW]
        for shift in (shift for shift in operand.shifts if not shift.over):
            offset = shift.column_offset(self.pieces[k][0])
            if offset is None:
                return number(0, value_type(type))
            column = lines.binary("add", LlvmValue(column, "i64"), number(offset, "i64")).text
        return lines.load(lines.at(self.row_pointers[i].text, column, type), type, FREE)

    def join_rows(
        self, k: int, lines: InstructionBuilder, value: int, parts: list[LlvmValue]
    ) -> None:
        """Store elements of rows that are concatenated."""
        array, cols = f"%y{self.body.results.index(value)}", self.body.cols
        row = lines.binary("mul", LlvmValue("%base", "i64"), number(len(parts), "i64"))
        for n, part in enumerate(parts):
            begin = lines.binary("add", row, number(n * cols, "i64"))
            place = lines.binary("add", begin, LlvmValue(f"%j{k}", "i64")).text
            lines.store(part, lines.at(array, place, part.type), FREE)

    def memory(self, value: int) -> tuple[str, str]:
        """The array in which an earlier loop stored a value, and the mapping of its elements."""
        if value in self.plan.spilled and value not in self.plan.results:
            return f"%kept{value}", ROW
        return f"%y{self.body.results.index(value)}", FULL

    def keep(self, lines: InstructionBuilder, value: int, output: LlvmValue, index: str) -> None:
        """Store a value that is no result on the stack for a later loop."""
        if value in self.plan.results:
            return
        memory = MEMORY[output.type]
        self.spilled_bytes += self.body.cols * 8
        self.entry.add(f"  %kept{value} = alloca [{self.body.cols} x {memory}], align 64")
        lines.store(output, lines.at(f"%kept{value}", index, output.type), FREE)

    def column(self, lines: InstructionBuilder, y: int, scalar: LlvmValue) -> None:
        """Store a value that is scalar in a row."""
        raise NotImplementedError

    def reduced(
        self, k: int, lines: InstructionBuilder, value: int, step: KernelStep, x: LlvmValue
    ) -> bool:
        """Add an element to the reduction of a row or a column; False if its type has none."""
        raise NotImplementedError


class _CpuLoopNest(LoopBodyWriter):
    """The CPU kernel: a thread runs over the rows of its range in order."""

    def __init__(self, body: KernelBody, exact: bool, plan: LoopSchedule) -> None:
        super().__init__(body, exact, plan)
        self.carried: list[list[str]] = [[] for _ in self.bodies]  # phis of row reductions

    def column(self, lines: InstructionBuilder, y: int, scalar: LlvmValue) -> None:
        """Store a value that is scalar in a row."""
        lines.store(scalar, lines.at(f"%y{y}", "%i", scalar.type))

    def reduced(
        self, k: int, lines: InstructionBuilder, value: int, step: KernelStep, x: LlvmValue
    ) -> bool:
        """Add an element to the reduction of a row or a column."""
        if not x.is_float:
            return False
        self.types[value] = x.type
        if step.type == COLUMN_SUM:
            at = lines.at(f"%s{self.body.results.index(value)}", f"%j{k}", x.type)
            lines.store(lines.binary("add", lines.load(at, x.type, FREE), x), at, FREE)
            return True
        name, first = f"%r{value}", number(0 if step.type == SUM else -np.inf, x.type)
        head = f"  {name} = phi {x.type} [{first.text}, %head{k}], [{name}.next, %loop{k}]"
        self.carried[k].append(head)
        if step.type == SUM:
            lines.add(f"  {name}.next = fadd reassoc {x.type} {name}, {x.text}")
        else:
            assert step.type == MAX
            maximum = lines.call("maximum", LlvmValue(name, x.type), x)
            lines.lines[-1] = lines.lines[-1].replace(maximum.text, f"{name}.next", 1)
        self.scalars[value] = LlvmValue(f"{name}.next", x.type)
        return True

    # -- the function

    def text(self) -> str:
        """The LLVM module."""
        cols, bytes = self.body.cols, self.places()[-1]
        head = BasicBlocks()
        total = self.total(head)
        rows = head.add(f"udiv i64 {total.text}, {max(1, cols)}", "i64")
        self.check(head, rows)
        grain = 1 if cols else python_call_abi.GRAIN
        parts = [head, self.entry, *self.heads, *self.bodies]
        declared = set().union(*(part.declared for part in parts))
        if self.zero_bytes:
            zeros = f"[{self.zero_bytes} x i8] zeroinitializer, align {LINE}"
            declared.add(f"{ZEROS} = private unnamed_addr constant {zeros}")
        return python_call_abi.text(
            {*declared, "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"},
            head.lines,
            python_call_abi.KernelRanges("0", rows.text, total.text, grain, bytes),
            self.range(),
            metadata(len(self.bodies), cols in SHORT),
            self.join() if bytes else (),
            computes=any(step.type in CLOSE or step.type in LONG for step in self.body.steps),
        )

    def total(self, head: BasicBlocks) -> LlvmValue:
        """The number of elements."""
        if self.body.size:
            return int64_constant(self.body.size)
        ways = [o.mapping if o.begins is None else "" for o in self.body.operands]
        ways += [self.body.mapping(value) for value in self.body.results]
        head.lines += python_call_abi.objects(
            ["%whole"], max(i for i, way in enumerate(ways) if way == FULL)
        )
        return head.elements("%whole")

    def check(self, head: BasicBlocks, rows: LlvmValue) -> None:
        """Return to Python if values of `rows` are outside of the limits of their operands."""
        for i, operand in enumerate(self.body.operands):
            if operand.limit:
                head.lines += python_call_abi.objects([f"%l{i}"], i)
                type, numbers = TYPES[np.dtype(operand.dtype).name], head.data(f"%l{i}")
                with head.loop(rows, [int64_constant(0)]) as loop:
                    element = head.load(head.element_address(numbers, loop.i, type), type)
                    wrong = head.add(f"icmp uge {type} {element.text}, {operand.limit}", "i1")
                    wrong = head.add(f"zext i1 {wrong.text} to i64", "i64")
                    loop.next = [head.binary("add", loop.carried[0], wrong)]
                head.end_if(head.compare("ne", loop.ends[0], int64_constant(0)), loop.ends[0])

    def range(self) -> list[str]:
        """The code for the rows from %begin to %end; without rows, for these elements."""
        arrays = [f"%x{i}" for i in range(len(self.body.operands))]
        arrays += [f"%y{k}" for k in range(len(self.body.results))]
        cols, objects = self.body.cols, [f"{array}.of" for array in arrays]
        single_row = ["  %cols = sub i64 %end, %begin"]
        single_row += ["  %some = icmp slt i64 %begin, %end", "  %one = zext i1 %some to i64"]
        return [
            *python_call_abi.objects(objects),
            *(line for array in arrays for line in python_call_abi.numbers(array, f"{array}.of")),
            *self.entry.lines,
            *self.zeros(),
            *([f"  %cols = add i64 {cols}, 0"] if cols else single_row),
            "  br label %rows",
            "rows:",
            f"  %i = phi i64 [{'%begin' if cols else 0}, %entry], [%i1, %next]",
            f"  %over = icmp sge i64 %i, {'%end' if cols else '%one'}",
            "  br i1 %over, label %done, label %row",
            "row:",
            f"  %base = {'mul i64 %i, %cols' if cols else 'add i64 %begin, 0'}",
            "  br label %head0",
            *(line for k in range(len(self.bodies)) for line in self.nest(k)),
            f"head{len(self.bodies)}:",
            *self.heads[-1].lines,
            "  br label %next",
            "next:",
            "  %i1 = add nuw nsw i64 %i, 1",
            "  br label %rows",
            "done:",
        ]

    # -- column sums: each range has contiguous partial sums of its own

    def sums(self) -> list[int]:
        """The results that are column sums."""
        steps = [self.body.step(value) for value in self.body.results]
        return [y for y, step in enumerate(steps) if step and step.type == COLUMN_SUM]

    def places(self) -> list[int]:
        """The byte offset of the partial sums of each column sum, then their total size."""
        return list(
            accumulate((python_call_abi.lines(self.size(y)) for y in self.sums()), initial=0)
        )

    def size(self, y: int) -> int:
        """The bytes of the partial sums of one column sum."""
        return self.body.cols * BYTES[self.types[self.body.results[y]]]

    def zeros(self) -> list[str]:
        """Set %s to the partial sums of each column sum, and clear them."""
        lines = ["  %own = icmp ne ptr %sums, null"] if self.sums() else []
        for y, place in zip(self.sums(), self.places(), strict=False):
            lines += [
                f"  %s{y}.own = getelementptr i8, ptr %sums, i64 {place}",
                f"  %s{y} = select i1 %own, ptr %s{y}.own, ptr %y{y}",
                f"  call void @llvm.memset.p0.i64(ptr %s{y}, i8 0, i64 {self.size(y)}, i1 false)",
            ]
        return lines

    def join(self) -> list[str]:
        """Add the partial sums of a range to the results."""
        b = BasicBlocks()
        for y, place in zip(self.sums(), self.places(), strict=False):
            of = self.types[self.body.results[y]]
            b.lines += python_call_abi.objects([f"%o{y}"], len(self.body.operands) + y)
            total, part = b.data(f"%o{y}"), b.at("%sums", str(place), "i8")
            with b.loop(int64_constant(self.body.cols)) as loop:
                at = b.element_address(total, loop.i, of)
                partial_sum = b.load(b.element_address(part, loop.i, of), of)
                b.store(b.binary("add", b.load(at, of), partial_sum), at)
        return b.lines

    def nest(self, k: int) -> list[str]:
        """The code of one loop over a row or a piece of it, and the code before it."""
        first, end = (0, "%cols") if len(self.pieces) == 1 else self.pieces[k]
        return [
            f"head{k}:",
            *self.heads[k].lines,
            f"  br label %loop{k}",
            f"loop{k}:",
            f"  %j{k} = phi i64 [{first}, %head{k}], [%j{k}.next, %loop{k}]",
            *self.carried[k],
            f"  %n{k} = add i64 %base, %j{k}",
            *self.bodies[k].lines,
            f"  %j{k}.next = add nuw nsw i64 %j{k}, 1",
            f"  %again{k} = icmp ult i64 %j{k}.next, {end}",
            f"  br i1 %again{k}, label %loop{k}, label %head{k + 1}, !llvm.loop !{2 + k}",
        ]
