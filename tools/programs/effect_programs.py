"""Random programs of counted effects: every result tells which updates were made, in which order.

A program is a list of statements in the order in which they take effect. Variables hold small
integers, and `affine` updates, v = (v * k + x) mod 97, do not commute, so a lost, doubled or
reordered update changes all later values. Functions of the script log their calls. Each statement
follows, by control dependencies, the earlier ones that its state needs. In some programs an update
does not follow the reads before it, which hpcflow promises to run first.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MODULUS, WIDTH, ROWS = 97, 4, 6
TASKS = 3  # on which statements may ask to be; a job that has fewer takes the rest of a division
OPTIMIZERS = ("sgd", "momentum", "adagrad", "lazy adam", "accumulation", "loss scale")


@dataclasses.dataclass
class Statement:
    """One statement: what it takes, which statements it follows, which state it uses and changes.

    `bodies` are those of a branch or a loop: statements, the name of the result, the loop variable.
    """

    kind: str
    name: str
    inputs: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    writes: bool = False
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    after: tuple[str, ...] = ()
    task: int | None = None
    bodies: list[tuple[list[Statement], str, str]] = dataclasses.field(default_factory=list)
    changed: tuple[str, ...] = ()  # of a branch or loop: the state that it updates

    @property
    def updated(self) -> tuple[str, ...]:
        """The state that it changes."""
        return self.changed or (self.state if self.writes else self.state[:0])

    def lines(self, depth: int = 0) -> Iterable[str]:
        """It as text, for a report."""
        told = f"{self.name} = {self.kind}({', '.join(self.inputs)})"
        told += f" of {', '.join(self.state)}" if self.state else ""
        told += f" after {', '.join(self.after)}" if self.after else ""
        told += f" on task {self.task}" if self.task is not None else ""
        yield "    " * depth + told + (f"  {self.facts}" if self.facts else "")
        for statements, result, variable in self.bodies:
            yield "    " * depth + f"  body({variable}) gives {result}:"
            for statement in statements:
                yield from statement.lines(depth + 1)


@dataclasses.dataclass
class EffectProgram:
    """Variables with their initial values and tasks, statements, and runs: fetches and a feed."""

    dtype: str
    variables: dict[str, tuple[np.ndarray, int | None]]
    statements: list[Statement]
    runs: list[tuple[list[str], list[int]]]
    queue: bool

    def render(self) -> str:
        """It as text, for a report."""
        lines = [f"{name}: {v.tolist()} on {task}" for name, (v, task) in self.variables.items()]
        lines += [line for s in self.statements for line in s.lines()]
        return "\n".join([*lines, *(f"run {fetches} with x = {x}" for fetches, x in self.runs)])


def needed(statements: Sequence[Statement], names: Iterable[str]) -> set[str]:
    """The statements that a run of these names runs."""
    known = {s.name: s for s in statements}
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in known and name not in found:
            found.add(name)
            stack += captured([known[name]], "")
    return found


def captured(statements: Sequence[Statement], result: str) -> list[str]:
    """The names of outside that statements and the result of their body use."""
    inside = {s.name for s in statements} if result else set()
    found = [result] if result else []
    for s in statements:
        found += [*s.inputs, *s.after]
        for body, end, variable in s.bodies:
            found += [n for n in captured(body, end) if n != variable]
    return [n for n in found if n not in inside]


class Frame:
    """A list of statements in the making: the values there, and the last uses of each state."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.statements: list[Statement] = []
        self.values = list(values)
        self.written: dict[str, str] = {}
        self.read: dict[str, list[str]] = {}


class EffectMaker:
    """Makes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.reads_first, self.trains = self.rng.random() < 0.4, self.rng.random() < 0.6
        self.dtype = self.rng.choice(["float32", "float32", "float64", "int32", "int64"])
        self.frames = [Frame(["x"])]
        self.count = 0

    def program(self) -> EffectProgram:
        """The program."""
        rng, self.variables = self.rng, dict[str, tuple[np.ndarray, int | None]]()
        for name in ["v0", "v1", "v2"][: rng.randint(1, 3)]:
            self.variables[name] = (self._numbers(WIDTH), self._task())
        self.variables["table"] = (self._numbers(ROWS, WIDTH), self._task())
        if self.trains:
            start = self._numbers(ROWS, WIDTH).astype("float32") % 9 - 4
            self.variables["weights"] = (start, self._task())
        self.optimizer, self.queue = rng.choice(OPTIMIZERS), rng.random() < 0.3
        self._add("constant", facts={"value": self._numbers(WIDTH).tolist()}, value=True)
        for _ in range(rng.randint(3, 14)):
            self._statement()
        statements = self.frames[0].statements
        names = [s.name for s in statements]
        runs = []
        for _ in range(rng.randint(2, 4)):
            late = names[len(names) // 2 :] if rng.random() < 0.6 else names
            fetches = rng.sample(late, min(len(late), rng.randint(1, 4)))
            runs.append((fetches, self._numbers(WIDTH).tolist()))
        return EffectProgram(self.dtype, self.variables, statements, runs, self.queue)

    def _numbers(self, *shape: int) -> np.ndarray:
        found = [self.rng.randrange(MODULUS) for _ in range(int(np.prod(shape)))]
        return np.array(found, self.dtype).reshape(shape)

    def _task(self) -> int | None:
        return self.rng.randrange(TASKS) if self.rng.random() < 0.4 else None

    def _pick(self) -> str:
        values = [v for frame in self.frames for v in frame.values]
        return self.rng.choice(values[-6:] if self.rng.random() < 0.7 else values)

    def _add(self, kind: str, inputs: int = 0, state: str = "", value: bool = False,
             writes: bool = False, facts: dict[str, Any] | None = None) -> Statement:  # fmt: skip
        """Add a statement of that many inputs behind those that its state needs."""
        given = tuple(self._pick() for _ in range(inputs))
        states = tuple(state.split(" ")) if state else ()
        self.count += 1
        name = f"{kind.replace(' ', '_')}_{self.count}"
        made = Statement(kind, name, given, states, writes, facts or {})
        return self._placed(made, value)

    def _placed(self, made: Statement, value: bool) -> Statement:
        frame, after = self.frames[-1], list[str]()
        for state in made.state:
            after += [frame.written[state]] if state in frame.written else []
            if state in made.updated and not (self.reads_first and state in self.variables):
                after += frame.read.get(state, [])
        if frame.statements and self.rng.random() < 0.15:
            after.append(self.rng.choice(frame.statements).name)
        made.after = tuple(dict.fromkeys(after))
        made.task = None if made.kind in ("call", "enqueue", "dequeue") else self._task()
        for state in made.state:
            if state in made.updated:
                frame.written[state], frame.read[state] = made.name, []
            else:
                frame.read.setdefault(state, []).append(made.name)
        frame.statements.append(made)
        frame.values += [made.name] if value else []
        return made

    def _statement(self) -> None:
        rng, vector = self.rng, self.rng.choice([v for v in self.variables if v[0] == "v"])
        some = [rng.randrange(ROWS) for _ in range(rng.randint(1, 3))]
        few = [i % WIDTH for i in some]
        table = rng.random() < 0.6
        kinds = ["pure"] * 3 + ["read"] * 2 + ["affine"] * 4 + ["assign_add"] * 2
        kinds += ["assign_sub", "assign", "scatter_add", "scatter_update", "gather", "call", "call"]
        kinds += ["check"] + (["branch", "loop"] * 2 if len(self.frames) < 3 else [])
        if len(self.frames) == 1:
            kinds += ["queue"] * self.queue
            kinds += ["train", "train", "train", "average"] * self.trains
        kind = rng.choice(kinds)
        if kind == "pure":
            op = rng.choice(["add", "subtract", "multiply"])
            self._add(kind, 2, value=True, facts={"op": op})
        elif kind == "read":
            self._add(kind, 0, vector, value=True)
        elif kind == "affine":
            self._add(kind, 1, vector, True, True, {"factor": rng.randint(2, 5)})
        elif kind.startswith("assign"):
            self._add(kind, 1, vector, rng.random() < 0.5, True)
        elif kind.startswith("scatter"):
            rows = {"rows": some if table else few}
            self._add(kind, 1, "table" if table else vector, writes=True, facts=rows)
        elif kind == "gather":
            self._add(kind, 0, "table", value=True, facts={"rows": some})
        elif kind == "call":
            self._add(kind, 1, "log", value=True, writes=True)
        elif kind == "check":
            self._add(kind, 1)
        else:
            getattr(self, f"_{kind}")(some)

    def _queue(self, rows: list[int]) -> None:
        self._add("enqueue", 1, "queue", writes=True)
        if self.rng.random() < 0.8:
            self._add("dequeue", 0, "queue", True, True)

    def _train(self, rows: list[int]) -> None:
        facts = {"optimizer": self.optimizer, "rows": rows, "by_rows": self.rng.random() < 0.6}
        facts["overflows"] = self.optimizer == "loss scale" and self.rng.random() < 0.4
        changed = ("weights", "slots", "steps")
        scale = ("v0",) if self.rng.random() < 0.5 else ()
        self.count += 1
        made = Statement("train", f"train_{self.count}", (self._pick(),), (*changed, *scale))
        made.facts, made.changed = facts, changed
        self._placed(made, False)

    def _average(self, rows: list[int]) -> None:
        made = Statement("average", f"average_{self.count}", (), ("weights", "average"))
        self.count += 1
        made.changed = ("average",)
        self._placed(made, False)

    def _body(self, variable: str) -> tuple[list[Statement], str, str]:
        self.frames.append(Frame([variable] if variable else []))
        for _ in range(self.rng.randint(0, 3)):
            self._statement()
        result = self._pick()
        return self.frames.pop().statements, result, variable

    def _branch(self, rows: list[int]) -> None:
        self._owner("branch", [self._pick()], [self._body(""), self._body("")], {})

    def _loop(self, rows: list[int]) -> None:
        self.count += 1
        inputs, trips = [self._pick(), self._pick()], self.rng.choice([None, None, 2, 3])
        inputs[0] = inputs[1] if trips else inputs[0]
        self._owner("loop", inputs, [self._body(f"it_{self.count}")], {"trips": trips})

    def _owner(self, kind: str, inputs: list[str], bodies: list[tuple[list[Statement], str, str]],
               facts: dict[str, Any]) -> None:  # fmt: skip
        inner = [s for statements, _, _ in bodies for s in statements]
        used = tuple(dict.fromkeys(state for s in inner for state in s.state))
        self.count += 1
        made = Statement(kind, f"{kind}_{self.count}", tuple(inputs), used, False, facts)
        made.bodies = bodies
        made.changed = tuple(dict.fromkeys(state for s in inner for state in s.updated))
        self._placed(made, True)
