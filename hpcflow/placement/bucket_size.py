"""Bucket size: the bytes of gradients that one allreduce sums, chosen for a known network."""

from __future__ import annotations

from hpcflow.placement.network import Network

CALL_S = 20e-6  # of a rank for the call of an allreduce, beside its messages; as for a message
BEST_SHARE = 0.1  # fixed costs of so much of the transfer are worth no larger bucket
LEAST_BUCKETS = 4  # so that most of the gradients are summed during the backward pass


def best_bucket_bytes(network: Network, replicas: int, local: int, total: int) -> int:
    """Return the bytes of a bucket for `total` > 0 bytes of gradients of two or more replicas.

    `local` replicas are on each node. A bucket is so large that the fixed costs of its allreduce
    (latencies, call) are `BEST_SHARE` of its transfer, but at most 1 / `LEAST_BUCKETS` of the
    gradients. It is never so small that the fixed costs exceed the transfer: so few gradients on a
    slow network share one bucket, which may be larger than `total`.
    """
    latencies = network.allreduce_times(0, replicas, local).least
    transfer = network.allreduce_times(total, replicas, local).occupied
    least = (CALL_S + latencies) / transfer * total
    return max(1, round(max(least, min(least / BEST_SHARE, total / LEAST_BUCKETS))))
