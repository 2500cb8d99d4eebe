"""Instructions: the last form of a partition, of which Python code is printed.

A segment of a partition is a list of instructions. They name values as the printed code does, and
`GeneratedCode.binds` says what each name stands for. Four modules read instructions:
`lowering/python_printer.py` prints the code that a step runs, `runtime/profile/timed_code.py` the
same code with clocks, `runtime/device/cuda_graph_regions.py` groups the instructions that a CUDA
graph replays, and `lowering/instruction_listing.py` lists them for people.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcflow.graph.static_shape import Shape


class Opcode(enum.IntEnum):
    """What an instruction does. The comments show what is printed."""

    # kernels
    CALL_KERNEL = enum.auto()  # y = k(x)  or  k(x, y)
    CALL_LOOP = enum.auto()  # k(0, size, arrays): a generated loop over all elements
    CALL_LOOP_TILE = enum.auto()  # k(i, min(i + tile, size), arrays), inside TILE_LOOP
    CALL_BODY = enum.auto()  # y = k(x): a loop or branch that never waits
    UPDATE_IN_TILES = enum.auto()  # for _ in k(v, x): yield
    ALLOCATE = enum.auto()  # y = e(): memory of a value that belongs to the caller
    CHECK_FINITE = enum.auto()  # check(x, node)
    # variables
    READ_VARIABLE = enum.auto()  # y = v.read()
    PIN_VERSION = enum.auto()  # y = v.pin()
    UNPIN_VERSION = enum.auto()  # v.unpin(x)
    UNPIN_IF_HELD = enum.auto()  # if x is not None: v.unpin(x)
    ASSIGN_VARIABLE = enum.auto()  # v.assign(x), and True for a value that counts as no update
    ADOPT_ARRAY = enum.auto()  # v.adopt(x): the variable takes the array, uncopied
    CHECK_SHAPE = enum.auto()  # v.fit(x)
    WRITE_VARIABLE = enum.auto()  # new = v.write(): the array to change in place
    BEGIN_UPDATE = enum.auto()  # new, old = v.begin(whole)
    SAME_IF_IN_PLACE = enum.auto()  # if old is None: old = new
    END_UPDATE = enum.auto()  # v.end(new, number of updates)
    RENEW_IN_TILES = enum.auto()  # for _ in v.renew(): yield
    # memory
    COPY_INTO = enum.auto()  # y[...] = x
    COPY_ROWS = enum.auto()  # y[0] = x.copy(): rows whose number only the step knows
    COPY_DEVICE = enum.auto()  # y = k(x)
    FLATTEN = enum.auto()  # y = x.reshape(-1)
    FLATTEN_IF_HELD = enum.auto()  # if x is not None: x = x.reshape(-1)
    # communication
    SEND = enum.auto()  # send(number): from a fixed buffer
    SEND_SIZED = enum.auto()  # send_sized(number, x): only the step knows the size
    SEND_IN_PLACE = enum.auto()  # send_loose(number, x, v): v is the variable whose memory it is
    START_ASYNC = enum.auto()  # begin(node, x): a collective, or another node that waits
    # scheduling
    POLL = enum.auto()  # poll()
    UNLOCK = enum.auto()  # lend(): another thread may hold the progress lock
    LOCK = enum.auto()  # take()
    COUNT_STEP = enum.auto()  # tick()
    YIELD = enum.auto()  # yield: other work may run between two tiles
    HOLD_INTERRUPT = enum.auto()  # hold(): Ctrl-C waits
    HOLD_IF_TORN = enum.auto()  # if new is not old: hold(); without operands if numbers[0]
    GUARD = enum.auto()  # try: body; finally: the last instruction of the body
    LET_GO = enum.auto()  # let_go()
    # tiles
    TILE_LOOP = enum.auto()  # for i in range(0, size, tile): body
    TILE_END = enum.auto()  # j = i + tile
    LAST_TILE = enum.auto()  # if j > size: body
    SHORTEN = enum.auto()  # t = x[:size - i]
    SLICE = enum.auto()  # t = x[i:j]
    SCRATCH = enum.auto()  # t = x: the memory of a value of one tile
    COPY_OLD_TILE = enum.auto()  # if old is not None: t[...] = old[i:j]
    # values that outlive a segment
    KEEP_FEED = enum.auto()  # y = x
    KEEP_RESULT = enum.auto()  # y = x
    FORGET = enum.auto()  # x = None
    EMPTY_BOX = enum.auto()  # x[0] = None
    PACK_RESULTS = enum.auto()  # y = (x, ): always a tuple
    RETURN = enum.auto()  # return x
    RETURN_TUPLE = enum.auto()  # return (x, ): always a tuple
    # CUDA graphs
    CALL_REGION = enum.auto()  # (y,) = r(x)


HOOKS = {  # opcodes that call the runtime -> the name of the function
    Opcode.CHECK_FINITE: "check",
    Opcode.SEND: "send",
    Opcode.SEND_SIZED: "send_sized",
    Opcode.SEND_IN_PLACE: "send_loose",
    Opcode.START_ASYNC: "begin",
    Opcode.POLL: "poll",
    Opcode.UNLOCK: "lend",
    Opcode.LOCK: "take",
    Opcode.COUNT_STEP: "tick",
    Opcode.HOLD_INTERRUPT: "hold",
    Opcode.HOLD_IF_TORN: "hold",
    Opcode.LET_GO: "let_go",
}


class Access(enum.IntEnum):
    """How an instruction uses a name. The comments show what is printed for the name x."""

    VALUE = 0  # x: the value
    BOXED = 1  # x[0]: a value that a wait has put into a box
    READ = 2  # x.read(): the current array of a variable
    PINNED = 3  # x.pin()
    WRITTEN = 4  # x.write(): the array of a variable, to change in place
    ARRAY = 5  # x.array: None if the variable has no value yet
    STATE = 6  # x: the variable itself
    UPDATED = 7  # x: the variable itself, which gets a new value
    FILLED = 8  # x: memory that the instruction writes
    KEYWORD = 9  # out=x: the same
    WORKSPACE = 10  # room=x: memory for the time of a call


class Use(NamedTuple):
    """A name that an instruction uses, and the function, if any, that its value goes through."""

    name: str
    access: Access = Access.VALUE
    through: str = ""


class Instruction(NamedTuple):
    """One step of the code of a partition.

    `targets` are the names that it sets. `callee` is the name of the kernel, loop or copy that it
    calls. `node` is the node that errors, profiles and listings name. Only `TILE_LOOP`, `LAST_TILE`
    and `GUARD` have a body.
    """

    opcode: Opcode
    node: str = ""
    targets: tuple[str, ...] = ()
    operands: tuple[Use, ...] = ()
    callee: str = ""
    numbers: tuple[int, ...] = ()
    body: tuple[Instruction, ...] = ()


class BindingKind(enum.IntEnum):
    """What a name stands for. Names up to `ALLOCATOR` are the same in all steps in flight."""

    KERNEL = enum.auto()
    DYNAMIC_KERNEL = enum.auto()  # allocates its outputs, whose sizes only the step knows
    TILED_KERNEL = enum.auto()  # yields between tiles
    LOOP = enum.auto()  # a generated loop, whose source is `text`
    CONTIGUOUS = enum.auto()  # a function that gives an array in C order
    CONSTANT = enum.auto()
    VARIABLE = enum.auto()  # the state of a handle
    OWN_COPY = enum.auto()  # a function that copies an array for the caller
    DEVICE_COPY = enum.auto()  # a function that copies an array to another device
    ALLOCATOR = enum.auto()  # a function that allocates the output `position`
    BUFFER = enum.auto()  # of an arena
    VIEW = enum.auto()  # of the buffer that `text` names
    WORKSPACE = enum.auto()  # buffers for the time of a call
    RECEIVE_BUFFER = enum.auto()
    SEND_BUFFER = enum.auto()
    BUCKET_INPUT = enum.auto()  # the input `position` of a collective
    BUCKET_OUTPUT = enum.auto()  # its output `position`
    BOX = enum.auto()  # of the output `position` of a wait
    BODY = enum.auto()  # a loop or branch
    HOOK = enum.auto()  # the function `text` of the runtime


class BufferView(NamedTuple):
    """A part of a block of an arena."""

    device: str
    block: int
    dtype: np.dtype[Any]
    shape: Shape
    start: int  # first byte


class Binding(NamedTuple):
    """What a name stands for, and the node that it is of."""

    kind: BindingKind
    node: str = ""
    position: int = 0
    text: str = ""
    buffers: tuple[BufferView, ...] = ()


class CodeFunction(NamedTuple):
    """A function of the printed code: a segment, a CUDA graph region, or the end of a step."""

    name: str
    parameters: tuple[str, ...]
    nonlocals: tuple[str, ...]  # names that it sets for other functions
    body: tuple[Instruction, ...]
    is_segment: bool = False


RELEASE = "release"  # the name of the function that ends a step


def loads(instruction: Instruction) -> Iterator[str]:
    """The names that an instruction uses, bound names among them."""
    if instruction.callee:
        yield instruction.callee
    if instruction.opcode in HOOKS:
        yield HOOKS[instruction.opcode]
    for operand in instruction.operands:
        yield operand.name
        if operand.through:
            yield operand.through
    for inside in instruction.body:
        yield from loads(inside)


def stores(instruction: Instruction) -> Iterator[str]:
    """The names that an instruction sets."""
    yield from instruction.targets
    for inside in instruction.body:
        yield from stores(inside)
