"""A recommendation model (DLRM): bags of embeddings, their dot products and two MLPs."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("sgd", 0.05)
SPARSE = True
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 1, 0)
BATCH, TABLES, ROWS, BAG, SIZE, NUMBERS = 1024, 12, 20_000, 4, 32, 13
BOTTOM, TOP = (NUMBERS, 256, 128, SIZE), (SIZE + TABLES * (TABLES + 1) // 2, 256, 128, 1)
BELOW = np.flatnonzero(np.tri(TABLES + 1, k=-1).ravel()).astype("i4")  # the pairs, each once


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(scale: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype("f4")

    values = {f"table{i}": normal(0.1, ROWS, SIZE) for i in range(TABLES)}
    for name, sizes in (("bottom", BOTTOM), ("top", TOP)):
        for i in range(3):
            values[f"{name}{i}"] = normal((2 / sizes[i]) ** 0.5, sizes[i], sizes[i + 1])
            values[f"{name}_bias{i}"] = np.zeros(sizes[i + 1], "f4")
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    numbers = rng.standard_normal((BATCH, NUMBERS)).astype("f4")
    ids = rng.integers(0, ROWS, (TABLES, BATCH, BAG)).astype("i4")
    return numbers, ids, (rng.random(BATCH) < 0.3).astype("f4")


def hpcflow_loss(hf: Any, v: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
    def mlp(x: Any, name: str) -> Any:
        for i in range(3):
            x = hf.nn.bias_add(hf.matmul(x, v[f"{name}{i}"]), v[f"{name}_bias{i}"])
            x = hf.nn.relu(x) if i < 2 or name == "bottom" else x
        return x

    dense, of_table = mlp(numbers, "bottom"), hf.unstack(ids, TABLES)
    bags = [
        hf.reduce_sum(hf.nn.embedding_lookup(v[f"table{i}"], of_table[i]), 1) for i in range(TABLES)
    ]
    vectors = hf.stack([dense, *bags], 1)
    products = hf.reshape(hf.matmul(vectors, vectors, transpose_b=True), [-1, (TABLES + 1) ** 2])
    logits = mlp(hf.concat([dense, hf.gather(products, BELOW, axis=1)], 1), "top")
    losses = hf.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=hf.squeeze(logits, [1]))
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
    def mlp(x: Any, name: str) -> Any:
        for i in range(3):
            x = tf.nn.bias_add(tf.matmul(x, v[f"{name}{i}"]), v[f"{name}_bias{i}"])
            x = tf.nn.relu(x) if i < 2 or name == "bottom" else x
        return x

    dense, of_table = mlp(numbers, "bottom"), tf.unstack(ids, TABLES)
    bags = [
        tf.reduce_sum(tf.nn.embedding_lookup(v[f"table{i}"], of_table[i]), 1) for i in range(TABLES)
    ]
    vectors = tf.stack([dense, *bags], 1)
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, (TABLES + 1) ** 2])
    logits = mlp(tf.concat([dense, tf.gather(products, BELOW, axis=1)], 1), "top")
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=tf.squeeze(logits, [1]))
    return tf.reduce_mean(losses)


def torch_loss(torch: Any, v: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
    F = torch.nn.functional
    sparse = not torch.compiler.is_compiling()  # Inductor compiles no sparse gradients

    def mlp(x: Any, name: str) -> Any:
        for i in range(3):
            x = torch.addmm(v[f"{name}_bias{i}"], x, v[f"{name}{i}"])
            x = F.relu(x) if i < 2 or name == "bottom" else x
        return x

    dense = mlp(numbers, "bottom")
    bags = [
        F.embedding_bag(ids[i], v[f"table{i}"], mode="sum", sparse=sparse) for i in range(TABLES)
    ]
    vectors = torch.stack([dense, *bags], 1)
    products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
    pairs = products.index_select(1, torch.from_numpy(BELOW).long())
    logits = mlp(torch.cat([dense, pairs], 1), "top")
    return F.binary_cross_entropy_with_logits(logits[:, 0], clicked)


def jax_rows(v: Any, numbers: Any, ids: Any, clicked: Any) -> dict[str, Any]:
    return {f"table{i}": ids[i] for i in range(TABLES)}


def jax_loss(jax: Any, v: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
    """Of the rows of the tables: `table0`, ... are [batch, bag, size]."""
    jnp = jax.numpy

    def mlp(x: Any, name: str) -> Any:
        for i in range(3):
            x = x @ v[f"{name}{i}"] + v[f"{name}_bias{i}"]
            x = jax.nn.relu(x) if i < 2 or name == "bottom" else x
        return x

    dense = mlp(numbers, "bottom")
    vectors = jnp.stack([dense, *(v[f"table{i}"].sum(1) for i in range(TABLES))], 1)
    products = (vectors @ vectors.swapaxes(1, 2)).reshape(-1, (TABLES + 1) ** 2)
    x = mlp(jnp.concatenate([dense, products[:, BELOW]], 1), "top")[:, 0]
    return jnp.mean(jnp.maximum(x, 0) - x * clicked + jnp.log1p(jnp.exp(-jnp.abs(x))))
