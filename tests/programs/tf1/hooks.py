"""A monitored session with a config and hooks of its own; loops that pack their results."""

import os

import numpy as np

import hpcflow as tf

r = np.random.RandomState(0)
X = r.randn(30, 4).astype(np.float32)
T = X.sum(1, keepdims=True)
folder = os.path.join(os.getcwd(), "train")


class Watch(tf.train.SessionRunHook):
    def __init__(self, loss):
        self.loss, self.seen = loss, []

    def begin(self):
        self.step = tf.train.get_global_step()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"loss": self.loss})

    def after_run(self, run_context, run_values):
        found = run_values.results
        self.seen.append(round(float(found["loss"]), 4))
        if found["loss"] < 0.3:
            run_context.request_stop()

    def end(self, session):
        print("end", session.run(self.step))


for last in (5, 60):
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(X, w) - T))
        train = tf.train.MomentumOptimizer(0.05, 0.5).minimize(loss, global_step=step)
        watch = Watch(loss)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder + str(last),
            hooks=[watch, tf.train.StopAtStepHook(last_step=last), tf.train.NanTensorHook(loss)],
            config=tf.ConfigProto(inter_op_parallelism_threads=1),
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        ) as session:
            while not session.should_stop():
                session.run(train)
        print(watch.seen[0], watch.seen[-1], len(watch.seen))

with tf.Graph().as_default(), tf.Session() as s:
    total, count = tf.while_loop(
        lambda t, n: n < 4, lambda t, n: (t + tf.to_float(n), n + 1), [tf.constant(0.0), 0]
    )
    (alone,) = tf.while_loop(lambda n: n < 4, lambda n: [n + 1], [0], return_same_structure=True)
    print(s.run([total, count, alone]))
