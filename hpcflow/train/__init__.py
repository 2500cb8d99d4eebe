"""Optimizers, the training session, progress: library code over the graph and the runtime."""

from __future__ import annotations

from hpcflow.train.counter import get_global_step, get_or_create_global_step
from hpcflow.train.optimizers import (
    AdamOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    Optimizer,
)
from hpcflow.train.progress import Progress
from hpcflow.train.saver import Saver, latest_checkpoint
from hpcflow.train.session import TrainingSession

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
