"""Programs of counted effects run statement by statement with NumPy: what each run must give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .effect_programs import MODULUS, ROWS, WIDTH, EffectProgram, Statement, needed

PURE = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
Call = tuple[str, list[float]]


@dataclasses.dataclass
class Result:
    """Of a run: the fetched values, None of operations; the variables and all calls at its end."""

    values: list[Any]
    variables: dict[str, Any]
    calls: list[Call]


class InOrder:
    """Runs a program; what statements follow is already in their order."""

    def __init__(self, program: EffectProgram) -> None:
        self.program = program
        self.variables: dict[str, Any] = {n: v.copy() for n, (v, _) in program.variables.items()}
        if "weights" in self.variables:
            self.variables["steps"] = np.int64(0)
        self.slots: dict[str, Any] = {}
        self.average = np.copy(self.variables.get("weights", 0))
        self.queue: list[np.ndarray] = []
        self.calls: list[Call] = []

    def results(self) -> list[Result]:
        """What all runs give."""
        made = []
        with np.errstate(all="ignore"):
            for fetches, x in self.program.runs:
                values = {"x": np.array(x, self.program.dtype)}
                names = needed(self.program.statements, fetches)
                self._run([s for s in self.program.statements if s.name in names], values)
                states = {n: np.copy(v) for n, v in self.variables.items()}
                made.append(Result([values.get(f) for f in fetches], states, list(self.calls)))
        return made

    def _run(self, statements: Sequence[Statement], values: dict[str, Any]) -> None:
        for s in statements:
            kind = s.kind.split("_")[0]
            values[s.name] = getattr(self, f"_{kind}")(s, [values[i] for i in s.inputs], values)

    def _mod(self, value: Any) -> np.ndarray:
        return np.mod(value, MODULUS).astype(self.program.dtype)

    def _constant(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        return np.array(s.facts["value"], self.program.dtype)

    def _pure(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        return self._mod(PURE[s.facts["op"]](*given))

    def _read(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        return self._mod(self.variables[s.state[0]])

    def _affine(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        old = self._mod(self.variables[s.state[0]])
        self.variables[s.state[0]] = new = self._mod(old * s.facts["factor"] + given[0])
        return new

    def _assign(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        old, sign = self.variables[s.state[0]], {"assign_add": 1, "assign_sub": -1}.get(s.kind)
        self.variables[s.state[0]] = given[0] if sign is None else old + sign * given[0]
        return self._mod(self.variables[s.state[0]])

    def _scatter(self, s: Statement, given: list[Any], values: dict[str, Any]) -> None:
        state = self.variables[s.state[0]] = np.copy(self.variables[s.state[0]])
        for k, row in enumerate(s.facts["rows"]):
            new = given[0] + k if state.ndim == 2 else given[0][k]
            state[row] = new if s.kind == "scatter_update" else state[row] + new

    def _gather(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        return self._mod(self.variables["table"][s.facts["rows"]].sum(0))

    def _call(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        self.calls.append((s.name, given[0].tolist()))
        return self._mod(given[0] + 1)

    def _check(self, s: Statement, given: list[Any], values: dict[str, Any]) -> None:
        assert (given[0] < MODULUS).all()

    def _enqueue(self, s: Statement, given: list[Any], values: dict[str, Any]) -> None:
        self.queue.append(given[0])

    def _dequeue(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        return self.queue.pop(0)

    def _branch(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        statements, result, _ = s.bodies[int(given[0][0]) % 2]
        inner = dict(values)
        self._run(statements, inner)
        return inner[result]

    def _loop(self, s: Statement, given: list[Any], values: dict[str, Any]) -> Any:
        statements, result, variable = s.bodies[0]
        trips, value = s.facts["trips"] or int(given[0][0]) % 3, given[1]
        for _ in range(trips):
            inner = {**values, variable: value}
            self._run(statements, inner)
            value = inner[result]
        return value

    def _average(self, s: Statement, given: list[Any], values: dict[str, Any]) -> None:
        self.average -= np.float32(0.5) * (self.average - self.variables["weights"])
        self.variables["average"] = self.average

    def _train(self, s: Statement, given: list[Any], values: dict[str, Any]) -> None:
        w, gradient = self.variables["weights"], np.zeros((ROWS, WIDTH), "float32")
        rows = s.facts["rows"] if s.facts["by_rows"] else range(ROWS)
        for row in rows:
            gradient[row] += np.mod(given[0], 3) - 1 + w[row] / 4
        gradient *= self.variables["v0"][0] % 3 + 1 if "v0" in s.state else 1
        if s.facts["overflows"] and int(given[0][0]) % 2 == 0:
            return
        used = np.isin(np.arange(ROWS), list(rows))[:, None]
        change = updated(s.facts["optimizer"], gradient, used, self.slots)
        if change is not None:
            self.variables["weights"] = w - change
            self.variables["steps"] = self.variables["steps"] + 1


def updated(name: str, g: np.ndarray, used: np.ndarray, slots: dict[str, Any]) -> Any:
    """What an optimizer subtracts, None if it skips the update; `used` are rows with gradients."""
    first = slots.setdefault("first", np.full_like(g, 0.1 if name == "adagrad" else 0))
    second = slots.setdefault("second", np.zeros_like(g))
    step = slots["step"] = slots.get("step", 0) + 1
    if name in ("sgd", "loss scale"):
        return g / 2
    if name == "accumulation":
        first += g
        if step % 2:
            return None
        mean = first / 2
        first[:] = 0
        return mean / 2
    if name == "momentum":
        first[:] = np.where(used, first / 2 + g, first)
        return np.where(used, first / 4, 0)
    if name == "adagrad":
        first += g * g
        return g / 2 / np.sqrt(first)
    first[:] = np.where(used, 0.9 * first + 0.1 * g, first)
    second[:] = np.where(used, 0.999 * second + 0.001 * g * g, second)
    rate = 0.25 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return np.where(used, rate * first / (np.sqrt(second) + 1e-8), 0)
