"""Actor and critic: workers pull the global weights and push their gradients."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(5)
W0 = rng.randn(3, 4) * 0.5
P0 = rng.randn(4, 2) * 0.5
V0 = rng.randn(4, 1) * 0.5


class AC:
    def __init__(self, scope, g=None):
        with tf.variable_scope(scope):
            self.s = tf.placeholder(tf.float32, [None, 3], "S")
            if scope == "global":
                self._net(scope)
            else:
                self.a = tf.placeholder(tf.int32, [None], "A")
                self.v_t = tf.placeholder(tf.float32, [None, 1], "Vt")
                self.prob, self.v = self._net(scope)
                td = tf.subtract(self.v_t, self.v, name="TD")
                self.c_loss = tf.reduce_mean(tf.square(td))
                logp = tf.reduce_sum(
                    tf.log(self.prob + 1e-05) * tf.one_hot(self.a, 2, dtype=tf.float32),
                    axis=1,
                    keep_dims=True,
                )
                ent = -tf.reduce_sum(self.prob * tf.log(self.prob + 1e-05), axis=1, keep_dims=True)
                self.a_loss = tf.reduce_mean(-(logp * tf.stop_gradient(td) + 0.01 * ent))
                self.ag = tf.gradients(self.a_loss, self.ap)
                self.cg = tf.gradients(self.c_loss, self.cp)
                with tf.name_scope("sync"):
                    with tf.name_scope("pull"):
                        self.pull = [
                            l.assign(gg)
                            for l, gg in zip(self.ap + self.cp, g.ap + g.cp, strict=False)
                        ]
                    with tf.name_scope("push"):
                        self.ua = OA.apply_gradients(zip(self.ag, g.ap, strict=False))
                        self.uc = OC.apply_gradients(zip(self.cg, g.cp, strict=False))

    def _net(self, scope):
        with tf.variable_scope("actor"):
            l = tf.layers.dense(
                self.s, 4, tf.nn.relu6, kernel_initializer=tf.constant_initializer(W0), name="la"
            )
            prob = tf.layers.dense(
                l, 2, tf.nn.softmax, kernel_initializer=tf.constant_initializer(P0), name="ap"
            )
        with tf.variable_scope("critic"):
            l = tf.layers.dense(
                self.s, 4, tf.nn.relu6, kernel_initializer=tf.constant_initializer(W0), name="lc"
            )
            v = tf.layers.dense(l, 1, kernel_initializer=tf.constant_initializer(V0), name="v")
        self.ap = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=scope + "/actor")
        self.cp = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=scope + "/critic")
        return (prob, v)


with tf.device("/cpu:0"):
    OA = tf.train.RMSPropOptimizer(0.01, name="RMSPropA")
    OC = tf.train.RMSPropOptimizer(0.02, name="RMSPropC")
    G = AC("global")
    ws = [AC("W_%i" % i, G) for i in range(2)]
SESS = tf.Session()
COORD = tf.train.Coordinator()
SESS.run(tf.global_variables_initializer())
X = rng.randn(6, 3)
A = rng.randint(0, 2, 6)
VT = rng.randn(6, 1)
for w in ws:
    for _k in range(3):
        SESS.run([w.pull])
        SESS.run([w.ua, w.uc], {w.s: X, w.a: A, w.v_t: VT})
print(
    np.round(SESS.run(w.prob, {w.s: X})[0], 4).tolist(),
    np.round(SESS.run([w.a_loss, w.c_loss], {w.s: X, w.a: A, w.v_t: VT}), 4).tolist(),
    [v.name.split(":")[0] for v in G.ap],
)
