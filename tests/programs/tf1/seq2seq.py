"""An encoder in both directions, a decoder with attention, masks; a fed state tuple."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(10)
V, E, H, B = (7, 4, 5, 3)
enc_in = tf.placeholder(tf.int32, [None, None], name="enc")
dec_in = tf.placeholder(tf.int32, [None, None])
dec_t = tf.placeholder(tf.int32, [None, None])
ln = tf.placeholder(tf.int32, [None])
emb = tf.Variable(rng.uniform(-1, 1, [V, E]), dtype=tf.float32)
with tf.variable_scope("enc", initializer=tf.constant_initializer(0.1)):
    cell = tf.nn.rnn_cell.LSTMCell(H)
    (fo, bo), (fs, bs) = tf.nn.bidirectional_dynamic_rnn(
        cell,
        tf.nn.rnn_cell.LSTMCell(H),
        tf.nn.embedding_lookup(emb, enc_in),
        sequence_length=ln,
        dtype=tf.float32,
    )
state = tf.nn.rnn_cell.LSTMStateTuple(tf.concat((fs.c, bs.c), 1), tf.concat((fs.h, bs.h), 1))
enc = tf.concat((fo, bo), 2)
with tf.variable_scope("dec", initializer=tf.constant_initializer(0.05)):
    dcell = tf.nn.rnn_cell.LSTMCell(2 * H)
    douts, dstate = tf.nn.dynamic_rnn(
        dcell, tf.nn.embedding_lookup(emb, dec_in), initial_state=state, dtype=tf.float32
    )
score = tf.matmul(douts, enc, transpose_b=True)
att = tf.nn.softmax(score)
ctx = tf.matmul(att, enc)
W = tf.Variable(rng.uniform(-1, 1, [4 * H, V]), dtype=tf.float32)
full = tf.concat([douts, ctx], -1)
logits = tf.tensordot(full, W, axes=[[2], [0]])
mask = tf.sequence_mask(ln, tf.shape(dec_t)[1], dtype=tf.float32)
ce = tf.nn.softmax_cross_entropy_with_logits(
    labels=tf.one_hot(dec_t, depth=V, dtype=tf.float32), logits=logits
)
loss = tf.reduce_sum(ce * mask) / tf.reduce_sum(mask)
op = tf.train.AdamOptimizer(0.02).minimize(loss)
pred = tf.argmax(logits, 2)
X = rng.randint(0, V, (B, 4))
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for _i in range(5):
        _, l = s.run([op, loss], {enc_in: X, dec_in: X, dec_t: X, ln: [4, 2, 3]})
    st = s.run(dstate, {enc_in: X, dec_in: X, ln: [4, 2, 3]})
    print(
        round(float(l), 4),
        type(st).__name__,
        st.c.shape,
        s.run(pred, {enc_in: X, dec_in: X, ln: [4, 2, 3]}).tolist(),
    )
    print(
        np.round(
            s.run(logits, {enc_in: X, dec_in: X, ln: [4, 2, 3], state: st})[0, 0, :3], 4
        ).tolist()
    )
