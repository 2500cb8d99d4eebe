"""Random programs: what they hold, from a seed."""

from __future__ import annotations

import random

import numpy as np

from .bodies import Bodies
from .lines import Line, Program, Run, literal
from .order import closure, determined
from .scope import Value

SHAPES = {"s": (), "v": (3,), "w": (3, 3)}


class Maker(Bodies):
    """Makes one program. With `special`, values that are fed have NaN and infinities.

    With `reads_first` it counts on reads before the updates that they do not follow.
    """

    def __init__(self, seed: int, special: bool = False, reads_first: bool = False) -> None:
        super().__init__(random.Random(seed), special)
        self.reads_first = reads_first
        self.numbers = np.random.default_rng(seed)
        self.batch = self.rng.choice([0, 1, 2] if special else [1, 2, 2, 5])
        self.static = self.chance(0.7)
        self.shapes = {**SHAPES, "m": (self.batch, 3)}
        self.variables: list[str] = []
        self.inputs: list[Value] = []
        self.sections: list[list[Value]] = []

    def program(self) -> Program:
        """The program; made anew until it is determined."""
        self._inputs()
        self._states()
        common = list(self.frame.values)
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            pure = [v for v in self.frame.values if v not in common and self._pure(v)]
            self.frame.values = [*common, *pure]
            self.frame.first = len(self.order.accesses)
            self.statements(self.rng.randint(4, 14))
            self.sections.append(
                [v for v in self.frame.values if v.kind not in ("q", "ta") and not v.stale]
            )
        made = Program(self.frame.lines, self.variables, [], self.reads_first)
        for _ in range(self.rng.randint(2, 4)):
            run = self._run()
            made.runs.append(run)
            while not determined(made) and run.fetches:
                run.fetches.pop()
            if not run.fetches:
                made.runs.pop()
        return made

    def _inputs(self) -> None:
        for kind in ("s", "v", "w", "m"):
            shape: list[int | None] = list(self.shapes[kind])
            if kind == "m" and not self.static:
                shape[0] = None
            self._input(kind, f"tf.placeholder(tf.float32, {shape})")
        self._input("i", "tf.placeholder(tf.int32, [])")
        self._input("p", "tf.placeholder(tf.bool, [])")
        for kind in ("s", "v", "i", "a"):
            self._input(kind, f"tf.constant({literal(self._value(kind))})")

    def _input(self, kind: str, text: str) -> None:
        name = self.name(("in_" if "placeholder" in text else "c_") + kind)
        value = Value(name, kind, sources=frozenset({name}) if kind in "svmw" else frozenset())
        self.inputs.append(value)
        self.emit(Line(f"{name} = {text}", (name,)), [value])

    def _states(self) -> None:
        for kind in self.rng.choices("ssvvwmi", k=self.rng.randint(1, 3)):
            name = self.name(f"var_{kind}")
            initial = literal(self._value(kind, plain=True))
            found = Value(
                name, kind, "var", name, frozenset({name}) - ({name} if kind == "i" else set())
            )
            self.emit(Line(f"{name} = tf.Variable({initial})", (name,), role="variable"), [found])
            self.variables.append(name)
        if self.chance(0.25) and not self.special:
            name = self.name("q")
            line = Line(f"{name} = tf.FIFOQueue(50, tf.float32, [[]])", (name,))
            self.emit(line, [Value(name, "q", "o")])

    def _value(self, kind: str, plain: bool = False) -> np.ndarray:
        """A random value of a kind, of few digits."""
        if kind == "a":
            return np.asarray(self.rng.randint(0, 1), np.int32)
        if kind == "i":
            return np.asarray(self.rng.randint(0, 3), np.int32)
        if kind == "p":
            return np.asarray(self.chance(0.5))
        found = np.round(self.numbers.normal(size=self.shapes[kind]), 2).astype(np.float32)
        if self.special and not plain:
            odd = self.numbers.random(found.shape) < 0.15
            found = np.where(
                odd, self.numbers.choice([np.nan, np.inf, -np.inf, 0.0], found.shape), found
            )
        return np.asarray(found, np.float32)

    def _pure(self, value: Value) -> bool:
        """Whether no state is behind a value."""
        if value.base != "t":
            return False
        events = {a.event for a in self.order.accesses}
        return not events & closure(self.frame.lines, [value.name])

    def _run(self) -> Run:
        section = self.rng.choice(self.sections)
        chosen = section[len(self.inputs) :] if len(section) > len(self.inputs) else section
        count = min(len(chosen), self.rng.randint(1, 4))
        weights = [1 + 3 * i / len(chosen) for i in range(len(chosen))]
        fetches = dict.fromkeys(v.name for v in self.rng.choices(chosen, weights, k=count))
        fed = {v.name: self._value(v.kind) for v in self.inputs if v.name.startswith("in_")}
        more = [
            v
            for v in section
            if v.kind in "svmwia" and v.base == "t" and not v.name.startswith("in_")
        ]
        if self.chance(0.35):
            value = self.rng.choice([v for v in more if self._pure(v)])
            fed[value.name] = self._value(value.kind)
        return Run(list(fetches), fed)
