"""Timed code: prints the instructions of a partition so that each that does work is timed.

The lines are those of the untimed code, so errors still name their operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcflow.lowering.instructions import HOOKS, RELEASE, CodeFunction, Instruction, Opcode
from hpcflow.lowering.kernel_metadata import GeneratedCode
from hpcflow.lowering.python_printer import (
    TEXTS,
    PrintedCode,
    PythonPrinter,
    condition,
    results,
    tiles,
)
from hpcflow.runtime.dynamic_types import KernelFunction, Value

CLOCK, NOTE, PULLED = "_clock", "_note", "_pulled"
Note = Callable[[int, int], None]  # (place, clock at its start)
MESSAGES = frozenset(
    {
        *(Opcode.SEND, Opcode.SEND_SIZED, Opcode.SEND_IN_PLACE, Opcode.START_ASYNC),
        *(Opcode.POLL, Opcode.UNLOCK, Opcode.LOCK),
    }
)
NAMING = frozenset(  # opcodes that only name a value: they cost no time unless they copy it
    {Opcode.RETURN, Opcode.KEEP_RESULT, Opcode.KEEP_FEED, Opcode.FORGET, Opcode.SAME_IF_IN_PLACE}
    | {Opcode.SCRATCH, Opcode.SLICE, Opcode.SHORTEN, Opcode.TILE_END, Opcode.YIELD}
)
IN_TILES = frozenset({Opcode.RENEW_IN_TILES, Opcode.UPDATE_IN_TILES})


def timed(
    code: GeneratedCode,
    file: str,
    scope: dict[str, Value],
    clock: Callable[[], int],
    note: Note,
    place_number: Callable[[int, str], int],
) -> KernelFunction:
    """The function `make` of `code`; its segments call `note(place, start)` after each instruction.

    `place_number(line, kind)` returns the number of a place. Kinds: "op", "messages", "results",
    "frame" (a loop or branch, whose own instructions are timed too), "python".
    """

    def pulled(number: int, tiles: Iterator[None]) -> Iterator[None]:
        """Time each turn of an iterator that yields between tiles; not what runs in between."""
        while True:
            start = clock()
            try:
                next(tiles)
            except StopIteration:
                note(number, start)
                return
            note(number, start)
            yield

    given = {**scope, CLOCK: clock, NOTE: note, PULLED: pulled}
    exec(compile(print_timed(code, place_number).source, file, "exec"), given)
    made: KernelFunction = given["make"]
    return made


def print_timed(code: GeneratedCode, place_number: Callable[[int, str], int]) -> PrintedCode:
    """The text of `code` with clocks; for `place_number` see `timed`."""
    return _TimedPrinter(place_number).print(code.binds, code.shared, code.functions)


class _TimedPrinter(PythonPrinter):
    def __init__(self, place_number: Callable[[int, str], int]) -> None:
        super().__init__()
        self.place_number, self.is_timed = place_number, True

    def function(self, function: CodeFunction) -> None:
        self.is_timed = function.name != RELEASE
        super().function(function)

    def statement(self, instruction: Instruction) -> str:
        if not self.is_timed or not works(instruction):
            return super().statement(instruction)
        number = self.place_number(len(self.out) + 1, kind_of(instruction))
        if instruction.opcode in IN_TILES:
            return f"for _ in {PULLED}({number}, iter({tiles(instruction)})): yield"
        text, after = TEXTS[instruction.opcode](instruction), ""
        if instruction.opcode == Opcode.RETURN:
            text, after = f"_r = {results(instruction)}", "; return _r"
        return f"{condition(instruction)}_t = {CLOCK}(); {text}; {NOTE}({number}, _t){after}"


def works(instruction: Instruction) -> bool:
    """Whether an instruction calls a function or writes into an array; others cost no time."""
    return instruction.opcode not in NAMING or any(use.through for use in instruction.operands)


def kind_of(instruction: Instruction) -> str:
    """The kind of the place of an instruction."""
    if instruction.opcode in HOOKS:
        return "messages" if instruction.opcode in MESSAGES else "python"
    if instruction.opcode == Opcode.CALL_BODY:
        return "frame"
    is_output = instruction.opcode in (Opcode.RETURN, Opcode.KEEP_RESULT, Opcode.READ_VARIABLE)
    return "results" if is_output and any(use.through for use in instruction.operands) else "op"
