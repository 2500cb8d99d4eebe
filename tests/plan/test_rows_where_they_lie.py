"""Fused kernels read rows where they lie, and write them side by side: no parts are copied."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.codegen import kernel_cache
from hpcflow.codegen.fused_loop_ir import COLUMN, FULL, JOIN, JOINED, ROW, KernelOperand
from hpcflow.codegen.llvm_cpu_codegen import text
from hpcflow.codegen.row_op_decomposition import StepBuilder
from hpcflow.kernels import onednn_matmul
from hpcflow.lowering.fusion import elementwise_fusion as module
from hpcflow.lowering.strided_layout import c_order_layout
from hpcflow.plan import pass_contexts
from hpcflow.plan.ir.program import Partition
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

RNG = np.random.default_rng(3)
COPIES = {"Transpose", "Split", "Unpack", "StridedSlice", "Concat", "Pack", "BroadcastTo"}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def ran(
    build: Callable[..., Any], *arrays: np.ndarray, **wishes: Any
) -> tuple[list[Any], Partition]:
    """What `build` makes of these arrays, and the part that has run."""
    parts: list[Partition] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        fuse = pass_contexts.fuse_elementwise
        patch.setattr(
            pass_contexts, "fuse_elementwise", lambda *a: parts.append(fuse(*a)) or parts[-1]
        )
        feeds = [hf.placeholder(hf.as_dtype(a.dtype), a.shape) for a in arrays]
        with hf.Session(context=RankContext(Settings(**wishes))) as session:
            found = session.run(build(*feeds), dict(zip(feeds, arrays, strict=True)))
    return [np.asarray(x) for x in found], parts[-1] if parts else Partition("", {})


def fused(part: Partition) -> list[list[str]]:
    """The types of the operations of each fused kernel."""
    return [list(n.attrs["types"]) for n in part.nodes.values() if n.type == "Fused"]


def types(part: Partition) -> set[str]:
    return {node.type for node in part.nodes.values()}


# -- where rows begin


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_begin_where_numpy_sees_them(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    lay, seen = c_order_layout(shape), np.arange(math.prod(shape)).reshape(shape)
    perm = data.draw(st.permutations(range(len(shape))))
    axis = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(0, shape[perm[axis]] - 1))
    lay, seen = lay.transposed(perm).part(axis, first, 1), seen.transpose(perm)
    seen = seen[(slice(None),) * axis + (slice(first, first + 1),)]
    lead = data.draw(st.lists(st.integers(1, 3), max_size=2))
    whole = [*lead, *(data.draw(st.integers(1, 3)) if n == 1 else n for n in seen.shape)]
    lay, seen = lay.broadcast(whole), np.broadcast_to(seen, whole)
    assert lay.run() == run_of(seen)
    for cols in {math.prod(whole[k:]) for k in range(len(whole))}:
        rows = seen.reshape(-1, cols)
        found = lay.row_mapping(cols)
        along, still = (np.diff(rows) == 1).all(), (np.diff(rows) == 0).all()
        assert (found is not None) == (along or still)
        if found is None:
            continue
        way, begins = found
        count = np.arange(len(rows))
        if begins is not None:
            start, terms = begins
            begin = (
                start + 0 * count + sum(((count // a) % (b or len(rows))) * c for a, b, c in terms)
            )
        else:
            begin = {FULL: count * cols, COLUMN: count}.get(way, 0 * count)
        places = np.arange(cols) if way in (FULL, ROW) else np.zeros(cols, int)
        np.testing.assert_array_equal(rows, np.add.outer(begin, places))


def run_of(seen: np.ndarray) -> int:
    """How many elements at the end of an array lie side by side, in whole axes."""
    found = 1
    for k in range(seen.ndim + 1):
        n = math.prod(seen.shape[k:])
        if (np.diff(seen.reshape(-1, n)) == 1).all():
            found = max(found, n)
    return found


@pytest.mark.parametrize("rows", [1, 6, 3000])
@pytest.mark.parametrize("cols", [2, 16, 65])
def test_a_kernel_reads_windows_and_writes_rows_side_by_side(rows: int, cols: int) -> None:
    """x[:, 1] + mask[i % 2, i // 2], then that and x[:, 0] as the halves of rows."""
    x, mask = normal(rows, 3, cols), normal(2, -(-rows // 2))
    f4 = np.dtype("f4")
    operands = (
        KernelOperand(f4, FULL, 0, (cols, ((1, 0, 3 * cols),))),
        KernelOperand(f4, COLUMN, 0, (0, ((1, 2, mask.shape[1]), (2, 0, 1)))),
        KernelOperand(f4, FULL, 0, (0, ((1, 0, 3 * cols),))),
    )
    steps = StepBuilder(operands, cols)
    total = steps("Add", 0, 1)
    body = steps.body((steps.add(JOIN, (total, 2), {}, JOINED),))._replace(size=rows * cols)
    written = text(body, exact=True)
    assert written is not None
    found = np.full((rows, 2, cols), np.nan, "f4")
    kernel_cache.builtin(written)(x, mask, x, found)
    i = np.arange(rows)
    np.testing.assert_array_equal(found[:, 0], x[:, 1] + mask[i % 2, i // 2][:, None])
    np.testing.assert_array_equal(found[:, 1], x[:, 0])


# -- random programs

SHAPES = [(2, 4, 6), (4, 6), (2, 1, 6), (2, 4, 1), (2, 1, 1), (4, 1), (6,), ()]
BINARY = [operator.add, operator.sub, operator.mul, hf.maximum]
UNARY = [hf.abs, hf.square, hf.nn.relu, operator.neg]
SUMS = [
    lambda x: hf.reduce_sum(x, -1, keepdims=True),
    lambda x: hf.reduce_sum(x, [1, 2], keepdims=True),
    lambda x: hf.reduce_sum(x, 0),
    hf.nn.softmax,
]


def halves(x: Any, y: Any, axis: int) -> Any:
    """The halves of one changed place, and one of them is changed."""
    a, b = hf.split(x, 2, axis)
    return hf.concat([b, a * hf.split(y, 2, axis)[1]], axis)


def turned(x: Any, y: Any) -> Any:
    """Computed in another order of the axes."""
    perm = [1, 0, 2]
    return hf.transpose(hf.maximum(hf.transpose(x, perm), hf.transpose(y, perm)), perm)


def programmed(program: Any, sums: bool, **wishes: Any) -> list[np.ndarray]:
    """Values and gradients of a random program."""

    def build(*feeds: Any) -> list[Any]:
        values = list(feeds)
        for kind, a, b, which in program:
            x, y = values[a % len(values)], values[b % len(values)]
            whole = [hf.broadcast_to(v, SHAPES[0]) for v in (x, y)]
            if kind == "unary":
                values.append(UNARY[which % len(UNARY)](x))
            elif kind == "binary":
                values.append(BINARY[which % len(BINARY)](x, y))
            elif kind == "halves":
                values.append(halves(*whole, 1 + which % 2))
            elif kind == "turned":
                values.append(turned(*whole))
            elif kind == "where":
                values.append(hf.where(hf.greater(x, y), x, y - x))
            elif sums:
                values.append(SUMS[which % len(SUMS)](whole[0]))
        loss = sum(hf.reduce_sum(v) for v in values)
        return [*values[len(feeds) :], *hf.gradients(loss, feeds)]

    rng = np.random.default_rng(5)
    return ran(build, *(rng.standard_normal(s).astype("f4") for s in SHAPES), **wishes)[0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from("unary binary binary halves halves turned where sum".split()),
        *(st.integers(0, 50) for _ in range(3)),
    ),
    min_size=2,
    max_size=12,
)
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 2)


@pytest.mark.slow
@SETTINGS
@given(program=STEPS)
def test_any_program_gives_the_same_bits(short_windows: None, program: Any) -> None:
    found, wanted = (programmed(program, False, kernels=k, exact=True) for k in ("auto", "plain"))
    for mine, right in zip(found, wanted, strict=True):
        assert mine.tobytes() == right.tobytes()


@pytest.mark.slow
@SETTINGS
@given(program=STEPS)
def test_any_program_gives_nearly_the_same(short_windows: None, program: Any) -> None:
    found, wanted = (programmed(program, True, kernels=k) for k in ("auto", "plain"))
    for mine, right in zip(found, wanted, strict=True):
        scale = np.abs(right[np.isfinite(right)]).max(initial=1.0)
        np.testing.assert_allclose(mine, right, atol=1e-4 * scale)


# -- cells and attention as they are written


def slope(
    function: Callable[..., Any], arrays: Sequence[np.ndarray], along: Sequence[Any]
) -> float:
    """How a function of arrays changes along others, by differences of 64 bits."""
    e = 1e-5
    ends = [
        function(*(x.astype("f8") + sign * e * d for x, d in zip(arrays, along, strict=True)))
        for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / (2 * e)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


ROWS, SIZE, LONG = 3, 32, 3  # of a batch, of a cell, steps


def lstm(x: Any, w: Any, bias: Any) -> list[Any]:
    h = c = hf.zeros([ROWS, SIZE])
    for part in hf.unstack(x, LONG):
        gates = hf.nn.bias_add(hf.matmul(hf.concat([part, h], 1), w), bias)
        i, j, f, o = hf.split(gates, 4, axis=1)
        c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
        h = hf.sigmoid(o) * hf.tanh(c)
    losses = hf.reduce_sum(hf.square(h), 1)  # one of each row
    return [losses, *hf.gradients(losses, [x, w, bias])]


def lstm_by_numpy(x: Any, w: Any, bias: Any) -> Any:
    h = c = np.zeros((ROWS, SIZE))
    for part in x:
        i, j, f, o = np.split(np.concatenate([part, h], 1) @ w + bias, 4, axis=1)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        h = sigmoid(o) * np.tanh(c)
    return np.square(h).sum()


def test_a_cell_is_one_kernel_each_way() -> None:
    """Its gates are not parted, nor their gradients joined, by copies."""
    given = [normal(LONG, ROWS, SIZE), normal(2 * SIZE, 4 * SIZE) * 0.1, normal(4 * SIZE)]
    (losses, *gradients), part = ran(lstm, *given)
    assert "Split" not in types(part)
    assert all(n.attrs["axis"] == 0 for n in part.nodes.values() if n.type == "Concat")
    forward = [kinds for kinds in fused(part) if "Tanh" in kinds]
    assert len(forward) == LONG and all(kinds.count("BiasAdd") == 4 for kinds in forward)
    assert sum("Concat" in kinds and "TanhGrad" in kinds for kinds in fused(part)) == LONG
    np.testing.assert_allclose(
        losses.sum(), lstm_by_numpy(*(x.astype("f8") for x in given)), rtol=1e-5
    )
    along = [normal(*x.shape) for x in given]
    found = sum((g.astype("f8") * d).sum() for g, d in zip(gradients, along, strict=True))
    np.testing.assert_allclose(found, slope(lstm_by_numpy, given, along), rtol=1e-3)


@pytest.mark.parametrize("whole", [False, True])
def test_what_others_need_is_computed_as_a_whole(whole: bool) -> None:
    """A value that is fetched is not computed in parts; these are read where they lie in it."""

    def build(x: Any, y: Any) -> list[Any]:
        total = x + y
        a, b = hf.split(total, 2, axis=1)
        return [hf.tanh(a) * b, *([total] if whole else [])]

    x, y = normal(4, 64), normal(4, 64)
    found, part = ran(build, x, y)
    assert "Split" not in types(part)
    assert ("Add" in types(part), fused(part)[0].count("Add")) == (
        (True, 0) if whole else (False, 2)
    )
    total = x + y
    np.testing.assert_allclose(found[0], np.tanh(total[:, :32]) * total[:, 32:], rtol=1e-5)


B, H, T, D = 2, 3, 20, 16
MASKS = [(T, T), (1, 1, T, T), (B, 1, 1, T), (B, 1, T, T), (B, H, T, T), (1, H, 1, 1)]


def scored(q: Any, k: Any, v: Any, scale: float, change: Callable[[Any], Any]) -> Any:
    """The sum of squares of what attention gives, by NumPy."""
    scores = change(np.einsum("bhid,bhjd->bhij", q, k) * scale)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bhij,bhjd->bhid", powers / powers.sum(-1, keepdims=True), v)
    return np.square(mixed).sum()


@pytest.fixture
def small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are the library's, if it is there."""
    monkeypatch.setattr(onednn_matmul, "WORK", 1)
    monkeypatch.setattr(onednn_matmul, "COLUMNS", 1)


@pytest.mark.parametrize("kind", ["added", "booleans"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_are_part_of_the_softmax(shape: tuple[int, ...], kind: str, small_ones: None) -> None:
    """Of heads that lie in a joint array, whatever axes the mask has: no copy is left."""
    x = normal(B, T, 3 * H * D)
    mask = RNG.random(shape) < 0.7 if kind == "booleans" else normal(*shape)
    if kind == "booleans" and shape[-1] == T:
        mask[..., 0] = True  # each query sees a key

    def heads(xp: Any, x: Any) -> list[Any]:
        parts = (xp.reshape(p, [B, T, H, D]) for p in xp.split(x, 3, axis=-1))
        return [xp.transpose(p, [0, 2, 1, 3]) for p in parts]

    def build(x: Any, mask: Any) -> list[Any]:
        q, k, v = heads(hf, x)
        if kind == "booleans":
            y = hf.nn.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        else:
            scores = hf.matmul(q, k, transpose_b=True) * 0.3 + mask
            y = hf.matmul(hf.nn.softmax(scores), v)
        y = hf.reshape(hf.transpose(y, [0, 2, 1, 3]), [B, T, H * D])
        loss = hf.reduce_sum(hf.square(y))
        return [loss, hf.gradients(loss, x)[0]]

    def by_numpy(x: Any) -> Any:
        if kind == "added":
            return scored(*heads(np, x), 0.3, lambda s: s + mask)
        seen = np.broadcast_to(mask, (B, H, T, T)).any(-1).mean()
        assert shape == (1, H, 1, 1) or seen == 1
        q, k, v = heads(np, x)
        if shape == (1, H, 1, 1):  # heads that see nothing give zeros
            q, k, v = (p[:, mask[0, :, 0, 0]] for p in (q, k, v))
            return scored(q, k, v, 0.3, lambda s: s)
        return scored(q, k, v, 0.3, lambda s: np.where(mask, s, -np.inf))

    (loss, gradient), part = ran(build, x, mask)
    assert COPIES.isdisjoint(types(part))
    forward, *_ = (kinds for kinds in fused(part) if "Softmax" in kinds)
    assert "Mul" in forward and ("Select" if kind == "booleans" else "Add") in forward
    assert types(part).isdisjoint({"Add", "Mul", "Select", "Softmax", "SoftmaxGrad"})
    np.testing.assert_allclose(loss, by_numpy(x.astype("f8")), rtol=1e-4)
    along = normal(*x.shape)
    found = (gradient.astype("f8") * along).sum()
    np.testing.assert_allclose(found, slope(by_numpy, [x], [along]), rtol=2e-3)


def test_a_layer_with_a_mask_copies_no_heads(small_ones: None) -> None:
    """What users write, and its gradient: the mask, what is past and the scale in one kernel."""
    x, mask, width = normal(B, T, H * D), RNG.random((B, 1, T)) < 0.7, H * D
    mask[..., 0] = True  # each query sees a key
    parts: list[Partition] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        fuse = pass_contexts.fuse_elementwise
        patch.setattr(
            pass_contexts, "fuse_elementwise", lambda *a: parts.append(fuse(*a)) or parts[-1]
        )
        given, seen = hf.placeholder(hf.float32, x.shape), hf.placeholder(hf.bool, mask.shape)
        y = hf.layers.multi_head_attention(given, num_heads=H, mask=seen, causal=True)
        loss = hf.reduce_sum(hf.square(y))
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            variables = hf.trainable_variables()
            values = session.run(variables)
            fetches = [loss, *hf.gradients(loss, [given, *variables])]
            found, *gradients = session.run(fetches, {given: x, seen: mask})
    names = ["/".join(v.name.split(":")[0].split("/")[-2:]) for v in variables]
    assert COPIES.isdisjoint(types(parts[-1]))
    (forward,) = (kinds for kinds in fused(parts[-1]) if "Softmax" in kinds)
    assert "Mul" in forward and "Select" in forward

    def by_numpy(x: Any, *values: Any) -> Any:
        of = dict(zip(names, values, strict=True))
        q, k, v = (
            (x @ of[f"{into}/kernel"] + of[f"{into}/bias"]).reshape(B, T, H, D).swapaxes(1, 2)
            for into in ("query", "key", "value")
        )
        past = np.tril(np.ones((T, T), bool)) & mask[:, None]
        scores = np.where(past, np.einsum("bhid,bhjd->bhij", q, k) / D**0.5, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bhij,bhjd->bihd", powers / powers.sum(-1, keepdims=True), v)
        y = mixed.reshape(B, T, width) @ of["output/kernel"] + of["output/bias"]
        return np.square(y).sum()

    everything = [x, *values]
    np.testing.assert_allclose(found, by_numpy(*(a.astype("f8") for a in everything)), rtol=1e-4)
    along = [normal(*a.shape) for a in everything]
    change = sum((g.astype("f8") * d).sum() for g, d in zip(gradients, along, strict=True))
    np.testing.assert_allclose(change, slope(by_numpy, everything, along), rtol=2e-3)


def test_rows_as_long_as_the_mask_where_nothing_asks_for_shorter_ones() -> None:
    x, shift = normal(2, 4, 8), normal(4, 8)
    (found,), part = ran(lambda x, s: [hf.nn.relu(x + s)], x, shift)
    (node,) = (n for n in part.nodes.values() if n.type == "Fused")
    assert node.attrs["body"].cols == 32
    np.testing.assert_array_equal(found, np.maximum(x + shift, 0))


def test_a_copy_that_a_device_asks_for_may_be_inside_a_kernel() -> None:
    x = normal(40, 32)

    def build(x: Any) -> list[Any]:
        with hf.device("/cpu:0"):
            kept = hf.identity(hf.tanh(x))
            return [hf.reduce_sum(hf.square(kept)), hf.tanh(hf.transpose(kept, [1, 0]))]

    (total, turned_over), _ = ran(build, x)
    kept = np.tanh(x.astype("f8"))
    np.testing.assert_allclose(total, (kept**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(turned_over, np.tanh(kept.T), rtol=1e-5)


def test_parts_do_not_take_the_names_of_others() -> None:
    def build(x: Any, y: Any) -> list[Any]:
        gates = hf.add(x, y, name="cell/gates")
        a, b = hf.split(gates, 2, 1)
        taken = [hf.sin(x, name=f"cell/gates/part{i}") for i in range(3)]
        return [hf.tanh(a) * hf.tanh(b), *taken]

    x, y = normal(30, 64), normal(30, 64)
    (found, *sines), _ = ran(build, x, y)
    a, b = np.split(x.astype("f8") + y, 2, 1)
    np.testing.assert_allclose(found, np.tanh(a) * np.tanh(b), rtol=1e-4, atol=1e-5)
    for one in sines:
        np.testing.assert_allclose(one, np.sin(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("columns", "read"), [(64, True), (16, False)])
def test_a_narrow_window_of_much_is_copied(columns: int, read: bool) -> None:
    """Else the much lives as long as the window."""

    def build(x: Any, w: Any) -> list[Any]:
        window = hf.matmul(x, w)[:, 5 : 5 + columns]
        return [hf.square(window) * 0.5 + hf.tanh(window)]

    found, part = ran(build, x := normal(64, 8), w := normal(8, 256))
    window = (x.astype("f8") @ w)[:, 5 : 5 + columns]
    np.testing.assert_allclose(found[0], window**2 * 0.5 + np.tanh(window), rtol=1e-4, atol=1e-5)
    assert read != ("StridedSlice" in types(part) or "Rows" in types(part))
