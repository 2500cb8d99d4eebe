"""Gradient aggregation ops: combine gradients of workers (plan/distribution/sync_program_split.py).

The plan creates all of these. Their state is `hpcflow.ps.sync_coordinator.Rounds`, one on each
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import float64, int64, resource
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec

_PLAN_ONLY = NoGrad("inserted when the plan is made, after gradients are computed")
_STATE: dict[str, Any] = {"stateful": True, "device": "cpu", "grad": _PLAN_ONLY}
_WAITS: dict[str, Any] = {**_STATE, "waits": True}


def _nothing(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return []


def _new_operation(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    declared = [(np.dtype(dtype), shape) for dtype, shape in attrs["made"]]
    return [Spec(dtype, None if shape is None else tuple(shape)) for dtype, shape in declared]


def _shares(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(float64, (attrs["workers"],))]


# Handle of a server's sync coordinator: attrs rule (text), workers.
op("Rounds", infer=lambda i, a: [Spec(resource, ())], **_STATE)

# Ops of a worker's step. `channel` names the updates that are applied together.
op("RoundBegin", infer=lambda i, a: [Spec(int64, ())], patient=True, **_WAITS)  # -> version
op("RoundAdd", infer=_nothing, **_WAITS)  # handle, version, values: a contribution to the sum `sum`
op("RoundReady", infer=_nothing, **_WAITS)  # handle, version, share: all of them have come
op(
    "RoundTotal", infer=_new_operation, patient=True, **_WAITS
)  # handle, version -> the sum of the round
op("RoundOver", infer=_nothing, patient=True, **_WAITS)  # handle, version: it is applied here
op("ClockTick", infer=_nothing, **_WAITS)  # handle: a step of this worker is applied

# Ops that the servers run in a loop.
op("RoundPick", infer=_shares, patient=True, **_WAITS)  # handle -> the factor of each worker
op("RoundSum", infer=_new_operation, **_WAITS)  # handle, factors -> the joined value, as `how` says
op("RoundEnd", infer=_nothing, **_WAITS)  # handle: all updates of the round are applied here
