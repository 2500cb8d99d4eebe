"""Rows of the pass list: what a pass takes and gives, why it is there, and how it is run."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hpcflow.errors import GraphError
from hpcflow.plan.ir.program import Partition, Plan, Program
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
    """One pass: `run(value, context)` takes a value in the form `takes`, returns it in `gives`.

    `context` is a `PassContext`. `rationale` says why the pass is there, `holds` what is true after
    it. The pass runs if `on(context)` is true; `when` says so in words. A pass with `in_bodies`
    also runs on the programs of loops and branches.
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


class PassContext(Protocol):
    """What passes share: a `Planning` of a step, a `Lowering` or `Generation` of a partition."""

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
class PlainContext:
    """The context of passes that need no more than their value."""

    verify: bool = False
    watch: Watch | None = None
    subject: str = ""


def run_passes(rows: Iterable[Pass], value: Any, context: PassContext) -> Any:
    """Return `value` after all of these passes that are on.

    Errors: VerifyError if a pass lost an effect and `context.verify` is set.
    """
    for row in rows:
        if row.on(context):
            value = run_pass(row, value, context)
    return value


def run_pass(row: Pass, value: Any, context: PassContext) -> Any:
    """Run one pass; verify and record it if `context` asks for it."""
    if context.watch is None and not context.verify:
        return row.run(value, context)
    start = time.perf_counter()
    new = row.run(value, context)
    seconds = time.perf_counter() - start
    checked = context.verify and row.keeps_effects
    if (
        checked
        and isinstance(value, (Program, Partition))
        and isinstance(new, (Program, Partition, Plan))
    ):
        check_effects(row.name, value, new)
    if context.watch is not None:
        context.watch(row, context.subject, value, new, seconds)
    return new


def find_passes(name: str, rows: Sequence[Pass]) -> list[Pass]:
    """Return the passes of a name; without a number, all passes that repeat it.

    Errors: GraphError that lists similar names.
    """
    matches = [row for row in rows if name in (row.name, row.base)]
    if not matches:
        raise unknown_pass_error(name, rows)
    return matches


def unknown_pass_error(name: str, rows: Sequence[Pass], line: str | None = None) -> GraphError:
    """Return the error for a name that no pass has; it lists similar names."""
    names = [row.name for row in rows]
    near = difflib.get_close_matches(name, names, 4, 0.5)
    near += [n for n in names if name and name in n and n not in near]
    hint = f"similar: {', '.join(near)}" if near else "`hpcflow plan --passes SCRIPT` lists them"
    return GraphError(f"there is no pass {name!r}", line=line, hint=hint)
