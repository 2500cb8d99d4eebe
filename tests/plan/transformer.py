"""The plan of a training step of a transformer, about 240 operations a layer."""

from __future__ import annotations

import hpcflow as hf
from hpcflow.plan.ir.program import Plan

from .model import SINGLE, plan_of

BATCH, TIME, DEPTH, KINDS = 2, 8, 64, 96


def normalized(x: hf.Tensor, name: str) -> hf.Tensor:
    with hf.variable_scope(name):
        scale = hf.get_variable("scale", [DEPTH], initializer=hf.ones_initializer())
        mean, variance = hf.nn.moments(x, [-1], keep_dims=True)
        return (x - mean) * hf.rsqrt(variance + 1e-5) * scale


def transformer_plan(layers, cluster=SINGLE) -> Plan:
    with hf.Graph().as_default() as graph:
        x = hf.placeholder(hf.int32, [BATCH, TIME], name="tokens")
        y = hf.placeholder(hf.int32, [BATCH, TIME], name="targets")
        with hf.variable_scope("embedding"):
            h = hf.nn.embedding_lookup(hf.get_variable("table", [KINDS, DEPTH]), x)
        for i in range(layers):
            with hf.variable_scope(f"layer_{i}"):
                n = normalized(h, "before")
                h += hf.layers.multi_head_attention(n, num_heads=4, causal=True, name="attention")
                with hf.variable_scope("feed_forward"):
                    n = normalized(h, "norm")
                    n = hf.layers.dense(n, 4 * DEPTH, hf.nn.relu, name="up")
                    h += hf.layers.dense(n, DEPTH, name="down")
        with hf.variable_scope("head"):
            logits = hf.layers.dense(h, KINDS, name="logits")
        with hf.name_scope("loss"):
            losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = hf.reduce_mean(losses)
        train = hf.train.AdamOptimizer(0.001).minimize(loss)
        shape = (BATCH, TIME)
        return plan_of(graph, [loss, train], {x: shape, y: shape}, cluster)
