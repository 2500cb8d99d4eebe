"""A language model as a class, its variables shared by two graphs of it; dicts are fetched."""

import numpy as np

import hpcflow as tf


class Model:
    def __init__(self, is_training, B, T):
        H, V = (6, 9)
        self._input = tf.placeholder(tf.int32, [B, T])
        self._targets = tf.placeholder(tf.int32, [B, T])
        cell = tf.nn.rnn_cell.MultiRNNCell(
            [
                tf.nn.rnn_cell.DropoutWrapper(
                    tf.nn.rnn_cell.BasicLSTMCell(H, forget_bias=0.0), output_keep_prob=1.0
                )
                if is_training
                else tf.nn.rnn_cell.BasicLSTMCell(H, forget_bias=0.0)
                for _ in range(2)
            ]
        )
        self._initial_state = cell.zero_state(B, tf.float32)
        with tf.device("/cpu:0"):
            embedding = tf.get_variable("embedding", [V, H], dtype=tf.float32)
            inputs = tf.nn.embedding_lookup(embedding, self._input)
        outputs = []
        state = self._initial_state
        with tf.variable_scope("RNN"):
            for t in range(T):
                if t > 0:
                    tf.get_variable_scope().reuse_variables()
                o, state = cell(inputs[:, t, :], state)
                outputs.append(o)
        output = tf.reshape(tf.concat(outputs, 1), [-1, H])
        w = tf.get_variable("softmax_w", [H, V])
        b = tf.get_variable("softmax_b", [V])
        logits = tf.matmul(output, w) + b
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
            logits=logits, labels=tf.reshape(self._targets, [-1])
        )
        self._cost = cost = tf.reduce_sum(loss) / B
        self._final_state = state
        if not is_training:
            return
        self._lr = tf.Variable(0.0, trainable=False)
        tv = tf.trainable_variables()
        grads, _ = tf.clip_by_global_norm(tf.gradients(cost, tv), 1.0)
        self._train_op = tf.train.GradientDescentOptimizer(self._lr).apply_gradients(
            zip(grads, tv, strict=False), global_step=tf.train.get_or_create_global_step()
        )
        self._new_lr = tf.placeholder(tf.float32, shape=[], name="new_learning_rate")
        self._lr_update = tf.assign(self._lr, self._new_lr)


with tf.Graph().as_default():

    def init(shape, dtype=None, partition_info=None):
        return tf.constant(
            np.sin(np.arange(int(np.prod([int(s) for s in shape])))).reshape(
                [int(s) for s in shape]
            )
            * 0.2,
            dtype=tf.float32,
        )

    with tf.name_scope("Train"):
        with tf.variable_scope("Model", reuse=None, initializer=init):
            m = Model(True, 2, 4)
    with tf.name_scope("Test"):
        with tf.variable_scope("Model", reuse=True, initializer=init):
            mt = Model(False, 1, 1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(m._lr_update, {m._new_lr: 0.5})
        X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
        for _ep in range(2):
            state = sess.run(m._initial_state)
            costs = 0
            for _k in range(2):
                fetches = {"cost": m._cost, "final_state": m._final_state, "eval_op": m._train_op}
                feed = {m._input: X, m._targets: (X + 1) % 9}
                for i, (c, h) in enumerate(m._initial_state):
                    feed[c] = state[i].c
                    feed[h] = state[i].h
                vals = sess.run(fetches, feed)
                state = vals["final_state"]
                costs += vals["cost"]
            print(f"{costs:.4f}", type(vals).__name__, vals["eval_op"])
        st = sess.run(mt._initial_state)
        print(
            np.round(
                sess.run(mt._cost, {mt._input: [[1]], mt._targets: [[2]], mt._initial_state: st}), 4
            )
        )
