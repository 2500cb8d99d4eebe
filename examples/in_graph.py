"""Trains one graph that has a tower for each rank, on scikit-learn's digits: in-graph replication.

hpcflow run -n 3 --tasks-per-replica 3 examples/in_graph.py             variables on the driver
hpcflow run -n 4 --ps 1 --tasks-per-replica 3 examples/in_graph.py      variables on a server
"""

import argparse
import itertools

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise hf.errors.MissingPackageError(
        "this example needs scikit-learn, for its images", hint="pip install scikit-learn"
    ) from error

HELD_OUT = 360  # images that are never trained on


def parameters(*sizes: int) -> list[tuple[hf.Variable, hf.Variable]]:
    """Weights and biases of each layer, which all towers share."""
    return [
        (
            hf.Variable(hf.glorot_uniform([n, m]), name=f"layer{i}/weights"),
            hf.Variable(hf.zeros([m]), name=f"layer{i}/bias"),
        )
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
    ]


def network(x: hf.Tensor, layers: list[tuple[hf.Variable, hf.Variable]]) -> hf.Tensor:
    """The logits of images."""
    for i, (weights, bias) in enumerate(layers):
        x = hf.nn.bias_add(hf.matmul(hf.nn.relu(x) if i else x, weights), bias)
    return x


def main() -> None:
    """Train, then measure on the images held out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--towers", type=int, default=3, help="as --tasks-per-replica")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all towers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    source = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(source.target))
    pixels = (source.data / 16).astype("float32")[order]
    digits = source.target.astype("int32")[order]

    hf.set_random_seed(args.seed)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    layers = parameters(64, 128, 64, 10)
    samples = hf.cast(hf.size(labels), hf.float32)
    parts = []
    for k in range(args.towers):
        x, y = images[k :: args.towers], labels[k :: args.towers]  # cut before they are sent
        with hf.device(f"/job:worker/task:{k}"):
            logits = network(x, layers)
            losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            parts.append(hf.reduce_sum(losses) / samples)
    # each tower's gradients are made on its rank and added up where the variables live
    loss = hf.add_n(parts)
    train = hf.train.AdamOptimizer(0.003).minimize(loss)
    hits = hf.equal(hf.argmax(network(images, layers), 1, output_type=hf.int32), labels)
    accuracy = hf.reduce_mean(hf.cast(hits, hf.float32))

    training = {images: pixels[HELD_OUT:], labels: digits[HELD_OUT:]}
    data = hf.data.Dataset(training, batch=args.batch, seed=args.seed)
    with hf.train.TrainingSession() as sess, hf.train.Progress(data, args.epochs) as progress:
        for batch in data.epochs(args.epochs):
            _, cost = sess.step([train, loss], batch)
            progress.update(batch, loss=cost)
        sess.wait()
        test = {images: pixels[:HELD_OUT], labels: digits[:HELD_OUT]}
        score = float(sess.run(accuracy, test)) if sess.is_chief else None
        result = sess.result(accuracy=score)
    if result is not None:
        print(f"{args.towers} towers: held-out accuracy {score:.4f}")


if __name__ == "__main__":
    main()
