"""Bucket size: the bytes of gradients that one allreduce sums, chosen for a known network."""

from __future__ import annotations

from hpcflow.placement.network import Network

CALL_S = 20e-6  # work of a rank for an allreduce beside its messages, as for a message
BEST_SHARE = 0.1  # of the transfer: fixed costs that are worth no larger bucket
LEAST_BUCKETS = 4  # so that most of the gradients are summed during the backward pass


def best_bucket_bytes(network: Network, replicas: int, local: int, total: int) -> int:
    """Return the bytes of a bucket for `total` > 0 bytes of gradients of two or more replicas.

    `local` replicas are on each node. The fixed costs of an allreduce (latencies, calls) are at
    most `BEST_SHARE` of its transfer, but a bucket is at most 1 / `LEAST_BUCKETS` of the gradients.
    The fixed costs never exceed the transfer, so few gradients on a slow network share one bucket.
    """
    latencies = network.allreduce_seconds(0, replicas, local)
    transfer = network.allreduce_seconds(total, replicas, local) - latencies
    least = (CALL_S + latencies) / transfer * total
    return max(1, round(max(least, min(least / BEST_SHARE, total / LEAST_BUCKETS))))
