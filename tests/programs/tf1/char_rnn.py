"""A model of characters: static_rnn over LSTM cells, states fed by their parts."""

import numpy as np

import hpcflow as tf

text = "hello world, hello tensor"
chars = sorted(set(text))
ix = {c: i for i, c in enumerate(chars)}
V, H, B, T = (len(chars), 8, 2, 5)
rng = np.random.RandomState(2)
inp = tf.placeholder(tf.int32, [B, T])
tgt = tf.placeholder(tf.int32, [B, T])
with tf.variable_scope("rnnlm", initializer=tf.constant_initializer(0.05)):
    cell = tf.nn.rnn_cell.MultiRNNCell(
        [tf.nn.rnn_cell.BasicLSTMCell(H, state_is_tuple=True) for _ in range(2)],
        state_is_tuple=True,
    )
    init = cell.zero_state(B, tf.float32)
    sw = tf.get_variable(
        "softmax_w",
        [H, V],
        initializer=tf.constant_initializer(np.linspace(-1, 1, H * V).reshape(H, V)),
    )
    sb = tf.get_variable("softmax_b", [V])
    emb = tf.get_variable(
        "embedding", [V, H], initializer=tf.constant_initializer(np.linspace(-1, 1, H * V))
    )
    inputs = tf.split(tf.nn.embedding_lookup(emb, inp), T, 1)
    inputs = [tf.squeeze(i, [1]) for i in inputs]
    outputs, last = tf.nn.static_rnn(cell, inputs, initial_state=init)
    output = tf.reshape(tf.concat(outputs, 1), [-1, H])
    logits = tf.matmul(output, sw) + sb
    probs = tf.nn.softmax(logits)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(tgt, [-1]), logits=logits
    )
    cost = tf.reduce_sum(loss) / B / T
    lr = tf.Variable(0.0, trainable=False)
    tvars = tf.trainable_variables()
    grads, norm = tf.clip_by_global_norm(tf.gradients(cost, tvars), 5.0)
    train = tf.train.AdamOptimizer(lr).apply_gradients(zip(grads, tvars, strict=False))
print([v.name.split(":")[0] for v in tvars])
data = [ix[c] for c in text]
X = np.array(data[:10]).reshape(B, T)
Y = np.array(data[1:11]).reshape(B, T)
with tf.Session() as sess:
    tf.global_variables_initializer().run()
    saver = tf.train.Saver(tf.global_variables())
    for e in range(3):
        sess.run(tf.assign(lr, 0.02 * 0.9**e))
        state = sess.run(init)
        for _b in range(3):
            feed = {inp: X, tgt: Y}
            for i, (c, h) in enumerate(init):
                feed[c] = state[i].c
                feed[h] = state[i].h
            l, state, _, n = sess.run([cost, last, train, norm], feed)
        print(np.round(l, 4), np.round(n, 4), type(state).__name__, np.round(state[1].h.sum(), 4))
