"""The plan cache: plans are computed, or loaded from files of another rank or an earlier run.

A cached plan is the result of all passes for a program, including the code of this rank's
partition. Its key is a digest of everything that it depends on
(`hpcflow.plan.serialization.plan_cache_key`). One rank of a node computes a missing plan, while the
other ranks that need it wait for its file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from hpcflow.codegen import kernel_cache
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import are_own, versions
from hpcflow.lowering.kernel_metadata import LoweredPartition
from hpcflow.plan.distribution.variable_placement import place_variables
from hpcflow.plan.frontend.constant_folding import Evaluate
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Cluster, Partition, Plan, Program
from hpcflow.plan.pass_list import plan_program, pruned
from hpcflow.plan.pass_row import Watch
from hpcflow.plan.serialization import plan_cache_format
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.plan.serialization.plan_cache_key import (
    LEAST_NODES,
    plan_cache_key,
    planning_settings,
    source_fingerprint,
)
from hpcflow.plan.verification import suspicious_graph_warnings
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.platform import artifact_cache, cpu_threads
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.runtime.device import device
from hpcflow.runtime.job.rank_role import RankRole
from hpcflow.runtime.step.lowered_partition import lower_partition
from hpcflow.settings import Settings

if TYPE_CHECKING:
    from hpcflow.plan.listing.pass_listing import PassRecord
    from hpcflow.platform.measured_step_costs import StepFeatures

PlanT = TypeVar("PlanT")


@dataclasses.dataclass(frozen=True)
class PlanningCosts:
    """The number of plans and kernels that were computed and loaded, and their times in seconds."""

    plans_made: int = 0
    plans_loaded: int = 0
    plan_seconds: float = 0.0
    kernels_compiled: int = 0
    kernels_loaded: int = 0
    kernel_seconds: float = 0.0

    def difference(self, before: PlanningCosts) -> PlanningCosts:
        """The difference to `before`."""
        current, previous = dataclasses.astuple(self), dataclasses.astuple(before)
        return PlanningCosts(*(a - b for a, b in zip(current, previous, strict=True)))

    def __str__(self) -> str:
        how = "loaded" if self.plans_loaded else "made"
        text = f"the plan was {how} in {format_seconds(self.plan_seconds)}"
        counts = {"compiled": self.kernels_compiled, "loaded": self.kernels_loaded}
        kernels = " and ".join(f"{n} {origin}" for origin, n in counts.items() if n)
        if kernels:
            text += f", its kernels ({kernels}) in {format_seconds(self.kernel_seconds)}"
        return text


@dataclasses.dataclass(frozen=True)
class PlanOutlook:
    """What a run would do for its plan: load the file `cached_file`, or compute it in `seconds`."""

    seconds: float  # time to compute it here, the driver's code included
    folder: str | None  # the cache folder
    keeps: bool  # whether this plan can be cached
    cached_file: artifact_cache.CachedFile | None
    threads: int  # threads of each rank that the cached plan is for
    passes: Callable[[], PassRecord]  # makes the plan and the code of all tasks again, recorded


class PlanPreview(NamedTuple):
    """A plan that does not run, and how it was made.

    `outlook()` looks it up in the cache. `replanned(settings)` is the plan of the same step, with
    the same graph, feeds and cluster, by other settings. `version` is that of `graph` when the plan
    was made.
    """

    plan: Plan
    outlook: Callable[[], PlanOutlook]
    replanned: Callable[[Settings], Plan]
    graph: Graph
    version: int


class PlanCache:
    """The source of the plans of a rank: computation or the cache."""

    def __init__(self, context: RankRole) -> None:
        self.context = context
        # of the chief, once
        self.on_training_plan: Callable[[Plan, Callable[[], StepFeatures]], None] | None = None
        self._computed, self._loaded, self._seconds = 0, 0, 0.0
        self._is_logged = False
        self.digest = ""  # of the first training plan, on a chief with a run directory
        self.task_seconds: list[tuple[float, ...]] = []  # of the plans that train
        path, devices = context.settings.plan_cache, context.devices.values()
        ours = all(type(dev).__module__ == device.__name__ for dev in devices)
        self.folder = None  # None also for user-defined devices, or without generated kernels
        if ours and not absent():
            self.folder = artifact_cache.own_cache(artifact_cache.PLANS, path)

    @property
    def costs(self) -> PlanningCosts:
        """The total cost of plans and kernels so far."""
        kernels = kernel_cache.compiled, kernel_cache.loaded, kernel_cache.seconds
        return PlanningCosts(self._computed, self._loaded, self._seconds, *kernels)

    def announce(
        self, plan: Plan, code: LoweredPartition, costs: PlanningCosts, graph: Graph
    ) -> None:
        """Log once in a job the cost of the first training plan, and warn of its losses.

        `on_training_plan` is called with the plan, and a function that returns its `StepFeatures`.
        """
        self.task_seconds.append(plan.task_seconds)
        if not self.context.is_chief:
            return
        for line in plan.warnings:
            say_once(line, logging.WARNING)
        if self._is_logged:
            return
        self._is_logged = True
        if self.on_training_plan is not None:
            # only a rank that writes a page needs it
            from hpcflow.plan.cost.step_features import step_features

            self.on_training_plan(plan, lambda: step_features(plan, code))
        if self.context.settings.run_dir:
            self.digest = plan_digest(plan)
        logger.info("first training step: %s", costs)
        if plan.forecast:
            logger.info("%s", plan.forecast)
        for line in suspicious_graph_warnings.suspicious_graph_warnings(graph):
            logger.warning(line)
        if self.context.cluster.joins and self.context.cluster.replicas > 1:
            for line in suspicious_graph_warnings.summed_loss_warnings(
                graph, self.context.cluster.replicas
            ):
                logger.warning(line)

    def find(
        self,
        graph: Graph,
        fetches: Sequence[Tensor | Operation],
        specs: Mapping[Tensor, Spec],
        completed_ops: Container[Operation],
        evaluate: Evaluate,
        cluster: Cluster,
    ) -> tuple[Plan, LoweredPartition]:
        """The plan of `fetches` for feeds of these specs, and the code of the driver's partition.

        `cluster` is the context's, as changed by the session's config.

        Errors: those of `make_plan`.
        """
        context, start = self.context, time.perf_counter()
        program = pruned(graph, fetches, specs, completed_ops)

        def make() -> tuple[Plan, LoweredPartition]:
            plan = self._plan(program, graph, evaluate, cluster)
            for each in (plan, plan.round):
                if each is not None:
                    verify_plan(each)
            own_code = lower_partition(plan.parts[plan.driver], context.devices, context.settings)
            return dataclasses.replace(
                plan, parts=plan.parts | {plan.driver: own_code.part}
            ), own_code

        found = self._load_or_make(
            self._name(program, graph, cluster),
            make,
            lambda made: plan_cache_format.encode_plan(*made),
            lambda data: plan_cache_format.decode_plan(data, cluster),
            start,
        )
        graph.root.note_planned()
        return found

    def preview(
        self,
        graph: Graph,
        fetches: Sequence[Tensor | Operation],
        specs: Mapping[Tensor, Spec],
        completed_ops: Container[Operation],
        evaluate: Evaluate,
        cluster: Cluster,
    ) -> PlanPreview:
        """The plan that `find` would return, computed anew and not verified."""
        start = time.perf_counter()
        program = pruned(graph, fetches, specs, completed_ops)
        plan = self._plan(program, graph, evaluate, cluster)
        seconds = time.perf_counter() - start

        def outlook() -> PlanOutlook:
            start = time.perf_counter()
            lower_partition(plan.parts[plan.driver], self.context.devices, self.context.settings)
            spent = seconds + time.perf_counter() - start
            folder, cached_file, keeps = self.folder, None, False
            for count in cpu_threads.thread_shares(self.context.size):
                times = cluster.times and dataclasses.replace(cluster.times, threads=count)
                like = dataclasses.replace(cluster, times=times)
                name = self._name(program, graph, like, count)
                if folder is None or name is None:
                    break
                keeps, cached_file = True, folder.find(name)
                if cached_file is not None:
                    break
            place = str(folder.directory) if folder else None
            return PlanOutlook(spent, place, keeps, cached_file, count, recorded)

        def recorded() -> PassRecord:
            from hpcflow.plan.listing.pass_listing import PassRecord  # ranks record no passes

            record = PassRecord()
            program = pruned(graph, fetches, specs, completed_ops, record)
            plan = self._plan(program, graph, evaluate, cluster, watch=record)
            environment = self.context.devices, self.context.settings
            for begin, those in (("", plan), ("update, ", plan.round)):
                for part in those.parts.values() if those is not None else ():
                    subject = f"{begin}{part.task}"
                    lower_partition(part, *environment, watch=record, subject=subject)
            return record

        def replanned(settings: Settings) -> Plan:
            program = pruned(graph, fetches, specs, completed_ops)
            return self._plan(program, graph, evaluate, cluster, settings)

        return PlanPreview(plan, outlook, replanned, graph, graph.version)

    def _plan(
        self,
        program: Program,
        graph: Graph,
        evaluate: Evaluate,
        cluster: Cluster,
        settings: Settings | None = None,
        watch: Watch | None = None,
    ) -> Plan:
        context = self.context
        arguments = cluster, settings or context.settings, context.replica, evaluate, watch
        return plan_program(program, graph, *arguments)

    def code(self, part: Partition, data: bytes) -> LoweredPartition:
        """The code of a partition that a driver has sent as `data`."""
        context, name = self.context, None
        if self._is_cacheable(part) and len(part.nodes) >= LEAST_NODES:
            facts = repr(
                [
                    planning_settings(context.settings),
                    self._key_facts,
                    cpu_threads.chosen_threads().threads,
                ]
            )
            name = hashlib.sha256(facts.encode() + data).hexdigest()
        return self._load_or_make(
            name,
            lambda: lower_partition(part, context.devices, context.settings),
            plan_cache_format.encode_lowered,
            plan_cache_format.decode_lowered,
            time.perf_counter(),
        )

    def _name(self, program: Program, graph: Graph, cluster: Cluster, count: int = 0) -> str | None:
        """The cache key of a program's plan for ranks of `count` threads; None if it is not cached.

        By default `count` is the number of threads of this rank.
        """
        if not self._is_cacheable(program):
            return None
        settings = self.context.settings
        placements = place_variables(graph, cluster, settings)
        replica = self.context.replica
        count = count or cpu_threads.chosen_threads().threads
        facts: list[object] = []
        if settings.automatic:
            # only a rank with this setting needs it
            from hpcflow.plan.distribution.automatic_placement import automatic_facts

            facts = automatic_facts(graph, cluster, settings, placements)
        if graph.root.has_requirements and cluster.lead.startswith("/job:worker"):
            from hpcflow.plan.distribution.task_requirements import required_tasks

            required = required_tasks(graph, cluster, settings, placements)
            facts = [*facts, sorted(required.allowed.items()), sorted(required.needs.items())]
        arguments = cluster, settings, placements, replica
        return plan_cache_key(program, graph, *arguments, lambda: [*self._key_facts, count, *facts])

    def _is_cacheable(self, program: Program | Partition) -> bool:
        """Whether there is a cache folder and no operation has a user-defined kernel."""
        nodes = chain(program.nodes.values(), nested_nodes(program.nodes))
        kinds = [device.kind for device in self.context.devices.values()]
        return self.folder is not None and not are_own((node.type for node in nodes), kinds)

    def _load_or_make(
        self,
        name: str | None,
        make: Callable[[], PlanT],
        write: Callable[[PlanT], bytes],
        read: Callable[[bytes], PlanT],
        start: float,
    ) -> PlanT:
        """The object of key `name`: loaded, or computed and cached."""
        cached = self._read(name, read)
        if cached is None and name is not None and self.folder is not None:
            with self.folder.turn(f"plans-{name[0]}"):
                cached = self._read(name, read)
                if cached is None:
                    cached = self._store(name, make(), write)
        if cached is None:
            cached = make()
            self._computed += 1
        self._seconds += time.perf_counter() - start
        return cached

    def _read(self, name: str | None, read: Callable[[bytes], PlanT]) -> PlanT | None:
        if name is None or self.folder is None:
            return None
        data = self.folder.read(name)
        if data is None:
            return None
        try:
            decoded = read(data)
        except Exception as error:  # on any error of a damaged file the plan is computed anew
            why = f"{type(error).__name__}: {error}"
            path = self.folder.file(name)
            say_once(f"{path} cannot be used and is made anew ({why})", logging.WARNING)
            return None
        self._loaded += 1
        return decoded

    def _store(self, name: str, plan: PlanT, write: Callable[[PlanT], bytes]) -> PlanT:
        """Write `plan` to the cache if all of it is plain data."""
        assert self.folder is not None
        self._computed += 1
        with contextlib.suppress(TypeError):
            self.folder.write(name, write(plan))
        return plan

    @functools.cached_property
    def _key_facts(self) -> list[object]:
        """What plans depend on besides the program and the number of threads.

        These are devices, libraries and hpcflow's sources.
        """
        devices = [
            (name, type(device).__qualname__) for name, device in self.context.devices.items()
        ]
        wish = next(iter(self.context.devices.values())).preferences
        libraries = [np.__version__, *versions(wish)]
        return [source_fingerprint(), libraries, devices, wish]
