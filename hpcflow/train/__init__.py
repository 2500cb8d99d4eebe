"""Optimizers, the training session, progress: library code over the graph and the runtime."""

from hpcflow.names import later

__getattr__, __dir__, __all__ = later(
    __name__,
    {
        "hpcflow.train.averages": "ExponentialMovingAverage",
        "hpcflow.train.batches": (
            "batch batch_join maybe_batch maybe_batch_join maybe_shuffle_batch "
            "maybe_shuffle_batch_join shuffle_batch shuffle_batch_join"
        ),
        "hpcflow.train.cluster_spec": "ClusterSpec",
        "hpcflow.train.coordinator": "Coordinator LooperThread",
        "hpcflow.train.checkpoint_state": "update_checkpoint_state",
        "hpcflow.train.checkpoints": (
            "best_checkpoint checkpoint_exists get_checkpoint_mtimes get_checkpoint_state "
            "latest_checkpoint"
        ),
        "hpcflow.train.counter": (
            "create_global_step get_global_step get_or_create_global_step global_step"
        ),
        "hpcflow.train.device_setter": (
            "GreedyLoadBalancingStrategy byte_size_load_fn replica_device_setter"
        ),
        "hpcflow.train.file_writer": "summary_iterator",
        "hpcflow.train.graph_file": "write_graph",
        "hpcflow.train.hooks": (
            "CheckpointSaverHook FeedFnHook FinalOpsHook GlobalStepWaiterHook LoggingTensorHook "
            "NanLossDuringTrainingError NanTensorHook SecondOrStepTimer StepCounterHook "
            "StopAtStepHook SummarySaverHook"
        ),
        "hpcflow.train.lbfgs": "LBFGS LBFGSResult",
        "hpcflow.train.loops": "basic_train_loop",
        "hpcflow.train.monitored": (
            "MonitoredSession MonitoredTrainingSession SingularMonitoredSession"
        ),
        "hpcflow.train.optimizers.accumulate": "AccumulatingOptimizer",
        "hpcflow.train.optimizers.adam": (
            "AdamOptimizer AdamWOptimizer AdamaxOptimizer LazyAdamOptimizer NadamOptimizer"
        ),
        "hpcflow.train.optimizers.adaptive": (
            "AdadeltaOptimizer AdagradDAOptimizer AdagradOptimizer FtrlOptimizer "
            "ProximalAdagradOptimizer RMSPropOptimizer"
        ),
        "hpcflow.train.optimizers.base": "Optimizer",
        "hpcflow.train.optimizers.compress": (
            "BFloat16Compression CompressedOptimizer Compression TopKCompression"
        ),
        "hpcflow.train.optimizers.descent": (
            "GradientDescentOptimizer MomentumOptimizer ProximalGradientDescentOptimizer"
        ),
        "hpcflow.train.optimizers.formula": "Cells FormulaOptimizer",
        "hpcflow.train.optimizers.layerwise": "LAMBOptimizer LARSOptimizer",
        "hpcflow.train.optimizers.loss_scale": "DynamicLossScale LossScaleOptimizer",
        "hpcflow.train.optimizers.sync_replicas": "SyncReplicasOptimizer",
        "hpcflow.train.pretrained": (
            "NewCheckpointReader init_from_checkpoint list_variables load_checkpoint load_variable"
        ),
        "hpcflow.train.producers": (
            "input_producer limit_epochs match_filenames_once range_input_producer "
            "slice_input_producer string_input_producer"
        ),
        "hpcflow.train.progress": "Progress",
        "hpcflow.train.runners": "QueueRunner add_queue_runner start_queue_runners",
        "hpcflow.train.saver": "Saver",
        "hpcflow.train.scaffold": "Scaffold",
        "hpcflow.train.schedules": (
            "cosine_decay cosine_decay_restarts exponential_decay inverse_time_decay "
            "linear_cosine_decay linear_warmup natural_exp_decay noam_decay piecewise_constant "
            "polynomial_decay"
        ),
        "hpcflow.train.server": "Server ServerDef",
        "hpcflow.train.session": "TrainingSession",
        "hpcflow.train.session_creator": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
        "hpcflow.train.session_manager": "SessionManager",
        "hpcflow.train.session_hook": (
            "CheckpointSaverListener SessionRunArgs SessionRunContext SessionRunHook "
            "SessionRunValues"
        ),
        "hpcflow.train.supervisor": "Supervisor",
    },
)
