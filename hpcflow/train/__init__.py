"""Training library: optimizers, training session, checkpoint policy, stragglers, run records."""

from hpcflow.platform.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hpcflow.train.moving_average": "ExponentialMovingAverage",
        "hpcflow.tf1.input_batches": (
            "batch batch_join maybe_batch maybe_batch_join maybe_shuffle_batch "
            "maybe_shuffle_batch_join shuffle_batch shuffle_batch_join"
        ),
        "hpcflow.tf1.cluster_spec": "ClusterSpec",
        "hpcflow.tf1.coordinator": "Coordinator LooperThread",
        "hpcflow.train.checkpoint_state": "update_checkpoint_state",
        "hpcflow.train.checkpoint_listing": (
            "best_checkpoint checkpoint_exists get_checkpoint_mtimes get_checkpoint_state "
            "latest_checkpoint"
        ),
        "hpcflow.train.global_step_counter": (
            "create_global_step get_global_step get_or_create_global_step global_step"
        ),
        "hpcflow.tf1.replica_device_setter": (
            "GreedyLoadBalancingStrategy byte_size_load_fn replica_device_setter"
        ),
        "hpcflow.train.tensorboard_writer": "summary_iterator",
        "hpcflow.tf1.write_graph": "write_graph",
        "hpcflow.tf1.session_hooks": (
            "CheckpointSaverHook FeedFnHook FinalOpsHook GlobalStepWaiterHook LoggingTensorHook "
            "NanLossDuringTrainingError NanTensorHook SecondOrStepTimer StepCounterHook "
            "StopAtStepHook SummarySaverHook"
        ),
        "hpcflow.train.optimizers.lbfgs": "LBFGS LBFGSResult",
        "hpcflow.tf1.basic_train_loop": "basic_train_loop",
        "hpcflow.tf1.monitored_session": (
            "MonitoredSession MonitoredTrainingSession SingularMonitoredSession"
        ),
        "hpcflow.train.optimizers.gradient_accumulation": "AccumulatingOptimizer",
        "hpcflow.train.optimizers.adam": (
            "AdamOptimizer AdamWOptimizer AdamaxOptimizer LazyAdamOptimizer NadamOptimizer"
        ),
        "hpcflow.train.optimizers.adagrad": (
            "AdadeltaOptimizer AdagradDAOptimizer AdagradOptimizer FtrlOptimizer "
            "ProximalAdagradOptimizer RMSPropOptimizer"
        ),
        "hpcflow.train.optimizers.optimizer": "Optimizer",
        "hpcflow.train.optimizers.gradient_compression": (
            "BFloat16Compression CompressedOptimizer Compression TopKCompression"
        ),
        "hpcflow.train.optimizers.gradient_descent": (
            "GradientDescentOptimizer MomentumOptimizer ProximalGradientDescentOptimizer"
        ),
        "hpcflow.train.optimizers.update_formula": "Cells FormulaOptimizer",
        "hpcflow.train.optimizers.lars_lamb": "LAMBOptimizer LARSOptimizer",
        "hpcflow.train.optimizers.loss_scaling": "DynamicLossScale LossScaleOptimizer",
        "hpcflow.tf1.sync_replicas_optimizer": "SyncReplicasOptimizer",
        "hpcflow.train.warm_start": (
            "NewCheckpointReader init_from_checkpoint list_variables load_checkpoint load_variable"
        ),
        "hpcflow.tf1.input_producers": (
            "input_producer limit_epochs match_filenames_once range_input_producer "
            "slice_input_producer string_input_producer"
        ),
        "hpcflow.train.progress_bar": "Progress",
        "hpcflow.tf1.queue_runners": "QueueRunner add_queue_runner start_queue_runners",
        "hpcflow.train.saver": "Saver",
        "hpcflow.tf1.scaffold": "Scaffold",
        "hpcflow.train.learning_rate_schedules": (
            "cosine_decay cosine_decay_restarts exponential_decay inverse_time_decay "
            "linear_cosine_decay linear_warmup natural_exp_decay noam_decay piecewise_constant "
            "polynomial_decay"
        ),
        "hpcflow.tf1.server": "Server ServerDef",
        "hpcflow.train.training_session": "TrainingSession",
        "hpcflow.tf1.session_creator": "ChiefSessionCreator SessionCreator WorkerSessionCreator",
        "hpcflow.tf1.session_manager": "SessionManager",
        "hpcflow.tf1.session_run_hook": (
            "CheckpointSaverListener SessionRunArgs SessionRunContext SessionRunHook "
            "SessionRunValues"
        ),
        "hpcflow.tf1.supervisor": "Supervisor",
    },
)
