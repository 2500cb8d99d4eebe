"""Builder of loops and branches in LLVM IR, and of accesses to NumPy arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from hpcflow.codegen import python_call_abi
from hpcflow.codegen.fused_loop_ir import DATA, RANK, SIZES
from hpcflow.codegen.llvm_builder import InstructionBuilder, LlvmValue, number

BEGIN = LlvmValue("%begin", "i64")  # the first index of a function's range
COUNT = LlvmValue("%count", "i64")  # the length of the range


def int64_constant(value: int) -> LlvmValue:
    """A 64-bit integer constant."""
    return number(value, "i64")


class BasicBlocks(InstructionBuilder):
    """Basic blocks of a function; `here` is the label of the current one.

    They begin with loads of the argument pointers `arrays`. Access groups of parallel loops are
    numbered after those of `before`, another function of the module.
    """

    def __init__(self, arrays: Sequence[str] = (), before: BasicBlocks | None = None) -> None:
        super().__init__()
        self.here, self.blocks = "entry", 0
        self.groups: int = before.groups if before else 0
        self.lines += python_call_abi.objects(arrays)

    def begin(self, label: str) -> None:
        """Begin a block with that label."""
        self.lines.append(f"{label}:")
        self.here = label

    def labels(self, *names: str) -> list[str]:
        """New, unique labels."""
        self.blocks += 1
        return [f"{name}{self.blocks}" for name in names]

    @contextlib.contextmanager
    def loop(
        self, count: LlvmValue, carried: Sequence[LlvmValue] = (), free: bool = False
    ) -> Iterator[LoopBlocks]:
        """Run the body `count` times; with `free`, iterations are independent (vectorizable).

        `carried` are the initial values of loop-carried variables (`Loop.carried`, `Loop.next`).
        """
        head, tail, end = self.labels("head", "tail", "end")
        before = self.here
        some = self.compare("gt", count, int64_constant(0))
        self.add(f"  br i1 {some.text}, label %{head}, label %{end}")
        self.begin(head)
        at = len(self.lines)
        if free:
            self.groups += 1
        loop = LoopBlocks(
            LlvmValue(f"%i_{head}", "i64"),
            [LlvmValue(f"%c{k}_{head}", v.type) for k, v in enumerate(carried)],
            f", !llvm.access.group !{3 * self.groups}" if free else "",
        )
        yield loop
        self.add(f"  br label %{tail}")
        self.begin(tail)
        self.add(f"  %n_{head} = add nuw nsw i64 {loop.i.text}, 1")
        self.add(f"  %again_{head} = icmp slt i64 %n_{head}, {count.text}")
        loop_metadata = f", !llvm.loop !{3 * self.groups + 1}" if free else ""
        self.add(f"  br i1 %again_{head}, label %{head}, label %{end}{loop_metadata}")
        phis = [f"  {loop.i.text} = phi i64 [0, %{before}], [%n_{head}, %{tail}]"]
        for old, now, new in zip(carried, loop.carried, loop.next, strict=True):
            phis.append(
                f"  {now.text} = phi {now.type} [{old.text}, %{before}], [{new.text}, %{tail}]"
            )
        self.lines[at:at] = phis
        self.begin(end)
        loop.ends = [
            self.add(f"phi {old.type} [{old.text}, %{before}], [{new.text}, %{tail}]", old.type)
            for old, new in zip(carried, loop.next, strict=True)
        ]

    @contextlib.contextmanager
    def when(self, condition: LlvmValue) -> Iterator[None]:
        """Run the body if the condition holds."""
        yes, after = self.labels("yes", "after")
        self.add(f"  br i1 {condition.text}, label %{yes}, label %{after}")
        self.begin(yes)
        yield
        self.add(f"  br label %{after}")
        self.begin(after)

    def end_if(self, condition: LlvmValue, result: LlvmValue) -> None:
        """Return an integer to Python if the condition holds."""
        yes, after = self.labels("return", "after")
        self.add(f"  br i1 {condition.text}, label %{yes}, label %{after}")
        self.begin(yes)
        integer = self.add(f"call ptr @PyLong_FromSsize_t(i64 {result.text})", "ptr")
        self.add(f"  ret ptr {integer.text}")
        self.begin(after)

    # -- memory

    def element_address(self, base: LlvmValue, index: LlvmValue, type: str) -> LlvmValue:
        """The address of an element."""
        return self.at(base.text, index.text, type)

    def prefetch(self, at: LlvmValue, write: bool) -> None:
        """Prefetch the memory at an address."""
        self.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.add(f"  call void @llvm.prefetch.p0(ptr {at.text}, i32 {int(write)}, i32 2, i32 1)")

    # -- NumPy arrays

    def data(self, array: str) -> LlvmValue:
        """The data pointer of an array."""
        return self.load(
            self.element_address(LlvmValue(array, "ptr"), int64_constant(DATA), "i8"), "ptr"
        )

    def sizes(self, array: str) -> tuple[LlvmValue, LlvmValue]:
        """The rank of an array, and the address of its sizes."""
        pointer = LlvmValue(array, "ptr")
        rank = self.load(self.element_address(pointer, int64_constant(RANK), "i8"), "i32")
        table = self.load(self.element_address(pointer, int64_constant(SIZES), "i8"), "ptr")
        return self.add(f"sext i32 {rank.text} to i64", "i64"), table

    def size(self, array: str, axis: int) -> LlvmValue:
        """The size of one axis."""
        return self.load(
            self.element_address(self.sizes(array)[1], int64_constant(axis), "i64"), "i64"
        )

    def elements(self, array: str, start: int = 0, stop: int | None = None) -> LlvmValue:
        """The product of the sizes of axes `start` to `stop`."""
        rank, table = self.sizes(array)
        axes = (
            self.binary("sub", rank, int64_constant(start))
            if stop is None
            else int64_constant(stop - start)
        )
        with self.loop(axes, [int64_constant(1)]) as loop:
            axis = self.binary("add", loop.i, int64_constant(start))
            size = self.load(self.element_address(table, axis, "i64"), "i64")
            loop.next = [self.binary("mul", loop.carried[0], size)]
        return loop.ends[0]

    def metadata(self) -> list[str]:
        """The metadata of the parallel loops of the module."""
        lines = []
        for k in range(3, 3 * self.groups + 1, 3):
            lines.append(f"!{k} = distinct !{{}}")
            lines.append(f"!{k + 1} = distinct !{{!{k + 1}, !{k + 2}}}")
            lines.append(f'!{k + 2} = !{{!"llvm.loop.parallel_accesses", !{k}}}')
        return lines


def module(
    head: BasicBlocks,
    ranges: python_call_abi.KernelRanges,
    body: BasicBlocks,
    join: BasicBlocks | None = None,
    computes: bool = False,
) -> str:
    """The module of a kernel, as `python_call_abi.text`; %count is the length of its range."""
    lines = ["  %count = sub i64 %end, %begin", *body.lines]
    declared = head.declared | body.declared
    return python_call_abi.text(
        *(declared, head.lines, ranges, lines, body.metadata(), join.lines if join else ()),
        computes,
    )


class LoopBlocks:
    """A loop that is being written."""

    def __init__(self, i: LlvmValue, carried: list[LlvmValue], tag: str) -> None:
        self.i, self.carried, self.tag = (
            i,
            carried,
            tag,
        )  # index, carried, access tag
        self.next: list[LlvmValue] = []  # the carried values of the next iteration
        self.ends: list[LlvmValue] = []  # the carried values after the last iteration
