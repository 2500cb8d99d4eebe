"""Standard names of graph collections, those of TensorFlow 1."""

from __future__ import annotations

import enum


class GraphKeys:
    """Names of collections, `hf.get_collection(hf.GraphKeys.UPDATE_OPS)`."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    LOCAL_VARIABLES = "local_variables"
    SUMMED_VARIABLES = "summed_variables"  # local, their sum over replicas is state of the job
    MODEL_VARIABLES = "model_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    GLOBAL_STEP = "global_step"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    UPDATE_OPS = "update_ops"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    TRAIN_OP = "train_op"
    EVAL_STEP = "eval_step"
    METRIC_VARIABLES = "metric_variables"
    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    BIASES = "biases"
    SUMMARIES = "summaries"
    SAVERS = "savers"
    QUEUE_RUNNERS = "queue_runners"


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are synchronized; a variable with ON_READ is not trained."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How updates of replicas are aggregated; synchronous replicas make equal updates."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class AggregationMethod:
    """How TensorFlow 1 adds up gradients; here the planner chooses."""

    ADD_N = DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2
