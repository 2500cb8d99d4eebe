"""Uplink benchmark: the rate at which all nodes of a rack send to other racks, and receive.

Racks are measured one after the other, of many racks in at most MOST_GROUPS groups; first the
direction out of them, then the direction in. Each node of a rack keeps messages to nodes of other
racks in flight for a bounded time; receivers count bytes in a window of that time.

If SLURM tells no racks, groups of nodes are candidates (`likely_racks`). They are racks if flows
between them are slower than their ports allow (ACROSS), and flows within them are not (INSIDE).
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.polling_backoff import Backoff, wait_for_requests
from hpcflow.doctor.rack_flows import (
    Flow,
    Rates,
    flows_between,
    flows_inside,
    likely_racks,
    port_rates,
    rack_groups,
)
from hpcflow.doctor.rank_facts import RackUplink
from hpcflow.errors import StallError

PATIENCE_S = 60.0  # longest end of a phase
BUDGET_S = 30.0  # of all phases of uplinks together; a phase takes SHORTEST_S to LONGEST_S
SHORTEST_S, LONGEST_S = 0.2, 2.0
WARM_UP = 0.3  # share of a phase before the window in which bytes count
REPEATS = 3  # the median counts: other programs delay messages out of a window or into it
DEPTH = 4  # messages of a flow in flight
PIECES = 80  # messages of a flow in a phase, about
SMALLEST, LARGEST = 1 << 12, 1 << 22  # bytes of a message
TAG = 8
# Likely racks are racks if all nodes reach this share of their ports' rate within them, and less
# than that share across their borders.
INSIDE, ACROSS = 0.85, 0.75


class _Sending:
    """The sender's end of a flow: DEPTH messages in flight until `end`; the last count down."""

    def __init__(self, comm: Communicator, peer: int, nbytes: int, end: float) -> None:
        self._comm, self._peer, self._end = comm, peer, end
        self._plain = np.full(nbytes, DEPTH, np.uint8)
        self._last = [np.full(nbytes, left, np.uint8) for left in range(DEPTH)]
        self._requests = collections.deque[Request]()

    @property
    def done(self) -> bool:
        return not self._last and not self._requests

    def advance(self) -> bool:
        """Send what may be sent; whether a message was sent."""
        while self._requests and self._requests[0].test():
            self._requests.popleft()
        if len(self._requests) >= DEPTH or not self._last:
            return False
        data = self._plain if time.perf_counter() < self._end else self._last.pop()
        self._requests.append(self._comm.send(data, self._peer, TAG))
        return True


class _Receiving:
    """The receiver's end of a flow: the times at which messages came."""

    def __init__(self, comm: Communicator, peer: int, nbytes: int) -> None:
        self._comm, self._peer = comm, peer
        self._posted = collections.deque[tuple[Request, np.ndarray]]()
        self._ends = False
        self.times: list[float] = []
        for _ in range(DEPTH):
            self._post(np.zeros(nbytes, np.uint8))

    def _post(self, data: np.ndarray) -> None:
        self._posted.append((self._comm.recv(data, self._peer, TAG), data))

    @property
    def done(self) -> bool:
        return not self._posted

    def advance(self) -> bool:
        """Take a message that has come; whether there was one."""
        if not self._posted or not self._posted[0][0].test():
            return False
        _, data = self._posted.popleft()
        self.times.append(time.perf_counter())
        self._ends = self._ends or data[0] < DEPTH  # the next DEPTH - 1 are posted
        if not self._ends:
            self._post(data)
        return True


def run_flows(comm: Communicator, flows: Sequence[Flow], nbytes: int, seconds: float) -> Rates:
    """Run flows of messages of `nbytes` for some time; bytes/s of each rack's flows.

    All ranks call it. Errors: StallError if the messages do not end in time.
    """
    receiving = [
        (flow, _Receiving(comm, flow.source, nbytes)) for flow in flows if flow.dest == comm.rank
    ]
    wait_for_requests(comm.barrier(), timeout=PATIENCE_S, label="the start of a benchmark")
    begin = time.perf_counter()
    end = begin + seconds
    sending = [_Sending(comm, flow.dest, nbytes, end) for flow in flows if flow.source == comm.rank]
    _advance_all([*sending, *(one for _, one in receiving)], end + PATIENCE_S)
    racks = list(dict.fromkeys(flow.rack for flow in flows))
    first, sums = begin + WARM_UP * seconds, np.zeros(len(racks))
    for flow, one in receiving:  # between two messages bytes come evenly
        times = [begin, *one.times]
        came = np.diff(np.interp([first, end], times, np.arange(len(times))))[0]
        sums[racks.index(flow.rack)] += came * nbytes / (end - first)
    wait_for_requests(comm.all_reduce(sums), timeout=PATIENCE_S, label="the rates of racks")
    return dict(zip(racks, sums.tolist(), strict=True))


def _advance_all(ends: Sequence[_Sending | _Receiving], limit: float) -> None:
    backoff = Backoff(crowded=True)
    while not all(one.done for one in ends):
        if any([one.advance() for one in ends]):
            backoff.reset()
        elif time.perf_counter() > limit:
            raise StallError(f"messages between racks do not end within {PATIENCE_S:.0f} s")
        else:
            backoff.wait()


class UplinkBenchmark:
    """Measurements between the racks of nodes, one rank of each node in `leaders`."""

    def __init__(self, leaders: Communicator, ports: Sequence[float]) -> None:
        """`ports` are the measured bytes/s of the ports of the nodes."""
        self.leaders, self.ports = leaders, ports

    def uplinks(self, racks: Sequence[int]) -> dict[int, RackUplink]:
        """The uplinks of the racks that have two nodes or more; all ranks call it."""
        groups, found = list(rack_groups(racks)), dict[int, RackUplink]()
        seconds = BUDGET_S / max(2 * REPEATS * len(groups), 1)
        seconds = min(max(seconds, SHORTEST_S), LONGEST_S)
        for group in groups:
            outward = flows_between(racks, group)
            inward = [Flow(flow.dest, flow.source, flow.rack) for flow in outward]
            (out, limit), (into, limit_in) = (self._measured(f, seconds) for f in (outward, inward))
            for rack in group:
                ports = min(limit[rack], limit_in[rack])
                found[rack] = RackUplink(out[rack], into[rack], ports)
        return found

    def racks_by_rates(
        self, pairs: Mapping[tuple[int, int], float]
    ) -> tuple[list[int], dict[int, RackUplink]] | None:
        """The racks that measured rates show, with their uplinks; None if they show none.

        `pairs` has the rates of all pairs of nodes, each measured while all others exchanged, too.
        All ranks call it with the same pairs.
        """
        racks = likely_racks(pairs, self.ports)
        if racks is None:
            return None
        uplinks = self.uplinks(racks)
        inside, limit = self._measured(flows_inside(racks), LONGEST_S)
        narrow = all(
            uplink.bytes_per_s < ACROSS * uplink.ports_bytes_per_s for uplink in uplinks.values()
        )
        return (racks, uplinks) if narrow and inside[0] > INSIDE * limit[0] else None

    def _measured(self, flows: Sequence[Flow], seconds: float) -> tuple[Rates, Rates]:
        """The measured rates of flows by rack, and those by the ports."""
        limit = port_rates(flows, self.ports)
        each = sum(limit.values()) / len(flows) * seconds / PIECES
        nbytes = int(min(max(each, SMALLEST), LARGEST))
        runs = [run_flows(self.leaders, flows, nbytes, seconds) for _ in range(REPEATS)]
        return {rack: statistics.median(run[rack] for run in runs) for rack in limit}, limit
