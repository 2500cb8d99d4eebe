"""Two towers on GPUs that there need not be, gradients averaged, an average of the weights."""

import numpy as np

import hpcflow as tf

r = np.random.RandomState(0)
X = r.randn(40, 5).astype(np.float32)
Y = X[:, :3].argmax(1)
opt = tf.train.GradientDescentOptimizer(0.1)
towers, losses = [], []
with tf.variable_scope("model"):
    for i in range(2):
        with tf.device("/gpu:%d" % i), tf.name_scope("tower_%d" % i):
            w = tf.get_variable("w", [5, 3], initializer=tf.zeros_initializer())
            logits = tf.matmul(X[i * 20 : i * 20 + 20], w)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=Y[i * 20 : i * 20 + 20], logits=logits
                )
            )
            losses.append(loss)
            towers.append(opt.compute_gradients(loss))
            tf.get_variable_scope().reuse_variables()
average = [
    (tf.reduce_mean(tf.stack([g for g, _ in pairs]), 0), pairs[0][1])
    for pairs in zip(*towers, strict=True)
]
ema = tf.train.ExponentialMovingAverage(0.9)
with tf.control_dependencies([opt.apply_gradients(average)]):
    train = ema.apply(tf.trainable_variables())
config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
config.gpu_options.allow_growth = True
config.gpu_options.per_process_gpu_memory_fraction = 0.3
config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
print(config.gpu_options.allow_growth, config.allow_soft_placement, len(tf.trainable_variables()))
s = tf.InteractiveSession(config=config)
tf.global_variables_initializer().run()
for i in range(4):
    s.run(train)
    print(i, [round(float(v), 4) for v in s.run(losses)])
print(round(float(s.run(tf.reduce_sum(tf.abs(ema.average(w))))), 4))
metadata = tf.RunMetadata()
options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
s.run(losses[0], options=options, run_metadata=metadata)
nodes = [n for d in metadata.step_stats.dev_stats for n in d.node_stats]
print(len(nodes) > 0, all(n.all_end_rel_micros >= 0 for n in nodes))
s.close()
with tf.Graph().as_default():
    taken = tf.FIFOQueue(2, tf.float32).dequeue()
    with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=200)) as s:
        try:
            s.run(taken)
        except tf.errors.DeadlineExceededError:
            print("late")
