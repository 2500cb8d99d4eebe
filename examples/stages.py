"""Trains a network in three stages on three ranks, several micro-batches in flight.

Each batch is cut into micro-batches. One is a step of its own, forward through the stages and back;
threads start them, so that a stage works on one while the next stage works on the one before. Their
gradients are added up beside the variables; when all have come, one update takes the sum, as a step
on the whole batch would.

hpcflow run -n 3 --tasks-per-replica 3 examples/stages.py      one replica
hpcflow run -n 6 --tasks-per-replica 3 examples/stages.py      two synchronous ones
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise hf.errors.MissingPackageError(
        "this example needs scikit-learn, for its images", hint="pip install scikit-learn"
    ) from error

HELD_OUT = 360  # images that are never trained on
STAGES = [f"/job:worker/task:{k}" for k in range(3)]


def dense(x: hf.Tensor, units: int, name: str) -> hf.Tensor:
    """`x` times a matrix of weights, plus biases."""
    weights = hf.Variable(hf.glorot_uniform([x.shape[-1], units]), name=f"{name}/weights")
    return hf.nn.bias_add(
        hf.matmul(x, weights), hf.Variable(hf.zeros([units]), name=f"{name}/bias")
    )


def model(images: hf.Tensor) -> hf.Tensor:
    """A layer for each stage."""
    with hf.device(STAGES[0]):
        hidden = hf.nn.relu(dense(images, 128, "hidden1"))
    with hf.device(STAGES[1]):
        hidden = hf.nn.relu(dense(hidden, 64, "hidden2"))
    with hf.device(STAGES[2]):
        return dense(hidden, 10, "logits")


def micro_and_update(loss: hf.Tensor, micros: int) -> tuple[hf.Operation, hf.Operation]:
    """The step of a micro-batch, whose loss is its share of the batch's, and the update by all."""
    variables, count = hf.trainable_variables(), hf.train.get_or_create_global_step()
    added, sums = [], []
    for gradient, v in zip(hf.gradients(loss, variables), variables, strict=True):
        with hf.colocate_with(v.op):
            total = hf.ConditionalAccumulator(v.dtype, v.shape, reduction_type="SUM")
            added.append(total.apply_grad(gradient, local_step=count))
            share = hf.cast(hf.replica_share(), v.dtype)  # of several replicas, if there are
            sums.append(hf.replica_sum(total.take_grad(micros) * share))
    optimizer = hf.train.AdamOptimizer(0.003)
    update = optimizer.apply_gradients(zip(sums, variables, strict=True), global_step=count)
    return hf.group(*added), update


def main() -> None:
    """Train, then measure on the images held out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples an update")
    parser.add_argument("--micros", type=int, default=8, help="micro-batches an update")
    parser.add_argument("--in-flight", type=int, default=4, help="at most; HPCFLOW_MAX_IN_FLIGHT")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    source = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(source.target))
    pixels = (source.data / 16).astype("float32")[order]
    digits = source.target.astype("int32")[order]

    hf.set_random_seed(args.seed)
    images = hf.placeholder(hf.float32, [None, 64], name="images")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    samples = hf.placeholder(hf.float32, [], name="samples")  # of the whole batch
    logits = model(images)
    with hf.device(STAGES[2]):  # beside the logits
        losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = hf.reduce_sum(losses) / samples
        hits = hf.equal(hf.argmax(logits, 1, output_type=hf.int32), labels)
        accuracy = hf.reduce_mean(hf.cast(hits, hf.float32))
    micro, update = micro_and_update(loss, args.micros)

    training = {images: pixels[HELD_OUT:], labels: digits[HELD_OUT:]}
    data = hf.data.Dataset(training, batch=args.batch, seed=args.seed)
    with (
        hf.train.TrainingSession() as sess,
        hf.train.Progress(data, args.epochs) as progress,
        ThreadPoolExecutor(args.in_flight) as threads,
    ):

        def run(feed: dict) -> float:
            return sess.run([loss, micro], feed)[0]

        for batch in data.epochs(args.epochs):
            parts = (np.array_split(batch[t], args.micros) for t in (images, labels))
            feeds = [
                {images: x, labels: y, samples: max(batch.size, 1)}
                for x, y in zip(*parts, strict=True)
            ]
            cost = sum(threads.map(run, feeds))
            sess.step(update, batch)
            progress.update(batch, loss=cost)
        sess.wait()
        test = {images: pixels[:HELD_OUT], labels: digits[:HELD_OUT]}
        score = float(sess.run(accuracy, test)) if sess.is_chief else None
        result = sess.result(accuracy=score)
    if result is not None:
        print(f"held-out accuracy {score:.4f}, {result['samples_per_second']:,.0f} samples/s")


if __name__ == "__main__":
    main()
