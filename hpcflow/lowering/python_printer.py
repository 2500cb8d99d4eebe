"""Prints instructions as Python: one function per segment, one line per instruction.

The names that the code uses (kernels, buffers, variables, channels) are the parameters of a
function `make`, which returns the functions of the segments. `lines` of a printed text tells which
node each of its lines computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from hpcflow.lowering.instructions import RELEASE, Access, CodeFunction, Instruction, Opcode, Use


@dataclasses.dataclass(frozen=True)
class PrintedCode:
    """The source of `make`, and the node that each of its lines computes."""

    source: str
    lines: list[str]


class PythonPrinter:
    """Prints the functions of a partition; other printers change single statements."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.lines: list[str] = []

    def print(
        self, names: Iterable[str], shared: Sequence[str], functions: Sequence[CodeFunction]
    ) -> PrintedCode:
        """The function `make` of the parameters `names`; `shared` are names of several segments."""
        self.emit(0, f"def make({', '.join(names)}):")
        if shared:
            self.emit(1, " = ".join(shared) + " = None")
        for function in functions:
            self.function(function)
        segments = [function.name for function in functions if function.is_segment]
        self.emit(1, f"return ({', '.join(segments)},), {RELEASE}")
        return PrintedCode("\n".join(self.out) + "\n", self.lines)

    def function(self, function: CodeFunction) -> None:
        """Print one function."""
        self.emit(1, f"def {function.name}({', '.join(function.parameters)}):")
        if function.nonlocals:
            self.emit(2, "nonlocal " + ", ".join(function.nonlocals))
        self.block(function.body, 2)
        if not function.nonlocals and not function.body:
            self.emit(2, "pass")

    def block(self, body: Iterable[Instruction], depth: int) -> None:
        """Print instructions at a depth of indentation."""
        for instruction in body:
            if instruction.body:
                self.compound(instruction, depth)
            else:
                self.emit(depth, self.statement(instruction), instruction.node)

    def compound(self, instruction: Instruction, depth: int) -> None:
        """Print an instruction with a body."""
        node, numbers = instruction.node, instruction.numbers
        if instruction.opcode == Opcode.TILE_LOOP:
            self.emit(depth, f"for i in range(0, {numbers[0]}, {numbers[1]}):", node)
            self.block(instruction.body, depth + 1)
        elif instruction.opcode == Opcode.LAST_TILE:
            self.emit(depth, f"if j > {numbers[0]}:", node)
            self.block(instruction.body, depth + 1)
        else:
            assert instruction.opcode == Opcode.GUARD
            self.emit(depth, "try:", node)
            self.block(instruction.body[:-1], depth + 1)
            self.emit(depth, "finally:", node)
            self.block(instruction.body[-1:], depth + 1)

    def emit(self, depth: int, text: str, node: str = "") -> None:
        """Print a line."""
        self.out.append("    " * depth + text)
        self.lines.append(node)

    def statement(self, instruction: Instruction) -> str:
        """The text of an instruction without a body."""
        return condition(instruction) + TEXTS[instruction.opcode](instruction)


def value(operand: Use) -> str:
    """The text of an operand."""
    name, access, through = operand
    text = BEFORE.get(access, "") + name + AFTER.get(access, "")
    return f"{through}({text})" if through else text


BEFORE = {Access.KEYWORD: "out=", Access.WORKSPACE: "room="}
AFTER = {
    Access.BOXED: "[0]",
    Access.READ: ".read()",
    Access.PINNED: ".pin()",
    Access.WRITTEN: ".write()",
    Access.ARRAY: ".array",
}


def condition(instruction: Instruction) -> str:
    """The condition before the statement of an instruction, "" if there is none."""
    write = CONDITIONS.get(instruction.opcode)
    return f"if {write(instruction)}: " if write else ""


def tiles(instruction: Instruction) -> str:
    """The iterator that an instruction runs, which yields between tiles."""
    if instruction.opcode == Opcode.RENEW_IN_TILES:
        return f"{instruction.operands[0].name}.renew()"
    return _call(instruction)


def results(instruction: Instruction) -> str:
    """The value that a function returns."""
    values = [*map(value, instruction.operands)]
    if instruction.opcode == Opcode.RETURN_TUPLE:
        return _tuple(values)
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


def _tuple(values: Iterable[str]) -> str:
    return f"({''.join(f'{text}, ' for text in values)})"


def _call(instruction: Instruction) -> str:
    return f"{instruction.callee}({', '.join(map(value, instruction.operands))})"


def _call_statement(instruction: Instruction) -> str:
    targets = ", ".join(instruction.targets)
    return f"{targets} = {_call(instruction)}" if targets else _call(instruction)


def _set(instruction: Instruction) -> str:
    return f"{instruction.targets[0]} = {value(instruction.operands[0])}"


def _hook(name: str) -> Callable[[Instruction], str]:
    return lambda instruction: f"{name}()"


def _send(name: str) -> Callable[[Instruction], str]:
    def text(instruction: Instruction) -> str:
        args = [str(instruction.numbers[0]), *map(value, instruction.operands)]
        if instruction.opcode == Opcode.SEND_IN_PLACE and len(args) == 2:
            args.append("None")  # the memory of no variable
        return f"{name}({', '.join(args)})"

    return text


def _method(name: str) -> Callable[[Instruction], str]:
    """A method of the first operand, called with the others."""

    def text(instruction: Instruction) -> str:
        variable, *args = map(value, instruction.operands)
        return f"{variable}.{name}({', '.join(args)})"

    return text


def _assign(instruction: Instruction) -> str:
    variable, new_value = map(value, instruction.operands)
    return f"{variable}.assign({new_value}{', True' if instruction.numbers else ''})"


def _begin_update(instruction: Instruction) -> str:
    whole = bool(instruction.numbers[0])
    targets = ", ".join(instruction.targets)
    return f"{targets} = {instruction.operands[0].name}.begin({whole})"


def _end_update(instruction: Instruction) -> str:
    variable, new = map(value, instruction.operands)
    return f"{variable}.end({new}, {instruction.numbers[0]})"


def _copy_into(instruction: Instruction) -> str:
    into, source = map(value, instruction.operands)
    return f"{into}[...] = {source}"


def _copy_rows(instruction: Instruction) -> str:
    into, source = map(value, instruction.operands)
    return f"{into} = {source}.copy()"


def _copy_old_tile(instruction: Instruction) -> str:
    into, old = map(value, instruction.operands)
    return f"{into}[...] = {old}[i:j]"


def _flatten(instruction: Instruction) -> str:
    return f"{_set(instruction)}.reshape(-1)"


def _loop(instruction: Instruction) -> str:
    args = ", ".join(map(value, instruction.operands))
    return f"{instruction.callee}(0, {instruction.numbers[0]}, {args})"


def _loop_tile(instruction: Instruction) -> str:
    size, tile = instruction.numbers
    args = ", ".join(map(value, instruction.operands))
    return f"{instruction.callee}(i, min(i + {tile}, {size}), {args})"


def _start_async(instruction: Instruction) -> str:
    return f"begin({', '.join([repr(instruction.node), *map(value, instruction.operands)])})"


def _check_finite(instruction: Instruction) -> str:
    return f"check({value(instruction.operands[0])}, {instruction.node!r})"


def _yielding(instruction: Instruction) -> str:
    return f"for _ in {tiles(instruction)}: yield"


def _forget(instruction: Instruction) -> str:
    return " = ".join([*instruction.targets, "None"])


def _region(instruction: Instruction) -> str:
    assignment = instruction.targets and f"({', '.join(instruction.targets)},) = "
    return f"{assignment or ''}{_call(instruction)}"


def _is_held(instruction: Instruction) -> str:
    return f"{instruction.operands[-1].name} is not None"


def _is_torn(instruction: Instruction) -> str:
    names = [operand.name for operand in instruction.operands]
    pairs = zip(names[::2], names[1::2], strict=True)
    if names:
        return " or ".join(f"{new} is not {old}" for new, old in pairs)
    return str(bool(instruction.numbers[0]))


CONDITIONS: dict[Opcode, Callable[[Instruction], str]] = {
    Opcode.UNPIN_IF_HELD: _is_held,
    Opcode.FLATTEN_IF_HELD: _is_held,
    Opcode.COPY_OLD_TILE: _is_held,
    Opcode.SAME_IF_IN_PLACE: lambda instruction: f"{instruction.operands[1].name} is None",
    Opcode.HOLD_IF_TORN: _is_torn,
}
TEXTS: dict[Opcode, Callable[[Instruction], str]] = {
    Opcode.CALL_KERNEL: _call_statement,
    Opcode.CALL_LOOP: _loop,
    Opcode.CALL_LOOP_TILE: _loop_tile,
    Opcode.CALL_BODY: _call_statement,
    Opcode.UPDATE_IN_TILES: _yielding,
    Opcode.ALLOCATE: _call_statement,
    Opcode.CHECK_FINITE: _check_finite,
    Opcode.READ_VARIABLE: _set,
    Opcode.PIN_VERSION: _set,
    Opcode.UNPIN_VERSION: _method("unpin"),
    Opcode.UNPIN_IF_HELD: _method("unpin"),
    Opcode.ASSIGN_VARIABLE: _assign,
    Opcode.ADOPT_ARRAY: _method("adopt"),
    Opcode.CHECK_SHAPE: _method("fit"),
    Opcode.WRITE_VARIABLE: _set,
    Opcode.BEGIN_UPDATE: _begin_update,
    Opcode.SAME_IF_IN_PLACE: _set,
    Opcode.END_UPDATE: _end_update,
    Opcode.RENEW_IN_TILES: _yielding,
    Opcode.COPY_INTO: _copy_into,
    Opcode.COPY_ROWS: _copy_rows,
    Opcode.COPY_DEVICE: _call_statement,
    Opcode.FLATTEN: _flatten,
    Opcode.FLATTEN_IF_HELD: _flatten,
    Opcode.SEND: _send("send"),
    Opcode.SEND_SIZED: _send("send_sized"),
    Opcode.SEND_IN_PLACE: _send("send_loose"),
    Opcode.START_ASYNC: _start_async,
    Opcode.POLL: _hook("poll"),
    Opcode.UNLOCK: _hook("lend"),
    Opcode.LOCK: _hook("take"),
    Opcode.COUNT_STEP: _hook("tick"),
    Opcode.YIELD: lambda instruction: "yield",
    Opcode.HOLD_INTERRUPT: _hook("hold"),
    Opcode.HOLD_IF_TORN: _hook("hold"),
    Opcode.LET_GO: _hook("let_go"),
    Opcode.TILE_END: lambda instruction: f"j = i + {instruction.numbers[0]}",
    Opcode.SHORTEN: lambda instruction: f"{_set(instruction)}[:{instruction.numbers[0]} - i]",
    Opcode.SLICE: lambda instruction: f"{_set(instruction)}[i:j]",
    Opcode.SCRATCH: _set,
    Opcode.COPY_OLD_TILE: _copy_old_tile,
    Opcode.KEEP_FEED: _set,
    Opcode.KEEP_RESULT: _set,
    Opcode.FORGET: _forget,
    Opcode.EMPTY_BOX: lambda instruction: f"{value(instruction.operands[0])} = None",
    Opcode.PACK_RESULTS: lambda instruction: (
        f"{instruction.targets[0]} = {_tuple(map(value, instruction.operands))}"
    ),
    Opcode.RETURN: lambda instruction: f"return {results(instruction)}",
    Opcode.RETURN_TUPLE: lambda instruction: f"return {results(instruction)}",
    Opcode.CALL_REGION: _region,
}
