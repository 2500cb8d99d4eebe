"""TensorFlow 1's classic script for a parameter server and workers; only the import is changed.

    hpcflow run -n 3 --ps 1 tests/train/replica_script.py

Images are scikit-learn's 1,797 digits of 8 by 8 pixels in place of MNIST's.
"""

# ruff: noqa: E501, UP031

import math

import hpcflow as tf

import numpy as np  # isort: skip
from sklearn.datasets import load_digits

flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "localhost:2222", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "localhost:2223,localhost:2224", "The same of the workers")
flags.DEFINE_string("job_name", "worker", "job name: worker or ps")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("hidden_units", 100, "Number of units in the hidden layer of the NN")
flags.DEFINE_integer("train_steps", 400, "Number of (global) training steps to perform")
flags.DEFINE_integer("batch_size", 100, "Training batch size")
flags.DEFINE_float("learning_rate", 0.01, "Learning rate")
flags.DEFINE_string("train_dir", None, "Directory for checkpoints")
flags.DEFINE_boolean("supervisor", False, "Use a Supervisor instead of a MonitoredTrainingSession")
FLAGS = flags.FLAGS

IMAGE_PIXELS = 8


def read_data():
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.data / 16).astype(np.float32)[order]
    labels = np.eye(10, dtype=np.float32)[digits.target[order]]
    return (images[:1437], labels[:1437]), (images[1437:], labels[1437:])


def build(cluster, task_index):
    worker_device = "/job:worker/task:%d" % task_index
    with tf.device(tf.train.replica_device_setter(
            worker_device=worker_device, ps_device="/job:ps/cpu:0", cluster=cluster)):  # fmt: skip
        global_step = tf.Variable(0, name="global_step", trainable=False)

        hid_w = tf.Variable(
            tf.truncated_normal([IMAGE_PIXELS * IMAGE_PIXELS, FLAGS.hidden_units],
                                stddev=1.0 / IMAGE_PIXELS), name="hid_w")  # fmt: skip
        hid_b = tf.Variable(tf.zeros([FLAGS.hidden_units]), name="hid_b")
        sm_w = tf.Variable(
            tf.truncated_normal([FLAGS.hidden_units, 10],
                                stddev=1.0 / math.sqrt(FLAGS.hidden_units)), name="sm_w")  # fmt: skip
        sm_b = tf.Variable(tf.zeros([10]), name="sm_b")

        x = tf.placeholder(tf.float32, [None, IMAGE_PIXELS * IMAGE_PIXELS])
        y_ = tf.placeholder(tf.float32, [None, 10])

        hid_lin = tf.nn.xw_plus_b(x, hid_w, hid_b)
        hid = tf.nn.relu(hid_lin)
        y = tf.nn.softmax(tf.nn.xw_plus_b(hid, sm_w, sm_b))
        cross_entropy = -tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)))
        hits = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(hits, tf.float32))

        opt = tf.train.AdamOptimizer(FLAGS.learning_rate)
        train_step = opt.minimize(cross_entropy, global_step=global_step)
    return x, y_, accuracy, train_step, global_step


def batches(train):
    images, labels = train
    random = np.random.RandomState()
    while True:
        chosen = random.randint(len(images), size=FLAGS.batch_size)
        yield images[chosen], labels[chosen]


def run_monitored(server, is_chief, net, train, test):
    x, y_, accuracy, train_step, global_step = net
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.train_steps)]
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=is_chief, checkpoint_dir=FLAGS.train_dir, hooks=hooks
    ) as mon_sess:
        for batch_xs, batch_ys in batches(train):
            if mon_sess.should_stop():
                break
            _, step = mon_sess.run([train_step, global_step], {x: batch_xs, y_: batch_ys})
            found = mon_sess.run(accuracy, {x: test[0], y_: test[1]}) if step % 50 == 0 else None
            if found is not None:
                print("global step: %d  accuracy %g" % (step, found))
        return mon_sess.run([accuracy, global_step], {x: test[0], y_: test[1]})


def run_supervised(server, is_chief, net, train, test):
    x, y_, accuracy, train_step, global_step = net
    sv = tf.train.Supervisor(
        is_chief=is_chief, logdir=FLAGS.train_dir, recovery_wait_secs=1, global_step=global_step)  # fmt: skip
    sess = sv.prepare_or_wait_for_session(server.target)
    for batch_xs, batch_ys in batches(train):
        _, step = sess.run([train_step, global_step], feed_dict={x: batch_xs, y_: batch_ys})
        if sv.should_stop() or step >= FLAGS.train_steps:
            break
    found = sess.run([accuracy, global_step], {x: test[0], y_: test[1]})
    sv.stop()
    return found


def run_task(cluster, job_name, task_index, supervisor):
    """What the test calls in one process: accuracy and global step at the end."""
    server = tf.train.Server(cluster, job_name=job_name, task_index=task_index)
    if job_name == "ps":
        server.join()
    train, test = read_data()
    net = build(cluster, task_index)
    is_chief = task_index == 0
    work = run_supervised if supervisor else run_monitored
    return work(server, is_chief, net, train, test)


def main(unused_argv):
    cluster = tf.train.ClusterSpec(
        {"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")}
    )
    found = run_task(cluster, FLAGS.job_name, FLAGS.task_index, FLAGS.supervisor)
    print("worker %d: accuracy %.3f after %d steps" % (FLAGS.task_index, *found), flush=True)


if __name__ == "__main__":
    tf.app.run()
