"""Variables, functions of functions, random numbers, layers and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.oracle.draw import ANY, INDICES, WIDE, Case, Draw, Text, written
from tools.oracle.parts import after, indices, unseeded

# -- variables


def scatter_variable(d: Draw, f: str) -> Case:
    n, tail = d.whole(1, 4), d.shape(0, 2)
    dtype = d.one(("float32", "float64", "int32"))
    state = d.array((n, *tail), dtype, 1, 3, way="variable")
    lead = d.shape(0, 1)
    if "update" in f:
        lead = ()
    index = indices(d, lead, n)
    update = d.array((*lead, *tail), dtype, 1, 3)
    return Case(f, after(state, written(f, state, index, update)), d.inputs)


def scatter_nd_variable(d: Draw, f: str) -> Case:
    shape = (d.whole(1, 4), d.whole(1, 3))
    dtype = d.one(("float32", "float64"))
    state = d.array(shape, dtype, way="variable")
    depth = d.whole(1, 2)
    index = np.stack([d.rng.integers(0, n, 1) for n in shape[:depth]], -1).astype("int32")
    update = d.array((1, *shape[depth:]), dtype)
    return Case(f, after(state, written(f, state, d.given(index), update)), d.inputs)


def assign(d: Draw, f: str) -> Case:
    shape = d.shape()
    dtype = d.one(("float32", "float64", "int32"))
    state = d.array(shape, dtype, way="variable")
    wrong = (*shape, 2) if d.chance(d.wrong) else shape
    return Case(f, after(state, written(f, state, d.array(wrong, dtype))), d.inputs)


# -- functions of functions


def branches(d: Draw, f: str) -> Case:
    x = d.array(d.shape(), WIDE, way=d.one(["fed", "constant"]))
    p = d.array((), "bool")
    one, two = (
        d.one(["tf.square({x})", "{x} * 2", "tf.exp({x})", "{x}"]).format(x=x) for _ in "ab"
    )
    if f == "case":
        pairs = f"[({p}, lambda: {one})]"
        return Case(f, f"tf.case({pairs}, default=lambda: {two})", d.inputs)
    return Case(f, f"tf.cond({p}, lambda: {one}, lambda: {two})", d.inputs)


def loop(d: Draw, f: str) -> Case:
    x = d.array(d.shape(), WIDE, 0.5, 1.5, way=d.one(["fed", "constant"]))
    body = d.one(["v * {x}", "v + {x}", "tf.sin(v) + {x}", "v"]).format(x=x)
    named = ", parallel_iterations=1" if d.chance(0.3) else ""
    steps = f"lambda i, v: i < {d.whole(0, 3)}, lambda i, v: (i + 1, {body})"
    return Case(f, f"tf.while_loop({steps}, [0, {x} * 1]{named})", d.inputs)


def mapped(d: Draw, f: str) -> Case:
    x = d.array((d.whole(0, 4), *d.shape(0, 2)), WIDE, way="fed")
    other = d.array((), "float32", way="fed")
    d.inputs[1].value = d.inputs[1].value.astype(d.inputs[0].value.dtype)
    if f == "map_fn":
        return Case(f, f"tf.map_fn(lambda v: tf.square(v) * {other}, {x})", d.inputs)
    start = f", tf.zeros_like({x}[0])" if d.chance(0.4) and d.inputs[0].value.shape[0] else ""
    flags = ", reverse=True" if f == "scan" and d.chance(0.3) else ""
    return Case(f, f"tf.{f}(lambda a, v: a * {other} + v, {x}{start}{flags})", d.inputs)


def derived(d: Draw, f: str) -> Case:
    shape = (d.whole(1, 3),)
    x = d.array(shape, WIDE, way="fed")
    d.inputs[0].static = list(shape)
    inner = d.one(
        ["tf.reduce_sum({x} ** 3)", "tf.reduce_sum(tf.sin({x}) * {x})", "tf.constant(1.0)"]
    )
    return d.call(f, Text(inner.format(x=x)), [x])


def passed(d: Draw, f: str) -> Case:
    shape = d.shape()
    x = d.array(shape, WIDE, way=d.one(["fed", "constant"]))
    known = d.one([None, [None] * len(shape)])
    forms = {
        "py_func": f"tf.py_func(lambda a: a + 1, [{x}], {x}.dtype)",
        "identity_n": f"tf.identity_n([{x}, {x} * 2])",
        "tuple": f"tf.tuple([{x}, None, {x} * 2])",
        "Print": f"tf.Print({x}, [tf.shape({x})], first_n=0)",
        "placeholder_with_default": f"tf.placeholder_with_default({x}, {known})",
        "convert_to_tensor": f"tf.convert_to_tensor({x})",
        "convert_to_tensor_or_sparse_tensor": f"tf.convert_to_tensor_or_sparse_tensor({x})",
        "convert_to_tensor_or_indexed_slices": f"tf.convert_to_tensor_or_indexed_slices({x})",
        "custom_gradient": f"tf.custom_gradient(lambda a: (a * 2, lambda dy: dy * 5))({x})",
        "make_template": f"tf.make_template('t', lambda a: a * 2)({x})",
        "group": f"tf.group({x}, {x} * 2)",
        "no_op": f"(tf.no_op(), {x})",
        "is_numeric_tensor": f"tf.is_numeric_tensor({x})",
        "as_dtype": f"tf.as_dtype({d.one(['np.float32', repr('int32'), 'bool', repr('bool')])})",
        "Assert": f"after(tf.Assert({d.chance(0.5)}, [{x}]), lambda: {x} * 2)",
    }
    return Case(f, forms[f], d.inputs)


# -- random numbers: dtype, shape and errors


def drawn(d: Draw, f: str) -> Case:
    named = {"dtype": d.dtype(("float32", "float64", "float16", "int32"))} if d.chance(0.5) else {}
    if named.get("dtype") == "tf.int32" and "uniform" in f:
        named["maxval"] = 5  # type: ignore[assignment]
    args: list[Any] = [[3, 4]] if "stateless" in f else []
    return unseeded(d.call(f, d.sizes(d.shape()), *([] if not args else [Text("[3, 4]")]), **named))


def drawn_by_rate(d: Draw, f: str) -> Case:
    rate = d.array(d.shape(0, 1), ("float32", "float64"), 0.1)
    old = f.startswith("random_gamma") or f == "random.gamma"
    args = [list(d.shape(0, 2)), rate] if old or d.chance(0) else [rate, list(d.shape(0, 2))]
    return unseeded(d.call(f, *args))


def shuffled(d: Draw, f: str) -> Case:
    return unseeded(d.call(f, d.array(d.shape(1), ANY)))


def cropped(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    return unseeded(d.call(f, d.array(shape, ANY), [d.whole(0, n) for n in shape]))


def categorical(d: Draw, f: str) -> Case:
    args = [[1, 2]] if "stateless" in f else []
    return unseeded(
        d.call(f, d.array((d.size(), d.whole(1, 4)), "float32", 0), d.whole(0, 4), *args)
    )


# -- schedules, layers, optimizers


def schedule(d: Draw, f: str) -> Case:
    step = d.array((), INDICES, 0, 9)
    forms: dict[str, list[Any]] = {
        "exponential_decay": [0.1, step, 3, 0.5],
        "inverse_time_decay": [0.1, step, 3, 0.5],
        "natural_exp_decay": [0.1, step, 3, 0.5],
        "polynomial_decay": [0.1, step, 5],
        "piecewise_constant": [step, Text("[np.int64(3), np.int64(6)]"), [0.3, 0.2, 0.1]],
        "cosine_decay": [0.1, step, 5],
        "cosine_decay_restarts": [0.1, step, 3],
        "linear_cosine_decay": [0.1, step, 5],
    }
    args = forms[f.rpartition(".")[2]]
    named = (
        d.some(staircase=[True])
        if f.endswith(("exponential_decay", "time_decay", "exp_decay"))
        else {}
    )
    if "polynomial" in f:
        named = d.some(cycle=[True], power=[2.0])
    return d.call(f, *args, **named)


def layer(d: Draw, f: str, dims: int = 2) -> Case:
    weights = Text("tf.constant_initializer(0.3)")
    kind = f.rpartition(".")[2]
    x = d.array((d.size(), *[d.whole(3, 5)] * dims, d.whole(1, 2)), "float32", way="fed")
    shape = d.inputs[0].value.shape
    d.inputs[0].static = d.one(
        [list(shape), [None, *shape[1:]], [*[None] * (len(shape) - 1), shape[-1]]]
    )
    if "pooling" in kind:
        return d.call(f, x, d.whole(1, 3), d.whole(1, 2), **d.some(padding=["same", "valid"]))
    if kind == "flatten":
        return d.call(f, x)
    if kind == "dropout":
        return d.call(f, x, **d.some(training=[False]))
    if kind == "batch_normalization":
        return d.call(f, x, **d.some(training=[True, False], center=[False], axis=[-1]))
    if kind == "dense":
        return d.call(
            f,
            x,
            d.whole(1, 3),
            kernel_initializer=weights,
            **d.some(use_bias=[False], activation=[Text("tf.nn.relu")]),
        )
    name = "depthwise_initializer" if "separable" in kind else "kernel_initializer"
    named = {name: weights} | ({"pointwise_initializer": weights} if "separable" in kind else {})
    options = d.some(
        padding=["same", "valid"], strides=[1, 2], use_bias=[False], activation=[Text("tf.nn.relu")]
    )
    return d.call(f, x, d.whole(1, 3), d.whole(1, 3), **named, **options)


def optimizer(d: Draw, f: str) -> Case:
    v = d.array((3, 2), "float32", 0.5, 2, way="variable")
    rate: list[Any] = [] if f.endswith("AdadeltaOptimizer") else [0.1]
    if f.endswith("MomentumOptimizer"):
        rate.append(0.9)
    if f.endswith("AdagradDAOptimizer"):
        rate.append(Text("tf.train.get_or_create_global_step()"))
    loss_text = d.one(
        [f"tf.reduce_sum(tf.square({v}))", f"tf.reduce_sum(tf.square(tf.gather({v}, [0, 2])))"]
    )
    return Case(f, after(v, f"{written(f, *rate)}.minimize({loss_text})"), d.inputs)
