"""The ResNet in bfloat16, but for its weights, moving averages and logits."""

from __future__ import annotations

from typing import Any

from nets2 import resnet

OPTIMIZER = resnet.OPTIMIZER
TOLERANCE = (3e-2, 1e-1)
BATCH_AXES = resnet.BATCH_AXES
weights, batch, torch_weights = resnet.weights, resnet.batch, resnet.torch_weights


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    return resnet.hpcflow_loss(hf, v, x, y, hf.bfloat16)


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    return resnet.tensorflow_loss(tf, v, x, y, tf.bfloat16)


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    return resnet.torch_loss(torch, v, x, y, torch.bfloat16)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    return resnet.jax_loss(jax, v, x, y, jax.numpy.bfloat16)
