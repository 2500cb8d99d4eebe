"""What random programs compute: expressions by the kind of their result.

Kinds are s, v, m and w for float32 of shapes [], [3], [batch, 3] and [3, 3], i for an int32 scalar,
p for a boolean one and a for an axis, 0 or 1. A hole is {kind}; `~` in it says that no gradient
flows there. Values stay small, so that programs of many steps do not overflow.
"""

from __future__ import annotations

FLOATS = "svmw"
IMAGE = "tf.reshape({w}, [1, 3, 3, 1])"
FILTER = "tf.reshape({w}, [3, 3, 1, 1])"

SAME = [  # of any float kind; {x} and {y} are of the kind of the result
    *("tf.tanh({x})", "tf.sigmoid({x})", "tf.sin({x})", "-{x}", "tf.identity({x})", "{x} * 1."),
    *("tf.stop_gradient({~x})", "{x} * .5", "1. - {x}", "tf.nn.relu({x})", "tf.abs({x})"),
    *("tf.exp(-tf.square({x}))", "tf.square(tf.sin({x}))", "tf.reshape({x}, tf.shape({~x}))"),
    *("({x} + {y}) * .5", "{x} - {y}", "{x} * tf.tanh({y})", "tf.maximum({x}, {y})"),
    *("tf.minimum({x}, {y})", "tf.where({~x} > .3, {x}, {y})", "tf.zeros_like({~x}) + {y}"),
    *("{x} / (1. + tf.square({y}))", "{x} * tf.sigmoid({s})", "{x} + tf.tanh({s})"),
    *("tf.cond({~p}, lambda: {x} * 2., lambda: {y})", "tf.add_n([{x}, {y}])"),
    *("tf.sqrt(tf.square({x}) + .1)", "tf.log(tf.square({x}) + 1.)"),
    "tf.squared_difference({x}, {y})",
]  # fmt: skip
OF_KIND = {
    "s": [
        *("tf.reduce_mean({v})", "tf.reduce_sum({v})", "tf.reduce_mean({m})"),
        "tf.reduce_mean({w})",
        *("{v}[1]", "{w}[0, 2]", "tf.cast({i}, tf.float32) * .25", "tf.reduce_max({v})"),
        *("tf.reduce_logsumexp({v})", "tf.reduce_mean(tf.square({m}))", "tf.reduce_sum({v} * {v})"),
        *("tf.cast({p}, tf.float32)", "tf.gather({v}, {i} % 3)"),
    ],
    "v": [
        *("tf.reduce_mean({m}, 0)", "tf.reduce_sum({w}, 1)", "tf.reduce_max({w}, 0)", "{w}[1]"),
        *("tf.gather({w}, {i} % 3)", "tf.gather({v}, [2, 0, 0])", "tf.fill([3], {s})"),
        *("tf.concat([{v}[1:], {v}[:1]], 0)", "tf.stack([{s}, {s}, {s}])"),
        "tf.one_hot({i} % 3, 3)",
        *("tf.reduce_mean({m} * {v}, 0)", "tf.nn.softmax({v})", "tf.reverse({v}, [0])"),
        *("tf.unsorted_segment_sum({v}, [0, 2, 0], 3)", "tf.reduce_sum({w}, {a})"),
        "tf.reduce_max({w}, {a})",
    ],
    "m": [
        *("tf.matmul({m}, {w}) * .3", "{m} * {v}", "{m} + {v}", "tf.nn.softmax({m})"),
        *("{m} - tf.reduce_max({m}, 1, keepdims=True)", "tf.zeros_like({~m}) + {v}"),
        *("tf.concat([{m}[:, :1], {m}[:, 1:]], 1)", "tf.nn.bias_add({m}, {v})"),
        *("{m} / tf.sqrt(tf.reduce_mean(tf.square({m}), 1, keepdims=True) + 1.)", "{m} * {s}"),
        "tf.nn.relu(tf.nn.bias_add(tf.matmul({m}, {w}) * .3, {v}))",
    ],
    "w": [
        *("tf.matmul({m}, {m}, transpose_a=True) * .2", "tf.transpose({w})", "{w} * {v}"),
        *("tf.stack([{v}, {v}, {v}])", "tf.expand_dims({v}, 1) * {v}", "tf.matmul({w}, {w}) * .3"),
        *("tf.gather({w}, [2, 2, 0])", "tf.concat([{w}[:1], {w}[1:]], 0)", "{w} - {v}"),
        *("tf.cumsum({w}, {a}) * .5", "tf.reverse({w}, [1])"),
    ],
    "i": [
        *("{i} + 1", "tf.shape({v})[0]", "tf.shape({m})[0]", "tf.cast({s} > .1, tf.int32)"),
        "{i} % 2",
    ],
    "p": [
        *("{s} > .1", "tf.reduce_all({m} < 2.)", "tf.equal({i} % 2, 0)", "tf.less({i}, 2)"),
        *("tf.logical_not({p})", "tf.logical_and({p}, {p})", "tf.reduce_any({v} > .2)"),
    ],
}  # fmt: skip
SPECIAL = {  # where generated and plain kernels are compared on NaN, infinities and no rows
    "s": ["tf.reduce_min({v})", "tf.reduce_prod({v})", "tf.nn.l2_loss({m})", "tf.norm({v})"],
    "v": [
        "tf.unsorted_segment_prod({v}, [0, 2, 0], 3)",
        "tf.unsorted_segment_max({v}, [0, 2, 0], 3)",
        *("tf.cumsum({v})", "tf.nn.log_softmax({v})", "tf.reduce_min({w}, 0)"),
        f"tf.reshape(tf.nn.max_pool({IMAGE}, [1, 2, 3, 1], [1, 1, 3, 1], 'SAME'), [3])",
    ],
    "m": [
        *("tf.nn.log_softmax({m})", "tf.nn.elu({m})", "tf.clip_by_value({m}, -1., 1.)"),
        "tf.sign({m})",
    ],
    "w": [
        f"tf.reshape(tf.nn.conv2d({IMAGE}, {FILTER}, [1, 1, 1, 1], 'SAME'), [3, 3])",
        f"tf.reshape(tf.nn.max_pool({IMAGE}, [1, 2, 2, 1], [1, 1, 1, 1], 'SAME'), [3, 3])",
        f"tf.reshape(tf.nn.avg_pool({IMAGE}, [1, 2, 2, 1], [1, 1, 1, 1], 'SAME'), [3, 3])",
        "tf.nn.moments({w}, [0])[1] + {w}",
        "tf.pow(tf.abs({w}), {w})",
    ],
}  # fmt: skip
OPTIMIZERS = [
    *("GradientDescentOptimizer(.1)", "MomentumOptimizer(.1, .9)", "AdamOptimizer(.1)"),
    *("AdagradOptimizer(.1)", "RMSPropOptimizer(.1)", "FtrlOptimizer(.1)"),
]
