"""Figure 2 of the OSDI'16 paper: input, preprocessing, training and checkpointing run at once.

Four subgraphs of one graph, each run by threads of its own, meet in queues and variables alone.
"""

import threading

import numpy as np
import pytest
from sklearn.datasets import load_digits

import hpcflow as hf
from hpcflow.errors import OutOfRangeError
from tests.runtime.ranks import run_ranks

EPOCHS, BATCH = 4, 32


def pipeline(folder, device=None):
    """What the program ends with: losses, the saved steps, the parameters."""
    digits = load_digits()
    images, labels = digits.images[:640].astype(np.uint8), digits.target[:640].astype(np.int32)

    # input: the rows of "files", in random order, to a queue of raw records
    record = hf.train.slice_input_producer([images, labels], num_epochs=EPOCHS, seed=1)
    raw = hf.FIFOQueue(64, [hf.uint8, hf.int32], shapes=[(8, 8), ()], name="raw")
    hf.train.add_queue_runner(hf.train.QueueRunner(raw, [raw.enqueue(record)]))

    # preprocessing: two threads make examples of them, for a queue that mixes
    image, label = raw.dequeue()
    pixels = hf.reshape(hf.cast(image, hf.float32) / 16.0 - 0.5, [64])
    with hf.device(device):
        examples = hf.RandomShuffleQueue(
            256, 96, [hf.float32, hf.int32], shapes=[(64,), ()], seed=2, name="examples"
        )
    hf.train.add_queue_runner(
        hf.train.QueueRunner(examples, [examples.enqueue([pixels, label])] * 2)
    )

    # training
    x, y = examples.dequeue_many(BATCH)
    w = hf.Variable(np.zeros((64, 10), np.float32), name="w")
    b = hf.Variable(np.zeros(10, np.float32), name="b")
    marks = hf.Variable(np.zeros(1000, np.float32), trainable=False, name="marks")
    step = hf.Variable(np.int64(0), trainable=False, name="step")
    logits = hf.matmul(x, w) + b
    loss = hf.reduce_mean(hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    learn = hf.train.GradientDescentOptimizer(0.5).minimize(loss)
    train = hf.group(learn, step.assign_add(1), marks.assign_add(hf.ones([1000])))

    start = [hf.global_variables_initializer(), hf.local_variables_initializer()]
    session, coord = hf.Session(), hf.train.Coordinator()
    session.run(start)
    threads = hf.train.start_queue_runners(session, coord)

    # checkpointing: as often as it can, while all others run
    saver, saved = hf.train.Saver([w, b, marks, step], max_to_keep=0), []

    def keep():
        with coord.stop_on_exception():
            while not saved or not coord.wait_for_stop(0.02):
                saved.append(saver.save(session, folder, len(saved)))

    keeper = threading.Thread(target=keep, daemon=True)
    coord.register_thread(keeper)
    keeper.start()

    losses = []
    with pytest.raises(OutOfRangeError, match="'examples' is closed"):
        while True:
            losses.append(float(session.run([loss, train])[0]))
    coord.request_stop()
    coord.join([*threads, keeper], stop_grace_period_secs=60)
    at_end = session.run([w, step])

    steps = []
    for path in saved:
        saver.restore(session, path)
        steps.append(int(session.run(step)))
        found = session.run(marks)
        assert found.min() == found.max()  # no half of an update
    return losses, steps, at_end


def check(losses, steps, at_end):
    assert len(losses) == EPOCHS * 640 // BATCH == at_end[1]
    assert np.mean(losses[-10:]) < 0.6 < 1.5 < losses[0]
    assert steps == sorted(steps) and 0 < len(set(steps)), "it saved while it trained"


def test_on_one_rank(tmp_path):
    with hf.Graph().as_default():
        check(*pipeline(tmp_path))


@pytest.mark.slow
def test_with_variables_and_the_queue_of_examples_on_a_server(tmp_path):
    (found,) = run_ranks(2, lambda context: pipeline(tmp_path, "/job:ps/task:0"), seed=1, ps=1)
    check(*found)
