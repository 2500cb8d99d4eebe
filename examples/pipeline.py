"""Input, preprocessing, training and checkpoints: four subgraphs at once over shared state.

Figure 2 of the TensorFlow paper (OSDI'16). Each part of the graph is run by its own thread, as
often as it can, and they meet in queues and variables only: a queue of file names, one of records,
one of examples, and the parameters, which the fourth part saves while the third updates them.

python examples/pipeline.py                        one rank
hpcflow run -n 2 --ps 1 examples/pipeline.py       parameters on a server
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise hf.errors.MissingPackageError(
        "this example needs scikit-learn, for its images", hint="pip install scikit-learn"
    ) from error

PIXELS, RECORD, HELD_OUT, FILES, BATCH = 64, 65, 360, 6, 64


def write(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Files of records, a digit and 64 pixels of a byte each; images and digits held out."""
    digits = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(digits.target))
    rows = np.column_stack([digits.target, digits.data]).astype("uint8")[order]
    for i, part in enumerate(np.array_split(rows[HELD_OUT:], FILES)):
        (folder / f"part-{i}.bin").write_bytes(part.tobytes())
    test = rows[:HELD_OUT]
    return test[:, 1:].astype("float32") / 16, test[:, 0].astype("int32")


def reading(files: list[str], epochs: int) -> hf.FIFOQueue:
    """The first part: names of files, then the records in them."""
    names = hf.train.string_input_producer(files, num_epochs=epochs, seed=1)
    content = hf.decode_raw(hf.read_file(names.dequeue()), hf.uint8)
    records = hf.FIFOQueue(512, [hf.uint8], [[RECORD]], name="records")
    put = records.enqueue_many([hf.reshape(content, [-1, RECORD])])
    hf.train.add_queue_runner(hf.train.QueueRunner(records, [put]))
    return records


def preprocessing(records: hf.FIFOQueue) -> hf.RandomShuffleQueue:
    """The second part: a record becomes an image, a little noisy, and its label; shuffled."""
    record = records.dequeue()
    image = hf.cast(record[1:], hf.float32) / 16.0 + hf.random_normal([PIXELS], stddev=0.05)
    examples = hf.RandomShuffleQueue(
        600, 200, [hf.float32, hf.int32], [[PIXELS], []], seed=1, name="examples"
    )
    put = examples.enqueue([image, hf.cast(record[0], hf.int32)])
    hf.train.add_queue_runner(hf.train.QueueRunner(examples, [put]))
    return examples


def model(x: hf.Tensor) -> hf.Tensor:
    """The network: the same parameters wherever it is called."""
    with hf.variable_scope("model", reuse=hf.AUTO_REUSE):
        for i, units in enumerate((64, 10)):
            w = hf.get_variable(f"w{i}", [x.shape[1], units], initializer=hf.glorot_uniform)
            b = hf.get_variable(f"b{i}", [units], initializer=hf.zeros_initializer())
            x = hf.matmul(x, w) + b
            x = hf.nn.relu(x) if units > 10 else x
    return x


def training(examples: hf.RandomShuffleQueue) -> tuple[hf.Operation, hf.Variable]:
    """The third part: a batch of examples, and a step of the parameters."""
    images, labels = examples.dequeue_up_to(BATCH)
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=model(images))
    count = hf.train.get_or_create_global_step()
    step = hf.train.AdamOptimizer(0.003).minimize(hf.reduce_mean(losses), global_step=count)
    return step, count


def save_always(saver: Any, session: hf.Session, folder: Path, count: Any, coord: Any) -> None:
    """The fourth part: a checkpoint, again and again, of whatever the parameters are."""
    while not coord.should_stop():
        saver.save(session, folder, count)
        coord.wait_for_stop(0.2)


def main() -> None:
    """Run all four until the data is at its end, then measure what the last checkpoint holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--checkpoints", type=Path, help="folder, by default a temporary one")
    args = parser.parse_args()
    hf.set_random_seed(1)
    with tempfile.TemporaryDirectory() as scratch:
        images, labels = write(Path(scratch))
        files = sorted(str(path) for path in Path(scratch).glob("part-*.bin"))
        step, count = training(preprocessing(reading(files, args.epochs)))
        x = hf.placeholder(hf.float32, [None, PIXELS])
        hits = hf.equal(hf.argmax(model(x), 1, output_type=hf.int32), labels)
        accuracy = hf.reduce_mean(hf.cast(hits, hf.float32))
        folder, saver = args.checkpoints or Path(scratch) / "saved", hf.train.Saver()
        start = hf.group(hf.global_variables_initializer(), hf.local_variables_initializer())
        with hf.Session() as session:
            session.run(start)
            coord = hf.train.Coordinator()
            threads = hf.train.start_queue_runners(session, coord)
            given = (saver, session, folder, count, coord)
            threads.append(threading.Thread(target=save_always, args=given))
            threads[-1].start()
            with coord.stop_on_exception():
                while not coord.should_stop():
                    session.run(step)
            coord.join(threads)
            saver.save(session, folder, count)
            steps = session.run(count)
        with hf.Session() as session:
            saver.restore(session, folder)
            score = session.run(accuracy, {x: images})
        saved = len(list(folder.glob("step-*")))
        print(f"{steps} steps, {saved} checkpoints kept, held-out accuracy {score:.4f}")


if __name__ == "__main__":
    main()
