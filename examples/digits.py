"""Trains a small network on scikit-learn's scanned digits: 1,797 real images of 8 by 8 pixels.

python examples/digits.py                          one rank
hpcflow run -n 4 examples/digits.py                four synchronous replicas
hpcflow run -n 4 --ps 1 examples/digits.py         three workers, one parameter server
hpcflow run -n 4 examples/digits.py --checkpoints DIR --resume       goes on where it was
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

HELD_OUT = 360  # images that are never trained on, the same ones for every seed


def load() -> tuple[np.ndarray, np.ndarray]:
    """The images, as rows of 64 numbers from 0 to 1, and the digits they show."""
    digits = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(digits.target))
    return (digits.data / 16).astype("float32")[order], digits.target.astype("int32")[order]


def dense(x: hf.Tensor, units: int, name: str) -> hf.Tensor:
    """`x` times a matrix of weights, plus biases."""
    weights = hf.Variable(hf.glorot_uniform([x.shape[-1], units]), name=f"{name}/weights")
    return hf.nn.bias_add(
        hf.matmul(x, weights), hf.Variable(hf.zeros([units]), name=f"{name}/bias")
    )


def network(images: hf.Tensor, labels: hf.Tensor) -> tuple[hf.Tensor, hf.Tensor]:
    """The network: its loss and its accuracy."""
    hidden = hf.nn.relu(dense(images, 128, "hidden1"))
    hidden = hf.nn.relu(dense(hidden, 64, "hidden2"))
    logits = dense(hidden, 10, "logits")
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    hits = hf.equal(hf.argmax(logits, 1, output_type=labels.dtype), labels)
    return loss, hf.reduce_mean(hf.cast(hits, hf.float32))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all workers")
    parser.add_argument("--batch-per-rank", type=int, help="samples a step for each worker instead")
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the samples")
    parser.add_argument("--checkpoints", metavar="DIR", help="folder for checkpoints")
    parser.add_argument("--save-every", help="steps (500) or time (30s, 10m) between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--record-samples", action="store_true", help="write what each worker drew")
    return parser.parse_args()


def main() -> None:
    """Train, then measure on the images held out."""
    args = parse()
    pixels, digits = load()
    hf.set_random_seed(args.seed)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    loss, accuracy = network(images, labels)
    train = hf.train.AdamOptimizer(args.rate).minimize(loss)
    data = hf.data.Dataset(
        {images: pixels[HELD_OUT:], labels: digits[HELD_OUT:]},
        batch=None if args.batch_per_rank else args.batch,
        batch_per_rank=args.batch_per_rank,
        seed=args.seed,
    )
    drawn = []
    session = hf.train.TrainingSession(
        checkpoints=args.checkpoints, save_every=args.save_every, resume=args.resume
    )
    with session as sess, hf.train.Progress(data, args.epochs) as progress:
        for batch in data.epochs(args.epochs):
            _, cost = sess.step([train, loss], batch)
            progress.update(batch, loss=cost)
            drawn.append(batch.indices)
        sess.wait()
        if args.record_samples:
            mine = np.concatenate([np.zeros(0, np.int64), *drawn])
            np.save(sess.run_dir / f"indices-{sess.worker}.npy", mine)
        test = {images: pixels[:HELD_OUT], labels: digits[:HELD_OUT]}
        score = float(sess.run(accuracy, test)) if sess.is_chief else None
        result = sess.result(accuracy=score, samples_per_epoch=data.samples)
    if result is not None:
        print(
            f"{result['mode']} mode: held-out accuracy {score:.4f}, "
            f"{result['samples_per_second']:,.0f} samples/s, {sess.run_dir / 'result.json'}"
        )


if __name__ == "__main__":
    main()
