"""Trains a network in PyTorch: eager, and compiled by Inductor ("compile")."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from nets2.drivers import network


def step(net: Any, mode: str, unknown: bool = False) -> Callable[[], float]:
    trained, state = network.weights(net)
    values = {name: torch.from_numpy(value) for name, value in (trained | state).items()}
    if hasattr(net, "torch_weights"):
        values = net.torch_weights(torch, values)
    v = {
        name: value if name in state else torch.nn.Parameter(value)
        for name, value in values.items()
    }
    parameters = [x for name, x in v.items() if name not in state]
    loss, norm = loss_function(net, mode, unknown), network.clip_norm(net)
    optimizer = optimizer_of(net, mode, parameters)
    batches = network.batches(net)

    def run() -> float:
        for parameter in parameters:
            parameter.grad = None
        value = loss(v, *fed(next(batches)))
        value.backward()
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, norm, foreach=True)
        optimizer.step()
        return value.item()

    return run


def fed(batch: Any) -> list[torch.Tensor]:
    tensors = [torch.from_numpy(array) for array in batch]
    return [x.long() if x.dtype == torch.int32 else x for x in tensors]


def loss_function(net: Any, mode: str, unknown: bool) -> Callable[..., Any]:
    def loss(v: dict[str, Any], *batch: Any) -> Any:
        return net.torch_loss(torch, v, *batch)

    if mode != "compile":
        return loss
    warnings.filterwarnings("ignore", module="torch")
    return torch.compile(loss, dynamic=True if unknown else None)


def optimizer_of(net: Any, mode: str, parameters: list[Any]) -> Any:
    """One kernel for a whole update, which takes no sparse gradients."""
    kind, rate = net.OPTIMIZER
    fused = mode == "compile" or not getattr(net, "SPARSE", False)
    if kind == "adam":
        return torch.optim.Adam(parameters, rate, fused=fused)
    return torch.optim.SGD(parameters, rate, 0.9 if kind == "momentum" else 0.0, fused=fused)
