"""ONNX import of RNN, GRU and LSTM: unrolled over time steps, whose number must be known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.elementwise_math import hard_sigmoid
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, expand_dims, transpose
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.concat_split_ops import split, stack, unstack
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.nn import nn_ops

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], State]
Activation = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class DirectionWeights:
    """Weights, number of hidden units, and activations of one direction."""

    w: Tensor  # [gates * hidden, inputs]
    r: Tensor  # [gates * hidden, hidden]
    bias: tuple[Tensor, ...]  # per gate, from inputs and state; empty if omitted
    peepholes: tuple[Tensor, ...]
    hidden_size: int
    activations: Sequence[Activation]
    clip: float | None

    def bounded(self, x: Tensor) -> Tensor:
        """The clipped input of an activation."""
        return x if self.clip is None else arithmetic_ops.clip_by_value(x, -self.clip, self.clip)


# -- activations by name


def _activation(node: OnnxNode, name: str, alpha: float | None, beta: float | None) -> Activation:
    def given(default: float, value: float | None = alpha) -> float:
        return default if value is None else value

    second = 0.0 if beta is None else beta
    activations: dict[str, Activation] = {
        "sigmoid": arithmetic_ops.sigmoid,
        "tanh": arithmetic_ops.tanh,
        "relu": nn_ops.relu,
        "softplus": nn_ops.softplus,
        "softsign": lambda x: arithmetic_ops.divide(
            x, arithmetic_ops.add(arithmetic_ops.abs(x), 1.0)
        ),
        "elu": lambda x: arithmetic_ops.where(
            arithmetic_ops.less(x, 0), arithmetic_ops.multiply(nn_ops.elu(x), given(1.0)), x
        ),
        "leakyrelu": lambda x: arithmetic_ops.where(
            arithmetic_ops.less(x, 0), arithmetic_ops.multiply(x, given(0.01)), x
        ),
        "thresholdedrelu": lambda x: arithmetic_ops.where(
            arithmetic_ops.greater(x, given(1.0)), x, 0.0
        ),
        "affine": lambda x: arithmetic_ops.add(arithmetic_ops.multiply(x, given(1.0)), second),
        "scaledtanh": lambda x: arithmetic_ops.multiply(
            arithmetic_ops.tanh(arithmetic_ops.multiply(x, given(1.0, beta))), given(1.0)
        ),
        "hardsigmoid": lambda x: hard_sigmoid(x, given(0.2), given(0.5, beta)),
    }
    if name.lower() not in activations:
        raise node.declined(f"activation {name!r} is not supported")
    return activations[name.lower()]


_WITH_ALPHA = {"elu", "leakyrelu", "thresholdedrelu", "affine", "scaledtanh", "hardsigmoid"}
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _activations(node: OnnxNode, default: Sequence[str], sides: int) -> list[list[Activation]]:
    """The activations of each direction; alphas and betas are assigned in order."""
    names = node.attr("activations") or list(default) * sides
    alphas = list(node.attr("activation_alpha", []))
    betas = list(node.attr("activation_beta", []))
    activations = []
    for name in names:
        alpha = alphas.pop(0) if alphas and name.lower() in _WITH_ALPHA else None
        beta = betas.pop(0) if betas and name.lower() in _WITH_BETA else None
        activations.append(_activation(node, name, alpha, beta))
    each = len(default)
    return [activations[i * each : (i + 1) * each] for i in range(sides)]


# -- cells


def _products(side: DirectionWeights, x: Tensor, h: Tensor, gates: int) -> list[Tensor]:
    """`x W + h R + biases` for each gate."""
    total = arithmetic_ops.add(matmul(x, side.w, False, True), matmul(h, side.r, False, True))
    parts = split(total, gates, 1)
    if side.bias:
        both = zip(parts, side.bias[:gates], side.bias[gates:], strict=True)
        parts = [arithmetic_ops.add(p, arithmetic_ops.add(a, b)) for p, a, b in both]
    return parts


def _rnn(side: DirectionWeights, node: OnnxNode) -> Step:
    (f,) = side.activations

    def step(x: Tensor, state: State) -> State:
        return (f(side.bounded(_products(side, x, state[0], 1)[0])),)

    return step


def _lstm(side: DirectionWeights, node: OnnxNode) -> Step:
    f, g, h = side.activations
    coupled = bool(node.attr("input_forget", 0))

    def step(x: Tensor, state: State) -> State:
        before, cell = state
        i, o, forget, c = _products(side, x, before, 4)
        if side.peepholes:
            i = arithmetic_ops.add(i, arithmetic_ops.multiply(side.peepholes[0], cell))
            forget = arithmetic_ops.add(forget, arithmetic_ops.multiply(side.peepholes[2], cell))
        i = f(side.bounded(i))
        forget = arithmetic_ops.subtract(1.0, i) if coupled else f(side.bounded(forget))
        cell = arithmetic_ops.add(
            arithmetic_ops.multiply(forget, cell), arithmetic_ops.multiply(i, g(side.bounded(c)))
        )
        if side.peepholes:
            o = arithmetic_ops.add(o, arithmetic_ops.multiply(side.peepholes[1], cell))
        return arithmetic_ops.multiply(f(side.bounded(o)), h(cell)), cell

    return step


def _gru(side: DirectionWeights, node: OnnxNode) -> Step:
    f, g = side.activations
    before_reset = bool(node.attr("linear_before_reset", 0))
    wz, wr, wh = split(side.w, 3)
    rz, rr, rh = split(side.r, 3)
    bias: list[Any] = list(side.bias) or [0.0] * 6

    def gate(x: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Any) -> Tensor:
        both = arithmetic_ops.add(matmul(x, w, False, True), matmul(h, r, False, True))
        return f(side.bounded(arithmetic_ops.add(both, b)))

    def step(x: Tensor, state: State) -> State:
        (before,) = state
        z = gate(x, before, wz, rz, arithmetic_ops.add(bias[0], bias[3]))
        reset = gate(x, before, wr, rr, arithmetic_ops.add(bias[1], bias[4]))
        if before_reset:
            recurrent = arithmetic_ops.multiply(
                reset, arithmetic_ops.add(matmul(before, rh, False, True), bias[5])
            )
        else:
            recurrent = arithmetic_ops.add(
                matmul(arithmetic_ops.multiply(reset, before), rh, False, True), bias[5]
            )
        new = arithmetic_ops.add(arithmetic_ops.add(matmul(x, wh, False, True), bias[2]), recurrent)
        new = g(side.bounded(new))
        return (
            arithmetic_ops.add(
                arithmetic_ops.multiply(arithmetic_ops.subtract(1.0, z), new),
                arithmetic_ops.multiply(z, before),
            ),
        )

    return step


# -- over time, in one or two directions


def _unroll(
    step: Step, inputs: Sequence[Tensor], state: State, step_mask: Sequence[Tensor] | None
) -> tuple[list[Tensor], State]:
    """The output of each step, and the last state; where `step_mask` is false the state stays."""
    outputs = []
    for at, x in enumerate(inputs):
        new = step(x, state)
        if step_mask is None:
            state, out = new, new[0]
        else:
            here = step_mask[at]
            state = tuple(arithmetic_ops.where(here, n, s) for n, s in zip(new, state, strict=True))
            out = arithmetic_ops.where(here, new[0], 0.0)
        outputs.append(out)
    return outputs, state


def _recurrent(
    node: OnnxNode,
    gates: int,
    states: int,
    cell: Callable[[DirectionWeights, OnnxNode], Step],
    default: Sequence[str],
    inputs: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    padded_inputs: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, bias, lengths = padded_inputs[:5]
    rest = padded_inputs[5:]
    batch_first = bool(node.attr("layout", 0))
    if batch_first:
        x = transpose(x, [1, 0, 2])
        rest = [t if t is None or i == 2 else transpose(t, [1, 0, 2]) for i, t in enumerate(rest)]
    steps, batch, _ = node.static_shape(x)
    sides, _, hidden = node.static_shape(r)
    reverse = [node.attr("direction", "forward") == "reverse", True]
    activations = _activations(node, default, sides)
    times = unstack(x, steps)
    step_masks = None if lengths is None else _within_lengths(lengths, steps)
    outputs, finals = [], []
    for i in range(sides):
        side = DirectionWeights(
            w[i],
            r[i],
            tuple(split(bias[i], 2 * gates)) if bias is not None else (),
            tuple(split(rest[2][i], 3)) if rest[2] is not None else (),
            hidden,
            activations[i],
            node.attr("clip"),
        )
        none = zeros([batch, hidden], x.dtype)
        start = tuple(none if t is None else t[i] for t in rest[:states])
        order = range(steps)[::-1] if reverse[i] else range(steps)
        step_outputs, last = _unroll(
            cell(side, node),
            [times[t] for t in order],
            start,
            None if step_masks is None else [step_masks[t] for t in order],
        )
        outputs.append(stack(step_outputs[::-1] if reverse[i] else step_outputs))
        finals.append(last)
    y = stack(outputs, 1)  # [steps, directions, batch, hidden]
    final = [stack([end[k] for end in finals]) for k in range(states)]
    if batch_first:
        y = transpose(y, [2, 0, 1, 3])
        final = [transpose(t, [1, 0, 2]) for t in final]
    return [y, *final]


def _within_lengths(lengths: Tensor, steps: int) -> list[Tensor]:
    """For each time step, which sequences [batch, 1] have not ended."""
    ends = expand_dims(lengths, 1)
    return [arithmetic_ops.greater(ends, constant(t, lengths.dtype)) for t in range(steps)]


@imports("RNN")
def _rnn_node(node: OnnxNode, *inputs: Tensor | None) -> Sequence[Tensor]:
    return _recurrent(node, 1, 1, _rnn, ["Tanh"], inputs)


@imports("GRU")
def _gru_node(node: OnnxNode, *inputs: Tensor | None) -> Sequence[Tensor]:
    return _recurrent(node, 3, 1, _gru, ["Sigmoid", "Tanh"], inputs)


@imports("LSTM")
def _lstm_node(node: OnnxNode, *inputs: Tensor | None) -> Sequence[Tensor]:
    return _recurrent(node, 4, 2, _lstm, ["Sigmoid", "Tanh", "Tanh"], inputs)
