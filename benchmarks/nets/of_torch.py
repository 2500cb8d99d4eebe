"""The networks in PyTorch: eager, compiled by Inductor ("compile"), as CUDA graphs ("graph").

Behind `@` a mode has the device that it is for: "eager@cuda".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from nets import spec


def step(net: str, mode: str) -> Callable[[], float]:
    mode, _, where = mode.partition("@")
    device = torch.device(where or "cpu")
    torch.backends.cudnn.allow_tf32 = False
    drawn = {name: torch.from_numpy(value) for name, value in spec.weights(net).items()}
    drawn = of_lstm(drawn) if net.startswith("lstm") else drawn
    v = {name: torch.nn.Parameter(laid_out(value.to(device))) for name, value in drawn.items()}
    loss = LOSSES[net]
    if mode == "compile":
        loss = torch.compile(loss, mode="reduce-overhead" if where else None)
    parameters = list(v.values())
    optimizer = trained(parameters, *spec.OPTIMIZERS[net])
    batches = spec.batches(net)

    def train(*batch: torch.Tensor) -> torch.Tensor:
        for parameter in parameters:
            parameter.grad = None
        found = loss(v, *batch)
        found.backward()
        if optimizer is not None:
            optimizer.step()
        return found

    def fed() -> list[torch.Tensor]:
        batch = [torch.from_numpy(a) for a in next(batches)]
        batch = [b.long() if b.dtype == torch.int32 else b for b in batch]
        return [b.to(device) for b in batch]

    made = captured(train, fed(), parameters, optimizer) if mode == "graph" else train
    batches = spec.batches(net)
    return lambda: made(*fed()).item()


def captured(
    train: Callable[..., Any], given: list[Any], parameters: list[Any], optimizer: Any
) -> Callable[..., Any]:
    """`train` as one CUDA graph; what its rehearsals did to the parameters is undone."""
    before = [parameter.detach().clone() for parameter in parameters]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = train(*given)
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for value in state.values():
                if torch.is_tensor(value):
                    value.zero_()

    def run(*batch: Any) -> Any:
        for place, value in zip(given, batch, strict=True):
            place.copy_(value)
        graph.replay()
        return found

    return run


def laid_out(value: torch.Tensor) -> torch.Tensor:
    """Filters as PyTorch has them, in the memory format that is faster for NHWC images."""
    if value.dim() != 4:
        return value
    return value.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)


def of_lstm(drawn: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of the cell as PyTorch has them: [out, in], gates in the order i f g o, not i g f o.

    What the cell adds to the forget gate is part of its bias.
    """
    size = spec.LSTM["hidden"]
    i, g, f, o = drawn.pop("kernel").t().chunk(4, 0)
    kernel = torch.cat([i, f, g, o])
    bi, bg, bf, bo = drawn.pop("bias").chunk(4)
    parts = {"bias": torch.cat([bi, bf + 1.0, bg, bo])}
    parts |= {"of_x": kernel[:, :size].contiguous(), "of_h": kernel[:, size:].contiguous()}
    return drawn | parts


def trained(parameters: list[Any], kind: str, rate: float) -> Any:
    makers = {
        "none": lambda: None,
        "sgd": lambda: torch.optim.SGD(parameters, rate),
        "momentum": lambda: torch.optim.SGD(parameters, rate, 0.9),
        "adam": lambda: torch.optim.Adam(parameters, rate),
    }
    return makers[kind]()


def dense(v: Any, i: int, x: Any) -> Any:
    return torch.addmm(v[f"b{i}"], x, v[f"w{i}"])


def mlp(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = F.relu(dense(v, i, x))
    return F.cross_entropy(dense(v, 2, x), y)


def flat(x: Any) -> Any:
    """Pixels in the order of NHWC."""
    return x.permute(0, 2, 3, 1).flatten(1)


def lenet(v: Any, x: Any, y: Any) -> Any:
    x = x.permute(0, 3, 1, 2)
    for i in range(2):
        x = F.max_pool2d(F.relu(F.conv2d(x, v[f"w{i}"], v[f"b{i}"], padding=2)), 2)
    return F.cross_entropy(dense(v, 3, F.relu(dense(v, 2, flat(x)))), y)


def alexnet(v: Any, x: Any, y: Any) -> Any:
    x = x.permute(0, 3, 1, 2)
    for i, (_, _, _, stride, around, pooled) in enumerate(spec.ALEXNET_CONV):
        x = F.relu(F.conv2d(x, v[f"w{i}"], v[f"b{i}"], stride, around))
        x = F.max_pool2d(x, 3, 2) if pooled else x
    x = F.relu(dense(v, 6, F.relu(dense(v, 5, flat(x)))))
    return F.cross_entropy(dense(v, 7, x), y)


def resnet50(v: Any, x: Any, y: Any) -> Any:
    """In bfloat16 as autocast has it."""
    filters = spec.resnet_filters()

    def conv(x: Any, name: str) -> Any:
        k, _, _, stride = filters[name]
        x = F.conv2d(x, v[name], None, stride, k // 2)
        return F.batch_norm(x, None, None, v[f"{name}/scale"], v[f"{name}/shift"], True, 0.0, 1e-3)

    with torch.autocast(x.device.type, torch.bfloat16):
        x = F.relu(conv(x.permute(0, 3, 1, 2), "stem"))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=float("-inf")), 3, 2)
        for name in (name.removesuffix("/in") for name in filters if name.endswith("/in")):
            past = conv(x, f"{name}/past") if f"{name}/past" in filters else x
            h = F.relu(conv(F.relu(conv(x, f"{name}/in")), f"{name}/over"))
            x = F.relu(conv(h, f"{name}/out") + past)
        x = x.mean((2, 3))
    return F.cross_entropy(torch.addmm(v["b"], x.float(), v["w"]), y)


def hidden(v: Any, words: Any, sparse: bool) -> Any:
    """The outputs of all steps by PyTorch's own LSTM, [steps x batch, hidden]."""
    x = F.embedding(words, v["embedding"], sparse=sparse)
    weights = [v["of_x"], v["of_h"], v["bias"], torch.zeros_like(v["bias"])]
    zeros = x.new_zeros(1, x.shape[1], spec.LSTM["hidden"])
    out = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, True, False, False)[0]
    return out.flatten(0, 1)


def lstm_full(v: Any, words: Any, following: Any) -> Any:
    out = hidden(v, words, False)
    return F.cross_entropy(F.linear(out, v["softmax"], v["softmax_bias"]), following.flatten())


def lstm_sampled(v: Any, words: Any, following: Any, candidates: Any) -> Any:
    out, labels = hidden(v, words, True), following.flatten()
    true = (out * F.embedding(labels, v["softmax"], sparse=True)).sum(1) + v["softmax_bias"][labels]
    far = out @ F.embedding(candidates, v["softmax"], sparse=True).t()
    far = far + v["softmax_bias"][candidates] - spec.log_expected(candidates.float(), torch)
    far = far.masked_fill(candidates[None, :] == labels[:, None], -1e9)
    true = true - spec.log_expected(labels.float(), torch)
    return F.cross_entropy(torch.cat([true[:, None], far], 1), torch.zeros_like(labels))


def word2vec(v: Any, center: Any, context: Any, negative: Any) -> Any:
    u = F.embedding(center, v["center"], sparse=True)
    near = (u * F.embedding(context, v["context"], sparse=True)).sum(1)
    far = torch.bmm(F.embedding(negative, v["context"], sparse=True), u[:, :, None])[:, :, 0]
    return -(F.logsigmoid(near).mean() + F.logsigmoid(-far).sum(1).mean())


def transformer(v: Any, x: Any, y: Any) -> Any:
    b, t, d = x.shape
    heads = spec.TRANSFORMER["heads"]

    def dense(x: Any, name: str) -> Any:
        return x @ v[name] + v[f"{name}_bias"]

    def normal(x: Any, i: int) -> Any:
        return F.layer_norm(x, (d,), v[f"scale{i}"], v[f"shift{i}"])

    parts = dense(normal(x, 1), "qkv").chunk(3, -1)
    q, k, w = (p.view(b, t, heads, d // heads).transpose(1, 2) for p in parts)
    mixed = F.scaled_dot_product_attention(q, k, w).transpose(1, 2).reshape(b, t, d)
    h = x + dense(mixed, "out")
    h = h + dense(F.gelu(dense(normal(h, 2), "up"), approximate="tanh"), "down")
    return ((h - y) ** 2).mean()


LOSSES = {
    "mlp_sgd": mlp,
    "mlp_adam": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "lstm_full": lstm_full,
    "lstm_sampled": lstm_sampled,
    "word2vec": word2vec,
    "transformer": transformer,
    "resnet50": resnet50,
}
