# ruff: noqa: E402
"""The lessons in PyTorch: same data, batches and initial weights; writes torch.json beside it.

python tests/programs/twins.py --seeds 0 1 2       in an environment with torch and scikit-learn

The tests compare the lessons with what it wrote, so that they need no PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "examples" / "learn")]

import conv
import dense
import lesson
import lstm
import numpy as np
import policy
import torch
import torch.nn.functional as F
import transformer
import word2vec

RESULTS = HERE / "torch.json"


def parameters(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(w, requires_grad=True) for k, w in weights.items()}


def batches(arrays: list[np.ndarray], module: Any, seed: int) -> Any:
    """The batches of all steps, as tensors."""
    rows = lesson.order(len(arrays[0]), module.BATCH, module.STEPS, seed)
    for chosen in rows.reshape(module.STEPS, module.BATCH):
        yield [torch.tensor(a[chosen]) for a in arrays]


def split(arrays: list[np.ndarray], held_out: int) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    return [a[:-held_out] for a in arrays], [torch.tensor(a[-held_out:]) for a in arrays]


def adam(v: dict[str, torch.Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(v.values(), lr=rate)


def fit(module: Any, seed: int, arrays: list[np.ndarray], optimizer: Any, loss: Any) -> None:
    for batch in batches(arrays, module, seed):
        optimizer.zero_grad()
        loss(*batch).backward()
        optimizer.step()


def accuracy(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float((scores.argmax(1) == labels).float().mean())


def dense_twin(seed: int) -> float:
    pixels, digits = dense.data()
    train, test = split([pixels, digits.astype("int64")], dense.HELD_OUT)
    v = parameters(dense.weights(seed))

    def scores(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ v["w1"] + v["b1"]) @ v["w2"] + v["b2"]

    step = adam(v, dense.RATE)
    fit(dense, seed, train, step, lambda x, y: F.cross_entropy(scores(x), y))
    return accuracy(scores(test[0]), test[1])


def conv_twin(seed: int) -> float:
    pixels, digits = dense.data()
    train, test = split([pixels, digits.astype("int64")], conv.HELD_OUT)
    v = parameters(conv.weights(seed))

    def scores(x: torch.Tensor) -> torch.Tensor:
        h = x.reshape(-1, 1, 8, 8)
        for f, b in (("f1", "b1"), ("f2", "b2")):
            h = torch.relu(F.conv2d(h, v[f].permute(3, 2, 0, 1), v[b], padding=1))
            h = F.max_pool2d(h, 2)
        return h.permute(0, 2, 3, 1).reshape(-1, 96) @ v["w"] + v["b"]

    step = adam(v, conv.RATE)
    fit(conv, seed, train, step, lambda x, y: F.cross_entropy(scores(x), y))
    return accuracy(scores(test[0]), test[1])


def word2vec_twin(seed: int) -> float:
    train, test = split(list(word2vec.data()), word2vec.HELD_OUT)
    v = parameters(word2vec.weights(seed))
    size, count = word2vec.VOCABULARY, word2vec.SAMPLED
    rank = torch.arange(size, dtype=torch.float64)
    chance = torch.log((rank + 2) / (rank + 1)) / np.log(size + 1)
    rng = np.random.default_rng(seed)

    def sampled() -> tuple[torch.Tensor, int]:
        """Classes drawn without repetition, log-uniform, and how many draws that took."""
        found: dict[int, None] = {}
        tries = 0
        while len(found) < count:
            found[int(np.exp(rng.random() * np.log(size + 1))) - 1] = None
            tries += 1
        return torch.tensor(list(found)), tries

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        others, tries = sampled()
        expected = -torch.expm1(tries * torch.log1p(-chance))
        h = v["table"][x]
        true = (h * v["w"][y]).sum(1) + v["b"][y] - torch.log(expected[y]).float()
        rest = h @ v["w"][others].T + v["b"][others] - torch.log(expected[others]).float()
        rest = torch.where(others[None] == y[:, None], rest - 1e30, rest)
        return -F.log_softmax(torch.cat([true[:, None], rest], 1), 1)[:, 0].mean()

    step = torch.optim.Adagrad(v.values(), lr=word2vec.RATE, initial_accumulator_value=0.1)
    fit(word2vec, seed, train, step, loss)
    with torch.no_grad():
        return float(F.cross_entropy(v["table"][test[0]] @ v["w"].T + v["b"], test[1]))


def lstm_twin(seed: int) -> float:
    train, test = split(list(lstm.data()), lstm.HELD_OUT)
    v = parameters(lstm.weights(seed))

    def sums(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        count = int(lengths.max())
        inputs = v["table"][x[:, :count].long()]
        c = h = torch.zeros(len(x), lstm.UNITS)
        total = torch.zeros(len(x))
        for t in range(count):
            gates = torch.cat([inputs[:, t], h], 1) @ v["kernel"] + v["bias"]
            i, new, f, o = gates.chunk(4, 1)
            c = c * torch.sigmoid(f + 1) + torch.sigmoid(i) * torch.tanh(new)
            h = torch.tanh(c) * torch.sigmoid(o)
            losses = F.cross_entropy(h @ v["w"] + v["b"], x[:, t + 1].long(), reduction="none")
            total = total + losses * (t < lengths)
        return total

    step = adam(v, lstm.RATE)
    fit(lstm, seed, train, step, lambda x, n: sums(x, n).mean() / 30)
    with torch.no_grad():
        return float(sums(*test).sum() / test[1].sum())


def policy_twin(seed: int) -> float:
    train, (test,) = split([policy.data()], policy.HELD_OUT)
    v = parameters(policy.weights(seed))
    torch.manual_seed(seed)

    def episodes(state: torch.Tensor, draw: bool) -> tuple[torch.Tensor, torch.Tensor]:
        alive, logs, lived = torch.ones(len(state)), [], []
        while len(logs) < policy.LONGEST and alive.any():
            score = (torch.tanh(state @ v["w"] + v["b"]) @ v["u"] + v["c"])[:, 0]
            level = torch.rand(len(state)) if draw else torch.full((len(state),), 0.5)
            push = torch.where(level < torch.sigmoid(score), 1.0, -1.0)
            logs.append(-F.softplus(-push * score) * alive)
            lived.append(alive)
            with torch.no_grad():
                state = policy.moved(state, push, torch.sin, torch.cos, torch.stack)
            up = (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.2095)
            alive = alive * up.float()
        return torch.stack(logs), torch.stack(lived)

    def loss(start: torch.Tensor) -> torch.Tensor:
        logs, lived = episodes(start, draw=True)
        to_come = lived.flip(0).cumsum(0).flip(0)
        usual = (to_come * lived).sum(1, keepdim=True) / lived.sum(1, keepdim=True).clamp(min=1)
        return (-logs * ((to_come - usual) * lived / 10)).sum(0).mean()

    fit(policy, seed, train, adam(v, policy.RATE), loss)
    with torch.no_grad():
        return float(episodes(test, draw=False)[1].sum(0).mean())


def transformer_twin(seed: int) -> float:
    train, (test,) = split([transformer.data()], transformer.HELD_OUT)
    v = parameters(transformer.weights(seed))
    time, depth, heads = transformer.CONTEXT, transformer.DEPTH, transformer.HEADS

    def loss(x: torch.Tensor) -> torch.Tensor:
        x = x.long()
        h = v["table"][x[:, :-1]] + v["places"]
        for i in range(transformer.LAYERS):
            normed = F.layer_norm(h, [depth], v[f"before_scale{i}"], v[f"before_shift{i}"])
            q, k, value = (
                part.reshape(-1, time, heads, depth // heads).transpose(1, 2)
                for part in (normed @ v[f"qkv{i}"]).chunk(3, -1)
            )
            seen = F.scaled_dot_product_attention(q, k, value, is_causal=True)
            h = h + seen.transpose(1, 2).reshape(-1, time, depth) @ v[f"mix{i}"]
            normed = F.layer_norm(h, [depth], v[f"middle_scale{i}"], v[f"middle_shift{i}"])
            h = h + torch.relu(normed @ v[f"up{i}"]) @ v[f"down{i}"]
        scores = h @ v["w"] + v["b"]
        return F.cross_entropy(scores.reshape(-1, transformer.KINDS), x[:, 1:].reshape(-1))

    fit(transformer, seed, train, adam(v, transformer.RATE), loss)
    with torch.no_grad():
        return float(loss(test))


def corpus() -> str:
    """A digest of the text, which differs from one version of Python to the next."""
    return hashlib.sha256(lesson.text().encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    twins = {
        **{"dense": dense_twin, "conv": conv_twin, "word2vec": word2vec_twin},
        **{"lstm": lstm_twin, "policy": policy_twin, "transformer": transformer_twin},
    }
    found = {name: [twin(seed) for seed in seeds] for name, twin in twins.items()}
    facts = {"torch": torch.__version__, "python": sys.version.split()[0], "corpus": corpus()}
    text = json.dumps({**facts, "seeds": seeds, "scores": found}, indent=1)
    RESULTS.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
