"""The text of a kernel of fused operations: loops over the elements of a row, in one over rows.

A kernel is called with NumPy arrays themselves, as Python objects, inputs first. Where an array's
numbers lie, and its sizes, it reads from the fields that NumPy's headers define
(`PyArrayObject_fields` of numpy/ndarraytypes.h), so a call hands over nothing else.
"""

from __future__ import annotations

import numpy as np

from hpcflow.native import call
from hpcflow.native.formulas import CLOSE, LONG, written
from hpcflow.native.loop import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    MAX,
    NUMBER,
    OF_ROWS,
    ONE,
    PLACE,
    RANK,
    ROW,
    SIZES,
    SUM,
    Body,
    Schedule,
    Step,
)
from hpcflow.native.words import FREE, MEMORY, TYPES, Lines, Value, metadata, number

MOST_KEPT = 1 << 18  # bytes on the stack for values of a row that more than one loop needs
COSTLY = LONG | CLOSE.keys()
PLACES = {COLUMN: "%i", ONE: "0"}  # of what is taken outside the loops over a row


def schedule(body: Body) -> Schedule:
    """The loops of a kernel."""
    return Schedule(body, COSTLY)


def text(body: Body, exact: bool) -> str | None:
    """The kernel in LLVM's language, `@NAME` its function; None if an operation has no formula.

    Arrays lie in C order; a result has its elements, rows or columns as the way of its value says.
    """
    if not all(np.dtype(operand.dtype).name in TYPES for operand in body.operands):
        return None
    writer = _Writer(body, exact)
    return writer.text() if writer.write() else None


class _Writer:
    def __init__(self, body: Body, exact: bool) -> None:
        self.body, self.exact = body, exact
        self.plan = schedule(body)
        loops = range(len(self.plan.used))
        self.entry = Lines("e")
        self.heads = [Lines(f"h{k}.") for k in (*loops, len(loops))]  # the last behind all loops
        self.bodies = [Lines(f"v{k}.") for k in loops]
        self.carried: list[list[str]] = [[] for _ in loops]  # phis of what a loop makes of a row
        self.scalars: dict[int, Value] = {}  # values of which a row has one
        self.types: dict[int, str] = {}
        self.kept = 0  # bytes

    # -- from values to lines

    def write(self) -> bool:
        """Fill the lines; False if an operation has no formula."""
        body, count = self.body, len(self.body.operands)
        for i, operand in enumerate(body.operands):
            type = TYPES[np.dtype(operand.dtype).name]
            if operand.way in (ONE, COLUMN):
                lines = self.entry if operand.way == ONE else self.heads[0]
                self.scalars[i] = lines.load(lines.at(f"%x{i}", PLACES[operand.way], type), type)
        for k in range(len(self.heads)):
            for value, step in enumerate(body.steps, count):
                if step.way in (COLUMN, ONE) and step.type not in OF_ROWS:
                    if self.plan.loop[value] == k and not self.scalar(k, value, step):
                        return False
            if k < len(self.bodies) and not self.loop(k, self.bodies[k]):
                return False
        for y, value in enumerate(body.results):
            if body.way(value) == COLUMN:
                lines = self.heads[self.plan.loop[value]]
                made = self.scalars[value]
                lines.store(made, lines.at(f"%y{y}", "%i", made.type))
        return self.kept <= MOST_KEPT

    def scalar(self, k: int, value: int, step: Step) -> bool:
        """A value of which a row, or the kernel, has one."""
        lines = self.entry if step.way == ONE else self.heads[k]
        if step.type == NUMBER:
            type = TYPES[np.dtype(step.attrs["dtype"]).name]
            self.scalars[value] = number(step.attrs["value"], type)
            return True
        given = [self.scalars[i] for i in step.inputs]
        made = written(lines, step.type, given, step.attrs, self.exact)
        if made is not None:
            self.scalars[value] = made
        return made is not None

    def loop(self, k: int, lines: Lines) -> bool:
        """One loop over the elements of a row."""
        body, count = self.body, len(self.body.operands)
        places = {FULL: f"%n{k}", ROW: f"%j{k}"}
        known: dict[int, Value] = {}
        for value in sorted(self.plan.used[k]):
            step = body.step(value)
            way = body.way(value)
            if value in self.scalars:
                known[value] = self.scalars[value]
            elif step is None:
                type = TYPES[np.dtype(body.operands[value].dtype).name]
                at = lines.at(f"%x{value}", places[way], type)
                known[value] = lines.load(at, type, FREE)
            elif self.plan.is_there(k, value):
                array, place = self.memory(value)
                type = self.types[value]
                known[value] = lines.load(lines.at(array, places[place], type), type, FREE)
            elif step.type == PLACE:
                known[value] = Value(places[ROW], "i64")
            else:
                given = [known[i] for i in step.inputs]
                made = written(lines, step.type, given, step.attrs, self.exact)
                if made is None:
                    return False
                known[value] = made
                self.types[value] = made.type
                if value in self.plan.kept and self.plan.loop[value] == k:
                    self.keep(lines, value, made, places[ROW])
        for value in self.plan.roots(k):
            step = body.step(value)
            if step is not None and (step.type in OF_ROWS or step.type == COLUMN_SUM):
                if not self.reduced(k, lines, value, step, known[step.inputs[0]]):
                    return False
        for y, value in enumerate(body.results):
            here = (value < count and k == 0) or (value >= count and self.plan.loop[value] == k)
            if body.way(value) == FULL and here:
                made = known[value]
                lines.store(made, lines.at(f"%y{y}", places[FULL], made.type), FREE)
        return True

    def memory(self, value: int) -> tuple[str, str]:
        """Where an earlier loop has put a value, and how its elements lie there."""
        if value in self.plan.kept and value not in self.plan.results:
            return f"%kept{value}", ROW
        return f"%y{self.body.results.index(value)}", FULL

    def keep(self, lines: Lines, value: int, made: Value, place: str) -> None:
        """Have a later loop find a value that is no result."""
        if value in self.plan.results:
            return
        memory = MEMORY[made.type]
        self.kept += self.body.cols * 8
        self.entry.add(f"  %kept{value} = alloca [{self.body.cols} x {memory}], align 64")
        lines.store(made, lines.at(f"%kept{value}", place, made.type), FREE)

    def reduced(self, k: int, lines: Lines, value: int, step: Step, x: Value) -> bool:
        """Add an element to what a loop makes of a row, or of a column."""
        if not x.is_float:
            return False
        self.types[value] = x.type
        if step.type == COLUMN_SUM:
            y = f"%y{self.body.results.index(value)}"
            at = lines.at(y, f"%j{k}", x.type)
            lines.store(lines.two("add", lines.load(at, x.type, FREE), x), at, FREE)
            return True
        name, first = f"%r{value}", number(0 if step.type == SUM else -np.inf, x.type)
        head = f"  {name} = phi {x.type} [{first.text}, %head{k}], [{name}.next, %loop{k}]"
        self.carried[k].append(head)
        if step.type == SUM:
            lines.add(f"  {name}.next = fadd reassoc {x.type} {name}, {x.text}")
        else:
            assert step.type == MAX
            made = lines.call("maximum", Value(name, x.type), x)
            lines.lines[-1] = lines.lines[-1].replace(made.text, f"{name}.next", 1)
        self.scalars[value] = Value(f"{name}.next", x.type)
        return True

    # -- the whole

    def text(self) -> str:
        """The function, with what it calls."""
        body = self.body
        arrays = [f"%a{i}" for i in range(len(body.operands))]
        outputs = [f"%o{k}" for k in range(len(body.results))]
        ways = [o.way for o in body.operands] + [body.way(v) for v in body.results]
        named = [*arrays, *outputs]
        parts = [self.entry, *self.heads, *self.bodies]
        return "\n".join(
            [
                *sorted(set().union(*(part.declared for part in parts)) | call.CALLED),
                "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
                f"define ptr @NAME({call.SIGNATURE}) {{",
                "entry:",
                *call.objects(named),
                *(line for i, a in enumerate(arrays) for line in call.numbers(f"%x{i}", a)),
                *(line for k, o in enumerate(outputs) for line in call.numbers(f"%y{k}", o)),
                *self.entry.lines,
                *_total(named[max(i for i, way in enumerate(ways) if way == FULL)]),
                *call.unlocked("%total", "sized"),
                *self.shape(),
                "  br label %rows",
                "rows:",
                "  %i = phi i64 [0, %py.unlocked], [%i1, %next]",
                "  %over = icmp sge i64 %i, %count",
                "  br i1 %over, label %end, label %begin",
                "begin:",
                "  %base = mul i64 %i, %cols",
                "  br label %head0",
                *(line for k in range(len(self.bodies)) for line in self.nest(k)),
                f"head{len(self.bodies)}:",
                *self.heads[-1].lines,
                "  br label %next",
                "next:",
                "  %i1 = add nuw nsw i64 %i, 1",
                "  br label %rows",
                "end:",
                *call.END,
                "}",
                *metadata(len(self.bodies)),
            ]
        )

    def shape(self) -> list[str]:
        """How many rows there are, %count, of %cols elements; sums of columns begin at 0."""
        cols = self.body.cols
        if not cols:
            some = ["  %some = icmp ne i64 %total, 0", "  %count = zext i1 %some to i64"]
            return [*some, "  %cols = add i64 %total, 0"]
        found = [f"  %count = udiv i64 %total, {cols}", f"  %cols = add i64 {cols}, 0"]
        for y, value in enumerate(self.body.results):
            step = self.body.step(value)
            if step is not None and step.type == COLUMN_SUM:
                size = cols * (8 if self.types[value] == "double" else 4)
                what = f"ptr %y{y}, i8 0, i64 {size}, i1 false"
                found.append(f"  call void @llvm.memset.p0.i64({what})")
        return found

    def nest(self, k: int) -> list[str]:
        """The text of one loop over a row, and of what comes before it."""
        return [
            f"head{k}:",
            *self.heads[k].lines,
            f"  br label %loop{k}",
            f"loop{k}:",
            f"  %j{k} = phi i64 [0, %head{k}], [%j{k}.next, %loop{k}]",
            *self.carried[k],
            f"  %n{k} = add i64 %base, %j{k}",
            *self.bodies[k].lines,
            f"  %j{k}.next = add nuw nsw i64 %j{k}, 1",
            f"  %again{k} = icmp ult i64 %j{k}.next, %cols",
            f"  br i1 %again{k}, label %loop{k}, label %head{k + 1}, !llvm.loop !{2 + k}",
        ]


def _total(array: str) -> list[str]:
    """%total: how many elements an array has."""
    return [
        f"  %pr = getelementptr i8, ptr {array}, i64 {RANK}",
        "  %rank = load i32, ptr %pr",
        f"  %ps = getelementptr i8, ptr {array}, i64 {SIZES}",
        "  %sizes = load ptr, ptr %ps",
        "  br label %count.axes",
        "count.axes:",
        "  %k = phi i32 [0, %entry], [%k1, %counted]",
        "  %total = phi i64 [1, %entry], [%total1, %counted]",
        "  %done = icmp sge i32 %k, %rank",
        "  br i1 %done, label %sized, label %counted",
        "counted:",
        "  %at = getelementptr i64, ptr %sizes, i32 %k",
        "  %size = load i64, ptr %at",
        "  %total1 = mul i64 %total, %size",
        "  %k1 = add i32 %k, 1",
        "  br label %count.axes",
        "sized:",
    ]
