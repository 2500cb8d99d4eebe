"""One net, a training and a validation set in turn by the handle of an iterator."""

import numpy as np

import hpcflow as tf

r = np.random.RandomState(0)
X = r.randn(80, 6).astype(np.float32)
Y = X[:, :3].argmax(1).astype(np.int64)
size = tf.placeholder(tf.int64, [])
training = tf.data.Dataset.from_tensor_slices((X[:60], Y[:60])).repeat().batch(size)
validation = tf.data.Dataset.from_tensor_slices((X[60:], Y[60:])).batch(7)
handle = tf.placeholder(tf.string, shape=[])
iterator = tf.data.Iterator.from_string_handle(
    handle, tf.data.get_output_types(training), tf.data.get_output_shapes(training)
)
x, y = iterator.get_next()
W = tf.get_variable("W", [6, 3], initializer=tf.zeros_initializer())
logits = tf.matmul(x, W)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.int32))
first = tf.data.make_initializable_iterator(training)
second = tf.data.make_initializable_iterator(validation)
print(x.shape.as_list(), y.shape.as_list())
with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as s:
    s.run(tf.global_variables_initializer())
    s.run(first.initializer, {size: 20})
    a, b = s.run([first.string_handle(), second.string_handle()])
    for epoch in range(3):
        for _ in range(4):
            l, _ = s.run([loss, train], {handle: a})
        s.run(second.initializer)
        n = batches = 0
        while True:
            try:
                n += s.run(hits, feed_dict={handle: b})
                batches += 1
            except tf.errors.OutOfRangeError:
                break
        print(epoch, round(float(l), 4), n, batches)

files = tf.data.Dataset.range(1, 5).interleave(
    lambda k: tf.data.Dataset.from_tensors(k).repeat(k), cycle_length=2, block_length=1
)
pairs = tf.data.Dataset.range(3).flat_map(
    lambda i: tf.data.Dataset.range(i).map(lambda j: tf.stack([i, j]))
)
with tf.Session() as s:
    for d in (files, pairs):
        step, got = tf.data.make_one_shot_iterator(d).get_next(), []
        try:
            while True:
                got.append(s.run(step).tolist())
        except tf.errors.OutOfRangeError:
            print(got)
