"""Code listing: the instructions of partitions as text and as plain data, `hpcflow plan --code`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import shape_text
from hpcflow.lowering.instructions import RELEASE, Access, BindingKind, CodeFunction, Instruction
from hpcflow.lowering.kernel_metadata import GeneratedCode, LoweredPartition
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_bytes

WRITES = frozenset({Access.FILLED, Access.KEYWORD, Access.WRITTEN, Access.UPDATED})


def code_text(lowered: LoweredPartition) -> str:
    """The instructions of a partition and of its loops and branches, segment by segment."""
    return "\n\n".join(text for title, code in _codes(lowered, "") for text in _texts(title, code))


def code_data(lowered: LoweredPartition) -> list[dict[str, Any]]:
    """The same as plain data: one object for the partition, and for each loop and branch in it."""
    return [
        {
            "task": lowered.part.task,
            "inside": title,
            "arenas": code.arenas,
            "names": {name: _stands_for(code, name) for name in code.binds},
            "segments": [
                {
                    "name": function.name,
                    "waits": waits,
                    "after": after,
                    "instructions": [*map(_instruction_data, function.body)],
                }
                for function, waits, after in _functions(code)
            ],
        }
        for title, code in _codes(lowered, "")
    ]


def _codes(lowered: LoweredPartition, title: str) -> Iterator[tuple[str, GeneratedCode]]:
    """The code of a partition, and of its loops and branches with their names."""
    yield title, lowered.code
    for node, bodies in lowered.frames.items():
        for key, body in bodies.items():
            yield from _codes(body, f"{title}{node}/{key}")


def _functions(code: GeneratedCode) -> Iterator[tuple[CodeFunction, list[str], list[str]]]:
    """The functions of a partition, each with the waits and the segments that it follows."""
    for function, segment in zip(code.functions, code.segments, strict=False):
        yield function, list(segment.waits), [f"s{i}" for i in segment.after]
    yield code.functions[-1], [], []


def _texts(title: str, code: GeneratedCode) -> Iterator[str]:
    sizes = ", ".join(f"{format_bytes(size)} on {device}" for device, size in code.arenas.items())
    yield f"code{f' of {title}' if title else ''}: buffers of {sizes or '0 B'}"
    for function, waits, after in _functions(code):
        conditions = ", ".join([*waits, *after])
        if function.name == RELEASE:
            head = "at the end of the step"
        else:
            head = f"segment {function.name}" + (f", after {conditions}" if conditions else "")
        header = ("instruction", "node", "sets", "uses")
        yield f"{head}:\n{format_table(header, [*_rows(function.body, '')])}"
    rows = [(name, *_stands_for(code, name)) for name in code.binds]
    if rows:
        yield format_table(("name", "stands for", "of"), rows)


def _rows(body: Iterable[Instruction], indent: str) -> Iterator[tuple[str, str, str, str]]:
    for ins in body:
        sets = [*ins.targets, *(use.name for use in ins.operands if use.access in WRITES)]
        uses = [use.name for use in ins.operands if use.access not in WRITES]
        called = [ins.callee] if ins.callee else []
        opcode = indent + ins.opcode.name.lower()
        yield opcode, ins.node, ", ".join(sets), ", ".join([*called, *uses, *map(str, ins.numbers)])
        yield from _rows(ins.body, indent + "  ")


def _instruction_data(instruction: Instruction) -> dict[str, Any]:
    data = {
        "opcode": instruction.opcode.name.lower(),
        "node": instruction.node,
        "sets": [*instruction.targets],
        "uses": [[use.name, use.access.name.lower()] for use in instruction.operands],
        "calls": instruction.callee,
        "numbers": [*instruction.numbers],
    }
    return data | (
        {"body": [*map(_instruction_data, instruction.body)]} if instruction.body else {}
    )


def _stands_for(code: GeneratedCode, name: str) -> tuple[str, str]:
    """What a name is bound to: its kind, and the node or memory it is of."""
    binding = code.binds[name]
    kind = binding.kind.name.lower()
    if binding.kind == BindingKind.BUFFER:
        device, block, dtype, shape, start = binding.buffers[0]
        at = code.blocks[block].start + start
        return kind, f"{name_of(dtype)}{shape_text(shape)} at byte {at} of {device}"
    return kind, binding.node
