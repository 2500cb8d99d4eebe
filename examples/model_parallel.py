"""Trains one network cut over three ranks by device scopes alone, on scikit-learn's digits.

hpcflow run -n 3 --tasks-per-replica 3 examples/model_parallel.py     one replica
hpcflow run -n 6 --tasks-per-replica 3 examples/model_parallel.py     two synchronous ones
"""

import argparse

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise hf.errors.MissingPackageError(
        "this example needs scikit-learn, for its images", hint="pip install scikit-learn"
    ) from error

HELD_OUT = 360  # images that are never trained on


def dense(x: hf.Tensor, units: int, name: str) -> hf.Tensor:
    """`x` times a matrix of weights, plus biases."""
    weights = hf.Variable(hf.glorot_uniform([x.shape[-1], units]), name=f"{name}/weights")
    return hf.nn.bias_add(
        hf.matmul(x, weights), hf.Variable(hf.zeros([units]), name=f"{name}/bias")
    )


def model(images: hf.Tensor) -> hf.Tensor:
    """A layer for each task; values cross to the next task, gradients come back."""
    with hf.device("/job:worker/task:0"):
        hidden = hf.nn.relu(dense(images, 128, "hidden1"))
    with hf.device("/job:worker/task:1"):
        hidden = hf.nn.relu(dense(hidden, 64, "hidden2"))
    with hf.device("/job:worker/task:2"):
        return dense(hidden, 10, "logits")


def main() -> None:
    """Train, then measure on the images held out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all replicas")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    source = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(source.target))
    pixels = (source.data / 16).astype("float32")[order]
    digits = source.target.astype("int32")[order]

    hf.set_random_seed(args.seed)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    logits = model(images)
    with hf.device("/job:worker/task:2"):  # beside the logits
        losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = hf.reduce_mean(losses)
        hits = hf.equal(hf.argmax(logits, 1, output_type=hf.int32), labels)
        accuracy = hf.reduce_mean(hf.cast(hits, hf.float32))
    train = hf.train.AdamOptimizer(0.003).minimize(loss)

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
        print(f"held-out accuracy {score:.4f}, {result['samples_per_second']:,.0f} samples/s")


if __name__ == "__main__":
    main()
