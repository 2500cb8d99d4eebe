"""Rows of the pass list: what a pass takes and gives, why it is there, and how it is run."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hpcflow.errors import GraphError
from hpcflow.plan.ir.program import Partition, Program
from hpcflow.plan.verification.effect_verifier import check_effects


class Form(enum.Enum):
    """The forms of a step, from the graph to the code of a task."""

    GRAPH = "graph"
    PROGRAM = "program"
    PLACED = "placed program"
    PLAN = "plan"
    PARTITION = "partition"
    SEGMENTS = "segments"
    BUFFERS = "buffers"
    CODE = "instructions"


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass: `run(value, of)` returns `value` in the form `gives`.

    `of` is the run of the passes: a `Planning` or a `Lowering`. `rationale` says why the pass is
    there, `holds` what is true after it. The pass runs where `on(of)` is true; `when` says so in
    words. A pass with `in_bodies` also runs on the programs of loops and branches.
    """

    name: str
    phase: str
    takes: Form
    gives: Form
    rationale: str
    holds: str
    run: Callable[[Any, Any], Any]
    when: str = "always"
    on: Callable[[Any], bool] = lambda _: True
    in_bodies: bool = False
    keeps_effects: bool = True  # False: effects move to another program
    line: str = ""  # where the user registered it; "" for a pass of hpcflow

    @property
    def base(self) -> str:
        """The name without the number of a repeated pass: `live` of `live.2`."""
        return self.name.partition(".")[0]


Watch = Callable[[Pass, str, Any, Any, float], None]  # pass, what it ran on, before, after, seconds


class Run(Protocol):
    """A run of passes in order: the planning of a step, or the lowering of a partition."""

    @property
    def verify(self) -> bool:
        """Whether the effects of programs and partitions are checked after each pass."""

    @property
    def watch(self) -> Watch | None:
        """What is called after each pass; None if nobody asks."""

    @property
    def subject(self) -> str:
        """The program or partition that the passes run on, in words."""


@dataclasses.dataclass(frozen=True)
class PlainRun:
    """A run of passes that need no more than their value."""

    verify: bool = False
    watch: Watch | None = None
    subject: str = ""


def through(rows: Iterable[Pass], value: Any, run: Run) -> Any:
    """Return `value` after all of these passes that are on.

    Errors: VerifyError if a pass lost an effect and `run.verify` is set.
    """
    for row in rows:
        if row.on(run):
            value = apply(row, value, run)
    return value


def apply(row: Pass, value: Any, run: Run) -> Any:
    """Run one pass; verify and record it if `run` asks for it."""
    if run.watch is None and not run.verify:
        return row.run(value, run)
    start = time.perf_counter()
    new = row.run(value, run)
    seconds = time.perf_counter() - start
    checked = run.verify and row.keeps_effects
    if (
        checked
        and isinstance(value, (Program, Partition))
        and isinstance(new, (Program, Partition))
    ):
        check_effects(row.name, value, new)
    if run.watch is not None:
        run.watch(row, run.subject, value, new, seconds)
    return new


def find_passes(name: str, rows: Sequence[Pass]) -> list[Pass]:
    """Return the passes of a name; without a number, all passes that repeat it.

    Errors: GraphError that lists similar names.
    """
    matches = [row for row in rows if name in (row.name, row.base)]
    if not matches:
        raise unknown(name, rows)
    return matches


def unknown(name: str, rows: Sequence[Pass], line: str | None = None) -> GraphError:
    """Return the error for a name that no pass has; it lists similar names."""
    names = [row.name for row in rows]
    near = difflib.get_close_matches(name, names, 4, 0.5)
    near += [n for n in names if name and name in n and n not in near]
    hint = f"similar: {', '.join(near)}" if near else "`hpcflow plan --passes SCRIPT` lists them"
    return GraphError(f"there is no pass {name!r}", line=line, hint=hint)
