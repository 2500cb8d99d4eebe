"""Which programs are determined: every two conflicting accesses of a state have an order.

The order is what TensorFlow's graphs guarantee with every line an operation of its own, so it holds
however a step is scheduled. A read of a variable follows the control dependencies in force where it
stands, and nothing else. An update also follows its operands. What is inside of a branch or a loop
body follows the dependencies of the branch or loop, and all results of a body must follow all its
accesses. A gradient follows nothing but the dependencies in force.

hpcflow promises one thing more: a read comes before each update that it does not follow. Programs
may be asked to be determined by that, too; they mean nothing certain to TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from .lines import Line, Program, Run

Names = frozenset[str]


@dataclasses.dataclass(frozen=True)
class Access:
    """A use of a state by the line of name `event`, which begins when the lines `before` are done.

    `path` tells the branches that it is in: pairs of a branching line and a function.
    """

    event: str
    state: str
    write: bool
    before: Names
    path: tuple[tuple[str, str], ...]
    at_once: bool = True  # it is made in the step, neither behind it nor behind a queue

    def conflicts(self, other: Access, reads_first: bool) -> bool:
        """Whether the result depends on which of the two comes first, and neither must."""
        if self.state != other.state or not (self.write or other.write):
            return False
        if reads_first and self.write != other.write and self.at_once and other.at_once:
            return False
        if self.event == other.event or self.event in other.before or other.event in self.before:
            return False
        mine = dict(self.path)
        return all(mine.get(owner, f) == f for owner, f in other.path)


class Order:
    """What is done once each name is there, and the accesses, of the lines walked so far."""

    def __init__(self) -> None:
        self.done: dict[str, Names] = {}
        self.accesses: list[Access] = []
        self.defs: dict[str, Line] = {}
        self.queued: set[str] = set()  # events of queues, for which others may have to wait
        self.untied = False  # a result of a body does not follow an access in it

    def known(self, names: Iterable[str]) -> Names:
        """All that is done once these names are there."""
        return frozenset().union(*(self.done.get(n, frozenset()) for n in names))

    def walk(
        self, lines: list[Line], base: Names = frozenset(), path: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Go through lines that stand under control dependencies on `base`."""
        for line in lines:
            if line.role == "def":
                self.defs[line.names[0]] = line
            elif line.role == "with":
                self.walk(line.body, base | self.known(line.uses), path)
            elif line.role in ("branch", "loop"):
                self._owner(line, base, path)
            elif line.role != "return":
                self._statement(line, base, path)

    def _statement(self, line: Line, base: Names, path: tuple[tuple[str, str], ...]) -> None:
        event = line.names[0]
        given = base if line.role == "gradient" else base | self.known(line.uses)
        free = self.queued.isdisjoint(base)
        self.accesses += [Access(event, s, False, base, path, free) for s in line.reads]
        self.queued |= {event for s in (*line.reads, *line.writes) if s.startswith("q")}
        self.accesses += [Access(event, s, True, given, path) for s in line.writes]
        self.done.update(dict.fromkeys(line.names, given | {event}))

    def _owner(self, line: Line, base: Names, path: tuple[tuple[str, str], ...]) -> None:
        event, start = line.names[0], base
        if line.role == "branch":
            start |= self.known(line.uses)
        done = start | {event}
        for name in line.calls:
            function = self.defs.get(name)
            if function is None:
                continue
            first = len(self.accesses)
            self.done.update(dict.fromkeys(function.names[1:], start))
            here = (*path, (event, name)) if line.role == "branch" else path
            self.walk(function.body, start, here)
            ends = [r for x in function.body if x.role == "return" for r in x.uses]
            live = self.known(ends)  # nobody waits for an array
            waited = [self.known([r]) for r in ends if not r.startswith("ta")]
            tied = frozenset.intersection(*waited) if waited else live
            self.accesses[first:] = [a for a in self.accesses[first:] if a.event in live]
            self.untied |= any(a.event not in tied for a in self.accesses[first:])
            done |= tied
            if line.role == "loop":
                start |= tied
        self.done.update(dict.fromkeys(line.names, done))


def determined(program: Program) -> bool:
    """Whether no result of any of its steps depends on how the step is scheduled."""
    order = Order()
    order.walk(program.lines)
    steps = (_step(order, program, run) for run in program.runs)
    return not order.untied and all(steps)


def _step(order: Order, program: Program, run: Run) -> bool:
    needed = closure(program.lines, run.fetches)
    accesses = [a for a in order.accesses if a.event in needed]
    for name in run.fetches:  # a fetched variable is one read more, of no certain time
        for state in states_of(program.lines, name):
            accesses.append(Access(f"fetch {name}", state, False, order.known([name]), (), False))
    pairs = ((a, b) for i, a in enumerate(accesses) for b in accesses[:i])
    return not any(a.conflicts(b, program.reads_first) for a, b in pairs)


def states_of(lines: list[Line], name: str) -> tuple[str, ...]:
    """The variable that fetching `name` reads: itself, or the one that its line updates."""
    for line in flat(lines):
        if name in line.names and line.role == "variable":
            return (name,)
        if name in line.names and line.role == "update":
            return line.writes
    return ()


def flat(lines: list[Line]) -> Iterable[Line]:
    """The lines of one block, out of `with`, not out of functions."""
    for line in lines:
        yield line
        if line.role == "with":
            yield from flat(line.body)


def closure(lines: list[Line], fetches: Iterable[str]) -> set[str]:
    """The names of all lines that a step of these fetches may run."""
    behind: dict[str, set[str]] = {}

    def collect(block: list[Line], around: tuple[str, ...]) -> None:
        for line in block:
            if line.role == "with":
                collect(line.body, (*around, *line.uses))
                continue
            needs = {*around, *line.uses, *line.reads, *line.calls}
            if line.role == "def":
                collect(line.body, around)
                ends = [n for x in line.body for n in x.uses if x.role == "return"]
                behind[line.names[0]] = set(ends)
                continue
            for name in line.names:
                behind[name] = needs | {line.names[0]}

    collect(lines, ())
    found: set[str] = set()
    stack = list(fetches)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(behind.get(name, ()))
    return found
