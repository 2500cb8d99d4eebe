"""A program as a tree of lines: text to run and to read, with what each line uses and changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

INDENT = "    "


@dataclasses.dataclass
class Line:
    """A statement, or the head of a block.

    `names` are what it defines, `uses` the names whose values it takes, `reads` and `writes` the
    states that it accesses itself. Of a `with` block `uses` are the control dependencies; of a
    `def`, `names` are the function, then its parameters; `calls` are the functions that a branch
    or a loop runs, in the order in which they run.
    """

    text: str
    names: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    role: str = "line"  # or variable, update, gradient, branch, loop, with, def, return
    body: list[Line] = dataclasses.field(default_factory=list)

    def render(self, depth: int = 0) -> Iterator[str]:
        """Its text and that of its block."""
        yield INDENT * depth + self.text
        for line in self.body:
            yield from line.render(depth + 1)


@dataclasses.dataclass
class Run:
    """One call of `session.run`: names to fetch, and the values of fed names."""

    fetches: list[str]
    feeds: dict[str, Any]

    def render(self) -> str:
        """The call as text."""
        fed = ", ".join(f"{name}: {literal(value)}" for name, value in self.feeds.items())
        return f"print(session.run([{', '.join(self.fetches)}], {{{fed}}}))"


@dataclasses.dataclass
class Program:
    """Lines that build a graph, the variables among their names, and the steps that are run.

    With `reads_first` it counts on reads before the updates that they do not follow.
    """

    lines: list[Line]
    variables: list[str]
    runs: list[Run]
    reads_first: bool = False

    def graph_text(self) -> str:
        """The lines that build the graph, for `exec`."""
        return "\n".join(text for line in self.lines for text in line.render()) + "\n"

    def render(self, module: str = "import hpcflow as tf") -> str:
        """The whole program as text."""
        states = ", ".join(self.variables)
        steps = [INDENT + "session.run(tf.global_variables_initializer())"] * bool(self.variables)
        for run in self.runs:
            steps.append(INDENT + run.render())
            if self.variables:
                steps.append(INDENT + f"print(session.run([{states}]))")
        head = f"import numpy as np\n{module}\n\n"
        return head + self.graph_text() + "\nwith tf.Session() as session:\n" + "\n".join(steps)


def literal(value: Any) -> str:
    """An array as text."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return repr(array.tolist())
    if array.size == 0:
        return f"np.zeros({list(array.shape)}, np.float32)"
    return f"np.array({digits(array)}, np.float32)"


def digits(array: np.ndarray) -> str:
    """The elements of an array of float32 as text, each in as few digits as tell it apart."""
    if array.ndim:
        return f"[{', '.join(digits(row) for row in array)}]"
    text = str(np.float32(array))
    return f"np.{text}" if text in ("nan", "inf") else text.replace("-inf", "-np.inf")


def every(lines: list[Line]) -> Iterator[Line]:
    """All lines, those of blocks behind their heads."""
    for line in lines:
        yield line
        yield from every(line.body)
