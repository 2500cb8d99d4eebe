"""Input by queues: producers, a coordinator, the end of an epoch."""

import numpy as np

import hpcflow as tf

data = np.arange(20, dtype=np.float32).reshape(10, 2)
labels = np.arange(10)
x, y = tf.train.slice_input_producer(
    [tf.constant(data), tf.constant(labels)], num_epochs=1, shuffle=False
)
xb, yb = tf.train.batch(
    [x, y], batch_size=3, num_threads=1, capacity=30, allow_smaller_final_batch=True
)
tot = tf.reduce_sum(xb)
with tf.Session() as sess:
    sess.run(tf.group(tf.global_variables_initializer(), tf.local_variables_initializer()))
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(sess=sess, coord=coord)
    try:
        while not coord.should_stop():
            print(sess.run([tot, yb]))
    except tf.errors.OutOfRangeError:
        print("done")
    finally:
        coord.request_stop()
    coord.join(threads)
q = tf.FIFOQueue(3, "float")
init = q.enqueue_many(([0.0, 1.0, 2.0],))
xx = q.dequeue()
inc = q.enqueue([xx + 1])
with tf.Session() as s:
    init.run()
    for _ in range(4):
        s.run(inc)
    print([float(s.run(xx)) for _ in range(3)], s.run(q.size()))
q2 = tf.RandomShuffleQueue(10, 2, [tf.int32, tf.float32], shapes=[[], [2]])
enq = q2.enqueue([1, np.array([1.0, 2.0])])
with tf.Session() as s:
    for _ in range(4):
        s.run(enq)
    print([v.tolist() for v in s.run(q2.dequeue_many(2))])
