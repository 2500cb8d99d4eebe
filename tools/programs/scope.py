"""What random lines are made of: the names that can be used where a line stands, and its order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

from .lines import Line
from .order import Names, Order


@dataclasses.dataclass
class Value:
    """A name with its kind (see expressions.py; also o for an operation, q for a queue).

    `base` is t for a tensor, var for a variable, u for what an update returns, o for others.
    `sources` are the names from which gradients flow to it, itself included; `twice` says that it
    depends on a gradient, which is not differentiated again.
    """

    name: str
    kind: str
    base: str = "t"
    state: str = ""  # of var and u: the variable
    sources: Names = frozenset()
    twice: bool = False
    loops: tuple[str, ...] = ()  # the loop bodies that it stands in
    beside: tuple[str, ...] = ()  # the names that its line defines
    stale: bool = False  # what an update returned, after a later update


@dataclasses.dataclass
class Frame:
    """A graph, or the body of a branch or loop, while its lines are made."""

    lines: list[Line]
    parent: Frame | None = None
    loops: tuple[str, ...] = ()
    values: list[Value] = dataclasses.field(default_factory=list)
    base: Names = frozenset()
    first: int = 0  # of the accesses, the first one of this frame

    def visible(self) -> list[Value]:
        """The values that can be used here. An update of outside of a loop has no value in it."""
        around = self.parent.visible() if self.parent else []
        return [v for v in around if v.base != "u" or v.loops == self.loops] + self.values

    def waited(self) -> list[Value]:
        """The values that can be control dependencies here: in a loop, of outside only tensors."""
        return [v for v in self.visible() if v.base != "var" and v.kind not in ("q", "ta")
                and (v.base == "t" or v.loops == self.loops)]  # fmt: skip


class Scopes:
    """Adds lines to the innermost frame, with the control dependencies that determine them."""

    reads_first = False  # whether the program counts on reads before updates

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.order = Order()
        self.frame = Frame([])
        self.count = 0

    def name(self, kind: str) -> str:
        """A new name."""
        self.count += 1
        return f"{kind}{self.count}"

    def chance(self, probability: float) -> bool:
        """True in that part of all cases."""
        return self.rng.random() < probability

    def emit(self, line: Line, values: Sequence[Value] = ()) -> None:
        """Add a line, behind the accesses that it conflicts with; `values` are what it defines."""
        frame, order = self.frame, self.order
        mark = len(order.accesses)
        order.walk([line], frame.base)
        new, prior = order.accesses[mark:], order.accesses[frame.first : mark]
        late = [a.event for a in prior if any(a.conflicts(b, self.reads_first) for b in new)]
        if late:
            del order.accesses[mark:]
            names = self.cover(late)
            order.walk([line], frame.base | order.known(names))
            line = after(names, [line])
        frame.lines.append(line)
        written = {a.state for a in new if a.write}
        for value in frame.visible():
            value.stale |= value.base == "u" and value.state in written
        beside = tuple(v.name for v in values)
        for value in values:
            value.loops, value.beside = frame.loops, beside
            frame.values.append(value)

    def cover(self, events: Sequence[str]) -> list[str]:
        """Names of this frame that are there only once the lines `events` are done."""
        found: list[str] = []
        for event in reversed(events):
            if event in self.order.known(found):
                continue
            names = [v.name for v in self.frame.values if self._follows(v, event)]
            found.append(self.rng.choice(names[:1] * 3 + names))
        return self.whole(found)

    def whole(self, names: Iterable[str]) -> list[str]:
        """The names with those beside them: a branch or a loop is waited for as a whole."""
        beside = {v.name: v.beside for v in self.frame.visible()}
        return list(dict.fromkeys(n for name in names for n in beside.get(name) or (name,)
                                  if not n.startswith("ta")))  # fmt: skip

    def _follows(self, value: Value, event: str) -> bool:
        there = value.base != "var" and value.kind not in ("q", "ta")
        return there and event in self.order.done.get(value.name, ())


def after(names: Sequence[str], body: list[Line]) -> Line:
    """A block under control dependencies."""
    return Line(f"with tf.control_dependencies([{', '.join(names)}]):", (), tuple(names),
                role="with", body=body)  # fmt: skip
