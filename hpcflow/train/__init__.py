"""Optimizers, the training session, progress: library code over the graph and the runtime.

What few programs name, as checkpoints, is loaded when it is: each file that a start need not open
counts on thousands of ranks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcflow.train.progress import Progress
from hpcflow.train.session import TrainingSession

if TYPE_CHECKING:
    from hpcflow.train.averages import ExponentialMovingAverage
    from hpcflow.train.batches import (
        batch,
        batch_join,
        maybe_batch,
        maybe_batch_join,
        maybe_shuffle_batch,
        maybe_shuffle_batch_join,
        shuffle_batch,
        shuffle_batch_join,
    )
    from hpcflow.train.cluster_spec import ClusterSpec
    from hpcflow.train.coordinator import (
        Coordinator,
        LooperThread,
    )
    from hpcflow.train.counter import get_global_step, get_or_create_global_step
    from hpcflow.train.device_setter import (
        GreedyLoadBalancingStrategy,
        byte_size_load_fn,
        replica_device_setter,
    )
    from hpcflow.train.graph_file import write_graph
    from hpcflow.train.hooks import (
        CheckpointSaverHook,
        FeedFnHook,
        FinalOpsHook,
        GlobalStepWaiterHook,
        LoggingTensorHook,
        NanLossDuringTrainingError,
        NanTensorHook,
        SecondOrStepTimer,
        StepCounterHook,
        StopAtStepHook,
    )
    from hpcflow.train.lbfgs import LBFGS, LBFGSResult
    from hpcflow.train.monitored import (
        MonitoredSession,
        MonitoredTrainingSession,
        SingularMonitoredSession,
    )
    from hpcflow.train.optimizers.accumulate import AccumulatingOptimizer
    from hpcflow.train.optimizers.adam import (
        AdamaxOptimizer,
        AdamOptimizer,
        AdamWOptimizer,
        NadamOptimizer,
    )
    from hpcflow.train.optimizers.adaptive import (
        AdadeltaOptimizer,
        AdagradDAOptimizer,
        AdagradOptimizer,
        FtrlOptimizer,
        ProximalAdagradOptimizer,
        RMSPropOptimizer,
    )
    from hpcflow.train.optimizers.base import Optimizer
    from hpcflow.train.optimizers.compress import (
        BFloat16Compression,
        CompressedOptimizer,
        Compression,
        TopKCompression,
    )
    from hpcflow.train.optimizers.descent import (
        GradientDescentOptimizer,
        MomentumOptimizer,
        ProximalGradientDescentOptimizer,
    )
    from hpcflow.train.optimizers.formula import Cells, FormulaOptimizer
    from hpcflow.train.optimizers.layerwise import LAMBOptimizer, LARSOptimizer
    from hpcflow.train.optimizers.loss_scale import DynamicLossScale, LossScaleOptimizer
    from hpcflow.train.optimizers.sync_replicas import SyncReplicasOptimizer
    from hpcflow.train.pretrained import (
        NewCheckpointReader,
        init_from_checkpoint,
        list_variables,
        load_checkpoint,
        load_variable,
    )
    from hpcflow.train.producers import (
        input_producer,
        limit_epochs,
        range_input_producer,
        slice_input_producer,
        string_input_producer,
    )
    from hpcflow.train.runners import (
        QueueRunner,
        add_queue_runner,
        start_queue_runners,
    )
    from hpcflow.train.saver import (
        Saver,
        best_checkpoint,
        checkpoint_exists,
        latest_checkpoint,
    )
    from hpcflow.train.scaffold import Scaffold
    from hpcflow.train.schedules import (
        cosine_decay,
        cosine_decay_restarts,
        exponential_decay,
        inverse_time_decay,
        linear_cosine_decay,
        linear_warmup,
        natural_exp_decay,
        noam_decay,
        piecewise_constant,
        polynomial_decay,
    )
    from hpcflow.train.server import Server, ServerDef
    from hpcflow.train.session_creator import (
        ChiefSessionCreator,
        SessionCreator,
        WorkerSessionCreator,
    )
    from hpcflow.train.session_hook import (
        SessionRunArgs,
        SessionRunContext,
        SessionRunHook,
        SessionRunValues,
    )
    from hpcflow.train.supervisor import Supervisor

__all__ = [
    "LBFGS",
    "AccumulatingOptimizer",
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "AdamaxOptimizer",
    "BFloat16Compression",
    "Cells",
    "CheckpointSaverHook",
    "ChiefSessionCreator",
    "ClusterSpec",
    "CompressedOptimizer",
    "Compression",
    "Coordinator",
    "DynamicLossScale",
    "ExponentialMovingAverage",
    "FeedFnHook",
    "FinalOpsHook",
    "FormulaOptimizer",
    "FtrlOptimizer",
    "GlobalStepWaiterHook",
    "GradientDescentOptimizer",
    "GreedyLoadBalancingStrategy",
    "LAMBOptimizer",
    "LARSOptimizer",
    "LBFGSResult",
    "LoggingTensorHook",
    "LooperThread",
    "LossScaleOptimizer",
    "MomentumOptimizer",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NadamOptimizer",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NewCheckpointReader",
    "Optimizer",
    "Progress",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "QueueRunner",
    "RMSPropOptimizer",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "Server",
    "ServerDef",
    "SessionCreator",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StepCounterHook",
    "StopAtStepHook",
    "Supervisor",
    "SyncReplicasOptimizer",
    "TopKCompression",
    "TrainingSession",
    "WorkerSessionCreator",
    "add_queue_runner",
    "batch",
    "batch_join",
    "best_checkpoint",
    "byte_size_load_fn",
    "checkpoint_exists",
    "cosine_decay",
    "cosine_decay_restarts",
    "exponential_decay",
    "get_global_step",
    "get_or_create_global_step",
    "init_from_checkpoint",
    "input_producer",
    "inverse_time_decay",
    "latest_checkpoint",
    "limit_epochs",
    "linear_cosine_decay",
    "linear_warmup",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_constant",
    "polynomial_decay",
    "range_input_producer",
    "replica_device_setter",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
    "write_graph",
]

_LATER = {
    "SyncReplicasOptimizer": "hpcflow.train.optimizers.sync_replicas",
    "SessionRunArgs": "hpcflow.train.session_hook",
    "SessionRunContext": "hpcflow.train.session_hook",
    "SessionRunHook": "hpcflow.train.session_hook",
    "SessionRunValues": "hpcflow.train.session_hook",
    "CheckpointSaverHook": "hpcflow.train.hooks",
    "FeedFnHook": "hpcflow.train.hooks",
    "FinalOpsHook": "hpcflow.train.hooks",
    "GlobalStepWaiterHook": "hpcflow.train.hooks",
    "LoggingTensorHook": "hpcflow.train.hooks",
    "NanLossDuringTrainingError": "hpcflow.train.hooks",
    "NanTensorHook": "hpcflow.train.hooks",
    "SecondOrStepTimer": "hpcflow.train.hooks",
    "StepCounterHook": "hpcflow.train.hooks",
    "StopAtStepHook": "hpcflow.train.hooks",
    "Scaffold": "hpcflow.train.scaffold",
    "SessionCreator": "hpcflow.train.session_creator",
    "ChiefSessionCreator": "hpcflow.train.session_creator",
    "WorkerSessionCreator": "hpcflow.train.session_creator",
    "MonitoredSession": "hpcflow.train.monitored",
    "MonitoredTrainingSession": "hpcflow.train.monitored",
    "SingularMonitoredSession": "hpcflow.train.monitored",
    "Supervisor": "hpcflow.train.supervisor",
    "ClusterSpec": "hpcflow.train.cluster_spec",
    "Server": "hpcflow.train.server",
    "ServerDef": "hpcflow.train.server",
    "replica_device_setter": "hpcflow.train.device_setter",
    "GreedyLoadBalancingStrategy": "hpcflow.train.device_setter",
    "byte_size_load_fn": "hpcflow.train.device_setter",
    "write_graph": "hpcflow.train.graph_file",
    "string_input_producer": "hpcflow.train.producers",
    "ExponentialMovingAverage": "hpcflow.train.averages",
    "maybe_batch": "hpcflow.train.batches",
    "maybe_batch_join": "hpcflow.train.batches",
    "maybe_shuffle_batch": "hpcflow.train.batches",
    "maybe_shuffle_batch_join": "hpcflow.train.batches",
    "Coordinator": "hpcflow.train.coordinator",
    "LooperThread": "hpcflow.train.coordinator",
    "QueueRunner": "hpcflow.train.runners",
    "add_queue_runner": "hpcflow.train.runners",
    "start_queue_runners": "hpcflow.train.runners",
    "batch": "hpcflow.train.batches",
    "batch_join": "hpcflow.train.batches",
    "input_producer": "hpcflow.train.producers",
    "limit_epochs": "hpcflow.train.producers",
    "range_input_producer": "hpcflow.train.producers",
    "shuffle_batch": "hpcflow.train.batches",
    "shuffle_batch_join": "hpcflow.train.batches",
    "slice_input_producer": "hpcflow.train.producers",
    "cosine_decay": "hpcflow.train.schedules",
    "cosine_decay_restarts": "hpcflow.train.schedules",
    "exponential_decay": "hpcflow.train.schedules",
    "inverse_time_decay": "hpcflow.train.schedules",
    "linear_cosine_decay": "hpcflow.train.schedules",
    "linear_warmup": "hpcflow.train.schedules",
    "natural_exp_decay": "hpcflow.train.schedules",
    "noam_decay": "hpcflow.train.schedules",
    "piecewise_constant": "hpcflow.train.schedules",
    "polynomial_decay": "hpcflow.train.schedules",
    "AccumulatingOptimizer": "hpcflow.train.optimizers.accumulate",
    "DynamicLossScale": "hpcflow.train.optimizers.loss_scale",
    "LossScaleOptimizer": "hpcflow.train.optimizers.loss_scale",
    "BFloat16Compression": "hpcflow.train.optimizers.compress",
    "CompressedOptimizer": "hpcflow.train.optimizers.compress",
    "Compression": "hpcflow.train.optimizers.compress",
    "TopKCompression": "hpcflow.train.optimizers.compress",
    "LBFGS": "hpcflow.train.lbfgs",
    "LBFGSResult": "hpcflow.train.lbfgs",
    "AdamOptimizer": "hpcflow.train.optimizers.adam",
    "AdamWOptimizer": "hpcflow.train.optimizers.adam",
    "AdamaxOptimizer": "hpcflow.train.optimizers.adam",
    "NadamOptimizer": "hpcflow.train.optimizers.adam",
    "AdadeltaOptimizer": "hpcflow.train.optimizers.adaptive",
    "AdagradDAOptimizer": "hpcflow.train.optimizers.adaptive",
    "AdagradOptimizer": "hpcflow.train.optimizers.adaptive",
    "FtrlOptimizer": "hpcflow.train.optimizers.adaptive",
    "ProximalAdagradOptimizer": "hpcflow.train.optimizers.adaptive",
    "RMSPropOptimizer": "hpcflow.train.optimizers.adaptive",
    "Optimizer": "hpcflow.train.optimizers.base",
    "GradientDescentOptimizer": "hpcflow.train.optimizers.descent",
    "MomentumOptimizer": "hpcflow.train.optimizers.descent",
    "ProximalGradientDescentOptimizer": "hpcflow.train.optimizers.descent",
    "Cells": "hpcflow.train.optimizers.formula",
    "FormulaOptimizer": "hpcflow.train.optimizers.formula",
    "LAMBOptimizer": "hpcflow.train.optimizers.layerwise",
    "LARSOptimizer": "hpcflow.train.optimizers.layerwise",
    "Saver": "hpcflow.train.saver",
    "get_global_step": "hpcflow.train.counter",
    "get_or_create_global_step": "hpcflow.train.counter",
    "checkpoint_exists": "hpcflow.train.saver",
    "best_checkpoint": "hpcflow.train.saver",
    "latest_checkpoint": "hpcflow.train.saver",
    "NewCheckpointReader": "hpcflow.train.pretrained",
    "init_from_checkpoint": "hpcflow.train.pretrained",
    "list_variables": "hpcflow.train.pretrained",
    "load_checkpoint": "hpcflow.train.pretrained",
    "load_variable": "hpcflow.train.pretrained",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'hpcflow.train' has no attribute {name!r} (see docs/tf1.md)")
    return getattr(importlib.import_module(_LATER[name]), name)
