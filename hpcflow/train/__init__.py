"""Optimizers, the training session, progress: library code over the graph and the runtime.

What few programs name, as checkpoints, is loaded when it is: each file that a start need not open
counts on thousands of ranks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcflow.train.optimizers import (
    AdamOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    Optimizer,
)
from hpcflow.train.progress import Progress
from hpcflow.train.session import TrainingSession

if TYPE_CHECKING:
    from hpcflow.train.counter import get_global_step, get_or_create_global_step
    from hpcflow.train.saver import Saver, latest_checkpoint

__all__ = [
    "AdamOptimizer",
    "GradientDescentOptimizer",
    "MomentumOptimizer",
    "Optimizer",
    "Progress",
    "Saver",
    "TrainingSession",
    "get_global_step",
    "get_or_create_global_step",
    "latest_checkpoint",
]

_LATER = {
    "Saver": "hpcflow.train.saver",
    "get_global_step": "hpcflow.train.counter",
    "get_or_create_global_step": "hpcflow.train.counter",
    "latest_checkpoint": "hpcflow.train.saver",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'hpcflow.train' has no attribute {name!r} (see docs/tf1.md)")
    return getattr(importlib.import_module(_LATER[name]), name)
