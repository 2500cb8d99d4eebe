"""The shortest program that still shows a difference: fewer lines, steps and dependencies."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from .lines import Line, Program, Run, every
from .order import closure, determined

TRIES = 1500
PLAIN = {
    "s": "tf.constant(.5)",
    "v": "tf.constant([.2, .7, -.4])",
    "w": "tf.constant([[.1, .2, .3], [-.4, .5, .6], [.7, -.8, .9]])",
    "i": "tf.constant(1)",
    "p": "tf.constant(True)",
    "o": "tf.group()",
    "op": "tf.group()",
}


def shortest(program: Program, still: Callable[[Program], bool], tries: int = TRIES) -> Program:
    """A program of few lines for which `still` holds, as it does for `program`."""
    while True:
        for candidate in _shorter(program):
            if not (_sound(candidate) and determined(candidate)):
                continue
            tries -= 1
            if tries < 0:
                return program
            if still(candidate):
                program = candidate
                break
        else:
            return program


def _sound(program: Program) -> bool:
    """Whether all that lines use and steps fetch is there."""
    defined = {n for line in every(program.lines) for n in line.names}
    used = {n for line in every(program.lines) for n in (*line.uses, *line.calls)}
    used |= {n for run in program.runs for n in run.fetches}
    beside = {n: set(line.names) - {x for x in line.names if x.startswith("ta")}
              for line in every(program.lines) if line.calls for n in line.names}  # fmt: skip
    waits = [x for x in every(program.lines) if x.role == "with" or "tf.group(" in x.text]
    whole = all(beside.get(n, set()) <= set(x.uses) for x in waits for n in x.uses)
    return whole and used | set(program.variables) <= defined


def _only_needed(program: Program) -> Program:
    """The program without the lines that no step needs."""
    wanted = [n for run in program.runs for n in (*run.fetches, *run.feeds)]
    needed = closure(program.lines, wanted) | set(program.variables)

    def kept(lines: list[Line]) -> list[Line]:
        found = []
        for line in lines:
            body = kept(line.body)
            if line.role == "with" and not body:
                continue
            if line.role in ("with", "return") or needed & set(line.names):
                found.append(dataclasses.replace(line, body=body))
        return found

    return _with(program, lines=kept(program.lines))


def _shorter(program: Program) -> Iterator[Program]:
    needed = _only_needed(program)
    if sum(1 for _ in every(needed.lines)) < sum(1 for _ in every(program.lines)):
        yield needed
    for i in reversed(range(len(program.runs))):
        if len(program.runs) > 1:
            yield _with(program, runs=program.runs[:i] + program.runs[i + 1 :])
    for i, run in enumerate(program.runs):
        for less in _shorter_runs(program, run):
            yield _with(program, runs=[*program.runs[:i], less, *program.runs[i + 1 :]])
    yield from _without_copies(program)
    for name in program.variables:
        left = [v for v in program.variables if v != name]  # where nothing else uses it
        yield _with(program, lines=_without_names(program.lines, {name}), variables=left)
    for lines in _fewer(program.lines):
        yield _with(program, lines=lines)


def _without_copies(program: Program) -> Iterator[Program]:
    """Without one of the lines that give a value another name."""
    for line in every(program.lines):
        if line.role == "line" and len(line.names) == 1 and line.text == _copy(line, line.uses[:1]):
            old, new = line.names[0], line.uses[0]
            lines = _renamed([x for x in program.lines if x is not line], line, old, new)
            runs = [Run([new if f == old else f for f in r.fetches], r.feeds) for r in program.runs]
            yield _with(program, lines=lines, runs=runs)


def _renamed(lines: list[Line], without: Line, old: str, new: str) -> list[Line]:
    def change(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if n == old else n for n in names)

    return [
        dataclasses.replace(
            line,
            text=re.sub(rf"\b{old}\b", new, line.text),
            uses=change(line.uses),
            body=_renamed(line.body, without, old, new),
        )
        for line in lines
        if line is not without
    ]


def _shorter_runs(program: Program, run: Run) -> Iterator[Run]:
    for i in range(len(run.fetches)):
        if len(run.fetches) > 1:
            yield Run(run.fetches[:i] + run.fetches[i + 1 :], run.feeds)
    defined = {n for line in every(program.lines) for n in line.names}
    kept = {k: v for k, v in run.feeds.items() if k in defined}
    if len(kept) < len(run.feeds):
        yield Run(run.fetches, kept)
    for name in run.feeds:
        if not name.startswith("in_"):
            yield Run(run.fetches, {k: v for k, v in run.feeds.items() if k != name})


def _with(program: Program, **changes: object) -> Program:
    made = dataclasses.replace(program, **changes)  # type: ignore[arg-type]
    defined = {n for line in every(made.lines) for n in line.names}
    runs = [Run(r.fetches, {k: v for k, v in r.feeds.items() if k in defined}) for r in made.runs]
    return dataclasses.replace(made, runs=runs)


def _without_names(lines: list[Line], names: set[str]) -> list[Line]:
    return [line for line in lines if not names & set(line.names)]


def _fewer(lines: list[Line]) -> Iterator[list[Line]]:
    """The lines without one, a block, or the head of one; with a name in place of an expression."""
    size = len(lines)
    for n in (8, 4, 2):  # many at once first
        for i in range(0, size - n + 1, n):
            yield lines[:i] + lines[i + n :]
    for i in reversed(range(size)):
        line, before, behind = lines[i], lines[:i], lines[i + 1 :]
        if line.role != "return":
            yield before + behind
        if line.role == "with":
            yield before + line.body + behind
            for name in line.uses:
                if len(line.uses) > 1:
                    yield [*before, _waiting(line, [u for u in line.uses if u != name]), *behind]
        for body in _fewer(line.body) if line.body else ():
            yield [*before, dataclasses.replace(line, body=body), *behind]
        for simpler in _simpler(line):
            yield [*before, *simpler, *behind]


def _waiting(line: Line, names: list[str]) -> Line:
    text = f"with tf.control_dependencies([{', '.join(names)}]):"
    return dataclasses.replace(line, text=text, uses=tuple(names))


def _kind(name: str) -> str:
    return re.sub(r"^(in|c|u)_|_?\d+$", "", name)


def _simpler(line: Line) -> Iterator[list[Line]]:
    """In place of the line, a copy of a value that it uses, or constants, of the same kinds."""
    if line.role not in ("line", "gradient", "branch", "loop"):
        return
    if len(line.names) == 1:
        kind = _kind(line.names[0])
        for used in line.uses:
            if (
                _kind(used) == kind
                and not used.startswith("var")
                and line.text != _copy(line, (used,))
            ):
                yield [Line(_copy(line, (used,)), line.names, (used,))]
    found = [Line(f"{n} = {PLAIN[_kind(n)]}", (n,)) for n in line.names if _kind(n) in PLAIN]
    if len(found) == len(line.names) and (line.uses or line.calls):
        yield found


def _copy(line: Line, used: tuple[str, ...]) -> str:
    return f"{line.names[0]} = {', '.join(used)}"
