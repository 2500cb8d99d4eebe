"""Functions that move elements: shapes, slices, joins, gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.oracle.draw import ANY, INDICES, NUMBERS, SIGNED, WIDE, Case, Draw, Text, written
from tools.oracle.parts import indices

# -- arrays


def reshape(d: Draw, f: str) -> Case:
    shape = d.shape(0, 3)
    target = [int(n) for n in d.rng.permutation(shape)]
    if target and d.chance(0.5):
        target[d.whole(0, len(target) - 1)] = -1
    elif d.chance(0.3):
        target = [-1]
    return d.call(f, d.array(shape, ANY), d.sizes(target))


def one_axis(d: Draw, f: str) -> Case:
    shape = d.shape()
    return d.call(f, d.array(shape, ANY), d.number(d.axis(len(shape) + 1)))


def squeeze(d: Draw, f: str) -> Case:
    shape = tuple(1 if d.chance(0.6) else d.size() for _ in range(d.whole(0, 4)))
    ones = [i - (len(shape) if d.chance(0.4) else 0) for i, n in enumerate(shape) if n == 1]
    axis = d.one([None, [], ones, ones[:1], d.axis(len(shape))])
    return d.call(f, d.array(shape, ANY), **({} if axis is None else {"axis": axis}))


def transpose(d: Draw, f: str) -> Case:
    shape = d.shape()
    perm = [int(p) for p in d.rng.permutation(len(shape))]
    if perm and d.chance(d.wrong):
        perm[0] = perm[-1]
    dtype = d.one(ANY)
    flags = d.some(conjugate=[True]) if dtype.startswith("complex") else {}
    return d.call(f, d.array(shape, dtype), *([d.sizes(perm)] if d.chance(0.7) else []), **flags)


def shaped(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(), ANY), **d.some(out_type=[Text("tf.int64")]))


def many_shapes(d: Draw, f: str) -> Case:
    return d.call(f, [d.array(d.shape(), "float32") for _ in range(d.whole(1, 3))])


def alone(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(), ANY))


def like(d: Draw, f: str) -> Case:
    named = {"dtype": d.dtype(("float32", "int32", "bool"))} if d.chance(0.4) else {}
    return d.call(f, d.array(d.shape(), (*ANY, "string")), **named)


def filled(d: Draw, f: str) -> Case:
    args = [d.array((), ANY)] if f == "fill" else []
    named = {"dtype": d.dtype(ANY)} if f != "fill" and d.chance(0.6) else {}
    sizes = [-1 if d.chance(d.wrong / 2) else n for n in d.shape()]
    return d.call(f, d.sizes(sizes), *args, **named)


def constant(d: Draw, f: str) -> Case:
    value = d.numbers(d.shape(0, 2), d.one(("float32", "int32", "bool"))).tolist()
    if not np.all(np.isfinite(np.asarray(value, "float64"))):
        value = 1.5
    named: dict[str, Any] = {}
    if d.chance(0.6):
        named["dtype"] = d.dtype(("float32", "float64", "int64", "complex64"))
    if f == "constant" and d.chance(0.4):
        named["shape"] = list(d.shape(0, 2))
    return d.call(f, value, **named)


def concat(d: Draw, f: str) -> Case:
    shape, dtype = list(d.shape(1)), d.one((*ANY, "string"))
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.whole(1, 3)):
        mine = list(shape)
        if -len(shape) <= axis < len(shape):
            mine[axis] = d.size()
        parts.append(d.array(tuple(mine), dtype))
    return d.call(f, parts, d.given(np.int32(axis)) if d.chance(0.2) else d.number(axis))


def stack(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(0, 3), d.one(ANY)
    named = (
        {"axis": d.number(d.axis(len(shape) + 1), False)} if f == "stack" and d.chance(0.7) else {}
    )
    return d.call(f, [d.array(shape, dtype) for _ in range(d.whole(1, 3))], **named)


def unstack(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 2
    named = {"num": size} if d.chance(0.6) else {}
    return d.call(f, d.array(shape, ANY), **named, axis=axis)


def split(d: Draw, f: str) -> Case:
    shape = list(d.shape(1))
    axis = d.axis(len(shape))
    inside = -len(shape) <= axis < len(shape)
    if d.chance(0.5):
        count = d.whole(1, 3)
        if inside and not d.chance(d.wrong):
            shape[axis] = count * d.size(0, 2)
        return d.call(f, d.array(tuple(shape), ANY), count, d.number(axis))
    sizes = [d.size(0, 2) for _ in range(d.whole(1, 3))]
    if inside and not d.chance(d.wrong):
        shape[axis] = sum(sizes)
    if d.chance(0.3) and len(sizes) > 1:
        sizes[0] = -1
    return d.call(f, d.array(tuple(shape), ANY), d.sizes(sizes), d.number(axis))


def slice_(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    begin = [d.whole(0, n) for n in shape]
    size = [-1 if d.chance(0.3) else d.whole(0, n - b) for n, b in zip(shape, begin, strict=True)]
    if d.chance(d.wrong):
        size[0] = shape[0] + 1
    return d.call(f, d.array(shape, ANY), d.sizes(begin), d.sizes(size))


def strided_slice(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    known = d.whole(1, len(shape))
    parts = [
        ([d.whole(-n - 1, n), d.whole(-n - 1, n), d.one([1, 1, 2, -1, -2])]) for n in shape[:known]
    ]
    begin, end, strides = (list(p) for p in zip(*parts, strict=True))
    masks = d.some(
        begin_mask=[1, 2, 3], end_mask=[1, 2], ellipsis_mask=[1], shrink_axis_mask=[1, 2]
    )
    if d.chance(0.6):
        masks = {}
    return d.call(f, d.array(shape, ANY), begin, end, strides, **masks)


def gather(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    axis = d.axis(len(shape)) if d.chance(0.5) else 0
    n = shape[axis] if -len(shape) <= axis < len(shape) else 2
    places = indices(d, d.shape(0, 2), n)
    return d.call(f, d.array(shape, ANY), places, **({"axis": d.number(axis)} if axis else {}))


def batch_gather(d: Draw, f: str) -> Case:
    batch = d.shape(0, 2)
    n = d.size()
    params = d.array((*batch, n, *d.shape(0, 1)), ANY)
    return d.call(f, params, indices(d, (*batch, d.size()), n))


def gather_nd(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    depth = d.whole(0, len(shape))
    lead = d.shape(0, 2)
    parts = [d.rng.integers(0, max(n, 1), lead) for n in shape[:depth]]
    index = np.stack(parts, -1) if parts else np.zeros((*lead, 0))
    if index.size and d.chance(d.wrong):
        index.reshape(-1)[0] = 9
    return d.call(f, d.array(shape, ANY), d.given(index.astype(d.one(INDICES))))


def scatter_nd(d: Draw, f: str) -> Case:
    shape = tuple(d.whole(1, 4) for _ in range(d.whole(1, 3)))
    depth, lead, dtype = d.whole(1, len(shape)), d.shape(1, 2), d.one(SIGNED)
    index = np.stack([d.rng.integers(0, n, lead) for n in shape[:depth]], -1)
    if index.size and d.chance(d.wrong):
        index.reshape(-1)[0] = 9
    updates = (*lead, *shape[depth:])
    indices = d.given(index.astype(d.one(INDICES)))
    if f == "scatter_nd":
        return d.call(f, indices, d.array(updates, dtype), list(shape))
    if "update" in f and index.size:  # equal indices have no order
        index[:] = index.reshape(-1, depth)[0]
        updates = shape[depth:]
        indices = d.given(index.reshape(-1, depth)[0])
    return d.call(f, d.array(shape, dtype), indices, d.array(updates, dtype))


def pad(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    mode = d.one(["CONSTANT", "CONSTANT", "REFLECT", "SYMMETRIC"])
    pads = [[d.whole(0, 2), d.whole(0, 2)] for _ in shape]
    named: dict[str, Any] = {} if d.chance(0.4) else {"mode": mode}
    if named.get("mode", "CONSTANT") == "CONSTANT" and d.chance(0.3):
        named["constant_values"] = 1
    where = d.given(np.array(pads, "int32")) if d.chance(0.4) else pads
    return d.call(f, d.array(shape, NUMBERS), where, **named)


def tile(d: Draw, f: str) -> Case:
    shape = d.shape()
    return d.call(f, d.array(shape, ANY), d.sizes([d.whole(0, 3) for _ in shape]))


def one_hot(d: Draw, f: str) -> Case:
    shape, depth = d.shape(0, 3), d.whole(0, 4)
    named: dict[str, Any] = {"axis": d.axis(len(shape) + 1)} if d.chance(0.5) else {}
    if d.chance(0.4):
        named |= {"on_value": 5, "off_value": -1}
    if d.chance(0.3):
        named["dtype"] = d.dtype(("int32", "float64", "float32"))
    sized = d.given(np.int32(depth)) if d.chance(0.3) else depth
    return d.call(f, d.array(shape, ("int32", "int64", "uint8"), -1, 4), sized, **named)


def boolean_mask(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    lead = d.whole(1, len(shape))
    static = list(shape[:lead])
    x, mask = d.array(shape, ANY), d.array(shape[:lead], "bool", way=d.one(["fed", "constant"]))
    if d.inputs[-1].way == "fed":
        d.inputs[-1].static = d.one([static, [None] * lead])
    return d.call(f, x, mask)


def reverse(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    axes = d.axes(len(shape))
    listed = isinstance(axes, list | tuple | Text) and "[" in str(axes)
    return d.call(f, d.array(shape, ANY), axes if listed else [0])


def reverse_sequence(d: Draw, f: str) -> Case:
    shape = (d.whole(1, 3), d.whole(1, 4), *d.shape(0, 1))
    lengths = d.array((shape[0],), INDICES, 0, shape[1])
    return d.call(f, d.array(shape, ANY), lengths, seq_axis=1, batch_axis=0)


def sequence_mask(d: Draw, f: str) -> Case:
    named = d.some(maxlen=[3, 5], dtype=[Text("tf.float32"), Text("tf.int32")])
    return d.call(
        f, d.array(tuple(d.whole(1, 3) for _ in range(d.whole(0, 2))), INDICES, 0, 4), **named
    )


def meshgrid(d: Draw, f: str) -> Case:
    vectors = [d.array((d.size(),), "float32") for _ in range(d.whole(1, 3))]
    return d.call(f, *vectors, **d.some(indexing=["xy", "ij"]))


def linspace(d: Draw, f: str) -> Case:
    dtype = d.one(["float32", "float64"])
    return d.call(f, d.array((), dtype, 0, 3), d.array((), dtype, 0, 3), d.whole(1, 5))


def range_(d: Draw, f: str) -> Case:
    args = d.one(
        [[d.whole(0, 5)], [1, d.whole(1, 5)], [5, 0, -2], [0, 3, d.one([1, 0.5, 2])], [0.0, 2.0]]
    )
    if d.chance(0.2):
        args = [d.array((), "int32", 0, 5)]
    return d.call(f, *args, **({"dtype": d.dtype(("float32", "int64"))} if d.chance(0.3) else {}))


def unique(d: Draw, f: str) -> Case:
    named = {"out_idx": Text("tf.int64")} if d.chance(0.3) else {}
    return d.call(f, d.array((d.size(1, 6),), ("int32", "int64", "float32", "string"), 0), **named)


def setdiff(d: Draw, f: str) -> Case:
    dtype = d.one(("int32", "int64", "float32"))
    return d.call(f, *(d.array((d.size(1, 5),), dtype, 0) for _ in range(2)))


def permutation(d: Draw, f: str) -> Case:
    value = d.rng.permutation(d.size(1, 5))
    if value.size and d.chance(d.wrong):
        value[0] = value[-1] if value.size > 1 else 7
    return d.call(f, d.given(value.astype(d.one(INDICES))))


def dynamic_partition(d: Draw, f: str) -> Case:
    shape, count = d.shape(1, 3), d.whole(1, 3)
    lead = d.whole(1, len(shape))
    which = d.array(shape[:lead], "int32", 0, count - 1)
    d.inputs[-1].static = None if d.inputs[-1].static is None else list(shape[:lead])
    return d.call(f, d.array(shape, ANY), which, count)


def dynamic_stitch(d: Draw, f: str) -> Case:
    total, tail, dtype = d.whole(1, 6), d.shape(0, 2), d.one(ANY)
    order = d.rng.permutation(total).astype("int32")
    cuts = sorted(d.whole(0, total) for _ in range(d.whole(0, 2)))
    parts = np.split(order, cuts)
    data = [d.array((len(p), *tail), dtype, way="fed") for p in parts]
    return d.call(f, [d.given(p, "fed") for p in parts], data)


def broadcast_to(d: Draw, f: str) -> Case:
    shape = d.shape()
    return d.call(f, d.array(d.beside(shape), ANY), d.sizes(shape))


def broadcast_shapes(d: Draw, f: str) -> Case:
    shape = d.shape()
    pair = [np.array(shape, "int32"), np.array(d.beside(shape), "int32")]
    return d.call(f, *(d.given(p) for p in pair))


def static_shapes(d: Draw, f: str) -> Case:
    shape = d.shape()
    sizes = [Text(f"tf.zeros({list(s)}).shape") for s in (shape, d.beside(shape))]
    return Case(f, f"[int(n) for n in {written(f, *sizes)}]")


def space_to_batch(d: Draw, f: str) -> Case:
    block = d.whole(2, 3)
    spatial = [block * d.whole(1, 2) for _ in range(2)]
    into = "space" in f.partition("_")[0]
    batch = d.size() if into else d.size() * block * block
    x = d.array((batch, *spatial, d.whole(1, 2)), ("float32", "int32"))
    pads = [[0, block if d.chance(0.3) else 0], [0, 0]]
    if f.endswith("nd"):
        return d.call(f, x, [block, block], pads)
    return d.call(f, x, pads, block)


def depth_to_space(d: Draw, f: str) -> Case:
    block = 2
    shape = [d.size(), 2 * d.whole(1, 2), 2 * d.whole(1, 2), 4 * d.whole(1, 2)]
    if d.chance(d.wrong):
        shape[d.whole(1, 3)] += 1
    return d.call(f, d.array(tuple(shape), ("float32", "int32", "uint8")), block)


def paddings_for(d: Draw, f: str) -> Case:
    named = {"base_paddings": [[1, 0], [0, 2]]} if d.chance(0.5) else {}
    return d.call(f, [d.whole(1, 6), d.whole(1, 6)], [d.whole(1, 3), d.whole(1, 3)], **named)


def patches(d: Draw, f: str) -> Case:
    x = d.array((d.size(), d.whole(2, 5), d.whole(2, 5), d.whole(1, 2)), WIDE)
    k, s, r = d.whole(1, 3), d.whole(1, 2), d.whole(1, 2)
    return d.call(f, x, [1, k, k, 1], [1, s, s, 1], [1, r, r, 1], padding=d.one(["SAME", "VALID"]))


def roll(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    return d.call(f, d.array(shape, ANY), d.number(d.whole(-4, 4)), d.number(d.axis(len(shape))))


def repeat(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3)
    axis = d.whole(0, len(shape) - 1)
    counts = d.whole(0, 3) if d.chance(0.5) else d.array((shape[axis],), "int32", 0, 3)
    return d.call(f, d.array(shape, ANY), counts, axis=axis)


def searchsorted(d: Draw, f: str) -> Case:
    rows, dtype = d.shape(0, 1), d.one(("float32", "int32"))
    ordered = np.sort(d.numbers((*rows, d.size(1, 5)), dtype, 0, 5), -1)
    return d.call(
        f,
        d.given(ordered),
        d.array((*rows, d.size()), dtype, 0, 5),
        **d.some(side=["left", "right"]),
    )


def unravel(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(0, 1), "int32", 0, 5), [2, 3])


def where(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(), d.one(ANY)
    condition = d.array(shape, "bool")
    if d.chance(0.2):
        return d.call(f, condition)
    rest = () if not shape or d.chance(0.7) else d.shape(0, 2)
    if rest:
        d.inputs.clear()
        shape = shape[:1]
        condition = d.array(shape, "bool")
    whole = (*shape, *rest)
    return d.call(f, condition, d.array(whole, dtype), d.array(whole, dtype))


def top_k(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3)
    k = min(d.whole(0, 3), shape[-1])
    named = d.some(sorted=[True])
    args = [d.given(np.int32(k))] if d.chance(0.3) else [k]
    return d.call(f, d.array(shape, ("float32", "float64", "int32")), *args, **named)
