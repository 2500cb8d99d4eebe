"""Layers as objects, one of the user's own among them, images resized, and a policy's density."""

import numpy as np

import hpcflow as tf

tf.logging.set_verbosity(tf.logging.ERROR)
rng = np.random.RandomState(3)


def waves(shape, dtype=None, partition_info=None):
    n = int(np.prod(shape))
    return tf.constant(np.sin(np.arange(n) * 1.3).reshape(shape) * 0.4, tf.float32)


class Maxout(tf.layers.Layer):
    def __init__(self, units, pieces=2, **kwargs):
        super().__init__(**kwargs)
        self.units, self.pieces = units, pieces

    def build(self, input_shape):
        features = input_shape[-1].value
        self.kernel = self.add_variable(
            "kernel",
            shape=[features, self.units * self.pieces],
            initializer=waves,
            regularizer=lambda w: 1e-2 * tf.nn.l2_loss(w),
        )
        self.built = True

    def call(self, x):
        y = tf.reshape(tf.matmul(x, self.kernel), [-1, self.units, self.pieces])
        return tf.reduce_max(y, 2)


class Policy:
    def __init__(self):
        self.conv = tf.layers.Conv2D(4, 3, padding="same", kernel_initializer=waves)
        self.pool = tf.layers.MaxPooling2D((2, 2), (2, 2))
        self.flat = tf.layers.Flatten()
        self.hidden = Maxout(6)
        self.mean = tf.layers.Dense(2, tf.nn.tanh, kernel_initializer=waves, name="mean")

    def __call__(self, images):
        x = tf.image.per_image_standardization(images)
        x = tf.image.resize_bilinear(x, [8, 8], align_corners=True)
        x = self.pool(tf.nn.relu(self.conv(x)))
        return tf.distributions.Normal(self.mean(self.hidden(self.flat(x))), 0.7)


images = tf.placeholder(tf.float32, [None, 5, 6, 3])
actions = tf.placeholder(tf.float32, [None, 2])
policy = Policy()
with tf.variable_scope("pi"):
    now = policy(images)
mirrored = policy(tf.image.flip_left_right(images))
print([v.op.name for v in tf.trainable_variables()])
print(policy.conv.count_params(), len(policy.hidden.losses), policy.mean.scope_name)
loss = -tf.reduce_mean(now.log_prob(actions)) - 0.01 * tf.reduce_mean(now.entropy())
loss += 0.1 * tf.reduce_mean(now.kl_divergence(mirrored)) + tf.losses.get_regularization_loss()
weights = policy.conv.trainable_weights + policy.hidden.trainable_weights + policy.mean.weights
train = tf.group(tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, var_list=weights), [])
feed = {images: rng.rand(6, 5, 6, 3), actions: rng.randn(6, 2)}
with tf.Session() as sess:
    sess.run(tf.initialize_all_variables())
    for _ in range(6):
        print("%.4f" % sess.run([loss, train], feed)[0])
    print(np.round(sess.run(mirrored.mean(), feed)[:2], 4).tolist())
    print(np.round(sess.run(tf.image.total_variation(images), feed), 3).tolist())
