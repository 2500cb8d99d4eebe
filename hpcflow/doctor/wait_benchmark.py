"""Wait benchmark: how late a rank that waits for a message goes on, by each policy of waiting.

The policies are those of `comm/polling_backoff.py`.
"""

from __future__ import annotations

import os
import time

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.polling_backoff import MOST_CORES, Backoff, wait_for_requests
from hpcflow.errors import StallError
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES, TYPICAL_US, WaitKey

PATIENCE_S = 60.0
# Spinning on a core of its own lasts 25 ms; on shared cores sleeps begin after 0.5 ms.
WAITS_US = {200: 20, TYPICAL_US: 20, 50_000: 5}  # microseconds of a wait -> messages measured
TAG = 9

Samples = dict[WaitKey, list[float]]


def time_waits(pair: Communicator) -> Samples:
    """The lateness of messages in seconds, on rank 0 of a pair on one node; none on rank 1.

    Rank 1 sends the time of the node's monotonic clock, which rank 0 reads, too. The policy of an
    own core is measured only if the two ranks may use two CPUs.
    """
    policies = [OWN_CORE] if _cpus(pair) > 1 else []
    found: Samples = {}
    for policy in (*policies, SHARED_CORES):
        for waited, times in WAITS_US.items():
            samples = [_late(pair, policy, waited * 1e-6) for _ in range(times)]
            if pair.rank == 0:
                found[WaitKey(policy, waited)] = samples
    return found


def _late(pair: Communicator, policy: str, waited: float) -> float:
    """The lateness of one message on rank 0, which has waited for it so long; 0 on rank 1."""
    if pair.rank == 1:
        _poll(pair.recv(np.zeros(1), 0, TAG))  # rank 0 waits now
        time.sleep(waited)
        _poll(pair.send(np.array([time.monotonic()]), 0, TAG))
        return 0.0
    sent = np.zeros(1)
    message = pair.recv(sent, 1, TAG)
    _poll(pair.send(np.zeros(1), 1, TAG))
    backoff, limit = Backoff(crowded=policy == SHARED_CORES), time.monotonic() + PATIENCE_S
    while not message.test():
        if time.monotonic() > limit:
            raise StallError(f"a message of this node has not come in {PATIENCE_S:.0f} s")
        backoff.wait()
    return max(time.monotonic() - float(sent[0]), 1e-9)


def _poll(request: Request) -> None:
    wait_for_requests(request, timeout=PATIENCE_S, label="the other rank of this node")


def _cpus(pair: Communicator) -> int:
    """The number of CPUs that the ranks of a pair may use together."""
    cpus = np.zeros(MOST_CORES, np.int32)
    cpus[list(os.sched_getaffinity(0))] = 1
    wait_for_requests(pair.all_reduce(cpus), timeout=PATIENCE_S, label="the CPUs of this node")
    return int((cpus > 0).sum())
