"""A GPU's blocks and threads on the host: the same text of a kernel, compiled for this processor.

Registers that tell a thread where it is become arguments, memory of a block a global array. Threads
of a block have stacks of their own (`makecontext`) and run one at a time; at a barrier one hands on
to the next, in an order that is another behind each barrier, so what lacks a barrier gives wrong
numbers. Blocks come in any order, too. What no such thing can show is how a real GPU's memory,
driver and assembler behave.
"""

from __future__ import annotations

import ctypes
import functools
import json
import random
import re
import threading
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from hpcflow.codegen import ptx_codegen, ptx_compiler
from hpcflow.codegen.llvm_builder import cpu_flags
from hpcflow.codegen.llvm_cpu_compiler import machine
from hpcflow.lowering.fusion import kernel_dedup

STACK, CONTEXT = 1 << 16, 1 << 13  # bytes of a thread's stack, and for its registers
MOST, ORDERS = 1024, 16  # threads; orders in which they come
FIELDS = ["position", "order", "threads", "failed", "ended", "now", "wide", *ptx_codegen.REGISTERS]
ARGUMENTS = len(FIELDS)  # in the state: words that a kernel is given
TABLE, CONTEXTS = 128, 128 + MOST * ORDERS  # in words: orders; contexts, the last of the caller

# a thread at a barrier, or at its end, hands on to the next; none may end where others wait
SCHEDULER = f"""
@emulated = external global [{CONTEXTS} x i64]
declare i32 @swapcontext(ptr, ptr)
define internal ptr @emulated.context(i64 %k) {{
  %words = mul i64 %k, {CONTEXT // 8}
  %place = add i64 %words, {CONTEXTS}
  %at = getelementptr i64, ptr @emulated, i64 %place
  ret ptr %at
}}
define void @emulated_next(i64 %ends) noinline {{
  %ended.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("ended")}
  %position.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("position")}
  %order.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("order")}
  %now.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("now")}
  %failed.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("failed")}
  %threads.at = getelementptr i64, ptr @emulated, i64 {FIELDS.index("threads")}
  %threads = load i64, ptr %threads.at
  %now = load i64, ptr %now.at
  %mine = call ptr @emulated.context(i64 %now)
  %ended = load i64, ptr %ended.at
  %position = load i64, ptr %position.at
  %due = mul i64 %ends, %position
  %alike = icmp eq i64 %ended, %due
  %ended1 = add i64 %ended, %ends
  store i64 %ended1, ptr %ended.at
  %all = icmp eq i64 %ended1, %threads
  %wrong = xor i1 %alike, true
  %failed = zext i1 %wrong to i64
  store i64 %failed, ptr %failed.at
  %back = or i1 %all, %wrong
  br i1 %back, label %caller, label %on
caller:
  %home = call ptr @emulated.context(i64 {MOST})
  call i32 @swapcontext(ptr %mine, ptr %home)
  ret void
on:
  %next = add i64 %position, 1
  %round = icmp eq i64 %next, %threads
  %position1 = select i1 %round, i64 0, i64 %next
  store i64 %position1, ptr %position.at
  %order = load i64, ptr %order.at
  %step = zext i1 %round to i64
  %later = add i64 %order, %step
  %order1 = urem i64 %later, {ORDERS}
  store i64 %order1, ptr %order.at
  %row = mul i64 %order1, {MOST}
  %column = add i64 %row, %position1
  %entry = add i64 %column, {TABLE}
  %number.at = getelementptr i64, ptr @emulated, i64 %entry
  %number = load i64, ptr %number.at
  store i64 %number, ptr %now.at
  %other = call ptr @emulated.context(i64 %number)
  call i32 @swapcontext(ptr %mine, ptr %other)
  ret void
}}
"""


class State:
    """The memory that kernels and their threads read."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None)
        for name in ("getcontext", "makecontext", "swapcontext"):
            getattr(self.libc, name).restype = None
        self.words = np.zeros(CONTEXTS + (MOST + 1) * CONTEXT // 8, np.int64)
        self.stacks = np.zeros(MOST * STACK, np.uint8)
        machine().llvm.add_symbol("emulated", self.words.ctypes.data)

    def context(self, k: int) -> Any:
        return ctypes.c_void_p(self.words.ctypes.data + 8 * CONTEXTS + k * CONTEXT)

    def run(self, start: int, values: dict[str, int], given: Sequence[int], seed: int) -> None:
        """One block of `threads`, each of which calls the function at the address `start`."""
        rng, threads = np.random.default_rng(seed), values["threads"]
        for name, value in values.items():
            self.words[FIELDS.index(name)] = value
        self.words[ARGUMENTS : ARGUMENTS + len(given)] = given
        for k in range(ORDERS):
            self.words[TABLE + k * MOST :][:threads] = rng.permutation(threads)
        for k in range(threads):
            context = self.context(k)
            self.libc.getcontext(context)
            stack = self.stacks.ctypes.data + k * STACK
            fields = (ctypes.c_uint64 * 5).from_address(context.value)
            fields[1:5] = [0, stack, 0, STACK]  # uc_link, uc_stack
            self.libc.makecontext(context, ctypes.c_void_p(start), 0)
        first = int(self.words[TABLE])
        self.words[FIELDS.index("now")] = first
        self.libc.swapcontext(self.context(MOST), self.context(first))
        failed = self.words[FIELDS.index("failed")]
        assert not failed, "threads of a block do not come to the same barriers"


one_block = threading.Lock()  # of all ranks that are threads of this process


@functools.cache
def state() -> State:
    return State()


def on_host(text: str) -> str:
    """The module of kernels as one of functions of the host, each with one that a thread calls."""
    text = re.sub(r"^declare .*@llvm\.nvvm\..*\n", "", text, flags=re.M)
    for name, register in ptx_codegen.REGISTERS.items():
        text = text.replace(
            f"call i32 @{ptx_codegen.SPECIAL}{register}()", f"add i32 %at.{name}, 0"
        )
    text = text.replace(f"@{ptx_codegen.BARRIER}()", "@emulated_next(i64 0)")
    text = re.sub(r"addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)", r"\1", text)
    text = text.replace("internal addrspace(3) global", "internal global")
    starts = []
    for name, given in re.findall(r"^define ptx_kernel void @(\w+)\((.*)\) {", text, flags=re.M):
        starts.append(start(name, [one.split()[0] for one in given.split(", ")]))
    places = ", ".join(f"i32 %at.{name}" for name in ptx_codegen.REGISTERS)
    text = re.sub(r"^define ptx_kernel (.*)\) {", rf"define \1, {places}) {{", text, flags=re.M)
    assert "nvvm" not in text and "addrspace" not in text and "ptx" not in text
    return "\n".join([text, *starts])


def start(name: str, types: Sequence[str]) -> str:
    """A function that takes a thread's arguments from the state, and hands on at its end."""
    lines, words = [f"define void @{name}_thread() {{"], []

    def word(place: int, type: str) -> None:
        lines.append(f"  %at{place} = getelementptr i64, ptr @emulated, i64 {place}")
        lines.append(f"  %w{place} = load {type}, ptr %at{place}")

    for i, type in enumerate(types):
        word(ARGUMENTS + i, type)
        words.append(f"{type} %w{ARGUMENTS + i}")
    now, wide = FIELDS.index("now"), FIELDS.index("wide")
    word(now, "i32")
    word(wide, "i32")
    lines.append(f"  %tx = urem i32 %w{now}, %w{wide}")
    lines.append(f"  %ty = udiv i32 %w{now}, %w{wide}")
    for register in ptx_codegen.REGISTERS:
        if register in ("tx", "ty"):
            words.append(f"i32 %{register}")
        else:
            word(FIELDS.index(register), "i32")
            words.append(f"i32 %w{FIELDS.index(register)}")
    lines.append(f"  call void @{name}({', '.join(words)})")
    lines.append("  call void @emulated_next(i64 1)")
    return "\n".join([*lines, "  ret void", "}"])


class Kernel:
    """A function of a module, called as CuPy's."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __call__(self, blocks: tuple, block: tuple, given: Sequence[Any]) -> None:
        assert 0 < block[0] * block[1] <= MOST and blocks[0] < 2**31 and blocks[1] < 2**16
        assert all(isinstance(x, (int, np.ndarray)) for x in given)
        words = [x if isinstance(x, int) else x.ctypes.data for x in given]
        every = [(bx, by) for bx in range(blocks[0]) for by in range(blocks[1])]
        zeros = dict.fromkeys(FIELDS, 0)
        whole = {"threads": block[0] * block[1], "wide": block[0], "gx": blocks[0], "gy": blocks[1]}
        for bx, by in random.Random(7).sample(every, len(every)):
            place = {**zeros, **whole, "bx": bx, "by": by}
            with one_block:
                state().run(self.address, place, words, bx + by)


class Module:
    """What texts are compiled to."""

    def load(self, code: bytes) -> None:
        state()
        llvm = machine().llvm
        joined = llvm.parse_assembly(SCHEDULER)
        for text in json.loads(code):
            declared = "declare void @emulated_next(i64)\n@emulated = external global i64\n"
            module = llvm.parse_assembly(declared + on_host(text))
            module.verify()
            joined.link_in(module)
        triple = llvm.Target.from_triple(llvm.get_default_triple())
        features = "+f16c" if "f16c" in cpu_flags() else ""  # else calls that the engine lacks
        target = triple.create_target_machine(features=features, opt=1, jit=True)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        self.engine.add_module(joined)
        self.engine.finalize_object()

    def get_function(self, name: str) -> Kernel:
        address = self.engine.get_function_address(f"{name}_thread")
        assert address, f"there is no kernel {name}"
        return Kernel(address)


class Gpu(ptx_compiler.PtxCompiler):
    """What compiles for the double: PTX is made, too, and looked at."""

    def __init__(self) -> None:
        super().__init__(cuda)
        self.identity = "emulated"

    def build(self, texts: Iterable[str]) -> bytes:
        every = list(texts)
        check(super().build(every).decode())
        return json.dumps(every).encode()


def check(code: str) -> None:
    """PTX calls nothing that is elsewhere, and all that threads have is in registers."""
    for word in (".extern", "call.uni", "call ", ".local"):
        assert word not in code, f"{word} in PTX:\n{code}"
    assert not re.search(r"\b(ld|st)\.(?!global|shared|param)", code), code


class cuda:
    """Of `cupy.cuda` what is asked for kernels."""

    Device = staticmethod(lambda: types.SimpleNamespace(compute_capability="90"))
    function = types.SimpleNamespace(Module=Module)
    alloc_pinned_memory = staticmethod(bytearray)


XP = types.SimpleNamespace(  # of CuPy what a kernel asks
    cuda=cuda,
    empty=lambda shape, kind: np.full(shape, np.nan, kind),
    asarray=np.asarray,
    asnumpy=np.asarray,
    ascontiguousarray=np.ascontiguousarray,
)


@functools.cache
def gpu(of: Any = cuda) -> Gpu:
    """In place of `ptx.gpu`."""
    return Gpu()


def install(patch: pytest.MonkeyPatch, threads: int = 16) -> None:
    """Have kernels for GPUs run here, with so many threads a block."""
    patch.setattr(ptx_compiler, "gpu", gpu)
    patch.setattr(ptx_codegen, "THREADS", threads)
    patch.setattr(ptx_codegen, "JOIN_THREADS", 2 * threads)
    patch.setattr(ptx_codegen, "MIN_VECTOR_ELEMENTS", 8)
    patch.setattr(kernel_dedup, "_gpu_kernel", kernel_dedup._gpu_kernel.__wrapped__)
