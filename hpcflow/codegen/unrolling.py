"""Unrolling of GPU loops: copies of the code of an element or a row, with names of their own.

All loads of the copies come before their stores to arrays: a thread then waits once for several
loads, and LLVM makes vector accesses of neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

VECTOR = 4  # elements or rows that a thread computes together
ALIGNED = 16  # bytes of the widest load
INDICES = "%n0", "%j0"  # the index of an element in arrays, and in its row
_NAME = re.compile(r"%[\w.]+")
_ADDRESS = re.compile(r"  (%[\w.]+) = getelementptr (\w+), ptr (%[\w.]+), i64 (%[nj]0)$")
_ACCESS = re.compile(r"  (?:(%[\w.]+) = load|store) .*ptr (%[\w.]+)(?:, !llvm.*)?$")


def defined(lines: Iterable[str]) -> set[str]:
    """The names of the values that lines define."""
    return {line.split()[0] for line in lines if line.startswith("  %")}


def renamed(lines: list[str], suffix: str, names: Iterable[str] = ()) -> list[str]:
    """The lines with a suffix to the names that they define, and to `names`."""
    known = defined(lines) | {"%n", *names}
    return [_NAME.sub(lambda m: m[0] + suffix if m[0] in known else m[0], line) for line in lines]


def neighbours(lines: list[str], before: set[str]) -> Iterator[str]:
    """The code of an element for VECTOR neighbours; %n0.v and %j0.v are the indices of the first.

    `before` are the names, with the suffix .v, of values of the row. Addresses of neighbours are
    offsets from the first one, which is aligned, and all loads come before the stores, so that
    LLVM makes vector accesses of them.
    """
    shared = {name.removesuffix(".v") for name in before}
    own = defined(lines) | {*INDICES}
    addresses = {m[1] for line in lines if (m := _ADDRESS.match(line))}
    stores: dict[str, list[str]] = {}  # those of one array together
    for u in range(VECTOR):

        def name(match: re.Match[str], u: int = u) -> str:
            text = match[0]
            return f"{text}.v{u}" if text in own else f"{text}.v" if text in shared else text

        for index in INDICES:
            yield f"  {index}.v{u} = add i64 {index}.v, {u}"
        for line in lines:
            new = _NAME.sub(name, line)
            address, access = _ADDRESS.match(line), _ACCESS.match(line)
            if address and u:
                at, type = address[1], address[2]
                new = f"  {at}.v{u} = getelementptr {type}, ptr {at}.v0, i64 {u}"
            elif access and access[2] in addresses and not u:
                new = _aligned(new)
            if access and access[1] is None and access[2] in addresses:
                stores.setdefault(access[2], []).append(new)
            else:
                yield new
    for same in stores.values():
        yield from same


def _aligned(line: str) -> str:
    """A load or store of the first of VECTOR elements that are aligned together."""
    type = re.search(r"(?:load|store) (\w+)", line)
    assert type is not None
    nbytes = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4}.get(type[1], 8)
    text, comma, tag = line.partition(", !llvm")
    return f"{text}, align {min(ALIGNED, VECTOR * nbytes)}{comma}{tag}"


def rows_together(lines: list[str]) -> Iterator[str]:
    """The code of row %i for VECTOR rows from %r on; their results are stored after all loads."""
    stores: list[str] = []
    for u in range(VECTOR):
        yield f"  %step.{u} = mul i64 %rows.apart, {u}"
        yield f"  %i.r{u} = add i64 %r, %step.{u}"
        addresses = {m[1] for line in lines if (m := _ADDRESS.match(line))}
        for line, new in zip(lines, renamed(lines, f".r{u}", ["%i"]), strict=True):
            access = _ACCESS.match(line)
            stored = access is not None and access[1] is None and access[2] in addresses
            if stored:
                stores.append(new)
            else:
                yield new
    yield from stores
