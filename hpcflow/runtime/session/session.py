"""Session: runs a graph by feeds and fetches, on one or several ranks."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from hpcflow.errors import ArgumentError, FeedError, FetchError, HpcflowError, RangeError
from hpcflow.graph import default_session
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph
from hpcflow.graph.side_effects import updates_from_variables
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.ir.node_effects import plan_trains
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.plan.pass_list import make_plan
from hpcflow.platform.lazy_imports import LazyMethod
from hpcflow.runtime.device.device import DeviceAttributes, device_attributes
from hpcflow.runtime.device.dlpack_exchange import share_version
from hpcflow.runtime.device.shared_arena import ArenaLeases, SharedArena
from hpcflow.runtime.dynamic_types import Fed, Feeds, FeedValue, Fetches, Rebuild
from hpcflow.runtime.failure.replica_loss_recovery import StepInterrupted
from hpcflow.runtime.job import unsaved_training_warning
from hpcflow.runtime.job.collective_agreement import check_agreement
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile.step_stats import StepTrace
from hpcflow.runtime.session import session_options
from hpcflow.runtime.session.config_proto import ConfigProto, RunMetadata, RunOptions
from hpcflow.runtime.session.session_close import release_session
from hpcflow.runtime.session.session_target import target_context
from hpcflow.runtime.step.distributed_step import make_step, repeat_on_server
from hpcflow.runtime.step.feed_and_fetch import (
    by_tensor,
    feed_array,
    flatten_fetches,
    has_composites,
)
from hpcflow.runtime.step.plan_cache import PlanPreview
from hpcflow.runtime.step.plan_preparation import evaluate_node, log_server_traffic
from hpcflow.runtime.step.planned_step import ExecutableStep, PlannedStep, Runner, fetch_label
from hpcflow.runtime.step.shape_specialization import GraphGrowth, ShapeSpecializations
from hpcflow.runtime.step.step_channels import CollectiveBuffers
from hpcflow.runtime.step.step_deadline import StepDeadline

if TYPE_CHECKING:
    from hpcflow.runtime.step.partial_run import PartialRun

S = TypeVar("S", bound="Session")
_NO_FEEDS: Fed = {}


_collecting = threading.Lock()


class ResolvedRun(NamedTuple):
    """A step, the function that rebuilds the fetch structure, and its feeds.

    `fed` has the keys of the feed_dict by tensor.
    """

    step: ExecutableStep
    rebuild: Rebuild
    fed: dict[Tensor, FeedValue]
    arrays: dict[Tensor, np.ndarray]


class DeadlineRun(NamedTuple):
    """A step that runs with deadlines; `gather` gets its feeds from a feed_dict, or None."""

    step: ExecutableStep
    rebuild: Rebuild
    gather: Callable[[Feeds], list[np.ndarray] | None]


class Session:
    """Runs operations of a graph; in `with session:` the session and its graph are the defaults.

    `target` is that of a `hf.train.Server`, by default this rank; a graph may be given in its
    place. `hf.ConfigProto` lists the fields of `config` that have an effect.

    Ranks: each driver has its own session; in collective mode all run the same steps in the same
    order.
    """

    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "session_html")

    def __init__(
        self,
        target: str | Graph | None = None,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
        *,
        context: RankContext | None = None,
    ) -> None:
        if isinstance(target, Graph):
            target, graph = None, target
        if not (graph is None or isinstance(graph, Graph)):
            raise ArgumentError(f"{graph!r} is not a graph", hint="give an hf.Graph")
        self.graph = graph or get_default_graph()
        self.context = context or target_context(target)
        self._config = session_options.check_config(config, self.context)
        self._limit_s = session_options.run_deadline(
            self._config
        )  # of runs without a deadline of their own
        self.store = self.context.new_store()  # variables that live on this rank
        self._arena = SharedArena(self.context)
        self._lanes = ArenaLeases(self.context)
        self._runners: dict[Fetches, Runner] = {}  # fetches -> the last runner
        self._timed: dict[Fetches, DeadlineRun] = {}  # fetches -> the last step with a deadline
        # (fetches, fed tensors) -> their plans
        self._families: dict[Fetches, ShapeSpecializations] = {}
        self._growth = GraphGrowth()
        self._lock = threading.Lock()
        self._closed = False
        self._replicas_lost = False  # replicas have been lost since the session was created
        self.context.followers.add(self)
        self._context_stack: list[contextlib.ExitStack] = []

    def run(
        self,
        fetches: Fetches,
        feed_dict: Feeds | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        deadline: float | None = None,
    ) -> Fetches:
        """Compute `fetches`, a tensor, operation, variable, or lists, tuples and dicts of them.

        A step that is not complete `deadline` seconds after the call is cancelled; later steps can
        run. `hpcflow help deadlines` states the precision, and after which none can.
        `options.timeout_in_ms` sets the deadline, too. With `options.trace_level` set,
        `run_metadata.step_stats` receives the times of the operations on this rank.
        Shapes: feeds as their placeholders allow; results are NumPy arrays owned by the caller,
        None for an operation.
        Errors: FeedError, FetchError, UninitializedError, KernelError, each with op, line, rank;
        DeadlineExceededError.
        """
        if (
            options is not None
            or run_metadata is not None
            or deadline is not None
            or self._limit_s is not None
        ):
            feeds = _NO_FEEDS if feed_dict is None else feed_dict
            limit, traces = session_options.requested_options(
                options, run_metadata, deadline, self._limit_s
            )
            if limit is not None or traces:
                return self._run_within(
                    limit, fetches, feeds, traced=run_metadata if traces else None
                )
        try:
            runner = self._runners[fetches if fetches.__class__ is Tensor else _runner_key(fetches)]
        except (KeyError, TypeError, ValueError):  # the last two: fetches are not hashable
            runner = functools.partial(self._run_first_time, fetches)
        if self._replicas_lost:
            reshard_feeds(feed_dict)
        try:
            return runner(_NO_FEEDS if feed_dict is None else feed_dict)
        except StepInterrupted:
            self._recover()
            return self.run(fetches, feed_dict)

    def plan(self, fetches: Fetches, feed_dict: Feeds | None = None) -> Plan:
        """The plan that `run` would execute for these fetches and feeds; nothing runs."""
        fetched: list[Tensor | Operation] = []
        flatten_fetches(self.graph, fetches, fetched)
        feeds = {self._fed(key): value for key, value in by_tensor(feed_dict or {}).items()}
        arrays = {t: feed_array(t, value) for t, value in feeds.items()}
        return self._plan(fetched, {t: Spec(a.dtype, a.shape) for t, a in arrays.items()})

    def make_callable(
        self,
        fetches: Fetches,
        feed_list: Sequence[FeedValue] | None = None,
        *,
        deadline: float | None = None,
    ) -> Callable[..., Fetches]:
        """A function of the values of `feed_list`, in that order, that computes `fetches`.

        `deadline` applies to each call, as in `run`.
        """
        flatten_fetches(self.graph, fetches, [])
        fed = [self._fed(key) for key in feed_list or ()]
        find = functools.partial(self._run_first_time, fetches, name=object())

        def call(*values: FeedValue) -> Fetches:
            if len(values) != len(fed):
                raise FeedError(
                    f"the callable takes {len(fed)} values, not {len(values)}",
                    rank=self.context.rank,
                    hint=f"give those of {', '.join(t.name for t in fed)}" if fed else None,
                )
            feeds = dict(zip(fed, values, strict=True))
            limit_s = self._limit_s if deadline is None else deadline
            if limit_s is not None:
                name = find.keywords["name"]
                return self._run_within(StepDeadline(limit_s), fetches, feeds, name)
            runner = self._runners.get(find.keywords["name"], find)
            try:
                return runner(feeds)
            except StepInterrupted:
                self._recover()
                return call(*values)

        return call

    def partial_run_setup(
        self, fetches: Fetches, feeds: Sequence[FeedValue] | None = None
    ) -> PartialRun:
        """A step for `partial_run` with all its fetches and feeds, which may be fed in portions."""
        from hpcflow.runtime.step.partial_run import PartialRun

        fetched: list[Tensor | Operation] = []
        flatten_fetches(self.graph, fetches, fetched)
        return PartialRun(fetched, [self._fed(key) for key in feeds or ()])

    def partial_run(
        self, handle: PartialRun, fetches: Fetches, feed_dict: Feeds | None = None
    ) -> Fetches:
        """Compute `fetches` of the step `handle` from all feeds given so far.

        Each operation of the step runs at most once; values that later fetches need are kept. A
        variable is read when the first fetch that needs it is computed.
        Errors: FeedError, FetchError if it was not set up, is repeated, or lacks a feed.
        """
        fetched: list[Tensor | Operation] = []
        rebuild = flatten_fetches(self.graph, fetches, fetched)
        new_values = {self._fed(key): value for key, value in by_tensor(feed_dict or {}).items()}
        handle.feed({t: feed_array(t, value) for t, value in new_values.items()})
        part = handle.begin(fetched)
        values = []
        if part.fetches:
            step = self._step(part.fetches, part.feeds, frozenset(handle.completed_ops))
            values = step.run(*part.feeds.values())
        return rebuild(handle.end(part, values, fetched))

    def share(self, variable: FeedValue) -> Fetches:
        """Export the memory of a variable that is on this rank; see `Variable.dlpack`.

        Errors: FetchError if the variable is not initialized or on another rank.
        """
        state, holders = self.store.states.get(variable.op.name), []
        if state is None:
            raise FetchError(
                f"variable {variable.name!r} has no memory on this rank",
                op=variable.op.name,
                line=variable.op.line,
                rank=self.context.rank,
                hint="run its initializer first; if it lives on another rank, fetch it",
            )

        def take() -> None:
            self.context.executor.finish_tiled()
            holders.append(share_version(state))

        self.context.executor.run_locked(take, lambda: True)
        return holders[0]

    def list_devices(self) -> list[DeviceAttributes]:
        """The devices of all tasks that a step of this rank may use, including servers'."""
        return device_attributes(self.context.cluster)

    def as_default(self) -> contextlib.AbstractContextManager[Session]:
        """Inside, `Tensor.eval` and `Operation.run` use this session; exit does not close it."""
        return default_session.as_default(self)

    def close(self) -> None:
        """Stop being the default session; free variables, buffers, channels.

        Variables on servers and the storage of allreduces stay until the job ends. Steps that other
        threads wait for end with CancelledError.
        Errors: RangeError if a step since the last fetch found a wrong index on a GPU.
        """
        while self._context_stack:
            self._context_stack.pop().close()
        is_first, self._closed = not self._closed, True
        families = list(self._families.values())
        for family in families:
            family.cancel("the session was closed")
        if is_first:
            steps = [step for family in families for step in family.steps]
            release_session(self.context, steps, self.store, self._arena)
        self._runners.clear()
        self._timed.clear()
        self._families.clear()
        if is_first:
            self.context.check_indices()

    def __enter__(self: S) -> S:
        """Make the session and its graph the defaults until it is closed."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.graph.as_default())
        stack.enter_context(self.as_default())
        self._context_stack.append(stack)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except RangeError:
            if not any(error):  # else the first error is the one to tell
                raise

    # -- replica loss recovery

    def _recover(self) -> None:
        """A replica has died in a joint step: recover, so that the step can run again."""
        assert self.context.survival is not None
        self.context.survival.rebuild()

    def replicas_changed(self) -> None:
        """A replica has died: drop all plans, which depend on the number of replicas."""
        self._replicas_lost = True
        self._lanes = ArenaLeases(self.context)
        self._runners.clear()
        self._timed.clear()
        self._families.clear()

    # -- finding the step of a run

    def _run_first_time(self, fetches: Fetches, feed_dict: Feeds, name: Fetches = None) -> Fetches:
        """Run the first time, or with feeds of other shapes than the last time."""
        if has_composites(feed_dict):
            return self.run(fetches, by_tensor(feed_dict))
        step, rebuild, fed, arrays = self._resolve(fetches, feed_dict)
        key = _runner_key(fetches) if name is None else name
        try:
            self._runners[key] = step.runner(
                key, fed, rebuild, functools.partial(self._run_first_time, fetches, name=name)
            )
        except TypeError:
            pass  # dicts and nested lists are looked up by structure each time
        values = rebuild(step.run(*arrays.values()))
        if step.released_after_run:
            self._drop_step(step, key)
            del step
            with _collecting:  # gc.collect() returns at once while another thread collects
                gc.collect()  # a step and its segments are a reference cycle
        return values

    def _drop_step(self, step: ExecutableStep, name: Fetches) -> None:
        """Drop a step that is unlikely to run again; if it does, it is compiled again."""
        with self._lock:
            self._families = {k: f for k, f in self._families.items() if not f.has(step)}
            self._runners = {k: runner for k, runner in self._runners.items() if k != name}

    def _resolve(self, fetches: Fetches, feed_dict: Feeds, traced: bool = False) -> ResolvedRun:
        """The step for fetches and feeds, compiled on first use."""
        fetched: list[Tensor | Operation] = []
        rebuild = flatten_fetches(self.graph, fetches, fetched)
        fed = {self._fed(key): key for key in feed_dict}
        fed = {t: fed[t] for t in sorted(fed, key=lambda t: (t.op.index, t.index))}
        arrays = {t: feed_array(t, feed_dict[key]) for t, key in fed.items()}
        return ResolvedRun(self._step(fetched, arrays, traced=traced), rebuild, fed, arrays)

    def _run_within(
        self,
        deadline: StepDeadline | None,
        fetches: Fetches,
        feed_dict: Feeds,
        name: Fetches = None,
        traced: RunMetadata | None = None,
    ) -> Fetches:
        """Run with a deadline, or traced into `traced`, or both."""
        if self._replicas_lost:
            reshard_feeds(feed_dict)
        try:
            if traced is not None:
                step, rebuild, _, fed_arrays = self._resolve(fetches, by_tensor(feed_dict), True)
                return rebuild(step.run_traced(deadline, traced, *fed_arrays.values()))
            assert deadline is not None
            timed, arrays = self._resolve_with_deadline(fetches, feed_dict, name)
            return timed.rebuild(timed.step.run_within(deadline, *arrays))
        except StepInterrupted:
            self._recover()
            return self._run_within(deadline, fetches, feed_dict, name, traced)

    def _resolve_with_deadline(
        self, fetches: Fetches, feed_dict: Feeds, name: Fetches
    ) -> tuple[DeadlineRun, list[np.ndarray]]:
        """The step of fetches that run with deadlines, and its feeds."""
        name = _runner_key(fetches) if name is None else name
        try:
            timed = self._timed.get(name)
        except TypeError:  # dicts and nested lists
            name, timed = None, None
        arrays = timed.gather(feed_dict) if timed is not None else None
        if timed is None or arrays is None:
            step, rebuild, fed, fed_arrays = self._resolve(fetches, by_tensor(feed_dict))
            arrays = list(fed_arrays.values())
            timed = DeadlineRun(
                step, rebuild, step.gatherer(fed) if step.gathers(fed) else _gather_nothing
            )
            if name is not None:
                self._timed[name] = timed
        return timed, arrays

    def prepare(self, fetches: Fetches) -> None:
        """Plan `fetches` and register the partitions on their ranks; nothing runs.

        Each rank then has the state objects of the variables that it hosts.
        """
        fetched: list[Tensor | Operation] = []
        flatten_fetches(self.graph, fetches, fetched)
        try:
            self._step(fetched, {})
        except StepInterrupted:
            self._recover()
            self.prepare(fetches)

    def _step(
        self,
        fetches: Sequence[Tensor | Operation],
        arrays: Mapping[Tensor, np.ndarray],
        completed_ops: frozenset[Operation] = frozenset(),
        traced: bool = False,
    ) -> ExecutableStep:
        """The step that computes `fetches` from feeds of the shapes of `arrays`.

        It is compiled on first use. Errors: FetchError if the session is closed.
        """
        if self._closed:
            raise FetchError("the session is closed", hint="make a new hf.Session()")
        with self._lock:
            self._growth.watch(self.graph)
            key, family = (tuple(fetches), tuple(arrays), completed_ops), None
            for is_general in (False, True)[: 1 + traced]:
                if (key, is_general) not in self._families:
                    self._families[key, is_general] = ShapeSpecializations(
                        fetches, completed_ops, family
                    )
                family = self._families[key, is_general]
            assert family is not None
            return family.step(arrays, self._make_step)

    def _fed(self, key: FeedValue) -> Tensor:
        tensor = self.graph.get_tensor_by_name(key) if isinstance(key, str) else key
        if hasattr(tensor, "fetched"):  # a variable: feeds all its reads
            tensor = tensor.fetched
        if not isinstance(tensor, Tensor) or tensor.graph is not self.graph:
            raise FeedError(
                f"{key!r} cannot be fed: it is not a tensor of this session's graph",
                rank=self.context.rank,
                hint="feed placeholders or other tensors of the graph",
            )
        return tensor

    def _plan(self, fetches: Sequence[Tensor | Operation], specs: dict[Tensor, Spec]) -> Plan:
        context = self.context
        with self._with_rank_in_errors():
            return make_plan(
                self.graph,
                fetches,
                specs,
                self._cluster,
                context.settings,
                context.replica,
                functools.partial(evaluate_node, context),
            )

    @property
    def _cluster(self) -> Cluster:
        """The cluster for which plans are made, as the session's config modifies it."""
        return session_options.configured_cluster(self._config, self.context.cluster)

    def _look_up_plan(
        self,
        fetches: Sequence[Tensor | Operation],
        specs: dict[Tensor, Spec],
        completed_ops: frozenset[Operation],
    ) -> PlanPreview:
        """A plan that does not run."""
        folds = functools.partial(evaluate_node, self.context)
        with self._with_rank_in_errors():
            return self.context.plans.preview(
                self.graph, fetches, specs, completed_ops, folds, self._cluster
            )

    def _unsaved_reason(self) -> str:
        """The warning that this session does not save what it trains; "" if it does."""
        return unsaved_training_warning.UNMANAGED_TRAINING

    @contextlib.contextmanager
    def _with_rank_in_errors(self) -> Iterator[None]:
        """Set the rank of HpcflowErrors raised inside."""
        try:
            yield
        except HpcflowError as error:
            error.rank = self.context.rank if error.rank is None else error.rank
            raise

    def _make_step(
        self, specializations: ShapeSpecializations, specs: dict[Tensor, Spec]
    ) -> ExecutableStep:
        context, wanted = self.context, specializations.fetches
        if context.on_plan is not None:
            preview = self._look_up_plan(wanted, specs, specializations.completed_ops)
            return PlannedStep(context, preview)
        before = context.plans.costs
        with self._with_rank_in_errors():
            folds, cluster = functools.partial(evaluate_node, context), self._cluster
            plan, own_code = context.plans.find(
                self.graph, wanted, specs, specializations.completed_ops, folds, cluster
            )
        if self._config.log_device_placement and context.is_chief:
            session_options.log_placement(plan)
        if plan.collectives and context.group is not None and specializations.sums is None:
            check_agreement(context, self.graph, wanted, self.store.seed)
            specializations.agree_on(CollectiveBuffers(context.group, context.survival))
        if plan.round is not None:
            repeat_on_server(context, plan.round, plan.updates)
        if plan.messages and context.is_chief:
            log_server_traffic(context, self.graph, plan)
        trace = StepTrace(context) if specializations.untraced_plans else None
        observers = () if trace is None else (trace,)
        compiled = context.compile(
            own_code, self.store, fetch_label(wanted), trains=plan_trains(plan), observers=observers
        )
        if compiled.trains:
            context.plans.announce(
                plan, own_code, context.plans.costs.difference(before), self.graph
            )
            if updates_from_variables(wanted):
                unsaved_training_warning.warn_unsaved_training(context, self._unsaved_reason())
        arenas = self._arena, self._lanes
        step = make_step(
            context, plan, compiled, wanted, specializations.number, specializations.sums, *arenas
        )
        step.trace = trace
        return step


class InteractiveSession(Session):
    """A session that is the thread's default, with its graph, until it is closed."""

    def __init__(
        self,
        target: str | Graph | None = None,
        graph: Graph | None = None,
        config: ConfigProto | None = None,
    ) -> None:
        super().__init__(target, graph, config)
        self.__enter__()


def _gather_nothing(feed_dict: Feeds) -> None:
    """The `gather` of a step without one: its feeds are looked up in each run."""


def _runner_key(fetches: Fetches) -> Fetches:
    """The key of the runner of these fetches; with their type, as equal tuples may differ in it."""
    kind = fetches.__class__
    if kind is list:
        return tuple(fetches)
    return (kind, fetches) if isinstance(fetches, tuple) else fetches


def reshard_feeds(feeds: FeedValue) -> None:
    """Shard a batch of `hf.data` again if replicas have been lost since it was sharded."""
    if hasattr(feeds, "renew"):
        feeds.renew()
