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
from typing import TypeVar

import numpy as np

from hpcflow.codegen import kernel_cache
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import are_own, versions
from hpcflow.lowering.kernel_metadata import Generated
from hpcflow.plan.distribution.variable_placement import assign_variables
from hpcflow.plan.frontend.constant_folding import Evaluate
from hpcflow.plan.ir.control_flow_nodes import within
from hpcflow.plan.ir.program import Cluster, Part, Plan, Program
from hpcflow.plan.listing.pass_listing import PassRecord
from hpcflow.plan.pass_list import plan_of, pruned
from hpcflow.plan.pass_row import Watch
from hpcflow.plan.serialization import plan_cache_format
from hpcflow.plan.serialization.plan_cache_key import LEAST_NODES, chosen, key, sources
from hpcflow.plan.verification import summed_loss_warning
from hpcflow.plan.verification.plan_verifier import verify
from hpcflow.platform import artifact_cache, cpu_threads
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.runtime.device import device
from hpcflow.runtime.job.rank_role import Rank
from hpcflow.runtime.step.lowered_partition import generated

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Spent:
    """The number of plans and kernels that were computed and loaded, and their times in seconds."""

    plans_made: int = 0
    plans_loaded: int = 0
    plan_seconds: float = 0.0
    kernels_compiled: int = 0
    kernels_loaded: int = 0
    kernel_seconds: float = 0.0

    def since(self, before: Spent) -> Spent:
        """The difference to `before`."""
        mine, its = dataclasses.astuple(self), dataclasses.astuple(before)
        return Spent(*(a - b for a, b in zip(mine, its, strict=True)))

    def __str__(self) -> str:
        how = "loaded" if self.plans_loaded else "made"
        text = f"the plan was {how} in {1e3 * self.plan_seconds:.0f} ms"
        counts = {"compiled": self.kernels_compiled, "loaded": self.kernels_loaded}
        kernels = " and ".join(f"{n} {what}" for what, n in counts.items() if n)
        if kernels:
            text += f", its kernels ({kernels}) in {1e3 * self.kernel_seconds:.0f} ms"
        return text


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a run would do for its plan: load the file `kept`, or compute it in `seconds`."""

    seconds: float  # time to compute it here, the driver's code included
    folder: str | None  # the cache folder
    keeps: bool  # whether this plan can be cached
    kept: artifact_cache.Kept | None
    threads: int  # threads of each rank that the cached plan is for
    passes: Callable[[], PassRecord]  # makes the plan and the code of all tasks again, recorded


class Plans:
    """The source of the plans of a rank: computation or the cache."""

    def __init__(self, context: Rank) -> None:
        self.context = context
        self._made, self._loaded, self._seconds = 0, 0, 0.0
        self._told = False
        path, devices = context.settings.plan_cache, context.devices.values()
        ours = all(type(one).__module__ == device.__name__ for one in devices)
        self.folder = None  # None also for user-defined devices, or without generated kernels
        if ours and not absent():
            self.folder = artifact_cache.own(artifact_cache.PLANS, path)

    @property
    def spent(self) -> Spent:
        """The total cost of plans and kernels so far."""
        kernels = kernel_cache.compiled, kernel_cache.loaded, kernel_cache.seconds
        return Spent(self._made, self._loaded, self._seconds, *kernels)

    def tell(self, spent: Spent, graph: Graph) -> None:
        """Log once in a job the cost of the first training plan, and warn of summed losses."""
        if not self.context.is_chief or self._told:
            return
        self._told = True
        logger.info("first training step: %s", spent)
        if self.context.cluster.joins and self.context.cluster.replicas > 1:
            for line in summed_loss_warning.told(graph, self.context.cluster.replicas):
                logger.warning(line)

    def find(
        self,
        graph: Graph,
        wanted: Sequence[Tensor | Operation],
        specs: Mapping[Tensor, Spec],
        done: Container[Operation],
        evaluate: Evaluate,
        cluster: Cluster,
    ) -> tuple[Plan, Generated]:
        """The plan of `wanted` for feeds of these specs, and the code of the driver's partition.

        `cluster` is the context's, as changed by the session's config.

        Errors: those of `make_plan`.
        """
        context, start = self.context, time.perf_counter()
        program = pruned(graph, wanted, specs, done)

        def make() -> tuple[Plan, Generated]:
            plan = self._plan(program, graph, evaluate, cluster)
            for each in (plan, plan.round):
                if each is not None:
                    verify(each)
            mine = generated(plan.parts[plan.driver], context.devices, context.settings)
            return dataclasses.replace(plan, parts=plan.parts | {plan.driver: mine.part}), mine

        return self._found(
            self._name(program, graph, cluster),
            make,
            lambda made: plan_cache_format.to_bytes(*made),
            lambda data: plan_cache_format.from_bytes(data, cluster),
            start,
        )

    def look(
        self,
        graph: Graph,
        wanted: Sequence[Tensor | Operation],
        specs: Mapping[Tensor, Spec],
        done: Container[Operation],
        evaluate: Evaluate,
        cluster: Cluster,
    ) -> tuple[Plan, Callable[[], Outlook]]:
        """The plan that `find` would return, computed anew and not verified, and its outlook."""
        start = time.perf_counter()
        program = pruned(graph, wanted, specs, done)
        plan = self._plan(program, graph, evaluate, cluster)
        seconds = time.perf_counter() - start

        def outlook() -> Outlook:
            start = time.perf_counter()
            generated(plan.parts[plan.driver], self.context.devices, self.context.settings)
            spent = seconds + time.perf_counter() - start
            folder, found, keeps = self.folder, None, False
            for count in cpu_threads.shares(self.context.size):
                name = self._name(program, graph, cluster, count)
                if folder is None or name is None:
                    break
                keeps, found = True, folder.find(name)
                if found is not None:
                    break
            place = str(folder.place) if folder else None
            return Outlook(spent, place, keeps, found, count, recorded)

        def recorded() -> PassRecord:
            record = PassRecord()
            program = pruned(graph, wanted, specs, done, record)
            plan = self._plan(program, graph, evaluate, cluster, record)
            parts = [("", part) for part in plan.parts.values()]
            if plan.round is not None:
                parts += [("update, ", part) for part in plan.round.parts.values()]
            given = self.context.devices, self.context.settings
            for begin, part in parts:
                generated(part, *given, watch=record, what=f"{begin}{part.task}")
            return record

        return plan, outlook

    def _plan(
        self,
        program: Program,
        graph: Graph,
        evaluate: Evaluate,
        cluster: Cluster,
        watch: Watch | None = None,
    ) -> Plan:
        context = self.context
        given = cluster, context.settings, context.replica, evaluate, watch
        return plan_of(program, graph, *given)

    def code(self, part: Part, data: bytes) -> Generated:
        """The code of a partition that a driver has sent as `data`."""
        context, name = self.context, None
        if self._keeps(part) and len(part.nodes) >= LEAST_NODES:
            facts = repr([chosen(context.settings), self._about, cpu_threads.chosen().threads])
            name = hashlib.sha256(facts.encode() + data).hexdigest()
        return self._found(
            name,
            lambda: generated(part, context.devices, context.settings),
            plan_cache_format.code_to_bytes,
            plan_cache_format.code_from_bytes,
            time.perf_counter(),
        )

    def _name(self, program: Program, graph: Graph, cluster: Cluster, count: int = 0) -> str | None:
        """The cache key of a program's plan for ranks of `count` threads; None if it is not cached.

        By default `count` is the number of threads of this rank.
        """
        if not self._keeps(program):
            return None
        settings = self.context.settings
        homes = assign_variables(graph, cluster, settings)
        replica = self.context.replica
        count = count or cpu_threads.chosen().threads
        given = cluster, settings, homes, replica
        return key(program, graph, *given, lambda: [*self._about, count])

    def _keeps(self, program: Program | Part) -> bool:
        """Whether there is a cache folder and no operation has a user-defined kernel."""
        nodes = chain(program.nodes.values(), within(program.nodes))
        kinds = [device.kind for device in self.context.devices.values()]
        return self.folder is not None and not are_own((node.type for node in nodes), kinds)

    def _found(
        self,
        name: str | None,
        make: Callable[[], Made],
        write: Callable[[Made], bytes],
        read: Callable[[bytes], Made],
        start: float,
    ) -> Made:
        """The object of key `name`: loaded, or computed and cached."""
        found = self._read(name, read)
        if found is None and name is not None and self.folder is not None:
            with self.folder.turn(f"plans-{name[0]}"):
                found = self._read(name, read)
                if found is None:
                    found = self._kept(name, make(), write)
        if found is None:
            found = make()
            self._made += 1
        self._seconds += time.perf_counter() - start
        return found

    def _read(self, name: str | None, read: Callable[[bytes], Made]) -> Made | None:
        if name is None or self.folder is None:
            return None
        data = self.folder.read(name)
        if data is None:
            return None
        try:
            found = read(data)
        except Exception as error:  # on any error of a damaged file the plan is computed anew
            why = f"{type(error).__name__}: {error}"
            where = self.folder.file(name)
            say_once(f"{where} cannot be used and is made anew ({why})", logging.WARNING)
            return None
        self._loaded += 1
        return found

    def _kept(self, name: str, made: Made, write: Callable[[Made], bytes]) -> Made:
        """Write `made` to the cache if all of it is plain data."""
        assert self.folder is not None
        self._made += 1
        with contextlib.suppress(TypeError):
            self.folder.write(name, write(made))
        return made

    @functools.cached_property
    def _about(self) -> list[object]:
        """What plans depend on besides the program and the number of threads.

        These are devices, libraries and hpcflow's sources.
        """
        devices = [(name, type(one).__qualname__) for name, one in self.context.devices.items()]
        wish = next(iter(self.context.devices.values())).wish
        libraries = [np.__version__, *versions(wish)]
        return [sources(), libraries, devices, wish]
