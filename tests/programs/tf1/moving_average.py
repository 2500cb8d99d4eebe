"""An exponential moving average behind an assignment."""

import hpcflow as tf

v = tf.Variable(0.0, name="v")
x = tf.placeholder(tf.float32)
upd = v.assign(x)
ema = tf.train.ExponentialMovingAverage(0.9, num_updates=None)
with tf.control_dependencies([upd]):
    m = ema.apply([v])
avg = ema.average(v)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
for t in (1.0, 2.0, 3.0):
    sess.run(m, {x: t})
    print(round(float(sess.run(avg)), 5))
print(ema.average_name(v).split(":")[0], sorted(k for k in ema.variables_to_restore()))
