"""Session: run any part of a graph, by feeds and fetches, on as many ranks as it spans."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import FeedError, FetchError, HpcflowError
from hpcflow.graph.composite import Composite
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph
from hpcflow.graph.shape import Shape, Spec, known
from hpcflow.logs import logger, say_once
from hpcflow.plan.ir import Node, Plan
from hpcflow.plan.make import make_plan
from hpcflow.plan.verify import verify
from hpcflow.runtime.agree import agree
from hpcflow.runtime.context import Context, current
from hpcflow.runtime.feeds import as_fed, by_tensor, structure
from hpcflow.runtime.link import Sums
from hpcflow.runtime.spanning import make_step
from hpcflow.runtime.step import Feeds, PlannedStep, Runner, Step, fetched

SPECIALISED = 8  # plans kept for known shapes of one fetch; then one plan serves any shape
GROWING_RUNS = 100  # runs in a row with new operations that are a leak
_numbers = itertools.count()  # of families, over all sessions: served ranks keep sums by them
_NO_FEEDS: dict[Any, Any] = {}


class Session:
    """Runs operations of a graph.

    Ranks: every rank that runs the script has one of its own; in collective mode all run the same
    steps in the same order.
    """

    def __init__(self, graph: Graph | None = None, context: Context | None = None) -> None:
        self.graph = graph or get_default_graph()
        self.context = context or current()
        self.store = self.context.new_store()  # variables that live on this rank
        self._runners: dict[Any, Runner] = {}  # fetches -> the runner used last
        self._families: dict[Any, Family] = {}  # (fetches, fed tensors) -> their plans
        self._growth = Growth()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, fetches: Any, feed_dict: Feeds | None = None) -> Any:
        """Compute `fetches`, a tensor, operation, variable, or lists, tuples and dicts of them.

        Shapes: feeds as their placeholders allow; results are NumPy arrays of the caller's own,
        None for an operation.
        Errors: FeedError, FetchError, UninitializedError, KernelError, each with op, line, rank.
        """
        try:
            runner = self._runners[fetches if fetches.__class__ is Tensor else _name(fetches)]
        except (KeyError, TypeError):
            runner = functools.partial(self._find, fetches)
        return runner(_NO_FEEDS if feed_dict is None else feed_dict)

    def plan(self, fetches: Any, feed_dict: Feeds | None = None) -> Plan:
        """The plan that `run` with these fetches and feeds would follow; nothing runs."""
        wanted: list[Tensor | Operation] = []
        structure(self.graph, fetches, wanted)
        feeds = {self._fed(key): value for key, value in by_tensor(feed_dict or {}).items()}
        arrays = {t: as_fed(t, value) for t, value in feeds.items()}
        return self._plan(wanted, {t: Spec(a.dtype, a.shape) for t, a in arrays.items()})

    def close(self) -> None:
        """Let go of plans; variables on servers stay until the job ends.

        Steps that other threads wait for end with CancelledError.
        """
        self._closed = True
        for family in list(self._families.values()):
            family.cancel("the session was closed")
        self._runners.clear()
        self._families.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- finding the step of a run

    def _find(self, fetches: Any, feed_dict: Feeds) -> Any:
        """Run for the first time, or with feeds of other shapes than the last time."""
        if self._closed:
            raise FetchError("the session is closed", hint="make a new hf.Session()")
        if any(isinstance(key, Composite) for key in feed_dict):
            return self.run(fetches, by_tensor(feed_dict))
        wanted: list[Tensor | Operation] = []
        rebuild = structure(self.graph, fetches, wanted)
        fed = {self._fed(key): key for key in feed_dict}
        fed = {t: fed[t] for t in sorted(fed, key=lambda t: (t.op.index, t.index))}
        arrays = {t: as_fed(t, feed_dict[key]) for t, key in fed.items()}
        with self._lock:
            self._growth.watch(self.graph)
            key = (tuple(wanted), tuple(arrays))
            if key not in self._families:
                self._families[key] = Family(wanted)
            step = self._families[key].step(arrays, self._make)
        name = _name(fetches)
        try:
            self._runners[name] = step.runner(
                name, fed, rebuild, functools.partial(self._find, fetches)
            )
        except TypeError:
            pass  # dicts and nested lists are looked up by structure each time
        return rebuild(step.run(*arrays.values()))

    def _fed(self, key: Any) -> Tensor:
        tensor = self.graph.get_tensor_by_name(key) if isinstance(key, str) else key
        if hasattr(tensor, "as_tensor"):  # a variable: what is read of it
            tensor = tensor.as_tensor()
        if not isinstance(tensor, Tensor) or tensor.graph is not self.graph:
            raise FeedError(
                f"{key!r} cannot be fed: it is not a tensor of this session's graph",
                rank=self.context.rank,
                hint="feed placeholders or other tensors of the graph",
            )
        return tensor

    def _plan(self, wanted: Sequence[Tensor | Operation], specs: dict[Tensor, Spec]) -> Plan:
        context = self.context
        try:
            plan = make_plan(
                self.graph,
                wanted,
                specs,
                context.cluster,
                context.settings,
                context.replica,
                functools.partial(evaluate, context),
            )
            if context.on_plan is None:
                verify(plan)
        except HpcflowError as error:
            error.rank = context.rank if error.rank is None else error.rank
            raise
        return plan

    def _make(self, family: Family, specs: dict[Tensor, Spec]) -> Step:
        context, plan = self.context, self._plan(family.wanted, specs)
        if context.on_plan is not None:
            return PlannedStep(context, plan)
        if plan.collectives and context.group is not None and family.sums is None:
            agree(context, self.graph, family.wanted)
            family.sums = Sums(context.group)
        compiled = context.compile(plan.parts[plan.driver], self.store, fetched(family.wanted))
        return make_step(context, plan, compiled, family.wanted, family.number, family.sums)


def _name(fetches: Any) -> Any:
    """What the runner of these fetches is kept by: also their kind, for equal tuples may differ."""
    kind = fetches.__class__
    if kind is list:
        return tuple(fetches)
    return (kind, fetches) if isinstance(fetches, tuple) else fetches


class Family:
    """The plans of one fetch with the same tensors fed: for each of a few shapes, then for any.

    Their collectives have one storage, for replicas are fed shares of different sizes.
    """

    def __init__(self, wanted: Sequence[Tensor | Operation]) -> None:
        self.number, self.wanted = next(_numbers), wanted
        self.sums: Sums | None = None
        self._steps: dict[tuple[Any, ...], Step] = {}  # shapes -> step
        self._general: Step | None = None

    def step(
        self,
        arrays: Mapping[Tensor, np.ndarray],
        make: Callable[[Family, dict[Tensor, Spec]], Step],
    ) -> Step:
        """The step for feeds of these shapes, made if need be."""
        shapes = tuple(array.shape for array in arrays.values())
        step = self._steps.get(shapes)
        if step is None and len(self._steps) < SPECIALISED:
            step = make(self, {t: Spec(a.dtype, a.shape) for t, a in arrays.items()})
            self._steps[shapes] = step
        if step is None:
            if self._general is None:
                names = ", ".join(w.name for w in self.wanted)
                say_once(
                    f"{names} was fed {SPECIALISED} different shapes; from now on one plan for any "
                    "shape serves the others (slower: pad to a few sizes if it matters)"
                )
                self._general = make(
                    self,
                    {t: Spec(a.dtype, self._open(i, t)) for i, (t, a) in enumerate(arrays.items())},
                )
            step = self._general
        return step

    def cancel(self, why: str) -> None:
        """End steps in flight with a CancelledError."""
        for step in (*self._steps.values(), self._general):
            if step is not None:
                step.cancel(why)

    def _open(self, index: int, tensor: Tensor) -> Shape:
        """The sizes of a feed that have been the same so far; None where they differ."""
        seen = {shapes[index] for shapes in self._steps}
        ranks = {len(shape) for shape in seen}
        if len(ranks) > 1:
            return tensor.shape
        columns = zip(*seen, strict=True)
        same = [sizes[0] if len(set(sizes)) == 1 else None for sizes in columns]
        return tuple(
            None if static is None else d
            for d, static in zip(same, tensor.shape or same, strict=True)
        )


class Growth:
    """Notices a graph that grows from run to run: a leak of scripts that build in the loop."""

    def __init__(self) -> None:
        self._version = 0
        self._runs = 0

    def watch(self, graph: Graph) -> None:
        """Count runs in a row that found new operations; say so once, with the user's line."""
        grown, self._version = graph.version > self._version, graph.version
        self._runs = self._runs + 1 if grown else 0
        if self._runs == GROWING_RUNS:
            op = graph.get_operations()[-1]
            logger.warning(
                "the graph grew before each of the last %d runs: %r was made at %s; make "
                "operations once, before the loop, or memory and time grow with every step",
                *(GROWING_RUNS, op.name, op.line),
            )


def evaluate(context: Context, node: Node, inputs: Sequence[Any]) -> list[Any]:
    """Compute a pure node on this rank's CPU: the plan folds constants with it."""
    device = context.devices["cpu:0"]
    specs = [Spec(np.asarray(x).dtype, np.asarray(x).shape) for x in inputs]
    run, form = device.kernel(node, specs), device.info(node).form
    try:
        if form == "out":
            outs = [np.empty(known(s.shape), s.dtype) for s in node.specs]
            run(*inputs, *outs)
            return outs
        made = run(*inputs)
    except HpcflowError as error:
        error.op, error.line = error.op or node.name, error.line or node.line
        raise
    return list(made) if isinstance(made, tuple) else [np.asarray(made)]
