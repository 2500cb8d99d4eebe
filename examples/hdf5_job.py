"""Trains on an HDF5 file that it makes itself: scanned digits, shifted and noisy, many times over.

python examples/hdf5_job.py --data digits.h5                          one rank
hpcflow run -n 4 examples/hdf5_job.py --data digits.h5 --checkpoints DIR --resume
"""

import argparse
import os
from pathlib import Path

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise hf.errors.MissingPackageError(
        "this example needs scikit-learn, for its images", hint="pip install scikit-learn"
    ) from error

HELD_OUT = 360  # images that the file does not have


def make(path: Path, samples: int) -> None:
    """Write the file: pixels from 0 to 16 as bytes, and the digits they show."""
    import h5py

    digits = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.int16), digits.target[order].astype(np.int32)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with h5py.File(draft, "w") as file:
        held_out = file.create_group("held_out")
        held_out["images"], held_out["labels"] = (
            images[:HELD_OUT].astype(np.uint8),
            labels[:HELD_OUT],
        )
        train = file.create_group("train")
        pixels = train.create_dataset("images", (samples, 8, 8), np.uint8, chunks=(1024, 8, 8))
        answers = train.create_dataset("labels", (samples,), np.int32)
        random = np.random.Generator(np.random.Philox(7))
        for start in range(0, samples, 1024):
            which = random.integers(HELD_OUT, len(labels), min(1024, samples - start))
            shifted = np.roll(images[which], random.integers(-1, 2), axis=2)
            noisy = shifted + random.integers(-2, 3, shifted.shape)
            pixels[start : start + len(which)] = noisy.clip(0, 16).astype(np.uint8)
            answers[start : start + len(which)] = labels[which]
    draft.replace(path)


def made(path: Path, samples: int) -> Path:
    """The file, made by one rank while the others wait."""
    with hf.Session() as here:
        if here.context.is_chief and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path, samples)
        here.context.barrier()
    return path


def dense(x: hf.Tensor, units: int, name: str) -> hf.Tensor:
    """`x` times a matrix of weights, plus biases."""
    weights = hf.Variable(hf.glorot_uniform([x.shape[-1], units]), name=f"{name}/weights")
    return hf.nn.bias_add(
        hf.matmul(x, weights), hf.Variable(hf.zeros([units]), name=f"{name}/bias")
    )


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("digits.h5"), help="made if not there")
    parser.add_argument("--samples", type=int, default=40_000, help="of the file, if it is made")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all workers")
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate")
    parser.add_argument("--cache", action="store_true", help="copy the file to the node's own disk")
    parser.add_argument("--checkpoints", metavar="DIR", help="save the state of the job there")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    return parser.parse_args()


def main() -> None:
    """Train, then measure on the images held out."""
    args = parse()
    path = made(args.data, args.samples)
    hf.set_random_seed(1)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    logits = dense(hf.nn.relu(dense(images, 128, "hidden")), 10, "logits")
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    hits = hf.equal(hf.argmax(logits, 1, output_type=labels.dtype), labels)
    accuracy = hf.reduce_mean(hf.cast(hits, hf.float32))
    train = hf.train.AdamOptimizer(args.rate).minimize(loss)

    def scale(batch: hf.data.Batch) -> dict[hf.Tensor, np.ndarray]:
        rows = batch[images].reshape(-1, 64).astype(np.float32) / 16
        return {images: rows, labels: batch[labels]}

    data = hf.data.Dataset(
        {
            images: hf.data.hdf5(path, "train/images", cache=args.cache),
            labels: hf.data.hdf5(path, "train/labels", cache=args.cache),
        },
        batch=args.batch,
        shuffle=hf.data.Blocks(rows=1024, window=8),
        map=scale,
    )
    test = hf.data.Dataset(
        {
            images: hf.data.hdf5(path, "held_out/images"),
            labels: hf.data.hdf5(path, "held_out/labels"),
        },
        batch=HELD_OUT,
        shuffle=False,
        map=scale,
    )
    session = hf.train.TrainingSession(checkpoints=args.checkpoints, resume=args.resume)
    with session as sess, hf.train.Progress(data, args.epochs) as progress:
        for batch in data.epochs(args.epochs):
            _, cost = sess.step([train, loss], batch)
            progress.update(batch, loss=cost)
        sess.wait()
        shares = [(b.size, float(sess.run(accuracy, b))) for b in test.epoch(0) if b.size]
        score = sum(n * a for n, a in shares) / max(1, sum(n for n, _ in shares))
        result = sess.result(accuracy=score, samples_per_epoch=data.samples)
    if result is not None:
        waited = max(result["input_wait_seconds"])
        print(
            f"{result['mode']} mode: the chief's held-out accuracy {score:.4f}, "
            f"{result['samples_per_second']:,.0f} samples/s, "
            f"{waited:.2f} of {result['seconds']:.2f} s were waits for input"
        )


if __name__ == "__main__":
    main()
