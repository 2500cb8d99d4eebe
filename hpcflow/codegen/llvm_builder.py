"""Builder of LLVM IR instructions, each of which names a new value."""

from __future__ import annotations

import functools
import platform
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# NumPy dtype -> LLVM type of a value; a boolean is a byte in memory
TYPES = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "bool": "i1"}
BFLOAT16 = "bfloat16"  # float32 without its last 16 bits
HALVES = {BFLOAT16: "i16", "float16": "half"}  # 16-bit floats in memory; computed with as float
BYTES = {type: np.dtype(name).itemsize for name, type in TYPES.items()}  # bytes of an element
LINE = 64  # bytes of a cache line
MEMORY = {
    **{type: type for type in ("float", "double", "i32", "i64")},
    **{"i1": "i8", **HALVES},
}


@functools.cache
def converts_float16() -> bool:
    """Whether the CPU has instructions that convert float16 to float32 and back."""
    return platform.machine() in ("aarch64", "arm64") or "f16c" in cpu_flags()


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets that Linux says an x86 CPU has; none elsewhere."""
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        return frozenset()
    return frozenset(found[1].split()) if found else frozenset()


@functools.cache
def type_of(dtype: Any) -> str | None:
    """The LLVM type of a value of a dtype; None if there is none."""
    return TYPES.get(np.dtype(dtype).name)


@functools.cache
def storage_type_of(dtype: Any) -> str | None:
    """The type of an element in memory: `type_of`, or one of HALVES, whose values are floats."""
    name = np.dtype(dtype).name
    if name in HALVES:
        return name if name == BFLOAT16 or converts_float16() else None
    return type_of(dtype)


def value_type(storage: str) -> str:
    """The type of a value that is loaded from memory of a type."""
    return "float" if storage in HALVES else storage


FREE = ", !llvm.access.group !0"  # tag of accesses without loop-carried dependence: see `metadata`


class LlvmValue(NamedTuple):
    """An operand: its text and its type."""

    text: str
    type: str

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number."""
        return self.type in ("float", "double")


def number(value: Any, type: str) -> LlvmValue:
    """A constant."""
    if type in ("float", "double"):
        exact = float(np.float32(value)) if type == "float" else float(value)
        return LlvmValue(f"0x{struct.unpack('Q', struct.pack('d', exact))[0]:016X}", type)
    return LlvmValue(str(int(value)), type)


def metadata(loops: int, no_unroll: bool = False) -> list[str]:
    """LLVM metadata that says that the iterations of loops !2, !3, ... are independent.

    `no_unroll`: short loops are vectorized, where LLVM would unroll them fully.
    """
    lines = ["!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}']
    properties = "!1"
    if no_unroll:
        properties = f"!1, !{2 + loops}"
        lines.append(f'!{2 + loops} = !{{!"llvm.loop.unroll.disable"}}')
    return [*lines, *(f"!{2 + k} = distinct !{{!{2 + k}, {properties}}}" for k in range(loops))]


class InstructionBuilder:
    """The lines of a function's body; `declared` are the intrinsics that it calls."""

    def __init__(self, letter: str = "v") -> None:
        self.letter = letter  # prefix of the names of its values
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0

    def add(self, text: str, type: str = "") -> LlvmValue:
        """Append one line; with a type, it names the value that is returned."""
        if not type:
            self.lines.append(text)
            return LlvmValue("", "")
        self.count += 1
        name = f"%{self.letter}{self.count}"
        self.lines.append(f"  {name} = {text}")
        return LlvmValue(name, type)

    def call(self, name: str, *given: LlvmValue, type: str = "") -> LlvmValue:
        """A call of one of LLVM's intrinsics."""
        type = type or given[0].type
        suffix = {"float": "f32", "double": "f64"}.get(given[0].type, given[0].type)
        signature = f"{type} @llvm.{name}.{suffix}"
        self.declared.add(f"declare {signature}({', '.join(v.type for v in given)})")
        return self.add(f"call {signature}({', '.join(f'{v.type} {v.text}' for v in given)})", type)

    def is_nan(self, x: LlvmValue) -> LlvmValue:
        """Whether a floating-point number is NaN."""
        return self.add(f"fcmp uno {x.type} {x.text}, {x.text}", "i1")

    def binary(self, name: str, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """An instruction of two operands of one type: "add", "sub", "mul", or "fdiv" by itself."""
        prefix = "f" if x.is_float and not name.startswith("f") else ""
        return self.add(f"{prefix}{name} {x.type} {x.text}, {y.text}", x.type)

    def compare(self, predicate: str, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """Compare by "eq", "ne", "lt", "le", "gt" or "ge" of IEEE 754: only `ne` is true of NaN."""
        if x.is_float:
            word = f"fcmp {'une' if predicate == 'ne' else 'o' + predicate}"
        else:
            word = f"icmp {predicate if predicate in ('eq', 'ne') else 's' + predicate}"
        return self.add(f"{word} {x.type} {x.text}, {y.text}", "i1")

    def is_below(self, x: LlvmValue, size: int) -> LlvmValue:
        """Whether an integer is in [0, size)."""
        return self.add(f"icmp ult {x.type} {x.text}, {size}", "i1")

    def choose(self, condition: LlvmValue, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """`x` where the condition holds, else `y`."""
        return self.add(f"select i1 {condition.text}, {x.type} {x.text}, {y.type} {y.text}", x.type)

    def convert(self, x: LlvmValue, type: str) -> LlvmValue | None:
        """The same number in another type; None for floats to integers, which may overflow."""
        if x.type == type:
            return x
        if type == "i1":
            return self.compare("ne", x, number(0, x.type))
        words = {
            ("float", "double"): "fpext",
            ("double", "float"): "fptrunc",
            ("i32", "i64"): "sext",
            ("i64", "i32"): "trunc",
            ("i32", "float"): "sitofp",
            ("i32", "double"): "sitofp",
            ("i64", "float"): "sitofp",
            ("i64", "double"): "sitofp",
            ("i1", "float"): "uitofp",
            ("i1", "double"): "uitofp",
            ("i1", "i32"): "zext",
            ("i1", "i64"): "zext",
        }
        word = words.get((x.type, type))
        return (word and self.add(f"{word} {x.type} {x.text} to {type}", type)) or None

    def widened(self, value: LlvmValue, storage: str) -> LlvmValue:
        """The float of a 16-bit float as it is in memory."""
        if storage == BFLOAT16:
            return self._from_bfloat16(value)
        return self.add(f"fpext half {value.text} to float", "float")

    def rounded(self, x: LlvmValue, storage: str) -> LlvmValue:
        """A float rounded to the nearest 16-bit float, to even in the middle, as in memory."""
        if storage == BFLOAT16:
            return self._rounded_to_bfloat16(x)
        return self.add(f"fptrunc float {x.text} to half", "half")

    def _from_bfloat16(self, bits: LlvmValue) -> LlvmValue:
        wide = self.add(f"zext i16 {bits.text} to i32", "i32")
        upper = self.add(f"shl i32 {wide.text}, 16", "i32")
        return self.add(f"bitcast i32 {upper.text} to float", "float")

    def _rounded_to_bfloat16(self, x: LlvmValue) -> LlvmValue:
        bits = self.add(f"bitcast float {x.text} to i32", "i32")
        upper = self.add(f"lshr i32 {bits.text}, 16", "i32")
        odd = self.add(f"and i32 {upper.text}, 1", "i32")
        raised = self.add(f"add i32 {bits.text}, {0x7FFF}", "i32")
        nearest = self.add(f"add i32 {raised.text}, {odd.text}", "i32")
        rounded = self.add(f"lshr i32 {nearest.text}, 16", "i32")
        quiet = self.add(f"or i32 {upper.text}, {0x40}", "i32")  # a NaN stays one
        chosen = self.choose(self.is_nan(x), quiet, rounded)
        return self.add(f"trunc i32 {chosen.text} to i16", "i16")

    def at(self, array: str, index: str, type: str) -> LlvmValue:
        """The address of an element of an array."""
        return self.add(f"getelementptr {MEMORY.get(type, type)}, ptr {array}, i64 {index}", "ptr")

    def load(self, at: LlvmValue, type: str, tag: str = "") -> LlvmValue:
        """Load the value at an address."""
        memory = MEMORY.get(type, type)
        value = self.add(f"load {memory}, ptr {at.text}{tag}", memory)
        if type in HALVES:
            return self.widened(value, type)
        return self.add(f"icmp ne i8 {value.text}, 0", "i1") if type == "i1" else value

    def store(self, value: LlvmValue, at: LlvmValue, tag: str = "") -> None:
        """Store a value at an address."""
        if value.type == "i1":
            value = self.add(f"zext i1 {value.text} to i8", "i8")
        self.add(f"  store {value.type} {value.text}, ptr {at.text}{tag}")
