"""Layers `hf.layers`: functions that create layers with named variables, as `tf.layers`.

Each function creates its variables with `hf.get_variable` in the variable scope `name` (default:
named after the layer); `reuse` and surrounding variable scopes apply. A function creates an object
of its class and calls it. Further calls of the object share its variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcflow.layers.attention import multi_head_attention
from hpcflow.layers.convolution import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    SeparableConv1D,
    SeparableConv2D,
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    separable_conv1d,
    separable_conv2d,
)
from hpcflow.layers.dense_layers import Dense, Dropout, Flatten, dense, dropout, embedding, flatten
from hpcflow.layers.normalization import (
    BatchNormalization,
    batch_normalization,
    group_norm,
    layer_norm,
)
from hpcflow.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
    average_pooling1d,
    average_pooling2d,
    average_pooling3d,
    max_pooling1d,
    max_pooling2d,
    max_pooling3d,
)
from hpcflow.layers.recurrent import gru, lstm, rnn
from hpcflow.layers.regularizers import l1_l2_regularizer, l1_regularizer, l2_regularizer
from hpcflow.ops.nn.layer_objects import InputSpec, Layer
from hpcflow.platform.exception_translation import translate_module

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNormalization",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dense",
    "Dropout",
    "Flatten",
    "InputSpec",
    "Layer",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "SeparableConv1D",
    "SeparableConv2D",
    "average_pooling1d",
    "average_pooling2d",
    "average_pooling3d",
    "batch_normalization",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "dense",
    "dropout",
    "embedding",
    "flatten",
    "group_norm",
    "gru",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "layer_norm",
    "lstm",
    "max_pooling1d",
    "max_pooling2d",
    "max_pooling3d",
    "multi_head_attention",
    "rnn",
    "separable_conv1d",
    "separable_conv2d",
]

translate_module(globals(), __all__)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from hpcflow.platform.lazy_imports import MissingNameError

        raise MissingNameError("hpcflow.layers", name, __all__)
