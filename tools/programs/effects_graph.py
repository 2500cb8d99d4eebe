"""Programs of counted effects as graphs of hpcflow."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import hpcflow as hf

from .effect_programs import MODULUS, WIDTH, EffectProgram, Statement
from .effects_in_order import Call

train = hf.train
OPTIMIZERS = {
    "sgd": lambda: train.GradientDescentOptimizer(0.5),
    "momentum": lambda: train.MomentumOptimizer(0.25, 0.5),
    "adagrad": lambda: train.AdagradOptimizer(0.5, 0.1),
    "lazy adam": lambda: train.LazyAdamOptimizer(0.25),
    "accumulation": lambda: train.AccumulatingOptimizer(train.GradientDescentOptimizer(0.5), 2),
    "loss scale": lambda: train.LossScaleOptimizer(
        train.GradientDescentOptimizer(0.5), train.DynamicLossScale(2.0, 3)
    ),
}
LINKS = ("operation", "value", "group", "no_op")  # what stands for a statement that others follow


class EffectGraph:
    """The graph of a program in the default graph, for jobs with `tasks` tasks.

    Functions of the script append to `calls`.
    """

    def __init__(self, program: EffectProgram, tasks: int, calls: list[Call]) -> None:
        self.program, self.tasks, self.calls = program, tasks, calls
        self.dtype = hf.as_dtype(program.dtype)
        self.variables: dict[str, Any] = {}
        for name, (value, task) in program.variables.items():
            with self._on(task):
                self.variables[name] = hf.Variable(value, name=name, trainable=False)
        if "weights" in self.variables:
            self.variables["steps"] = hf.Variable(np.int64(0), name="steps", trainable=False)
        self.queue = hf.FIFOQueue(50, [self.dtype], [[WIDTH]])
        self.optimizer: Any = None
        self.average = train.ExponentialMovingAverage(0.5)
        self.x = hf.placeholder(self.dtype, [WIDTH], name="x")
        self.made: dict[str, Any] = {"x": self.x}
        self._statements(program.statements, self.made)

    def _on(self, task: int | None) -> contextlib.AbstractContextManager[Any]:
        if task is None:
            return contextlib.nullcontext()
        return hf.device(f"/job:worker/task:{task % self.tasks}")

    def _statements(self, statements: Sequence[Statement], made: dict[str, Any]) -> None:
        for s in statements:
            before = [self._link(made[name], name) for name in s.after]
            with self._on(s.task), hf.control_dependencies(before):
                kind = s.kind.split("_")[0]
                made[s.name] = getattr(self, f"_{kind}")(s, [made[i] for i in s.inputs], made)

    def _link(self, made: Any, name: str) -> Any:
        operation = getattr(made, "op", made)
        how = LINKS[sum(map(ord, name)) % len(LINKS)]
        if how == "group":
            return hf.group(operation)
        if how == "no_op":
            with hf.control_dependencies([operation]):
                return hf.no_op()
        return made if how == "value" else operation

    def _mod(self, x: Any) -> Any:
        return hf.floormod(x, hf.constant(MODULUS, x.dtype))

    def _number(self, x: Any, modulus: int) -> Any:
        return hf.floormod(hf.cast(x[0], hf.int64), modulus)

    def _constant(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return hf.constant(s.facts["value"], self.dtype)

    def _pure(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return self._mod(getattr(hf, s.facts["op"])(*given))

    def _read(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return self._mod(self.variables[s.state[0]] * hf.constant(1, self.dtype))

    def _affine(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        v = self.variables[s.state[0]]
        factor = hf.constant(s.facts["factor"], self.dtype)
        return hf.identity(v.assign(self._mod(self._mod(v.read_value()) * factor + given[0])))

    def _assign(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        v = self.variables[s.state[0]]
        with hf.control_dependencies([getattr(v, s.kind)(given[0])]):
            return self._mod(v.read_value())

    def _scatter(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        v, rows = self.variables[s.state[0]], s.facts["rows"]
        new = given[0][: len(rows)]
        if len(v.shape) == 2:
            new = hf.stack([given[0] + hf.constant(k, self.dtype) for k in range(len(rows))])
        return getattr(hf, s.kind)(v, rows, new).op

    def _gather(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return self._mod(hf.reduce_sum(hf.gather(self.variables["table"], s.facts["rows"]), 0))

    def _call(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        def call(x: np.ndarray) -> np.ndarray:
            self.calls.append((s.name, x.tolist()))
            return np.mod(x + 1, MODULUS).astype(self.program.dtype)

        with self._on(0):
            value = hf.py_func(call, given, self.dtype)
        value.set_shape([WIDTH])
        return value

    def _check(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return hf.Assert(hf.reduce_all(given[0] < hf.constant(MODULUS, self.dtype)), given)

    def _enqueue(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return self.queue.enqueue(given)

    def _dequeue(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        return hf.identity(self.queue.dequeue())

    def _body(self, s: Statement, number: int, made: dict[str, Any]) -> Any:
        """The result of a body, behind all its statements."""
        statements, result, _ = s.bodies[number]
        inner = dict(made)
        self._statements(statements, inner)
        with hf.control_dependencies([self._link(inner[x.name], x.name) for x in statements]):
            return hf.identity(inner[result])

    def _branch(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        even = hf.equal(self._number(given[0], 2), 0)
        return hf.cond(even, lambda: self._body(s, 0, made), lambda: self._body(s, 1, made))

    def _loop(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        trips = s.facts["trips"] or self._number(given[0], 3)
        variable = s.bodies[0][2]

        def body(i: Any, x: Any) -> Any:
            return i + 1, self._body(s, 0, {**made, variable: x})

        start = [hf.constant(0, hf.int64), given[1]]
        return hf.while_loop(lambda i, x: i < trips, body, start)[1]

    def _average(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        made_op = self.average.apply([self.variables["weights"]])
        self.variables["average"] = self.average.average(self.variables["weights"])
        return made_op

    def _train(self, s: Statement, given: list[Any], made: dict[str, Any]) -> Any:
        weights = self.variables["weights"]
        self.optimizer = self.optimizer or OPTIMIZERS[s.facts["optimizer"]]()
        rows = hf.gather(weights, s.facts["rows"]) if s.facts["by_rows"] else weights.read_value()
        slope = hf.floormod(hf.cast(given[0], hf.float32), 3.0) - 1.0
        loss = hf.reduce_sum(rows * slope + 0.125 * hf.square(rows))
        if s.facts["overflows"]:
            even = hf.equal(self._number(given[0], 2), 0)
            loss = loss * hf.where(even, hf.constant(np.inf, hf.float32), hf.ones([]))
        pairs = self.optimizer.compute_gradients(loss, [weights])
        if "v0" in s.state:
            factor = hf.floormod(hf.cast(self.variables["v0"][0], hf.float32), 3.0) + 1.0
            pairs = [(self._times(g, factor), v) for g, v in pairs]
        return self.optimizer.apply_gradients(pairs, global_step=self.variables["steps"])

    def _times(self, gradient: Any, factor: Any) -> Any:
        if not isinstance(gradient, hf.IndexedSlices):
            return gradient * factor
        return hf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
