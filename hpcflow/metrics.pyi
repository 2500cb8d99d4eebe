"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.metrics.confusion_metrics import auc as auc
from hpcflow.ops.metrics.confusion_metrics import false_negatives as false_negatives
from hpcflow.ops.metrics.confusion_metrics import false_negatives_at_thresholds as false_negatives_at_thresholds
from hpcflow.ops.metrics.confusion_metrics import false_positives as false_positives
from hpcflow.ops.metrics.confusion_metrics import false_positives_at_thresholds as false_positives_at_thresholds
from hpcflow.ops.metrics.confusion_metrics import precision as precision
from hpcflow.ops.metrics.confusion_metrics import precision_at_thresholds as precision_at_thresholds
from hpcflow.ops.metrics.confusion_metrics import recall as recall
from hpcflow.ops.metrics.confusion_metrics import recall_at_thresholds as recall_at_thresholds
from hpcflow.ops.metrics.confusion_metrics import sensitivity_at_specificity as sensitivity_at_specificity
from hpcflow.ops.metrics.confusion_metrics import specificity_at_sensitivity as specificity_at_sensitivity
from hpcflow.ops.metrics.confusion_metrics import true_negatives as true_negatives
from hpcflow.ops.metrics.confusion_metrics import true_negatives_at_thresholds as true_negatives_at_thresholds
from hpcflow.ops.metrics.confusion_metrics import true_positives as true_positives
from hpcflow.ops.metrics.confusion_metrics import true_positives_at_thresholds as true_positives_at_thresholds
from hpcflow.ops.metrics.mean_metrics import accuracy as accuracy
from hpcflow.ops.metrics.mean_metrics import mean as mean
from hpcflow.ops.metrics.mean_metrics import mean_absolute_error as mean_absolute_error
from hpcflow.ops.metrics.mean_metrics import mean_cosine_distance as mean_cosine_distance
from hpcflow.ops.metrics.mean_metrics import mean_iou as mean_iou
from hpcflow.ops.metrics.mean_metrics import mean_per_class_accuracy as mean_per_class_accuracy
from hpcflow.ops.metrics.mean_metrics import mean_relative_error as mean_relative_error
from hpcflow.ops.metrics.mean_metrics import mean_squared_error as mean_squared_error
from hpcflow.ops.metrics.mean_metrics import mean_tensor as mean_tensor
from hpcflow.ops.metrics.mean_metrics import percentage_below as percentage_below
from hpcflow.ops.metrics.mean_metrics import root_mean_squared_error as root_mean_squared_error
from hpcflow.ops.metrics.top_k_metrics import average_precision_at_k as average_precision_at_k
from hpcflow.ops.metrics.top_k_metrics import precision_at_k as precision_at_k
from hpcflow.ops.metrics.top_k_metrics import precision_at_top_k as precision_at_top_k
from hpcflow.ops.metrics.top_k_metrics import recall_at_k as recall_at_k
from hpcflow.ops.metrics.top_k_metrics import recall_at_top_k as recall_at_top_k
from hpcflow.ops.metrics.top_k_metrics import sparse_average_precision_at_k as sparse_average_precision_at_k
from hpcflow.ops.metrics.top_k_metrics import sparse_precision_at_k as sparse_precision_at_k
