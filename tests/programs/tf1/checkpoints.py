"""Saver, the state of a folder of checkpoints, variables by other names."""

import os

import hpcflow as tf

a = tf.Variable([1.0, 2.0], name="a")
b = tf.get_variable("b", [2], initializer=tf.zeros_initializer())
saver = tf.train.Saver(max_to_keep=2)
d = os.path.join(os.getcwd(), "ck")
os.makedirs(d)
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for i in range(4):
        s.run(a.assign(a * 2.0))
        p = saver.save(s, os.path.join(d, "model.ckpt"), global_step=i)
    print(p.split("-")[-1])
with tf.Session() as s:
    ck = tf.train.get_checkpoint_state(d)
    if ck and ck.model_checkpoint_path:
        saver.restore(s, ck.model_checkpoint_path)
    print(
        s.run(a).tolist(),
        int(ck.model_checkpoint_path.split("/")[-1].split("-")[-1]),
        len(ck.all_model_checkpoint_paths),
    )
tf.reset_default_graph()
c = tf.Variable([0.0, 0.0], name="c")
with tf.Session() as s:
    tf.train.Saver({"a": c}).restore(s, tf.train.latest_checkpoint(d))
    print(c.eval().tolist())
