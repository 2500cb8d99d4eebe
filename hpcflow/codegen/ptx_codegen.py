"""GPU code generator of fused kernels, and their launch configuration (blocks and threads).

A kernel takes the addresses of arrays, inputs first, then those of the partial sums of columns,
then the number of elements or rows. Threads of a block that are neighbours in x access consecutive
memory. There are three forms:

FLAT     no reduction: a grid-stride loop over elements
ROWS     row reductions: the threads of one y have one row and reduce their partial values by a tree
         in the shared memory of the block
COLUMNS  column sums only: a thread runs down its column, the block reduces the partial values

For column sums, rows are split into slices; `NAME_join` adds up the slices. Only sizes determine
the order of additions, so a step gives the same bits each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import variable_update_codegen
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    JOIN,
    MAX,
    OF_ROWS,
    ROW,
    KernelBody,
    KernelOperand,
    KernelStep,
    LoopSchedule,
)
from hpcflow.codegen.llvm_builder import (
    TYPES,
    InstructionBuilder,
    LlvmValue,
    metadata,
    number,
    storage_type_of,
)
from hpcflow.codegen.llvm_cpu_codegen import LoopBodyWriter
from hpcflow.codegen.unrolling import ALIGNED, VECTOR, defined, neighbours, renamed, rows_together
from hpcflow.codegen.variable_update_codegen import UpdateKernel

THREADS = 256  # of a block, a power of two
LINE = 32  # threads of a warp, whose loads are coalesced
BLOCKS = 4096  # of a grid: more threads than a GPU runs at once
JOIN_THREADS = 1024  # of a block that adds up slices
SLICES = 512  # partial sums of a column, at most
MIN_VECTOR_ELEMENTS = 1 << 17  # fewer would not give work to all processors of a GPU
MAX_ROW_ARRAYS = 4  # arrays of which a thread takes several rows together
MAX_VECTOR_LINES = 240  # instructions for an element: more would need too many registers
DEEP = 8  # rows of a slice that one thread adds up, at least
MAX_ARRAYS = 500  # arrays: CUDA allows 4 KiB of kernel arguments
FLAT, ROWS, COLUMNS = "flat", "rows", "columns"
INT32_INDEX_LIMIT = 1 << 31  # elements: fewer have 32-bit indices, which GPUs divide much faster
BARRIER = "llvm.nvvm.barrier0"
SPECIAL = "llvm.nvvm.read.ptx.sreg."
REGISTERS = {  # special registers: thread and block indices
    **{"tx": "tid.x", "ty": "tid.y", "bx": "ctaid.x", "by": "ctaid.y"},
    **{"gx": "nctaid.x", "gy": "nctaid.y"},
}
DECLARED = {f"declare void @{BARRIER}()"}
DECLARED |= {f"declare i32 @{SPECIAL}{register}()" for register in REGISTERS.values()}

# x to the integer n >= 0 by repeated squaring: the NVPTX target has no pow
POW = "@llvm.pow.f64"
POW_DECLARED = f"declare double {POW}(double, double)"
POWER = """define internal double @power(double %x, double %n) alwaysinline {
entry:
  %whole = fptoui double %n to i64
  br label %loop
loop:
  %left = phi i64 [%whole, %entry], [%rest, %loop]
  %power = phi double [%x, %entry], [%square, %loop]
  %made = phi double [1.0, %entry], [%chosen, %loop]
  %bit = trunc i64 %left to i1
  %more = fmul double %made, %power
  %chosen = select i1 %bit, double %more, double %made
  %square = fmul double %power, %power
  %rest = lshr i64 %left, 1
  %over = icmp eq i64 %rest, 0
  br i1 %over, label %done, label %loop
done:
  ret double %chosen
}"""


class LaunchConfig(NamedTuple):
    """A launch configuration: grid, block, elements or rows; rows are summed in `slices` apart."""

    grid: tuple[int, int]
    block: tuple[int, int]
    length: int
    slices: int = 1


def form(body: KernelBody) -> str:
    """The form of the kernel of a body."""
    types = {step.type for step in body.steps}
    if types & {*OF_ROWS} or COLUMN in map(body.mapping, body.results):
        return ROWS
    return COLUMNS if COLUMN_SUM in types else FLAT


def launch(body: KernelBody, size: int) -> LaunchConfig:
    """The launch configuration of a kernel whose domain has `size` elements."""
    if form(body) == FLAT:
        return flat(
            size // VECTOR if _has_vectors(body) and size >= MIN_VECTOR_ELEMENTS else size, size
        )
    block, rows = _block(body), size // body.cols
    if form(body) == COLUMNS:
        columns = _grid_loop(body.cols, block[0])
        slices = min(_grid_loop(rows, DEEP * block[1]), SLICES, max(1, BLOCKS // columns))
        return LaunchConfig((columns, slices), block, rows, slices)
    blocks, summed = _grid_loop(rows, block[1]), bool(column_sums(body))
    blocks = min(blocks, max(1, SLICES // block[1]) if summed else BLOCKS)
    return LaunchConfig((blocks, 1), block, rows, blocks * block[1] if summed else 1)


def flat(threads: int, size: int = 0) -> LaunchConfig:
    """The launch configuration of a grid-stride kernel over `size` elements, one a thread."""
    grid = min(_grid_loop(threads, THREADS), BLOCKS), 1
    return LaunchConfig(grid, (THREADS, 1), size or threads)


def _has_vectors(body: KernelBody) -> bool:
    """Whether neighbouring elements are in one row, and neighbours in all arrays."""
    joined = any(step.type == JOIN for step in body.steps)
    return not (body.cols % VECTOR or joined or any(o.begins for o in body.operands))


def _block(body: KernelBody, threads: int = 0) -> tuple[int, int]:
    """Threads of a block in x, less than twice the elements of a row, and in y."""
    threads = threads or THREADS
    most = min(threads, LINE) if form(body) == COLUMNS else threads
    wide = min(most, 1 << (body.cols - 1).bit_length())
    return wide, threads // wide


def _grid_loop(count: int, by: int) -> int:
    return -(-count // by)


def column_sums(body: KernelBody) -> list[int]:
    """The results that are column sums."""
    steps = [body.step(value) for value in body.results]
    return [y for y, step in enumerate(steps) if step and step.type == COLUMN_SUM]


def joining(cols: int, dtype: Any) -> KernelBody:
    """The body of the kernel that adds up slices: column sums again."""
    return KernelBody(
        (KernelOperand(dtype, FULL),), (KernelStep(COLUMN_SUM, (0,), {}, ROW),), (1,), cols
    )


def join(body: KernelBody, slices: int) -> LaunchConfig:
    """The launch configuration of the kernel that adds up the slices of all column sums."""
    block = _block(joining(body.cols, None), JOIN_THREADS)
    blocks = _grid_loop(body.cols, block[0]) * len(column_sums(body))
    return LaunchConfig((blocks, 1), block, slices)


def schedule(body: KernelBody) -> LoopSchedule:
    """The loops of a kernel; a later loop recomputes what it needs, in registers."""
    return LoopSchedule(body, frozenset())


def text(body: KernelBody, int32_indices: bool) -> str | None:
    """The LLVM module: `@NAME`, and `@NAME_join` if results are column sums.

    None if an operation has no formula. Arrays are in C order; `int32_indices`: fewer than
    `INT32_INDEX_LIMIT` elements.
    """
    if None in [storage_type_of(operand.dtype) for operand in body.operands]:
        return None
    if len(body.operands) + len(body.results) + len(column_sums(body)) > MAX_ARRAYS:
        return None
    kernel = _GpuKernel("@NAME", body, int32_indices)
    if not kernel.write():
        return None
    kernels = [kernel]
    if sums := column_sums(body):
        types = {kernel.types[body.results[y]] for y in sums}
        if len(types) > 1:
            return None
        of = next(name for name, type in TYPES.items() if type in types)
        kernels.append(_JoinKernel(joining(body.cols, of), len(sums)))
        kernels[-1].write()
    head: set[str] = set().union(*(writer.head() for writer in kernels))
    functions = (line for writer in kernels for line in writer.function())
    return "\n".join([*sorted(head), *functions, *metadata(0)])


def update(kernel: UpdateKernel) -> str | None:
    """The LLVM module of an update: `@NAME`, which reads the variables that count updates.

    If there are such variables, `@NAME_count` increments them in one thread afterwards.
    """
    code, names = (
        variable_update_codegen.lines(kernel, exact=False, already_incremented=False),
        variable_update_codegen.arrays(kernel),
    )
    if code is None or len(names) > MAX_ARRAYS:
        return None
    head, body = code
    lines = [*kernel_head("@NAME", names), *head.lines, *grid_stride()]
    lines += [*loop_lines("j", "%n.first", "%length", "%n.step", body.lines), "  ret void", "}"]
    count = InstructionBuilder("c")
    for k, (target, times) in enumerate(
        zip(kernel.targets, variable_update_codegen.times(kernel), strict=True)
    ):
        if target.counts:
            at = LlvmValue(f"%n{k}", "ptr")
            count.store(count.binary("add", count.load(at, "i64"), number(times, "i64")), at)
    if count.lines:
        lines += [*kernel_head("@NAME_count", names), *count.lines, "  ret void", "}"]
    declared = DECLARED | head.declared | body.declared
    text = "\n".join([*sorted(declared - {POW_DECLARED}), *lines, *metadata(0)])
    return f"{POWER}\n{text.replace(POW, '@power')}" if POW in text else text


def kernel_head(name: str, arrays: list[str]) -> Iterator[str]:
    """The head of a kernel, and the indices of a thread."""
    parameters = "".join(f"ptr %{array}, " for array in arrays)
    yield f"define ptx_kernel void {name}({parameters}i64 %length) {{"
    for place, register in REGISTERS.items():
        yield f"  %{place}.32 = call i32 @{SPECIAL}{register}()"
        yield f"  %{place} = zext i32 %{place}.32 to i64"


def grid_stride() -> Iterator[str]:
    """The first element of a thread in a grid-stride loop, and the stride."""
    yield f"  %begin = mul i64 %bx, {THREADS}"
    yield "  %n.first = add i64 %begin, %tx"
    yield f"  %n.step = mul i64 %gx, {THREADS}"


@contextlib.contextmanager
def when(lines: InstructionBuilder, condition: LlvmValue) -> Iterator[None]:
    """Run the body where a condition holds."""
    lines.count += 1
    name = f"{lines.letter}{lines.count}"
    lines.add(f"  br i1 {condition.text}, label %{name}.yes, label %{name}.after")
    lines.add(f"{name}.yes:")
    yield
    lines.add(f"  br label %{name}.after")
    lines.add(f"{name}.after:")


class _GpuKernel(LoopBodyWriter):
    """One GPU function: loop bodies as in the CPU kernel, with other loops around them."""

    def __init__(self, name: str, body: KernelBody, int32_indices: bool, threads: int = 0) -> None:
        super().__init__(body, False, schedule(body))
        self.name, self.int32_indices, self.form = name, int32_indices, form(body)
        self.wide, self.down = _block(body, threads) if self.form != FLAT else (THREADS, 1)
        self.block = "%bx"  # the index of the block in x
        self.shared: set[str] = set()  # types of values in shared memory
        self.end = InstructionBuilder("z")  # after all loops

    # -- values of rows and columns

    def reduced(
        self, k: int, lines: InstructionBuilder, value: int, step: KernelStep, x: LlvmValue
    ) -> bool:
        """Add an element to this thread's partial reduction of a row or a column."""
        if not x.is_float:
            return False
        self.types[value] = x.type
        if step.type == COLUMN_SUM and self.form == ROWS:
            at = lines.at(f"%mine{self.body.results.index(value)}", f"%j{k}", x.type)
            lines.store(lines.binary("add", lines.load(at, x.type), x), at)
            return True
        at = LlvmValue(f"%r{value}", "ptr")
        self.entry.add(f"  {at.text} = alloca {x.type}")
        before = self.entry if step.type == COLUMN_SUM else self.heads[k]
        before.store(number(-np.inf if step.type == MAX else 0, x.type), at)
        lines.store(_combine(lines, step, lines.load(at, x.type), x), at)
        if step.type == COLUMN_SUM:
            reduced = self.joined(self.end, step, self.end.load(at, x.type), self.down, "ty")
            place = self.end.add("add i64 %slice, %j0", "i64")
            array = f"%s{self.body.results.index(value)}"
            self.only(self.end, "%first", reduced, array, place.text)
        else:
            after = self.heads[k + 1]
            reduced = self.joined(after, step, after.load(at, x.type), self.wide, "tx")
            self.scalars[value] = reduced
        return True

    def joined(
        self, lines: InstructionBuilder, step: KernelStep, x: LlvmValue, threads: int, lane: str
    ) -> LlvmValue:
        """Reduce the values of `threads` threads along `lane` in shared memory; each gets it."""
        if threads == 1:
            return x
        type, apart = x.type, 1 if lane == "tx" else self.wide
        self.shared.add(type)
        room = f"addrspacecast (ptr addrspace(3) {self.name}_{type} to ptr)"
        slot = lines.at(room, "%here", type)
        lines.store(x, slot)
        lines.add(f"  call void @{BARRIER}()")
        half = threads // 2
        while half:
            with when(lines, lines.add(f"icmp ult i64 %{lane}, {half}", "i1")):
                place = lines.add(f"add i64 %here, {half * apart}", "i64")
                partner = lines.load(lines.at(room, place.text, type), type)
                lines.store(_combine(lines, step, lines.load(slot, type), partner), slot)
            lines.add(f"  call void @{BARRIER}()")
            half //= 2
        reduced = lines.load(lines.at(room, f"%zero.{lane}", type), type)
        lines.add(f"  call void @{BARRIER}()")  # before the shared memory is reused
        return reduced

    def column(self, lines: InstructionBuilder, y: int, scalar: LlvmValue) -> None:
        """Store a value that is scalar in a row, in one thread."""
        self.only(lines, "%tells", scalar, f"%y{y}", "%i")

    def only(
        self, lines: InstructionBuilder, condition: str, output: LlvmValue, array: str, index: str
    ) -> None:
        """Store a value where a condition holds."""
        at = lines.at(array, index, output.type)
        with when(lines, LlvmValue(condition, "i1")):
            lines.store(output, at)

    # -- the function

    def head(self) -> set[str]:
        """The declarations and shared memory of the function."""
        parts = [self.entry, *self.heads, *self.bodies, self.end]
        room = "{}_{} = internal addrspace(3) global [{} x {}] undef, align 16"
        threads = self.wide * self.down
        rooms = {room.format(self.name, type, threads, type) for type in self.shared}
        return DECLARED.union(rooms, *(part.declared for part in parts))

    def function(self) -> Iterator[str]:
        """The lines of the function."""
        arrays = [f"x{i}" for i in range(len(self.body.operands))]
        arrays += [f"y{y}" for y in range(len(self.body.results))]
        arrays += [f"s{y}" for y in column_sums(self.body)]
        yield from kernel_head(self.name, arrays)
        yield from self.entry.lines
        yield from {FLAT: self.flat, ROWS: self.rows, COLUMNS: self.columns}[self.form]()
        yield "  ret void"
        yield "}"

    def flat(self) -> Iterator[str]:
        """The grid-stride loop over elements; where it can be, over vectors of them."""
        yield from grid_stride()
        end = "%length"
        if _has_vectors(self.body) and len(self.bodies[0].lines) <= MAX_VECTOR_LINES:
            yield from self.vectors()
            end = "%scalars"
        yield from loop_lines("n", "%n.first", end, "%n.step", self.element())

    def element(self) -> Iterator[str]:
        """The code of one element %n."""
        yield from self.places()
        yield from self.heads[0].lines
        yield from self.bodies[0].lines

    def places(self) -> Iterator[str]:
        """The row, column and offset of element %n."""
        kind, cols = "i32" if self.int32_indices else "i64", max(1, self.body.cols)
        yield f"  %n.of = {'trunc i64 %n to i32' if kind == 'i32' else 'add i64 %n, 0'}"
        yield f"  %i.of = udiv {kind} %n.of, {cols}"
        yield f"  %j.of = urem {kind} %n.of, {cols}"
        for new, old in (("i", "i"), ("j0", "j")):
            word = f"zext i32 %{old}.of to i64" if kind == "i32" else f"add i64 %{old}.of, 0"
            yield f"  %{new} = {word}"
        yield "  %n0 = add i64 %n, 0"
        yield f"  %base = mul i64 %i, {cols}"

    def vectors(self) -> Iterator[str]:
        """The loop over vectors, if all arrays are aligned; %scalars elements are left."""
        arrays = [f"x{i}" for i, o in enumerate(self.body.operands) if o.mapping in (FULL, ROW)]
        arrays += [f"y{y}" for y in range(len(self.body.results))]
        bits = "0"
        for array in arrays:
            yield f"  %{array}.at = ptrtoint ptr %{array} to i64"
            yield f"  %{array}.bits = or i64 %{array}.at, {bits}"
            bits = f"%{array}.bits"
        yield f"  %unaligned = and i64 {bits}, {ALIGNED - 1}"
        yield "  %aligned = icmp eq i64 %unaligned, 0"
        yield f"  %rest = and i64 %length, {VECTOR - 1}"
        yield "  %whole = icmp eq i64 %rest, 0"
        yield f"  %many = icmp uge i64 %length, {MIN_VECTOR_ELEMENTS}"
        yield "  %fit = and i1 %aligned, %whole"
        yield "  %vector = and i1 %fit, %many"
        yield f"  %count = udiv i64 %length, {VECTOR}"
        yield "  %vectors = select i1 %vector, i64 %count, i64 0"
        yield "  %scalars = select i1 %vector, i64 0, i64 %length"
        before = [*self.places(), *self.heads[0].lines]
        before = [f"  %n.v = mul i64 %m, {VECTOR}", *renamed(before, ".v")]
        element = neighbours(self.bodies[0].lines, defined(before))
        yield from loop_lines("m", "%n.first", "%vectors", "%n.step", [*before, *element])

    def rows(self) -> Iterator[str]:
        """The loop over rows, one for each y; threads without a row take part in barriers."""
        yield from self.lanes()
        yield f"  %first.row = mul i64 %bx, {self.down}"
        yield f"  %rows.apart = mul i64 %gx, {self.down}"
        yield "  %last = sub i64 %length, 1"
        yield "  %slot = add i64 %first.row, %ty"
        yield f"  %slice = mul i64 %slot, {self.body.cols}"
        for y in column_sums(self.body):
            type = self.types[self.body.results[y]]
            yield f"  %mine{y} = getelementptr {type}, ptr %s{y}, i64 %slice"
            zero = [f"  %zero{y} = getelementptr {type}, ptr %mine{y}, i64 %z{y}"]
            zero += [f"  store {type} {number(0, type).text}, ptr %zero{y}"]
            yield from loop_lines(f"z{y}", "%tx", str(self.body.cols), str(self.wide), zero)
        yield from loop_lines("top", "%first.row", "%length", "%rows.apart", self.row())

    def row(self) -> Iterator[str]:
        """The code of one row, or of none."""
        yield "  %row = add i64 %top, %ty"
        yield "  %active = icmp slt i64 %row, %length"
        yield "  %i = select i1 %active, i64 %row, i64 %last"
        yield f"  %cols = select i1 %active, i64 {self.body.cols}, i64 0"
        yield "  %leads = icmp eq i64 %tx, 0"
        yield "  %tells = and i1 %active, %leads"
        yield f"  %base = mul i64 %i, {self.body.cols}"
        for k, lines in enumerate(self.bodies):
            yield from self.heads[k].lines
            place = f"  %n{k} = add i64 %base, %j{k}"
            yield from loop_lines(f"j{k}", "%tx", "%cols", str(self.wide), [place, *lines.lines])
        yield from self.heads[-1].lines

    def columns(self) -> Iterator[str]:
        """A column for each thread in x; threads in y share its rows."""
        yield from self.lanes()
        yield f"  %left = mul i64 {self.block}, {self.wide}"
        yield "  %j0 = add i64 %left, %tx"
        yield f"  %inside = icmp slt i64 %j0, {self.body.cols}"
        yield "  %end = select i1 %inside, i64 %length, i64 0"
        yield "  %leads = icmp eq i64 %ty, 0"
        yield "  %first = and i1 %inside, %leads"
        yield f"  %slice = mul i64 %by, {self.body.cols}"
        yield f"  %top = mul i64 %by, {self.down}"
        yield "  %i.first = add i64 %top, %ty"
        yield f"  %rows.apart = mul i64 %gy, {self.down}"
        place = [f"  %base = mul i64 %i, {self.body.cols}", "  %n0 = add i64 %base, %j0"]
        inside = [*self.heads[0].lines, *place, *self.bodies[0].lines]
        first = "%i.first"
        if self.takes_rows_together():
            yield f"  %strip = mul i64 %rows.apart, {VECTOR}"
            yield f"  %last.row = mul i64 %rows.apart, {VECTOR - 1}"
            yield "  %strips = sub i64 %end, %last.row"
            yield from loop_lines("r", first, "%strips", "%strip", rows_together(inside))
            first = "%i.left"
            yield f"  {first} = phi i64 [%i.first, %r.enter], [%r.next, %r.tail]"
        yield from loop_lines("i", first, "%end", "%rows.apart", inside)
        yield from self.end.lines

    def takes_rows_together(self) -> bool:
        """Whether a thread loads several rows before it adds them up.

        With many arrays this takes so many registers that it is slower (1.6 times with six).
        """
        ways = [o.mapping for o in self.body.operands]
        ways += [self.body.mapping(value) for value in self.body.results]
        few = ways.count(FULL) <= MAX_ROW_ARRAYS
        return few and len(self.bodies[0].lines) <= MAX_VECTOR_LINES

    def lanes(self) -> Iterator[str]:
        """The slot of a thread in shared memory, and those of the first threads in x and y."""
        yield f"  %zero.tx = mul i64 %ty, {self.wide}"
        yield "  %zero.ty = add i64 %tx, 0"
        yield "  %here = add i64 %zero.tx, %tx"


class _JoinKernel(_GpuKernel):
    """The function that adds up the slices of `count` column sums, each with blocks of its own.

    It takes the arrays of slices, then the sums.
    """

    def __init__(self, body: KernelBody, count: int) -> None:
        super().__init__("@NAME_join", body, True, JOIN_THREADS)
        self.count, self.block = count, "%block"

    def function(self) -> Iterator[str]:
        """The lines of the function: that of one column sum, after the choice of its arrays."""
        pairs = (("x0", "part"), ("s0", "sum"))
        yield from kernel_head(
            self.name, [f"{array}{k}" for _, array in pairs for k in range(self.count)]
        )
        blocks = _grid_loop(self.body.cols, self.wide)
        yield f"  %which = udiv i64 %bx, {blocks}"
        yield f"  %block = urem i64 %bx, {blocks}"
        for k in range(1, self.count):
            yield f"  %is{k} = icmp eq i64 %which, {k}"
        for name, array in pairs:
            chosen = f"%{array}0"
            for k in range(1, self.count):
                yield f"  %{name}.{k} = select i1 %is{k}, ptr %{array}{k}, ptr {chosen}"
                chosen = f"%{name}.{k}"
            yield f"  %{name} = getelementptr i8, ptr {chosen}, i64 0"
        yield from self.entry.lines
        yield from self.columns()
        yield "  ret void"
        yield "}"


def _combine(lines: InstructionBuilder, step: KernelStep, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """The sum of two values, or their maximum."""
    return lines.call("maximum", x, y) if step.type == MAX else lines.binary("add", x, y)


def loop_lines(name: str, first: str, end: str, step: str, body: Iterable[str]) -> Iterator[str]:
    """A loop: %name goes from `first` in steps of `step` while it is less than `end`."""
    yield f"  br label %{name}.enter"
    yield f"{name}.enter:"
    yield f"  %{name}.some = icmp slt i64 {first}, {end}"
    yield f"  br i1 %{name}.some, label %{name}.loop, label %{name}.done"
    yield f"{name}.loop:"
    yield f"  %{name} = phi i64 [{first}, %{name}.enter], [%{name}.next, %{name}.tail]"
    yield from body
    yield f"  br label %{name}.tail"
    yield f"{name}.tail:"
    yield f"  %{name}.next = add nuw nsw i64 %{name}, {step}"
    yield f"  %{name}.again = icmp slt i64 %{name}.next, {end}"
    yield f"  br i1 %{name}.again, label %{name}.loop, label %{name}.done"
    yield f"{name}.done:"
