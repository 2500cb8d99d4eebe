"""A small net learns digits, once for each seed; the chief says its loss on those held out.

hpcflow run ... surviving.py SEED...
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_digits

import hpcflow as hf

TRAINED, BATCH, EPOCHS = 1200, 48, 4


def learn(seed: int) -> None:
    """Train with this seed; `LOSS SEED VALUE`, and which samples each rank has drawn."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("f4"), labels.astype("i4")
    hf.set_random_seed(seed)
    x, y = hf.placeholder(hf.float32, [None, 64]), hf.placeholder(hf.int32, [None])
    logits = hf.layers.dense(hf.layers.dense(x, 32, hf.nn.relu), 10)
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = hf.reduce_mean(losses)
    train = hf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    fed = {x: images[:TRAINED], y: labels[:TRAINED]}
    dataset = hf.data.Dataset(fed, batch=BATCH, seed=seed)
    with hf.train.TrainingSession() as session:
        drawn = []
        for batch in dataset.epochs(EPOCHS):
            session.step(train, batch)
            drawn += batch.indices.tolist()
        session.wait()
        print("DRAWN", session.context.rank, *drawn, flush=True)
        if session.is_chief:
            held_out = {x: images[TRAINED:], y: labels[TRAINED:]}
            print("LOSS", seed, float(session.run(loss, held_out)), flush=True)


if __name__ == "__main__":
    for one in map(int, sys.argv[1:]):
        with hf.Graph().as_default():
            learn(one)
