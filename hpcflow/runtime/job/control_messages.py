"""Control messages between ranks: register a plan, run or cancel a step, call a service."""

from __future__ import annotations

import collections
import functools
import json
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import MALFORMED, CommError, DeathError, HpcflowError
from hpcflow.plan.ir.program import Partition
from hpcflow.runtime.device.shared_arena import ArenaLeases
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.failure import error_serialization
from hpcflow.runtime.failure.collective_guard import CollectiveGuard
from hpcflow.runtime.failure.data_progress import DataProgress
from hpcflow.runtime.failure.replica_loss_recovery import ReplicaLossRecovery
from hpcflow.runtime.job.message_headers import (
    BODY_TAG,
    HEADER_TAG,
    HEADERS,
    REPLY_TAG,
    WORDS,
    BatchTrained,
    CallService,
    CancelStep,
    DeclareVariables,
    DriverLeaves,
    EndRounds,
    ForgetPlan,
    Header,
    HeaderKind,
    PostRequest,
    ProgramEnds,
    RecoveryVerdict,
    RegisterPlan,
    ReplicaPosition,
    RequestLoad,
    RequestReport,
    SendNumber,
    ServerLoad,
    SessionClosed,
    StepFailed,
    StopRequest,
    WaitsAtBarrier,
    WorkerPace,
    decode,
)
from hpcflow.runtime.job.service_registry import Reply
from hpcflow.runtime.job.stop_signal import StopSignal
from hpcflow.runtime.profile.variable_traffic_counters import VariableTrafficCounters
from hpcflow.runtime.state.variable_declarations import DriverDeclarations, ServerDeclarations
from hpcflow.runtime.step.remotely_driven_plan import RemotelyDrivenPlan
from hpcflow.runtime.step.server_driven_plan import ServerDrivenPlan
from hpcflow.runtime.step.step_channels import CollectiveBuffers, MissingValueError, PartitionPeers
from hpcflow.runtime.step.step_instance import CompiledPartition, StepInstance

Queue = collections.deque[Json]


class DrivenPlan(Protocol):
    """A plan that this rank drives."""

    @property
    def in_flight(self) -> bool:
        """True while a step of the plan is in flight."""
        ...

    def cancel(self, reason: str) -> None:
        """End the steps in flight with a CancelledError, and begin no more."""
        ...

    def failed_elsewhere(self, slot: int, step: int, error: HpcflowError) -> None:
        """Step `step` of instance `slot` failed on another rank."""
        ...


MOST_BYTES = 1 << 40  # limit of a body
HEADERS_EACH = 8  # limit of headers handled in one `listen`, per rank of the job


STEP, ROUND = (
    int(HeaderKind.STEP),
    int(HeaderKind.ROUND),
)  # each step has one: decoded without a dataclass
H = TypeVar("H", bound=Header)
Act = Callable[[int, H, bytes], object]  # handles a header: source, header, body
Pace = tuple[int, WorkerPace]  # the rank, and what it sent


class MessageHost(Protocol):
    """What control messages act on: the rank that receives them."""

    @property
    def stop(self) -> StopSignal:
        """Its stop request."""
        ...

    @property
    def counts(self) -> VariableTrafficCounters:
        """The traffic of variables."""
        ...

    @property
    def group(self) -> Communicator | None:
        """The communicator of the allreduces."""
        ...

    @property
    def survival(self) -> ReplicaLossRecovery | None:
        """The replica loss recovery."""
        ...

    def compile_part(
        self, data: bytes, driver: int, session: int, **about: Any
    ) -> CompiledPartition:
        """Make a partition ready that a session of rank `driver` has sent."""
        ...

    def report(self) -> Json:
        """The report of this rank."""
        ...

    def answer(self, request: Json, reply: Reply) -> None:
        """Call a service."""
        ...

    def close_store(self, driver: int, number: int) -> None:
        """A driver has closed its session of this number."""
        ...

    def lose(self, rank: int) -> None:
        """`rank` has died. Errors: DeathError if the job cannot continue."""
        ...


class MessageDispatcher:
    """Receives and sends the control messages of this rank, `host`."""

    def __init__(self, executor: Executor, host: MessageHost, lanes: ArenaLeases) -> None:
        assert executor.comm is not None
        self.executor, self.comm, self._host, self.lanes = executor, executor.comm, host, lanes
        self.notes: list[int] = []  # numbers sent by other drivers
        # training session -> received messages
        self.paces: dict[int, collections.deque[Pace]] = collections.defaultdict(collections.deque)
        # training session -> requests of the service "shares", sent by the chief
        self.shares: dict[int, Queue] = collections.defaultdict(collections.deque)
        self._training_sessions = 0  # that exchange paces
        self.server_loads: dict[int, ServerLoad] = {}  # rank -> the last that it has sent
        self.rank_speeds: dict[int, float] = {}  # with placement=auto, as drivers have measured
        self.served: dict[tuple[int, int], RemotelyDrivenPlan] = {}
        # plans that this rank drives, by number: FAILED messages are delivered to them
        self.driven: weakref.WeakValueDictionary[int, DrivenPlan] = weakref.WeakValueDictionary()
        # unregistered plan -> slot, step
        self.early_steps: dict[tuple[int, int], tuple[int, int]] = {}
        self.repeated: list[ServerDrivenPlan] = []  # server-driven plans that this rank drives
        self.following: set[tuple[int, int]] = set()  # those that another server drives
        self.compiled: weakref.WeakValueDictionary[tuple[int, bytes], CompiledPartition] = (
            weakref.WeakValueDictionary()
        )
        self.sums: dict[tuple[int, int], CollectiveBuffers] = {}
        self.declared, self.hosted = DriverDeclarations(), ServerDeclarations()
        self.progress = DataProgress()  # data progress of the workers, on the first server
        self.ended: set[int] = set()  # drivers that have left or died
        self.lost: tuple[int, ...] = ()  # the ranks that have died, as far as handled here
        self.collective_guard = CollectiveGuard(self.comm.rank)
        self._handlers: dict[int, Act[Any]] = {}  # by kind
        self._handle_all()
        self._header = np.zeros(WORDS, np.int64)
        self._channel = self.comm.recv_channel(self._header, Communicator.ANY, HEADER_TAG)
        self._channel.start()
        self._max_body_bytes = HEADERS_EACH * self.comm.size
        executor.listen_to(self.handle_messages, self.collective_guard.begin_collective)

    def _on(self, header: type[H], act: Act[H]) -> None:
        """Handle the headers of one kind by `act`."""
        self._handlers[header.kind] = act

    def _handle_all(self) -> None:
        """Set the handlers of all kinds except STEP and ROUND."""
        host = self._host
        self._on(RegisterPlan, lambda source, it, body: self._register(source, it.plan, body))
        self._on(RequestReport, lambda source, it, body: self._reply(source, host.report()))
        self._on(DriverLeaves, lambda source, it, body: self.ended.add(source))
        self._on(
            ProgramEnds,
            lambda source, it, body: self.collective_guard.replica_closes(source, it.collectives),
        )
        self._on(StopRequest, lambda source, it, body: host.stop.receive_request(it.number))
        self._on(CallService, self._call)
        self._on(SendNumber, lambda source, it, body: self.notes.append(it.number))
        self._on(WaitsAtBarrier, self._waits_at_barrier)
        self._on(StepFailed, self._failed)
        self._on(CancelStep, self._cancel)
        self._on(WorkerPace, lambda source, it, body: self.paces[it.session].append((source, it)))
        self._on(RequestLoad, self._send_load)
        self._on(ServerLoad, self._receive_load)
        self._on(DeclareVariables, lambda source, it, body: self.hosted.add(source, body))
        self._on(EndRounds, lambda source, it, body: self.following.discard((source, it.plan)))
        self._on(PostRequest, lambda source, it, body: self._answer(body, _discard_answer))
        self._on(ReplicaPosition, self._replica_position)
        self._on(RecoveryVerdict, self._recovery_verdict)
        self._on(BatchTrained, lambda source, it, body: self.progress.record_batch(source, it))
        self._on(ForgetPlan, self._forget)
        self._on(SessionClosed, self._session_closed)

    def handle_messages(self) -> bool:
        """Handle the headers that have arrived, up to a limit; True if there was one.

        Headers of one rank are handled in the order in which it sent them.
        """
        stop = self._host.stop
        if stop.forward_targets:
            stop.pass_on(lambda rank, number: self.send(rank, StopRequest(number)))
        channel, handled = self._channel, 0
        while handled < self._max_body_bytes:
            came = channel.test()
            if self.comm.lost != self.lost:
                self._handle_deaths()
            if not came:
                break
            self._handle_received(channel.source)
            handled += 1
        return handled > 0

    def _handle_received(self, source: int) -> None:
        """Handle the received header; start receiving the next one.

        Errors: CommError for an unknown kind or a malformed message.
        """
        words = self._header.tolist()
        kind, plan, slot, step, size, *_ = words
        try:
            body = self._body(source, size) if size else b""
            self._channel.start()
            if kind == STEP:
                self._step(source, plan, slot, step)
            elif kind == ROUND:
                self._round(source, plan, slot, step)
            elif kind in HEADERS:
                self._handlers[kind](source, decode(words), body)
            else:
                raise CommError(f"rank {source} sent a header of unknown kind {kind}")
        except HpcflowError:
            raise
        except MALFORMED as error:
            raise CommError(
                f"a message of kind {kind} from rank {source} failed here: {error!r}",
                rank=self.comm.rank,
                hint="install the same hpcflow on every rank; see the traceback above",
            ) from error

    def _step(self, driver: int, plan: int, slot: int, step: int) -> None:
        """STEP: schedule a step of a registered plan. Errors: CommError if it is not registered."""
        served = self.served.get((driver, plan))
        if served is None:
            raise CommError(f"rank {driver} runs plan {plan}, which it never registered")
        self.executor.inbox.append(functools.partial(served.step, self.executor, slot, step))

    def _round(self, driver: int, plan: int, slot: int, step: int) -> None:
        """ROUND: begin a step of a server-driven plan, which may not be registered here yet."""
        if (driver, plan) in self.served:
            self._step(driver, plan, slot, step)
        else:
            self.early_steps[driver, plan] = (slot, step)

    def _cancel(self, source: int, message: CancelStep, body: bytes) -> None:
        served = self.served[source, message.plan]
        cancel = functools.partial(served.cancel, self.executor, message.instance, message.step)
        self.executor.inbox.append(cancel)

    def _session_closed(self, source: int, message: SessionClosed, body: bytes) -> None:
        self.executor.inbox.append(
            functools.partial(self._host.close_store, source, message.session)
        )

    def _forget(self, source: int, message: ForgetPlan, body: bytes) -> None:
        served = self.served.pop((source, message.plan), None)
        if served is not None:
            self.executor.inbox.append(served.forget)

    def _failed(self, source: int, message: StepFailed, body: bytes) -> None:
        driven = self.driven.get(message.plan)
        if driven is not None:
            driven.failed_elsewhere(
                message.instance, message.step, error_serialization.decode_error(body)
            )

    def _call(self, source: int, message: CallService, body: bytes) -> None:
        self._answer(body, functools.partial(self._reply, source))

    def _answer(self, body: bytes, reply: Reply) -> None:
        # deferred by the inbox: a segment that polls may call this with state half updated
        self.executor.inbox.append(functools.partial(self._host.answer, json.loads(body), reply))

    def _send_load(self, source: int, message: RequestLoad, body: bytes) -> None:
        now = time.perf_counter()
        idle = self.executor.idle_seconds(now)
        self.send(source, ServerLoad(int(now * 1e9), int(idle * 1e9)))

    def _receive_load(self, source: int, message: ServerLoad, body: bytes) -> None:
        self.server_loads[source] = message

    def _waits_at_barrier(self, source: int, message: WaitsAtBarrier, body: bytes) -> None:
        self.collective_guard.replica_at_barrier(
            source, body.decode(), message.barriers, message.collectives
        )

    def _replica_position(self, source: int, message: ReplicaPosition, body: bytes) -> None:
        if self._host.survival is not None:
            self._host.survival.receive_position(source, message)

    def _recovery_verdict(self, source: int, message: RecoveryVerdict, body: bytes) -> None:
        if self._host.survival is not None:
            self._host.survival.apply_verdict(message)

    def _handle_deaths(self) -> None:
        """Handle the ranks that have died: abandon the plans that they drove here."""
        gone = [rank for rank in self.comm.lost if rank not in self.lost]
        self.lost = self.comm.lost
        for rank in gone:
            for source, plan in list(self.served):
                if source == rank:
                    self.served.pop((source, plan)).abandon(self.executor)
            self._host.lose(rank)
            self.ended.add(rank)

    def _body(self, source: int, size: int) -> bytes:
        if not 0 < size <= MOST_BYTES:
            raise CommError(f"rank {source} announces a message of {size} bytes")
        buffer = np.empty(size, np.uint8)
        wait_for_requests(
            self.comm.recv(buffer, source, BODY_TAG), label=f"a message body of rank {source}"
        )
        return buffer.tobytes()

    def _register(self, source: int, plan: int, text: bytes) -> None:
        size = int.from_bytes(text[:8], "little")
        facts, payload = json.loads(text[8 : 8 + size]), text[8 + size :]
        session = facts["session"]
        compiled = self.compiled.get((session, payload))
        if compiled is None:  # on a server, replicas with equal partitions share one compilation
            about = {"label": facts["fetches"], "driver": source, "session": session}
            about |= {name: facts.get(name) for name in ("trains", "seed")}
            compiled = self._host.compile_part(payload, **about)
            self.compiled[session, payload] = compiled
        sums, group = None, self._host.group
        if group is not None:
            sums = self.sums.setdefault((source, facts["sums"]), CollectiveBuffers(group))
        links = (facts["ranks"], facts["tag"], facts["channels"], sums, facts["replica"])
        link, driver = PartitionPeers(self.executor, *links), facts.get("driver", source)
        self._host.counts.serve(facts)
        if driver == self.comm.rank:
            entry = ServerDrivenPlan(self.executor, plan, compiled, link, facts["peers"], self.send)
            self.driven[plan] = entry
            self.repeated.append(entry)
            self.executor.inbox.append(entry.begin)
            return
        failed, is_followed = functools.partial(self._tell_driver, driver, plan), driver != source
        self.served[driver, plan] = RemotelyDrivenPlan(
            compiled, link, failed, self.lanes, is_followed
        )
        if is_followed:
            self.following.add((driver, plan))
            if (driver, plan) in self.early_steps:
                self._step(driver, plan, *self.early_steps.pop((driver, plan)))

    def _tell_driver(self, driver: int, plan: int, instance: StepInstance) -> None:
        """Report a step that failed here to its driver; other ranks report their own failures."""
        error = instance.error
        if error is not None and not isinstance(error, MissingValueError):
            body = error_serialization.encode_error(error)
            self.send(driver, StepFailed(plan, instance.slot, instance.step), body)

    def _reply(self, source: int, answer: Json) -> None:
        text = np.frombuffer(json.dumps(answer).encode(), np.uint8)
        size = np.array([text.size], np.int64)
        for message in (size, text):
            self.executor.wait_for(self.comm.send(message, source, REPLY_TAG), None, "reply")

    # -- messages of a driver

    def send(self, rank: int, header: Header, body: bytes = b"") -> None:
        """Send a header, followed by a body; the caller holds the progress lock."""
        message = header.encode(len(body))
        self.executor.wait_for(self.comm.send(message, rank, HEADER_TAG), None, "header")
        if body:
            data = np.frombuffer(body, np.uint8)
            self.executor.wait_for(self.comm.send(data, rank, BODY_TAG), None, "body")

    def register(self, rank: int, plan: int, part: Partition, facts: Json) -> None:
        """Send `rank` its partition of plan number `plan`."""
        from hpcflow.plan.serialization import partition_codec

        head = json.dumps(facts).encode()
        body = len(head).to_bytes(8, "little") + head + partition_codec.encode_partition(part)
        self.send(rank, RegisterPlan(plan), body)

    def declare(self, server: int, parts: Iterable[Partition]) -> None:
        """Send what the partitions `parts` need of servers to `server`, the first of them."""
        body = self.declared.new(parts)
        if body:
            self.send(server, DeclareVariables(), body)

    def cancel_driven(self) -> None:
        """At exit: cancel the steps that other threads still wait for, on all their ranks."""
        driven = [step for step in self.driven.values() if step.in_flight]
        for step in list(self.driven.values()):
            step.cancel("the program has ended")
        self.executor.run_locked(lambda: None, lambda: not any(step.in_flight for step in driven))

    def pause_driven_plans(self) -> None:
        """End the server-driven plans of this rank, and wait for the end of those it follows."""
        for plan in self.repeated:
            self.executor.run_locked(plan.end, lambda: True)
        self.executor.run_locked(
            lambda: None,
            lambda: not self.following and all(plan.is_paused for plan in self.repeated),
        )

    def new_training_session(self) -> int:
        """The number of the next training session: all drivers make theirs in one order."""
        self._training_sessions += 1
        return self._training_sessions

    def note(self, rank: int, number: int) -> None:
        """Append a number to the `notes` of another driver."""
        self.executor.run_locked(lambda: self.send(rank, SendNumber(number)), lambda: True)

    def post(self, rank: int, request: Json) -> None:
        """Call a service of a rank without an answer; the caller holds the progress lock."""
        self.send(rank, PostRequest(), json.dumps(request).encode())

    def ask_report(self, rank: int) -> Json:
        """Request the report of a served rank and wait for it."""
        return self._ask({rank: (RequestReport(), b"")})()[rank]

    def call(self, requests: Mapping[int, Json]) -> Callable[[], dict[int, Json]]:
        """Call services of served ranks concurrently; the returned function waits for the answers.

        A request is plain data; its "service" names one of `runtime/job/service_registry.py`.
        If the job continues without a rank that dies, the answer of that rank is missing.
        """
        return self._ask(
            {rank: (CallService(), json.dumps(query).encode()) for rank, query in requests.items()}
        )

    def _ask(self, messages: Mapping[int, tuple[Header, bytes]]) -> Callable[[], dict[int, Json]]:
        sizes = {rank: np.zeros(1, np.int64) for rank in messages}
        replies: dict[int, Request] = {}

        def begin() -> None:
            for rank, (header, body) in messages.items():
                replies[rank] = self.comm.recv(sizes[rank], rank, REPLY_TAG)
                self.send(rank, header, body)

        def answers() -> dict[int, Json]:
            by_rank = {}
            for rank, reply in replies.items():
                try:
                    self.executor.finish(reply, f"the reply of rank {rank}", rank)
                    text = np.empty(int(sizes[rank][0]), np.uint8)
                    body = self.comm.recv(text, rank, REPLY_TAG)
                    self.executor.finish(body, f"the reply of rank {rank}", rank)
                except DeathError:
                    if not self.executor.survives_death():
                        raise
                    continue
                by_rank[rank] = json.loads(text.tobytes())
            return by_rank

        self.executor.run_locked(begin, lambda: True)
        return answers

    def close(self) -> None:
        """Stop listening."""
        self.executor.listen_to(_no_message, _no_message)
        close = getattr(self._channel, "close", None)
        if close is not None:
            close()


def _no_message() -> bool:
    return False


def _discard_answer(answer: Json) -> None:
    """Discard the answer of a POST."""
